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


MAPPED_COLUMNS = ("vectors", "times_ns", "checksums", "roles")
"""What an image of a mapped snapshot leaves in its file."""


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
        mapped: MAPPED_COLUMNS and the codes' errors are a file's: nothing may copy them into
            memory needlessly.
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
        """Bytes held in memory: columns, codes and masks, without what is mapped."""
        masks = 0 if self.alive is None else self.alive.nbytes + len(self.alive) // 8
        coded = 0 if self.coded is None else self.coded.nbytes()
        if self.mapped:
            errors = 0 if self.coded is None else self.coded.errors.nbytes
            return self.block.nbytes(MAPPED_COLUMNS) + masks + coded - errors
        return self.block.nbytes() + masks + coded


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


ROOM_MIN = 4


class Tail:
    """Where new rows go: preallocated, append-only, owned by one writer.

    Rows below the count are never written again, so that a part made of them stays valid while
    the writer appends behind it. Full arrays are replaced by larger ones, never resized.
    """

    __slots__ = ("_arrays", "_count", "_dimensions", "_rows_max")

    def __init__(self, dimensions: int, rows_max: int) -> None:
        """An empty tail for at most `rows_max` rows."""
        self._dimensions = dimensions
        self._rows_max = rows_max
        self._arrays: RowBlock | None = None  # most partitions of many are read and not added to
        self._count = 0

    def room(self) -> int:
        """How many more rows fit."""
        return self._rows_max - self._count

    def nbytes_unused(self) -> int:
        """Bytes allocated beyond the rows that are there."""
        if self._arrays is None:
            return 0
        total = self._arrays.nbytes()
        return total - total * self._count // len(self._arrays)

    def append(self, part: Part | None, block: RowBlock) -> Part:
        """A part of the rows so far and those of `block` (at most `room()`).

        `part` is what the last append gave, possibly with rows dead since; None at first.
        """
        start, stop = self._count, self._count + len(block)
        arrays = self._with_room(stop)
        target = arrays.slice(start, stop)
        for name in COLUMNS:
            getattr(target, name)[...] = getattr(block, name)
        self._count = stop
        alive, rows, messages = None, 0, 0
        if part is not None:
            rows, messages = part.rows, part.messages
            if part.alive is not None:
                alive = np.concatenate((part.alive, np.ones(len(block), np.bool_)))
        return Part(
            block=arrays.slice(0, stop),
            ordered=False,
            coded=None,
            alive=alive,
            alive_bits=None,
            rows=rows + len(block),
            messages=messages + int(np.count_nonzero(block.firsts)),
        )

    def _with_room(self, rows: int) -> RowBlock:
        """The arrays, larger ones where they do not hold so many rows."""
        arrays = self._arrays
        if arrays is not None and rows <= len(arrays):
            return arrays
        room = rows if arrays is None else max(rows, 2 * len(arrays))
        larger = empty_block(self._dimensions, min(self._rows_max, max(room, ROOM_MIN)))
        if arrays is not None:
            for name in COLUMNS:
                getattr(larger, name)[: self._count] = getattr(arrays, name)[: self._count]
        self._arrays = larger
        return larger
