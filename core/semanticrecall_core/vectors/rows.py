"""Blocks of rows: vectors and, beside them, the columns that conditions and ranking need.

A block holds whole messages: the chunks of one message stand together, by chunk. Every condition
of a query is about messages, so that a mask never splits one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.values import PartitionRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import ByteColumn, FloatRows, IntColumn

    BoolMask = NDArray[np.bool_]
    SmallColumn = NDArray[np.int32]

NORM_SQUARED_TOLERANCE = 0.02
"""How far a squared length may be from 1: half-precision sources pass, mistakes do not."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows of whole messages; arrays of one length, never changed once a reader can see them.

    Attributes:
        seqs, thread_keys, times_ns, revisions, roles, chunks: as in `PartitionRows`, shape (n,);
            `slim` may narrow them.
        chunk_counts: how many chunks the row's message has, shape (n,).
        firsts: True for the first row of each message, shape (n,).
        vectors: shape (n, dimensions), float32, C-contiguous.
        checksums: as in `PartitionRows`, shape (n,).
    """

    seqs: IntColumn
    thread_keys: IntColumn
    times_ns: IntColumn
    revisions: IntColumn
    roles: ByteColumn
    chunks: SmallColumn
    chunk_counts: SmallColumn
    firsts: BoolMask
    vectors: FloatRows
    checksums: IntColumn

    def __len__(self) -> int:
        """How many rows."""
        return len(self.seqs)

    def take(self, keep: BoolMask | IntColumn) -> RowBlock:
        """Copies of the rows that a mask or an index names."""
        return RowBlock(*(getattr(self, name)[keep] for name in COLUMNS))

    def slice(self, start: int, stop: int) -> RowBlock:
        """Rows [start, stop) without copying them."""
        return RowBlock(*(getattr(self, name)[start:stop] for name in COLUMNS))

    def nbytes(self, left_out: Collection[str] = ()) -> int:
        """Bytes of all columns but those left out; a column of one number takes none."""
        columns = (getattr(self, name) for name in COLUMNS if name not in left_out)
        return sum(column.nbytes for column in columns if any(column.strides))

    def slim(self) -> RowBlock:
        """The same rows in less memory, to be kept for long.

        Whole numbers are kept in 32 bits where all fit; the three columns about chunks in one
        number each where no message has more than one.
        """
        columns = {name: getattr(self, name) for name in COLUMNS}
        for name in ("seqs", "thread_keys", "revisions"):
            columns[name] = _narrow(columns[name])
        if len(self) and int(self.chunk_counts.max()) == 1:
            for name in ("chunks", "chunk_counts", "firsts"):
                columns[name] = np.broadcast_to(columns[name][:1].copy(), len(self))
        return RowBlock(**columns)


def as_partition_rows(block: RowBlock) -> PartitionRows:
    """A block as others see it."""
    return PartitionRows(
        seqs=block.seqs.astype(np.int64),
        thread_keys=block.thread_keys.astype(np.int64),
        times_ns=block.times_ns,
        roles=block.roles,
        chunks=block.chunks.astype(np.int64),
        revisions=block.revisions.astype(np.int64),
        vectors=block.vectors,
        checksums=block.checksums,
    )


COLUMNS: tuple[str, ...] = tuple(RowBlock.__slots__)
"""The names of a block's arrays, in the order of its constructor."""


def concatenate(blocks: Sequence[RowBlock]) -> RowBlock:
    """One block of all rows, in the order given."""
    if len(blocks) == 1:
        return blocks[0]
    return RowBlock(
        *(np.concatenate([getattr(block, name) for block in blocks]) for name in COLUMNS)
    )


def empty_block(dimensions: int, rows: int = 0) -> RowBlock:
    """A block of `rows` unset rows, to be written before anyone reads it."""
    return RowBlock(
        seqs=np.empty(rows, np.int64),
        thread_keys=np.empty(rows, np.int64),
        times_ns=np.empty(rows, np.int64),
        revisions=np.empty(rows, np.int64),
        roles=np.empty(rows, np.uint8),
        chunks=np.empty(rows, np.int32),
        chunk_counts=np.empty(rows, np.int32),
        firsts=np.empty(rows, np.bool_),
        vectors=np.empty((rows, dimensions), np.float32),
        checksums=np.empty(rows, np.int64),
    )


