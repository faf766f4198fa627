"""What a container gives a process, without a container: set up in a forked process (Linux, root).

Nothing can be written but one folder, the user is nobody without any capability or a way to get
one, memory and processes are limited, and the kernel kills whoever starts a program or a process
(seccomp(2): a filter of BPF instructions on the numbers of system calls; x86-64 only).
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path

NOBODY = 65534
# A checkout below a folder that is its owner's alone cannot be run by anybody else.
REACHABLE = all(
    folder.stat().st_mode & 0o5 == 0o5
    for start in (Path(__file__).resolve(), Path(sys.prefix).resolve())
    for folder in start.parents
)
CONFINABLE = os.geteuid() == 0 and platform.machine() == "x86_64" and os.path.exists("/proc/self")

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITIES = 41
_KILL, _ALLOW, _NOT_THERE = 0x80000000, 0x7FFF0000, 0x00050000 | 38  # ENOSYS
_CLONE_THREAD = 0x00010000
_STARTS_ANOTHER = {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322}
_CLONE, _CLONE3 = 56, 435

_libc = ctypes.CDLL(None, use_errno=True)


def confine(writable: str, memory_bytes: int, processes: int) -> None:
    """Give up all that a sidecar does not need; there is no way back.

    Args:
        writable: the only folder that can be written, made for nobody.
        memory_bytes: of address space.
        processes: processes and threads of this user.
    """
    _read_only_but(writable)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    for number in range(_CAPABILITIES):
        _checked(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)  # with it go all capabilities
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _kill_who_starts_another()


def _read_only_but(writable: str) -> None:
    """In a mount namespace of its own, where every file system but this folder is read-only."""
    _checked(_libc.unshare(_CLONE_NEWNS))
    _mount(b"none", b"/", _MS_REC | _MS_PRIVATE)
    _make_readable(Path(sys.base_prefix))
    place = os.fsencode(writable)
    _mount(place, place, _MS_BIND)
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    for point in {line.split()[4] for line in lines} - {writable}:
        if not point.startswith("/proc") and os.path.exists(point):
            _mount(b"none", os.fsencode(point), _MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def _make_readable(folder: Path) -> None:
    """Where a folder lies in one that is closed to others, as Python may, put it there alone."""
    closed = [each for each in folder.parents if not each.stat().st_mode & 0o001]
    if not closed:
        return
    source = os.open(folder, os.O_PATH)
    _mount(b"none", os.fsencode(closed[-1]), 0, b"tmpfs", b"mode=755")
    folder.mkdir(parents=True)
    _mount(f"/proc/self/fd/{source}".encode(), os.fsencode(folder), _MS_BIND)
    os.close(source)


def _mount(
    source: bytes,
    target: bytes,
    flags: int,
    kind: bytes | None = None,
    options: bytes | None = None,
) -> None:
    _checked(_libc.mount(source, target, kind, ctypes.c_ulong(flags), options))


def _kill_who_starts_another() -> None:
    """Threads may be made: clone with CLONE_THREAD; clone3 is said not to be there."""
    load, equal, has_bits, result = 0x20, 0x15, 0x45, 0x06  # of BPF: LD W ABS, JEQ, JSET, RET
    steps = [(load, 0, 0, 0)]
    for number in _STARTS_ANOTHER.values():
        steps += [(equal, 0, 1, number), (result, 0, 0, _KILL)]
    steps += [(equal, 0, 1, _CLONE3), (result, 0, 0, _NOT_THERE)]
    steps += [(equal, 0, 3, _CLONE), (load, 0, 0, 16), (has_bits, 1, 0, _CLONE_THREAD)]
    steps += [(result, 0, 0, _KILL), (result, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("<H6xQ", len(steps), ctypes.addressof(buffer))
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0))


def _checked(outcome: int) -> None:
    if outcome:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
