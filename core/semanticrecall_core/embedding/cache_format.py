"""The file `embeddings.db`: its format, and how it is made, recognised and deleted.

Nothing in it is true by itself and nothing depends on it: it can be deleted at any time while the
sidecar is down, and costs then one run of the model per text. Invariants first:
  - No text, id or prompt is in it. An entry is named by a keyed hash (cache.py); the key is random,
    made with the file, and only in the file.
  - An entry that does not match its checksum, or is not a unit vector, is never given out.
  - All entries are of one model generation: with another one the file is begun anew.
  - Every page is sound when it is read. A damaged index could hide an entry from an erasure, which
    would then not be erased; so the file is begun anew as soon as a damaged page is met.
  - What was erased is in neither the database nor, after the next checkpoint, its log: SQLite's
    secure_delete writes zeros over it. Where an entry cannot be erased the file is deleted.
  - What is damaged, foreign or of another format is deleted and begun anew, with one log line.

Format 1 (PRAGMA application_id 0x53524543, "SREC"; PRAGMA user_version 1), pages of 8,192 bytes, of
which five hold entries of a 384-dimension model each. Every page has a checksum
(encryption/checksum_layer.py); where the directory is encrypted, so is every page, with a tag
(encryption/pages.py). A file without checksums, as it was made before, is written anew:

  cache    one row: secret (32 random bytes), generation (the embedder's), checksum (16 bytes:
           BLAKE2b of the generation's UTF-8, keyed with the secret).
  entries  id        grows.
           key       32 bytes, unique: see `VectorCache` for what is hashed.
           owner     64 bits of a keyed hash of the owner, signed.
           used      the write batch in which the entry was last made or used, roughly: uses are
                     written a minute apart.
           checksum  16 bytes: keyed BLAKE2b of owner (8 bytes, little endian), key and value.
           value     float32 little endian, one per dimension; then the number of tokens, 32 bits.

The file is written with synchronous=NORMAL: a power cut may lose the last second's entries. Only
an erasure waits for the disk. It is opened under SQLite's `unix-excl` layer, which keeps the index
of the log in memory, by one process at a time (the one that holds the data directory).
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import apsw

from ..encryption import checksum_layer
from ..encryption.connecting import open_database
from ..encryption.writing_anew import write_anew

APPLICATION_ID = 0x53524543
FORMAT = 1
PAGE_BYTES = 8192
OWNER_BYTES = 8
KEY_BYTES = 32
SECRET_BYTES = 32
TOKENS_BYTES = 4
CHECKSUM_BYTES = 16

_LOG_PAGES_MAX = 512
_BUSY_TIMEOUT_MS = 1_000
_SUFFIXES = ("", "-wal", "-shm", "-journal")

_TABLES = """
CREATE TABLE cache(
  one INTEGER PRIMARY KEY CHECK (one = 1),
  secret BLOB NOT NULL,
  generation TEXT NOT NULL,
  checksum BLOB NOT NULL
) STRICT;
CREATE TABLE entries(
  id INTEGER PRIMARY KEY,
  key BLOB NOT NULL UNIQUE,
  owner INTEGER NOT NULL,
  used INTEGER NOT NULL,
  checksum BLOB NOT NULL,
  value BLOB NOT NULL
) STRICT;
CREATE INDEX entries_by_owner ON entries(owner);
CREATE INDEX entries_by_use ON entries(used);
"""


class UnusableFileError(Exception):
    """Raised when the file is not one that can be gone on with; says why in a word."""


FILE_FAULTS = (apsw.Error, OSError, ValueError, TypeError, UnusableFileError)
"""What a damaged file or a failing disk can raise; a column may come as another type."""


def is_damage(error: Exception) -> bool:
    """Whether one of FILE_FAULTS says that the file, and not the disk, is at fault."""
    return (
        not isinstance(error, apsw.Error | OSError)
        or isinstance(error, apsw.NotADBError | apsw.FormatError)
        or checksum_layer.is_page_damage(error)
    )


def open_connection(path: Path, vfs: str, key: bytes | None) -> apsw.Connection:
    """A connection to a file that is there, its log open, with the key of its pages.

    Raises FILE_FAULTS.
    """
    flags = apsw.SQLITE_OPEN_READWRITE
    return open_database(str(path), flags, vfs, key, busy_timeout_ms=_BUSY_TIMEOUT_MS)


def open_cache_database(
    path: Path, vfs: str, key: bytes | None, generation: str, new_secret: bytes
) -> tuple[apsw.Connection, bytes]:
    """A connection that writes, and the file's secret.

    Args:
        path: made (0600) if it is not there; a symbolic link is not followed.
        vfs: SQLite's operating system layer.
        key: of the pages, 32 bytes; None: they are plain.
        generation: of the entries; the file's must be the same.
        new_secret: of a file that is made.

    Raises FILE_FAULTS, among them UnusableFileError for a file that is not ours.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.fchmod(fd, 0o600)  # SQLite gives its log the same
    finally:
        os.close(fd)
    connection = open_connection(path, vfs, key)
    try:
        connection.pragma("page_size", PAGE_BYTES)
        if key is None:
            checksum_layer.reserve(connection)
        if connection.pragma("journal_mode", "wal") != "wal":
            raise UnusableFileError("NO_LOG")
        connection.pragma("synchronous", "NORMAL")
        connection.pragma("secure_delete", "ON")
        connection.pragma("wal_autocheckpoint", _LOG_PAGES_MAX)
        connection.pragma("journal_size_limit", _LOG_PAGES_MAX * PAGE_BYTES)
        if connection.execute("SELECT count(*) FROM sqlite_schema").get == 0:
            _make(connection, generation, new_secret)
        if key is None and not checksum_layer.has_checksums(connection):
            _add_checksums(connection, path.parent)
        return connection, _checked_secret(connection, generation)
    except BaseException:
        connection.close()
        raise


