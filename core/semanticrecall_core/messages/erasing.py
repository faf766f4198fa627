"""What the record does for Forget, purge and retention; see `ErasableStore` in types/erasing.py.

SQLite overwrites a row that is deleted where it lies (secure_delete). Two places may hold it still:
the log, until it has been copied into the file and cut to nothing; and a page that the row lay on
before, when rows were moved to make or to fill room. Both are seen to by a purge.
"""

from __future__ import annotations

import threading
from typing import cast

import apsw

from ..types.ports import MessageCodec
from ..types.values import (
    CallBudget,
    ForgetCondition,
    ForgetOutcome,
    ForgetTarget,
    PurgeState,
    RowsToForget,
)
from . import keys
from .commit import Change, GroupCommit
from .connection import ReaderPool
from .forget import Forget, ForgetSearch, rows_to_forget

_RETRY_S = 0.02
_RETRY_S_MAX = 1.0


class RecordErasing:
    """The part of the store that removes. Mixed into it: it has the readers and the writer."""

    _readers: ReaderPool
    _writer: GroupCommit
    _codec: MessageCodec

    def forget(self, resource_id: str, target: ForgetTarget) -> ForgetOutcome:
        """Remove messages, their vectors and threads that are empty then, as many as go at once."""
        operation = Forget(resource_id, target, self._codec.decode)
        return self._writer.submit(operation, frees_space=True)

    def rows_to_forget(
        self,
        resource_id: str,
        condition: ForgetCondition,
        after: tuple[int, int] | None,
        changed_after: int,
        budget: CallBudget,
    ) -> RowsToForget:
        """One page of the messages that meet a condition and changed after a revision."""
        search = ForgetSearch(resource_id, condition, after, changed_after)
        with self._readers.read(budget) as connection:
            return rows_to_forget(connection, search, self._codec.decode)

    # ---- purge ----

    def purge_state(self) -> PurgeState:
        """How far the files have been freed of what was forgotten."""
        with self._readers.read() as connection:
            row: tuple[int, int] = connection.execute(
                "SELECT forgotten_revision, erased_revision FROM record"
            ).get
        return PurgeState(*row)

    def erase(self, budget: CallBudget) -> int:
        """Free the record's files of all that was forgotten before this was called."""
        state = self.purge_state()
        self._empty_log(budget)
        if state.pending:
            self._writer.write_anew()
            self._empty_log(budget)
        return state.forgotten_revision

    def _empty_log(self, budget: CallBudget) -> None:
        pause = _RETRY_S
        waits = threading.Event()
        while not self._writer.empty_log():
            # A reader is in the way: a call for some milliseconds, a snapshot for minutes.
            budget.check()
            waits.wait(min(pause, budget.remaining()))
            pause = min(2 * pause, _RETRY_S_MAX)

    def erased(self, revision: int) -> None:
        """All that was forgotten up to this revision has left all files."""

        def note(connection: apsw.Connection, _revision: int) -> Change[None]:
            connection.execute(
                "UPDATE record SET erased_revision = ?1 WHERE erased_revision < ?1", (revision,)
            )
            return Change(None, changed=connection.changes() > 0)

        self._writer.submit(note, frees_space=True)

    # ---- retention ----

    def resources_older_than(
        self, before_ns: int, after: str, limit: int
    ) -> tuple[list[str], str | None]:
        """Resources with a message created before this time, in pages."""
        with self._readers.read() as connection:
            found = connection.execute(
                "SELECT resource_id, EXISTS (SELECT 1 FROM messages m"
                " WHERE m.resource_key = r.resource_key AND m.create_time_ns < ?)"
                " FROM resources r WHERE resource_id > ? ORDER BY resource_id LIMIT ?",
                (before_ns, after, limit),
            )
            rows = cast("list[tuple[str, int]]", found.fetchall())
        return [row[0] for row in rows if row[1]], rows[-1][0] if len(rows) == limit else None

    def oldest_rows(
        self, resource_id: str, before_ns: int | None, messages_max: int, limit: int
    ) -> tuple[tuple[int, int], ...]:
        """(seq, revision) of what a resource is to lose, the oldest first by (create_time, seq)."""
        with self._readers.read() as connection:
            resource = keys.resource_key(connection, resource_id)
            if resource is None:
                return ()
            ends = [] if before_ns is None else [(before_ns, 0)]
            if messages_max:
                newest_to_go = connection.execute(
                    "SELECT create_time_ns, seq FROM messages WHERE resource_key = ?"
                    " ORDER BY create_time_ns DESC, seq DESC LIMIT 1 OFFSET ?",
                    (resource, messages_max),
                ).fetchone()
                if newest_to_go is not None:
                    ends.append((newest_to_go[0], newest_to_go[1] + 1))
            if not ends:
                return ()
            return tuple(
                connection.execute(
                    "SELECT seq, revision FROM messages WHERE resource_key = ?"
                    " AND (create_time_ns, seq) < (?, ?) ORDER BY create_time_ns, seq LIMIT ?",
                    (resource, *max(ends), limit),
                )
            )

    def retention_time_ns(self) -> int:
        """How far the clock of the retention had come when that was last kept; 0 before."""
        with self._readers.read() as connection:
            return int(connection.execute("SELECT retention_time_ns FROM record").get)

    def keep_retention_time(self, time_ns: int) -> None:
        """Keep how far it has come."""

        def keep(connection: apsw.Connection, _revision: int) -> Change[None]:
            connection.execute("UPDATE record SET retention_time_ns = ?", (time_ns,))
            return Change(None)

        self._writer.submit(keep, frees_space=True)