def checked_block(
    rows: PartitionRows, dimensions: int, error: type[SemanticRecallError]
) -> RowBlock:
    """Rows as a block, by (seq, chunk).

    Raises:
        SemanticRecallError: of the class `error`: a wrong shape or dtype, a vector that is not
            finite or not of unit length, one chunk given twice.
    """
    count = len(rows.seqs)
    columns = (getattr(rows, name) for name in PartitionRows.__slots__ if name != "vectors")
    if any(column.shape != (count,) for column in columns):
        raise error("vector columns differ in length; read the rows anew")
    vectors = rows.vectors
    if not len(vectors) and not count:
        # A record without vectors cannot tell how many numbers they would have.
        return empty_block(dimensions)
    if vectors.shape != (count, dimensions) or vectors.dtype != np.float32:
        raise error(f"vectors must be float32 of shape ({count}, {dimensions})")
    vectors = np.ascontiguousarray(vectors)
    if not unit_length(vectors):
        raise error("a vector is not finite or not of unit length; embed its text anew")
    seqs = np.ascontiguousarray(rows.seqs, np.int64)
    chunks = np.ascontiguousarray(rows.chunks, np.int32)
    order = order_by_seq(seqs, chunks)
    if order is not None:
        seqs, chunks, vectors = seqs[order], chunks[order], vectors[order]
    firsts = np.ones(count, np.bool_)
    firsts[1:] = seqs[1:] != seqs[:-1]
    if bool(np.any((chunks[1:] == chunks[:-1]) & ~firsts[1:])):
        raise error("a message's chunk was given twice")
    return RowBlock(
        seqs=seqs,
        thread_keys=_placed(np.ascontiguousarray(rows.thread_keys, np.int64), order),
        times_ns=_placed(np.ascontiguousarray(rows.times_ns, np.int64), order),
        revisions=_placed(np.ascontiguousarray(rows.revisions, np.int64), order),
        roles=_placed(np.ascontiguousarray(rows.roles, np.uint8), order),
        chunks=chunks,
        chunk_counts=_chunk_counts(firsts),
        firsts=firsts,
        vectors=vectors,
        checksums=_placed(np.ascontiguousarray(rows.checksums, np.int64), order),
    )


def sealed_block(rows: PartitionRows) -> RowBlock:
    """Rows that were checked when they were sealed, by (seq, chunk), as a block.

    Their vectors are not read: they may be mapped from a file.
    """
    firsts = np.ones(len(rows.seqs), np.bool_)
    firsts[1:] = rows.seqs[1:] != rows.seqs[:-1]
    return RowBlock(
        seqs=rows.seqs,
        thread_keys=rows.thread_keys,
        times_ns=rows.times_ns,
        revisions=rows.revisions,
        roles=rows.roles,
        chunks=rows.chunks.astype(np.int32),
        chunk_counts=_chunk_counts(firsts),
        firsts=firsts,
        vectors=rows.vectors,
        checksums=rows.checksums,
    )


def unit_length(vectors: FloatRows) -> bool:
    """Whether every row is finite and has unit length (NaN fails every comparison)."""
    squares = np.vecdot(vectors, vectors)
    return bool(np.all(np.abs(squares - 1.0) <= NORM_SQUARED_TOLERANCE))


def rows_of_seqs(block: RowBlock, ordered: bool, wanted: IntColumn) -> IntColumn:
    """Positions of all rows of the messages `wanted` (sorted, unique); ascending if `ordered`.

    In an ordered block each wanted seq is looked up, so that the cost is the number wanted and
    not the number of rows, unless more are wanted than there are.
    """
    seqs = block.seqs
    if not ordered or len(wanted) > len(seqs):
        return np.flatnonzero(np.isin(seqs, wanted))
    starts = np.searchsorted(seqs, wanted, side="left")
    lengths = np.searchsorted(seqs, wanted, side="right") - starts
    present = lengths > 0
    starts, lengths = starts[present], lengths[present]
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def order_by_seq(seqs: IntColumn, chunks: SmallColumn) -> IntColumn | None:
    """The order by (seq, chunk), None where it is that already."""
    before, after = seqs[:-1], seqs[1:]
    if bool((after > before).all()):
        return None
    if bool(((after > before) | ((after == before) & (chunks[1:] > chunks[:-1]))).all()):
        return None
    return np.lexsort((chunks, seqs))


def _chunk_counts(firsts: BoolMask) -> SmallColumn:
    starts = np.flatnonzero(firsts)
    lengths = np.append(starts[1:], len(firsts))[: len(starts)] - starts
    return np.repeat(lengths, lengths).astype(np.int32)


def _narrow(column: IntColumn) -> IntColumn | SmallColumn:
    if len(column) and int(column.min()) >= -(2**31) and int(column.max()) < 2**31:
        return column.astype(np.int32)
    return column


def _placed(column: NDArray[Any], order: IntColumn | None) -> NDArray[Any]:
    return column if order is None else column[order]
