"""Filling an empty store with a saved database.

The store keeps its identity, so its seqs and keys must stay unique: those of the saved database are
raised by the highest that this store ever gave, and all rows get the revision of this change and
new checksums. Rows are read and written a batch at a time, in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import apsw
import numpy as np
import structlog

from ..types.errors import CorruptDataError, FailedPreconditionError
from ..types.lexical import LexicalListener
from ..types.ports import CommitListener
from ..types.saving import RestoreCounts
from ..types.values import CallBudget
from . import keys
from .analysis_rows import ANALYSIS_COLUMNS, AnalysisColumns
from .commit import Change
from .generations import served_key
from .put_analyses import put_analyses
from .rows import MESSAGE_COLUMNS, MESSAGES, message_checksum, stored_message
from .saved_database import (
    SqliteSavedDatabases,
    add_origins,
    batches,
    drop_what_is_empty,
    origins_of,
    unread,
)
from .vector_rows import VECTOR_COLUMNS, VectorColumns, vector_checksums

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MESSAGES = (
    f"SELECT {MESSAGE_COLUMNS}, CAST(r.resource_id AS BLOB), m.content_hash, m.text_hash"
    f" FROM {MESSAGES} JOIN resources r ON r.resource_key = m.resource_key ORDER BY m.seq"
)
_INSERT_MESSAGE = (
    "INSERT INTO messages(seq, resource_key, thread_key, create_time_ns, revision, role,"
    " embeddable, id, group_id, metadata, encoded, checksum, content_hash, text_hash)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_VECTORS = (
    f"SELECT {VECTOR_COLUMNS}, v.text_hash FROM vectors v WHERE v.generation_key ="
    " (SELECT generation_key FROM generations WHERE generation = ?) ORDER BY v.vector_key"
)
_VECTOR_NUMBERS = 10
_log = structlog.get_logger(__name__)
_INSERT_VECTOR = (
    "INSERT INTO vectors(seq, chunk, resource_key, thread_key, create_time_ns, role, revision,"
    " generation_key, checksum, text_hash, vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What to take.

    Attributes:
        saved: opens it.
        database: where it is; checked before.
        left_out: its messages that are not taken.
        budget: nothing is taken where it is over before the end.
    """

    saved: SqliteSavedDatabases
    database: Path
    left_out: Sequence[int]
    budget: CallBudget


@dataclass(frozen=True, slots=True)
class _Shift:
    """By how much the numbers of the saved database are raised."""

    seq: int
    resource: int
    thread: int


class Restore:
    """One call of `SavableStore.restore`: an operation for the writer thread."""

    def __init__(self, request: RestoreRequest, codec: str) -> None:
        """`codec`: of the store."""
        self._request = request
        self._codec = codec

    def __call__(self, connection: apsw.Connection, revision: int) -> Change[RestoreCounts]:
        """See commit.Operation."""
        require_empty(connection)
        request = self._request
        with request.saved.opened(request.database, request.budget) as source:
            if source.execute("SELECT codec FROM record").get != self._codec:
                raise FailedPreconditionError(
                    "the snapshot keeps its messages in another form than this version",
                    reason="CODEC_UNKNOWN",
                )
            step = _RestoreStep(connection, source, revision, request)
            step.take_names()
            messages = step.take_messages()
            served = served_key(connection)
            vectors = step.take_vectors(served)
            step.take_analyses()
            step.finish(served)
        names = connection.execute("SELECT resource_id FROM resources").fetchall()
        resources = tuple(str(row[0]) for row in names)
        return Change(
            RestoreCounts(messages, vectors, step.left_out_count),
            notices=tuple(partial(_tell_dropped, resource_id) for resource_id in resources),
            lexical_notices=tuple(partial(_tell_dropped, name) for name in resources),
            resources=resources,
        )


def require_empty(connection: apsw.Connection) -> None:
    """Raise FailedPreconditionError (STORE_NOT_EMPTY) where there is a message."""
    if connection.execute("SELECT EXISTS (SELECT 1 FROM messages)").get:
        raise FailedPreconditionError(
            "the store has messages; restore into an empty one, or beside it with"
            " `semanticrecall snapshot restore --data-dir`",
            reason="STORE_NOT_EMPTY",
        )


