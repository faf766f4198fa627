"""A checksum in every page of `recall.db`: SQLite's own cksumvfs, and how a file comes by it.

The layer itself, which the file of cached vectors has too, is in encryption/checksum_layer.py. The
log has sums of its own, which SQLite compares when it begins with a log that is there (and see
high_water_mark.py); what is read from a log that this process wrote is not compared again.

Invariants:
  - Whoever writes the file writes the sums, and so through the layer.
  - Page 1 says whether there are sums (byte 20 is 8). That byte alone could turn them off by one
    flipped bit, so that it is held against page 1's own sum before the file is opened.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import apsw

from ..encryption.checksum_layer import CHECKSUM_BYTES, is_page_damage, layer_over
from ..types.errors import CorruptDataError
from . import page_sums

PAGE_DAMAGED: Final = "PAGE_DAMAGED"
"""Reason of the CorruptDataError for a damaged page: others may well be sound."""

_RESERVED_AT = 20  # of page 1: https://sqlite.org/fileformat2.html
_FREE_BYTES_MIN = 64 << 20
_COPY = ".checksums"


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
    with layer_over(None):  # brings the function along
        judge = apsw.Connection(":memory:", vfs="memdb")
    try:
        matches = judge.execute("SELECT verify_checksum(?)", (bytes(page),)).get
    finally:
        judge.close()
    if matches:
        raise CorruptDataError("the head of recall.db is damaged", reason=PAGE_DAMAGED)


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
