"""Requests of the wire to checked values of the engine.

Every function raises InvalidArgumentError that names all fields at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.filters import FILTER_DEPTH_MAX, Filter, parse_filter
from semanticrecall_core.types.recalling import ContextFormat, Mode, RecallQuery, Scope
from semanticrecall_core.types.text import has_visible_text
from semanticrecall_core.types.values import EmbedRole, ForgetTarget, MessageDraft, Role, Wait

from .checks import READ_TOKEN_BYTES_MAX, Violations
from .config import Settings
from .metadata_json import METADATA_DEPTH_MAX, json_of, plain_object

if TYPE_CHECKING:
    from semanticrecall_core.types.values import FloatRows

TOP_K_DEFAULT = 4
RANGE_DEFAULT = 1
PAGE_SIZE_DEFAULT = 40
QUERY_EMBEDDING_NUMBERS_MAX = 65_536
TIMEOUT_MS_MAX = 600_000
HALF_LIFE_SECONDS_DEFAULT = 7 * 86_400.0
HALF_LIFE_SECONDS_MAX = 36_500 * 86_400
TOKENS_MAX = 1_000_000
NANOS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits that requests are held to; see the settings of the same names."""

    text_bytes_max: int
    query_bytes_max: int
    metadata_bytes_max: int
    payload_bytes_max: int
    index_messages_max: int
    top_k_max: int
    message_range_max: int
    exclude_ids_max: int
    page_size_max: int
    embed_texts_max: int
    alternative_queries_max: int
    filter_keys: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> RequestLimits:
        """Those of the settings."""
        return cls(
            text_bytes_max=settings.text_bytes_max,
            query_bytes_max=settings.query_bytes_max,
            metadata_bytes_max=settings.metadata_bytes_max,
            payload_bytes_max=settings.payload_bytes_max,
            index_messages_max=settings.index_messages_max,
            top_k_max=settings.top_k_max,
            message_range_max=settings.message_range_max,
            exclude_ids_max=settings.exclude_ids_max,
            page_size_max=settings.page_size_max,
            embed_texts_max=settings.embed_texts_max,
            alternative_queries_max=settings.alternative_queries_max,
            filter_keys=frozenset(settings.filter_keys),
        )


# ---- Recall ----


def recall_query(request: recall_pb2.RecallRequest, limits: RequestLimits) -> RecallQuery:
    """A checked Recall request."""
    v = envelope_faults(request)
    v.identifier("resource_id", request.resource_id)
    v.optional_identifier("thread_id", request.thread_id)
    scope = v.choice("scope", request.scope, Scope, Scope.RESOURCE)
    if scope is Scope.THREAD and not request.thread_id:
        v.add("thread_id", "is required for SCOPE_THREAD")
    v.size("query", request.query, limits.query_bytes_max)
    embedding = _query_embedding(v, request.query_embedding)
    top_k = request.top_k if request.HasField("top_k") else TOP_K_DEFAULT
    v.count("top_k", top_k, 1, limits.top_k_max)
    before, after = _message_range(v, request, limits)
    threshold = None
    if request.HasField("threshold"):
        threshold = request.threshold
        v.number("threshold", threshold, -1.0, 1.0)
    time_from, time_to = time_range(v, request)
    v.identifiers("exclude_message_ids", request.exclude_message_ids, 0, limits.exclude_ids_max)
    v.count("max_tokens", request.max_tokens, 0, TOKENS_MAX)
    ranking = _ranking(v, request.ranking)
    query = RecallQuery(
        resource_id=request.resource_id,
        text=request.query,
        thread_id=request.thread_id,
        scope=scope,
        embedding=embedding,
        top_k=top_k,
        before=before,
        after=after,
        threshold=threshold,
        filter=_filter(v, request, limits),
        roles=v.roles("roles", request.roles, Role),
        time_from_ns=time_from,
        time_to_ns=time_to,
        excluded_ids=tuple(request.exclude_message_ids),
        mode=ranking.mode,
        alternative_texts=_alternative_texts(v, request, limits),
        recency_weight=ranking.recency_weight,
        recency_half_life_s=ranking.recency_half_life_s,
        diversity=ranking.diversity,
        near_duplicate_cosine=ranking.near_duplicate_cosine,
        tokens_max=request.max_tokens,
        explain=request.explain,
        context_format=v.choice(
            "context_format", request.context_format, ContextFormat, ContextFormat.DEFAULT
        ),
        context_other_threads_only=request.context_other_threads_only,
        time_zone=v.time_zone("time_zone", request.time_zone),
        read_token=request.read_token,
    )
    v.raise_if_found()
    return query


