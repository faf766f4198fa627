"""What lies in the folder of the snapshots under another name, or cannot be read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from semanticrecall_core.engine.offline_restore import restore_offline
from semanticrecall_core.saving.left_out import NAMES_MAX
from semanticrecall_core.saving.manifest import Manifest
from semanticrecall_core.types.errors import FailedPreconditionError, NotFoundError
from support.saved_worlds import LEDGER, MANIFEST, SavedWorld, budget

TEXTS = [f"text {number}" for number in range(10)]
RENAMED = "before-upgrade"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SavedWorld]:
    made = SavedWorld(tmp_path)
    made.add("u", TEXTS)
    yield made
    made.close()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_copy_under_another_name_is_named_until_it_is_gone(world: SavedWorld) -> None:
    made = world.create()
    shutil.copytree(world.folder / made.name, world.folder / RENAMED)
    world.forget("u", TEXTS[0])
    assert world.snapshots.rewrite(world.saving, budget()) == (made.name,)
    assert b"about text 0" in (world.folder / RENAMED / "recall.db").read_bytes()
    with capture_logs() as logs:
        assert world.snapshots.left_out(world.saving) == (RENAMED,)
    assert [e["snapshot"] for e in logs if e["event"] == "snapshot_left_out"] == [RENAMED]
    shutil.rmtree(world.folder / RENAMED)
    assert world.snapshots.left_out(world.saving) == ()


def test_a_manifest_with_a_flipped_bit(world: SavedWorld) -> None:
    made, sound = world.create(), world.create()
    flip(world.folder / made.name / MANIFEST)
    assert world.snapshots.left_out(world.saving) == (made.name,)
    assert [each.name for each in world.snapshots.snapshots()] == [sound.name]


def test_other_things(world: SavedWorld, tmp_path: Path) -> None:
    world.create()
    for name in ("empty", "lost+found", "half.partial"):
        (world.folder / name).mkdir()
    (world.folder / "lost+found" / "#12").write_bytes(b"x")
    (world.folder / "half.partial" / "recall.db").write_bytes(b"x")
    (world.folder / "nothing").touch()
    (world.folder / "KEY").write_bytes(b"x")
    assert world.snapshots.left_out(world.saving) == ()
    (world.folder / "a.tar").write_bytes(b"x")
    (world.folder / "link").symlink_to(tmp_path / "data")
    (world.folder / "e\x1b[2J").write_bytes(b"x")
    os.mkfifo(world.folder / "pipe")
    unreadable = os.fsencode(world.folder) + b"/\xff"
    Path(os.fsdecode(unreadable)).write_bytes(b"x")
    expected = sorted(["a.tar", "link", "e\N{REPLACEMENT CHARACTER}[2J", "pipe", "\ufffd"])
    assert world.snapshots.left_out(world.saving) == tuple(expected)


def test_what_is_made_while_they_are_looked_for_is_none_of_them(
    world: SavedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create()
    snapshots = world.snapshots
    listed = snapshots._manifests

    def then_made() -> list[Manifest]:
        found = listed()
        monkeypatch.undo()
        world.create()
        return found

    monkeypatch.setattr(snapshots, "_manifests", then_made)
    assert snapshots.left_out(world.saving) == ()
    assert len(snapshots.names()) == 2


def test_a_file_that_is_named_like_a_half_made_snapshot(world: SavedWorld) -> None:
    (world.folder).mkdir(exist_ok=True)
    (world.folder / "copy.partial").write_bytes(b"x")
    made = world.create()
    world.forget("u", TEXTS[0])
    assert world.snapshots.rewrite(world.saving, budget()) == (made.name,)
    assert (world.folder / "copy.partial").read_bytes() == b"x"
    assert world.snapshots.left_out(world.saving) == ("copy.partial",)


def test_so_many_are_named(world: SavedWorld) -> None:
    world.create()
    for number in range(NAMES_MAX + 1):
        (world.folder / f"{number:04}").write_bytes(b"x")
    found = world.snapshots.left_out(world.saving)
    assert found == tuple(f"{number:04}" for number in range(NAMES_MAX))


def test_what_is_certainly_another_stores_holds_nothing_of_ours(
    world: SavedWorld, other: SavedWorld
) -> None:
    other.add("u", ["theirs"])
    theirs = other.create()
    (world.folder / theirs.name).rename(world.folder / RENAMED)
    assert world.snapshots.left_out(world.saving) == ()
    assert other.snapshots.left_out(other.saving) == (RENAMED,)
    flip(world.folder / RENAMED / MANIFEST)
    assert world.snapshots.left_out(world.saving) == (RENAMED,)


def test_what_holds_messages_that_a_restored_store_forgot_is_named(
    world: SavedWorld, other: SavedWorld
) -> None:
    made = world.create()
    other.restore(made.name)
    other.forget("u", TEXTS[0])
    (world.folder / made.name).rename(world.folder / RENAMED)
    assert other.snapshots.left_out(other.saving) == (RENAMED,)


# ---- the ledger ----


def test_a_restore_without_the_ledger_says_so(
    world: SavedWorld, other: SavedWorld, tmp_path: Path
) -> None:
    made = world.create()
    path = world.folder / made.name
    counts = restore_offline(tmp_path / "with", path, other.databases, budget())
    assert not counts.without_ledger
    (world.folder / LEDGER).unlink()
    counts = restore_offline(tmp_path / "without", path, other.databases, budget())
    assert counts.without_ledger
    with capture_logs() as logs:
        assert other.restore(made.name).without_ledger
    told = [e for e in logs if e["event"] == "snapshot_restored_without_ledger"]
    assert [e["snapshot"] for e in told] == [made.name]


def test_a_snapshot_of_another_store_hides_no_missing_ledger(
    world: SavedWorld, other: SavedWorld, tmp_path: Path
) -> None:
    made = world.create()
    (world.folder / LEDGER).unlink()
    other.add("u", ["theirs"])
    other.create()
    assert not (world.folder / LEDGER).exists()
    third = SavedWorld(tmp_path, "third")
    assert third.restore(made.name).without_ledger
    third.close()


def test_a_plain_snapshot_is_not_restored_with_a_key(world: SavedWorld, tmp_path: Path) -> None:
    path = world.folder / world.create().name
    with pytest.raises(FailedPreconditionError, match="empty, encrypted store") as refused:
        restore_offline(tmp_path / "new", path, world.databases, budget(), encrypted=True)
    assert refused.value.reason == "NOT_ENCRYPTED"
    assert not (tmp_path / "new").exists()


# ---- names and neighbours ----


def test_only_whole_names_are_taken(world: SavedWorld) -> None:
    made = world.create()
    for name in (made.name[:-1], made.name[:8], "", ".", f"./{made.name}", RENAMED):
        with pytest.raises(NotFoundError, match="`semanticrecall snapshot list`"):
            world.snapshots.delete(name, budget())
    assert (world.folder / made.name).is_dir()


def test_a_start_among_others_snapshots_says_so_once(
    world: SavedWorld, other: SavedWorld, tmp_path: Path
) -> None:
    world.create()
    world.create()
    with capture_logs() as logs:
        world.snapshots.start(world.saving)
    assert [e for e in logs if e["event"] == "snapshots_dir_shared"] == []
    with capture_logs() as logs:
        other.snapshots.start(other.saving)
    (told,) = [e for e in logs if e["event"] == "snapshots_dir_shared"]
    assert (told["log_level"], told["snapshots"]) == ("warning", 2)
