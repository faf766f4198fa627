"""Values of the engine to answers of the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.errors import InvalidArgumentError, SemanticRecallError
from semanticrecall_core.types.values import (
    EmbeddedText,
    IndexAnswer,
    RecallAnswer,
    RecalledMessage,
    StoredMessage,
    ThreadSummary,
)

from .convert import NANOS_PER_SECOND, IndexBatch
from .errors import error_detail
from .metadata_json import fill_struct

MICROSECONDS_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Clock:
    """When a call arrived and when a worker took it, in seconds of the monotonic clock."""

    arrived: float
    started: float

    @property
    def queue_us(self) -> int:
        """Microseconds between the two."""
        return microseconds(self.started - self.arrived)

    def total_us(self, now: float) -> int:
        """Microseconds since the arrival."""
        return microseconds(now - self.arrived)


def microseconds(seconds: float) -> int:
    """Seconds as the wire writes durations."""
    return min(MICROSECONDS_MAX, max(0, round(seconds * 1e6)))


def timestamp(time_ns: int) -> Timestamp:
    """Nanoseconds since 1970 as a Timestamp."""
    seconds, nanos = divmod(time_ns, NANOS_PER_SECOND)
    return Timestamp(seconds=seconds, nanos=nanos)


def fill_message(target: types_pb2.Message, stored: StoredMessage) -> None:
    """Write a message of the record."""
    target.id = stored.id
    target.thread_id = stored.thread_id
    target.resource_id = stored.resource_id
    target.role = int(stored.role)  # type: ignore[assignment]
    if stored.author:
        target.author = stored.author
    target.text = stored.text
    seconds, nanos = divmod(stored.create_time_ns, NANOS_PER_SECOND)
    target.create_time.seconds = seconds
    target.create_time.nanos = nanos
    if stored.metadata_json:
        fill_struct(target.metadata, stored.metadata_json)
    if stored.payload:
        target.payload = stored.payload
    if stored.payload_type:
        target.payload_type = stored.payload_type
    if stored.group_id:
        target.group_id = stored.group_id


def recall_response(
    request: recall_pb2.RecallRequest, answer: RecallAnswer, index_identity: str
) -> recall_pb2.RecallResponse:
    """The answer of a recall, without the timings that are known only at its end."""
    response = recall_pb2.RecallResponse(
        request_id=request.request_id, context_text=answer.context_text
    )
    for recalled in answer.messages:
        _fill_recalled(response.messages.add(), recalled, request.explain)
    info, found = response.info, answer.info
    info.scope_used = int(found.scope_used)  # type: ignore[assignment]
    info.mode_used = int(found.mode_used)  # type: ignore[assignment]
    if found.best_score is not None:
        info.best_score = found.best_score
    info.why_empty = int(found.why_empty)  # type: ignore[assignment]
    info.query_truncated = found.query_truncated
    info.query_tokens = found.query_tokens
    info.cache_hit = found.cache_hit
    info.candidates = found.candidates
    info.searchable = found.searchable
    info.pending = found.pending
    info.exact = True
    info.unknown_filter_keys.extend(found.unknown_filter_keys)
    info.index_identity = index_identity
    info.absent_group_ids.extend(found.absent_group_ids)
    info.messages_dropped = found.messages_dropped
    timings = info.timings
    timings.embed_us = min(MICROSECONDS_MAX, found.embed_us)
    timings.search_us = min(MICROSECONDS_MAX, found.search_us)
    timings.fetch_us = min(MICROSECONDS_MAX, found.fetch_us)
    timings.render_us = min(MICROSECONDS_MAX, found.render_us)
    return response


def _fill_recalled(
    target: recall_pb2.RecalledMessage, recalled: RecalledMessage, explain: bool
) -> None:
    fill_message(target.message, recalled.message)
    target.group_state = int(recalled.group_state)  # type: ignore[assignment]
    found = recalled.found
    if found is None:
        return
    target.hit = True
    target.score = found.score
    target.rank = recalled.rank
    if explain:
        target.explain.cosine = found.score
        target.explain.dense_rank = recalled.rank
        target.explain.chunk = found.chunk
        target.explain.chunks = found.chunks


def index_response(
    request: recall_pb2.IndexRequest, batch: IndexBatch, answer: IndexAnswer, clock: Clock
) -> recall_pb2.IndexResponse:
    """Results of stored and rejected messages, in the order of the request."""
    response = recall_pb2.IndexResponse(read_token=answer.read_token)
    stored = dict(zip(batch.positions, answer.results, strict=True))
    for position, message in enumerate(request.messages):
        result = response.results.add(message_id=message.id)
        rejected = batch.rejected.get(position)
        if rejected is not None:
            result.status = types_pb2.STATUS_REJECTED
            result.error.CopyFrom(error_detail(rejected))
            continue
        outcome = stored[position]
        result.status = int(outcome.status)  # type: ignore[assignment]
        if outcome.error is not None:
            result.error.CopyFrom(error_detail(outcome.error))
    response.info.embeddings_computed = answer.embeddings_computed
    response.info.embeddings_cached = answer.embeddings_cached
    response.info.durable_us = min(MICROSECONDS_MAX, clock.queue_us + answer.durable_us)
    return response


def embed_response(
    embedded: Iterable[EmbeddedText], dimensions: int, index_identity: str
) -> recall_pb2.EmbedResponse:
    """One vector per text."""
    response = recall_pb2.EmbedResponse(dimensions=dimensions, index_identity=index_identity)
    for text in embedded:
        target = response.embeddings.add(tokens=text.tokens, truncated=text.truncated)
        target.values.extend(text.vectors[0].tolist())
    return response


def fill_thread(target: recall_pb2.Thread, thread: ThreadSummary) -> None:
    """Write one thread."""
    target.thread_id = thread.thread_id
    target.messages = thread.messages
    target.first_create_time.CopyFrom(timestamp(thread.first_create_time_ns))
    target.last_create_time.CopyFrom(timestamp(thread.last_create_time_ns))


def recall_error(request_id: str, error: SemanticRecallError) -> recall_pb2.RecallResponse:
    """A recall of a stream that failed. An id that is itself at fault is not sent back."""
    faulty = isinstance(error, InvalidArgumentError) and any(
        violation.field == "request_id" for violation in error.violations
    )
    return recall_pb2.RecallResponse(
        request_id="" if faulty else request_id, error=error_detail(error)
    )


def index_error(error: SemanticRecallError) -> recall_pb2.IndexResponse:
    """An Index request of a stream that failed as a whole."""
    return recall_pb2.IndexResponse(error=error_detail(error))
