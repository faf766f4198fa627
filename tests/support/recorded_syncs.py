"""What a process tells the disk to keep, in order, by the names of the files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


class RecordedSyncs:
    """Stands in for `os.fsync`, `os.fdatasync` and `os.rename`, which are done all the same.

    Attributes:
        calls: ("sync", name, bytes there) of a file, ("names", folder, number of names) of a
            folder, ("rename", old name, new name).
    """

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str, object]] = []
        for name in ("fsync", "fdatasync"):
            patched.setattr(os, name, self._syncing(getattr(os, name)))
        rename = os.rename

        def renamed(old: Any, new: Any, **more: Any) -> None:
            rename(old, new, **more)
            self.calls.append(("rename", Path(old).name, Path(new).name))

        patched.setattr(os, "rename", renamed)

    def _syncing(self, real: Any) -> Any:
        def synced(fd: int) -> None:
            real(fd)
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.is_dir():
                self.calls.append(("names", path.name, len(list(path.iterdir()))))
            else:
                self.calls.append(("sync", path.name, os.fstat(fd).st_size))

        return synced

    def of(self, *names: str) -> list[tuple[str, str]]:
        """What was done with these files and folders, without numbers."""
        return [
            (what, name)
            for what, name, other in self.calls
            if name in names or (what == "rename" and other in names)
        ]
