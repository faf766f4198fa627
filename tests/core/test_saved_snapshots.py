"""Snapshots of a whole store: made, listed, verified, restored, rewritten, removed."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from semanticrecall_core.messages.restoring import Restore
from semanticrecall_core.saving import folder as folder_module
from semanticrecall_core.saving.left_out import PARTIAL
from semanticrecall_core.types.errors import (
    CancelledError,
    CorruptDataError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
)
from semanticrecall_core.types.generations import ModelIdentity
from semanticrecall_core.types.values import CallBudget, ForgetTarget
from support.faulty_disk import FaultyDisk
from support.saved_worlds import (
    DATABASE,
    LEDGER,
    MANIFEST,
    SavedWorld,
    budget,
    content,
    texts,
    vector_of,
    vectors,
)

TEXTS = [f"text {number}" for number in range(40)]


# ---- made and listed ----


def test_what_was_saved_is_what_was_there(world: SavedWorld, other: SavedWorld) -> None:
    world.add("u", TEXTS)
    world.add("v", TEXTS[:3], embedded=False)
    made = world.create()
    assert (made.state.messages, made.state.vectors) == (len(TEXTS) + 3, len(TEXTS))
    assert made.state.store_id == world.store.store_id
    assert world.snapshots.snapshots() == (made,)
    counts = other.restore(made.name)
    assert (counts.messages, counts.vectors, counts.forgotten) == (len(TEXTS) + 3, len(TEXTS), 0)
    before, after = content(world.store), content(other.store)
    assert before.keys() == after.keys()
    for resource, messages in before.items():
        assert [m.encoded for m in after[resource]] == [m.encoded for m in messages]
        assert [m.metadata_json for m in after[resource]] == [m.metadata_json for m in messages]
    assert vectors(other.store, "u") == [vector_of(seq).tobytes() for seq in range(1, 41)]
    assert [row.resource_id for row in other.store.pending(0, 100)] == ["v"] * 3
    assert list(other.store.verify(None)) == []
    assert other.store.store_id != world.store.store_id


def test_a_snapshot_is_two_files_that_nobody_else_may_read(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    made = world.create()
    path = world.folder / made.name
    assert sorted(os.listdir(path)) == [MANIFEST, DATABASE]
    assert path.stat().st_mode & 0o777 == 0o700
    assert {(path / name).stat().st_mode & 0o777 for name in os.listdir(path)} == {0o600}
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["messages"] == len(TEXTS)
    assert manifest["files"][DATABASE]["bytes"] == (path / DATABASE).stat().st_size
    assert sorted(os.listdir(world.folder)) == [made.name, LEDGER]
    assert (world.folder / LEDGER).read_bytes() == b""


def test_the_newest_comes_first(world: SavedWorld) -> None:
    names = []
    for text in TEXTS[:3]:
        world.add("u", [text])
        names.append(world.create().name)
    assert [each.name for each in world.snapshots.snapshots()] == names[::-1]


def test_what_is_no_snapshot_is_left_out(world: SavedWorld, tmp_path: Path) -> None:
    world.add("u", TEXTS)
    made = world.create()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(world.folder / made.name, elsewhere)
    shutil.copytree(elsewhere, world.folder / "20261130T140501Z-r1-0000")  # another's name
    (world.folder / "20261130T140502Z-r1-0000").symlink_to(elsewhere)
    (world.folder / "20261130T140503Z-r1-0000").mkdir()
    (world.folder / "20261130T140504Z-r1-0000").write_text("a file")
    (world.folder / "lost+found").mkdir()
    linked = world.folder / "20261130T140505Z-r1-0000"
    linked.mkdir()
    (linked / MANIFEST).symlink_to(elsewhere / MANIFEST)
    assert [each.name for each in world.snapshots.snapshots()] == [made.name]
    assert sorted(os.listdir(elsewhere)) == [MANIFEST, DATABASE]


def test_one_that_was_copied_into_the_folder_is_there(tmp_path: Path, world: SavedWorld) -> None:
    world.add("u", TEXTS)
    made = world.create()
    other = SavedWorld(tmp_path, "other", saved=tmp_path / "other saved")
    shutil.copytree(world.folder / made.name, other.folder / made.name)
    assert other.snapshots.snapshots() == (made,)
    assert other.restore(made.name).messages == len(TEXTS)
    other.close()


def test_a_removed_one_is_gone(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    made, kept = world.create(), world.create()
    world.snapshots.delete(made.name, budget())
    assert sorted(os.listdir(world.folder)) == [kept.name, LEDGER]
    with pytest.raises(NotFoundError):
        world.snapshots.delete(made.name, budget())


def test_a_snapshot_of_nothing(world: SavedWorld, other: SavedWorld) -> None:
    made = world.create()
    assert other.restore(made.name).messages == 0
    assert content(other.store) == {}


# ---- broken off ----


def test_what_was_broken_off_leaves_nothing(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    for over, expected in (
        (CallBudget.of_seconds(0), DeadlineExceededError),
        (CallBudget(float("inf"), lambda: True), CancelledError),
    ):
        with pytest.raises(expected):
            world.snapshots.create(world.saving, "x", over)
    assert not world.folder.exists() or os.listdir(world.folder) == []


def test_a_call_that_ends_on_the_way_leaves_nothing(world: SavedWorld) -> None:
    world.add("u", [f"text {number}" for number in range(2_000)])
    asked = [0]

    def is_gone_after(times: int) -> bool:
        asked[0] += 1
        return asked[0] > times

    for times in range(0, 40, 3):
        asked[0] = 0
        try:
            made = world.snapshots.create(
                world.saving, "x", CallBudget(float("inf"), lambda n=times: is_gone_after(n))
            )
        except CancelledError:
            assert not world.folder.exists() or os.listdir(world.folder) == []
        else:
            world.snapshots.delete(made.name, budget())
    world.snapshots.verify(world.create().name, budget())


def test_a_disk_without_room_is_said_before_it_is_full(
    world: SavedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("u", TEXTS)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(
        folder_module.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20)
    )
    with pytest.raises(ResourceExhaustedError) as refused:
        world.create()
    assert refused.value.reason == "DISK_FULL"
    assert os.listdir(world.folder) == []


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("error", ["FullError", "IOError"])
def test_a_disk_that_fails_leaves_nothing_and_harms_nothing(
    tmp_path: Path, operation: str, error: str
) -> None:
    disk = FaultyDisk()
    world = SavedWorld(tmp_path, vfs=disk.vfs_name)
    world.add("u", TEXTS)
    failed = [0]

    def fault(tried: str, name: str) -> None:
        if tried == operation and PARTIAL in name:
            failed[0] += 1
            raise getattr(apsw, error)("no")

    disk.fault = fault
    reasons: list[str] = []
    try:
        world.create()
    except SemanticRecallError as raised:
        reasons.append(raised.reason)
    disk.fault = None
    if failed[0]:
        assert reasons == ["DISK_FULL" if error == "FullError" else "UNAVAILABLE"]
        assert os.listdir(world.folder) == []
    else:
        assert (operation, reasons) == ("sync", [])  # nothing is written without a write
    world.add("u", ["after"])
    made = world.create()
    assert made.state.messages == len(TEXTS) + 1
    world.close()


def test_what_a_process_left_behind_is_removed(world: SavedWorld, tmp_path: Path) -> None:
    world.add("u", TEXTS)
    made = world.create()
    for name in (f"ab12{PARTIAL}", f"{made.name[:-1]}0{PARTIAL}"):
        (world.folder / name).mkdir()
        (world.folder / name / DATABASE).write_bytes(b"half")
    link = world.folder / f"link{PARTIAL}"
    link.symlink_to(tmp_path / "data")
    world.snapshots.start(world.saving)
    assert sorted(os.listdir(world.folder)) == [made.name, LEDGER]
    assert (tmp_path / "data" / DATABASE).exists()


def test_others_are_listed_while_a_large_one_is_being_removed(
    world: SavedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("u", TEXTS)
    made, other = world.create(), world.create()
    remove = folder_module.files.remove_folder
    listed: list[tuple[str, ...]] = []

    def slow(path: Path) -> None:
        def names() -> None:
            listed.append(tuple(each.name for each in world.snapshots.snapshots()))

        if not listed and made.name in path.name:
            thread = threading.Thread(target=names, daemon=True)
            thread.start()
            thread.join(10)
        remove(path)

    monkeypatch.setattr(folder_module.files, "remove_folder", slow)
    world.snapshots.delete(made.name, budget())
    assert listed == [(other.name,)]


def test_two_at_once_come_one_after_the_other(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(world.create().name)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(made) == sorted(each.name for each in world.snapshots.snapshots())
    assert len(set(made)) == 4


def test_whoever_waits_for_another_waits_no_longer_than_its_budget(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    inside, go_on = threading.Event(), threading.Event()

    class Slow(type(world.saving)):  # type: ignore[misc]
        def save(self, target: Path, budget: CallBudget) -> None:
            inside.set()
            assert go_on.wait(60)
            super().save(target, budget)

    world.saving.__class__ = Slow
    thread = threading.Thread(target=world.create)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(DeadlineExceededError):
        world.snapshots.create(world.saving, "x", budget(0.05))
    world.forget("u", TEXTS[0])  # no Forget waits for a snapshot
    go_on.set()
    thread.join(60)
    (made,) = world.snapshots.snapshots()
    assert made.state.messages == len(TEXTS) - 1


# ---- restored ----


def test_only_an_empty_store_is_filled(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    made = world.create()
    with pytest.raises(FailedPreconditionError) as refused:
        world.restore(made.name)
    assert refused.value.reason == "STORE_NOT_EMPTY"
    world.store.forget("u", ForgetTarget(everything=True))
    world.snapshots.forgotten(world.saving.forgotten())
    assert world.restore(made.name).forgotten == len(TEXTS)  # all of it was forgotten


def test_a_store_that_was_used_before_gives_no_seq_twice(
    world: SavedWorld, other: SavedWorld
) -> None:
    world.add("u", TEXTS)
    made = world.create()
    used = other.add("w", ["gone"] * 1 + ["gone too"])
    other.store.forget("w", ForgetTarget(everything=True))
    other.restore(made.name)
    rows = content(other.store)["u"]
    assert min(row.seq for row in rows) > max(used)
    assert other.add("u", ["new"])[0] > max(row.seq for row in rows)
    assert list(other.store.verify(None)) == []
    assert vectors(other.store, "u")[: len(TEXTS)] == [
        vector_of(seq).tobytes() for seq in range(1, len(TEXTS) + 1)
    ]


def test_vectors_of_another_model_are_not_taken(world: SavedWorld, tmp_path: Path) -> None:
    world.add("u", TEXTS)
    made = world.create()
    other = SavedWorld(tmp_path, "other", generation="three numbers")
    counts = other.restore(made.name)
    assert (counts.messages, counts.vectors) == (len(TEXTS), 0)
    assert len(other.store.pending(0, 1_000)) == len(TEXTS)
    assert list(other.store.verify(None)) == []
    other.close()


def switch_model(world: SavedWorld) -> None:
    """From now on another model's vectors are searched; none of them is there yet."""
    world.store.vectors_of(ModelIdentity("three numbers", "three-numbers@1/2"))
    everything = [row.seq for rows in content(world.store).values() for row in rows]
    assert world.store.serve("three numbers", everything, lambda: None) == ()


