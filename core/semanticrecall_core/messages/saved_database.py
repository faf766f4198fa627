"""Databases that were saved: `recall.db` in a file of its own, without a log.

Such a file was written by VACUUM INTO, so that there is nothing in it but what its tables hold. It
is the database of schema.py, of the format that it says; nobody writes to it. Its pages carry
checksums, or are encrypted, as those of the store are that it was made of.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, cast

import apsw

from ..types.errors import CorruptDataError, FailedPreconditionError
from ..types.saving import Origin, SavedState
from ..types.values import CallBudget
from . import keys, page_sums
from .analysis_rows import ANALYSIS_COLUMNS, AnalysisColumns
from .connection import break_off_after, connect, translated_errors
from .rows import MESSAGE_COLUMNS, MESSAGE_COLUMNS_COUNT, MESSAGES, stored_message
from .schema import APPLICATION_ID, FORMAT, read_record
from .vector_rows import VECTOR_COLUMNS, VectorColumns

BATCH_ROWS = 512
STAGE_SUFFIX = ".stage"
_SQLITE_FINDINGS_MAX = 1
_CACHE_KIB = 16 << 10


class SqliteSavedDatabases:
    """See `SavedDatabases` in types/saving.py."""

    def __init__(
        self, *, vfs: str = "", key_of: Callable[[Path], bytes | None] | None = None
    ) -> None:
        """How they are opened.

        Args:
            vfs: SQLite's operating system layer; "" is its default.
            key_of: the key of the database in a folder; None where it is not encrypted.
        """
        self._vfs = vfs
        self._key_of = key_of

    def state(self, database: Path) -> SavedState:
        """What is in one."""
        with self.opened(database) as connection:
            return state_of(connection)

    def check(self, database: Path, budget: CallBudget, *, rows: bool = True) -> None:
        """Have SQLite check its pages, and compare the checksum of every row."""
        with self.opened(database, budget) as connection:
            for (detail,) in connection.execute(f"PRAGMA integrity_check({_SQLITE_FINDINGS_MAX})"):
                if detail != "ok":
                    raise CorruptDataError("the saved database is damaged")
            if not rows:
                return
            for batch in batches(connection, _MESSAGES):
                for row in batch:
                    _check_message(row)
            for batch in batches(connection, f"SELECT {VECTOR_COLUMNS} FROM vectors v"):
                _check_vectors(batch)
            for batch in batches(connection, f"SELECT {ANALYSIS_COLUMNS} FROM analyses a"):
                if AnalysisColumns.of(batch).corrupt_seqs:
                    raise CorruptDataError("a saved analysis does not match its checksum")

    def count_of(self, database: Path, seqs: Sequence[int]) -> int:
        """How many of these messages are in it."""
        with self.opened(database) as connection:
            return int(
                connection.execute(
                    "SELECT count(*) FROM carray(?) c JOIN messages m ON m.seq = c.value",
                    (keys.seq_array(seqs),),
                ).get
            )

    def rewrite(
        self, database: Path, target: Path, seqs: Sequence[int], budget: CallBudget
    ) -> SavedState:
        """Write it anew without these messages."""
        with self._staged(database, target, budget) as connection:
            remove_messages(connection, seqs)
        return self.state(target)

    def write_restored(
        self,
        database: Path,
        target: Path,
        left_out: Sequence[int],
        store_id: str,
        budget: CallBudget,
    ) -> tuple[SavedState, int]:
        """Write it anew as the database of another store; returns its state, and how many left.

        Args:
            database, target: from where, to where.
            left_out: messages that are not taken.
            store_id: of the new store.
            budget: of both.
        """
        with self._staged(database, target, budget) as connection:
            before = state_of(connection)
            removed = remove_messages(connection, left_out)
            connection.execute("DELETE FROM forgotten")
            add_origins(connection, origins_of(connection), shift=0)
            connection.execute(
                "UPDATE record SET store_id = ?, snapshot_seq = ?, revision = revision + 1,"
                " forgotten_revision = 0, erased_revision = 0",
                (store_id, before.last_seq),
            )
        return self.state(target), removed

    @contextmanager
    def opened(
        self, database: Path, budget: CallBudget | None = None
    ) -> Generator[apsw.Connection]:
        """A connection that reads, for as long as this lasts; it has looked at what the file is.

        Raises:
            FailedPreconditionError: another program's database, or another format.
            CorruptDataError: it is no database, or not there.
        """
        with translated_errors():
            if not database.is_file() or database.is_symlink():
                raise CorruptDataError("the snapshot has no database")
            with closing(self._open(database, writable=False)) as connection:
                _check_kind(connection)
                if budget is not None:
                    break_off_after(connection, budget)
                yield connection

    @contextmanager
    def _staged(
        self, database: Path, target: Path, budget: CallBudget
    ) -> Generator[apsw.Connection]:
        """A copy to be changed, inside a transaction; then `target` is what became of it.

        What is deleted from a database leaves traces in its pages. The target is written row by
        row, so that it has none.
        """
        stage = target.with_name(target.name + STAGE_SUFFIX)
        stage.unlink(missing_ok=True)  # what a process left that was killed
        try:
            with self.opened(database, budget) as connection:
                copy_into(connection, stage)
            with (
                translated_errors(),
                closing(self._open(stage, writable=True)) as connection,
            ):
                connection.pragma("journal_mode", "OFF")
                connection.pragma("synchronous", "OFF")
                break_off_after(connection, budget)
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
                copy_into(connection, target)
        finally:
            stage.unlink(missing_ok=True)

    def _open(self, database: Path, *, writable: bool) -> apsw.Connection:
        mode = "rw" if writable else "ro&immutable=1"
        connection = connect(
            f"{database.absolute().as_uri()}?mode={mode}",
            apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY,
            base=self._vfs,
            key=None if self._key_of is None else self._key_of(database.parent),
        )
        connection.pragma("cache_size", -_CACHE_KIB)
        return connection


def _check_vectors(rows: Sequence[tuple[Any, ...]]) -> None:
    """Of whatever models: those of one size at a time."""
    sized: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        size = len(row[-1]) if isinstance(row[-1], bytes) else 0
        sized.setdefault(size, []).append(row)
    if any(VectorColumns.of(alike).corrupt_seqs for alike in sized.values()):
        raise CorruptDataError("a saved vector does not match its checksum")


def copy_into(connection: apsw.Connection, target: Path) -> None:
    """Write what a connection sees now to a new file (0600), row by row."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection.execute("VACUUM INTO ?", (str(target),))
    page_sums.complete(target)


