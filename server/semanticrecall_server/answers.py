"""Values of the engine to answers of the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.errors import InvalidArgumentError, SemanticRecallError
from semanticrecall_core.types.recalling import (
    GroupState,
    Hit,
    RecallAnswer,
    RecalledMessage,
    RecallInfo,
)
from semanticrecall_core.types.values import EmbeddedText, IndexAnswer, StoredMessage, ThreadSummary

from .answer_cache import KeptAnswer
from .convert import NANOS_PER_SECOND, IndexBatch
from .errors import error_detail
from .framing import field_tag, float_bytes, float_tag, number_tag, varint

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
    target.MergeFromString(stored.encoded)


def recalled_bytes(answer: RecallAnswer, explain: bool) -> bytes:
    """The encoded field `messages` of a RecallResponse: stored messages, put together as they are.

    Args:
        answer: what was recalled.
        explain: whether hits say where their score comes from.
    """
    pieces: list[bytes] = []
    for recalled in answer.messages:
        message, _, found, group_state, text_cut = recalled
        encoded = message.encoded
        size = varint(len(encoded))
        if found is None and not text_cut:  # as most are
            rest = _STATES[group_state]
        else:
            rest = _beside_message(recalled, explain)
        length = 1 + len(size) + len(encoded) + len(rest)
        pieces += (_RECALLED_TAG, varint(length), _MESSAGE_TAG, size, encoded, rest)
    return b"".join(pieces)


def kept_answer(answer: RecallAnswer, explain: bool, index_identity: str) -> KeptAnswer:
    """All of a recall's answer that does not depend on when it is given."""
    text = recall_pb2.RecallResponse(context_text=answer.context_text).SerializeToString()
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
        exact=found.exact,
        unknown_filter_keys=found.unknown_filter_keys,
        index_identity=index_identity,
        absent_group_ids=found.absent_group_ids,
        messages_dropped=found.messages_dropped,
        tokens=found.tokens,
        context_tokens=found.context_tokens,
        messages_dropped_for_tokens=found.messages_dropped_for_tokens,
        context_did_not_fit=found.context_did_not_fit,
    )
    excluded = excluded_bytes(answer) if explain else b""
    return KeptAnswer(recalled_bytes(answer, explain) + text + excluded, info.SerializeToString())


_ID_TAG = field_tag(recall_pb2.RecallResponse.REQUEST_ID_FIELD_NUMBER)
_INFO_TAG = field_tag(recall_pb2.RecallResponse.INFO_FIELD_NUMBER)
_RECALLED_TAG = field_tag(recall_pb2.RecallResponse.MESSAGES_FIELD_NUMBER)
_MESSAGE_TAG = field_tag(recall_pb2.RecalledMessage.MESSAGE_FIELD_NUMBER)
_REPEATED = recall_pb2.RecallInfo(cache_hit=True, answer_cache_hit=True).SerializeToString()
_PENDING_TAG = number_tag(recall_pb2.RecallInfo.PENDING_FIELD_NUMBER)
_TIMINGS_TAG = field_tag(recall_pb2.RecallInfo.TIMINGS_FIELD_NUMBER)
_TOTAL_US_TAG = number_tag(recall_pb2.RecallTimings.TOTAL_US_FIELD_NUMBER)


def recall_bytes(request_id: str, kept: KeptAnswer, now: bytes) -> bytes:
    """An encoded RecallResponse.

    Args:
        request_id: the request's.
        kept: what is the same each time.
        now: the encoded fields of RecallInfo that `kept.info` leaves out.
    """
    name = request_id.encode()
    head = (_ID_TAG, varint(len(name)), name) if name else ()
    size = varint(len(kept.info) + len(now))
    return b"".join((*head, kept.messages, _INFO_TAG, size, kept.info, now))


def repeated_info(pending: int, total_us: int) -> bytes:
    """The fields of RecallInfo of an answer given again; by hand, which is quicker."""
    total = _TOTAL_US_TAG + varint(total_us) if total_us else b""
    waiting = _PENDING_TAG + varint(pending) if pending else b""
    return b"".join((_REPEATED, _TIMINGS_TAG, varint(len(total)), total, waiting))


