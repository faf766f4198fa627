"""One resource's words: sealed parts and a tail, changed by one writer, read by anyone.

Everything a reader needs is one immutable `View`; the writer replaces it with one assignment. So a
search sees a change whole or not at all, without a lock that a long search would hold against the
record's writer. Messages that come after all others of their thread, as nearly all do, cost the
same however many there are; the others cost one pass over the places of all messages.

Sealed parts are merged so that their number grows with the logarithm of the messages up to
`segment_rows_max`, and linearly beyond; parts of which too much is dead are written anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .analysis import Language
from .blocks import (
    DTYPES,
    ROWS_MAX,
    Authors,
    MessageColumns,
    TextBlock,
    in_order,
    some_of,
    text_block,
)
from .segment import Part, Tail, merged, sealed
from .thread_order import DEAD_PLACE, Placed, ThreadOrder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semanticrecall_core.types.lexical import LexicalRows
    from semanticrecall_core.types.values import IntColumn

    from .thread_order import PlaceColumn

PARTITION_OVERHEAD_BYTES = 8192
"""Python objects of a partition, rounded up."""
_FRAME_BYTES_PER_PLACE = 1 + 1 + 4 + 4 + 4
"""What `Frame` keeps for each place, the norms included."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes that decide speed and memory, never answers. Measured: docs/decisions/0019.

    Attributes:
        tail_rows_max: messages added before they are sealed.
        tail_postings_max: the same for their terms; a larger message is sealed at once.
        segment_rows_max: largest part made by merging; bounds the writer's pauses.
        loaded_rows_max: largest part made by loading; at most ROWS_MAX.
        dead_share_max: share of dead messages above which a part is written anew.
        authors_max: authors known by name; messages of further ones count as without author.
        sparse_places_min: from how many places on rare terms are counted one by one.
        numbers_at_once: so many counts of several words are computed together.
        sparse_share: a term is rare if it has fewer postings than places by this factor.
    """

    tail_rows_max: int = 256
    tail_postings_max: int = 16_384
    segment_rows_max: int = 16_384
    loaded_rows_max: int = ROWS_MAX
    dead_share_max: float = 0.3
    authors_max: int = 4096
    sparse_places_min: int = 16_384
    sparse_share: int = 40
    numbers_at_once: int = 65_536


class Frame:
    """What all searches of one view need by place; made by the first of them.

    Attributes:
        row_at: shape (places,), int32. The view's row at each place, -1 where nobody is.
        here: shape (places,), bool. Whether somebody is there.
        asks: shape (places,), bool. Whether the message there asks a question.
        lengths: shape (places,), float32. Words of the message there, 0 where nobody is.
        firsts: the view's row that each part starts with, and the number of all.
        mean_length: of all messages; 1 if they have no words.
        norms: what `scoring` makes of the lengths, by its constants.
    """

    __slots__ = ("asks", "firsts", "here", "lengths", "mean_length", "norms", "row_at")

    def __init__(self, parts: tuple[Part, ...], end: int) -> None:
        """Where everyone of these parts stands."""
        sizes = [len(part.columns) for part in parts]
        self.firsts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.row_at = np.full(end, -1, np.int32)
        self.asks = np.zeros(end, np.bool_)
        self.lengths = np.zeros(end, np.float32)
        for first, part in zip(self.firsts.tolist(), parts, strict=False):
            self.row_at[part.places] = np.arange(first, first + len(part.places), dtype=np.int32)
            self.asks[part.places] = part.columns.asks
            self.lengths[part.places] = part.columns.lengths
        self.row_at[DEAD_PLACE] = -1
        self.asks[DEAD_PLACE] = False
        self.lengths[DEAD_PLACE] = 0
        self.here = self.row_at >= 0
        total = float(np.add.reduce(self.lengths, dtype=np.float64))
        self.mean_length = total / int(np.count_nonzero(self.here)) if total else 1.0
        self.norms: dict[object, NDArray[np.float32]] = {}


@dataclass(frozen=True, slots=True)
class View:
    """What a search reads.

    Attributes:
        parts: none empty, none with all messages dead; each message is alive in one at most.
        end: number of places.
        searchable: messages alive.
        authors: for each term of a name the numbers of the authors that have it.
        languages: what the messages' words were stemmed in.
        has_capital_nouns: most of the messages are German.
        nbytes: memory of the partition.
    """

    parts: tuple[Part, ...]
    end: int
    searchable: int
    authors: Mapping[int, tuple[int, ...]]
    languages: frozenset[int]
    has_capital_nouns: bool
    nbytes: int
    _frames: list[Frame] = field(default_factory=list, compare=False, repr=False)

    def frame(self) -> Frame:
        """What stands where. Two first searches at once make it twice, to the same values."""
        if not self._frames:
            self._frames.append(Frame(self.parts, self.end))
        return self._frames[0]

    def columns_at(self, places: NDArray[np.integer], *names: str) -> list[NDArray[Any]]:
        """Columns (of `MessageColumns`) of the living messages at these places, in their order."""
        frame = self.frame()
        rows = frame.row_at[places]
        if len(self.parts) == 1:
            return [getattr(self.parts[0].columns, name)[rows] for name in names]
        out = [np.zeros(len(rows), DTYPES[name]) for name in names]
        order = rows.argsort()
        ordered = rows[order]
        cuts = ordered.searchsorted(frame.firsts).tolist()
        for i, part in enumerate(self.parts):
            mine = order[cuts[i] : cuts[i + 1]]
            if len(mine):
                local = ordered[cuts[i] : cuts[i + 1]] - frame.firsts[i]
                for column, name in zip(out, names, strict=True):
                    column[mine] = getattr(part.columns, name)[local]
        return out

    def seqs_and_revisions(self) -> tuple[IntColumn, IntColumn]:
        """Of everything alive, by seq."""
        parts = self.parts
        live = [part.places != DEAD_PLACE for part in parts]
        seqs = [part.columns.seqs[keep] for part, keep in zip(parts, live, strict=True)]
        revisions = [part.columns.revisions[keep] for part, keep in zip(parts, live, strict=True)]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        all_seqs = np.concatenate(seqs).astype(np.int64)
        order = np.argsort(all_seqs)
        return all_seqs[order], np.concatenate(revisions).astype(np.int64)[order]


class Partition:
    """The words of one resource. `put` and `remove` are for one thread at a time."""

    __slots__ = ("_authors", "_languages", "_languages_seen", "_last_seq", "_order", "_sealed",
                 "_tail", "_tail_part", "_tuning", "view")  # fmt: skip

    def __init__(self, tuning: Tuning, rows: LexicalRows) -> None:
        """Seal what was read from the record."""
        self._tuning = tuning
        self._authors = Authors(tuning.authors_max)
        self._languages: dict[int, int] = {}
        self._languages_seen: frozenset[int] = frozenset()
        self._order = ThreadOrder()
        self._tail = Tail(tuning.tail_rows_max, tuning.tail_postings_max)
        self._tail_part: Part | None = None
        rows = in_order(rows)
        places = self._order.build(rows.thread_keys, rows.times_ns, rows.seqs)
        self._sealed: list[Part] = []
        size = tuning.loaded_rows_max
        for start in range(0, len(rows.seqs), size):  # one part's postings unsorted at a time
            block = text_block(some_of(rows, start, start + size), self._authors)
            self._sealed.append(sealed(block, places[start : start + size].copy()))
            self._count_languages(block.columns, 1)
        self._last_seq = int(rows.seqs[-1]) if len(rows.seqs) else 0
        self.view = View((), self._order.end, 0, {}, frozenset(), False, 0)
        self._publish()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes now, or will after the next search."""
        return self.view.nbytes

    def put(self, rows: LexicalRows) -> None:
        """These messages are as given now."""
        if not len(rows.seqs):
            return
        block = text_block(in_order(rows), self._authors)
        columns = block.columns
        replaces = int(columns.seqs[0]) <= self._last_seq
        if replaces:
            places = self._replaced(columns)
        else:
            added = (columns.thread_keys, columns.times_ns, columns.seqs)
            places = self._rearrange(_NOBODY, added).places
        self._last_seq = max(self._last_seq, int(columns.seqs[-1]))
        self._count_languages(columns, 1)
        parts = len(self._sealed)
        self._append(block, places)
        if replaces or len(self._sealed) != parts or self._order.is_wasteful():
            self._tidy()
        self._publish()

    def remove(self, seqs: IntColumn) -> None:
        """These messages (sorted, unique) are gone."""
        gone = [self._kill(i, seqs) for i in range(len(self._parts()))]
        keys = np.concatenate([_NOBODY[0], *(columns.thread_keys for columns, _ in gone)])
        places = np.concatenate([_NOBODY[1], *(at for _, at in gone)])
        if not len(keys):
            return
        none = np.empty(0, np.int64)
        self._rearrange((keys, places), (none, none, none))
        self._tidy()
        self._publish()

    def _parts(self) -> list[Part]:
        return self._sealed if self._tail_part is None else [*self._sealed, self._tail_part]

    def _set_part(self, i: int, part: Part) -> None:
        if i < len(self._sealed):
            self._sealed[i] = part
        else:
            self._tail_part = part

    def _kill(self, i: int, seqs: IntColumn) -> tuple[MessageColumns, PlaceColumn]:
        """The columns and places that these messages of part i had until now, by seq."""
        part = self._parts()[i]
        rows = part.rows_of(seqs)
        columns, places = part.columns.take(rows), part.places[rows]
        if len(rows):
            self._set_part(i, part.without(rows))
            self._authors.forget(columns.authors)
            self._count_languages(columns, -1)
        return columns, places

    def _replaced(self, columns: MessageColumns) -> PlaceColumn:
        """The places of messages of which some are known already: these are taken out."""
        places = np.full(len(columns), DEAD_PLACE, np.int64)
        gone = self._replace(columns, places)
        new = places == DEAD_PLACE
        added = (columns.thread_keys[new], columns.times_ns[new], columns.seqs[new])
        placed = self._rearrange(gone, added)
        if placed.moves is not None:
            places = placed.moves[places]
        places[new] = placed.places
        return places

    def _replace(
        self, columns: MessageColumns, places: PlaceColumn
    ) -> tuple[IntColumn, PlaceColumn]:
        """Take out what is replaced; who stays in its place has it in `places` afterwards.

        Returns thread keys and places of the others.
        """
        keys, at = [_NOBODY[0]], [_NOBODY[1]]
        for i in range(len(self._parts())):
            old, old_places = self._kill(i, columns.seqs)
            if not len(old):
                continue
            new = np.searchsorted(columns.seqs, old.seqs)
            same = (columns.thread_keys[new] == old.thread_keys) & (
                columns.times_ns[new] == old.times_ns
            )
            places[new[same]] = old_places[same]
            keys.append(old.thread_keys[~same])
            at.append(old_places[~same])
        return np.concatenate(keys), np.concatenate(at)

    def _rearrange(
        self, gone: tuple[IntColumn, PlaceColumn], added: tuple[IntColumn, IntColumn, IntColumn]
    ) -> Placed:
        placed = self._order.change(gone, added, self._times_at)
        if placed.moves is not None:
            self._move(placed.moves)
        return placed

    def _times_at(self, places: PlaceColumn) -> tuple[IntColumn, IntColumn]:
        # The view that was published before this change.
        times_ns, seqs = self.view.columns_at(places, "times_ns", "seqs")
        return times_ns, seqs

    def _move(self, moves: PlaceColumn) -> None:
        self._sealed = [part.moved(moves) for part in self._sealed]
        if self._tail_part is not None:
            self._tail_part = self._tail_part.moved(moves)

    def _append(self, block: TextBlock, places: PlaceColumn) -> None:
        if not self._tail.has_room(self._tail_part, block):
            self._seal_tail()
        if self._tail.has_room(self._tail_part, block):
            self._tail_part = self._tail.append(self._tail_part, block, places)
        else:
            self._sealed += self._segments(block, places)

    def _seal_tail(self) -> None:
        if self._tail_part is not None and self._tail_part.alive:
            self._sealed.append(merged([self._tail_part]))
        self._tail = Tail(self._tuning.tail_rows_max, self._tuning.tail_postings_max)
        self._tail_part = None

    def _segments(self, block: TextBlock, places: PlaceColumn) -> list[Part]:
        size = self._tuning.loaded_rows_max
        cuts = [(start, min(start + size, len(block))) for start in range(0, len(block), size)]
        return [sealed(block.slice(*cut), places[slice(*cut)].copy()) for cut in cuts]

    def _tidy(self) -> None:
        """Drop, compact and merge parts as their sizes ask for it."""
        if self._tail_part is not None and not self._tail_part.alive:
            self._seal_tail()
        kept: list[Part] = []
        for part in self._sealed:
            size = len(part.columns)
            if size - part.alive > self._tuning.dead_share_max * size:
                if not part.alive:
                    continue
                part = merged([part])
            kept.append(part)
        kept.sort(key=lambda part: part.alive)
        self._sealed = kept
        count, total = 1, kept[0].alive if kept else 0
        while count < len(kept) and (
            kept[count].alive <= 2 * total
            and total + kept[count].alive <= self._tuning.segment_rows_max
        ):
            total += kept[count].alive
            count += 1
        if count > 1:
            self._sealed = [*kept[count:], merged(kept[:count])]
        if self._order.is_wasteful():
            self._move(self._order.compacted())

    def _count_languages(self, columns: MessageColumns, sign: int) -> None:
        counts = self._languages
        for code, count in enumerate(np.bincount(columns.languages).tolist()):
            if count:
                counts[code] = counts.get(code, 0) + sign * count
                if not counts[code]:
                    del counts[code]
        if counts.keys() != self._languages_seen:
            self._languages_seen = frozenset(counts)

    def _publish(self) -> None:
        parts = tuple(self._parts())
        order = self._order
        nbytes = PARTITION_OVERHEAD_BYTES + order.nbytes() + self._authors.nbytes()
        nbytes += self._tail.nbytes + _FRAME_BYTES_PER_PLACE * order.end
        self.view = View(
            parts,
            order.end,
            sum(part.alive for part in parts),
            self._authors.by_term,
            self._languages_seen,
            2 * self._languages.get(Language.GERMAN, 0) > sum(self._languages.values()),
            nbytes + sum(part.nbytes for part in parts),
        )


_NOBODY: tuple[IntColumn, PlaceColumn] = (np.empty(0, np.int64), np.empty(0, np.int64))
