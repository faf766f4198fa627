"""How near candidates are to each phrasing of a query: what searches found, and what was looked up.

Vectors and words are looked at one after the other: a vector counts only where it is of the same
revision as the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from semanticrecall_core.types.lexical import LexicalMatch
from semanticrecall_core.types.values import CosineRows, VectorHit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    BoolColumn = NDArray[np.bool_]


class HitColumns(NamedTuple):
    """Hits as columns, in their order; see `VectorHit`."""

    seqs: IntColumn
    scores: FloatRows
    chunks: IntColumn
    chunk_counts: IntColumn
    revisions: IntColumn

    @classmethod
    def of(cls, hits: Sequence[VectorHit]) -> HitColumns:
        """These hits."""
        seqs, scores, chunks, chunk_counts, revisions = (
            zip(*hits, strict=True) if hits else ((),) * 5
        )
        return cls(
            np.array(seqs, dtype=np.int64),
            np.array(scores, dtype=np.float32),
            np.array(chunks, dtype=np.int64),
            np.array(chunk_counts, dtype=np.int64),
            np.array(revisions, dtype=np.int64),
        )


def seqs_of(hits: Sequence[HitColumns]) -> IntColumn:
    """The messages of one search or more, sorted, unique."""
    seqs = [columns.seqs for columns in hits]
    return np.sort(seqs[0]) if len(seqs) == 1 else np.unique(np.concatenate(seqs))


@dataclass(frozen=True, slots=True)
class NearRows:
    """Cosines of the rows of a match with each vector.

    Attributes:
        cosines: shape (phrasings, n). NaN where there is no vector of this revision.
        chunks, chunk_counts: shape (phrasings, n).
        changed: shape (n,). There is a vector of a newer revision.
    """

    cosines: FloatRows
    chunks: IntColumn
    chunk_counts: IntColumn
    changed: BoolColumn

    @classmethod
    def none(cls, phrasings: int, n: int) -> NearRows:
        """Not near to anything."""
        return cls(
            np.full((phrasings, n), np.nan, dtype=np.float32),
            np.zeros((phrasings, n), dtype=np.int64),
            np.zeros((phrasings, n), dtype=np.int64),
            np.zeros(n, dtype=np.bool_),
        )

    def put(
        self, phrasing: int, positions: IntColumn, found: CosineRows, revisions: IntColumn
    ) -> None:
        """What was looked up for these positions, whose words are of these revisions."""
        current = found.revisions == revisions
        self.cosines[phrasing, positions] = np.where(current, found.cosines, np.nan)
        self.chunks[phrasing, positions] = found.chunks
        self.chunk_counts[phrasing, positions] = found.chunk_counts
        self.changed[positions] |= found.revisions > revisions

    def put_hits(self, phrasing: int, hits: HitColumns, match: LexicalMatch) -> IntColumn:
        """What a search found, where its words are of the same revision; those positions."""
        if not len(match.seqs):
            return np.empty(0, dtype=np.int64)
        positions: IntColumn = np.searchsorted(match.seqs, hits.seqs)
        positions[positions == len(match.seqs)] = 0
        same = match.seqs[positions] == hits.seqs
        same &= match.revisions[positions] == hits.revisions
        positions = positions[same]
        self.cosines[phrasing, positions] = hits.scores[same]
        self.chunks[phrasing, positions] = hits.chunks[same]
        self.chunk_counts[phrasing, positions] = hits.chunk_counts[same]
        return positions

    def nearest(self, positions: IntColumn) -> tuple[FloatRows, IntColumn, IntColumn]:
        """Cosine, chunk and chunks with the nearest phrasing, in the order of the positions."""
        cosines = self.cosines[:, positions]
        phrasing = np.zeros(len(positions), dtype=np.int64)
        if len(cosines) > 1:
            phrasing = np.where(np.isnan(cosines), -np.inf, cosines).argmax(axis=0)
        best = cosines[phrasing, np.arange(len(positions))]
        there = ~np.isnan(best)
        chunks = np.where(there, self.chunks[phrasing, positions], 0)
        return best, chunks, np.where(there, self.chunk_counts[phrasing, positions], 0)