def envelope_faults(request: recall_pb2.RecallRequest) -> Violations:
    """What is wrong with the fields that say nothing about the answer."""
    v = Violations()
    v.optional_identifier("request_id", request.request_id)
    v.count("timeout_ms", request.timeout_ms, 0, TIMEOUT_MS_MAX)
    v.name("read_token", request.read_token, READ_TOKEN_BYTES_MAX)
    return v


def _query_embedding(v: Violations, values: Sequence[float]) -> FloatRows | None:
    """The vector as given; the engine checks its dimensions and normalises it."""
    if not values:
        return None
    if len(values) > QUERY_EMBEDDING_NUMBERS_MAX:
        v.add("query_embedding", f"must be at most {QUERY_EMBEDDING_NUMBERS_MAX} numbers")
        return None
    vector = np.array(values, dtype=np.float32)
    if not np.isfinite(vector).all():
        v.add("query_embedding", "numbers must be finite")
    elif not vector.any():
        v.add("query_embedding", "must not be all zero")
    return vector


def _message_range(
    v: Violations, request: recall_pb2.RecallRequest, limits: RequestLimits
) -> tuple[int, int]:
    if not request.HasField("message_range"):
        most = limits.message_range_max
        return min(RANGE_DEFAULT, most), min(RANGE_DEFAULT, most)
    wanted = request.message_range
    v.count("message_range.before", wanted.before, 0, limits.message_range_max)
    v.count("message_range.after", wanted.after, 0, limits.message_range_max)
    return wanted.before, wanted.after


def time_range(
    v: Violations,
    request: recall_pb2.RecallRequest | recall_pb2.ListMessagesRequest | recall_pb2.ForgetCondition,
) -> tuple[int | None, int | None]:
    """The half-open interval of `create_time_from` and `create_time_to`."""
    begin = end = None
    if request.HasField("create_time_from"):
        begin = v.time_ns("create_time_from", request.create_time_from)
    if request.HasField("create_time_to"):
        end = v.time_ns("create_time_to", request.create_time_to)
    if begin is not None and end is not None and end <= begin:
        v.add("create_time_to", "must be after create_time_from")
    return begin, end


@dataclass(frozen=True, slots=True)
class _Ranking:
    """What a request says of ranking; the defaults are those of the contract."""

    mode: Mode | None
    recency_weight: float
    recency_half_life_s: float
    diversity: float
    near_duplicate_cosine: float | None


def _ranking(v: Violations, ranking: recall_pb2.Ranking) -> _Ranking:
    v.number("ranking.recency_weight", ranking.recency_weight, 0.0, 1.0)
    v.number("ranking.diversity", ranking.diversity, 0.0, 1.0)
    half_life_s = HALF_LIFE_SECONDS_DEFAULT
    if ranking.HasField("recency_half_life"):
        span = ranking.recency_half_life
        half_life_s = span.seconds + span.nanos / NANOS_PER_SECOND
        in_form = span.seconds >= 0 and 0 <= span.nanos < NANOS_PER_SECOND
        if not in_form or not 0 < half_life_s <= HALF_LIFE_SECONDS_MAX:
            v.add("ranking.recency_half_life", "must be positive and at most 36500 days")
    near_duplicate = None
    if ranking.HasField("near_duplicate_cosine"):
        near_duplicate = ranking.near_duplicate_cosine
        if not 0.0 < near_duplicate <= 1.0:
            v.add(
                "ranking.near_duplicate_cosine",
                f"must be above 0 and at most 1, or left out; is {near_duplicate:g}",
            )
    mode = v.choice("ranking.mode", ranking.mode, Mode, Mode.HYBRID)
    return _Ranking(
        mode if ranking.mode else None,
        ranking.recency_weight,
        half_life_s,
        ranking.diversity,
        near_duplicate,
    )


