"""Parts of a partition as a reader sees them: rows that never change, and which are alive.

A part is sealed (ordered by seq; coded when it is large) or a snapshot of the tail (in the order
of arrival). Removing rows makes a new part that shares the rows and has an alive mask of its own,
so that whoever searches the old one is not disturbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .codes import CodedRows, Coder
from .rows import COLUMNS, RowBlock, concatenate, empty_block, order_by_seq, rows_of_seqs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import IntColumn

    from .rows import BoolMask


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a partition; immutable.

    Attributes:
        block: the rows, dead ones too.
        ordered: rows are by (seq, chunk).
        coded: codes of all rows; None where a scan of the float32 rows is quicker.
        alive: which rows count, shape (n,); None is all.
        alive_bits: `alive` for FAISS; None where `coded` or `alive` is.
        rows, messages: how many are alive.
        mapped: the vectors are a file's, not in memory: nothing may copy them into it needlessly.
    """

    block: RowBlock
    ordered: bool
    coded: CodedRows | None
    alive: BoolMask | None
    alive_bits: NDArray[np.uint8] | None
    rows: int
    messages: int
    mapped: bool = False

    @classmethod
    def whole(cls, block: RowBlock, coded: CodedRows | None) -> Part:
        """A sealed part of which everything is alive."""
        messages = int(np.count_nonzero(block.firsts))
        return cls(block.slim(), True, coded, None, None, len(block), messages)

    def without(self, seqs: IntColumn) -> Part:
        """This part with the messages `seqs` (sorted, unique) dead; itself if it has none."""
        block = self.block
        # New messages have the largest seqs: most puts touch nothing that is there.
        last = block.seqs[-1] if self.ordered else block.seqs.max()
        if seqs[0] > last:
            return self
        rows = rows_of_seqs(block, self.ordered, seqs)
        if self.alive is not None:
            rows = rows[self.alive[rows]]
        if not len(rows):
            return self
        alive = np.ones(len(block), np.bool_) if self.alive is None else self.alive.copy()
        alive[rows] = False
        return replace(
            self,
            alive=alive,
            alive_bits=packed(alive) if self.coded is not None else None,
            rows=self.rows - len(rows),
            messages=self.messages - int(np.count_nonzero(block.firsts[rows])),
        )

    def live_block(self) -> RowBlock:
        """The rows that are alive, in this part's order."""
        return self.block if self.alive is None else self.block.take(self.alive)

    def nbytes(self) -> int:
        """Bytes held in memory: columns, codes, masks, and vectors that are not mapped."""
        masks = 0 if self.alive is None else self.alive.nbytes + len(self.alive) // 8
        vectors = 0 if self.mapped else self.block.vectors.nbytes
        coded = 0 if self.coded is None else self.coded.nbytes()
        return self.block.nbytes() + masks + vectors + coded


def packed(mask: BoolMask) -> NDArray[np.uint8]:
    """One bit a row, least significant first, as FAISS's bitmap selector reads them."""
    return np.packbits(mask, bitorder="little")


def sealed(block: RowBlock, coder: Coder, coded_rows_min: int) -> Part:
    """A sealed part of a block that is by (seq, chunk)."""
    if len(block) < coded_rows_min:
        return Part.whole(block, None)
    return Part.whole(block, CodedRows(coder, *coder.encode(block.vectors)))


def live(part: Part, alive: BoolMask) -> Part:
    """A part of which everything is alive, with only the rows of the mask alive."""
    if bool(alive.all()):
        return part
    return replace(
        part,
        alive=alive,
        alive_bits=packed(alive) if part.coded is not None else None,
        rows=int(np.count_nonzero(alive)),
        messages=int(np.count_nonzero(part.block.firsts & alive)),
    )


def merged(parts: Sequence[Part], coder: Coder, coded_rows_min: int) -> Part:
    """One sealed part of everything alive in `parts`; codes that are there are not made anew."""
    block = concatenate([part.live_block() for part in parts])
    order = order_by_seq(block.seqs, block.chunks)
    if order is not None:
        block = block.take(order)
    if len(block) < coded_rows_min:
        return Part.whole(block, None)
    pairs = [live_codes(part, coder) for part in parts]
    codes = np.concatenate([pair[0] for pair in pairs])
    errors = np.concatenate([pair[1] for pair in pairs])
    if order is not None:
        codes, errors = codes[order], errors[order]
    return Part.whole(block, CodedRows(coder, codes, errors))


def live_codes(part: Part, coder: Coder) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Codes and errors of the rows alive, in the part's order; made where it has none."""
    if part.coded is None:
        return coder.encode(part.live_block().vectors)
    errors = part.coded.errors
    return part.coded.codes(part.alive), errors if part.alive is None else errors[part.alive]


class Tail:
    """Where new rows go: preallocated, append-only, owned by one writer.

    Rows below the count are never written again, so that a part made of them stays valid while
    the writer appends behind it. Full arrays are replaced by larger ones, never resized.
    """

    __slots__ = ("_arrays", "_count", "_rows_max")

    def __init__(self, dimensions: int, rows_max: int) -> None:
        """An empty tail for at most `rows_max` rows."""
        self._rows_max = rows_max
        self._arrays = empty_block(dimensions)
        self._count = 0

    def room(self) -> int:
        """How many more rows fit."""
        return self._rows_max - self._count

    def nbytes_unused(self) -> int:
        """Bytes allocated beyond the rows that are there."""
        total = self._arrays.nbytes() + self._arrays.vectors.nbytes
        return total - total * self._count // max(1, len(self._arrays))

    def append(self, part: Part | None, block: RowBlock) -> Part:
        """A part of the rows so far and those of `block` (at most `room()`).

        `part` is what the last append gave, possibly with rows dead since; None at first.
        """
        start, stop = self._count, self._count + len(block)
        if stop > len(self._arrays):
            self._grow(stop)
        target = self._arrays.slice(start, stop)
        for name in COLUMNS:
            getattr(target, name)[...] = getattr(block, name)
        self._count = stop
        alive, rows, messages = None, 0, 0
        if part is not None:
            rows, messages = part.rows, part.messages
            if part.alive is not None:
                alive = np.concatenate((part.alive, np.ones(len(block), np.bool_)))
        return Part(
            block=self._arrays.slice(0, stop),
            ordered=False,
            coded=None,
            alive=alive,
            alive_bits=None,
            rows=rows + len(block),
            messages=messages + int(np.count_nonzero(block.firsts)),
        )

    def _grow(self, rows: int) -> None:
        dimensions = self._arrays.vectors.shape[1]
        larger = empty_block(dimensions, min(self._rows_max, max(rows, 2 * len(self._arrays))))
        for name in COLUMNS:
            getattr(larger, name)[: self._count] = getattr(self._arrays, name)[: self._count]
        self._arrays = larger
