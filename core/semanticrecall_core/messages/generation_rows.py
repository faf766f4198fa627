"""The vectors of one generation: read, counted, and made for what has none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import apsw

from ..types.errors import CorruptDataError
from ..types.generations import LackingRows
from ..types.stored_message import DecodeMessage
from ..types.values import PartitionRows, PendingRow, RowChecksums, VectorRecord
from . import keys, reading
from .commit import Change, GroupCommit
from .connection import ReaderPool
from .damage_log import DamageLog
from .mending import pending_of
from .put_vectors import PutVectors, check_vectors, requeue, vector_bytes
from .rows import MESSAGE_COLUMNS, MESSAGE_REVISION, MESSAGES, shown, stored_message
from .vector_rows import VectorColumns

if TYPE_CHECKING:
    from ..types.values import IntColumn

STRETCH_ROWS = 2_000

_WITHOUT = (
    "m.embeddable = 1 AND NOT EXISTS (SELECT 1 FROM vectors v"
    " WHERE v.resource_key = m.resource_key AND v.seq = m.seq AND v.generation_key = ?1)"
)
_SELECT = f"SELECT {MESSAGE_COLUMNS}, CAST(r.resource_id AS BLOB)"
_OF_RESOURCE = f"{MESSAGES} JOIN resources r ON r.resource_key = m.resource_key"


class GenerationRows:
    """See `GenerationVectors` in types/generations.py for what each method promises."""

    def __init__(
        self,
        readers: ReaderPool,
        writer: GroupCommit,
        decode: DecodeMessage,
        damage: DamageLog,
        generation: tuple[int, str],
    ) -> None:
        """`generation`: its key and its text."""
        self._damage = damage
        self._readers = readers
        self._writer = writer
        self._decode = decode
        self.key, self.generation = generation

    def load_partition(self, resource_id: str) -> PartitionRows:
        """All vectors of a resource; damaged ones are logged and made anew."""
        with self._readers.read() as connection:
            found = reading.partition_columns(connection, resource_id, self.key)
        return self._sound_rows(resource_id, *found)

    def row_checksums(self, resource_id: str) -> RowChecksums:
        """Which rows `load_partition` would give; damage is not seen here."""
        with self._readers.read() as connection:
            return reading.row_checksums(connection, resource_id, self.key)

    def load_rows(self, resource_id: str, seqs: IntColumn) -> PartitionRows:
        """The vectors of these messages; damaged ones as in `load_partition`."""
        with self._readers.read() as connection:
            found = reading.row_columns(connection, resource_id, seqs, self.key)
        return self._sound_rows(resource_id, *found)

    def recent_resources(self, limit: int) -> list[str]:
        """Resources by the time of their newest message, newest first."""
        with self._readers.read() as connection:
            return reading.recent_resources(connection, limit)

    def lacking(self, after_seq: int, limit: int) -> LackingRows:
        """Messages of the next stretch of the record that have none."""
        with self._readers.read() as connection:
            last = connection.execute(
                "SELECT max(seq) FROM"
                " (SELECT seq FROM messages WHERE seq > ? ORDER BY seq LIMIT ?)",
                (after_seq, STRETCH_ROWS),
            ).get
            if last is None:
                return LackingRows((), (), None)
            rows = connection.execute(
                f"{_SELECT} FROM {_OF_RESOURCE}"
                f" WHERE {_WITHOUT} AND m.seq > ?2 AND m.seq <= ?3 ORDER BY m.seq LIMIT ?4",
                (self.key, after_seq, last, limit),
            ).fetchall()
        read_to = cast("int", rows[-1][0]) if len(rows) == limit else cast("int", last)
        return self._rows(rows, read_to)

    def lacking_among(self, seqs: Sequence[int]) -> LackingRows:
        """Those of these messages that have none."""
        with self._readers.read() as connection:
            rows = connection.execute(
                f"{_SELECT} FROM carray(?2) c CROSS JOIN {_OF_RESOURCE}"
                f" WHERE m.seq = c.value AND {_WITHOUT}",
                (self.key, keys.seq_array(seqs)),
            ).fetchall()
        return self._rows(rows, None)

    def put(self, records: Sequence[VectorRecord]) -> list[bool]:
        """Store vectors whose row still has that revision and resource."""
        if not records:
            return []
        check_vectors(records)
        operation = PutVectors(records, self.generation, only_served=False)
        return self._writer.submit(operation, size_bytes=vector_bytes(records))

    def _rows(self, rows: list[tuple[Any, ...]], read_to: int | None) -> LackingRows:
        found: list[PendingRow] = []
        damaged: list[int] = []
        for row in rows:
            resource_id = shown(cast("bytes", row[-1]))
            try:
                text = stored_message(row[:-1], resource_id, self._decode).text
            except CorruptDataError:
                damaged.append(int(row[0]))
                continue
            found.append(PendingRow(resource_id, row[0], row[MESSAGE_REVISION], text))
        self._damage.found("message", damaged)
        return LackingRows(tuple(found), tuple(damaged), read_to)

    def _sound_rows(
        self, resource_id: str, resource_key: int, columns: VectorColumns
    ) -> PartitionRows:
        if columns.corrupt_seqs:
            self._damage.found("vector", columns.corrupt_seqs)
            damaged = (resource_id, resource_key, columns.corrupt_seqs, self.key)
            self._writer.post(partial(_requeue, damaged, self._damage))
        return columns.partition_rows()


def _requeue(
    damaged: tuple[str, int, tuple[int, ...], int],
    log: DamageLog,
    connection: apsw.Connection,
    _revision: int,
) -> Change[None]:
    resource_id, resource_key, seqs, generation_key = damaged
    requeue(connection, resource_key, seqs, generation_key)
    rows = [row for seq in seqs for row in pending_of(connection, seq)]
    return Change(None, resources=(resource_id,), committed=partial(log.requeued, rows))
