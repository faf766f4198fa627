"""Analysed messages as columns and flat postings, ready to become part of a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.lexical import LexicalRows

from .analysis import date_terms, unpack
from .analysis_format import unpack_one

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import ByteColumn, IntColumn

    TermColumn = NDArray[np.uint32]
    RowColumn = NDArray[np.uint16]

COUNT_MAX = 255
"""More occurrences of a term in a message count as so many: BM25 has long been saturated."""
FEW_ROWS_MAX = 8
FEW_BYTES_MAX = 8_192
"""So many messages of so many analysed bytes are taken one by one: a turn's two in 0.03 ms, where
columns take 0.13, which are for thousands."""
ROWS_MAX = 2**16
"""Rows of one part: postings name them in 16 bits."""


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """What is known of messages; arrays of one length, never changed once a reader can see them.

    Attributes:
        seqs, thread_keys, times_ns, revisions, roles: as in `LexicalRows`, shape (n,).
        lengths: shape (n,), uint32. Words, those of the date included.
        languages: shape (n,), uint8. What the words were stemmed in.
        asks: shape (n,), bool. The message asks a question.
        authors: shape (n,), int32. The partition's number of the author, -1 for none.
    """

    seqs: IntColumn
    thread_keys: IntColumn
    times_ns: IntColumn
    revisions: IntColumn
    roles: ByteColumn
    lengths: TermColumn
    languages: ByteColumn
    asks: NDArray[np.bool_]
    authors: NDArray[np.int32]

    def __len__(self) -> int:
        """How many messages."""
        return len(self.seqs)

    def take(self, keep: NDArray[np.bool_] | NDArray[np.intp] | slice) -> MessageColumns:
        """The messages that a mask, an index or a slice names."""
        return MessageColumns(*(getattr(self, name)[keep] for name in COLUMNS))

    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(getattr(self, name).nbytes for name in COLUMNS)

    def slim(self) -> MessageColumns:
        """The same in less memory: whole numbers in 32 bits where all of a column fit."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        for name in ("seqs", "thread_keys", "revisions"):
            columns[name] = _narrow(columns[name])
        return MessageColumns(**columns)


COLUMNS: tuple[str, ...] = tuple(MessageColumns.__slots__)


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Messages by seq, each once, with their postings: row `rows[i]` has `terms[i]` so often.

    Attributes:
        columns: of the messages; shape (n,).
        rows: shape (p,), int64, ascending.
        terms, counts: shape (p,), uint32 and uint8; a term once in a row.
    """

    columns: MessageColumns
    rows: NDArray[np.int64]
    terms: TermColumn
    counts: ByteColumn

    def __len__(self) -> int:
        """How many messages."""
        return len(self.columns)

    def slice(self, start: int, stop: int) -> TextBlock:
        """Messages [start, stop)."""
        first, last = np.searchsorted(self.rows, (start, stop))
        return TextBlock(
            self.columns.take(slice(start, stop)),
            self.rows[first:last] - start,
            self.terms[first:last],
            self.counts[first:last],
        )


def concatenate(blocks: Sequence[MessageColumns]) -> MessageColumns:
    """The columns of all, in the order given."""
    return MessageColumns(
        *(np.concatenate([getattr(block, name) for block in blocks]) for name in COLUMNS)
    )


DTYPES: Mapping[str, type[np.generic]] = {
    "seqs": np.int64,
    "thread_keys": np.int64,
    "times_ns": np.int64,
    "revisions": np.int64,
    "roles": np.uint8,
    "lengths": np.uint32,
    "languages": np.uint8,
    "asks": np.bool_,
    "authors": np.int32,
}


class Authors:
    """The authors of a partition by number, and the terms of their names.

    Numbers are never used twice. At most `authors_max` are known at a time; messages of further
    ones count as without an author, until others are gone.
    """

    __slots__ = ("_authors_max", "_counts", "_names", "_next", "_numbers", "by_term")

    def __init__(self, authors_max: int) -> None:
        """Nobody yet."""
        self._authors_max = authors_max
        self._numbers: dict[tuple[int, ...], int] = {}
        self._names: dict[int, tuple[int, ...]] = {}
        self._counts: dict[int, int] = {}
        self._next = 0
        self.by_term: dict[int, tuple[int, ...]] = {}
        """For each term the authors that have it. Replaced, never changed."""

    def numbers(self, names: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
        """The author of each message by the terms of the name, of which there may be none.

        Who is new gets a number. Counts the messages in.
        """
        out = np.full(len(names), -1, np.int32)
        born: list[int] = []
        for i, name in enumerate(names):
            if not name:
                continue
            number = self._numbers.get(name)
            if number is None:
                if len(self._numbers) >= self._authors_max:
                    continue
                number = self._numbers[name] = self._next
                self._next += 1
                self._names[number] = name
                self._counts[number] = 0
                born.append(number)
            self._counts[number] += 1
            out[i] = number
        if born:
            self._add_terms(born)
        return out

    def forget(self, authors: NDArray[np.int32]) -> None:
        """Count these messages out; an author without any is no author any more."""
        dead: list[int] = []
        for number in authors.tolist():
            if number >= 0:
                self._counts[number] -= 1
                if not self._counts[number]:
                    dead.append(number)
        if dead:
            self._remove(dead)

    def nbytes(self) -> int:
        """Bytes of memory, rounded up."""
        return 400 * len(self._numbers)

    def _add_terms(self, born: list[int]) -> None:
        by_term = dict(self.by_term)
        for number in born:
            for term in self._names[number]:
                by_term[term] = (*by_term.get(term, ()), number)
        self.by_term = by_term

    def _remove(self, dead: list[int]) -> None:
        by_term = dict(self.by_term)
        for number in dead:
            name = self._names.pop(number)
            del self._numbers[name], self._counts[number]
            for term in name:
                left = tuple(other for other in by_term[term] if other != number)
                if left:
                    by_term[term] = left
                else:
                    del by_term[term]
        self.by_term = by_term


def in_order(rows: LexicalRows) -> LexicalRows:
    """By seq, the last of each."""
    seqs = rows.seqs
    if len(seqs) < 2 or bool((seqs[1:] > seqs[:-1]).all()):
        return rows
    order = np.argsort(seqs, kind="stable")
    ordered = seqs[order]
    keep = order[np.append(ordered[1:] != ordered[:-1], True)]
    return _taken(rows, keep, tuple(rows.analysed[i] for i in keep.tolist()))


def some_of(rows: LexicalRows, start: int, stop: int) -> LexicalRows:
    """Messages [start, stop)."""
    return _taken(rows, slice(start, stop), rows.analysed[start:stop])


def _taken(
    rows: LexicalRows, keep: NDArray[np.intp] | slice, analysed: tuple[bytes, ...]
) -> LexicalRows:
    return LexicalRows(
        seqs=rows.seqs[keep],
        thread_keys=rows.thread_keys[keep],
        times_ns=rows.times_ns[keep],
        revisions=rows.revisions[keep],
        roles=rows.roles[keep],
        analysed=analysed,
    )


def text_block(rows: LexicalRows, authors: Authors) -> TextBlock:
    """Messages of the record `in_order`; their dates' words among their own."""
    is_few = len(rows.analysed) <= FEW_ROWS_MAX
    if is_few and sum(map(len, rows.analysed)) <= FEW_BYTES_MAX:
        return _block_of_few(rows, authors)
    unpacked = unpack(rows.analysed)
    dates = date_terms(rows.times_ns)
    date_sizes = np.array([len(terms) for terms in dates], np.int64)
    of_dates = np.array([term for terms in dates for term in terms], np.uint32)
    count = len(rows.seqs)
    of_row = np.repeat(np.arange(count), np.diff(unpacked.term_starts))
    date_rows = np.repeat(np.arange(count), date_sizes)
    postings = _postings(
        np.concatenate([of_row, date_rows]),
        np.concatenate([unpacked.terms, of_dates]),
        np.concatenate([unpacked.counts, np.ones(len(of_dates), np.uint16)]),
    )
    lengths = unpacked.lengths.astype(np.int64) + date_sizes
    columns = MessageColumns(
        seqs=rows.seqs,
        thread_keys=rows.thread_keys,
        times_ns=rows.times_ns,
        revisions=rows.revisions,
        roles=rows.roles,
        lengths=np.minimum(lengths, 2**32 - 1).astype(np.uint32),
        languages=unpacked.languages,
        asks=unpacked.asks,
        authors=authors.numbers(_slices(unpacked.author_starts, unpacked.author_terms)),
    )
    return TextBlock(columns, *postings)


