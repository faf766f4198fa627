"""What errors of SQLite and of the system mean to a caller of collections."""

from __future__ import annotations

import errno

import apsw

from ..encryption import checksum_layer
from ..types.errors import (
    CorruptDataError,
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
)
from .file_format import PAGE_DAMAGED


def translated(error: Exception) -> SemanticRecallError:
    """What an error of SQLite or the system means to a caller."""
    match error:
        case apsw.FullError() | OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            return ResourceExhaustedError("the disk is full", reason="DISK_FULL")
        case apsw.NoMemError() | MemoryError():
            return ResourceExhaustedError("out of memory", reason="OUT_OF_MEMORY")
        case _ if checksum_layer.is_page_damage(error):
            return CorruptDataError(
                "a page of collections.db is damaged; stop, move the file away, and have its "
                "collections made again",
                reason=PAGE_DAMAGED,
            )
        case apsw.NotADBError() | apsw.FormatError() | UnicodeDecodeError():
            return CorruptDataError("collections.db is damaged", reason=PAGE_DAMAGED)
        case apsw.BusyError() | apsw.LockedError():
            return UnavailableError("another program holds collections.db")
        case _:
            return UnavailableError(f"collections.db failed: {type(error).__name__}")


def is_over_limit(error: apsw.IOError, connection: apsw.Connection) -> bool:
    """Whether a quota or the limit on a file's size is reached: SQLite calls only ENOSPC full."""
    is_write = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE
    return is_write and connection.system_errno in (errno.EDQUOT, errno.EFBIG)
