"""What goes into the calls: frozen values, without a trace of protobuf.

Conventions that hold everywhere: ids are UTF-8 of 1 to 512 bytes without control characters and
compare by equality only; scores are cosines in [-1, 1], higher is better; times are
`datetime`s with a zone; durations carry their unit in the name. A value of an enum that this
version does not know reads as `UNSPECIFIED`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import TypeAlias, TypedDict, Unpack

from . import arguments
from .errors import InvalidArgumentError

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)


class WireEnum(IntEnum):
    """An enum of the wire contract; its zero value means "the server's default"."""

    @classmethod
    def _missing_(cls, value: object) -> WireEnum | None:
        # A newer server may send a value that is not in this list.
        return cls(0) if isinstance(value, int) and value else None


class Role(WireEnum):
    """Who wrote a message. User and assistant messages are searchable, the others are shown."""

    UNSPECIFIED = 0
    USER = 1
    ASSISTANT = 2
    SYSTEM = 3
    TOOL = 4


class Scope(WireEnum):
    """Which of the resource's messages may be hits: all (default), or one thread's."""

    UNSPECIFIED = 0
    RESOURCE = 1
    THREAD = 2


class Mode(WireEnum):
    """How candidates are ranked. Default: HYBRID, by meaning and by words.

    DENSE: by the cosine of vectors alone. LEXICAL: by words alone; the query is embedded, and hits
    have a score, only where `threshold`, `diversity` or `near_duplicate_cosine` ask for cosines.
    """

    UNSPECIFIED = 0
    DENSE = 1
    LEXICAL = 2
    HYBRID = 3


class ContextFormat(WireEnum):
    """How `RecallResult.context_text` is written; DEFAULT is fenced, dated and escaped."""

    UNSPECIFIED = 0
    DEFAULT = 1
    MASTRA = 2
    NONE = 3


class Wait(WireEnum):
    """When `index` returns: once searchable (default), or once on disk.

    From then on a message is found by its words, in hybrid and lexical mode; by meaning once it is
    searchable.
    """

    UNSPECIFIED = 0
    SEARCHABLE = 1
    DURABLE = 2


class Status(WireEnum):
    """What became of one message given to `index`.

    PENDING: on disk, without a vector yet; found by its words at once, in hybrid and lexical mode.
    """

    UNSPECIFIED = 0
    INDEXED = 1
    REPLACED = 2
    UNCHANGED = 3
    PENDING = 4
    NOT_EMBEDDED = 5
    REJECTED = 6


class GroupState(WireEnum):
    """Whether a recalled message's group (a tool call with its results) is whole."""

    UNSPECIFIED = 0
    WHOLE = 1
    HIT_ONLY = 2


class WhyEmpty(WireEnum):
    """Why an answer holds no messages; UNSPECIFIED where it holds some."""

    UNSPECIFIED = 0
    NO_QUERY = 1
    NO_MESSAGES = 2
    FILTERED = 3
    BELOW_THRESHOLD = 4
    NO_WORDS = 5


class ExcludedReason(WireEnum):
    """Why a candidate is not in an answer; see `ExcludedCandidate`."""

    UNSPECIFIED = 0
    TOP_K = 1
    BELOW_THRESHOLD = 2
    NO_VECTOR = 3
    NEAR_DUPLICATE = 4
    DIVERSITY = 5
    TOKENS = 6
    ANSWER_SIZE = 7
    CONDITIONS = 8
    CHANGED = 9


class EmbedRole(WireEnum):
    """What a text is embedded as. Default: PASSAGE."""

    UNSPECIFIED = 0
    QUERY = 1
    PASSAGE = 2


_MESSAGE_TEXTS = ("text", "id", "author", "payload_type", "group_id", "thread_id", "resource_id")


def _new_id() -> str:
    return uuid.uuid4().hex


