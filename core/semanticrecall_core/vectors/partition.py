"""One resource's rows: sealed parts and a tail, changed by one writer, read by anyone.

Everything a reader needs is one immutable `View`; the writer replaces it with one assignment. So
a search sees a change whole or not at all, and never shares a FAISS index with a writer (adding
during a search crashes the process).

Sealed parts are merged so that their number grows with the logarithm of the rows up to
`segment_rows_max`, and linearly beyond; parts of which too many rows are dead are written anew.
Neither is done to parts whose vectors are mapped from a snapshot, until nearly all of one is dead:
it would bring their vectors into memory, and the next snapshot has them in one part anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .codes import CodedRows, Coder
from .loaded import CurrentImage
from .mapped_pages import MappedPages
from .moments import Moments
from .rows import RowBlock, concatenate, empty_block, order_by_seq, sealed_block
from .segment import Part, Tail, live, live_codes, merged, sealed

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn

    from .codes import CodeRows, ErrorColumn

PARTITION_OVERHEAD_BYTES = 4096
"""Python objects of a partition and its parts, rounded up."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes that decide speed and memory, never answers. Measured: docs/decisions/0003.

    Attributes:
        tail_rows_max: rows appended before they are sealed.
        coded_rows_min: from how many rows a sealed part has codes; below, float32 is as quick.
        segment_rows_max: largest part made by merging or loading; bounds the writer's pauses.
        dead_share_max: share of dead rows above which a part is written anew.
        mapped_dead_share_max: the same for a part whose vectors are mapped.
        margin_rows: candidates beyond twice top_k that are scored exactly at first.
        gather_rows_max: with at most so many rows allowed, those alone are read.
        parallel_rows_min: from how many rows a search is shared out; docs/decisions/0012.
    """

    tail_rows_max: int = 512
    coded_rows_min: int = 512
    segment_rows_max: int = 16_384
    dead_share_max: float = 0.3
    mapped_dead_share_max: float = 0.9
    margin_rows: int = 24
    gather_rows_max: int = 512
    parallel_rows_min: int = 65_536


@dataclass(frozen=True, slots=True)
class View:
    """What a search reads.

    Attributes:
        parts: none empty, none with all rows dead; each message is alive in one part at most.
        searchable: messages alive.
        nbytes: memory of the rows and what belongs to them.
        pages: of the mapped parts; to be released after a search.
    """

    parts: tuple[Part, ...]
    searchable: int
    nbytes: int
    pages: MappedPages | None = None


class Partition:
    """The rows of one resource. `put` and `remove` are for one thread at a time.

    Attributes:
        view: what is there now.
        moments: of any of its views.
    """

    __slots__ = (
        "_coder",
        "_pages",
        "_sealed",
        "_tail",
        "_tail_part",
        "_tuning",
        "moments",
        "view",
    )

    def __init__(
        self,
        coder: Coder,
        tuning: Tuning,
        block: RowBlock,
        imaged: CurrentImage | None = None,
    ) -> None:
        """Seal what was read from the record (by (seq, chunk)) and from an image of it."""
        self._coder = coder
        self._tuning = tuning
        self._sealed: list[Part] = self._segments(block)
        self._pages: MappedPages | None = None
        if imaged is not None:
            self._sealed += self._imaged(imaged)
        self._tail = Tail(coder.dimensions, tuning.tail_rows_max)
        self._tail_part: Part | None = None
        self.moments = Moments(coder.dimensions)
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

    @property
    def nbytes(self) -> int:
        """Memory of all of it now."""
        return self.view.nbytes + self.moments.nbytes

    def rows(self) -> RowBlock:
        """Everything alive, by (seq, chunk)."""
        parts = self.view.parts
        if not parts:
            return empty_block(self._coder.dimensions)
        block = concatenate([part.live_block() for part in parts])
        return block.take(np.lexsort((block.chunks, block.seqs)))

    def coded_rows(self) -> tuple[RowBlock, tuple[CodeRows, ErrorColumn]]:
        """Everything alive, by (seq, chunk), with its codes and their errors."""
        parts = self.view.parts
        if not parts:
            empty = empty_block(self._coder.dimensions)
            return empty, self._coder.encode(empty.vectors)
        block = concatenate([part.live_block() for part in parts])
        pairs = [live_codes(part, self._coder) for part in parts]
        codes = np.concatenate([pair[0] for pair in pairs])
        errors = np.concatenate([pair[1] for pair in pairs])
        order = order_by_seq(block.seqs, block.chunks)
        if order is None:
            return block, (codes, errors)
        return block.take(order), (codes[order], errors[order])

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
        """Sealed parts of about `segment_rows_max` rows."""
        minimum = self._tuning.coded_rows_min
        return [sealed(block.slice(*cut), self._coder, minimum) for cut in self._cuts(block)]

    def _imaged(self, imaged: CurrentImage) -> list[Part]:
        """Sealed parts of an image; its codes are taken as they are.

        Mapped rows are coded however few they are, so that a search reads few of their vectors.
        """
        image, mapped = imaged.image, imaged.mapped
        if mapped:
            self._pages = MappedPages.of((image.rows.times_ns, image.rows.vectors))
        block = sealed_block(image.rows)
        parts: list[Part] = []
        for start, stop in self._cuts(block):
            current = imaged.current[start:stop]
            if not bool(current.any()):
                continue
            coded = None
            if mapped or stop - start >= self._tuning.coded_rows_min:
                coded = CodedRows(self._coder, image.codes[start:stop], image.errors[start:stop])
            part = replace(Part.whole(block.slice(start, stop), coded), mapped=mapped)
            parts.append(live(part, current))
        return parts

    def _cuts(self, block: RowBlock) -> list[tuple[int, int]]:
        """Where to part rows by (seq, chunk), no message split."""
        cuts: list[tuple[int, int]] = []
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
            cuts.append((start, stop))
            start = stop
        return cuts

    def _tidy(self) -> None:
        """Drop, compact and merge parts as their sizes ask for it."""
        if self._tail_part is not None and not self._tail_part.rows:
            self._seal_tail()
        mapped: list[Part] = []
        kept: list[Part] = []
        for part in self._sealed:
            if not part.rows:
                continue
            if self._mostly_dead(part):
                part = self._merged([part])
            (mapped if part.mapped else kept).append(part)
        kept.sort(key=lambda part: part.rows)
        self._sealed = mapped + kept
        count, total = 1, kept[0].rows if kept else 0
        while count < len(kept) and (
            kept[count].rows <= 2 * total
            and total + kept[count].rows <= self._tuning.segment_rows_max
        ):
            total += kept[count].rows
            count += 1
        if count > 1:
            self._sealed = [*mapped, *kept[count:], self._merged(kept[:count])]

    def _mostly_dead(self, part: Part) -> bool:
        tuning = self._tuning
        share = tuning.mapped_dead_share_max if part.mapped else tuning.dead_share_max
        return len(part.block) - part.rows > share * len(part.block)

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
            self._pages if any(part.mapped for part in parts) else None,
        )