def _block_of_few(rows: LexicalRows, authors: Authors) -> TextBlock:
    """As `text_block` makes it of columns."""
    messages = list(map(unpack_one, rows.analysed))
    dates = date_terms(rows.times_ns)
    places: list[int] = []
    terms: list[int] = []
    counts: list[int] = []
    for row, (message, of_date) in enumerate(zip(messages, dates, strict=True)):
        counted = dict(zip(message.terms, message.counts, strict=True))
        for term in of_date:
            counted[term] = counted.get(term, 0) + 1
        own = sorted(counted)
        places += [row] * len(own)
        terms += own
        counts += [min(counted[term], COUNT_MAX) for term in own]
    lengths = [
        min(message.length + len(of_date), 2**32 - 1)
        for message, of_date in zip(messages, dates, strict=True)
    ]
    columns = MessageColumns(
        seqs=rows.seqs,
        thread_keys=rows.thread_keys,
        times_ns=rows.times_ns,
        revisions=rows.revisions,
        roles=rows.roles,
        lengths=np.array(lengths, np.uint32),
        languages=np.array([message.language for message in messages], np.uint8),
        asks=np.array([message.asks for message in messages], np.bool_),
        authors=authors.numbers([message.author_terms for message in messages]),
    )
    return TextBlock(
        columns, np.array(places, np.int64), np.array(terms, np.uint32), np.array(counts, np.uint8)
    )


def _slices(starts: IntColumn, numbers: TermColumn) -> list[tuple[int, ...]]:
    """numbers[starts[i]:starts[i + 1]] for each i."""
    ends: list[int] = starts.tolist()
    known: list[int] = numbers.tolist()
    return [tuple(known[begin:end]) for begin, end in pairwise(ends)]


def _postings(
    rows: NDArray[np.int64], terms: TermColumn, counts: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], TermColumn, ByteColumn]:
    """By (row, term), a term of a row once, its counts summed."""
    keys = (rows.astype(np.uint64) << np.uint64(32)) | terms
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else order
    summed = np.add.reduceat(counts[order].astype(np.int64), starts) if len(keys) else counts
    return (
        rows[order[starts]],
        terms[order[starts]],
        np.minimum(summed, COUNT_MAX).astype(np.uint8),
    )


def _narrow(column: IntColumn) -> IntColumn | NDArray[np.int32]:
    if len(column) and int(column.min()) >= -(2**31) and int(column.max()) < 2**31:
        return column.astype(np.int32)
    return column.astype(np.int64)
