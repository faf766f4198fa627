"""Locks of folders: several servers may share the folder of the snapshots.

Whoever makes, rewrites, restores or removes a snapshot has the folder's lock meanwhile. The system
gives it back when the process ends. Who only reads does without, and looks twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ..types.values import CallBudget
from .files import translated_errors

_STEP_S = 0.1
_CANNOT_LOCK = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP})
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def others_kept_out(folder: Path, budget: CallBudget | None) -> Generator[bool]:
    """Whether no other process has the folder's lock as long as this lasts.

    With a budget it waits until that is so; without one it says False at once. A folder that is
    not there has nobody who works on it.

    Raises:
        DeadlineExceededError, CancelledError: the budget is over.
        UnavailableError: the folder cannot be used.
    """
    with translated_errors():
        try:
            fd = os.open(folder, _FLAGS)
        except FileNotFoundError:
            fd = -1
    if fd < 0:
        yield True
        return
    waits = threading.Event()
    try:
        while not (alone := _locked(fd)) and budget is not None:
            budget.check()
            waits.wait(min(_STEP_S, budget.remaining()))
        yield alone
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Whether a process has a folder's lock, or a part of it."""
    if path.is_symlink() or not path.is_dir():
        return False
    fd = os.open(path, _FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _locked(fd: int) -> bool:
    """Take the lock; False where another has it.

    A file system that cannot lock folders keeps nobody out.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _CANNOT_LOCK:
            raise
    return True
