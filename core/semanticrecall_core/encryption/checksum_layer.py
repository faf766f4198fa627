"""A checksum in every plain page of a SQLite file: SQLite's own cksumvfs, as a layer.

SQLite itself has none: of 400 flipped bits its integrity check met 27. The last 8 bytes of every
page are reserved for a sum of the page (https://sqlite.org/cksumvfs.html), which is made when the
page reaches the file, and compared whenever it is read from there. A page that does not match is
never given out: the statement fails with SQLITE_IOERR_DATA. What is encrypted has tags instead
(pages.py).

Whoever writes the file writes the sums: one that is written without this layer is damaged in its
eyes. In this process the layer is SQLite's default one.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

import apsw
import apsw.sqlite_extra

from ..types.errors import UnsafeEnvironmentError

CHECKSUM_BYTES: Final = 8
DEFAULT_BASE: Final = "unix"
_LAYER = "cksmvfs"
_EXTENSION = "cksumvfs"

_lock = threading.Lock()
_base: str | None = None  # what the layer lies over


@contextmanager
def layer_over(base: str | None) -> Generator[str]:
    """The name of the layer, while a connection is opened: until its log has been read.

    Args:
        base: the operating system layer below it. There is one layer in a process, so that it is
            moved where the last connection was opened over another one; open files stay where
            they are. None leaves it where it is.

    Raises:
        UnsafeEnvironmentError: this build of apsw comes without cksumvfs.
    """
    global _base
    with _lock:
        wanted = base or _base or DEFAULT_BASE
        if _base != wanted:
            _base = None
            _register(wanted)
            _base = wanted
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


def reserve(connection: apsw.Connection) -> None:
    """Keep room for the checksums in a database that is still empty."""
    if connection.pragma("page_count") == 0:
        connection.reserve_bytes("main", CHECKSUM_BYTES)


def reserve_anew(connection: apsw.Connection) -> None:
    """Have the next VACUUM keep room for them."""
    connection.reserve_bytes("main", CHECKSUM_BYTES)


def has_checksums(connection: apsw.Connection) -> bool:
    """Whether the pages of an open database carry them."""
    return int(connection.reserve_bytes("main", -1)) == CHECKSUM_BYTES
