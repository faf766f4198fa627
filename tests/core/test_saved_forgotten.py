"""What was forgotten since a snapshot was made: not restored, counted, rewritten away."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_core.types.values import CallBudget, ForgetTarget
from support.saved_worlds import (
    DATABASE,
    LEDGER,
    MANIFEST,
    SavedWorld,
    budget,
    content,
    texts,
    vector_of,
)

TEXTS = [f"text {number}" for number in range(40)]
FORGOTTEN_AT_LOOK = 6


def test_what_was_forgotten_since_is_not_restored(world: SavedWorld, other: SavedWorld) -> None:
    world.add("u", TEXTS)
    world.add("v", ["only this"])
    made = world.create()
    world.forget("u", *TEXTS[:5])
    world.forget("v", "only this")
    (listed,) = world.snapshots.snapshots()
    assert listed.forgotten == 6
    assert world.snapshots.holding() == (made.name,)
    counts = other.restore(made.name)
    assert (counts.messages, counts.forgotten) == (len(TEXTS) - 5, 6)
    assert texts(other.store) == {"u": sorted(TEXTS[5:])}
    assert list(other.store.verify(None)) == []


def test_the_ledger_goes_with_a_copy_of_the_folder(world: SavedWorld, tmp_path: Path) -> None:
    world.add("u", TEXTS)
    made = world.create()
    world.forget("u", TEXTS[0])
    world.close()
    shutil.copytree(world.folder, tmp_path / "copy")
    shutil.rmtree(tmp_path / "data")
    other = SavedWorld(tmp_path, "other", saved=tmp_path / "copy")
    assert other.restore(made.name).forgotten == 1
    assert texts(other.store) == {"u": sorted(TEXTS[1:])}
    other.close()


def test_a_ledger_that_was_lost_is_made_again_from_the_record(
    world: SavedWorld, tmp_path: Path
) -> None:
    world.add("u", TEXTS)
    made = world.create()
    world.forget("u", TEXTS[0])
    sound = (world.folder / LEDGER).read_bytes()
    (world.folder / LEDGER).unlink()
    world.close()
    again = SavedWorld(tmp_path)
    assert (world.folder / LEDGER).read_bytes() == sound
    assert again.snapshots.snapshots()[0].name == made.name
    again.close()
    SavedWorld(tmp_path).close()
    assert (world.folder / LEDGER).read_bytes() == sound  # and nothing is added twice


def test_a_damaged_ledger_lets_nothing_be_restored(world: SavedWorld, other: SavedWorld) -> None:
    world.add("u", TEXTS)
    made = world.create()
    world.forget("u", TEXTS[0])
    path = world.folder / LEDGER
    path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(CorruptDataError) as refused:
        other.restore(made.name)
    assert refused.value.reason == "LEDGER_DAMAGED"
    assert content(other.store) == {}


def test_a_forget_in_a_restored_store_counts_for_the_snapshot_it_came_from(
    world: SavedWorld, other: SavedWorld, tmp_path: Path
) -> None:
    world.add("u", TEXTS)
    made = world.create()
    other.add("w", ["shifts seqs"])
    other.store.forget("w", ForgetTarget(everything=True))
    other.restore(made.name)
    other.forget("u", TEXTS[7])
    third = SavedWorld(tmp_path, "third")
    assert third.restore(made.name).forgotten == 1
    assert texts(third.store) == {"u": sorted(set(TEXTS) - {TEXTS[7]})}
    third.close()


def test_and_so_it_does_two_restores_later(world: SavedWorld, tmp_path: Path) -> None:
    world.add("u", TEXTS)
    made = world.create()
    second = SavedWorld(tmp_path, "second")
    second.add("w", ["shifts"])
    second.store.forget("w", ForgetTarget(everything=True))
    second.restore(made.name)
    made_of_second = second.create()
    third = SavedWorld(tmp_path, "third")
    third.add("w", ["shifts", "more"])
    third.store.forget("w", ForgetTarget(everything=True))
    third.restore(made_of_second.name)
    third.forget("u", TEXTS[3])
    fourth = SavedWorld(tmp_path, "fourth")
    assert fourth.restore(made.name).forgotten == 1
    assert TEXTS[3] not in texts(fourth.store)["u"]
    for each in (second, third, fourth):
        each.close()


def test_rewritten_snapshots_hold_no_byte_of_it(world: SavedWorld, other: SavedWorld) -> None:
    canary = "CANARY-4711"
    (seq,) = world.add("u", [canary])
    world.add("u", TEXTS)
    made = world.create()
    needles = [canary.encode(), vector_of(seq).tobytes()]
    assert all(needle in world.path(made).read_bytes() for needle in needles)
    world.forget("u", canary)
    assert world.snapshots.rewrite(world.saving, budget()) == (made.name,)
    assert sorted(os.listdir(world.folder / made.name)) == [MANIFEST, DATABASE]
    assert not any(needle in world.path(made).read_bytes() for needle in needles)
    (listed,) = world.snapshots.snapshots()
    assert (listed.name, listed.forgotten, listed.state.messages) == (made.name, 0, len(TEXTS))
    assert listed.state.revision == made.state.revision
    assert world.snapshots.holding() == ()
    assert world.snapshots.rewrite(world.saving, budget()) == ()
    world.snapshots.verify(made.name, budget())
    assert other.restore(made.name).messages == len(TEXTS)


def test_snapshots_that_never_held_it_are_left_alone(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    world.create()
    world.forget("u", TEXTS[0])
    later = world.create()
    assert later.state.messages == len(TEXTS) - 1
    bytes_before = world.path(later).read_bytes()
    assert len(world.snapshots.rewrite(world.saving, budget())) == 1
    assert world.path(later).read_bytes() == bytes_before


def test_what_is_forgotten_while_a_snapshot_is_made_stays_forgotten(
    world: SavedWorld, other: SavedWorld
) -> None:
    """After the copy was taken and before it has its name."""
    world.add("u", TEXTS)

    class Forgetting(type(world.saving)):  # type: ignore[misc]
        def save(self, target: Path, budget: CallBudget) -> None:
            super().save(target, budget)
            world.forget("u", TEXTS[0])

    world.saving.__class__ = Forgetting
    made = world.create()
    assert made.state.messages == len(TEXTS)
    assert other.restore(made.name).forgotten == 1


def test_what_is_forgotten_while_the_copy_is_read_stays_forgotten(
    world: SavedWorld, other: SavedWorld
) -> None:
    """The copy sees the store as it was when its read began; the Forget comes in the middle."""
    many = [f"text {number}" for number in range(2_000)]
    world.add("u", many)
    looks = 0

    class Adding(type(world.saving)):  # type: ignore[misc]
        def save(self, target: Path, budget: CallBudget) -> None:
            world.add("u", ["came before the read"])
            super().save(target, CallBudget(budget.deadline, forget_in_the_middle))

    def forget_in_the_middle() -> bool:
        nonlocal looks
        looks += 1
        if looks == FORGOTTEN_AT_LOOK:
            world.forget("u", many[7], "came before the read")
        return False

    world.saving.__class__ = Adding
    made = world.create()
    assert looks > FORGOTTEN_AT_LOOK, "the copy was over before"
    assert made.state.messages == len(many) + 1
    (listed,) = world.snapshots.snapshots()
    assert listed.forgotten == 2
    assert other.restore(made.name).forgotten == 2
    assert texts(other.store) == {"u": sorted(set(many) - {many[7]})}
    assert world.snapshots.rewrite(world.saving, budget()) == (made.name,)
    assert b"came before the read" not in world.path(made).read_bytes()


def test_without_a_snapshot_nothing_is_remembered(world: SavedWorld) -> None:
    world.add("u", TEXTS)
    world.forget("u", TEXTS[0])
    assert world.saving.forgotten() == []
    assert not (world.folder / LEDGER).exists()
