"""The folder of snapshots is others' too: people tidy it up, and servers share it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from semanticrecall_core.engine.saving import Saving
from semanticrecall_core.messages.saved_database import SqliteSavedDatabases
from semanticrecall_core.saving import SavedSnapshots
from semanticrecall_core.saving.locking import others_kept_out
from semanticrecall_core.types.errors import (
    CorruptDataError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
)
from semanticrecall_core.types.saving import SavedState
from semanticrecall_core.types.values import CallBudget, ForgetTarget
from support.fault_conditions import not_writable
from support.saved_worlds import LEDGER, SavedWorld, budget, texts

SOON_S = 0.3
TEXTS = [f"text {number}" for number in range(40)]


def damage(world: SavedWorld, name: str) -> None:
    """Every page of its database, in the same size."""
    path = world.folder / name / "recall.db"
    path.write_bytes(bytes(each ^ 255 for each in path.read_bytes()))


def test_a_ledger_that_is_lost_while_the_store_runs_brings_nothing_back(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    made = world.create()
    world.forget("u", TEXTS[0])
    (world.folder / LEDGER).unlink()
    assert world.snapshots.rewrite(world.saving, budget()) == (made.name,)
    assert b"about text 0" not in world.path(made).read_bytes()
    world.forget("u", TEXTS[1])
    world.store.forget("u", ForgetTarget(everything=True))
    (world.folder / LEDGER).unlink()
    assert world.restore(made.name).forgotten == len(TEXTS) - 1
    assert texts(world.store) == {}


def test_a_ledger_that_was_put_back_from_an_older_copy_brings_nothing_back(
    world: SavedWorld, tmp_path: Path
) -> None:
    """As where the folder's disk was not there for a while, and the ledger went beside it."""
    world.add("u", TEXTS)
    made = world.create()
    world.forget("u", TEXTS[0])
    shutil.copy(world.folder / LEDGER, tmp_path / "older")
    world.forget("u", *TEXTS[1:])
    shutil.copy(tmp_path / "older", world.folder / LEDGER)
    assert world.restore(made.name).forgotten == len(TEXTS)


def test_a_damaged_snapshot_does_not_keep_the_others_from_being_rewritten(
    world: SavedWorld,
) -> None:
    world.add("u", TEXTS)
    made = [world.create() for _ in range(3)]
    world.forget("u", TEXTS[0])
    damage(world, min(each.name for each in made))
    with pytest.raises(
        CorruptDataError, match=r"`semanticrecall snapshot delete \d{8}T\d{6}Z-r\d+-\w{4}`"
    ) as raised:
        world.snapshots.rewrite(world.saving, budget())
    assert raised.value.reason == "SNAPSHOT_DAMAGED"
    sound = sorted(made, key=lambda each: each.name)[1:]
    assert not any(b"about text 0" in world.path(each).read_bytes() for each in sound)
    world.snapshots.delete(min(each.name for each in made), budget())
    assert world.snapshots.rewrite(world.saving, budget()) == ()


def test_what_is_damaged_is_logged_and_counted_once(world: SavedWorld, tmp_path: Path) -> None:
    world.add("u", TEXTS)
    sound, flipped, short = (world.create().name for _ in range(3))
    assert world.snapshots.damaged() == {"saved": 0, "ledger": 0}
    damage(world, flipped)
    os.truncate(world.folder / short / "recall.db", 8_192)
    (world.folder / "lost+found").mkdir()  # no snapshot, and no damage
    with capture_logs() as logs:
        for _ in range(2):
            assert {each.name for each in world.snapshots.snapshots()} == {sound, flipped}
            for name in (flipped, short):
                with pytest.raises(CorruptDataError):
                    world.snapshots.verify(name, budget())
    told = [entry["file"] for entry in logs if entry["event"] == "snapshot_damaged"]
    assert sorted(told) == sorted([flipped, short])
    assert world.snapshots.damaged() == {"saved": 2, "ledger": 0}
    world.forget("u", TEXTS[0])
    path = world.folder / LEDGER
    path.write_bytes(bytes(len(path.read_bytes())))
    with capture_logs() as logs:
        listed = {each.name: each for each in world.snapshots.snapshots()}
        assert listed[sound].forgotten == len(TEXTS)  # it cannot be told which
    assert [e["file"] for e in logs if e["event"] == "snapshot_damaged"] == [LEDGER]
    assert world.snapshots.damaged() == {"saved": 2, "ledger": 1}
    world.close()
    again = SavedWorld(tmp_path)
    assert again.snapshots.damaged() == {"saved": 0, "ledger": 1}
    again.close()


class OtherKey(SqliteSavedDatabases):
    """Does not open the databases in some folders."""

    def __init__(self, *closed: Path) -> None:
        super().__init__()
        self._closed = closed

    def count_of(self, database: Path, seqs: Sequence[int]) -> int:
        if database.parent in self._closed:
            raise FailedPreconditionError("another key", reason="ENCRYPTION_KEY_WRONG")
        return super().count_of(database, seqs)


