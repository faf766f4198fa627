"""Reading, writing and erasing entries of the file `embeddings.db`; see cache_format.py.

The file is never in anybody's way: a full disk pauses it, damage begins it anew, and a vector that
is not sound is not there. Only an erasure that cannot be done is an error.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import structlog

from ..encryption.writing_anew import write_anew
from ..types.errors import UnavailableError
from .cache_format import (
    FILE_FAULTS,
    OWNER_BYTES,
    PAGE_BYTES,
    SECRET_BYTES,
    TOKENS_BYTES,
    UnusableFileError,
    delete_cache_file,
    entry_name,
    hashed,
    is_damage,
    open_cache_database,
    open_connection,
    owner_number,
)
from .written_names import BEGINNINGS_OF_KEYS, KEY_RANGES, WrittenNames

FREE_BYTES_MIN = 64 << 20
"""A disk with less room is left to the record, which needs it more."""

_ROW_BYTES = 80  # of an entry beside its vector
_READERS_MAX = 8
_READ_WAIT_S = 0.05
_SLACK_BYTES = 16 << 20
_PAUSE_S = 60.0
_UNIT_TOLERANCE = 1e-3
_LOGGED_MAX = 100

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CacheFileOptions:
    """Where the vectors are kept across restarts, and how many.

    Attributes:
        path: `embeddings.db` in the data directory.
        bytes_max: of the database; its log comes on top, 4 MiB as a rule. 0 keeps no file, and
            deletes one that is there.
        vfs: SQLite's operating system layer.
        free_bytes: the room on the disk of a folder, in bytes.
        key: of the pages, 32 bytes; None: they are plain.
    """

    path: Path
    bytes_max: int
    vfs: str = "unix-excl"
    free_bytes: Callable[[Path], int] = lambda folder: _free_bytes(folder)
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class FileStats:
    """State of the file, and counters since the start.

    Attributes:
        bytes: of the database and its log, on disk.
        damaged: entries that were found damaged and files that were begun anew for it.
    """

    entries: int = 0
    bytes: int = 0
    evictions: int = 0
    damaged: int = 0


class CacheFile:
    """Entries in the file. Thread-safe; reads never wait for writes.

    An entry's name is its owner's hash (8 bytes) followed by its key (32 bytes). No method raises
    for the state of the file or the disk, but `erase` and `erase_owner`.

    Attributes:
        secret: the key of all hashes; stays the same when the file is begun anew.
    """

    def __init__(self, options: CacheFileOptions, generation: str, dimensions: int) -> None:
        """Open the file, or make it; whatever stands in the way is logged and no entry found.

        Args:
            options: where and how large.
            generation: the embedder's; a file of another one is begun anew.
            dimensions: numbers in a vector.
        """
        # Resolved, so that a later change of the working directory does no harm.
        self._path = options.path.absolute()
        self._options = options
        self._generation = generation
        self._value_bytes = dimensions * 4 + TOKENS_BYTES
        self._names = WrittenNames(options.bytes_max // (self._value_bytes + _ROW_BYTES))
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._lock = threading.Lock()
        self._writer: apsw.Connection | None = None
        self._idle: deque[apsw.Connection] = deque()
        self._places = threading.Semaphore(_READERS_MAX)
        self._epoch = 0  # of the file at this path; a reader of an older one is not used again
        self._learnt_epoch = -1
        self._spoilt = False
        self._closed = False
        self._remains = False
        self._erased = True  # what a process erased that has ended may not have left the file yet
        self._paused_until: float | None = None
        self._batch = 0
        self._entries = 0
        self._evictions = 0
        self._damaged = 0
        self._damaged_keys: set[bytes] = set()
        with self._lock:
            self._open_or_begin_anew()

    # ---- reading ----

    def read(self, name: bytes) -> bytes | None:
        """An entry's value, sound; None where there is none."""
        if self._writer is None or self._spoilt or not self._names.may_have(name):
            return None
        if not self._places.acquire(timeout=_READ_WAIT_S):
            return None
        try:
            row: tuple[object, object] | None = self._asked(
                "SELECT checksum, value FROM entries WHERE key = ?", (name[OWNER_BYTES:],)
            )
        except FILE_FAULTS as error:
            if is_damage(error) and not self._spoilt:
                self._spoilt = True  # begun anew by whoever writes or erases next
                self._damaged += 1
                _log.warning("embedding.cache_file_damaged")
            return None
        finally:
            self._places.release()
        if row is None:
            return None
        checksum, value = row
        if (
            isinstance(value, bytes)
            and checksum == self._checksum(name, value)
            and self._is_unit(value)
        ):
            return value
        self._damaged += 1
        self._damaged_keys.add(name[OWNER_BYTES:])
        if self._damaged <= _LOGGED_MAX:
            _log.warning("embedding.cache_entry_damaged", damaged=self._damaged)
        return None

    def learn_names(self) -> None:
        """Read once which names are there: what is not is then known without a look at the file."""
        epoch = self._epoch
        if self._names.knows_all or epoch == self._learnt_epoch or self._writer is None:
            return
        self._learnt_epoch = epoch
        try:
            for bounds in KEY_RANGES:
                digits = self._asked(BEGINNINGS_OF_KEYS, bounds)
                with self._lock:
                    if epoch != self._epoch:
                        return
                    self._names.add_beginnings(bytes.fromhex(digits or ""))
        except FILE_FAULTS:
            return  # the file is asked for each name, and whoever meets the damage says so
        with self._lock:
            self._names.knows_all = epoch == self._epoch

    def _asked(self, statement: str, bindings: tuple[bytes, ...]) -> Any:
        """What apsw gives for one row."""
        epoch = self._epoch
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = open_connection(self._path, self._options.vfs, self._options.key)
            connection.pragma("query_only", "ON")
        try:
            return connection.execute(statement, bindings).get
        finally:
            if epoch == self._epoch and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()

    # ---- writing ----

    def write(self, values: Mapping[bytes, bytes], used: Collection[bytes]) -> None:
        """Keep these values by name, and note which entries were used; drop the oldest for room.

        Nothing is kept while the disk has no room or fails.
        """
        with self._lock:
            if not self._may_write():
                return
            try:
                with self._transaction() as connection:
                    counts = self._write_batch(connection, values, used)
            except FILE_FAULTS as error:
                self._failed(error)
                return
            inserted, evicted, removed = counts
            self._entries += inserted - evicted - removed
            self._evictions += evicted
            if self._paused_until is not None:
                self._paused_until = None
                _log.info("embedding.cache_file_resumed")

    def _write_batch(
        self, connection: apsw.Connection, values: Mapping[bytes, bytes], used: Collection[bytes]
    ) -> tuple[int, int, int]:
        """Entries that came, that were evicted, and that were removed as damaged."""
        self._batch += 1
        before = connection.total_changes()
        connection.executemany(
            "DELETE FROM entries WHERE key = ?", [(key,) for key in tuple(self._damaged_keys)]
        )
        self._damaged_keys.clear()
        removed = connection.total_changes() - before
        connection.executemany(
            "UPDATE entries SET used = ? WHERE key = ?",
            [(self._batch, name[OWNER_BYTES:]) for name in used],
        )
        before = connection.total_changes()
        self._names.add(values)
        connection.executemany(
            "INSERT OR IGNORE INTO entries(key, owner, used, checksum, value) VALUES(?,?,?,?,?)",
            (
                (
                    name[OWNER_BYTES:],
                    owner_number(name),
                    self._batch,
                    self._checksum(name, value),
                    value,
                )
                for name, value in values.items()
            ),
        )
        inserted = connection.total_changes() - before
        return inserted, self._evict(connection), removed

    def _evict(self, connection: apsw.Connection) -> int:
        """Drop the least recently used entries until the pages in use are within the bound."""
        evicted = 0
        while True:
            pages = connection.pragma("page_count") - connection.pragma("freelist_count")
            excess = pages * PAGE_BYTES - self._options.bytes_max
            if excess <= 0:
                return evicted
            # Some more than are in excess, so that not every batch has to.
            entries = (excess + self._options.bytes_max // 64) // (self._value_bytes + _ROW_BYTES)
            connection.execute(
                "DELETE FROM entries WHERE id IN"
                " (SELECT id FROM entries ORDER BY used, id LIMIT ?)",
                (entries + 1,),
            )
            gone = connection.changes()
            if gone == 0:
                return evicted
            evicted += gone

    def _may_write(self) -> bool:
        if self._closed:
            return False
        if self._paused_until is not None and time.monotonic() < self._paused_until:
            return False
        if self._spoilt:
            self._begin_anew("DAMAGED")
        elif self._writer is None:
            self._open_or_begin_anew()
        if self._writer is None:
            return False
        if self._options.free_bytes(self._path.parent) < FREE_BYTES_MIN:
            self._pause("DISK_FULL")
            return False
        return True

    def _failed(self, error: Exception) -> None:
        if is_damage(error):
            self._begin_anew("DAMAGED")
        else:
            self._pause("DISK_FULL" if isinstance(error, apsw.FullError) else "WRITE_FAILED")

    def _pause(self, reason: str) -> None:
        if self._paused_until is None:
            _log.warning("embedding.cache_file_paused", reason=reason)
        self._paused_until = time.monotonic() + _PAUSE_S

    # ---- erasing ----

    def erase(self, names: Iterable[bytes]) -> set[bytes]:
        """Drop entries, on the disk before this returns; the names of those that were there.

        Raises UnavailableError where neither they nor the file can be removed.
        """
        keys = [(name[OWNER_BYTES:], owner_number(name)) for name in names]
        return self._erase(
            "DELETE FROM entries WHERE key = ? RETURNING owner, key", [(key,) for key, _ in keys]
        )

    def erase_owner(self, owner: bytes) -> set[bytes]:
        """Drop all entries of an owner's hash (8 bytes). As `erase`."""
        return self._erase(
            "DELETE FROM entries WHERE owner = ? RETURNING owner, key", [(owner_number(owner),)]
        )

    def _erase(self, statement: str, bindings: list[tuple[bytes | int]]) -> set[bytes]:
        with self._lock:
            if self._spoilt or self._remains:
                self._begin_anew("DAMAGED")
            gone: set[bytes] = set()
            if self._writer is not None:
                try:
                    # A power cut must not bring back what was erased.
                    self._writer.pragma("synchronous", "FULL")
                    with self._transaction() as connection:
                        for owner, key in connection.executemany(statement, bindings):
                            gone.add(entry_name(owner, key))
                    self._writer.pragma("synchronous", "NORMAL")
                    self._entries -= len(gone)
                    self._erased = self._erased or bool(gone)
                except FILE_FAULTS as error:
                    self._begin_anew("DAMAGED" if is_damage(error) else "NOT_ERASABLE")
            if self._remains:
                raise UnavailableError("the file of cached embeddings cannot be erased")
            return gone

    def checkpoint(self) -> bool:
        """Write the log into the database and empty it; False where a reader is in the way."""
        with self._lock:
            return self._empty_log()

    def _empty_log(self) -> bool:
        if self._writer is None:
            return True
        try:
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError):
            return False
        except (apsw.Error, OSError) as error:
            self._failed(error)
        return True

    def erase_forgotten(self) -> bool:
        """Leave nothing of erased entries in the file or its log; False if a reader is in the way.

        What is overwritten in a page may have left a copy of itself where the page's rows lay
        before: so the file is written anew if anything was erased since that was done last.
        Raises UnavailableError where the disk fails.
        """
        with self._lock:
            if self._remains:
                self._begin_anew("DAMAGED")
            if self._writer is not None and self._erased:
                try:
                    write_anew(self._writer, self._path.parent)
                except (apsw.BusyError, apsw.LockedError):
                    return False
                except FILE_FAULTS as error:
                    self._begin_anew("DAMAGED" if is_damage(error) else "NOT_ERASABLE")
            if self._remains:
                raise UnavailableError("the file of cached embeddings cannot be erased")
            emptied = self._empty_log()
            self._erased = self._erased and not emptied
            return emptied

    # ---- state ----

    def stats(self) -> FileStats:
        """State of the file and counters since the start."""
        size = 0
        for suffix in ("", "-wal"):
            with suppress(OSError):
                size += os.stat(f"{self._path}{suffix}").st_size
        return FileStats(self._entries, size, self._evictions, self._damaged)

    def close(self) -> None:
        """Let go of the file, its log emptied. Safe to call twice."""
        if not self._closed:
            self.checkpoint()
        with self._lock:
            self._closed = True
            self._let_go()

    # ---- the file ----

    def _open_or_begin_anew(self) -> None:
        try:
            self._open()
        except FILE_FAULTS as error:
            reason = str(error) if isinstance(error, UnusableFileError) else "DAMAGED"
            if isinstance(error, apsw.FullError):
                reason = "DISK_FULL"
            self._begin_anew(reason)

    def _begin_anew(self, reason: str) -> None:
        """Delete the file and make an empty one; without one where that fails."""
        _log.warning("embedding.cache_file_begun_anew", reason=reason)
        self._damaged += reason == "DAMAGED" and not self._spoilt
        self._let_go()
        self._spoilt = False
        self._damaged_keys.clear()
        self._entries = 0
        try:
            delete_cache_file(self._path)
            self._remains = False
            self._open()
        except FILE_FAULTS as error:
            self._remains = _holds_something(self._path)
            self._let_go()
            _log.warning("embedding.cache_file_unusable", error_type=type(error).__name__)
            self._paused_until = time.monotonic() + _PAUSE_S

    def _let_go(self) -> None:
        self._epoch += 1
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(apsw.Error):
                writer.close()
        while self._idle:
            with suppress(apsw.Error, IndexError):
                self._idle.pop().close()

    def _open(self) -> None:
        options = self._options
        connection, secret = open_cache_database(
            self._path, options.vfs, options.key, self._generation, self.secret
        )
        try:
            # The database does not shrink by itself.
            size = connection.pragma("page_count") * PAGE_BYTES
            if size > 2 * self._options.bytes_max + _SLACK_BYTES:
                raise UnusableFileError("LARGER_THAN_ALLOWED")
            self._entries = connection.execute("SELECT count(*) FROM entries").get
            self._batch = connection.execute("SELECT ifnull(max(used), 0) FROM entries").get
        except BaseException:
            connection.close()
            raise
        self.secret = secret
        self._names.begin_anew(is_empty=self._entries == 0)
        self._writer = connection

    @contextmanager
    def _transaction(self) -> Generator[apsw.Connection]:
        assert self._writer is not None
        connection = self._writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with suppress(apsw.Error):
                    connection.execute("ROLLBACK")
            raise

    def _checksum(self, name: bytes, value: bytes) -> bytes:
        return hashed(self.secret, name + value, b"entry")

    def _is_unit(self, value: bytes) -> bool:
        if len(value) != self._value_bytes:
            return False
        vector = np.frombuffer(value, "<f4", count=len(value) // 4 - 1)
        return bool(abs(float(vector @ vector) - 1) < _UNIT_TOLERANCE)  # false for NaN


def _free_bytes(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def _holds_something(path: Path) -> bool:
    """Whether there is a file with anything in it; on a full disk an empty one may be left."""
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False