def test_a_snapshot_names_the_model_of_its_vectors_whatever_comes_meanwhile(
    world: SavedWorld, other: SavedWorld
) -> None:
    world.add("u", TEXTS)

    class Switching(type(world.saving)):  # type: ignore[misc]
        def save(self, target: Path, budget: CallBudget) -> None:
            switch_model(world)
            super().save(target, budget)

    world.saving.__class__ = Switching
    made = world.create()
    assert made.index_identity == "three-numbers@1/2"
    assert world.snapshots.verify(made.name, budget()) == made
    counts = other.restore(made.name)
    assert (counts.messages, counts.vectors) == (len(TEXTS), 0)
    assert len(other.store.pending(0, 1_000)) == len(TEXTS)


def test_a_restore_takes_vectors_of_the_model_that_serves_at_its_transaction(
    world: SavedWorld, other: SavedWorld
) -> None:
    world.add("u", TEXTS)
    made = world.create()
    writer = other.saving._writer

    class Switching:
        def submit(self, operation: Any, *more: Any, **options: Any) -> Any:
            if isinstance(operation, Restore):
                switch_model(other)
            return writer.submit(operation, *more, **options)

    other.saving._writer = Switching()  # type: ignore[assignment]
    counts = other.restore(made.name)
    assert (counts.messages, counts.vectors) == (len(TEXTS), 0)
    assert len(other.store.pending(0, 1_000)) == len(TEXTS)
    assert list(other.store.verify(None)) == []


