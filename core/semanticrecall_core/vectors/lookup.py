"""Messages looked up by seq in a view: their exact cosines, and their vectors.

The cost is what is asked for, not what is there: a sealed part is by seq, and each message is
searched for in it; a tail is short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.values import CosineRows

from .codes import Checked
from .ranked import exact_cosines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    from .partition import View
    from .segment import Part


def cosines(view: View, seqs: IntColumn, vector: FloatRows, dimensions: int) -> CosineRows:
    """The exact cosines of some messages; see `VectorIndex.cosines`.

    Args:
        view: where to look.
        seqs: sorted, unique.
        vector: shape (dimensions,), unit length.
        dimensions: numbers in a vector.

    Raises:
        InvalidArgumentError: a query vector that is not one.
    """
    query = Checked(vector, dimensions)
    found = CosineRows(
        cosines=np.full(len(seqs), np.nan, np.float32),
        chunks=np.zeros(len(seqs), np.int64),
        chunk_counts=np.zeros(len(seqs), np.int64),
        revisions=np.zeros(len(seqs), np.int64),
    )
    for part in view.parts:
        places, firsts = _first_rows(part, seqs)
        if not len(places):
            continue
        block = part.block
        counts = block.chunk_counts[firsts].astype(np.int64)
        if int(counts.max()) == 1:
            best, scores = firsts, exact_cosines([(block, firsts)], query)
        else:
            starts = np.cumsum(counts) - counts
            rows = np.repeat(firsts - starts, counts) + np.arange(int(counts.sum()))
            of_rows = exact_cosines([(block, rows)], query)
            scores = np.maximum.reduceat(of_rows, starts)
            reaching = np.flatnonzero(of_rows == np.repeat(scores, counts))
            # The first of equals is the earliest chunk, as in a search.
            best = rows[reaching[np.searchsorted(reaching, starts)]]
        found.cosines[places] = scores
        found.chunks[places] = block.chunks[best]
        found.chunk_counts[places] = counts
        found.revisions[places] = block.revisions[best]
    return found


def vectors_of(view: View, seqs: IntColumn, chunks: IntColumn, dimensions: int) -> FloatRows:
    """The vector of each (seq, chunk); see `VectorIndex.vectors_of`.

    Args:
        view: where to look.
        seqs, chunks: shape (n,), in any order.
        dimensions: numbers in a vector.
    """
    vectors = np.zeros((len(seqs), dimensions), np.float32)
    for part in view.parts:
        places, firsts = _first_rows(part, seqs)
        block = part.block
        rows = firsts + chunks[places]
        there = (chunks[places] >= 0) & (chunks[places] < block.chunk_counts[firsts])
        places, rows = places[there], rows[there]
        vectors[places] = block.vectors[rows]
    return vectors


def _first_rows(part: Part, seqs: IntColumn) -> tuple[IntColumn, IntColumn]:
    """Which of `seqs` are alive in a part (positions in `seqs`), and the first row of each.

    The chunks of a message are its rows from there, by chunk, from 0.
    """
    block = part.block
    if part.ordered:
        rows = _left_of(block.seqs, seqs)
        there = block.seqs[rows] == seqs
        if part.alive is not None:
            there &= part.alive[rows]
    else:
        heads = np.flatnonzero(block.firsts if part.alive is None else block.firsts & part.alive)
        heads = heads[np.argsort(block.seqs[heads])]
        rows = heads[_left_of(block.seqs[heads], seqs)]
        there = block.seqs[rows] == seqs
    places = np.flatnonzero(there)
    return places, rows[places]


def _left_of(ordered: IntColumn, wanted: IntColumn) -> IntColumn:
    """The first position of each number in a sorted column, any where it is not there."""
    if ordered.dtype != wanted.dtype:  # else numpy would widen the whole column
        held = np.iinfo(ordered.dtype)
        wanted = np.clip(wanted, held.min, held.max).astype(ordered.dtype)
    positions: NDArray[np.int64] = np.searchsorted(ordered, wanted)
    return np.minimum(positions, len(ordered) - 1)
