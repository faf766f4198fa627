"""No write of an encrypted store is plain: not to the log, nor to files that have no name."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from semanticrecall_core.messages import StoreOptions, connection
from semanticrecall_core.messages.connection import DatabaseFile
from semanticrecall_core.messages.saved_database import copy_into
from semanticrecall_core.types.values import CallBudget, ForgetTarget
from support.message_stores import append, draft
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser

KEY = bytes(range(32))
CANARY = "canaryword"
MESSAGES = 60


class WatchedDisk(apsw.VFS):
    """Counts writes, and those that hold the canary, by kind of file."""

    def __init__(self, name: str) -> None:
        self.vfs_name = name
        self.writes: dict[str, int] = {}
        self.plain: dict[str, int] = {}
        super().__init__(name, "unix", maxpathname=4096)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:
        return _WatchedFile(self, name, flags)

    def written(self, kind: str, data: bytes) -> None:
        self.writes[kind] = self.writes.get(kind, 0) + 1
        if CANARY.encode() in data:
            self.plain[kind] = self.plain.get(kind, 0) + 1


class _WatchedFile(apsw.VFSFile):
    def __init__(
        self, disk: WatchedDisk, name: apsw.URIFilename | str | None, flags: list[int]
    ) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._kind = "no name" if path is None else Path(path).name
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.written(self._kind, data)
        super().xWrite(data, offset)


disks: list[WatchedDisk] = []  # the layers over them outlive a test


@pytest.mark.parametrize("key", [KEY, None], ids=["encrypted", "plain"])
def test_nothing_plain_is_written_by_a_store_a_purge_or_a_snapshot(
    key: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With less in memory, what is written anew goes through a file without a name.
    monkeypatch.setattr(connection, "_WRITER_CACHE_KIB", 64)
    disk = WatchedDisk(f"watched-{len(disks)}")
    disks.append(disk)
    home = tmp_path / "data"
    options = StoreOptions(vfs=disk.vfs_name, key=key)
    store = open_store(home, generation="g", analyser=WordAnalyser(), options=options)
    for n in range(MESSAGES):
        append(store, draft(f"m{n}", text=f"{CANARY} {n} " + f"{CANARY} " * 300))
    store.forget("u", ForgetTarget(message_ids=tuple(f"m{n}" for n in range(0, MESSAGES, 2))))
    store.erase(CallBudget.of_seconds(60))
    with_key = DatabaseFile(home / "recall.db", home / "LOCK", disk.vfs_name, key=key)
    reader = with_key.open_reader()
    reader.pragma("query_only", "OFF")
    copy_into(reader, tmp_path / "saved.db")
    reader.close()
    store.close()
    assert {"recall.db", "recall.db-wal", "saved.db", "no name"} <= set(disk.writes)
    if key is None:
        assert {"recall.db", "recall.db-wal", "saved.db", "no name"} <= set(disk.plain)
    else:
        assert disk.plain == {}
