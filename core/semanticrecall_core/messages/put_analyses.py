"""Writing analyses: beside their message, moved with it, deleted; and made good afterwards.

Whoever changes a message calls these in the same transaction, so that a row is always of its
message as it is. A missing row is no damage: it is made from the text where it is needed
(lexical_loading.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import apsw
import numpy as np

from ..types.lexical import LexicalListener, LexicalRows
from . import keys
from .analysis_rows import (
    ANALYSIS_COLUMNS,
    RESOURCE,
    REVISION,
    SEQ,
    THREAD,
    AnalysisColumns,
    analysis_checksum,
    analysis_checksums,
)
from .commit import Change, LexicalNotice

WRITE_BACK_ROWS = 256
_WRITE_BACK_BYTES = 4 << 20
_FEW_ROWS = 8
_PUT = (
    "INSERT OR REPLACE INTO analyses(seq, resource_key, thread_key, create_time_ns, role, revision,"
    " checksum, analysed) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


def put_analyses(connection: apsw.Connection, columns: AnalysisColumns) -> None:
    """Write rows; what their messages had is replaced."""
    sums = analysis_checksums(columns.numbers, columns.analysed)
    connection.executemany(
        _PUT,
        (
            (*numbers, checksum, analysed)
            for numbers, checksum, analysed in zip(
                columns.numbers.tolist(), sums.tolist(), columns.analysed, strict=True
            )
        ),
    )


def delete_analyses(connection: apsw.Connection, resource_key: int, seqs: Sequence[int]) -> None:
    """Delete what these messages have."""
    connection.execute(
        "DELETE FROM analyses WHERE resource_key = ? AND seq IN (SELECT value FROM carray(?))",
        (resource_key, keys.seq_array(seqs)),
    )


def move_analysis(
    connection: apsw.Connection, row: tuple[int, int], to: tuple[int, int, int]
) -> None:
    """Give a message's analysis its new place; a damaged one is deleted.

    Args:
        row: resource_key and seq.
        to: resource_key, thread_key and revision.
    """
    found = AnalysisColumns.of(
        connection.execute(
            f"SELECT {ANALYSIS_COLUMNS} FROM analyses a WHERE resource_key = ? AND seq = ?", row
        ).fetchall()
    )
    connection.execute("DELETE FROM analyses WHERE resource_key = ? AND seq = ?", row)
    numbers = found.numbers.copy()
    numbers[:, [RESOURCE, THREAD, REVISION]] = to
    put_analyses(connection, AnalysisColumns(numbers, found.analysed))


class WriteBack:
    """Analyses made while a resource was loaded: operations for the writer thread, none waited for.

    One writes a bounded part and then asks for the next, so that callers' changes come in between.
    """

    def __init__(self, resource_id: str, columns: AnalysisColumns, start: int = 0) -> None:
        """What was made, of messages of one resource, and from which row on it is to be written."""
        self._resource_id = resource_id
        self._columns = columns
        self._start = start

    def __call__(self, connection: apsw.Connection, _revision: int) -> Change[None]:
        """Write those whose message is as it was analysed. See commit.Operation."""
        stop = self._end_of_part()
        numbers = self._columns.numbers[self._start : stop]
        seqs: list[int] = numbers[:, SEQ].tolist()
        found = connection.execute(
            "SELECT m.seq, m.revision FROM carray(?) c CROSS JOIN messages m ON m.seq = c.value"
            " AND m.resource_key = (SELECT resource_key FROM resources WHERE resource_id = ?)",
            (keys.seq_array(seqs), self._resource_id),
        ).fetchall()
        revisions = dict(cast("list[tuple[int, int]]", found))
        is_as_it_was = np.array([revisions.get(seq) for seq in seqs]) == numbers[:, REVISION]
        part = AnalysisColumns(numbers, self._columns.analysed[self._start : stop])
        put_analyses(connection, part.only(is_as_it_was))
        is_last = stop == len(self._columns.analysed)
        return Change(
            None,
            changed=bool(is_as_it_was.any()),
            next_operation=(None if is_last else WriteBack(self._resource_id, self._columns, stop)),
        )

    def _end_of_part(self) -> int:
        room = _WRITE_BACK_BYTES
        last = min(self._start + WRITE_BACK_ROWS, len(self._columns.analysed))
        for row in range(self._start, last):
            room -= len(self._columns.analysed[row])
            if room < 0 and row > self._start:
                return row
        return last


class AnalysisChanges:
    """What an append does to the analyses of one resource, and what the lexical index is told."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._removed: list[int] = []
        self._put: list[tuple[tuple[int, ...], bytes]] = []

    def put(self, numbers: tuple[int, int, int, int, int, int], analysed: bytes) -> None:
        """This message is new or changed; numbers as in analysis_rows.py."""
        self._put.append((numbers, analysed))

    def removed(self, seq: int) -> None:
        """This message has no analysis now."""
        self._removed.append(seq)

    def write(
        self, connection: apsw.Connection, resource_id: str, resource_key: int
    ) -> tuple[LexicalNotice, ...]:
        """Change the rows; returns the calls to make."""
        notices: list[LexicalNotice] = []
        if self._removed:
            seqs = sorted(self._removed)
            delete_analyses(connection, resource_key, seqs)
            notices.append(partial(tell_texts_removed, resource_id, seqs))
        if self._put:
            put = sorted(self._put)
            rows = np.array([numbers for numbers, _ in put], np.int64)
            columns = AnalysisColumns(rows, tuple(analysed for _, analysed in put))
            if len(put) <= _FEW_ROWS:
                for numbers, analysed in put:
                    checksum = analysis_checksum(numbers, analysed)
                    connection.execute(_PUT, (*numbers, checksum, analysed))
            else:
                put_analyses(connection, columns)
            notices.append(partial(_tell_put, resource_id, columns.lexical_rows()))
        return tuple(notices)


def tell_texts_removed(resource_id: str, seqs: list[int], listener: LexicalListener) -> None:
    """These messages have nothing to embed now."""
    listener.texts_removed(resource_id, np.array(seqs, np.int64))


def _tell_put(resource_id: str, rows: LexicalRows, listener: LexicalListener) -> None:
    listener.texts_put(resource_id, rows)
