"""Parts of a partition: sealed ones with their postings by term, and the tail that grows.

A message is alive where its place is not DEAD_PLACE. Places belong to the partition
(`thread_order`); everything else of a part never changes once a reader can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .blocks import COLUMNS, MessageColumns, TextBlock, concatenate
from .thread_order import DEAD_PLACE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import ByteColumn, IntColumn

    from .blocks import RowColumn, TermColumn
    from .thread_order import PlaceColumn

_PART_BYTES = 1500
"""Python objects of a part, rounded up."""


class Found(NamedTuple):
    """The postings of one term in one part: `rows[i]` has it `counts[i]` times; rows once."""

    rows: RowColumn
    counts: ByteColumn


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

    def find(self, wanted: TermColumn) -> list[Found | None]:
        """The postings of each term wanted (ascending), None where there are none."""
        out: list[Found | None] = [None] * len(wanted)
        if not len(self.terms):
            return out
        at = np.searchsorted(self.terms, wanted)
        at[at == len(self.terms)] = 0
        offsets = self.offsets
        for i in np.flatnonzero(self.terms[at] == wanted).tolist():
            start, stop = offsets[at[i]], offsets[at[i] + 1]
            out[i] = Found(self.rows[start:stop], self.counts[start:stop])
        return out

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

    def find(self, wanted: TermColumn) -> list[Found | None]:
        """The postings of each term wanted (ascending), None where there are none."""
        out: list[Found | None] = [None] * len(wanted)
        # What cannot be wanted is told by 16 bits of it: most of the work is one small look-up.
        likely = np.zeros(2**16, np.bool_)
        likely[(wanted & 0xFFFF).astype(np.intp)] = True
        near = np.flatnonzero(likely[self.terms.view(np.uint16)[::2]])
        if not len(near):
            return out
        terms = self.terms[near]
        at = np.searchsorted(wanted, terms)
        at[at == len(wanted)] = 0
        same = wanted[at] == terms
        at, near = at[same], near[same]
        for i in np.unique(at).tolist():
            mine = near[at == i]
            out[i] = Found(self.rows[mine], self.counts[mine])
        return out


@dataclass(frozen=True, slots=True)
class Part:
    """Some messages of a partition as a reader sees them.

    Attributes:
        columns: of the messages, dead ones too.
        postings: their terms.
        places: shape (n,), int64. Where each message stands in `ThreadOrder`, or DEAD_PLACE.
        alive: how many are alive.
        ordered: by seq, each seq once.
    """

    columns: MessageColumns
    postings: Postings | LoosePostings
    places: PlaceColumn
    alive: int
    ordered: bool = True

    def rows_of(self, seqs: IntColumn) -> NDArray[np.intp]:
        """The rows of these messages (sorted, unique) that are here and alive, by seq."""
        if self.ordered:
            at = np.searchsorted(self.columns.seqs, seqs)
            at[at == len(self.columns)] = 0
            rows = at[self.columns.seqs[at] == seqs]
            alive: NDArray[np.intp] = rows[self.places[rows] != DEAD_PLACE]
            return alive
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

    def nbytes(self) -> int:
        """Bytes of a sealed part."""
        if isinstance(self.postings, LoosePostings):
            return _PART_BYTES
        return _PART_BYTES + self.columns.nbytes() + self.postings.nbytes() + self.places.nbytes


def sealed(block: TextBlock, places: PlaceColumn) -> Part:
    """A part of a block of at most ROWS_MAX messages."""
    postings = Postings.of(block.terms, block.rows, block.counts)
    return Part(block.columns.slim(), postings, places, len(block))


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
    return Part(
        columns.take(order).slim(),
        Postings.of(np.concatenate(terms), np.concatenate(rows), np.concatenate(counts)),
        places[order],
        len(order),
    )


def _term_of_each(postings: Postings | LoosePostings) -> TermColumn:
    if isinstance(postings, LoosePostings):
        return postings.terms
    return np.repeat(postings.terms, np.diff(postings.offsets))


class Tail:
    """Messages that were added last; room for `rows_max` of them and `postings_max` postings.

    Arrays grow by doubling; what a reader has of an older one stays as it is.
    """

    __slots__ = ("_columns", "_counts", "_postings", "_postings_max", "_rows", "_rows_max", "_size")

    def __init__(self, rows_max: int, postings_max: int) -> None:
        """An empty tail that takes no memory yet."""
        self._rows_max, self._postings_max = rows_max, postings_max
        self._columns: dict[str, NDArray[Any]] = {}
        self._postings: tuple[NDArray[Any], ...] = ()
        self._size = self._rows = 0
        self._counts = 0

    def has_room(self, block: TextBlock) -> bool:
        """Whether a block fits."""
        return (
            self._rows + len(block) <= self._rows_max
            and self._counts + len(block.terms) <= self._postings_max
        )

    def append(self, part: Part | None, block: TextBlock, places: PlaceColumn) -> Part:
        """The tail with a block that fits; `part` is the tail until now."""
        first, last = self._rows, self._rows + len(block)
        begin, end = self._counts, self._counts + len(block.terms)
        for name in COLUMNS:
            self._columns[name] = _written(
                self._columns.get(name), getattr(block.columns, name), first
            )
        old = None if part is None else part.places
        grown = _written(None if old is None else _base_of(old), places, first)
        rows = (block.rows + first).astype(np.uint16)
        flat: tuple[NDArray[Any] | None, ...] = self._postings or (None, None, None)
        added: tuple[NDArray[Any], ...] = (block.terms, rows, block.counts)
        self._postings = tuple(
            _written(array, more, begin) for array, more in zip(flat, added, strict=True)
        )
        self._rows, self._counts = last, end
        ordered = first == 0 or (
            part is not None
            and part.ordered
            and int(block.columns.seqs[0]) > int(part.columns.seqs[-1])
        )
        terms, of_rows, counts = (array[:end] for array in self._postings)
        return Part(
            MessageColumns(*(self._columns[name][:last] for name in COLUMNS)),
            LoosePostings(terms, of_rows, counts),
            grown[:last],
            (0 if part is None else part.alive) + len(block),
            ordered,
        )

    def nbytes(self) -> int:
        """Bytes of all arrays, what is not used yet too; places apart."""
        return sum(array.nbytes for array in (*self._columns.values(), *self._postings))


def _written(array: NDArray[Any] | None, added: NDArray[Any], first: int) -> NDArray[Any]:
    """An array that has `added` from `first` on: this one if there is room, else a larger copy."""
    last = first + len(added)
    if array is None or len(array) < last:
        larger = np.empty(max(16, 2 * last), added.dtype)
        if array is not None:
            larger[:first] = array[:first]
        array = larger
    array[first:last] = added
    return array


def _base_of(column: PlaceColumn) -> PlaceColumn:
    """The whole array that a column is the beginning of."""
    return column if column.base is None else column.base