def test_a_restored_store_outlives_a_restart(
    world: SavedWorld, other: SavedWorld, tmp_path: Path
) -> None:
    world.add("u", TEXTS)
    other.restore(world.create().name)
    other.close()
    again = SavedWorld(tmp_path, "other")
    assert texts(again.store) == {"u": sorted(TEXTS)}
    again.close()


def test_a_restore_that_is_broken_off_takes_nothing(world: SavedWorld, other: SavedWorld) -> None:
    world.add("u", [f"text {number}" for number in range(2_000)])
    made = world.create()
    asked = [0]

    def is_gone_after(times: int) -> bool:
        asked[0] += 1
        return asked[0] > times

    for times in range(0, 60, 5):
        asked[0] = 0
        leaving = CallBudget(float("inf"), lambda n=times: is_gone_after(n))
        try:
            other.snapshots.restore(made.name, other.saving, leaving)
        except CancelledError:
            assert content(other.store) == {}
            assert other.store.load_partition("u").seqs.size == 0
        else:
            break
    else:
        assert other.restore(made.name).messages == 2_000
    assert list(other.store.verify(None)) == []


def test_a_folder_that_cannot_be_used_keeps_nobody_from_serving(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("a file")
    world = SavedWorld(tmp_path)
    world.add("u", TEXTS)
    with pytest.raises((UnavailableError, CorruptDataError)):
        world.create()
    world.close()
