"""Parts of a partition: sealed ones with their postings by term, and the tail that grows.

A message is alive where its place is not DEAD_PLACE. Places belong to the partition
(`thread_order`); everything else of a part never changes once a reader can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .blocks import COLUMNS, DTYPES, MessageColumns, TextBlock, concatenate
from .thread_order import DEAD_PLACE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import ByteColumn, IntColumn

    from .blocks import RowColumn, TermColumn
    from .thread_order import PlaceColumn

_PART_BYTES = 1500
"""Python objects of a part, rounded up."""


class Found(NamedTuple):
    """Postings of some terms in one part: `rows[starts[i]:stops[i]]` have the i-th of them.

    They have it `counts[starts[i]:stops[i]]` times; a row once. Nobody: starts[i] is stops[i].
    """

    rows: RowColumn
    counts: ByteColumn
    starts: list[int]
    stops: list[int]


@dataclass(frozen=True, slots=True)
class Postings:
    """Which rows have a term: `rows[offsets[i]:offsets[i + 1]]` have `terms[i]`.

    Attributes:
        terms: shape (t,), uint32, ascending.
        offsets: shape (t + 1,), int32.
        rows, counts: shape (p,), uint16 and uint8; a row once in a term, in any order.
    """

    terms: TermColumn
    offsets: NDArray[np.int32]
    rows: RowColumn
    counts: ByteColumn

    @classmethod
    def of(
        cls, terms: TermColumn, rows: NDArray[np.int64] | RowColumn, counts: ByteColumn
    ) -> Postings:
        """Postings in any order; quick where they are runs that are ascending by term."""
        order = np.argsort(terms, kind="stable")
        ordered = terms[order]
        firsts = np.empty(len(ordered), np.bool_)
        firsts[:1] = True
        np.not_equal(ordered[1:], ordered[:-1], out=firsts[1:])
        starts = np.flatnonzero(firsts)
        return cls(
            ordered[starts],
            np.append(starts, len(ordered)).astype(np.int32),
            rows[order].astype(np.uint16, copy=False),
            counts[order],
        )

    def find(self, wanted: TermColumn) -> Found:
        """The postings of the terms wanted (ascending, each once)."""
        # Before a term and behind it; where there is none, both are one place.
        starts = self.offsets[self.terms.searchsorted(wanted)]
        stops = self.offsets[self.terms.searchsorted(wanted, "right")]
        return Found(self.rows, self.counts, starts.tolist(), stops.tolist())

    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.terms.nbytes + self.offsets.nbytes + self.rows.nbytes + self.counts.nbytes


@dataclass(frozen=True, slots=True)
class LoosePostings:
    """Postings of a tail as they came, searched from end to end.

    Attributes:
        terms, rows, counts: shape (p,), uint32, uint16, uint8.
    """

    terms: TermColumn
    rows: RowColumn
    counts: ByteColumn

    def find(self, wanted: TermColumn) -> Found:
        """The postings of the terms wanted (ascending, each once)."""
        # What cannot be wanted is told by 16 bits of it: most of the work is one small look-up.
        likely = np.zeros(2**16, np.bool_)
        likely[wanted & 0xFFFF] = True
        # `take`: an index of 16 bits would be made into one of 64 first.
        (near,) = likely.take(self.terms.view(np.uint16)[::2], mode="clip").nonzero()
        terms = self.terms[near]
        number = wanted.searchsorted(terms)
        same = wanted.take(number, mode="clip") == terms
        number, near = number[same], near[same]
        mine = near[number.astype(np.uint16).argsort(kind="stable")]  # of 16 bits: linear
        sizes = np.bincount(number, minlength=len(wanted))
        stops = sizes.cumsum()
        starts = stops - sizes
        return Found(self.rows[mine], self.counts[mine], starts.tolist(), stops.tolist())


@dataclass(frozen=True, slots=True)
class Part:
    """Some messages of a partition as a reader sees them.

    Attributes:
        columns: of the messages, dead ones too.
        postings: their terms.
        places: shape (n,), int64. Where each message stands in `ThreadOrder`, or DEAD_PLACE.
        alive: how many are alive.
        nbytes: memory; of a tail without its arrays.
        ordered: by seq, each seq once.
    """

    columns: MessageColumns
    postings: Postings | LoosePostings
    places: PlaceColumn
    alive: int
    nbytes: int = _PART_BYTES
    ordered: bool = True

    def rows_of(self, seqs: IntColumn) -> NDArray[np.intp]:
        """The rows of these messages (sorted, unique) that are here and alive, by seq."""
        if self.ordered:
            here = self.columns.seqs
            # In the column's own type: a column of 32 bits would be copied into a wider one. What
            # does not fit is cut and found anywhere, and is not equal.
            at = here.searchsorted(seqs.astype(here.dtype, copy=False))
            rows: NDArray[np.intp] = at[here.take(at, mode="clip") == seqs]
            return rows if self.alive == len(here) else rows[self.places[rows] != DEAD_PLACE]
        rows = np.flatnonzero(self.places != DEAD_PLACE)
        rows = rows[np.isin(self.columns.seqs[rows], seqs)]
        return rows[np.argsort(self.columns.seqs[rows])]

    def without(self, rows: NDArray[np.intp]) -> Part:
        """These rows (alive until now) dead."""
        places = self.places.copy()
        places[rows] = DEAD_PLACE
        return replace(self, places=places, alive=self.alive - len(rows))

    def moved(self, moves: PlaceColumn) -> Part:
        """Each message at the place that `moves` has for its present one."""
        return replace(self, places=moves[self.places])


def sealed(block: TextBlock, places: PlaceColumn) -> Part:
    """A part of a block of at most ROWS_MAX messages."""
    postings = Postings.of(block.terms, block.rows, block.counts)
    return _sealed(block.columns.slim(), postings, places)


def _sealed(columns: MessageColumns, postings: Postings, places: PlaceColumn) -> Part:
    nbytes = _PART_BYTES + columns.nbytes() + postings.nbytes() + places.nbytes
    return Part(columns, postings, places, len(columns), nbytes)


def merged(parts: Sequence[Part]) -> Part:
    """One sealed part of what is alive in some; ROWS_MAX messages at most."""
    live = [np.flatnonzero(part.places != DEAD_PLACE) for part in parts]
    columns = concatenate([part.columns.take(rows) for part, rows in zip(parts, live, strict=True)])
    order = np.argsort(columns.seqs, kind="stable")
    new_row = np.empty(len(order), np.int32)
    new_row[order] = np.arange(len(order), dtype=np.int32)
    terms: list[TermColumn] = []
    rows: list[RowColumn] = []
    counts: list[ByteColumn] = []
    first = 0
    for part, mine in zip(parts, live, strict=True):
        renamed = np.full(len(part.columns), -1, np.int32)
        renamed[mine] = new_row[first : first + len(mine)]
        first += len(mine)
        of_posting = renamed[part.postings.rows]
        kept = of_posting >= 0
        terms.append(_term_of_each(part.postings)[kept])
        rows.append(of_posting[kept].astype(np.uint16))
        counts.append(part.postings.counts[kept])
    places = np.concatenate([part.places[mine] for part, mine in zip(parts, live, strict=True)])
    return _sealed(
        columns.take(order).slim(),
        Postings.of(np.concatenate(terms), np.concatenate(rows), np.concatenate(counts)),
        places[order],
    )


def _term_of_each(postings: Postings | LoosePostings) -> TermColumn:
    if isinstance(postings, LoosePostings):
        return postings.terms
    return np.repeat(postings.terms, np.diff(postings.offsets))


class Tail:
    """Messages that were added last; room for `rows_max` of them and `postings_max` postings.

    Arrays grow by doubling; what a reader has of an older one stays as it is.
    """

    __slots__ = (
        "_columns",
        "_counts",
        "_places",
        "_postings",
        "_postings_max",
        "_rows",
        "_rows_max",
        "_terms",
        "nbytes",
    )

    def __init__(self, rows_max: int, postings_max: int) -> None:
        """An empty tail that takes no memory yet."""
        self._rows_max, self._postings_max = rows_max, postings_max
        self._columns: tuple[NDArray[Any], ...] = tuple(
            np.empty(0, DTYPES[name]) for name in COLUMNS
        )
        self._places = np.empty(0, np.int64)
        self._terms = np.empty(0, np.uint32)
        self._postings = np.empty(0, np.uint16)
        self._counts = np.empty(0, np.uint8)
        self._rows = 0
        self.nbytes = 0
        """Bytes of all arrays, what is not used yet too."""

    def has_room(self, part: Part | None, block: TextBlock) -> bool:
        """Whether a block fits; `part` is the tail until now."""
        return (
            self._rows + len(block) <= self._rows_max
            and _postings_of(part) + len(block.terms) <= self._postings_max
        )

    def append(self, part: Part | None, block: TextBlock, places: PlaceColumn) -> Part:
        """The tail with a block that fits; `part` is the tail until now."""
        first, last = self._rows, self._rows + len(block)
        begin = _postings_of(part)
        end = begin + len(block.terms)
        self._make_room(last, end)
        if part is not None and part.places.base is not self._places:  # someone died or moved
            self._places = self._places.copy()
            self._places[:first] = part.places
        self._places[first:last] = places
        for column, name in zip(self._columns, COLUMNS, strict=True):
            column[first:last] = getattr(block.columns, name)
        self._terms[begin:end] = block.terms
        self._postings[begin:end] = block.rows + first
        self._counts[begin:end] = block.counts
        self._rows = last
        ordered = part is None or (
            part.ordered and int(block.columns.seqs[0]) > int(part.columns.seqs[-1])
        )
        return Part(
            MessageColumns(*(column[:last] for column in self._columns)),
            LoosePostings(self._terms[:end], self._postings[:end], self._counts[:end]),
            self._places[:last],
            (0 if part is None else part.alive) + len(block),
            ordered=ordered,
        )

    def _make_room(self, rows: int, postings: int) -> None:
        if rows > len(self._places):
            self._columns = tuple(_larger(column, rows) for column in self._columns)
            self._places = _larger(self._places, rows)
        if postings > len(self._terms):
            self._terms = _larger(self._terms, postings)
            self._postings = _larger(self._postings, postings)
            self._counts = _larger(self._counts, postings)
        arrays = (*self._columns, self._places, self._terms, self._postings, self._counts)
        self.nbytes = sum(array.nbytes for array in arrays)


def _postings_of(part: Part | None) -> int:
    return 0 if part is None else len(part.postings.counts)


def _larger(array: NDArray[Any], size: int) -> NDArray[Any]:
    """A copy with room for twice `size`."""
    larger = np.empty(max(16, 2 * size), array.dtype)
    larger[: len(array)] = array
    return larger
