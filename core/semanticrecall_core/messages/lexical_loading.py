"""Reading a resource's analyses, and making those that are not there.

What is there comes from one range of `analyses`. Which messages should have one is told by two
indexes, without reading a message: what has something to embed has vectors, of whatever
generation, or is pending (schema.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import apsw
import numpy as np

from ..types.errors import CorruptDataError
from ..types.lexical import LexicalRows, TextAnalyser
from ..types.stored_message import DecodeMessage
from .analysis_rows import ANALYSIS_COLUMNS, SEQ, AnalysisColumns
from .damage_log import DamageLog
from .rows import MESSAGE_COLUMNS, MESSAGES, stored_message

if TYPE_CHECKING:
    from ..types.values import IntColumn

_RESOURCE = "(SELECT resource_key FROM resources WHERE resource_id = ?1)"
_BATCH_ROWS = 256

ReadTransaction = Callable[[], AbstractContextManager[apsw.Connection]]


@dataclass(frozen=True, slots=True)
class LoadedAnalyses:
    """What a resource has.

    Attributes:
        rows: all of it, by seq.
        made: those of it that were not on record as they should be.
    """

    rows: LexicalRows
    made: AnalysisColumns


def load_analyses(
    read: ReadTransaction,
    resource_id: str,
    decode: DecodeMessage,
    analyser: TextAnalyser,
    damage: DamageLog,
) -> LoadedAnalyses:
    """The current analyses of a resource; what is missing, damaged or old is made from the text.

    Each batch of texts is a read transaction of its own: a message that has changed meanwhile is
    given as it is then, as its commit's notice does.
    """
    with read() as connection:
        rows = connection.execute(
            f"SELECT {ANALYSIS_COLUMNS} FROM analyses a WHERE a.resource_key = {_RESOURCE}"
            " ORDER BY a.seq",
            (resource_id,),
        ).fetchall()
        wanted = _seqs_to_embed(connection, resource_id)
    found = AnalysisColumns.of(rows)
    if found.corrupt_seqs:
        damage.found("words", found.corrupt_seqs)
    is_current = np.fromiter(map(analyser.is_current, found.analysed), np.bool_)
    if not is_current.all():
        found = found.only(is_current)
    lacking = np.setdiff1d(wanted, found.numbers[:, SEQ], assume_unique=True)
    making = _Making(resource_id, decode, analyser, damage)
    for start in range(0, lacking.size, _BATCH_ROWS):
        with read() as connection:
            batch = _messages(connection, resource_id, lacking[start : start + _BATCH_ROWS])
        making.add(batch)
    made = making.columns()
    return LoadedAnalyses((found.by_seq(made) if lacking.size else found).lexical_rows(), made)


def _seqs_to_embed(connection: apsw.Connection, resource_id: str) -> IntColumn:
    """The messages that have something to embed, sorted and unique."""
    rows = connection.execute(
        "SELECT seq FROM vectors INDEXED BY vectors_by_message"
        f" WHERE resource_key = {_RESOURCE}"
        f" UNION ALL SELECT seq FROM pending WHERE resource_key = {_RESOURCE}",
        (resource_id,),
    ).fetchall()
    return np.unique(np.fromiter(chain.from_iterable(rows), np.int64, len(rows)))


def _messages(
    connection: apsw.Connection, resource_id: str, seqs: IntColumn
) -> list[tuple[Any, ...]]:
    return connection.execute(
        f"SELECT {MESSAGE_COLUMNS} FROM carray(?2) c CROSS JOIN {MESSAGES}"
        f" WHERE m.seq = c.value AND m.resource_key = {_RESOURCE} AND m.embeddable = 1",
        (resource_id, apsw.carray(np.ascontiguousarray(seqs))),
    ).fetchall()


class _Making:
    """Analyses made from texts; a damaged message is logged and left out."""

    def __init__(
        self,
        resource_id: str,
        decode: DecodeMessage,
        analyser: TextAnalyser,
        damage: DamageLog,
    ) -> None:
        self._resource_id = resource_id
        self._damage = damage
        self._decode = decode
        self._analyser = analyser
        self._numbers: list[tuple[int, ...]] = []
        self._analysed: list[bytes] = []

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        """Take rows of MESSAGE_COLUMNS."""
        for row in rows:
            seq, resource_key, thread_key, time_ns, revision, role = row[:6]
            try:
                message = stored_message(row, self._resource_id, self._decode)
                analysed = self._analyser.analyse(message.text, message.author)
            except CorruptDataError:
                self._damage.found("message", [seq])
                continue
            self._numbers.append((seq, resource_key, thread_key, time_ns, role, revision))
            self._analysed.append(analysed)

    def columns(self) -> AnalysisColumns:
        """What was made, by seq."""
        made = AnalysisColumns.of([])
        if not self._analysed:
            return made
        return made.by_seq(
            AnalysisColumns(np.array(self._numbers, np.int64), tuple(self._analysed))
        )
