"""Files of snapshots: synced, read back, removed; and what the system's errors mean."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..types.errors import (
    CorruptDataError,
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
)
from ..types.values import CallBudget

_READ_BYTES = 1 << 20


@contextmanager
def translated_errors() -> Generator[None]:
    """The system's errors as ours; no path is passed on."""
    try:
        yield
    except OSError as error:
        raise _translated(error) from error


def _translated(error: OSError) -> SemanticRecallError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceExhaustedError("the disk of the snapshots is full", reason="DISK_FULL")
    if error.errno in (errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return CorruptDataError("a file of the snapshot is missing, or no plain file")
    return UnavailableError(
        f"the folder of the snapshots cannot be used: {os.strerror(error.errno or 0)}",
        reason="SNAPSHOTS_UNUSABLE",
    )


def opened_plain(path: Path) -> int:
    """A descriptor of a regular file, to read; a link, a pipe or a device is not opened."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, "not a plain file")
    return fd


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet (0600), and sync it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)


def sync_file(path: Path) -> None:
    """Make what a file holds survive a power cut, and drop it from memory."""
    fd = opened_plain(path)
    try:
        os.fsync(fd)
        # What is read back then comes from the disk.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest_of(path: Path, budget: CallBudget) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    fd = opened_plain(path)
    try:
        while content := os.read(fd, _READ_BYTES):
            digest.update(content)
            budget.check()
    finally:
        os.close(fd)
    return digest.hexdigest()


def read_small(path: Path, bytes_max: int) -> bytes:
    """A file of at most so many bytes; CorruptDataError where it is larger."""
    fd = opened_plain(path)
    with os.fdopen(fd, "rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise CorruptDataError("a file of the snapshot is larger than it can be")
    return content


def remove_folder(path: Path) -> None:
    """Remove a folder and the files in it. Links are removed, not followed; safe to call twice."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    with suppress(FileNotFoundError):
        for name in os.listdir(path):
            (path / name).unlink(missing_ok=True)
        path.rmdir()
