"""The write connection over its life: opening, committing, checkpoints, doubt and recovery.

Everything here runs on the writer thread, but `open_journal`, which runs before that thread is.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import apsw
import structlog

from ..encryption import checksum_layer
from ..encryption.writing_anew import write_anew
from ..types.errors import CorruptDataError, ResourceExhaustedError, UnavailableError
from ..types.generations import ModelIdentity
from . import page_checksums
from .connection import BUSY_TIMEOUT_MS, DatabaseFile, translated, translated_errors
from .directory import DataDirectory
from .generations import choose_generation, require_model
from .high_water_mark import SYNC_INTERVAL_S, HighWaterMark, Mark
from .salvage import Salvaged, SalvageOf, remove_beside, write_beside
from .schema import (
    FORMAT,
    PAGE_BYTES,
    RecordState,
    ensure_schema,
    read_record,
    upgrade,
)

CHECKPOINT_PAGES = 1_000  # 8 MB of log
_MARK_IDLE_S = 0.02
_TRUNCATE_IDLE_S = 10.0
_BALLAST_RETRY_S = 5.0
_EMPTY_WAIT_MS = 50
_WRITTEN_ANEW_TIMES = 2
_FILES_INTERVAL_S = 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedJournal:
    """A journal with what the store needs to know of its record."""

    journal: RecordJournal
    store_id: str
    generation: tuple[int, str]


def open_journal(
    directory: DataDirectory,
    file: DatabaseFile,
    models: tuple[ModelIdentity, ModelIdentity | None],
    *,
    codec: str,
    accept_loss: bool,
) -> OpenedJournal:
    """Open or make the database, and hold it against the high-water mark.

    Args:
        directory, file: where it is.
        models: see generations.choose_generation.
        codec: see schema.ensure_schema.
        accept_loss: go on with a record that is shorter than what was acknowledged.

    Raises:
        CorruptDataError: acknowledged changes are missing, or the file is damaged.
        FailedPreconditionError: an unknown format, a foreign database, another codec's, or one
            with vectors of another model.
    """
    with translated_errors(), ExitStack() as undo:
        mark = HighWaterMark(directory.mark)
        undo.callback(mark.close)
        last = mark.read()
        if damaged := mark.damaged_slots():
            # The other slot says one change less: one lost change may go unnoticed, and no more.
            _log.warning("store_mark_damaged", slots=damaged)
        if last is not None and last.revision and not file.path.exists() and not accept_loss:
            raise _loss(last.revision)
        if file.key is None:
            page_checksums.check_header(file.path, PAGE_BYTES)
        has_log = _has_log(file)
        connection = file.open_writer()
        undo.callback(connection.close)
        # Who is refused leaves a log as it is, with what lies behind a damaged place in it.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_log))
        state = ensure_schema(connection, codec)
        require_model(connection, *models)
        state = _held_against(mark, last, state, accept_loss)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        remove_beside(file)
        older = upgrade(connection)
        if older is not None:
            _log.info("store_format_upgraded", before=older, now=FORMAT)
        if file.key is None and not checksum_layer.has_checksums(connection):
            undo.pop_all()
            undo.callback(mark.close)
            connection = _with_checksums(file, connection)
            undo.callback(connection.close)
        connection.execute(
            "UPDATE record SET revision = ?1 WHERE revision <> ?1", (state.revision,)
        )
        generation = choose_generation(connection, *models)
        directory.sync()
        journal = RecordJournal(directory, file, mark, connection, state)
        undo.pop_all()
        return OpenedJournal(journal, state.store_id, generation)


def _has_log(file: DatabaseFile) -> bool:
    try:
        return os.stat(f"{file.path}-wal").st_size > 0
    except FileNotFoundError:
        return False


def _with_checksums(file: DatabaseFile, connection: apsw.Connection) -> apsw.Connection:
    """Give a database of an older format its page checksums; a writer on what is there then."""
    with ExitStack() as undo:
        undo.callback(connection.close)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if not page_checksums.written_anew(connection, file.path):
            _log.warning("store_page_checksums_lacking", reason="DISK_FULL")
            undo.pop_all()
            return connection
    page_checksums.put_in_place(file.path)
    _log.info("store_page_checksums_added")
    return file.open_writer()


def _held_against(
    mark: HighWaterMark, last: Mark | None, state: RecordState, accept_loss: bool
) -> RecordState:
    """Compare record and mark; returns the state to go on with, its revision never lower."""
    revision = state.revision
    if last is None:
        if revision:
            _log.warning("store_mark_missing", revision=revision)
    else:
        missing = last.revision - revision if last.store_id == state.store_id else last.revision
        if missing > 0:
            _log.critical("store_acknowledged_changes_missing", missing=missing)
            if not accept_loss:
                raise _loss(missing)
        revision = max(revision, last.revision)
    mark.start(Mark(state.store_id, revision))
    return RecordState(state.store_id, revision)


def _loss(missing: int) -> CorruptDataError:
    return CorruptDataError(
        f"{missing} acknowledged changes are missing from recall.db (an older copy, or a damaged "
        "log); restore the newest copy, or start with --accept-loss",
        reason="ACKNOWLEDGED_CHANGES_MISSING",
    )


class RecordJournal:
    """See commit.Journal for the contract of the public methods."""

    def __init__(
        self,
        directory: DataDirectory,
        file: DatabaseFile,
        mark: HighWaterMark,
        connection: apsw.Connection,
        state: RecordState,
    ) -> None:
        """Takes over the connection and the mark."""
        self._directory = directory
        self._file = file
        self._mark = mark
        self._mark_synced = time.monotonic()
        self._store_id = state.store_id
        self._revision = state.revision
        self._trusted = True
        self._lost_file: str | None = None
        self._files_seen = time.monotonic()
        self._ballast_there = False
        self._log_pages = 1  # unknown: whatever the last process left
        self._checkpoint_at = CHECKPOINT_PAGES
        self._connection = connection
        # While one other connection is open, opening a new writer does not replay the log, so what
        # a failed commit left in it cannot come to life.
        self._keeper = file.open_reader()
        self._keeper.execute("SELECT revision FROM record").fetchone()
        directory.watch_files()
        self._watch_log()

    @property
    def revision(self) -> int:
        """The last durable revision."""
        return self._revision

    @property
    def trusted(self) -> bool:
        """False from a failed sync until verified anew, and while a file of it is lost."""
        return self._trusted and self._lost_file is None

    def begin(self) -> apsw.Connection:
        """Start a transaction."""
        self._make_usable()
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def _make_usable(self) -> None:
        self._look_for_files()
        if self._lost_file is not None:
            raise UnavailableError(
                f"{self._lost_file} was deleted or replaced while it was in use, so nothing more "
                "is stored; put the data directory back as it was, or restart",
                reason="DATA_FILES_LOST",
            )
        if not self._trusted:
            self._verify_anew()

    def commit(self, revision: int) -> None:
        """Make the transaction durable as this revision, then move the mark."""
        self._connection.execute("UPDATE record SET revision = ?", (revision,))
        self._connection.execute("COMMIT")
        self._move_mark(revision)

    def rollback(self) -> None:
        """Undo the transaction, if there is one."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error:
            self.distrust()

    def distrust(self) -> None:
        """Verify anew before the next transaction."""
        self._trusted = False

    def make_room(self) -> None:
        """Checkpoint, so that the log starts over in place, and give up the ballast."""
        self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._ballast_there = False
        if self._directory.release_ballast():
            _log.warning("store_ballast_released")

    def tend(self, idle_s: float) -> float | None:
        """Look for the files, sync the mark, checkpoint, truncate, mend the ballast, as is due."""
        if time.monotonic() - self._files_seen >= _FILES_INTERVAL_S:
            self._look_for_files()
        pause = [_FILES_INTERVAL_S]
        if self._lost_file is not None:
            return _FILES_INTERVAL_S
        if self._mark.dirty:
            late = time.monotonic() - self._mark_synced >= SYNC_INTERVAL_S
            if idle_s >= _MARK_IDLE_S or late:
                self._sync_mark()
            else:
                pause.append(_MARK_IDLE_S)
        if self._log_pages >= self._checkpoint_at:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        if self._log_pages and self._trusted:
            if idle_s >= _TRUNCATE_IDLE_S:
                self._cut_log()
            pause.append(_TRUNCATE_IDLE_S)
        if not self._ballast_there:
            self._ballast_there = self._directory.restore_ballast()
            if not self._ballast_there:
                pause.append(_BALLAST_RETRY_S)
        return min(pause)

    def empty_log(self) -> bool:
        """Copy the log into the file and cut it to nothing; False where a reader is in the way."""
        self._make_usable()
        self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        done = self._cut_log()
        if not self._trusted:
            raise UnavailableError("the disk failed while the log was emptied")
        return done

    def _cut_log(self) -> bool:
        """A reader that is in the way, as while a snapshot is made, holds up nobody for long."""
        self._connection.set_busy_timeout(_EMPTY_WAIT_MS)
        try:
            return self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._connection.set_busy_timeout(BUSY_TIMEOUT_MS)

    def write_anew(self) -> None:
        """Write every page anew, so that none holds what is not in a table.

        What SQLite overwrites when it deletes is a row where it lies; a page from which rows were
        moved to another one may keep copies of them. Twice the room of the database is needed while
        this goes on: in a file without a name, and in the log. With less it is not begun, so that
        it takes from nobody what is left.
        """
        self._make_usable()
        size_bytes = self._file.path.stat().st_size
        if shutil.disk_usage(self._file.path.parent).free < _WRITTEN_ANEW_TIMES * size_bytes:
            raise ResourceExhaustedError("the disk has no room for a purge", reason="DISK_FULL")
        try:
            write_anew(self._connection, self._file.path.parent)
        except (apsw.Error, OSError, MemoryError) as error:
            if not isinstance(error, apsw.FullError):
                self.distrust()
            raise translated(error) from error

    def mend_file(
        self, salvage: SalvageOf, paused: Callable[[], AbstractContextManager[None]]
    ) -> Salvaged:
        """Write what can be believed into a new database, which takes the place of this one.

        Until the new one is whole and on disk nothing of the old one is touched; then it takes its
        name in one step. Whoever dies on the way leaves one of the two.
        """
        self._look_for_files()
        with translated_errors():
            codec = str(self._connection.execute("SELECT codec FROM record").get)
            revision = self._revision + 1
            path, salvaged = write_beside(self._file, salvage, codec, self._store_id, revision)
            try:
                with paused():
                    self._change_places(path)
            finally:
                remove_beside(self._file)
        self._move_mark(revision)
        self._trusted = True
        _log.warning(
            "store_database_salvaged",
            messages=salvaged.messages,
            lost=len(salvaged.lost),
        )
        return salvaged

    def _change_places(self, path: Path) -> None:
        """Let a database take the place of the one that is open here alone."""
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        try:
            for connection in (self._keeper, self._connection):
                connection.close()
            # SQLite removes the log with the last connection; one that is left belongs to a file
            # that somebody reads.
            if self._file.path.with_name(f"{self._file.path.name}-wal").exists():
                raise UnavailableError("a snapshot is being saved; try again")
            path.replace(self._file.path)
            page_checksums.sync(self._file.path.parent)
        finally:
            self._connection = self._file.open_writer()
            self._watch_log()
            self._keeper = self._file.open_reader()
            self._keeper.execute("SELECT revision FROM record").fetchone()
            self._directory.watch_files()

    def close(self) -> None:
        """Copy the log into the file, sync the mark, let go of everything."""
        if self._trusted:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        for connection in (self._keeper, self._connection):
            try:
                connection.close()
            except apsw.Error as error:
                _log.error("store_connection_not_closed", error=type(error).__name__)
        if self._mark.dirty:
            self._sync_mark()
        self._mark.close()

    def _look_for_files(self) -> None:
        lost = self._directory.lost_file()
        if lost is not None and self._lost_file is None:
            _log.critical("store_file_lost", file=lost)
        elif lost is None and self._lost_file is not None:
            _log.warning("store_files_are_back")
        self._lost_file = lost
        self._files_seen = time.monotonic()

    def _move_mark(self, revision: int) -> None:
        """This revision is on disk."""
        self._revision = revision
        try:
            self._mark.write(Mark(self._store_id, revision))
        except OSError as error:  # the change stands; only the guard beside it is weaker
            _log.error("store_mark_not_written", errno=error.errno)

    def _sync_mark(self) -> None:
        try:
            self._mark.sync()
        except OSError as error:
            _log.error("store_mark_not_synced", errno=error.errno)
        self._mark_synced = time.monotonic()

    def _watch_log(self) -> None:
        def pages_in_log(_connection: apsw.Connection, _name: str, pages: int) -> int:
            self._log_pages = pages
            return apsw.SQLITE_OK

        self._connection.set_wal_hook(pages_in_log)

    def _checkpoint(self, mode: int) -> bool:
        """Copy the log into the file; a reader or a fault may stop it, a later one goes on.

        Returns whether all of it was copied (and, where the mode says so, the log cut).
        """
        try:
            pages, copied = self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            return False
        except apsw.Error as error:
            _log.error("store_checkpoint_failed", error=type(error).__name__)
            if isinstance(error, apsw.IOError):
                self.distrust()
            return False
        self._log_pages = 0 if mode == apsw.SQLITE_CHECKPOINT_TRUNCATE else pages
        if copied < pages:
            _log.warning("store_checkpoint_incomplete", pages=pages, copied=copied)
            self._checkpoint_at = pages + CHECKPOINT_PAGES
        else:
            self._checkpoint_at = CHECKPOINT_PAGES
        return copied >= pages

    def _verify_anew(self) -> None:
        """Trust the database again after a failed sync, or raise UnavailableError.

        The kernel reports a failed write once and then forgets it, so nothing that was in flight
        is believed: a new connection must find the last acknowledged revision, the whole log must
        reach the file and be synced, and a commit of its own must succeed.
        """
        try:
            self._connection.close()
            self._connection = self._file.open_writer()
            self._watch_log()
            if read_record(self._connection).revision != self._revision:
                raise UnavailableError("the record is not as it was acknowledged; restart")
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._connection.execute("UPDATE record SET revision = ?", (self._revision,))
        except (apsw.Error, OSError) as error:
            _log.error("store_verification_failed", error=type(error).__name__)
            raise UnavailableError(
                f"the disk failed and does not work yet: {type(error).__name__}",
                reason="STORAGE_FAILED",
            ) from translated(error)
        self._trusted = True
        _log.warning("store_verified_anew", revision=self._revision)