def state_of(connection: apsw.Connection) -> SavedState:
    """What a database says of itself."""
    record = read_record(connection)
    row = connection.execute(
        "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM vectors),"
        " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0),"
        " coalesce((SELECT identity FROM generations"
        " WHERE generation_key = (SELECT generation_key FROM record)), '')"
    ).fetchone()
    messages, vectors, last_seq, identity = cast("tuple[int, int, int, str]", row)
    origins = connection.execute("SELECT store_id, first_seq, last_seq, shift FROM origins")
    return SavedState(
        store_id=record.store_id,
        revision=record.revision,
        record_format=int(connection.pragma("user_version")),
        last_seq=last_seq,
        messages=messages,
        vectors=vectors,
        origins=tuple(Origin(*cast("tuple[str, int, int, int]", each)) for each in origins),
        index_identity=str(identity),
    )


def remove_messages(connection: apsw.Connection, seqs: Sequence[int]) -> int:
    """Delete messages with all that belongs to them; returns how many there were."""
    if not seqs:
        return 0
    chosen = (keys.seq_array(seqs),)
    for table in ("vectors", "analyses"):
        connection.execute(
            f"DELETE FROM {table} WHERE (resource_key, seq) IN (SELECT m.resource_key, m.seq"
            " FROM carray(?) c JOIN messages m ON m.seq = c.value)",
            chosen,
        )
    connection.execute("DELETE FROM pending WHERE seq IN (SELECT value FROM carray(?))", chosen)
    connection.execute("DELETE FROM messages WHERE seq IN (SELECT value FROM carray(?))", chosen)
    removed = connection.changes()
    if removed:
        drop_what_is_empty(connection)
    return removed


def drop_what_is_empty(connection: apsw.Connection) -> None:
    """Delete threads and resources that have no messages."""
    connection.execute(
        "DELETE FROM threads WHERE NOT EXISTS"
        " (SELECT 1 FROM messages m WHERE m.thread_key = threads.thread_key)"
    )
    connection.execute(
        "DELETE FROM resources WHERE NOT EXISTS"
        " (SELECT 1 FROM messages m WHERE m.resource_key = resources.resource_key)"
    )


def origins_of(connection: apsw.Connection) -> list[Origin]:
    """Where a database's rows are from: its own store, and those that this one has taken from."""
    state = state_of(connection)
    return [Origin(state.store_id, 1, state.last_seq, 0), *state.origins]


def add_origins(connection: apsw.Connection, origins: Sequence[Origin], *, shift: int) -> None:
    """Make these the origins of a store that takes the rows with seqs higher by `shift`."""
    connection.execute("DELETE FROM origins")
    connection.executemany(
        "INSERT INTO origins VALUES (?, ?, ?, ?)",
        [
            (store_id, first + shift, last + shift, older + shift)
            for store_id, first, last, older in origins
        ],
    )


def batches(
    connection: apsw.Connection, text: str, bindings: tuple[object, ...] = ()
) -> Iterator[list[tuple[Any, ...]]]:
    """Rows of a statement, some in memory at a time."""
    rows = iter(connection.execute(text, bindings))
    while batch := list(islice(rows, BATCH_ROWS)):
        yield cast("list[tuple[Any, ...]]", batch)


_MESSAGES = (
    f"SELECT {MESSAGE_COLUMNS}, CAST(r.resource_id AS BLOB)"
    f" FROM {MESSAGES} LEFT JOIN resources r ON r.resource_key = m.resource_key ORDER BY m.seq"
)


def _check_message(row: tuple[Any, ...]) -> None:
    owner: bytes | None = row[MESSAGE_COLUMNS_COUNT]
    if owner is None:
        raise CorruptDataError(f"message row {row[0]} has no resource")
    stored_message(row[:MESSAGE_COLUMNS_COUNT], owner.decode(), unread)


def unread(encoded: bytes) -> NoReturn:
    """Stands for a codec where no message is decoded."""
    raise AssertionError(f"{len(encoded)} bytes are decoded")


def _check_kind(connection: apsw.Connection) -> None:
    if connection.pragma("application_id") != APPLICATION_ID:
        raise FailedPreconditionError(
            "the snapshot's database is not one of this program", reason="FOREIGN_DATABASE"
        )
    version = connection.pragma("user_version")
    if version != FORMAT:
        raise FailedPreconditionError(
            f"the snapshot has format {version}; this version reads format {FORMAT}",
            reason="FORMAT_UNKNOWN",
        )
