"""What Recall is asked, what it finds, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from .filters import Filter
from .stored_message import StoredMessage
from .values import Role

if TYPE_CHECKING:
    from .values import FloatRows


class Scope(IntEnum):
    """Which of the resource's messages may be hits."""

    RESOURCE = 1
    THREAD = 2


class Mode(IntEnum):
    """How candidates are ranked."""

    DENSE = 1
    LEXICAL = 2
    HYBRID = 3


class ContextFormat(IntEnum):
    """How the context text is written."""

    DEFAULT = 1
    MASTRA = 2
    NONE = 3


class WhyEmpty(IntEnum):
    """Why an answer holds no messages."""

    NOT_EMPTY = 0
    NO_QUERY = 1
    NO_MESSAGES = 2
    FILTERED = 3
    BELOW_THRESHOLD = 4
    NO_WORDS = 5


class ExcludedReason(IntEnum):
    """Why a candidate is not in an answer. The numbers are on the wire."""

    TOP_K = 1
    BELOW_THRESHOLD = 2
    NO_VECTOR = 3
    NEAR_DUPLICATE = 4
    DIVERSITY = 5
    TOKENS = 6
    ANSWER_SIZE = 7
    CONDITIONS = 8
    CHANGED = 9


class GroupState(IntEnum):
    """Whether a message's group is complete in an answer."""

    NO_GROUP = 0
    WHOLE = 1
    HIT_ONLY = 2


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """A checked Recall request."""

    resource_id: str
    text: str
    thread_id: str = ""
    scope: Scope = Scope.RESOURCE
    embedding: FloatRows | None = None
    top_k: int = 4
    before: int = 1
    after: int = 1
    threshold: float | None = None
    filter: Filter | None = None
    roles: frozenset[Role] = frozenset()
    time_from_ns: int | None = None
    time_to_ns: int | None = None
    excluded_ids: tuple[str, ...] = ()
    mode: Mode | None = None
    alternative_texts: tuple[str, ...] = ()
    recency_weight: float = 0.0
    recency_half_life_s: float = 7 * 86_400.0
    diversity: float = 0.0
    near_duplicate_cosine: float | None = None
    tokens_max: int = 0
    explain: bool = False
    context_format: ContextFormat = ContextFormat.DEFAULT
    context_other_threads_only: bool = False
    time_zone: str = "UTC"
    read_token: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a hit's relevance is made of: `relevance` is their sum (see ranking).

    A part that a mode or a setting does not have is 0.
    """

    dense: float = 0.0
    lexical: float = 0.0
    neighbour: float = 0.0
    author: float = 0.0
    recency: float = 0.0
    diversity: float = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """One message that was found, and why.

    Attributes:
        revision: of the message all of this holds for.
        relevance: what hits are ordered by; higher is better.
        cosine: of the best chunk with the nearest of the queries; None where the message has no
            vectors yet or the mode did not ask for them: a lexical-only hit.
        chunk, chunks: which chunk that was, of how many; 0 of 0 without a cosine.
        dense_rank, lexical_rank: place in each list, from 1; 0 where it is not in it, or nobody
            asked to explain.
        bm25: of its own words; 0 where it has no word of the query.
        bm25_in_context: of its words and those of the messages around it in the thread.
    """

    seq: int
    revision: int
    relevance: float
    cosine: float | None
    chunk: int = 0
    chunks: int = 0
    dense_rank: int = 0
    lexical_rank: int = 0
    bm25: float = 0.0
    bm25_in_context: float = 0.0
    parts: Parts = Parts()


@dataclass(frozen=True, slots=True)
class Excluded:
    """A candidate that is not in the answer, and why.

    Attributes:
        rank: it would have had without the reason, from 1.
        instead_of_it: seq of the better candidate that it is too similar to; 0 for none.
        message: None where it has changed or gone meanwhile.
    """

    hit: Hit
    reason: ExcludedReason
    rank: int
    instead_of_it: int = 0
    message: StoredMessage | None = None


class RecalledMessage(NamedTuple):
    """One message of an answer. Neighbours have rank 0 and no hit.

    `text_cut`: its text is only as much of it as fits the tokens; it has no payload then.
    """

    message: StoredMessage
    rank: int
    found: Hit | None
    group_state: GroupState
    text_cut: bool = False


@dataclass(slots=True)
class RecallInfo:
    """What an answer cost and how it was made. Times in microseconds."""

    scope_used: Scope
    mode_used: Mode = Mode.DENSE
    best_score: float | None = None
    why_empty: WhyEmpty = WhyEmpty.NOT_EMPTY
    query_truncated: bool = False
    query_tokens: int = 0
    cache_hit: bool = False
    candidates: int = 0
    searchable: int = 0
    pending: int = 0
    exact: bool = True
    unknown_filter_keys: tuple[str, ...] = ()
    absent_group_ids: tuple[str, ...] = ()
    messages_dropped: int = 0
    messages_dropped_for_tokens: int = 0
    tokens: int = 0
    context_tokens: int = 0
    context_did_not_fit: bool = False
    embed_us: int = 0
    search_us: int = 0
    lexical_us: int = 0
    fetch_us: int = 0
    render_us: int = 0


@dataclass(frozen=True, slots=True)
class RecallAnswer:
    """Messages in answer order (see recall.proto), the rendered context, and the account."""

    messages: tuple[RecalledMessage, ...]
    context_text: str
    info: RecallInfo
    excluded: tuple[Excluded, ...] = ()
