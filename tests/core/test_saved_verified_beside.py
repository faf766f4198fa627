"""A snapshot that is rewritten or removed while it is verified is not damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semanticrecall_core.saving import files, reading
from semanticrecall_core.types.errors import CorruptDataError, NotFoundError
from support.saved_worlds import SavedWorld, budget


class Once:
    """Calls a function, and before the nth call does something of the test's."""

    def __init__(self, function: Callable[..., Any], nth: int, action: Callable[[], object]):
        self._function = function
        self._left = nth
        self._action = action

    def __call__(self, *arguments: object, **named: object) -> Any:
        self._left -= 1
        if self._left == 0:
            self._action()
        return self._function(*arguments, **named)


PLACES: dict[str, tuple[Callable[[SavedWorld], object], str]] = {
    "before its manifest is read": (lambda world: world.snapshots, "_manifest"),
    "before its digest is made": (lambda _: files, "digest_of"),
    "before its rows are read": (lambda world: world.databases, "check"),
    "before it is compared with the manifest": (lambda world: world.databases, "state"),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SavedWorld]:
    made = SavedWorld(tmp_path)
    made.add("u", ["one", "two", "three"])
    made.create()
    yield made
    made.close()


def meanwhile(
    world: SavedWorld,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    action: Callable[[], object],
) -> None:
    """Have something done at a place of the next verification."""
    owner_of, name = PLACES[place]
    owner = owner_of(world)

    def undone() -> None:
        monkeypatch.undo()  # what is done goes through the same functions
        action()

    monkeypatch.setattr(owner, name, Once(getattr(owner, name), 1, undone))


@pytest.mark.parametrize("place", PLACES)
def test_one_that_a_purge_rewrites_is_sound(
    world: SavedWorld, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (before,) = world.snapshots.snapshots()
    world.forget("u", "two")
    meanwhile(world, monkeypatch, place, lambda: world.snapshots.rewrite(world.saving, budget()))
    found = world.snapshots.verify(before.name, budget())
    assert found.digest != before.digest
    assert found.state.messages == before.state.messages - 1


@pytest.mark.parametrize("place", PLACES)
def test_one_that_is_removed_is_not_there(
    world: SavedWorld, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (before,) = world.snapshots.snapshots()
    meanwhile(world, monkeypatch, place, lambda: world.snapshots.delete(before.name, budget()))
    with pytest.raises(NotFoundError):
        world.snapshots.verify(before.name, budget())


@pytest.mark.parametrize("place", list(PLACES)[1:])
def test_one_that_is_damaged_after_it_was_rewritten_is_found(
    world: SavedWorld, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (before,) = world.snapshots.snapshots()
    world.forget("u", "two")

    def rewritten_and_damaged() -> None:
        world.snapshots.rewrite(world.saving, budget())
        with world.path(before).open("r+b") as file:
            file.seek(20_000)
            file.write(b"damage")

    meanwhile(world, monkeypatch, place, rewritten_and_damaged)
    with pytest.raises(CorruptDataError):
        world.snapshots.verify(before.name, budget())


LISTED: dict[str, tuple[Callable[[SavedWorld], object], str]] = {
    "before its manifest is read": (lambda _: reading, "manifest_of"),
    "before what was forgotten is counted": (lambda world: world.databases, "count_of"),
}


@pytest.mark.parametrize("place", LISTED)
def test_one_that_is_removed_while_they_are_listed_is_not_damaged(
    world: SavedWorld, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    name = world.snapshots.snapshots()[0].name
    world.forget("u", "two")
    owner_of, function = LISTED[place]
    owner = owner_of(world)
    folder = world.folder / name

    def removed() -> None:
        monkeypatch.undo()
        shutil.rmtree(folder)

    monkeypatch.setattr(owner, function, Once(getattr(owner, function), 1, removed))
    world.snapshots.snapshots()
    assert world.snapshots.damaged() == {"saved": 0, "ledger": 0}
    assert world.snapshots.snapshots() == ()