def _alternative_texts(
    v: Violations, request: recall_pb2.RecallRequest, limits: RequestLimits
) -> tuple[str, ...]:
    """The other phrasings, in their order: none that is blank, or was said before."""
    given = request.alternative_queries
    if not given:
        return ()
    if len(given) > limits.alternative_queries_max:
        v.add(
            "alternative_queries",
            f"must be at most {limits.alternative_queries_max} texts; has {len(given)}",
        )
        return ()
    for position, text in enumerate(given):
        v.size(f"alternative_queries[{position}]", text, limits.query_bytes_max)
    return tuple(
        text for text in dict.fromkeys(given) if text != request.query and has_visible_text(text)
    )


def _filter(
    v: Violations, request: recall_pb2.RecallRequest, limits: RequestLimits
) -> Filter | None:
    if not request.HasField("filter"):
        return None
    try:
        # A list of objects takes two of the Struct's levels for one of the filter's.
        plain = plain_object(request.filter, "filter", 2 * FILTER_DEPTH_MAX)
        return parse_filter(plain, keys_allowed=limits.filter_keys)
    except InvalidArgumentError as error:
        v.extend(error)
        return None


# ---- Index ----


@dataclass(frozen=True, slots=True)
class IndexBatch:
    """A checked Index request.

    Attributes:
        drafts: the messages that can be stored, in order.
        positions: where each of them is in the request.
        rejected: what is wrong with the others, by position.
    """

    resource_id: str
    wait: Wait
    drafts: tuple[MessageDraft, ...]
    positions: tuple[int, ...]
    rejected: dict[int, InvalidArgumentError]


def index_batch(request: recall_pb2.IndexRequest, limits: RequestLimits) -> IndexBatch:
    """A checked Index request: bad messages are set aside, bad requests raise."""
    v = Violations()
    v.identifier("resource_id", request.resource_id)
    v.optional_identifier("thread_id", request.thread_id)
    wait = v.choice("wait", request.wait, Wait, Wait.SEARCHABLE)
    if not 1 <= len(request.messages) <= limits.index_messages_max:
        v.add(
            "messages",
            f"must be 1 to {limits.index_messages_max} messages; has {len(request.messages)}",
        )
    shared = _shared_metadata(v, request, limits)
    v.raise_if_found()
    drafts: list[MessageDraft] = []
    positions: list[int] = []
    rejected: dict[int, InvalidArgumentError] = {}
    for position, message in enumerate(request.messages):
        try:
            drafts.append(_Draft(request, limits, shared).read(position, message))
            positions.append(position)
        except InvalidArgumentError as error:
            rejected[position] = error
    return IndexBatch(request.resource_id, wait, tuple(drafts), tuple(positions), rejected)


def _shared_metadata(
    v: Violations, request: recall_pb2.IndexRequest, limits: RequestLimits
) -> dict[str, Any]:
    if not request.metadata.fields:
        return {}
    try:
        shared = plain_object(request.metadata, "metadata", METADATA_DEPTH_MAX)
        json_of(shared, "metadata", limits.metadata_bytes_max)
    except InvalidArgumentError as error:
        v.extend(error)
        return {}
    return shared


