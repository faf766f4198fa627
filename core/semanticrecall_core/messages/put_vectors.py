"""Writing vectors: put for a row's current revision, carried along, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import apsw
import numpy as np

from ..types.errors import EmbeddingFailedError
from ..types.ports import CommitListener
from ..types.values import PartitionRows, VectorRecord
from . import keys
from .commit import Change, Notice
from .generations import kept_keys, key_of, served_key
from .vector_rows import VECTOR_COLUMNS, VectorColumns, vector_checksums

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROW_OVERHEAD_BYTES = 256
_CHUNK, _GENERATION = 1, 7  # positions among the numbers of a vector row

_INSERT = (
    "INSERT INTO vectors(seq, chunk, resource_key, thread_key, create_time_ns, role, revision,"
    " generation_key, checksum, text_hash, vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class VectorNotices:
    """What the vector index is told about one resource at the end of an operation."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._removed: list[int] = []
        self._numbers: list[NDArray[np.int64]] = []
        self._vectors: list[NDArray[np.float32]] = []
        self._checksums: list[NDArray[np.int64]] = []

    def removed(self, seq: int) -> None:
        """This message has no vectors now."""
        self._removed.append(seq)

    def put(self, columns: VectorColumns) -> None:
        """These rows, all of the generation that is searched, are their messages' vectors now."""
        if len(columns.numbers):
            self._numbers.append(columns.numbers)
            self._vectors.append(columns.vectors)
            self._checksums.append(columns.checksums)

    def notices(self, resource_id: str) -> tuple[Notice, ...]:
        """The calls to make."""
        found: list[Notice] = []
        if self._removed:
            found.append(partial(_tell_removed, resource_id, sorted(self._removed)))
        if self._numbers:
            columns = VectorColumns(
                np.concatenate(self._numbers),
                np.concatenate(self._vectors),
                np.concatenate(self._checksums),
                (),
            )
            found.append(partial(_tell_put, resource_id, columns.partition_rows()))
        return tuple(found)


def vector_bytes(records: Sequence[VectorRecord]) -> int:
    """Roughly what a put writes."""
    return sum(r.vectors.nbytes + _ROW_OVERHEAD_BYTES * len(r.vectors) for r in records)


def check_vectors(records: Sequence[VectorRecord]) -> None:
    """Refuse what must never be stored.

    Raises:
        EmbeddingFailedError: not (chunks, dimensions) float32 with at least one row, not all of the
            same dimensions, or a number that is not finite.
    """
    for record in records:
        vectors = record.vectors
        if vectors.ndim != 2 or vectors.size == 0 or vectors.dtype != np.float32:
            raise EmbeddingFailedError("vectors must be float32 rows of at least one chunk")
    if len({record.vectors.shape[1] for record in records}) != 1:
        raise EmbeddingFailedError("vectors that are put together must be equally long")
    if not np.isfinite(np.concatenate([record.vectors for record in records])).all():
        raise EmbeddingFailedError("a vector holds a number that is not finite")


class _Row(NamedTuple):
    """A record, and what its message's row says."""

    record: VectorRecord
    resource_key: int
    thread_key: int
    create_time_ns: int
    role: int
    text_hash: bytes


class PutVectors:
    """One call of `MessageStore.put_vectors`: an operation for the writer thread."""

    def __init__(
        self, records: Sequence[VectorRecord], generation: str, *, only_served: bool = True
    ) -> None:
        """The records must have passed `check_vectors`.

        Args:
            records: what to store.
            generation: what they are of.
            only_served: store them only if that generation is searched; else also while it is
                being made.
        """
        self._records = records
        self._generation = generation
        self._only_served = only_served

    def __call__(self, connection: apsw.Connection, _revision: int) -> Change[list[bool]]:
        """See commit.Operation."""
        key, served = key_of(connection, self._generation), served_key(connection)
        if key is None or (self._only_served and key != served):
            return Change([False] * len(self._records), changed=False)
        last = {record.seq: record for record in self._records}  # a later one replaces
        fresh: dict[str, list[_Row]] = {}
        results: list[bool] = []
        for record in self._records:
            row = _row_of(connection, record)
            results.append(row is not None)
            if row is not None and last[record.seq] is record:
                fresh.setdefault(record.resource_id, []).append(row)
        told: list[Notice] = []
        for resource_id, rows in fresh.items():
            columns = self._store(connection, rows, key)
            if key != served:
                continue
            notices = VectorNotices()
            notices.put(columns)
            told.extend(notices.notices(resource_id))
            seqs = keys.seq_array([row.record.seq for row in rows])
            connection.execute(
                "DELETE FROM pending WHERE seq IN (SELECT value FROM carray(?))", (seqs,)
            )
        resources = tuple(fresh) if key == served else ()  # nothing has changed for who reads
        return Change(results, changed=bool(fresh), notices=tuple(told), resources=resources)

    def _store(
        self, connection: apsw.Connection, rows: Sequence[_Row], generation_key: int
    ) -> VectorColumns:
        """Write the vectors of one resource's messages; all columns are made at once."""
        seqs = [row.record.seq for row in rows]
        counts = [len(row.record.vectors) for row in rows]
        heads = [
            (
                row.record.seq,
                0,
                row.resource_key,
                row.thread_key,
                row.create_time_ns,
                row.role,
                row.record.revision,
                generation_key,
            )
            for row in rows
        ]
        numbers = np.repeat(np.array(heads, np.int64), counts, axis=0)
        numbers[:, _CHUNK] = np.concatenate([np.arange(count) for count in counts])
        vectors = np.concatenate([row.record.vectors for row in rows]).astype("<f4", copy=False)
        sums = vector_checksums(numbers, vectors)
        hashes = [row.text_hash for row, n in zip(rows, counts, strict=True) for _ in range(n)]
        delete_vectors(connection, rows[0].resource_key, seqs, generation_key)
        connection.executemany(
            _INSERT,
            (
                (*row, checksum, text_hash, vector.tobytes())
                for row, checksum, text_hash, vector in zip(
                    numbers.tolist(), sums.tolist(), hashes, vectors, strict=True
                )
            ),
        )
        return VectorColumns(numbers, vectors, sums, ())


