"""Writing the store to a file, filling it from one, and what snapshots make it remember.

A message is named for ever by (store_id, seq). What is forgotten while a snapshot may hold it gets
a row in `forgotten`: `record.snapshot_seq` says up to which seq that may be. Before a snapshot is
made it is raised to all that can be, and afterwards lowered to what the snapshot has; where a
process ends in between it stays too high, which costs rows and nothing else, until the next start.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import apsw

from ..types.saving import SEQ_MAX, ForgottenMessage, Origin, RestoreCounts
from ..types.values import CallBudget
from .commit import Change, GroupCommit
from .connection import DatabaseFile, ReaderPool, break_off_after, translated_errors
from .restoring import Restore, RestoreRequest, require_empty
from .saved_database import SqliteSavedDatabases, copy_into

if TYPE_CHECKING:
    from .sqlite_store import SqliteMessageStore


class StoreSaving:
    """See `SavableStore` in types/saving.py."""

    def __init__(
        self,
        file: DatabaseFile,
        readers: ReaderPool,
        writer: GroupCommit,
        store: SqliteMessageStore,
        saved: SqliteSavedDatabases,
    ) -> None:
        """Parts of an open store.

        Args:
            file, readers, writer: its database.
            store: the store itself.
            saved: opens what it is filled from.
        """
        self._file = file
        self._readers = readers
        self._writer = writer
        self._store = store
        self._saved = saved

    @property
    def store_id(self) -> str:
        """Identity of the data directory."""
        return self._store.store_id

    @property
    def size_bytes(self) -> int:
        """Of its database, about."""
        return self._store.stats(None).disk_bytes

    def expect_snapshot(self) -> int:
        """From now on, and until `snapshot_made`, remember whatever is forgotten.

        Returns:
            What to give `snapshot_made` where no snapshot was made.
        """
        return self._writer.submit(_expect_snapshot)

    def give_up_snapshot(self) -> None:
        """After a start: nobody makes a snapshot, whatever the last process was about to do."""
        self._writer.submit(_give_up_snapshot)

    def save(self, target: Path, budget: CallBudget) -> None:
        """Write everything, as it is at one revision, to a new file.

        It is one long read: the log grows by what is written meanwhile, and is taken back after.
        """
        budget.check()
        with translated_errors(), closing(self._file.open_reader()) as connection:
            # A connection that may only query writes no other file either.
            connection.pragma("query_only", "OFF")
            break_off_after(connection, budget)
            copy_into(connection, target)

    def snapshot_made(self, last_seq: int) -> None:
        """A snapshot holds messages up to this seq; 0: there is none."""
        self._writer.submit(partial(_snapshot_made, last_seq), frees_space=True)

    def forgotten(self) -> list[ForgottenMessage]:
        """What was forgotten since a snapshot was made, of this store and of its origins."""
        with self._readers.read() as connection:
            rows = cast(
                "list[tuple[int, int]]",
                connection.execute("SELECT seq, revision FROM forgotten ORDER BY seq").fetchall(),
            )
            origins = _origins(connection)
        return self._named(rows, origins)

    def forgotten_of(self, seqs: Sequence[int], revision: int) -> list[ForgottenMessage]:
        """The same of these messages, which a change of this revision removed."""
        with self._readers.read() as connection:
            origins = _origins(connection)
        return self._named([(seq, revision) for seq in seqs], origins)

    def _named(
        self, rows: Sequence[tuple[int, int]], origins: Sequence[Origin]
    ) -> list[ForgottenMessage]:
        own = [ForgottenMessage(self.store_id, seq, revision) for seq, revision in rows]
        older = [
            # Whatever has become of that store: its snapshots shall not bring it back.
            ForgottenMessage(store_id, seq - shift, SEQ_MAX)
            for store_id, first, last, shift in origins
            for seq, _ in rows
            if first <= seq <= last
        ]
        return [*own, *older]

    def restore(self, database: Path, left_out: Sequence[int], budget: CallBudget) -> RestoreCounts:
        """Fill the store, which must be empty, with a saved database; all or nothing."""
        self.require_empty()
        request = RestoreRequest(self._saved, database, left_out, budget)
        return self._writer.submit(Restore(request, self._store.codec.name), budget)

    def require_empty(self) -> None:
        """Raise FailedPreconditionError (STORE_NOT_EMPTY) where there is a message."""
        with self._readers.read() as connection:
            require_empty(connection)


def _origins(connection: apsw.Connection) -> list[Origin]:
    rows = connection.execute("SELECT store_id, first_seq, last_seq, shift FROM origins")
    return [Origin(*cast("tuple[str, int, int, int]", row)) for row in rows]


def _expect_snapshot(connection: apsw.Connection, _revision: int) -> Change[int]:
    """What it was, but no more than there can be, where the last process ended in between."""
    before = connection.execute(
        "SELECT min(snapshot_seq,"
        " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0)) FROM record"
    ).get
    connection.execute("UPDATE record SET snapshot_seq = ?", (SEQ_MAX,))
    return Change(int(before))


def _give_up_snapshot(connection: apsw.Connection, _revision: int) -> Change[None]:
    connection.execute(
        "UPDATE record SET snapshot_seq ="
        " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0)"
        " WHERE snapshot_seq = ?",
        (SEQ_MAX,),
    )
    return Change(None, changed=connection.changes() > 0)


def _snapshot_made(last_seq: int, connection: apsw.Connection, _revision: int) -> Change[None]:
    connection.execute("UPDATE record SET snapshot_seq = ?", (last_seq,))
    return Change(None)
