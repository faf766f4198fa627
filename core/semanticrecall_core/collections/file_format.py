"""The file `collections.db`: its format, and how it is made and opened.

What lies in it is nowhere else: it is as durable as the record of messages. Invariants first:
  - A change is one transaction, synced before it is acknowledged: all of it is there, or nothing.
  - A row that does not match its checksum is never used, and nothing is answered without it. A
    collection with fewer or more rows than it says is damaged as a whole.
  - Every page has a checksum (encryption/checksum_layer.py), or, where the directory is encrypted,
    a tag (encryption/pages.py).
  - The changes that were acknowledged are counted beside it (acknowledged.py): a file that has lost
    some of them is not used.
  - What was removed is in neither the database nor its log after a purge.
  - A file of a newer format, or of another program, is never written to.

Format 1 (PRAGMA application_id 0x53524356, "SRCV"; PRAGMA user_version 1), pages of 8,192 bytes:

  file         one row: identity (16 random bytes), revision (how many changes there were), removed
               (how many of them removed vectors or a collection), erased (up to which of these a
               purge was done).
  collections  collection_key  grows, never used twice.
               resource_id, name  UTF-8, unique together.
               dimensions, metric (types/collections.py), vectors (how many rows it has).
               checksum        crc32 of collection_key, dimensions, metric, vectors (int64, little
                               endian), the lengths of both names in bytes (2 x uint32), the names.
  dropped      collection_key of collections that were removed and have rows in `vectors` still:
               these are removed a thousand at a time, and nobody can reach them.
  vectors      row_key         grows.
               collection_key  whose.
               id              UTF-8, unique in its collection.
               metadata        a JSON object in UTF-8.
               value           float32 little endian, one per dimension.
               checksum        crc32 of collection_key (int64), the lengths in bytes of id, metadata
                               and value (3 x uint32), id, metadata, value.

It is opened under SQLite's `unix-excl` layer, which keeps the index of the log in memory, by one
process at a time (the one that holds the data directory), and is made when the first collection is.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import apsw

from ..encryption import checksum_layer
from ..encryption.connecting import open_database
from ..types.errors import CorruptDataError, FailedPreconditionError, UnavailableError

FILE: Final = "collections.db"
APPLICATION_ID: Final = 0x53524356
FORMAT: Final = 1
PAGE_BYTES: Final = 8192
PAGE_DAMAGED: Final = "PAGE_DAMAGED"
"""Reason of the CorruptDataError for a damaged page: others may well be sound."""

BUSY_TIMEOUT_MS = 2_000
_LOG_PAGES = 1_000  # 8 MB, then it is copied into the file
_LOG_BYTES_MAX = 16 << 20
_CACHE_KIB = 8 << 10

_TABLES = """
CREATE TABLE file(
  one INTEGER PRIMARY KEY CHECK (one = 1),
  identity BLOB NOT NULL,
  revision INTEGER NOT NULL,
  removed INTEGER NOT NULL,
  erased INTEGER NOT NULL
) STRICT;
CREATE TABLE collections(
  collection_key INTEGER PRIMARY KEY AUTOINCREMENT,
  resource_id TEXT NOT NULL,
  name TEXT NOT NULL,
  dimensions INTEGER NOT NULL,
  metric INTEGER NOT NULL,
  vectors INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  UNIQUE (resource_id, name)
) STRICT;
CREATE TABLE dropped(
  collection_key INTEGER PRIMARY KEY
) STRICT;
CREATE TABLE vectors(
  row_key INTEGER PRIMARY KEY,
  collection_key INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  id TEXT NOT NULL,
  metadata BLOB NOT NULL,
  value BLOB NOT NULL,
  UNIQUE (collection_key, id)
) STRICT;
CREATE INDEX vectors_by_collection ON vectors(collection_key);
INSERT INTO file VALUES(1, randomblob(16), 0, 0, 0);
"""

_COLLECTION = struct.Struct("<4q2I")
_VECTOR = struct.Struct("<q3I")


@dataclass(frozen=True, slots=True)
class CollectionsFile:
    """Where the file is and how it is opened.

    Attributes:
        path: `collections.db` in the data directory.
        vfs: SQLite's operating system layer.
        key: of the pages, 32 bytes; None: they are plain, and have checksums.
    """

    path: Path
    vfs: str = "unix-excl"
    key: bytes | None = field(default=None, repr=False)

    def open_writer(self) -> apsw.Connection:
        """A connection that writes; the file is made (0600) where it is not there.

        Raises:
            FailedPreconditionError: a newer format, or another program's file.
            CorruptDataError: it is damaged.
            UnavailableError: SQLite has no log here.
            apsw.Error, OSError: the disk.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path, flags, 0o600)
        try:
            os.fchmod(fd, 0o600)  # SQLite gives its log the same
        finally:
            os.close(fd)
        has_log = _has_content(Path(f"{self.path}-wal"))
        connection = self._connected()
        try:
            # Who is refused leaves a log as it is.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_log))
            _check_marks(connection)
            if self.key is None and connection.pragma("page_count"):
                _require_checksums(connection)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            connection.pragma("page_size", PAGE_BYTES)
            if self.key is None:
                checksum_layer.reserve(connection)
            if connection.pragma("journal_mode", "wal") != "wal":
                raise UnavailableError("SQLite cannot keep a write-ahead log in this directory")
            connection.pragma("synchronous", "FULL")
            connection.pragma("secure_delete", "ON")
            connection.pragma("wal_autocheckpoint", _LOG_PAGES)
            connection.pragma("journal_size_limit", _LOG_BYTES_MAX)
            connection.pragma("cache_size", -_CACHE_KIB)
            if connection.execute("SELECT count(*) FROM sqlite_schema").get == 0:
                _make(connection)
                _sync_folder(self.path.parent)
            return connection
        except BaseException:
            connection.close()
            raise

    def open_reader(self) -> apsw.Connection:
        """A connection that cannot write. Raises apsw.Error."""
        connection = self._connected()
        connection.pragma("query_only", "ON")
        connection.pragma("cache_size", -_CACHE_KIB)
        return connection

    def _connected(self) -> apsw.Connection:
        return open_database(
            str(self.path),
            apsw.SQLITE_OPEN_READWRITE,
            self.vfs,
            self.key,
            busy_timeout_ms=BUSY_TIMEOUT_MS,
        )