def carry_vectors(
    connection: apsw.Connection,
    resource_key: int,
    seq: int,
    columns: tuple[int, int, int, int],
    to_resource_key: int | None = None,
) -> VectorColumns | None:
    """Give a message's vectors its new thread, time, role and revision.

    Those of a generation that is being made are carried along, unless one is damaged: they are
    deleted then, and made again. Those of dropped generations are deleted.

    Args:
        columns: thread_key, create_time_ns, role, revision.
        to_resource_key: the message's new resource, where that changes too.

    Returns:
        The rows that are searched, as they are now; None if one is damaged (all must be deleted).
    """
    rows = connection.execute(
        f"SELECT {VECTOR_COLUMNS} FROM vectors v WHERE resource_key = ? AND seq = ? ORDER BY chunk",
        (resource_key, seq),
    ).fetchall()
    served, kept = served_key(connection), kept_keys(connection)
    of_served = [row for row in rows if row[_GENERATION] == served]
    carried = _carried(connection, of_served, columns, to_resource_key)
    if carried is None:
        return None
    for key in {cast("int", row[_GENERATION]) for row in rows} - {served}:
        of_key = [row for row in rows if row[_GENERATION] == key]
        if key not in kept or _carried(connection, of_key, columns, to_resource_key) is None:
            delete_vectors(connection, resource_key, [seq], key)
    return carried


def _carried(
    connection: apsw.Connection,
    rows: Sequence[tuple[Any, ...]],
    columns: tuple[int, int, int, int],
    to_resource_key: int | None,
) -> VectorColumns | None:
    """`carry_vectors` for the rows of one generation."""
    found = VectorColumns.of(rows)
    if found.corrupt_seqs:
        return None
    if not rows:
        return found
    seq, resource_key, key = rows[0][0], rows[0][2], rows[0][_GENERATION]
    numbers = found.numbers.copy()
    numbers[:, 3:7] = columns
    target = resource_key if to_resource_key is None else to_resource_key
    numbers[:, 2] = target
    sums = vector_checksums(numbers, found.vectors)
    for chunk, checksum in zip(numbers[:, 1].tolist(), sums.tolist(), strict=True):
        connection.execute(
            "UPDATE vectors SET thread_key = ?, create_time_ns = ?, role = ?, revision = ?,"
            " checksum = ?, resource_key = ?"
            " WHERE resource_key = ? AND seq = ? AND chunk = ? AND generation_key = ?",
            (*columns, checksum, target, resource_key, seq, chunk, key),
        )
    return VectorColumns(numbers, found.vectors, sums, ())


def delete_vectors(
    connection: apsw.Connection,
    resource_key: int,
    seqs: Sequence[int],
    generation_key: int | None = None,
) -> int:
    """Delete the vectors of these messages, of one generation or (None) of all; returns rows."""
    if len(seqs) == 1:
        connection.execute(
            "DELETE FROM vectors WHERE resource_key = ?1 AND seq = ?2"
            " AND (?3 IS NULL OR generation_key = ?3)",
            (resource_key, seqs[0], generation_key),
        )
    else:
        connection.execute(
            "DELETE FROM vectors WHERE resource_key = ?1"
            " AND seq IN (SELECT value FROM carray(?2)) AND (?3 IS NULL OR generation_key = ?3)",
            (resource_key, keys.seq_array(seqs), generation_key),
        )
    return connection.changes()


def requeue(
    connection: apsw.Connection,
    resource_key: int,
    seqs: Sequence[int],
    generation_key: int | None = None,
) -> None:
    """Delete damaged vectors, of one generation or of all, and have their texts embedded again.

    Those of a generation that is being made are found to lack.
    """
    delete_vectors(connection, resource_key, seqs, generation_key)
    if generation_key not in (None, served_key(connection)):
        return
    connection.execute(
        "INSERT INTO pending SELECT seq, resource_key FROM messages WHERE embeddable = 1"
        " AND resource_key = ? AND seq IN (SELECT value FROM carray(?)) ON CONFLICT DO NOTHING",
        (resource_key, keys.seq_array(seqs)),
    )


def _row_of(connection: apsw.Connection, record: VectorRecord) -> _Row | None:
    """The message's row, if it is as it was when its text was embedded."""
    row = connection.execute(
        "SELECT m.resource_key, m.thread_key, m.create_time_ns, m.role, m.text_hash"
        " FROM messages m JOIN resources r ON r.resource_key = m.resource_key"
        " WHERE m.seq = ? AND m.revision = ? AND r.resource_id = ?",
        (record.seq, record.revision, record.resource_id),
    ).fetchone()
    return None if row is None else _Row(record, *row)


def _tell_removed(resource_id: str, seqs: list[int], listener: CommitListener) -> None:
    listener.vectors_removed(resource_id, np.array(seqs, np.int64))


def _tell_put(resource_id: str, rows: PartitionRows, listener: CommitListener) -> None:
    listener.vectors_put(resource_id, rows)