@dataclass(frozen=True, slots=True)
class _Draft:
    """Reads the messages of one request."""

    request: recall_pb2.IndexRequest
    limits: RequestLimits
    shared: dict[str, Any]

    def read(self, position: int, message: types_pb2.Message) -> MessageDraft:
        limits = self.limits
        v = Violations(f"messages[{position}].")
        v.identifier("id", message.id)
        self._owner(v, message)
        role = v.choice("role", message.role, Role, Role.USER)
        if message.role == types_pb2.ROLE_UNSPECIFIED:
            v.add("role", "is required")
        v.name("author", message.author)
        v.size("text", message.text, limits.text_bytes_max)
        v.size("payload", message.payload, limits.payload_bytes_max)
        v.name("payload_type", message.payload_type)
        v.optional_identifier("group_id", message.group_id)
        create_time_ns = None
        if message.HasField("create_time"):
            create_time_ns = v.time_ns("create_time", message.create_time)
        metadata = self._metadata(v, message)
        v.raise_if_found()
        return MessageDraft(
            id=message.id,
            thread_id=message.thread_id or self.request.thread_id,
            role=role,
            author=message.author,
            text=message.text,
            create_time_ns=create_time_ns,
            metadata_json=metadata,
            payload=message.payload,
            payload_type=message.payload_type,
            group_id=message.group_id,
            embeddable=role in (Role.USER, Role.ASSISTANT) and has_visible_text(message.text),
        )

    def _owner(self, v: Violations, message: types_pb2.Message) -> None:
        wanted = self.request
        if message.resource_id and message.resource_id != wanted.resource_id:
            v.add("resource_id", "must be empty or equal to the request's resource_id")
        if not wanted.thread_id:
            v.identifier("thread_id", message.thread_id)
        elif message.thread_id and message.thread_id != wanted.thread_id:
            v.add("thread_id", "must be empty or equal to the request's thread_id")

    def _metadata(self, v: Violations, message: types_pb2.Message) -> str:
        if not self.shared and not message.metadata.fields:
            return ""
        field = v.path("metadata")
        try:
            own = plain_object(message.metadata, field, METADATA_DEPTH_MAX)
            return json_of({**self.shared, **own}, field, self.limits.metadata_bytes_max)
        except InvalidArgumentError as error:
            v.extend(error)
            return ""


# ---- the other calls ----


def forget_target(request: recall_pb2.ForgetRequest, limits: RequestLimits) -> ForgetTarget:
    """A checked Forget request."""
    v = Violations()
    v.identifier("resource_id", request.resource_id)
    kind = request.WhichOneof("target")
    target = ForgetTarget(everything=True)
    if kind is None:
        v.add("target", "is required: one of the kinds of target")
    elif kind == "message_ids":
        ids = request.message_ids.ids
        v.identifiers("message_ids.ids", ids, 1, limits.exclude_ids_max)
        target = ForgetTarget(message_ids=tuple(ids))
    elif kind == "thread_id":
        v.identifier("thread_id", request.thread_id)
        target = ForgetTarget(thread_id=request.thread_id)
    elif kind == "create_time_before":
        before = v.time_ns("create_time_before", request.create_time_before)
        target = ForgetTarget(create_time_before_ns=before)
    elif not request.everything:
        v.add("everything", "must be true, if it is given")
    v.raise_if_found()
    return target


def page_size(v: Violations, wanted: int, limits: RequestLimits) -> int:
    """Entries of one page; 0 is the default."""
    if not wanted:
        return min(PAGE_SIZE_DEFAULT, limits.page_size_max)
    v.count("page_size", wanted, 1, limits.page_size_max)
    return wanted


def embed_texts(
    request: recall_pb2.EmbedRequest, limits: RequestLimits
) -> tuple[tuple[str, ...], EmbedRole]:
    """A checked Embed request."""
    v = Violations()
    role = v.choice("role", request.role, EmbedRole, EmbedRole.PASSAGE)
    if not 1 <= len(request.texts) <= limits.embed_texts_max:
        v.add("texts", f"must be 1 to {limits.embed_texts_max} texts; has {len(request.texts)}")
        raise v.error()
    for position, text in enumerate(request.texts):
        field = f"texts[{position}]"
        if v.size(field, text, limits.text_bytes_max) and not has_visible_text(text):
            v.add(field, "has nothing to embed: it is empty or only white space")
    v.raise_if_found()
    return tuple(request.texts), role