def _no_metadata() -> Mapping[str, JsonValue]:
    return {}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: who wrote it; a name ("user") is turned into its `Role`.
        text: what is searched; at most 262,144 bytes.
        id: unique within the resource. Where none is given, a random one is made ONCE for this
            object: indexing the same object twice (a retry) is idempotent, building the message
            anew is not. Give your own id where you have one.
        author: name of the writer, shown in the context and used for ranking: a query that names it
            favours these messages. Set it for people.
        create_time: when it was written, with a zone. None: the server's clock on arrival. Its day,
            month and year (UTC) can be found as words.
        extra_ns: nanoseconds beyond the microseconds of `create_time`, 0 to 999.
        metadata: your own fields, for `filter`: JSON values, finite numbers, integers up to 2**53.
        payload: your own form of the message, returned byte for byte; at most 1,048,576 bytes.
        payload_type: what `payload` is, for you.
        group_id: ties a tool call to its results; a group is recalled whole or not at all.
        thread_id: set in answers; in `index` the call's thread is used where this is empty.
        resource_id: set in answers; leave it empty in `index`.
    """

    role: Role
    text: str = ""
    id: str = field(default_factory=_new_id)
    author: str = ""
    create_time: datetime | None = None
    extra_ns: int = 0
    metadata: Mapping[str, JsonValue] = field(default_factory=_no_metadata, hash=False)
    payload: bytes = b""
    payload_type: str = ""
    group_id: str = ""
    thread_id: str = ""
    resource_id: str = ""

    def __post_init__(self) -> None:
        """Refuse what no message can hold here, where the caller wrote it."""
        object.__setattr__(self, "role", arguments.member(Role, self.role, "role"))
        for name in _MESSAGE_TEXTS:
            arguments.text(getattr(self, name), name)
        arguments.octets(self.payload, "payload")
        arguments.mapping(self.metadata, "metadata")
        if self.create_time is not None:
            arguments.moment(self.create_time, "create_time")
        if not 0 <= arguments.whole(self.extra_ns, "extra_ns") <= 999:
            raise InvalidArgumentError.of("extra_ns", "must be 0 to 999")


class MessageFields(TypedDict, total=False):
    """Keywords of `user`, `assistant`, `system` and `tool`; see `Message`."""

    id: str
    author: str
    create_time: datetime
    metadata: Mapping[str, JsonValue]
    payload: bytes
    payload_type: str
    group_id: str
    thread_id: str


def user(text: str, **fields: Unpack[MessageFields]) -> Message:
    """A message that the person wrote."""
    return Message(Role.USER, text, **fields)


def assistant(text: str, **fields: Unpack[MessageFields]) -> Message:
    """A message that the model wrote."""
    return Message(Role.ASSISTANT, text, **fields)


def system(text: str, **fields: Unpack[MessageFields]) -> Message:
    """Instructions: kept and shown beside hits, never a hit."""
    return Message(Role.SYSTEM, text, **fields)


def tool(text: str, **fields: Unpack[MessageFields]) -> Message:
    """A tool's call or result: kept and shown beside hits, never a hit. Give it a `group_id`."""
    return Message(Role.TOOL, text, **fields)


class RecallOptions(TypedDict, total=False):
    """Keywords of `recall`. All are optional; None is as if it were not given.

    An enum's value may be given by its name, in any case: `scope="thread"`, `roles=["user"]`.
    Write them out, or keep them: `usual: RecallOptions = {"top_k": 8}`, `recall(..., **usual)`.
    What breaks its limit raises InvalidArgumentError, which names it (`violations`).

    Attributes:
        thread_id: the conversation the caller is in. Required for `Scope.THREAD`.
        scope: default `Scope.RESOURCE`: all threads of the resource.
        top_k: how many messages to find, 1 to 1,000. Default 4.
        message_range: neighbours (before, after) of each hit, 0 to 50. Default (1, 1).
        threshold: least cosine of a hit, -1 to 1, in every mode. Default: none. A message that has
            no vector yet is then no hit. It only takes away from the `top_k` best.
        filter: condition on `Message.metadata`, e.g. `{"project": "A", "age": {"$gte": 3}}`.
        roles: only messages of these roles are hits.
        create_time_from, create_time_to: only messages in this half-open interval are hits.
        exclude_message_ids: messages already in the prompt: never hits, never neighbours.
        mode: how candidates are ranked; see `Mode`. Default "hybrid".
        alternative_queries: other phrasings of the query, at most 16; a message is worth the mean
            over all. Default: none.
        recency_weight: how much newer messages are preferred, 0 to 1. Default 0: not at all.
        recency_half_life: age at which recency has halved: a timedelta, positive, at most 36,500
            days. Default: 7 days. Used only with `recency_weight`.
        diversity: how much hits that resemble a better one are put behind others, 0 to 1.
            Default 0: not at all.
        near_duplicate_cosine: leave out a hit whose vector has at least this cosine with that of a
            better one, above 0, at most 1 (e.g. 0.98). Default: leave out none.
        max_tokens: most tokens of the messages, and of `context_text`, 1 to 1,000,000, counted
            with the server's model. Neighbours are dropped before hits, lower hits before higher
            ones. Default 0: no budget.
        context_format: how `RecallResult.context_text` is written.
        context_other_threads_only: leave messages of `thread_id` out of `context_text`, for callers
            that put those into the prompt themselves.
        time_zone: IANA name for the dates in it. Default "UTC".
        explain: fill `RecalledMessage.explain` and `RecallResult.excluded`. Default False.
        read_token: of an `IndexResult` of this resource: wait until that call's messages are
            searchable.
        query_embedding: the query's vector, in place of that of the query text. Without a text
            there are no words to look for.
    """

    thread_id: str
    scope: Scope | str
    top_k: int
    message_range: tuple[int, int]
    threshold: float
    filter: Mapping[str, JsonValue]
    roles: Sequence[Role | str]
    create_time_from: datetime
    create_time_to: datetime
    exclude_message_ids: Sequence[str]
    mode: Mode | str
    alternative_queries: Sequence[str]
    recency_weight: float
    recency_half_life: timedelta
    diversity: float
    near_duplicate_cosine: float
    max_tokens: int
    context_format: ContextFormat | str
    context_other_threads_only: bool
    time_zone: str
    explain: bool
    read_token: str
    query_embedding: Sequence[float]


