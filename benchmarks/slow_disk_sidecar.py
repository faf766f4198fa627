"""A sidecar on a disk whose fsync takes as long as told: SQLite's system layer with a pause in it.

Usage: SLOW_FSYNC_MS=2 python -m benchmarks.slow_disk_sidecar [flags of `semanticrecall serve`]

The layer is registered as SQLite's default before the server starts; nothing else differs. Every
sync of a database file or its log is done by the real layer and then takes so much longer. (The
mark beside the database is synced once a second and is not SQLite's.)
"""

from __future__ import annotations

import os
import sys
import time

import apsw

from semanticrecall_server.main import serve_command

VFS = "slow-fsync"
FSYNC_MS_VARIABLE = "SLOW_FSYNC_MS"


class SlowDisk(apsw.VFS):
    """The system's own layer, with files that take their time to sync."""

    def __init__(self, fsync_s: float, *, default: bool) -> None:
        """`default`: every database that names no layer is opened with this one."""
        self.vfs_name = VFS
        self._fsync_s = fsync_s
        super().__init__(VFS, "unix", makedefault=default, maxpathname=4096)

    def xOpen(  # noqa: N802
        self, name: apsw.URIFilename | str | None, flags: list[int]
    ) -> apsw.VFSFile:
        return _SlowFile(self._fsync_s, name, flags)


class _SlowFile(apsw.VFSFile):
    def __init__(
        self, fsync_s: float, name: apsw.URIFilename | str | None, flags: list[int]
    ) -> None:
        self._fsync_s = fsync_s
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        time.sleep(self._fsync_s)


if __name__ == "__main__":
    _DISK = SlowDisk(float(os.environ[FSYNC_MS_VARIABLE]) / 1000, default=True)
    sys.exit(serve_command(sys.argv[1:]))
