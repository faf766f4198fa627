"""Writing every page of a SQLite file anew (VACUUM), in little memory.

SQLite makes the new pages in a temporary database first. It lies in a file without a name, beside
the database and encrypted as that is: in memory it would be as large as the database, and the
system's folder for temporary files may have no room, or be memory too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw

_FOLDER = "SQLITE_TMPDIR"
_lock = threading.Lock()  # the environment is the whole process's


def write_anew(connection: apsw.Connection, folder: Path) -> None:
    """Write every page anew, so that none holds what is not in a table.

    Args:
        connection: in no transaction, its temporary files in memory; they are again afterwards.
        folder: of the database; has room for another one, and the log's disk for a third.

    Raises apsw.Error.
    """
    with _temporary_files_in(folder):
        try:
            connection.pragma("temp_store", "FILE")
            connection.execute("VACUUM")
        finally:
            connection.pragma("temp_store", "MEMORY")


@contextmanager
def _temporary_files_in(folder: Path) -> Generator[None]:
    with _lock:
        before = os.environ.get(_FOLDER)
        os.environ[_FOLDER] = str(folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ[_FOLDER]
            else:
                os.environ[_FOLDER] = before
