"""Exact scores of chosen rows, and messages ordered by them.

A score is a float64 product and sum of float32 numbers, row by row, so that it depends on its row
and the query alone; rounded to float32 and held within [-1, 1]. Messages are ordered by (best score
descending, seq ascending), a message's chunks by (score descending, chunk ascending).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from semanticrecall_core.types.values import VectorHit

from .codes import Checked
from .rows import RowBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import IntColumn

    Scores = NDArray[np.float32]
    Chosen = tuple[RowBlock, IntColumn]

ROWS_AT_ONCE = 128
"""So many float64 rows fit a core's cache: a quarter quicker than all at once."""


class Ranked(NamedTuple):
    """Messages in order, each with its best chunk; columns of one length, as in `VectorHit`."""

    seqs: NDArray[Any]
    scores: Scores
    chunks: NDArray[Any]
    chunk_counts: NDArray[Any]
    revisions: NDArray[Any]

    def hits(self) -> tuple[VectorHit, ...]:
        """The same as values."""
        # A third of the time that VectorHit's own constructor takes.
        made = partial(tuple.__new__, VectorHit)
        return tuple(map(made, zip(*(column.tolist() for column in self), strict=True)))


def ranked(chosen: Sequence[Chosen], top_k: int, query: Checked) -> Ranked:
    """The top k messages among these rows (one piece or more) by exact scores.

    All rows of a message that are chosen are in one piece.
    """
    # A block has a message's chunks together, by chunk: with rows ascending, equal scores of a
    # message stay in that order, because the sort is stable.
    pieces = [(block, np.sort(rows)) for block, rows in chosen]
    scores = exact_cosines(pieces, query)
    seqs = joined([block.seqs.take(rows) for block, rows in pieces])
    counts = joined([block.chunk_counts.take(rows) for block, rows in pieces])
    order = np.lexsort((seqs, -scores))
    if len(order) and int(np.maximum.reduce(counts)) > 1:
        first_of_each: IntColumn = np.unique(seqs[order], return_index=True)[1]
        order = order[np.sort(first_of_each)]
    order = order[:top_k]
    return Ranked(
        seqs[order],
        scores[order],
        joined([block.chunks.take(rows) for block, rows in pieces])[order],
        counts[order],
        joined([block.revisions.take(rows) for block, rows in pieces])[order],
    )


def exact_cosines(pieces: Sequence[Chosen], query: Checked) -> Scores:
    """Exact cosines of some rows, in their order."""
    exact: Scores = np.empty(sum(len(rows) for _, rows in pieces), np.float32)
    done = 0
    for block, rows in pieces:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            taken = block.vectors.take(rows[start : start + ROWS_AT_ONCE], axis=0)
            stop = done + len(taken)
            exact[done:stop] = np.vecdot(taken.astype(np.float64), query.wide)
            done = stop
    np.minimum(exact, 1.0, out=exact)
    np.maximum(exact, -1.0, out=exact)
    return exact


def joined(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The pieces as one array."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
