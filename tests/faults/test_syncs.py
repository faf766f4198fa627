"""What is acknowledged, or gets its name, is on disk before: the order of writes and syncs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semanticrecall_core.encryption import KEY_FILE, UserKeys, unlocked
from semanticrecall_core.messages import StoreOptions
from semanticrecall_core.messages.saved_database import SqliteSavedDatabases
from semanticrecall_core.saving import SavedSnapshots
from semanticrecall_core.saving.ledger import LEDGER, Ledger
from semanticrecall_core.types.saving import ForgottenMessage
from semanticrecall_core.types.values import CallBudget, ForgetTarget
from support.faulty_disk import FaultyDisk
from support.message_stores import append, draft
from support.recorded_syncs import RecordedSyncs
from support.stored_messages import open_store

STORE_ID = "0123456789abcdef" * 2


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> RecordedSyncs:
    return RecordedSyncs(monkeypatch)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    made = FaultyDisk()
    yield made
    made.unregister()


def test_a_message_is_on_disk_before_it_is_acknowledged(disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store(tmp_path / "data", generation="g", options=StoreOptions(vfs=disk.vfs_name))
    done: list[str] = []

    def note(operation: str, name: str) -> None:
        if name.endswith("-wal"):
            done.append(operation)

    disk.fault = note
    for operation in (
        lambda: append(store, draft("a")),
        lambda: store.forget("u", ForgetTarget(message_ids=("a",))),
    ):
        done.clear()
        operation()
        assert "write" in done
        assert done[-1] == "sync", "the log was written, and not synced, when the caller had it"
    disk.fault = None
    store.close()


def test_the_mark_is_synced_when_the_store_closes(syncs: RecordedSyncs, tmp_path: Path) -> None:
    store = open_store(tmp_path / "data", generation="g")
    append(store, draft("a"))
    syncs.calls.clear()
    store.close()
    assert ("sync", "MARK") in syncs.of("MARK")


def test_the_names_of_a_new_store_are_synced(syncs: RecordedSyncs, tmp_path: Path) -> None:
    open_store(tmp_path / "data", generation="g").close()
    told = [count for what, name, count in syncs.calls if (what, name) == ("names", "data")]
    assert told, "the names in the directory were never synced"
    # LOCK, MARK, recall.db and its log.
    assert max(int(str(count)) for count in told) >= 4


def test_the_ledger_is_on_disk_before_a_forget_is_answered(
    syncs: RecordedSyncs, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)
    ledger.add([ForgottenMessage(STORE_ID, 7, 3)])
    size = (tmp_path / LEDGER).stat().st_size
    assert size > 0
    assert syncs.calls == [("sync", LEDGER, size), ("names", tmp_path.name, 1)]
    syncs.calls.clear()
    ledger.add([ForgottenMessage(STORE_ID, 9, 4)])
    assert syncs.calls == [("sync", LEDGER, 2 * size)]


def test_a_snapshot_is_on_disk_before_it_has_its_name(syncs: RecordedSyncs, tmp_path: Path) -> None:
    store = open_store(tmp_path / "data", generation="g")
    append(store, draft("a"))
    databases = SqliteSavedDatabases()
    saved = SavedSnapshots(tmp_path / "saved", databases, program_version="1")
    syncs.calls.clear()
    made = saved.create(store.saving(databases), "g", CallBudget.of_seconds(20))
    files = ("recall.db", "MANIFEST.json")
    size = (tmp_path / "saved" / made.name / "recall.db").stat().st_size
    assert ("sync", "recall.db", size) in syncs.calls
    renamed = next(at for at, c in enumerate(syncs.calls) if c[0] == "rename" and c[2] == made.name)
    partial = syncs.calls[renamed][1]
    before = [call[:2] for call in syncs.calls[:renamed]]
    for call in [*(("sync", name) for name in files), ("names", partial)]:
        assert call in before, f"{call} was not done before the snapshot had its name"
    assert ("names", "saved") in [call[:2] for call in syncs.calls[renamed:]]
    store.close()


def test_the_key_is_on_disk_before_it_has_its_name(syncs: RecordedSyncs, tmp_path: Path) -> None:
    old, new = bytes(range(32)), bytes(range(1, 33))
    for keys in (UserKeys(old), UserKeys(new, old)):
        syncs.calls.clear()
        unlocked(tmp_path, keys, begin=True)
        whats = [call[0] for call in syncs.calls]
        assert whats == ["sync", "rename", "names"]
        assert syncs.calls[0][2] == (tmp_path / KEY_FILE).stat().st_size
        assert syncs.calls[1][2] == KEY_FILE
