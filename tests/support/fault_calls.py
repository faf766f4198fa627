"""Faults at the calls that change files, in a forked process: fault_shim.c, built when needed.

    prepare = partial(arm, Fault(str(data), Action.FAIL, errno.EIO, word="recall.db-wal", first=3))
    sidecar = FaultSidecar(home, prepare=prepare)

Needs a C compiler; `shim()` is None where there is none, and `needs_shim` skips.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fault_shim.c")
FOREVER = 2**62
COMPILERS = ("cc", "gcc", "clang")


class Calls(enum.IntFlag):
    """Classes of calls."""

    WRITE = 1
    SYNC = 2
    TRUNCATE = 4
    RENAME = 8
    UNLINK = 16
    CREATE = 32
    ALLOCATE = 64
    ALL = 127


class Action(enum.IntEnum):
    """What happens at a call: it is only counted, the process dies before it, it fails, it writes
    half and says so, it waits until a file is gone, it writes half and the process dies."""

    COUNT = 0
    KILL = 1
    FAIL = 2
    SHORT = 3
    HOLD = 4
    TEAR = 5


@dataclass(frozen=True)
class Fault:
    """What happens at which calls.

    Attributes:
        folder: calls on files below it.
        action: what happens.
        code: errno of FAIL.
        word: part of the file's path; "" for all.
        calls: these classes are counted.
        first, last: of the calls counted, from 1.
        gate: of HOLD: the file. Another one, with `.held` behind its name, says that one waits.
        syncs: False: nobody waits for the disk. A process that is killed needs no sync.
    """

    folder: str
    action: Action
    code: int = 0
    word: str = ""
    calls: Calls = Calls.ALL
    first: int = 1
    last: int = FOREVER
    gate: str = ""
    syncs: bool = True


@cache
def shim() -> Path | None:
    """The built library; None without a compiler."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"semanticrecall-shim-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / f"{digest}.so"
    if not built.exists():
        partial = built.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(partial), str(SOURCE), "-ldl"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        partial.rename(built)
    return built


needs_shim = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C compiler")


def _library() -> ctypes.CDLL:
    path = shim()
    assert path is not None
    assert str(path) in Path("/proc/self/maps").read_text(), (
        "the library was not loaded before libc"
    )
    return ctypes.CDLL(str(path))


def arm(fault: Fault) -> None:
    """In a forked process: from now on."""
    _library().fault_arm(
        os.fsencode(fault.folder),
        os.fsencode(fault.word),
        ctypes.c_uint(fault.calls),
        ctypes.c_long(fault.first),
        ctypes.c_long(fault.last),
        ctypes.c_int(fault.action),
        ctypes.c_int(fault.code),
        os.fsencode(fault.gate),
        ctypes.c_int(not fault.syncs),
    )


def disarm() -> None:
    """No faults from now on."""
    _library().fault_disarm()


def counted() -> int:
    """Calls counted since `arm`."""
    function = _library().fault_counted
    function.restype = ctypes.c_long
    return int(function())


def met() -> int:
    """Calls at which something happened since `arm`."""
    function = _library().fault_met
    function.restype = ctypes.c_long
    return int(function())


class WallClock:
    """A wall clock that a test sets, of a process that was told so: a file that both look at."""

    def __init__(self, path: Path) -> None:
        """It is right at first."""
        self._path = path
        path.write_bytes(bytes(8))

    def set(self, offset_s: int) -> None:
        """So many seconds ahead of the real one."""
        with self._path.open("r+b", buffering=0) as file:
            file.write(offset_s.to_bytes(8, "little", signed=True))


def follow_clock(path: str) -> None:
    """In a forked process: take the wall clock of this file. The monotonic clock stays true."""
    assert _library().fault_clock(os.fsencode(path)) == 0