def _add_checksums(connection: apsw.Connection, folder: Path) -> None:
    """Write every page anew, with a checksum."""
    checksum_layer.reserve_anew(connection)
    write_anew(connection, folder)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    if not checksum_layer.has_checksums(connection):
        raise UnusableFileError("NO_CHECKSUMS")


def _make(connection: apsw.Connection, generation: str, secret: bytes) -> None:
    with connection:
        connection.execute(_TABLES)
        checksum = hashed(secret, generation.encode(), b"cache")
        connection.execute("INSERT INTO cache VALUES(1, ?, ?, ?)", (secret, generation, checksum))
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", FORMAT)


def _checked_secret(connection: apsw.Connection, generation: str) -> bytes:
    """The secret of a sound file of our format and generation."""
    marks = (connection.pragma("application_id"), connection.pragma("user_version"))
    if marks != (APPLICATION_ID, FORMAT) or _schema(connection) != _expected_schema():
        raise UnusableFileError("FOREIGN")
    row: tuple[bytes, str, bytes] = connection.execute(
        "SELECT secret, generation, checksum FROM cache"
    ).get
    secret, found, checksum = row
    if checksum != hashed(secret, found.encode(), b"cache"):
        raise UnusableFileError("DAMAGED")
    if found != generation:
        raise UnusableFileError("OTHER_MODEL")
    return secret


def _schema(connection: apsw.Connection) -> list[object]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
    return list(connection.execute(query))


def _expected_schema() -> list[object]:
    model = apsw.Connection(":memory:")
    try:
        model.execute(_TABLES)
        return _schema(model)
    finally:
        model.close()


def delete_cache_file(path: Path) -> None:
    """Delete the database with its log. Raises OSError where that cannot be done."""
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def hashed(secret: bytes, content: bytes, purpose: bytes) -> bytes:
    """A checksum: keyed BLAKE2b, CHECKSUM_BYTES long."""
    return hashlib.blake2b(content, digest_size=CHECKSUM_BYTES, key=secret, person=purpose).digest()


def entry_name(owner: object, key: object) -> bytes:
    """An entry's name from its columns. Raises UnusableFileError for those of another type."""
    if not isinstance(owner, int) or not isinstance(key, bytes):
        raise UnusableFileError("DAMAGED")
    return owner.to_bytes(OWNER_BYTES, "little", signed=True) + key


def owner_number(name: bytes) -> int:
    """The column `owner` of an entry's name, or of an owner's hash."""
    return int.from_bytes(name[:OWNER_BYTES], "little", signed=True)
