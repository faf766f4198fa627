"""What comes back from the calls: frozen values, without a trace of protobuf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import overload

from .errors import InvalidArgumentError, SemanticRecallError
from .values import ExcludedReason, GroupState, Message, Mode, Scope, Status, WhyEmpty


@dataclass(frozen=True, slots=True)
class Explain:
    """Why a hit ranks where it does. Its relevance is the sum of the parts.

    Attributes:
        cosine: of the message's best vector with the whole query; None where it has none, or
            nobody asked for it.
        dense_rank: rank among dense candidates, from 1; 0 where it is not among them. In hybrid
            mode it is by the query without the names of writers, as `dense_part` is: with a name
            in the query a higher `cosine` may have a lower rank.
        chunk, chunks: which part of the message matched (from 0), and of how many.
        bm25: of the message's own words; 0 where it has no word of the query.
        bm25_in_context: of its words and, with less weight, those of the two messages before and
            after it in the thread, as one text.
        lexical_rank: rank among lexical candidates, by `lexical_part`, from 1; 0 where it is not
            among them.
        dense_part: what the cosine adds to the relevance; see `dense_rank`.
        lexical_part: what its words add, together with those around it in the thread.
        neighbour_part: what the message before it hands over, where that one asks a question; below
            0 where that one is worth less than nothing.
        author_part: what it adds that the query names the message's author.
        recency_part, diversity_part: what recency adds or takes away, and diversity takes away.
            With recency all relevances are on another scale: compare the differences.
    """

    cosine: float | None
    dense_rank: int
    chunk: int
    chunks: int
    bm25: float = 0.0
    bm25_in_context: float = 0.0
    lexical_rank: int = 0
    dense_part: float = 0.0
    lexical_part: float = 0.0
    neighbour_part: float = 0.0
    author_part: float = 0.0
    recency_part: float = 0.0
    diversity_part: float = 0.0


@dataclass(frozen=True, slots=True)
class RecalledMessage:
    """One message of an answer.

    Attributes:
        message: as indexed.
        hit: True: found by the query. False: a neighbour, or a member of a hit's group.
        score: cosine of a hit; None for others, and for hits that are `lexical_only`.
        rank: 1 for the best hit; 0 for others.
        group_state: whether the message's group is whole.
        explain: hits only, where it was asked for.
        relevance: what hits are ordered by, higher is better; None for others. It is comparable
            within one answer only.
        lexical_only: found by its words alone: it has no vector yet, or the mode asks for none.
        text_cut: the text is only the beginning that fits `max_tokens`; it has no payload.
    """

    message: Message
    hit: bool
    score: float | None
    rank: int
    group_state: GroupState = GroupState.UNSPECIFIED
    explain: Explain | None = None
    relevance: float | None = None
    lexical_only: bool = False
    text_cut: bool = False


@dataclass(frozen=True, slots=True)
class ExcludedCandidate:
    """A candidate that is not in the answer, and why.

    Attributes:
        message_id, thread_id: which message.
        reason: why it is not there.
        rank: it had before anything was left out and before diversity, from 1; the ranks of hits
            are counted anew.
        relevance, explain: as for hits, but before diversity, which takes away only from those of
            the `top_k` best.
        near_duplicate_of: id of the hit that says nearly the same, where that is the reason.
    """

    message_id: str
    thread_id: str
    reason: ExcludedReason
    rank: int
    relevance: float
    explain: Explain
    near_duplicate_of: str = ""


@dataclass(frozen=True, slots=True)
class RecallTimings:
    """Where the time went on the server, in microseconds; `lexical_us` is part of `search_us`."""

    total_us: int = 0
    queue_us: int = 0
    embed_us: int = 0
    search_us: int = 0
    fetch_us: int = 0
    render_us: int = 0
    lexical_us: int = 0


@dataclass(frozen=True, slots=True)
class RecallInfo:
    """What an answer cost and how it was made.

    Attributes:
        scope_used, mode_used: what was applied.
        best_score: best cosine among allowed messages, before the threshold; None: there were
            none.
        why_empty: set where there are no messages.
        query_truncated: the query was longer than the model's window and was cut.
        query_tokens: of the query as embedded.
        cache_hit: the query's vector came from the cache, or the answer was given again.
        timings: see `RecallTimings`.
        candidates: messages that passed scope, filter and exclusions; in lexical mode those of
            them with a word of the query.
        searchable: messages of the resource that can be found.
        pending: messages of the resource without a vector yet; hybrid and lexical find them by
            words.
        exact: the hits are exactly those that scoring every message would give.
        unknown_filter_keys: filter keys that no message of the resource carries; all of them
            where the resource has no messages.
        index_identity: which vectors: model, revision, dimensions, arithmetic.
        absent_group_ids: groups that were left out, being larger than the server's limit.
        messages_dropped: messages left out to keep the answer below the server's limit.
        answer_cache_hit: asked before, and nothing of the resource has changed since: the answer
            given then, without a search.
        tokens, context_tokens: of the messages, and of `context_text`; with `max_tokens` only.
        messages_dropped_for_tokens: messages left out or cut to keep within `max_tokens`.
        context_did_not_fit: `context_text` is empty although there are messages: `max_tokens` has
            no room there for a beginning of the best hit, with the frame around it.
    """

    scope_used: Scope = Scope.UNSPECIFIED
    mode_used: Mode = Mode.UNSPECIFIED
    best_score: float | None = None
    why_empty: WhyEmpty = WhyEmpty.UNSPECIFIED
    query_truncated: bool = False
    query_tokens: int = 0
    cache_hit: bool = False
    timings: RecallTimings = RecallTimings()
    candidates: int = 0
    searchable: int = 0
    pending: int = 0
    exact: bool = False
    unknown_filter_keys: tuple[str, ...] = ()
    index_identity: str = ""
    absent_group_ids: tuple[str, ...] = ()
    messages_dropped: int = 0
    answer_cache_hit: bool = False
    tokens: int = 0
    context_tokens: int = 0
    messages_dropped_for_tokens: int = 0
    context_did_not_fit: bool = False


@dataclass(frozen=True, slots=True)
class RecallResult(Sequence[RecalledMessage]):
    """The answer of `recall`: a sequence of its messages, hits and neighbours, in thread order.

    Attributes:
        messages: each once; threads in order of their first message, inside by time.
        context_text: the messages as text for a prompt.
        info: what it cost.
        degraded: "" normally. Otherwise the sidecar gave no answer, the client failed open, and
            this says why (e.g. "UNREACHABLE", "DEADLINE_EXCEEDED", "QUEUE_FULL", "DATA_LOSS").
        request_id: the request's.
        excluded: what is not in the answer, and why, the best first; with `explain` only.
    """

    messages: tuple[RecalledMessage, ...]
    context_text: str = ""
    info: RecallInfo = RecallInfo()
    degraded: str = ""
    request_id: str = ""
    excluded: tuple[ExcludedCandidate, ...] = ()

    @property
    def hits(self) -> tuple[RecalledMessage, ...]:
        """Only what the query found, best first."""
        return tuple(sorted((m for m in self.messages if m.hit), key=lambda m: m.rank))

    def __len__(self) -> int:
        """How many messages, hits and neighbours."""
        return len(self.messages)

    def __iter__(self) -> Iterator[RecalledMessage]:
        """Over all messages, in order."""
        return iter(self.messages)

    @overload
    def __getitem__(self, index: int) -> RecalledMessage: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RecalledMessage, ...]: ...
    def __getitem__(self, index: int | slice) -> RecalledMessage | tuple[RecalledMessage, ...]:
        """By position in the answer."""
        return self.messages[index]


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """What became of one message of an `index` call.

    Attributes:
        error: why, where the status is REJECTED or PENDING.
    """

    message_id: str
    status: Status
    error: SemanticRecallError | None = None


@dataclass(frozen=True, slots=True)
class IndexResult:
    """The answer of `index`.

    Attributes:
        outcomes: one a message, in the order of the request.
        read_token: give it to `recall` to be sure that it sees these messages.
        embeddings_computed, embeddings_cached: vectors made, and taken from the cache.
        durable_us, total_us: microseconds until the commit on disk, and until the answer.
        error: of `index_stream` only: the batch failed as a whole, nothing of it was stored.
    """

    outcomes: tuple[MessageOutcome, ...]
    read_token: str = ""
    embeddings_computed: int = 0
    embeddings_cached: int = 0
    durable_us: int = 0
    total_us: int = 0
    error: SemanticRecallError | None = None

    @property
    def rejected(self) -> tuple[MessageOutcome, ...]:
        """The messages that were not stored."""
        return tuple(o for o in self.outcomes if o.status is Status.REJECTED)

    def raise_for_rejected(self) -> None:
        """Raise the error of the batch, or of its first rejected message, if there is one."""
        if self.error is not None:
            raise self.error
        for outcome in self.rejected:
            raise outcome.error or InvalidArgumentError.of("messages", "a message was rejected")


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """How much was forgotten, per place, and whether the files hold it still.

    Attributes:
        threads: threads that are empty now and were removed.
        purged: nothing of it is left in the files of the data directory.
        purge_due_time: when that will have been done by itself. None where it is done, or where the
            server never does it by itself: then `purge` does.
        snapshots_holding: snapshots of the server whose files hold it still, by name, at most
            1,000. A restored snapshot never brings it back; a purge rewrites them.
    """

    messages: int
    vectors: int
    threads: int
    cache_entries: int
    purged: bool = False
    purge_due_time: datetime | None = None
    snapshots_holding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """One thread of a resource, with how many messages it holds and when they were written."""

    thread_id: str
    messages: int
    first_create_time: datetime
    last_create_time: datetime


@dataclass(frozen=True, slots=True)
class Embedding:
    """One text's vector.

    Attributes:
        values: unit length.
        tokens: as embedded, special tokens included.
        truncated: the text was longer than the model's window and was cut.
    """

    values: tuple[float, ...]
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """Vectors of texts, in the order of the request, and which model made them."""

    embeddings: tuple[Embedding, ...]
    dimensions: int
    index_identity: str
