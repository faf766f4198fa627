"""Verifying the record and mending it: `RecordCare` over the store's connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import apsw
import numpy as np
import structlog

from ..types.errors import CorruptDataError, ResourceExhaustedError, UnavailableError
from ..types.stored_message import StoredMessage
from ..types.values import CallBudget, PartitionRows
from ..types.verifying import LostMessage, MendReport, RecordDamage, VerifyProgress
from . import mending, reading, verifying
from .commit import Change, GroupCommit
from .connection import ReaderPool
from .damage_log import DamageLog
from .rows import MESSAGE_COLUMNS, MESSAGES, shown, sound_messages
from .salvage import KnownState, Salvage, Salvaged
from .verifying import RecordChecks, checked_tables

if TYPE_CHECKING:
    from ..types.values import IntColumn

_LOGGED_SEQS_MAX = 100
_QUEUE_FULL_PAUSE_S = 0.02
_log = structlog.get_logger(__name__)


class SqliteRecordCare:
    """See `RecordCare` in types/verifying.py. Belongs to a store, and is closed with it."""

    def __init__(
        self,
        readers: ReaderPool,
        writer: GroupCommit,
        checks: RecordChecks,
        damage: DamageLog,
        load_lexical: Callable[[str], object],
        generation: Callable[[], tuple[int, str]],
    ) -> None:
        """The store's own parts.

        Args:
            readers, writer: its connections.
            checks: how its rows must be; `dimensions` is given with each call.
            damage: where it notes what it meets.
            load_lexical: makes the words of a resource anew where they lack.
            generation: key and text of the one that is searched.
        """
        self._generation = generation
        self._readers = readers
        self._writer = writer
        self._checks = checks
        self._damage = damage
        self._load_lexical = load_lexical

    def examine(
        self, resource_id: str | None, budget: CallBudget | None, dimensions: int | None
    ) -> Iterator[RecordDamage | VerifyProgress]:
        """See RecordCare.examine."""
        checks = RecordChecks(self._checks.decode, self._checks.analyser, dimensions)
        return verifying.examine(lambda: self._readers.read(budget), resource_id, checks)

    def mend(self, damages: Sequence[RecordDamage]) -> MendReport:
        """See RecordCare.mend."""
        checks = self._checks
        operation = mending.Mend(damages, checked_tables(checks), checks.decode, self._damage)
        report = self._writer.submit(operation, frees_space=True)
        _log_lost(report.lost)
        analysed = {d.finding.resource_id for d in damages if d.finding.kind.startswith("ANALYSIS")}
        for resource_id in sorted(analysed - {""}):
            self._load_lexical(resource_id)
        self._damage.mended()
        _log.info("store_rows_mended", rows=sum(report.repaired))
        return report

    def mend_file(self, damages: Sequence[RecordDamage]) -> MendReport:
        """See RecordCare.mend_file."""
        if all(damage.finding.kind == verifying.DATABASE_CORRUPT for damage in damages):
            try:
                return self._writer.submit(_reindex, frees_space=True)
            except CorruptDataError:
                _log.warning("store_indexes_not_enough")

        def salvage(
            source: apsw.Connection, target: apsw.Connection, store_id: str, revision: int
        ) -> Salvaged:
            known = KnownState(store_id, revision, self._generation())
            return Salvage(source, target, known, self._checks.decode)()

        salvaged = self._writer.mend_file(salvage, self._readers.paused)
        _log_lost(salvaged.lost)
        self._damage.mended()
        return MendReport([True], salvaged.lost)

    def drop_resource(self, resource_id: str) -> None:
        """See RecordCare.drop_resource."""
        self._writer.submit(partial(mending.drop_resource, resource_id))

    def caught_up(self, budget: CallBudget) -> None:
        """See RecordCare.caught_up."""
        while True:
            try:
                return self._writer.caught_up(budget)
            except UnavailableError:
                return None
            except ResourceExhaustedError:  # too many wait: then once more
                time.sleep(_QUEUE_FULL_PAUSE_S)
                budget.check()

    def partition(self, resource_id: str) -> tuple[PartitionRows, IntColumn]:
        """See RecordCare.partition."""
        with self._readers.read() as connection:
            serving = int(connection.execute("SELECT generation_key FROM record").get)
            _, columns = reading.partition_columns(connection, resource_id, serving)
        return columns.partition_rows(), np.array(columns.corrupt_seqs, np.int64)

    def texts(self, resource_id: str) -> tuple[IntColumn, IntColumn, IntColumn]:
        """See RecordCare.texts."""
        with self._readers.read() as connection:
            found = connection.execute(
                "SELECT m.seq, m.revision FROM messages m WHERE m.embeddable = 1"
                " AND m.resource_key ="
                " (SELECT resource_key FROM resources WHERE resource_id = ?)",
                (resource_id,),
            ).fetchall()
        rows = np.array(found, np.int64).reshape(-1, 2)
        return rows[:, 0], rows[:, 1], np.array(self._damage.known("message"), np.int64)

    def seqs_there(self, resource_id: str, seqs: IntColumn) -> IntColumn:
        """See RecordCare.seqs_there."""
        with self._readers.read() as connection:
            rows = connection.execute(
                "SELECT m.seq FROM carray(?2) c CROSS JOIN messages m ON m.seq = c.value"
                " WHERE m.resource_key ="
                " (SELECT resource_key FROM resources WHERE resource_id = ?1)",
                (resource_id, apsw.carray(np.ascontiguousarray(seqs, np.int64))),
            ).fetchall()
        return np.unique(np.array([row[0] for row in rows], np.int64))

    def sample(self, resource_id: str | None, limit: int) -> list[StoredMessage]:
        """See RecordCare.sample. The newest of each resource, or the newest of one."""
        each = limit if resource_id is not None else max(1, limit // 10)
        with self._readers.read() as connection:
            names = cast(
                "list[tuple[int, bytes]]",
                connection.execute(
                    "SELECT resource_key, CAST(resource_id AS BLOB) FROM resources"
                    " WHERE ?1 IS NULL OR resource_id = ?1 ORDER BY resource_key % 1009 LIMIT ?2",
                    (resource_id, limit),
                ).fetchall(),
            )
            found: list[StoredMessage] = []
            for key, name in names:
                rows: list[tuple[Any, ...]] = connection.execute(
                    f"SELECT {MESSAGE_COLUMNS} FROM {MESSAGES} WHERE m.resource_key = ?1"
                    " AND m.embeddable = 1 AND m.seq NOT IN (SELECT seq FROM pending"
                    "  WHERE resource_key = ?1)"
                    " ORDER BY m.create_time_ns DESC, m.seq DESC LIMIT ?2",
                    (key, min(each, limit - len(found))),
                ).fetchall()
                found += sound_messages(rows, shown(name), self._checks.decode, lambda _: None)
                if len(found) >= limit:
                    break
        return found

    def counts(self) -> dict[str, int]:
        """See RecordCare.counts."""
        return self._damage.counts()


def _log_lost(lost: Sequence[LostMessage]) -> None:
    if lost:
        seqs = tuple(one.seq for one in lost[:_LOGGED_SEQS_MAX])
        _log.error("store_messages_lost", messages=len(lost), seqs=seqs)


def _reindex(connection: apsw.Connection, _revision: int) -> Change[MendReport]:
    """Make the indexes anew. CorruptDataError: that is not enough, and nothing has changed."""
    connection.execute("REINDEX")
    if connection.execute("PRAGMA integrity_check(1)").get != "ok":
        raise CorruptDataError("more is damaged than the indexes of recall.db")
    return Change(MendReport([True]))
