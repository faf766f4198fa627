"""What the record, the analyser and the lexical index say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .values import ByteColumn, IntColumn, Role

    BoolColumn = NDArray[np.bool_]
    FloatColumn = NDArray[np.float32]
    PositionColumn = NDArray[np.int32]


class TextAnalyser(Protocol):
    """Texts to the terms that are counted. A pure function; thread-safe."""

    def analyse(self, text: str, author: str) -> bytes:
        """The terms of a message, packed with their version and a checksum.

        Equal arguments give equal bytes. Holds no text, only hashes of terms.
        """
        ...

    def is_current(self, analysed: bytes) -> bool:
        """Whether these bytes are undamaged and of this version; else analyse anew."""
        ...


@dataclass(frozen=True, slots=True)
class LexicalRows:
    """Messages of one resource as the lexical index needs them; one entry a message.

    Only messages that have something to embed; those that wait for their vectors too.

    Attributes:
        seqs, thread_keys, times_ns, revisions: shape (n,), as in `PartitionRows`.
        roles: shape (n,). The `Role` of the message.
        analysed: n times what `TextAnalyser.analyse` gave, current.
    """

    seqs: IntColumn
    thread_keys: IntColumn
    times_ns: IntColumn
    revisions: IntColumn
    roles: ByteColumn
    analysed: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LexicalQuery:
    """What `LexicalIndex.match` is asked. All conditions hold before anything is chosen.

    Attributes:
        texts: the query and its other phrasings, one or more.
        top_k: how many of the best messages by their words are given, at most.
        also_seqs: messages that are given in any case, if they are allowed (sorted, unique).
        thread_key, roles, time_from_ns, time_to_ns, allowed_seqs, excluded_seqs: as in
            `VectorQuery`.
    """

    texts: tuple[str, ...]
    top_k: int
    also_seqs: IntColumn | None = None
    thread_key: int | None = None
    roles: frozenset[Role] = frozenset()
    time_from_ns: int | None = None
    time_to_ns: int | None = None
    allowed_seqs: IntColumn | None = None
    excluded_seqs: IntColumn | None = None


@dataclass(frozen=True, slots=True)
class LexicalMatch:
    """Messages of a partition with what their words are worth for a query; by seq.

    Holds the candidates, and the messages right before them in their threads that ask a question.
    BM25 scores are over the statistics of the whole partition; a message without any word of the
    query has 0.

    Attributes:
        seqs, revisions, times_ns: shape (n,).
        is_candidate: shape (n,). Allowed, and among the best or asked for; False: only a question.
        own: shape (queries, n). BM25 of the message's own words, its date's included.
        context: shape (queries, n). BM25 of the message's window: its words, and with less weight
            those of the two messages before and after it in the thread, as one text.
        worth: shape (queries, n). `context`, but less where it is small beside what the query's
            words could give: a few of them are no evidence, however rare they are here.
        worth_mean: shape (queries,). Of `worth` over all messages of the partition, those with 0
            included.
        context_std: shape (queries,). Standard deviation of `context` over the same; above 0.
        names_author: shape (queries, n). 1.0 where the query names the message's author, else 0.0.
        asks: shape (n,). The message asks a question.
        before: shape (n,). Position in here of the message before it in the thread, -1 for none or
            where it is not in here.
        matched: allowed messages with at least one word of a query.
        searchable: messages in the partition.
    """

    seqs: IntColumn
    revisions: IntColumn
    times_ns: IntColumn
    is_candidate: BoolColumn
    own: FloatColumn
    context: FloatColumn
    worth: FloatColumn
    worth_mean: FloatColumn
    context_std: FloatColumn
    names_author: FloatColumn
    asks: BoolColumn
    before: PositionColumn
    matched: int
    searchable: int


class ScoredWords(Protocol):
    """What the words of all messages of a partition, as it was, are worth for some texts.

    Thread-safe, and never changed.
    """

    def match(self, query: LexicalQuery) -> LexicalMatch:
        """As `LexicalIndex.match` would have answered when this was scored.

        The query must be of the texts that were scored.
        """
        ...


class LexicalListener(Protocol):
    """Told of every change of messages that have something to embed, as a `CommitListener` is."""

    def texts_put(self, resource_id: str, rows: LexicalRows) -> None:
        """These messages are new, or replace what was known of them."""
        ...

    def texts_removed(self, resource_id: str, seqs: IntColumn) -> None:
        """These messages have nothing to embed now: edited, forgotten or moved away."""
        ...

    def resource_dropped(self, resource_id: str) -> None:
        """Nothing of this resource in memory may be used any more; read it anew."""
        ...


class LexicalIndex(LexicalListener, Protocol):
    """Words inside one partition (a resource). Thread-safe; follows the record's commits.

    Partitions are read through the loader it was made with (`MessageStore.load_lexical`), on first
    use.
    """

    def match(self, resource_id: str, query: LexicalQuery) -> LexicalMatch:
        """Candidates with their scores. No match at all is an answer of no rows."""
        ...

    def scored(self, resource_id: str, texts: tuple[str, ...], top_k: int) -> ScoredWords:
        """What takes long of `match`, and can be done before the rest of the query is known.

        A query for `top_k` without conditions is quickest to answer then.
        """
        ...

    def names_in(self, resource_id: str, text: str) -> tuple[str, ...]:
        """The names of people of this partition that the text has, as it spells them.

        Each once, without a genitive's 's, at most 8. None where the text has no other word. Who
        speaks of what is told by the messages' words and authors; in a vector a name only draws it
        towards those who say it.
        """
        ...

    def partition_seqs(self, resource_id: str) -> tuple[IntColumn, IntColumn]:
        """Seqs and revisions of what the partition holds now, by seq; for Verify."""
        ...

    def resources_loaded(self) -> list[str]:
        """The resources whose partitions are in memory."""
        ...

    def partitions_loaded(self) -> int:
        """How many partitions are in memory."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of memory that they take."""
        ...