class _RestoreStep:
    """A restore inside its transaction."""

    def __init__(
        self,
        connection: apsw.Connection,
        source: apsw.Connection,
        revision: int,
        request: RestoreRequest,
    ) -> None:
        self.left_out_count = 0
        self._connection = connection
        self._source = source
        self._revision = revision
        self._left_out = frozenset(request.left_out)
        self._damaged: set[int] = set()
        self._budget = request.budget
        self._shift = _Shift(
            _last(connection, "messages"),
            _last(connection, "resources"),
            _last(connection, "threads"),
        )

    def take_names(self) -> None:
        """Resources and threads, also those of messages that are left out."""
        shift = self._shift
        for batch in self._batches("SELECT resource_key, resource_id FROM resources"):
            self._connection.executemany(
                "INSERT INTO resources(resource_key, resource_id) VALUES (?, ?)",
                [(key + shift.resource, name) for key, name in batch],
            )
        for batch in self._batches("SELECT thread_key, resource_key, thread_id FROM threads"):
            self._connection.executemany(
                "INSERT INTO threads(thread_key, resource_key, thread_id) VALUES (?, ?, ?)",
                [(key + shift.thread, owner + shift.resource, name) for key, owner, name in batch],
            )

    def take_messages(self) -> int:
        """All but those that are left out; returns how many."""
        taken = 0
        for batch in self._batches(_MESSAGES):
            rows = [row for row in batch if row[0] not in self._left_out]
            self.left_out_count += len(batch) - len(rows)
            sound = list(filter(self._is_sound, rows))
            self._connection.executemany(_INSERT_MESSAGE, list(map(self._message, sound)))
            taken += len(sound)
        return taken

    def _is_sound(self, row: tuple[Any, ...]) -> bool:
        """A row that was damaged when it was saved gets no fresh checksum."""
        try:
            stored_message(row[:13], row[13].decode(), unread)
        except (CorruptDataError, UnicodeDecodeError):
            self._damaged.add(row[0])
            _log.error("snapshot_row_corrupt", seq=row[0])
            return False
        return True

    def _message(self, row: tuple[Any, ...]) -> tuple[object, ...]:
        """A row as it is stored here."""
        owner, content_hash, text_hash = row[13:16]
        shift = self._shift
        numbers = (
            row[0] + shift.seq,
            row[1] + shift.resource,
            row[2] + shift.thread,
            row[3],
            self._revision,
            row[5],
            row[6],
        )
        thread, message_id, group, metadata, encoded = row[7:12]
        checksum = message_checksum(numbers, (owner, thread, message_id, group, metadata), encoded)
        return (
            *numbers,
            message_id.decode(),
            group.decode(),
            metadata.decode() or None,
            encoded,
            checksum,
            content_hash,
            text_hash,
        )

    def take_vectors(self, generation_key: int) -> int:
        """Those of the generation that is searched here; returns how many."""
        generation = self._connection.execute(
            "SELECT generation FROM generations WHERE generation_key = ?", (generation_key,)
        ).get
        taken = 0
        gone = self._left_out | self._damaged
        for batch in self._batches(_VECTORS, (generation,)):
            rows = [row for row in batch if row[0] not in gone]
            found = VectorColumns.of([row[:_VECTOR_NUMBERS] for row in rows])
            if found.corrupt_seqs:
                rows = [row for row in rows if row[0] not in found.corrupt_seqs]
                taken -= self._drop_vectors(found.corrupt_seqs)
                gone = gone.union(found.corrupt_seqs)
            if not rows:
                continue
            numbers = self._raised(found.numbers)
            numbers[:, 7] = generation_key
            sums = vector_checksums(numbers, found.vectors)
            columns = (sums.tolist(), (row[10] for row in rows), (row[9] for row in rows))
            self._connection.executemany(
                _INSERT_VECTOR,
                ((*head, *rest) for head, *rest in zip(numbers.tolist(), *columns, strict=True)),
            )
            taken += len(rows)
        return taken

    def _drop_vectors(self, seqs: Sequence[int]) -> int:
        """Chunks of damaged vectors that were taken already; their texts are embedded again."""
        _log.error("snapshot_vectors_corrupt", messages=len(seqs))
        self._connection.execute(
            "DELETE FROM vectors WHERE seq IN (SELECT value FROM carray(?))",
            (keys.seq_array([seq + self._shift.seq for seq in seqs]),),
        )
        return self._connection.changes()

    def take_analyses(self) -> None:
        """Those of messages that are taken; damaged ones are made anew when they are needed."""
        gone = self._left_out | self._damaged
        for batch in self._batches(f"SELECT {ANALYSIS_COLUMNS} FROM analyses a"):
            found = AnalysisColumns.of([row for row in batch if row[0] not in gone])
            if len(found.analysed):
                numbers = self._raised(np.insert(found.numbers, 1, 0, axis=1))
                columns = AnalysisColumns(np.delete(numbers, 1, axis=1), found.analysed)
                put_analyses(self._connection, columns)

    def _raised(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of rows (seq, chunk, resource, thread, time, role, revision, ...) as of here."""
        raised = numbers.copy()
        raised[:, 0] += self._shift.seq
        raised[:, 2] += self._shift.resource
        raised[:, 3] += self._shift.thread
        raised[:, 6] = self._revision
        return raised

    def finish(self, generation_key: int) -> None:
        """What waits to be embedded, what is empty, and where the rows are from."""
        connection = self._connection
        connection.execute(
            "INSERT INTO pending SELECT seq, resource_key FROM messages m WHERE embeddable = 1"
            " AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.resource_key = m.resource_key"
            " AND v.seq = m.seq AND v.generation_key = ?)",
            (generation_key,),
        )
        if self.left_out_count or self._damaged:
            drop_what_is_empty(connection)
        origins = origins_of(self._source)
        add_origins(connection, origins, shift=self._shift.seq)
        last = origins[0][2] + self._shift.seq
        connection.execute("UPDATE record SET snapshot_seq = max(snapshot_seq, ?)", (last,))
        # Seqs of messages that were forgotten before are not given to others.
        connection.execute(
            "INSERT INTO sqlite_sequence(name, seq) SELECT 'messages', 0 WHERE NOT EXISTS"
            " (SELECT 1 FROM sqlite_sequence WHERE name = 'messages')"
        )
        connection.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'messages'", (last,)
        )

    def _batches(
        self, text: str, bindings: tuple[object, ...] = ()
    ) -> Iterator[list[tuple[Any, ...]]]:
        for batch in batches(self._source, text, bindings):
            self._budget.check()
            yield batch


def _last(connection: apsw.Connection, table: str) -> int:
    """The highest key that a table ever gave."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return 0 if row is None else int(cast("int", row[0]))


def _tell_dropped(resource_id: str, listener: CommitListener | LexicalListener) -> None:
    listener.resource_dropped(resource_id)
