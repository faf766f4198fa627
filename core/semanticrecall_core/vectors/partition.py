"""One resource's rows: sealed parts and a tail, changed by one writer, read by anyone.

Everything a reader needs is one immutable `View`; the writer replaces it with one assignment. So
a search sees a change whole or not at all, and never shares a FAISS index with a writer (adding
during a search crashes the process).

Sealed parts are merged so that their number grows with the logarithm of the rows up to
`segment_rows_max`, and linearly beyond; parts of which too many rows are dead are written anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .codes import Coder
from .rows import RowBlock, concatenate, empty_block
from .segment import Part, Tail, merged, sealed

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn

PARTITION_OVERHEAD_BYTES = 8192
"""Python objects of a partition and its parts, rounded up."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes that decide speed and memory, never answers. Measured: docs/decisions/0003.

    Attributes:
        tail_rows_max: rows appended before they are sealed.
        coded_rows_min: from how many rows a sealed part has codes; below, float32 is as quick.
        segment_rows_max: largest part made by merging or loading; bounds the writer's pauses.
        dead_share_max: share of dead rows above which a part is written anew.
        margin_rows: candidates beyond twice top_k that are scored exactly at first.
        gather_rows_max: with at most so many rows allowed, those alone are read.
        parallel_rows_min: from how many rows a search is shared out; docs/decisions/0012.
    """

    tail_rows_max: int = 512
    coded_rows_min: int = 512
    segment_rows_max: int = 16_384
    dead_share_max: float = 0.3
    margin_rows: int = 24
    gather_rows_max: int = 512
    parallel_rows_min: int = 32_768


@dataclass(frozen=True, slots=True)
class View:
    """What a search reads.

    Attributes:
        parts: none empty, none with all rows dead; each message is alive in one part at most.
        searchable: messages alive.
        nbytes: memory of the partition.
    """

    parts: tuple[Part, ...]
    searchable: int
    nbytes: int


class Partition:
    """The rows of one resource. `put` and `remove` are for one thread at a time."""

    __slots__ = ("_coder", "_sealed", "_tail", "_tail_part", "_tuning", "view")

    def __init__(self, coder: Coder, tuning: Tuning, block: RowBlock) -> None:
        """Seal what was read from the record (by (seq, chunk))."""
        self._coder = coder
        self._tuning = tuning
        self._sealed: list[Part] = self._segments(block)
        self._tail = Tail(coder.dimensions, tuning.tail_rows_max)
        self._tail_part: Part | None = None
        self.view = View((), 0, 0)
        self._publish()

    def put(self, block: RowBlock) -> None:
        """These rows (by (seq, chunk)) are the only ones of their messages now."""
        if not len(block):
            return
        self._kill(block.seqs[block.firsts])
        if len(block) > self._tail.room():
            self._seal_tail()
        if len(block) > self._tail.room():
            self._sealed += self._segments(block)
        else:
            self._tail_part = self._tail.append(self._tail_part, block)
        self._tidy()
        self._publish()

    def remove(self, seqs: IntColumn) -> None:
        """These messages (sorted, unique) are gone."""
        if not len(seqs):
            return
        self._kill(seqs)
        self._tidy()
        self._publish()

    def rows(self) -> RowBlock:
        """Everything alive, by (seq, chunk)."""
        parts = self.view.parts
        if not parts:
            return empty_block(self._coder.dimensions)
        block = concatenate([part.live_block() for part in parts])
        return block.take(np.lexsort((block.chunks, block.seqs)))

    def _kill(self, seqs: IntColumn) -> None:
        self._sealed = [part.without(seqs) for part in self._sealed]
        if self._tail_part is not None:
            self._tail_part = self._tail_part.without(seqs)

    def _seal_tail(self) -> None:
        if self._tail_part is not None and self._tail_part.rows:
            self._sealed.append(merged([self._tail_part], self._coder, self._tuning.coded_rows_min))
        self._tail = Tail(self._coder.dimensions, self._tuning.tail_rows_max)
        self._tail_part = None

    def _segments(self, block: RowBlock) -> list[Part]:
        """Sealed parts of about `segment_rows_max` rows, no message split."""
        parts: list[Part] = []
        starts = np.flatnonzero(block.firsts)
        start = 0
        while start < len(block):
            stop = start + self._tuning.segment_rows_max
            if stop < len(block):
                border = int(starts[np.searchsorted(starts, stop, side="right") - 1])
                after = int(np.searchsorted(starts, start, side="right"))
                following = int(starts[after]) if after < len(starts) else len(block)
                stop = max(border, following)
            stop = min(stop, len(block))
            parts.append(sealed(block.slice(start, stop), self._coder, self._tuning.coded_rows_min))
            start = stop
        return parts

    def _tidy(self) -> None:
        """Drop, compact and merge parts as their sizes ask for it."""
        if self._tail_part is not None and not self._tail_part.rows:
            self._seal_tail()
        kept: list[Part] = []
        for part in self._sealed:
            dead = len(part.block) - part.rows
            if not part.rows:
                continue
            if dead > self._tuning.dead_share_max * len(part.block):
                part = self._merged([part])
            kept.append(part)
        kept.sort(key=lambda part: part.rows)
        self._sealed = kept
        count, total = 1, kept[0].rows if kept else 0
        while count < len(kept) and (
            kept[count].rows <= 2 * total
            and total + kept[count].rows <= self._tuning.segment_rows_max
        ):
            total += kept[count].rows
            count += 1
        if count > 1:
            self._sealed = [*kept[count:], self._merged(kept[:count])]

    def _merged(self, parts: list[Part]) -> Part:
        return merged(parts, self._coder, self._tuning.coded_rows_min)

    def _publish(self) -> None:
        parts = tuple(self._sealed)
        if self._tail_part is not None:
            parts += (self._tail_part,)
        nbytes = PARTITION_OVERHEAD_BYTES + self._tail.nbytes_unused()
        self.view = View(
            parts,
            sum(part.messages for part in parts),
            nbytes + sum(part.nbytes() for part in parts),
        )
