"""Exact scores of chosen rows, and messages ordered by them.

A score is a float64 product and sum of float32 numbers, row by row, so that it depends on its row
and the query alone; rounded to float32 and held within [-1, 1]. Messages are ordered by (best score
descending, seq ascending), a message's chunks by (score descending, chunk ascending).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semanticrecall_core.types.values import VectorHits

from .rows import RowBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import IntColumn

    Scores = NDArray[np.float32]
    WideRows = NDArray[np.float64]
    Chosen = tuple[RowBlock, IntColumn]

ROWS_AT_ONCE = 128
"""So many float64 rows fit a core's cache: a quarter quicker than all at once."""


def ranked(chosen: Sequence[Chosen], top_k: int, query: WideRows) -> VectorHits:
    """The top k messages among these rows by exact scores.

    Args:
        chosen: one piece or more, each with its rows ascending; all rows of a message that are
            chosen are in one piece.
        top_k: how many.
        query: shape (1, dimensions).
    """
    scores: Scores = exact_cosines(chosen, query)[0]
    # A block has a message's chunks together, by chunk: with rows ascending, equal scores of a
    # message stay in that order, because the sort is stable.
    seqs = joined([block.seqs.take(rows) for block, rows in chosen])
    counts = joined([block.chunk_counts.take(rows) for block, rows in chosen])
    order = np.lexsort((seqs, -scores))
    if len(order) and int(np.maximum.reduce(counts)) > 1:
        first_of_each: IntColumn = np.unique(seqs[order], return_index=True)[1]
        order = order[np.sort(first_of_each)]
    order = order[:top_k]
    chunks = joined([block.chunks.take(rows) for block, rows in chosen])
    revisions = joined([block.revisions.take(rows) for block, rows in chosen])
    return VectorHits(
        seqs[order].astype(np.int64),
        scores[order],
        chunks[order].astype(np.int64),
        counts[order].astype(np.int64),
        revisions[order].astype(np.int64),
    )


def nothing() -> VectorHits:
    """What a search finds where nothing is allowed."""
    none: IntColumn = np.empty(0, np.int64)
    return VectorHits(none, np.empty(0, np.float32), none, none, none)


def exact_cosines(pieces: Sequence[Chosen], queries: WideRows) -> Scores:
    """Exact cosines of some rows, in their order, with each query: shape (queries, rows)."""
    exact: Scores = np.empty((len(queries), sum(len(rows) for _, rows in pieces)), np.float32)
    each: WideRows = queries[:, np.newaxis]
    done = 0
    for block, rows in pieces:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            taken = block.vectors.take(rows[start : start + ROWS_AT_ONCE], axis=0)
            stop = done + len(taken)
            exact[:, done:stop] = np.vecdot(taken.astype(np.float64), each)
            done = stop
    np.minimum(exact, 1.0, out=exact)
    np.maximum(exact, -1.0, out=exact)
    return exact


def joined(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The pieces as one array."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
