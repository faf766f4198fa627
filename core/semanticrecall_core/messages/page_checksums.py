"""A checksum in every page of `recall.db`: SQLite's own cksumvfs, and how a file comes by it.

SQLite itself has none: of 400 flipped bits its integrity check met 27. The last 8 bytes of every
page are reserved for a sum of the page (https://sqlite.org/cksumvfs.html), which is made when the
page reaches the file, and compared whenever it is read from there. A page that does not match is
never given out: the statement fails with SQLITE_IOERR_DATA. The log has sums of its own, which
SQLite compares when it begins with a log that is there (and see high_water_mark.py); what is read
from a log that this process wrote is not compared again.

Invariants:
  - Whoever writes the file writes the sums: one that is written without this layer is damaged in
    its eyes. In this process the layer is SQLite's default one.
  - Page 1 says whether there are sums (byte 20 is 8). That byte alone could turn them off by one
    flipped bit, so that it is held against page 1's own sum before the file is opened.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw
import apsw.sqlite_extra

from ..types.errors import CorruptDataError, UnsafeEnvironmentError
from . import page_sums

CHECKSUM_BYTES: Final = 8
PAGE_DAMAGED: Final = "PAGE_DAMAGED"
"""Reason of the CorruptDataError for a damaged page: others may well be sound."""

DEFAULT_BASE: Final = "unix"
_LAYER = "cksmvfs"
_EXTENSION = "cksumvfs"
_RESERVED_AT = 20  # of page 1: https://sqlite.org/fileformat2.html
_FREE_BYTES_MIN = 64 << 20
_COPY = ".checksums"

_lock = threading.Lock()
_base: str | None = None  # what the layer lies over


@contextmanager
def layer_over(base: str) -> Generator[str]:
    """The name of the layer, while a connection is opened: until its log has been read.

    Args:
        base: the operating system layer below it. There is one layer in a process, so that it is
            moved where the last connection was opened over another one; open files stay where
            they are.

    Raises:
        UnsafeEnvironmentError: this build of apsw comes without cksumvfs.
    """
    global _base
    with _lock:
        if _base != base:
            _base = None
            _register(base)
            _base = base
        yield _LAYER


def _register(base: str) -> None:
    loader = apsw.Connection(":memory:", vfs="memdb")
    try:
        with suppress(ValueError):
            apsw.unregister_vfs(_LAYER)
        apsw.set_default_vfs(base)
        apsw.sqlite_extra.load(loader, _EXTENSION)
    except (apsw.sqlite_extra.NotAvailable, LookupError, apsw.ExtensionLoadingError) as error:
        raise UnsafeEnvironmentError(
            "apsw was installed without SQLite's page checksums; install its wheel, "
            "apsw-sqlite3mc, from the package index",
            reason="PAGE_CHECKSUMS_MISSING",
        ) from error
    finally:
        loader.close()


def is_page_damage(error: BaseException) -> bool:
    """Whether SQLite's error says that a page is damaged.

    It does not match its checksum, or (SQLITE_CORRUPT) its tag where pages are encrypted, or holds
    what no page may hold.
    """
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
    return isinstance(error, apsw.CorruptError)


def check_header(path: Path, page_bytes: int) -> None:
    """See that no flipped bit turned the checksums off. Before SQLite opens the file.

    Raises:
        CorruptDataError: page 1 says that there are none, and has one.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            page = bytearray(file.read(page_bytes))
    except FileNotFoundError:
        return
    if len(page) < page_bytes or page[_RESERVED_AT] == CHECKSUM_BYTES:
        return
    page[_RESERVED_AT] = CHECKSUM_BYTES
    with layer_over(_base or DEFAULT_BASE):  # brings the function along
        judge = apsw.Connection(":memory:", vfs="memdb")
    try:
        matches = judge.execute("SELECT verify_checksum(?)", (bytes(page),)).get
    finally:
        judge.close()
    if matches:
        raise CorruptDataError("the head of recall.db is damaged", reason=PAGE_DAMAGED)


def reserve(connection: apsw.Connection) -> None:
    """Keep room for the checksums in a database that is still empty."""
    if connection.pragma("page_count") == 0:
        connection.reserve_bytes("main", CHECKSUM_BYTES)


def has_checksums(connection: apsw.Connection) -> bool:
    """Whether the pages of an open database carry them."""
    return int(connection.reserve_bytes("main", -1)) == CHECKSUM_BYTES


def written_anew(connection: apsw.Connection, path: Path) -> bool:
    """Copy a database without checksums into one that has them, beside it; see `put_in_place`.

    Args:
        connection: the only one that is open, in no transaction.
        path: of its file.

    Returns:
        False where the disk has no room: there is no copy then.

    Raises apsw.Error for a database that cannot be read.
    """
    copy = path.with_name(path.name + _COPY)
    copy.unlink(missing_ok=True)
    size_bytes = path.stat().st_size
    if shutil.disk_usage(path.parent).free < size_bytes + _FREE_BYTES_MIN:
        return False
    connection.reserve_bytes("main", CHECKSUM_BYTES)
    os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    try:
        connection.execute("VACUUM INTO ?", (str(copy),))
        page_sums.complete(copy)
    except (apsw.FullError, apsw.IOError) as error:
        copy.unlink(missing_ok=True)
        if is_page_damage(error):
            raise
        return False
    return True


def put_in_place(path: Path) -> None:
    """Let the copy take the place of the database, which nobody has open and which has no log.

    Whenever the power fails, one of the two is there, whole.
    """
    copy = path.with_name(path.name + _COPY)
    sync(copy)
    copy.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
