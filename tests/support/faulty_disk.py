"""A disk that fails when told to: SQLite's operating system layer with a switch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import apsw

_names = count()
# The layer of page checksums may lie over a disk that a test has done with.
_made: list[FaultyDisk] = []


class FaultyDisk(apsw.VFS):
    """Set `fault` to a function of (operation, file name) that raises where it should fail.

    Operations: "write", "sync", "truncate".
    """

    def __init__(self) -> None:
        self.vfs_name = f"faulty-{next(_names)}"
        self.fault: Callable[[str, str], None] | None = None
        self.calls = 0
        super().__init__(self.vfs_name, "unix", maxpathname=4096)
        _made.append(self)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:
        return _FaultyFile(self, name, flags)

    def tried(self, operation: str, name: str) -> None:
        self.calls += 1
        if self.fault is not None:
            self.fault(operation, name)


class _FaultyFile(apsw.VFSFile):
    def __init__(
        self, disk: FaultyDisk, name: apsw.URIFilename | str | None, flags: list[int]
    ) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.tried("write", self._name)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.tried("sync", self._name)
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self._disk.tried("truncate", self._name)
        super().xTruncate(size)