def _check_marks(connection: apsw.Connection) -> None:
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    if (application, version) == (APPLICATION_ID, FORMAT):
        return
    if application == APPLICATION_ID and version > FORMAT:
        raise FailedPreconditionError(
            f"collections.db has format {version}; this version reads format {FORMAT}: "
            "start the version that wrote it, or a newer one",
            reason="FORMAT_UNKNOWN",
        )
    made = connection.execute("SELECT count(*) FROM sqlite_schema").get > 0
    if made or (application, version) != (0, 0):  # of a file that is being made there is nothing
        raise FailedPreconditionError(
            "collections.db is not a file of this program; move it away", reason="FOREIGN_DATABASE"
        )


def _require_checksums(connection: apsw.Connection) -> None:
    """Every file of ours has them; one bit in its head could turn them off."""
    if not checksum_layer.has_checksums(connection):
        raise CorruptDataError("the head of collections.db is damaged", reason=PAGE_DAMAGED)


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _make(connection: apsw.Connection) -> None:
    with connection:
        connection.execute(_TABLES)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", FORMAT)


def _sync_folder(folder: Path) -> None:
    """Make the file's name survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def collection_checksum(numbers: tuple[int, int, int, int], resource: bytes, name: bytes) -> int:
    """The checksum of a row of `collections`.

    Args:
        numbers: collection_key, dimensions, metric, vectors.
        resource, name: UTF-8.
    """
    header = _COLLECTION.pack(*numbers, len(resource), len(name))
    return zlib.crc32(b"".join((header, resource, name)))


def vector_checksum(collection_key: int, id: bytes, metadata: bytes, value: bytes) -> int:
    """The checksum of a row of `vectors`."""
    header = _VECTOR.pack(collection_key, len(id), len(metadata), len(value))
    return zlib.crc32(value, zlib.crc32(metadata, zlib.crc32(header + id)))


def is_sound_vector(
    collection_key: int, dimensions: int, row: tuple[bytes, bytes, bytes, int]
) -> bool:
    """Whether a row of `vectors` is as it was written; `row`: id, metadata, value, checksum."""
    id, metadata, value, checksum = row
    try:
        is_sound = checksum == vector_checksum(collection_key, id, metadata, value)
    except TypeError:  # a column has become another type
        return False
    return is_sound and len(value) == 4 * dimensions
