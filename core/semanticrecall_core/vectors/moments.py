"""Mean and standard deviation of the cosines of a partition's rows with a query, without a scan.

Small partitions (SCAN_ROWS_MAX rows) are read whole. Of larger ones the rows of smallest hash of
(seq, chunk) stand for all: an expected SAMPLE_ROWS_MAX / 2 to SAMPLE_ROWS_MAX of them, chosen by
what they are and not by where they lie. Of these the sum of all vectors m and their second moment
S, a square matrix, are kept, so that a query costs one product with S whatever the rows:

    sum of <x, q> = <m, q>        sum of <x, q>^2 = q' S q

Rows and query are rounded to whole numbers first, x to steps of 1/127 and q to steps of 1/4096.
Every sum is then a whole number below 2^53 and exact in float64, in any order: the same rows give
the same bytes after a restart, with other parts, and whichever rows were added or taken away one by
one. What is read whole has its cosines rounded to steps of 2^-20 for the same reason.

S is made when it is first asked for, and follows the view from then on: rows of the tail are
summed anew each time, sealed ones are added or taken away as they come and go. It is made anew if
rows went of which the vectors are gone too, or if the sample's share changed. Measured, with the
sampling error: docs/decisions/0021.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .codes import checked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    from .partition import View
    from .ranked import Scores
    from .rows import BoolMask, RowBlock
    from .segment import Part

    Wide = NDArray[np.float64]

SCAN_ROWS_MAX = 2048
SAMPLE_ROWS_MAX = 4096
MATRIX_DIMENSIONS_MAX = 512
"""Of longer vectors the sample is read each time: S would take more memory than it is worth."""
STD_MIN = 0.01
"""Cosines of real messages spread over 0.05 to 0.12; closer ones are not told apart by far."""

_ROW_SCALE = 127
_QUERY_SCALE = 4096
_SCORE_SCALE = 2**20
_ROWS_AT_ONCE = 1024
"""Products of so many rows of whole numbers within 127 are exact sums in float32 too: < 2^24."""
_HASH_SEQ = np.uint64(0x9E3779B97F4A7C15)
_HASH_CHUNK = np.uint64(0xC2B2AE3D27D4EB4F)
_HASH_MIX = np.uint64(0xD6E8FEB86659FD93)


class Sums(NamedTuple):
    """Of the cosines of some rows, times `scale`; whole numbers."""

    rows: int
    total: int
    squares: int
    scale: int

    def mean_and_std(self) -> tuple[float, float]:
        """Mean and standard deviation of the cosines, the latter STD_MIN or more; 0 for no rows."""
        if not self.rows:
            return 0.0, STD_MIN
        spread = self.rows * self.squares - self.total * self.total
        step = self.rows * self.scale
        return self.total / step, max(STD_MIN, math.sqrt(max(0, spread)) / step)


def means_and_stds(sums: Sequence[Sums]) -> tuple[FloatRows, FloatRows]:
    """Of each, as two columns."""
    pairs = [each.mean_and_std() for each in sums]
    return (
        np.array([mean for mean, _ in pairs], np.float32),
        np.array([std for _, std in pairs], np.float32),
    )


def sums_of(pieces: Iterable[Scores]) -> Sums:
    """Of float32 cosines."""
    count = total = squares = 0
    for scores in pieces:
        whole = np.rint(scores.astype(np.float64) * _SCORE_SCALE).astype(np.int64)
        count += len(whole)
        total += int(whole.sum())
        squares += int(np.vecdot(whole, whole))
    return Sums(count, total, squares, _SCORE_SCALE)


class Moments:
    """The moments of one partition. Thread-safe.

    Args:
        dimensions: numbers in a vector.
    """

    __slots__ = ("_dimensions", "_lock", "_matrix")

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._lock = threading.Lock()
        self._matrix: _SecondMoment | None = None

    @property
    def nbytes(self) -> int:
        """Memory that is kept between queries."""
        matrix = self._matrix
        return 0 if matrix is None else matrix.nbytes

    def of(self, view: View, vectors: FloatRows) -> tuple[FloatRows, FloatRows]:
        """See `VectorIndex.moments`.

        Raises:
            InvalidArgumentError: vectors of another shape or dtype, or not of unit length.
        """
        wide = checked(vectors, self._dimensions)
        rows = sum(part.rows for part in view.parts)
        share = sample_share(rows)
        if rows <= SCAN_ROWS_MAX or self._dimensions > MATRIX_DIMENSIONS_MAX:
            sums = [_scanned(view, vector, share) for vector in np.ascontiguousarray(vectors)]
        else:
            with self._lock:
                if self._matrix is None or not self._matrix.follow(view, share):
                    self._matrix = None  # of this view nothing is known: its memory goes first
                    self._matrix = _SecondMoment(view, share, self._dimensions)
                sums = [self._matrix.sums(view, query) for query in wide]
        return means_and_stds(sums)


def sample_share(rows: int) -> int:
    """Of how many rows one is in the sample: a power of two, 1 for all."""
    share = 1
    if rows > SCAN_ROWS_MAX:
        while rows > share * SAMPLE_ROWS_MAX:
            share *= 2
    return share


def sampled_rows(block: RowBlock, share: int) -> IntColumn:
    """Positions of a block's rows that are in the sample, dead ones too."""
    if share == 1:
        return np.arange(len(block))
    return np.flatnonzero(_hashes(block.seqs, block.chunks) < np.uint64(2**64 // share))


def _hashes(seqs: NDArray[Any], chunks: NDArray[Any]) -> NDArray[np.uint64]:
    hashes = seqs.astype(np.uint64) * _HASH_SEQ
    hashes += chunks.astype(np.uint64) * _HASH_CHUNK
    hashes ^= hashes >> np.uint64(32)
    hashes *= _HASH_MIX
    return hashes


def _alive(part: Part, rows: IntColumn) -> IntColumn:
    return rows if part.alive is None else rows[part.alive[rows]]


def _scanned(view: View, query: FloatRows, share: int) -> Sums:
    """Of the sample, by reading it."""
    pieces: list[Scores] = []
    for part in view.parts:
        if share == 1:
            scores = np.vecdot(part.block.vectors, query)
            pieces.append(scores if part.alive is None else scores[part.alive])
        else:
            rows = _alive(part, sampled_rows(part.block, share))
            pieces.append(np.vecdot(part.block.vectors[rows], query))
    return sums_of(pieces)


def _whole_rows(block: RowBlock, rows: IntColumn) -> FloatRows:
    """Rows as whole numbers within 127."""
    whole = block.vectors[rows]
    whole *= np.float32(_ROW_SCALE)
    return np.rint(whole, out=whole)


class _Counted:
    """The sampled rows of one sealed part that are in the sums.

    The vectors are held weakly: sums must not keep in memory what was replaced or forgotten.

    Attributes:
        vectors: the part's, by which it is known again.
        alive: the part's mask, as it was when its rows were counted.
        sampled: positions in the part, dead rows too.
        counts: which of them are in the sums.
        names: what tells each from every other row there ever was, shape of `sampled`.
    """

    __slots__ = ("alive", "counts", "names", "sampled", "vectors")

    def __init__(self, part: Part, share: int) -> None:
        block = part.block
        self.vectors = weakref.ref(block.vectors)
        self.alive = part.alive
        self.sampled = sampled_rows(block, share)
        self.counts = _mask_of(part, self.sampled)
        self.names = _hashes(block.seqs[self.sampled], block.chunks[self.sampled])
        self.names += block.revisions[self.sampled].astype(np.uint64) * _HASH_MIX


def _mask_of(part: Part, rows: IntColumn) -> BoolMask:
    return np.ones(len(rows), np.bool_) if part.alive is None else part.alive[rows]


class _SecondMoment:
    """m and S of the sampled rows of a view's sealed parts. Used under a lock."""

    __slots__ = ("_counted", "_first", "_rows", "_second", "_share")

    def __init__(self, view: View, share: int, dimensions: int) -> None:
        self._share = share
        self._rows = 0
        self._first: Wide = np.zeros(dimensions, np.float64)
        self._second: Wide = np.zeros((dimensions, dimensions), np.float64)
        self._counted: list[_Counted] = []
        for part in _sealed(view):
            counted = _Counted(part, share)
            self._counted.append(counted)
            self._add(part.block, counted.sampled[counted.counts], 1)

    def follow(self, view: View, share: int) -> bool:
        """Be the sums of this view; False where they must be made anew."""
        if share != self._share:
            return False
        known = {id(vectors): c for c in self._counted if (vectors := c.vectors()) is not None}
        new: list[tuple[Part, _Counted]] = []
        kept: list[tuple[Part, _Counted]] = []
        for part in _sealed(view):
            counted = known.pop(id(part.block.vectors), None)
            if counted is None:
                new.append((part, _Counted(part, share)))
            else:
                kept.append((part, counted))
        there = {id(counted) for _, counted in kept}
        names = [c.names[c.counts] for c in self._counted if id(c) not in there]
        moved = np.concatenate(names) if names else np.empty(0, np.uint64)
        if len(moved):
            came = [counted.names[counted.counts] for _, counted in new]
            if not came or not bool(np.isin(moved, np.concatenate(came)).all()):
                return False
        for part, counted in kept:
            if counted.alive is not part.alive:
                self._recount(part, counted)
        for part, counted in new:
            fresh = counted.counts & ~np.isin(counted.names, moved)
            self._add(part.block, counted.sampled[fresh], 1)
        self._counted = [counted for _, counted in kept + new]
        return True

    @property
    def nbytes(self) -> int:
        """Memory of m and S, and of what tells which rows are in them."""
        columns = (c.sampled.nbytes + c.names.nbytes + c.counts.nbytes for c in self._counted)
        return self._second.nbytes + self._first.nbytes + sum(columns)

    def sums(self, view: View, vector: Wide) -> Sums:
        """Of the sample of the view that it follows."""
        query = np.rint(vector * _QUERY_SCALE)
        rows = self._rows
        total = int(np.vecdot(self._first, query))
        squares = int(np.vecdot(self._second @ query, query))
        for part in view.parts:
            if part.ordered:
                continue
            own = _alive(part, sampled_rows(part.block, self._share))
            whole = _whole_rows(part.block, own)
            scores = (whole @ query.astype(np.float32)).astype(np.float64)
            rows += len(own)
            total += int(scores.sum())
            squares += int(np.vecdot(scores, scores))
        return Sums(rows, total, squares, _ROW_SCALE * _QUERY_SCALE)

    def _recount(self, part: Part, counted: _Counted) -> None:
        counts = _mask_of(part, counted.sampled)
        self._add(part.block, counted.sampled[counted.counts & ~counts], -1)
        self._add(part.block, counted.sampled[counts & ~counted.counts], 1)
        counted.counts, counted.alive = counts, part.alive

    def _add(self, block: RowBlock, rows: IntColumn, sign: int) -> None:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            whole = _whole_rows(block, rows[start : start + _ROWS_AT_ONCE])
            self._first += sign * whole.sum(axis=0, dtype=np.float64)
            self._second += np.float32(sign) * (whole.T @ whole)
        self._rows += sign * len(rows)


def _sealed(view: View) -> list[Part]:
    return [part for part in view.parts if part.ordered]
