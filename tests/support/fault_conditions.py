"""What a forked sidecar is put under before it serves, and file systems of a test's own."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fault_serving import Prepare
from support.fault_sidecar import wait_until


def address_space_bytes(pid: int) -> int:
    """What RLIMIT_AS is compared with."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def limit_file_size(size_bytes: int) -> None:
    """No file grows beyond this: EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def join_group(directory: str) -> None:
    """Become a member of a control group."""
    (Path(directory) / "cgroup.procs").write_text(str(os.getpid()))


def use_one_core() -> None:
    """Run on the first core of those allowed."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@contextlib.contextmanager
def mounted_memory(place: Path, size_kib: int, *options: str) -> Iterator[Path]:
    """A file system of so much memory; skips without the right to mount."""
    place.mkdir()
    _mount("-t", "tmpfs", "-o", ",".join((f"size={size_kib}k", *options)), "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def not_writable(folder: Path) -> Iterator[None]:
    """A folder in which nothing can be made or written meanwhile.

    To root, who may write anywhere, by a mount of it over itself; skips without the right to.
    """
    if os.geteuid() != 0:
        folder.chmod(0o500)
        for file in folder.iterdir():
            if file.is_file():
                file.chmod(0o400)
        try:
            yield
        finally:
            folder.chmod(0o700)
            for file in folder.iterdir():
                if file.is_file():
                    file.chmod(0o600)
        return
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class LoopDisk:
    """An ext4 file system in a file, whose power can be cut.

    EXT4_IOC_SHUTDOWN without a flush of the journal: what was not synced is gone, and the next
    mount recovers as after a power cut (Linux, fs/ext4/ioctl.c).
    """

    _EXT4_IOC_SHUTDOWN = 0x8004587D
    _NO_LOG_FLUSH = 2

    def __init__(self, folder: Path, *, size_mib: int = 64) -> None:
        """Make and mount it; skips without the right, or mkfs.ext4."""
        self.place = folder / "disk"
        self._file = folder / "disk.img"
        self.place.mkdir()
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
            pytest.skip("needs root and mkfs.ext4")
        with self._file.open("wb") as file:
            file.truncate(size_mib << 20)
        command = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", str(self._file)]
        subprocess.run(command, check=True, capture_output=True)
        self.mount()

    def mount(self) -> None:
        """Attach it; recovers what was cut."""
        _mount("-o", "loop", str(self._file), str(self.place))

    def cut(self) -> None:
        """The power is gone: nothing is written any more."""
        import fcntl
        import struct

        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, self._EXT4_IOC_SHUTDOWN, struct.pack("<I", self._NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Detach it."""
        subprocess.run(["umount", str(self.place)], check=True)

    def close(self) -> None:
        """Detach it, whoever uses it."""
        subprocess.run(["umount", "-l", str(self.place)], check=False, capture_output=True)


def _mount(*arguments: str) -> None:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs the right to mount")
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()[:100]}")


GROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cpu_group(quota: float) -> Iterator[Path]:
    """A control group that may use so many cores; skips where none can be made."""
    period_us = 100_000
    with _group("cpu", "cpu.cfs_quota_us", "cpu.max") as (group, is_version_1):
        try:
            if is_version_1:
                (group / "cpu.cfs_period_us").write_text(str(period_us))
                (group / "cpu.cfs_quota_us").write_text(str(int(quota * period_us)))
            else:
                (group / "cpu.max").write_text(f"{int(quota * period_us)} {period_us}")
        except OSError as error:
            pytest.skip(f"a control group's CPU cannot be limited: {error.strerror}")
        yield group


class MemoryGroup:
    """A control group whose memory can be limited while somebody is in it."""

    _TRIES_MAX = 100

    def __init__(self, directory: Path, is_version_1: bool) -> None:
        self.directory = directory
        self._none = "-1" if is_version_1 else "max"
        names = ("limit_in_bytes", "usage_in_bytes") if is_version_1 else ("max", "current")
        self._limit, self._used = (directory / f"memory.{name}" for name in names)
        self._reclaim = directory / f"memory.{'force_empty' if is_version_1 else 'reclaim'}"

    def give_back(self) -> None:
        """Let go of cached pages of files, as far as the kernel does: a limit would find them."""
        with contextlib.suppress(OSError):
            self._reclaim.write_text(str(self.used_bytes()))

    def used_bytes(self) -> int:
        """What its members have."""
        return int(self._used.read_text())

    def limit_to_more(self, extra_bytes: int) -> None:
        """So much more than its members have now, however fast they grow meanwhile."""
        for _ in range(self._TRIES_MAX):
            with contextlib.suppress(OSError):  # it is more by now
                self.limit(self.used_bytes() + extra_bytes)
                return
        raise AssertionError("its members grow faster than they can be limited")

    def limit(self, size_bytes: int | None) -> None:
        """From now on; who needs more is killed by the kernel. None is no limit."""
        self._limit.write_text(self._none if size_bytes is None else str(size_bytes))


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """A control group for memory; skips where none can be made."""
    names = ("memory.limit_in_bytes", "memory.max")
    with _group("memory", *names) as (directory, is_version_1):
        group = MemoryGroup(directory, is_version_1)
        try:
            group.limit(None)
        except OSError as error:
            pytest.skip(f"a control group's memory cannot be limited: {error.strerror}")
        yield group


@contextlib.contextmanager
def _group(controller: str, in_version_1: str, in_version_2: str) -> Iterator[tuple[Path, bool]]:
    """A group of a controller, and whether it is one of version 1."""
    is_version_1 = (GROUPS / controller / in_version_1).exists()
    group = GROUPS / (controller if is_version_1 else ".") / f"semanticrecall-faults-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made below {GROUPS}: {error.strerror}")
    try:
        if not is_version_1 and not (group / in_version_2).exists():
            pytest.skip(f"control groups have no {in_version_2} here")
        yield group, is_version_1
    finally:
        group.rmdir()


def tell_threads(path: str, then: Prepare | None = None) -> None:
    """In a forked process: write the names of its threads to a file whenever there is none."""
    if then is not None:
        then()

    def tell() -> None:
        while True:
            if not os.path.exists(path):
                names = [thread.name for thread in threading.enumerate()]
                Path(f"{path}.new").write_text("\n".join(names))
                os.rename(f"{path}.new", path)
            time.sleep(0.01)

    threading.Thread(target=tell, name="tell-threads", daemon=True).start()


def told_threads(path: Path) -> list[str]:
    """The threads of a process that tells them, now."""
    path.unlink(missing_ok=True)
    wait_until(path.exists)
    return path.read_text().split("\n")
