"""What a vector index is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .values import FloatRows, IntColumn, Role


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """What `VectorIndex.search` is asked. All conditions hold before top-k.

    Attributes:
        vector: shape (dimensions,), unit length.
        top_k: how many messages (not chunks).
        thread_key: only this thread; None is all threads.
        roles: only these; empty is all.
        time_from_ns, time_to_ns: half-open interval; None is open.
        allowed_seqs: only these rows (sorted, unique); None is all.
        excluded_seqs: never these rows (sorted, unique).
    """

    vector: FloatRows
    top_k: int
    thread_key: int | None = None
    roles: frozenset[Role] = frozenset()
    time_from_ns: int | None = None
    time_to_ns: int | None = None
    allowed_seqs: IntColumn | None = None
    excluded_seqs: IntColumn | None = None


class VectorHit(NamedTuple):
    """One message found: its best chunk and that chunk's cosine (a float32 value).

    All of it, and that it met the query's conditions, holds for this revision of the message.
    """

    seq: int
    score: float
    chunk: int
    chunks: int
    revision: int


class VectorHits(NamedTuple):
    """Messages found, the best first: columns of one length, as in `VectorHit`."""

    seqs: IntColumn
    scores: FloatRows
    chunks: IntColumn
    chunk_counts: IntColumn
    revisions: IntColumn

    def taken(self, order: IntColumn) -> VectorHits:
        """Those at these positions, in this order."""
        return VectorHits(
            self.seqs[order],
            self.scores[order],
            self.chunks[order],
            self.chunk_counts[order],
            self.revisions[order],
        )


@dataclass(frozen=True, slots=True, eq=False)
class VectorAnswer:
    """Messages by (score descending, seq ascending); at most top_k; each once.

    Attributes:
        found: what was found; a recall goes on with the columns.
        candidates: messages that passed every condition.
        searchable: messages in the partition.
        exact: it is proven that no message kept out belongs among those found.
    """

    found: VectorHits
    candidates: int
    searchable: int
    exact: bool = True

    def __eq__(self, other: object) -> bool:
        """Equal where everything it tells is."""
        return isinstance(other, VectorAnswer) and (
            self.hits == other.hits
            and self.candidates == other.candidates
            and self.searchable == other.searchable
            and self.exact == other.exact
        )

    @property
    def hits(self) -> tuple[VectorHit, ...]:
        """What was found, message by message."""
        rows = zip(*(column.tolist() for column in self.found), strict=True)
        return tuple(map(VectorHit._make, rows))


@dataclass(frozen=True, slots=True)
class CosineRows:
    """Cosines of some messages with each of some vectors, in the order they were asked for.

    Attributes:
        cosines: shape (vectors, n), float32. Of the best chunk; NaN where the message has none.
        chunks: shape (vectors, n). Which chunk that is, as in `VectorHit`; 0 where there is none.
        chunk_counts, revisions: shape (n,). As in `VectorHit`; 0 where there are no chunks.
    """

    cosines: FloatRows
    chunks: IntColumn
    chunk_counts: IntColumn
    revisions: IntColumn


@dataclass(frozen=True, slots=True, eq=False)
class NearestMessages:
    """The messages nearest to some vectors, in no order, and what a cosine with each is beside.

    Attributes:
        seqs: sorted, unique. Those that a search with one vector at least would find.
        candidates, searchable: as in `VectorAnswer`.
        mean, std: shape (vectors,). As of `VectorIndex.moments`.
    """

    seqs: IntColumn
    candidates: int
    searchable: int
    mean: FloatRows
    std: FloatRows