def timings_of(info: RecallInfo) -> recall_pb2.RecallTimings:
    """The stages of a recall."""
    return recall_pb2.RecallTimings(
        embed_us=min(MICROSECONDS_MAX, info.embed_us),
        search_us=min(MICROSECONDS_MAX, info.search_us),
        fetch_us=min(MICROSECONDS_MAX, info.fetch_us),
        render_us=min(MICROSECONDS_MAX, info.render_us),
        lexical_us=min(MICROSECONDS_MAX, info.lexical_us),
    )


_HIT = number_tag(recall_pb2.RecalledMessage.HIT_FIELD_NUMBER) + b"\x01"
_LEXICAL_ONLY = number_tag(recall_pb2.RecalledMessage.LEXICAL_ONLY_FIELD_NUMBER) + b"\x01"
_TEXT_CUT = number_tag(recall_pb2.RecalledMessage.TEXT_CUT_FIELD_NUMBER) + b"\x01"
_RANK_TAG = number_tag(recall_pb2.RecalledMessage.RANK_FIELD_NUMBER)
_SCORE_TAG = float_tag(recall_pb2.RecalledMessage.SCORE_FIELD_NUMBER)
_RELEVANCE_TAG = float_tag(recall_pb2.RecalledMessage.RELEVANCE_FIELD_NUMBER)
_EXPLAIN_TAG = field_tag(recall_pb2.RecalledMessage.EXPLAIN_FIELD_NUMBER)
_STATE_TAG = number_tag(recall_pb2.RecalledMessage.GROUP_STATE_FIELD_NUMBER)
_STATES = {state: _STATE_TAG + varint(state) if state else b"" for state in GroupState}


def _beside_message(recalled: RecalledMessage, explain: bool) -> bytes:
    """An encoded RecalledMessage without its message; by hand, which is quicker."""
    found = recalled.found
    state = _STATES[recalled.group_state]
    if recalled.text_cut:
        state += _TEXT_CUT
    if found is None:
        return state
    score = _LEXICAL_ONLY if found.cosine is None else _SCORE_TAG + float_bytes(found.cosine)
    pieces = (
        *(_HIT, _RANK_TAG, varint(recalled.rank), score),
        *(_RELEVANCE_TAG, float_bytes(found.relevance), state),
    )
    if not explain:
        return b"".join(pieces)
    target = recall_pb2.Explain()
    _fill_explain(target, found)
    encoded = target.SerializeToString()
    return b"".join((*pieces, _EXPLAIN_TAG, varint(len(encoded)), encoded))


def _fill_explain(target: recall_pb2.Explain, found: Hit) -> None:
    if found.cosine is not None:
        target.cosine = found.cosine
    target.dense_rank = found.dense_rank
    target.chunk = found.chunk
    target.chunks = found.chunks
    target.bm25 = found.bm25
    target.bm25_in_context = found.bm25_in_context
    target.lexical_rank = found.lexical_rank
    parts = found.parts
    target.dense_part = parts.dense
    target.lexical_part = parts.lexical
    target.neighbour_part = parts.neighbour
    target.author_part = parts.author
    target.recency_part = parts.recency
    target.diversity_part = parts.diversity


def excluded_bytes(answer: RecallAnswer) -> bytes:
    """The encoded field `excluded`. A candidate that is gone has no id any more: it is left out."""
    if not answer.excluded:
        return b""
    there = [one.message for one in answer.excluded if one.message is not None]
    there += [one.message for one in answer.messages]
    ids = {message.seq: message.id for message in there}
    response = recall_pb2.RecallResponse()
    for one in answer.excluded:
        if one.message is None:
            continue
        candidate = response.excluded.add(
            message_id=one.message.id,
            thread_id=one.message.thread_id,
            reason=int(one.reason),
            rank=one.rank,
            relevance=one.hit.relevance,
            near_duplicate_of=ids.get(one.instead_of_it, ""),
        )
        _fill_explain(candidate.explain, one.hit)
    return response.SerializeToString()


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
