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
    RecallInfo,
    StoredMessage,
    ThreadSummary,
)

from .answer_cache import KeptAnswer
from .convert import NANOS_PER_SECOND, IndexBatch
from .errors import error_detail
from .framing import field_tag, varint
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


def kept_answer(answer: RecallAnswer, explain: bool, index_identity: str) -> KeptAnswer:
    """All of a recall's answer that does not depend on when it is given."""
    response = recall_pb2.RecallResponse(context_text=answer.context_text)
    for recalled in answer.messages:
        _fill_recalled(response.messages.add(), recalled, explain)
    found = answer.info
    info = recall_pb2.RecallInfo(
        scope_used=int(found.scope_used),  # type: ignore[arg-type]
        mode_used=int(found.mode_used),  # type: ignore[arg-type]
        best_score=found.best_score,
        why_empty=int(found.why_empty),  # type: ignore[arg-type]
        query_truncated=found.query_truncated,
        query_tokens=found.query_tokens,
        candidates=found.candidates,
        searchable=found.searchable,
        exact=True,
        unknown_filter_keys=found.unknown_filter_keys,
        index_identity=index_identity,
        absent_group_ids=found.absent_group_ids,
        messages_dropped=found.messages_dropped,
    )
    return KeptAnswer(response.SerializeToString(), info.SerializeToString())


_INFO_TAG = field_tag(recall_pb2.RecallResponse.DESCRIPTOR.fields_by_name["info"].number)


def recall_bytes(request_id: str, kept: KeptAnswer, now: recall_pb2.RecallInfo) -> bytes:
    """An encoded RecallResponse.

    Args:
        request_id: the request's.
        kept: what is the same each time.
        now: the fields that `kept.info` leaves out.
    """
    info = kept.info + now.SerializeToString()
    head = recall_pb2.RecallResponse(request_id=request_id).SerializeToString()
    return b"".join((head, kept.messages, _INFO_TAG, varint(len(info)), info))


def timings_of(info: RecallInfo) -> recall_pb2.RecallTimings:
    """The stages of a recall."""
    return recall_pb2.RecallTimings(
        embed_us=min(MICROSECONDS_MAX, info.embed_us),
        search_us=min(MICROSECONDS_MAX, info.search_us),
        fetch_us=min(MICROSECONDS_MAX, info.fetch_us),
        render_us=min(MICROSECONDS_MAX, info.render_us),
    )


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
