"""Connections to the database file: one that writes, a few that read, and what their errors mean.

A connection is used by one thread at a time. Readers have short read transactions, so that the log
can always be checkpointed; they see the last commit and never wait for the writer.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import apsw

from ..encryption import checksum_layer
from ..encryption.connecting import open_database
from ..types.errors import (
    CorruptDataError,
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
    UnsafeEnvironmentError,
)
from ..types.values import CallBudget
from . import page_checksums
from .schema import PAGE_BYTES

SQLITE_VERSION_MIN = (3, 51, 3)  # older ones can damage the log while it is reset
JOURNAL_BYTES_MAX = 16 << 20
_WRITER_CACHE_KIB = 16 << 10
READER_CACHE_KIB = 8 << 10
BUSY_TIMEOUT_MS = 2_000
_READ_WAIT_S = 10.0
_STATEMENTS_CACHED = 200
_STEPS_BETWEEN_CHECKS = 2_000  # of SQLite's machine; some tenths of a millisecond


@dataclass(frozen=True, slots=True)
class DatabaseFile:
    """Where the database is and how it is opened.

    Attributes:
        mode_of: a file whose permissions the database takes when SQLite makes it.
        vfs: SQLite's operating system layer, below that of the page checksums; "" is its default.
        reader_cache_kib: pages that each reading connection keeps, in KiB.
        key: of the pages, 32 bytes; None: they are plain, and have checksums.
    """

    path: Path
    mode_of: Path
    vfs: str = ""
    reader_cache_kib: int = READER_CACHE_KIB
    key: bytes | None = field(default=None, repr=False)

    def open_writer(self) -> apsw.Connection:
        """A connection that writes: WAL, synchronous=FULL, secure_delete, our own checkpoints.

        Raises:
            UnsafeEnvironmentError: SQLite is too old, or has no WAL here.
            CorruptDataError: the file is not a database.
        """
        if tuple(int(n) for n in apsw.sqlite_lib_version().split(".")) < SQLITE_VERSION_MIN:
            raise UnsafeEnvironmentError(
                f"SQLite {apsw.sqlite_lib_version()} is older than 3.51.3, which mends its log"
            )
        connection = self._open(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        connection.pragma("page_size", PAGE_BYTES)
        if self.key is None:
            checksum_layer.reserve(connection)
        if connection.pragma("journal_mode", "wal") != "wal":
            raise UnsafeEnvironmentError("SQLite cannot keep a write-ahead log in this directory")
        connection.pragma("synchronous", "FULL")
        connection.pragma("secure_delete", "ON")
        connection.pragma("journal_size_limit", JOURNAL_BYTES_MAX)
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("cache_size", -_WRITER_CACHE_KIB)
        return connection

    def open_reader(self) -> apsw.Connection:
        """A connection that cannot write."""
        connection = self._open(apsw.SQLITE_OPEN_READWRITE)
        connection.pragma("query_only", "ON")
        connection.pragma("cache_size", -self.reader_cache_kib)
        return connection

    def _open(self, flags: int) -> apsw.Connection:
        uri = f"{self.path.as_uri()}?modeof={quote(str(self.mode_of))}"
        return connect(uri, flags, base=self.vfs, key=self.key)


def connect(uri: str, flags: int, *, base: str = "", key: bytes | None = None) -> apsw.Connection:
    """A connection to a database of this program, its log open.

    Args:
        uri: names the file.
        flags: SQLite's, how it is opened.
        base: SQLite's operating system layer; "" is its default.
        key: of the pages, 32 bytes; None: they are plain and have checksums.

    Raises:
        UnsafeEnvironmentError: see `checksum_layer.layer_over`.
        apsw.Error: it cannot be opened, or not with this key.
    """
    connection = open_database(
        uri,
        flags | apsw.SQLITE_OPEN_URI,
        base or checksum_layer.DEFAULT_BASE,
        key,
        busy_timeout_ms=BUSY_TIMEOUT_MS,
        statements_cached=_STATEMENTS_CACHED,
    )
    # Without this guarantee every new binding of a range compiles the statement again (20 us).
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


class ReaderPool:
    """Read connections, opened when first needed, the most recently used first."""

    def __init__(
        self,
        file: DatabaseFile,
        *,
        connections_max: int,
        damaged: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing is open yet.

        Args:
            file: where the database is.
            connections_max: how many reads go on at once.
            damaged: told the reason of every CorruptDataError that SQLite gave rise to.
        """
        self._tell_damaged = damaged
        self._file = file
        self._idle: deque[apsw.Connection] = deque()
        self._places = threading.Semaphore(connections_max)
        self._connections_max = connections_max
        self._closed = False

    @contextmanager
    def read(self, budget: CallBudget | None = None) -> Generator[apsw.Connection]:
        """One read transaction: every statement inside sees the same state.

        Args:
            budget: when it is over, the statement that runs is broken off.

        Raises:
            DeadlineExceededError, CancelledError: the budget is over.
            ResourceExhaustedError: no connection became free.
            UnavailableError: the store is closed, or the disk does not answer.
            CorruptDataError: SQLite or a text's encoding found damage.
        """
        wait_s = _READ_WAIT_S if budget is None else min(_READ_WAIT_S, budget.remaining())
        if not self._places.acquire(timeout=wait_s):
            if budget is not None:
                budget.check()
            raise ResourceExhaustedError("too many reads at once")
        try:
            if self._closed:
                raise UnavailableError("the store is closed")
            connection = self._taken()
            try:
                connection.execute("BEGIN")
                if budget is not None:
                    break_off_after(connection, budget)
                yield connection
                if budget is not None:
                    connection.set_progress_handler(None)
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except BaseException:
                # The error's traceback may keep a statement open, and with it the state of this
                # moment for whoever came next.
                connection.close(True)
                raise
            self._idle.append(connection)
        except (apsw.Error, UnicodeDecodeError) as error:
            meaning = translated(error)
            if isinstance(meaning, CorruptDataError):
                self._tell_damaged(meaning.reason)
            raise meaning from error
        finally:
            self._places.release()

    def _taken(self) -> apsw.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._file.open_reader()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Inside nothing is read and no connection is open; whoever comes waits for the end.

        Raises UnavailableError where a read does not end in time.
        """
        taken = 0
        try:
            while taken < self._connections_max:
                if not self._places.acquire(timeout=_READ_WAIT_S):
                    raise UnavailableError("a long read is in the way; try again")
                taken += 1
            while self._idle:
                self._idle.pop().close()
            yield
        finally:
            for _ in range(taken):
                self._places.release()

    def close(self) -> None:
        """Refuse new reads, wait for those that go on, close the connections."""
        self._closed = True
        taken = 0
        while taken < self._connections_max and self._places.acquire(timeout=_READ_WAIT_S):
            taken += 1
        while self._idle:
            self._idle.pop().close()
        self._places.release(max(taken, 1))


def break_off_after(connection: apsw.Connection, budget: CallBudget) -> None:
    """From now on statements raise what `budget.check` raises, soon after it does."""

    def is_over() -> bool:
        budget.check()
        return False

    is_over()
    connection.set_progress_handler(is_over, _STEPS_BETWEEN_CHECKS)


@contextmanager
def translated_errors() -> Generator[None]:
    """SQLite's and the system's errors as ours; their texts are not passed on."""
    try:
        yield
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        raise translated(error) from error


def is_over_limit(error: apsw.IOError, connection: apsw.Connection) -> bool:
    """Whether a write failed since a quota or the limit on a file's size is reached.

    That is a full disk to everybody but SQLite, which calls only ENOSPC one.
    """
    is_write = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE
    return is_write and connection.system_errno in (errno.EDQUOT, errno.EFBIG)


def translated(error: Exception) -> SemanticRecallError:
    """What an error of SQLite means to a caller."""
    match error:
        case apsw.FullError() | OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            return ResourceExhaustedError("the disk is full", reason="DISK_FULL")
        case apsw.NoMemError() | MemoryError():
            return ResourceExhaustedError("out of memory", reason="OUT_OF_MEMORY")
        case _ if checksum_layer.is_page_damage(error):
            return CorruptDataError(
                "a page of recall.db is damaged; `semanticrecall verify --repair` takes what is "
                "sound of it, a snapshot may have the rest",
                reason=page_checksums.PAGE_DAMAGED,
            )
        case apsw.NotADBError() | UnicodeDecodeError():
            return CorruptDataError("the database file is damaged")
        case apsw.SQLError() if "malformed JSON" in str(error):
            return CorruptDataError("a row's metadata is damaged")
        case apsw.BusyError() | apsw.LockedError():
            return UnavailableError("another program holds the database")
        case _:
            return UnavailableError(f"the database failed: {type(error).__name__}")