def test_what_another_store_saved_under_another_key_is_left_to_it(
    world: SavedWorld, other: SavedWorld
) -> None:
    for each, text in ((world, "mine"), (other, "theirs")):
        each.add("u", [text, *TEXTS])
    mine, theirs = world.create(), other.create()
    world.forget("u", "mine")
    other.forget("u", "theirs")
    databases = OtherKey(world.folder / theirs.name)
    snapshots = SavedSnapshots(world.folder, databases, program_version="9.9")
    assert snapshots.rewrite(world.saving, budget()) == (mine.name,)
    assert b"about theirs" in other.path(theirs).read_bytes()
    assert other.snapshots.rewrite(other.saving, budget()) == (theirs.name,)


def test_what_this_store_saved_under_another_key_is_not_passed_over(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    made = world.create()
    world.forget("u", TEXTS[0])
    snapshots = SavedSnapshots(
        world.folder, OtherKey(world.folder / made.name), program_version="9.9"
    )
    with pytest.raises(FailedPreconditionError):
        snapshots.rewrite(world.saving, budget())


@pytest.mark.parametrize("work", ["create", "delete", "restore", "rewrite"])
def test_servers_that_share_the_folder_work_on_it_one_at_a_time(
    world: SavedWorld, tmp_path: Path, work: str
) -> None:
    world.add("u", TEXTS)
    made = world.create()
    empty = SavedWorld(tmp_path, "empty")
    soon = CallBudget.of_seconds(SOON_S)
    snapshots = world.snapshots
    calls: dict[str, Callable[[CallBudget], object]] = {
        "create": partial(snapshots.create, world.saving, "x"),
        "delete": partial(snapshots.delete, made.name),
        "restore": partial(empty.snapshots.restore, made.name, empty.saving),
        "rewrite": partial(snapshots.rewrite, world.saving),
    }
    with others_kept_out(world.folder, None) as alone:
        assert alone
        with pytest.raises(DeadlineExceededError):
            calls[work](soon)
    calls[work](budget())
    empty.close()


def test_a_start_leaves_alone_what_another_server_is_rewriting(
    world: SavedWorld, tmp_path: Path
) -> None:
    world.add("u", TEXTS)
    made = world.create()
    half_made = world.folder / made.name / "recall.db.new"
    half_made.write_bytes(b"half made")
    with others_kept_out(world.folder, None):
        SavedWorld(tmp_path, "second").close()
        assert half_made.exists()
    SavedWorld(tmp_path, "third").close()
    assert not half_made.exists()


class Rewritten(SqliteSavedDatabases):
    """Has the snapshot rewritten just before its database is looked at, once."""

    def __init__(self, world: SavedWorld) -> None:
        super().__init__()
        self._world: SavedWorld | None = world

    def state(self, database: Path) -> SavedState:
        world, self._world = self._world, None
        if world is not None:
            world.snapshots.rewrite(world.saving, budget())
        return super().state(database)


def test_a_snapshot_that_is_rewritten_while_it_is_verified_is_not_damaged(
    world: SavedWorld,
) -> None:
    world.add("u", TEXTS)
    made = world.create()
    world.forget("u", TEXTS[0])
    snapshots = SavedSnapshots(world.folder, Rewritten(world), program_version="9.9")
    assert snapshots.verify(made.name, budget()).state.messages == len(TEXTS) - 1
    damage(world, made.name)
    with pytest.raises(CorruptDataError):
        snapshots.verify(made.name, budget())


def test_a_folder_that_was_not_there_at_the_start_is_told_with_the_next_forget(
    tmp_path: Path, other: SavedWorld
) -> None:
    """The first Forget failed for the same reason; the next one finds nothing more to remove."""
    first = SavedWorld(tmp_path)
    first.add("u", TEXTS)
    made = first.create()
    first.store.forget("u", ForgetTarget(message_ids=(TEXTS[0],)))
    first.close()
    away = first.folder.rename(tmp_path / "away")
    first.folder.write_bytes(b"")
    second = SavedWorld(tmp_path)
    saving = Saving(
        second.saving, second.snapshots, index_identity=str, take_up_pending=lambda: None
    )
    with pytest.raises((CorruptDataError, UnavailableError)):
        saving.holding()
    first.folder.unlink()
    away.rename(first.folder)
    assert saving.holding() == (made.name,)
    assert other.restore(made.name).forgotten == 1
    second.close()


def test_a_folder_that_cannot_be_written_lets_nothing_come_back(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    made = world.create()
    world.store.forget("u", ForgetTarget(everything=True))
    with not_writable(world.folder), pytest.raises(UnavailableError):
        world.restore(made.name)
    assert texts(world.store) == {}
    assert world.restore(made.name).forgotten == len(TEXTS)
