"""Messages looked up by seq in a view: their exact cosines, and their vectors.

The cost is what is asked for, not what is there: a sealed part is by seq, and each message is
searched for in it; a tail is short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.values import CosineRows

from .ranked import exact_cosines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    from .partition import View
    from .ranked import WideRows
    from .segment import Part


def cosines(view: View, seqs: IntColumn, queries: WideRows) -> CosineRows:
    """The exact cosines of some messages; see `VectorIndex.cosines`.

    Args:
        view: where to look.
        seqs: sorted, unique.
        queries: checked, shape (queries, dimensions).
    """
    found: CosineRows | None = None
    for part in view.parts:
        places, firsts = _first_rows(part, seqs)
        if len(places) == len(seqs):  # nearly always where a partition is one part
            return _of_messages(part, firsts, queries)
        if len(places):
            found = found or _nothing(len(queries), len(seqs))
            here = _of_messages(part, firsts, queries)
            found.cosines[:, places] = here.cosines
            found.chunks[:, places] = here.chunks
            found.chunk_counts[places] = here.chunk_counts
            found.revisions[places] = here.revisions
    return found or _nothing(len(queries), len(seqs))


def _nothing(queries: int, messages: int) -> CosineRows:
    return CosineRows(
        cosines=np.full((queries, messages), np.nan, np.float32),
        chunks=np.zeros((queries, messages), np.int64),
        chunk_counts=np.zeros(messages, np.int64),
        revisions=np.zeros(messages, np.int64),
    )


def _of_messages(part: Part, firsts: IntColumn, queries: WideRows) -> CosineRows:
    """Of the messages of a part with these first rows."""
    block = part.block
    counts = block.chunk_counts[firsts].astype(np.int64)
    revisions = block.revisions[firsts].astype(np.int64)
    if part.rows == part.messages or not len(firsts) or int(counts.max()) == 1:
        chunks = np.zeros((len(queries), len(firsts)), np.int64)
        return CosineRows(exact_cosines([(block, firsts)], queries), chunks, counts, revisions)
    starts = np.cumsum(counts) - counts
    rows = np.repeat(firsts - starts, counts) + np.arange(int(counts.sum()))
    of_rows = exact_cosines([(block, rows)], queries)
    scores = np.maximum.reduceat(of_rows, starts, axis=1)
    best: list[IntColumn] = []
    for own, highest in zip(of_rows, scores, strict=True):
        reaching = (own == np.repeat(highest, counts)).nonzero()[0]
        # The first of equals is the earliest chunk, as in a search.
        best.append(reaching[np.searchsorted(reaching, starts)])
    chunks = np.array(best, np.int64).reshape(scores.shape) - starts
    return CosineRows(scores, chunks, counts, revisions)


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
        heads = (block.firsts if part.alive is None else block.firsts & part.alive).nonzero()[0]
        heads = heads[np.argsort(block.seqs[heads])]
        rows = heads[_left_of(block.seqs[heads], seqs)]
        there = block.seqs[rows] == seqs
    places = there.nonzero()[0]
    return places, rows[places]


def _left_of(ordered: IntColumn, wanted: IntColumn) -> IntColumn:
    """The first position of each number in a sorted column, any where it is not there."""
    if ordered.dtype != wanted.dtype:  # else numpy would widen the whole column
        within = np.minimum(np.maximum(wanted, -(2**31)), 2**31 - 1)
        wanted = within.astype(ordered.dtype)
    positions: NDArray[np.int64] = ordered.searchsorted(wanted)
    return np.minimum(positions, len(ordered) - 1)