class ListOptions(TypedDict, total=False):
    """Keywords of `list_messages`. All are optional; None is as if it were not given.

    Attributes:
        thread_id: this conversation. Default: all of the resource.
        limit: stop after so many messages. Default: all.
        newest_first: default: oldest first.
        create_time_from, create_time_to: only messages in this half-open interval.
        roles: only these. Default: all.
        page_size: messages a request, 1 to 1,000. Default 200.
    """

    thread_id: str
    limit: int
    newest_first: bool
    create_time_from: datetime
    create_time_to: datetime
    roles: Sequence[Role | str]
    page_size: int


class ForgetConditions(TypedDict, total=False):
    """Keywords of `forget`: all that are given must be met. None and empty ones are refused.

    Attributes:
        thread_id: of this thread.
        authors: by one of these authors (1 to 100), compared by equality.
        create_time_from, create_time_to: written in this half-open interval.
        roles: of one of these.
    """

    thread_id: str
    authors: Sequence[str]
    create_time_from: datetime
    create_time_to: datetime
    roles: Sequence[Role | str]


@dataclass(frozen=True, slots=True)
class MessageVectors:
    """The vectors of one message, of an export; `index` takes them where the model is the same.

    Attributes:
        message_id: the message's.
        index_identity: what made them; see `Stats.index_identity`.
        data: float32, little endian: one vector, or one for each chunk of a long text, in order;
            unit length.
    """

    message_id: str
    index_identity: str
    data: bytes

    def __post_init__(self) -> None:
        """Refuse what is no vector here, where the caller wrote it."""
        for name in ("message_id", "index_identity"):
            arguments.text(getattr(self, name), name)
        if len(arguments.octets(self.data, "data")) % 4:
            raise InvalidArgumentError.of("data", "must be numbers of 4 bytes each")


class IndexOptions(TypedDict, total=False):
    """Keywords of `index`. All are optional; None is as if it were not given.

    Attributes:
        wait: return once the messages are searchable (default), or once they are on disk.
        metadata: fields for every message of the call; a message's own field of the same name
            wins.
        vectors: of an export, so that they need not be computed again; those of another model are
            left aside.
    """

    wait: Wait | str
    metadata: Mapping[str, JsonValue]
    vectors: Sequence[MessageVectors]


@dataclass(frozen=True, slots=True)
class IndexBatch:
    """One request of `index_stream`: 1 to 1,000 messages of one resource.

    Attributes:
        thread_id: the conversation; may be empty where every message names its own.
        wait: when the batch counts as done; see `Wait`.
        metadata: fields for every message of the batch; a message's own field of the same name
            wins.
        vectors: of messages of this batch, of an export; those of another model are left aside.
    """

    resource_id: str
    thread_id: str
    messages: Sequence[Message]
    wait: Wait | str = Wait.UNSPECIFIED
    metadata: Mapping[str, JsonValue] = field(default_factory=_no_metadata, hash=False)
    vectors: Sequence[MessageVectors] = ()
