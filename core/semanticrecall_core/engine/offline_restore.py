"""Making a data directory of a snapshot, while no server has it.

A directory that is half restored is not taken for a store. The mark is written first: it says that
changes were acknowledged, and while there is no database beside it, a server does not start
("acknowledged changes are missing"). The database is made under another name and renamed when it is
whole and synced; from that moment the store is complete.
"""

from __future__ import annotations

import os
import secrets
from contextlib import closing
from pathlib import Path

from semanticrecall_core.messages.connection import translated_errors
from semanticrecall_core.messages.directory import DataDirectory
from semanticrecall_core.messages.high_water_mark import HighWaterMark, Mark
from semanticrecall_core.messages.saved_database import SqliteSavedDatabases
from semanticrecall_core.saving import CheckedSnapshot, checked
from semanticrecall_core.types.errors import FailedPreconditionError
from semanticrecall_core.types.saving import RestoreCounts
from semanticrecall_core.types.values import CallBudget

PARTIAL = "recall.db.partial"
_MAY_BE_THERE = frozenset({"LOCK", "MARK", "KEY", "BALLAST", "saved", "lost+found"})
_KEY_BYTES_MAX = 64 << 10


def restore_offline(
    data_dir: Path,
    snapshot: Path,
    databases: SqliteSavedDatabases,
    budget: CallBudget,
    *,
    allow_shared_file_system: bool = False,
    encrypted: bool = False,
) -> RestoreCounts:
    """Make a store of a snapshot; what was forgotten since is in none of its bytes.

    Args:
        data_dir: a directory with nothing in it, or none.
        snapshot: the folder, wherever it is; the ledger FORGOTTEN beside it counts.
        databases: open what is in either.
        budget: what was written is removed where it is over.
        allow_shared_file_system: see DataDirectory.
        encrypted: a plain snapshot, which would give a plain directory, is refused.

    Raises:
        NotFoundError: there is no snapshot.
        CorruptDataError: it is damaged.
        FailedPreconditionError: DATA_DIRECTORY_NOT_EMPTY, another format, another key;
            NOT_ENCRYPTED.
        StoreLockedError, UnsafeEnvironmentError: see DataDirectory.
        ResourceExhaustedError: DISK_FULL.
    """
    found = checked(snapshot, databases, budget, rows=False)  # the store deals with damaged ones
    if encrypted and found.key_file is None:
        raise FailedPreconditionError(
            "the snapshot is not encrypted, and a key was given; leave the key out, or restore it"
            " into the running server of an empty, encrypted store: `semanticrecall snapshot"
            " restore NAME`",
            reason="NOT_ENCRYPTED",
        )
    with closing(
        DataDirectory(data_dir, allow_shared_file_system=allow_shared_file_system)
    ) as directory:
        _require_empty(directory.path)
        with translated_errors():
            return _restore(directory, found, databases, budget)


def _restore(
    directory: DataDirectory,
    found: CheckedSnapshot,
    databases: SqliteSavedDatabases,
    budget: CallBudget,
) -> RestoreCounts:
    store_id = secrets.token_hex(16)
    with closing(HighWaterMark(directory.mark)) as mark:
        mark.start(Mark(store_id, found.state.revision + 1))
    key = directory.path / "KEY"
    if found.key_file is not None:
        _copy_key(found.key_file, key)
    else:
        key.unlink(missing_ok=True)
    directory.sync()
    partial = directory.path / PARTIAL
    partial.unlink(missing_ok=True)
    try:
        state, left_out = databases.write_restored(
            found.database, partial, found.left_out, store_id, budget
        )
        _sync(partial)
        partial.rename(directory.database)
    finally:
        partial.unlink(missing_ok=True)
    directory.sync()
    return RestoreCounts(state.messages, state.vectors, left_out, found.without_ledger)


def _require_empty(directory: Path) -> None:
    """A database that is there is never overwritten; what a killed restore left is."""
    others = [
        name
        for name in os.listdir(directory)
        if name not in _MAY_BE_THERE and not name.startswith(PARTIAL)
    ]
    if others:
        raise FailedPreconditionError(
            "the data directory is not empty; restore into a new one",
            reason="DATA_DIRECTORY_NOT_EMPTY",
        )


def _copy_key(source: Path, target: Path) -> None:
    content = source.read_bytes()[:_KEY_BYTES_MAX]
    target.unlink(missing_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
