"""The open file `collections.db`: transactions, reads, and freeing it of what was removed.

One transaction at a time writes; reads go on beside it and see the last commit. After a fault of
the disk nothing is written until the file was opened anew and its log copied into it.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw
import numpy as np
import structlog

from ..encryption.writing_anew import write_anew
from ..types.collections import CollectionInfo, Metric
from ..types.errors import (
    CorruptDataError,
    ResourceExhaustedError,
    UnavailableError,
)
from ..types.values import CallBudget
from . import changing
from .acknowledged import Acknowledged, CommitMark
from .faults import is_over_limit, translated
from .file_format import (
    BUSY_TIMEOUT_MS,
    CollectionsFile,
    collection_checksum,
    is_sound_vector,
)
from .loaded import LoadedCollection, StoredVector

READERS_MAX: Final = 4
_WAIT_S: Final = 0.1
_RETRY_S: Final = 0.02
_EMPTY_WAIT_MS: Final = 50
_STEPS_BETWEEN_CHECKS: Final = 2_000  # of SQLite's machine
_ROWS_BETWEEN_CHECKS: Final = 1_000
_WRITTEN_ANEW_TIMES: Final = 2
_COLLECTION_COLUMNS: Final = (
    "collection_key, CAST(resource_id AS BLOB), CAST(name AS BLOB), dimensions, metric, vectors,"
    " checksum"
)
_VECTORS_OF: Final = (
    "SELECT CAST(id AS BLOB), metadata, value, checksum FROM vectors"
    " INDEXED BY vectors_by_collection WHERE collection_key = ? ORDER BY row_key"
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CollectionRow:
    """A sound row of `collections`."""

    key: int
    resource_id: str
    name: str
    dimensions: int
    metric: Metric
    vectors: int

    @property
    def info(self) -> CollectionInfo:
        """The same for callers."""
        return CollectionInfo(self.name, self.dimensions, self.metric, self.vectors)


class CollectionStorage:
    """The file while it is open. Thread-safe.

    Raises what `VectorCollections` says, and nothing of SQLite.
    """

    def __init__(
        self,
        file: CollectionsFile,
        mark: Callable[[], CommitMark] | None = None,
        *,
        accept_loss: bool = False,
    ) -> None:
        """Open the file, or make it.

        Args:
            file: where it is.
            mark: opens what it is held against, where it is there; None holds it against nothing.
            accept_loss: go on with a file that has lost acknowledged changes.
        """
        accept_loss = accept_loss or not file.path.exists()
        self._file = file
        self._writing = threading.Lock()
        self._places = threading.Semaphore(READERS_MAX)
        self._idle: deque[apsw.Connection] = deque()
        self._trusted = True
        self._closed = False
        self.damaged = 0
        """Rows and pages that were found damaged since the start."""
        with self._translated(), ExitStack() as undo:
            self._writer = file.open_writer()
            undo.callback(self._writer.close, True)
            # While it is open, a new writer brings nothing to life that a failed one left in the
            # log.
            self._keeper = file.open_reader()
            undo.callback(self._keeper.close, True)
            # A file that is refused keeps its log, with what lies behind a damaged place in it.
            undo.callback(_keep_log, self._writer, self._keeper)
            row: tuple[bytes, int] = self._keeper.execute("SELECT identity, revision FROM file").get
            identity, self._revision = row
            self._acknowledged = (
                None
                if mark is None
                else Acknowledged(mark(), identity.hex(), self._revision, accept_loss=accept_loss)
            )
            undo.pop_all()
        self._identities = self._identities_now()

    # ---- reading ----

    @contextmanager
    def read(self, budget: CallBudget | None = None) -> Generator[apsw.Connection]:
        """One read transaction: every statement inside sees the same state.

        `budget`: when it is over, the statement that runs is broken off.
        """
        while not self._places.acquire(timeout=_WAIT_S):
            if budget is not None:
                budget.check()
        try:
            if self._closed:
                raise UnavailableError("the store is closed")
            with self._translated():
                connection = self._idle.pop() if self._idle else self._file.open_reader()
                try:
                    connection.execute("BEGIN")
                    if budget is not None:
                        _break_off_after(connection, budget)
                    yield connection
                    connection.set_progress_handler(None)
                    connection.execute("ROLLBACK")
                except BaseException:
                    connection.close(True)
                    raise
                self._idle.append(connection)
        finally:
            self._places.release()

    def find(
        self, connection: apsw.Connection, resource_id: str, name: str
    ) -> CollectionRow | None:
        """A collection by its name; None where there is none."""
        row = connection.execute(
            f"SELECT {_COLLECTION_COLUMNS} FROM collections WHERE resource_id = ? AND name = ?",
            (resource_id, name),
        ).fetchone()
        return None if row is None else self._sound(row)

    def of_resource(
        self, connection: apsw.Connection, resource_id: str | None
    ) -> list[CollectionRow]:
        """The collections of a resource, by name; None: of all, by resource."""
        rows = connection.execute(
            f"SELECT {_COLLECTION_COLUMNS} FROM collections"
            " WHERE ?1 IS NULL OR resource_id = ?1 ORDER BY resource_id, name",
            (resource_id,),
        )
        return [self._sound(row) for row in rows.fetchall()]

    def sound_and_damaged(
        self, connection: apsw.Connection, resource_id: str | None
    ) -> tuple[list[CollectionRow], list[str]]:
        """The sound collections of a resource or of all, and whose the damaged ones are."""
        rows = connection.execute(
            f"SELECT {_COLLECTION_COLUMNS} FROM collections WHERE ?1 IS NULL OR resource_id = ?1",
            (resource_id,),
        ).fetchall()
        sound, damaged = [], []
        for row in rows:
            found = sound_collection(row)
            if found is None:
                damaged.append(_shown(row[1]))
            else:
                sound.append(found)
        return sound, damaged

    def _sound(self, row: tuple[object, ...]) -> CollectionRow:
        found = sound_collection(row)
        if found is None:
            self.damaged += 1
            raise CorruptDataError("a collection's row does not match its checksum")
        return found

    def load(
        self, connection: apsw.Connection, row: CollectionRow, budget: CallBudget
    ) -> LoadedCollection:
        """A whole collection.

        Raises CorruptDataError where a row of it is damaged, missing or one too many.
        """
        loaded = LoadedCollection(row.key, row.name, row.dimensions, row.metric, row.vectors)
        batch: list[StoredVector] = []
        for vector in self._vectors(connection, row):
            if vector is None:
                self.damaged += 1
                raise CorruptDataError("a vector's row does not match its checksum")
            batch.append(vector)
            if len(batch) == _ROWS_BETWEEN_CHECKS:
                budget.check()
                loaded.apply((), batch)
                batch = []
        loaded.apply((), batch)
        if loaded.info.vectors != row.vectors:
            self.damaged += 1
            raise CorruptDataError("a collection has not as many vectors as it should")
        return loaded

    def _vectors(
        self, connection: apsw.Connection, row: CollectionRow
    ) -> Iterator[StoredVector | None]:
        """Vectors in the order of their rows; None for a damaged one."""
        for found in connection.execute(_VECTORS_OF, (row.key,)):
            if is_sound_vector(row.key, row.dimensions, found):
                id, metadata, value, _ = found
                yield StoredVector(id.decode(), np.frombuffer(value, "<f4"), metadata)
            else:
                yield None

    def damaged_vectors(
        self, connection: apsw.Connection, row: CollectionRow, budget: CallBudget
    ) -> Iterator[str]:
        """Ids of damaged rows of a collection; one more, "", where their number is wrong."""
        count = 0
        for found in connection.execute(_VECTORS_OF, (row.key,)):
            if count % _ROWS_BETWEEN_CHECKS == 0:
                budget.check()
            count += 1
            if not is_sound_vector(row.key, row.dimensions, found):
                yield _shown(found[0])
        if count != row.vectors:
            yield ""

    # ---- writing ----

    @contextmanager
    def change(self, budget: CallBudget | None = None) -> Generator[apsw.Connection]:
        """One transaction, on disk when this has ended; undone where something is raised.

        `budget`: of the wait for others that write, and of the statements inside; when it is over
        nothing of them was done.
        """
        with self._alone(budget), self._translated():
            self._make_usable()
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            if budget is not None:
                _break_off_after(connection, budget)
            try:
                yield connection
                connection.set_progress_handler(None)
                connection.execute("UPDATE file SET revision = ?", (self._revision + 1,))
                connection.execute("COMMIT")
                self._revision += 1
                if self._acknowledged is not None:
                    self._acknowledged.moved(self._revision)
            except BaseException as error:
                if isinstance(error, apsw.IOError) and is_over_limit(error, connection):
                    self._undo(error)
                    raise ResourceExhaustedError("the disk is full", reason="DISK_FULL") from error
                self._undo(error)
                raise

    def _undo(self, error: BaseException) -> None:
        if isinstance(error, (apsw.IOError, MemoryError)):
            self._trusted = False
        try:
            self._writer.set_progress_handler(None)
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except apsw.Error:
            self._trusted = False

    @contextmanager
    def _alone(self, budget: CallBudget | None) -> Generator[None]:
        while not self._writing.acquire(timeout=_WAIT_S):
            if budget is not None:
                budget.check()
        try:
            if self._closed:
                raise UnavailableError("the store is closed")
            yield
        finally:
            self._writing.release()

    def _make_usable(self) -> None:
        if self._identities_now() != self._identities:
            raise UnavailableError(
                "collections.db was deleted or replaced while it was in use, so nothing more is "
                "stored there; put it back as it was, or restart",
                reason="DATA_FILES_LOST",
            )
        if self._trusted:
            return
        # The system tells of a failed write once: nothing that was in flight is believed.
        try:
            self._writer.close(True)
            self._writer = self._file.open_writer()
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            revision = int(self._writer.execute("SELECT revision FROM file").get)
        except (apsw.Error, OSError) as error:
            _log.error("collections_not_usable", error=type(error).__name__)
            raise UnavailableError(
                "the disk failed and does not work yet", reason="STORAGE_FAILED"
            ) from error
        if revision < self._revision:
            raise UnavailableError("collections.db is not as it was acknowledged; restart")
        self._revision = revision  # a change that was not acknowledged may be there
        self._trusted = True
        _log.warning("collections_usable_again")

    def _identities_now(self) -> list[tuple[int, int] | None]:
        return [_identity(Path(f"{self._file.path}{suffix}")) for suffix in ("", "-wal")]

    def has_dropped(self) -> bool:
        """Whether rows may be left of collections that were removed."""
        try:
            with self.read() as connection:
                return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM dropped)").get)
        except CorruptDataError:
            return True

    # ---- purge ----

    def purge_pending(self) -> bool:
        """Whether something was removed since the last purge."""
        with self.read() as connection:
            return bool(connection.execute("SELECT removed > erased FROM file").get)

    def purge(self, budget: CallBudget) -> None:
        """Write the file anew if something was removed since that was done last; empty its log."""
        while self.remove_dropped():
            budget.check()
        with self._alone(budget), self._translated():
            self._make_usable()
            row: tuple[int, int] = self._writer.execute("SELECT removed, erased FROM file").get
            removed, erased = row
            if removed > erased:
                self._write_anew()
        waits = threading.Event()
        while not self._empty_log(budget):
            budget.check()  # a reader is in the way; others write meanwhile
            waits.wait(_RETRY_S)
        if removed > erased:
            # Not before: whoever dies on the way does it once more.
            with self.change(budget) as connection:
                connection.execute("UPDATE file SET erased = max(erased, ?)", (removed,))

    def remove_dropped(self) -> bool:
        """Remove some rows of a collection that was removed; whether there may be more."""
        with self.change() as connection:
            return changing.remove_dropped(connection)

    def _write_anew(self) -> None:
        size_bytes = self._file.path.stat().st_size
        if shutil.disk_usage(self._file.path.parent).free < _WRITTEN_ANEW_TIMES * size_bytes:
            raise ResourceExhaustedError("the disk has no room for a purge", reason="DISK_FULL")
        try:
            write_anew(self._writer, self._file.path.parent)
        except (apsw.IOError, MemoryError):
            self._trusted = False
            raise

    def _empty_log(self, budget: CallBudget) -> bool:
        """Copy the log into the file and cut it to nothing; False where a reader is in the way."""
        with self._alone(budget), self._translated():
            self._make_usable()
            self._writer.set_busy_timeout(_EMPTY_WAIT_MS)
            try:
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except (apsw.BusyError, apsw.LockedError):
                return False
            except apsw.IOError:
                self._trusted = False
                raise
            finally:
                self._writer.set_busy_timeout(BUSY_TIMEOUT_MS)
        return True

    # ---- state ----

    def disk_bytes(self) -> int:
        """Bytes of the file and its log."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(OSError):
                total += os.stat(f"{self._file.path}{suffix}").st_size
        return total

    def close(self) -> None:
        """Copy the log into the file and let go of everything. Safe to call twice."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
            if self._trusted:
                with suppress(apsw.Error):
                    self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            for _ in range(READERS_MAX):
                self._places.acquire()
            for connection in (*self._idle, self._keeper, self._writer):
                try:
                    connection.close(True)
                except apsw.Error as error:
                    _log.error("collections_not_closed", error=type(error).__name__)
            self._idle.clear()
            if self._acknowledged is not None:
                self._acknowledged.close()
            self._places.release(READERS_MAX)

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except (apsw.Error, OSError, MemoryError, UnicodeDecodeError) as error:
            meaning = translated(error)
            if isinstance(meaning, CorruptDataError):
                self.damaged += 1
                _log.error("collections_damaged", reason=meaning.reason)
            raise meaning from error


def _break_off_after(connection: apsw.Connection, budget: CallBudget) -> None:
    """From now on statements raise what `budget.check` raises, soon after it does."""

    def is_over() -> bool:
        budget.check()
        return False

    connection.set_progress_handler(is_over, _STEPS_BETWEEN_CHECKS)


def sound_collection(row: tuple[object, ...]) -> CollectionRow | None:
    """A row of `collections`; None for a damaged one."""
    key, resource, name, dimensions, metric, vectors, checksum = row
    if not (
        isinstance(key, int)
        and isinstance(resource, bytes)
        and isinstance(name, bytes)
        and isinstance(dimensions, int)
        and isinstance(metric, int)
        and isinstance(vectors, int)
    ):
        return None
    if checksum != collection_checksum((key, dimensions, metric, vectors), resource, name):
        return None
    return CollectionRow(key, resource.decode(), name.decode(), dimensions, Metric(metric), vectors)


def _keep_log(*connections: apsw.Connection) -> None:
    """Do not copy the log into the file when these are closed."""
    for connection in connections:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _shown(name: object) -> str:
    """A stored name that may be damaged, for a finding."""
    return name.decode(errors="replace") if isinstance(name, bytes) else ""


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode; None where there is nothing. Opens nothing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
