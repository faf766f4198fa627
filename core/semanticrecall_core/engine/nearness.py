"""How near candidates are to each phrasing of a query.

Vectors and words are looked at one after the other: a vector counts only where it is of the same
revision as the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.values import CosineRows, VectorAnswer, VectorHits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    BoolColumn = NDArray[np.bool_]

_NAN = np.float32(np.nan)


def nearest_of(answers: Sequence[VectorAnswer], top_k: int) -> VectorHits:
    """The best of all searches, each message once, with the nearest phrasing.

    Who is among the best of all is among those of one search. Of two revisions of a message, met
    because it changed between the searches, the newer one counts.
    """
    if len(answers) == 1:
        return answers[0].found
    each = [answer.found for answer in answers]
    found = VectorHits(
        np.concatenate([one.seqs for one in each]),
        np.concatenate([one.scores for one in each]),
        np.concatenate([one.chunks for one in each]),
        np.concatenate([one.chunk_counts for one in each]),
        np.concatenate([one.revisions for one in each]),
    )
    order = np.lexsort((-found.scores, -found.revisions, found.seqs))
    best: IntColumn = order[np.unique(found.seqs[order], return_index=True)[1]]  # by seq
    return found.taken(best[np.argsort(-found.scores[best], kind="stable")][:top_k])


@dataclass(frozen=True, slots=True)
class NearRows:
    """Cosines of the rows of a match with each vector.

    Attributes:
        cosines: shape (phrasings, n). NaN where there is no vector of this revision.
        chunks: shape (phrasings, n); 0 where there is none.
        chunk_counts: shape (n,); 0 where there are none.
    """

    cosines: FloatRows
    chunks: IntColumn
    chunk_counts: IntColumn

    @classmethod
    def of(cls, found: CosineRows, revisions: IntColumn) -> NearRows:
        """What was looked up of messages whose words are of these revisions."""
        current = found.revisions == revisions
        if current.all():
            return cls(found.cosines, found.chunks, found.chunk_counts)
        return cls(
            np.where(current, found.cosines, _NAN),
            np.where(current, found.chunks, 0),
            np.where(current, found.chunk_counts, 0),
        )

    def phrasings(self, start: int, stop: int) -> NearRows:
        """The same messages with some of the phrasings."""
        return NearRows(self.cosines[start:stop], self.chunks[start:stop], self.chunk_counts)

    def nearest(self) -> tuple[FloatRows, IntColumn]:
        """Cosine and chunk with the nearest phrasing, each of shape (n,)."""
        if len(self.cosines) == 1:
            return self.cosines[0], self.chunks[0]
        phrasing = np.where(np.isnan(self.cosines), -np.inf, self.cosines).argmax(axis=0)
        rows = np.arange(len(phrasing))
        return self.cosines[phrasing, rows], self.chunks[phrasing, rows]
