"""Kills a process at each of its steps to the disk, one after the other, and looks at what is left.

Run as a program: `python -m support.saving_kill SCENARIO HOME`. It forks for each step, before any
thread is there, so that a step costs a few hundredths of a second. Prints how many there were.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from semanticrecall_core.engine.offline_restore import restore_offline
from semanticrecall_core.messages.saved_database import SqliteSavedDatabases
from semanticrecall_core.types.errors import CorruptDataError
from support.faulty_disk import FaultyDisk
from support.saved_worlds import SavedWorld, budget, content, texts

KEPT = [f"text {number}" for number in range(30)]
CANARY = "CANARY-4711"
WRITES_PER_STEP = 24
STEPS_MAX = 400
_CALLS = ("fsync", "fdatasync", "rename", "replace", "mkdir", "unlink", "rmdir", "pwrite")


class Steps:
    """Kills this process before the step of a number."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._writes = 0
        self.disk = FaultyDisk()
        self.disk.fault = self._on_disk

    def begin(self) -> None:
        """Count from here on."""
        for name in _CALLS:
            setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **named: object) -> object:
            self._step()
            return call(*arguments, **named)

        return counted

    def _on_disk(self, operation: str, name: str) -> None:
        del name
        self._writes += 1
        if operation != "write" or self._writes % WRITES_PER_STEP == 0:
            self._step()

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def prepared(home: Path) -> None:
    """A store with a snapshot that holds what was forgotten since, and an empty one."""
    world = SavedWorld(home)
    world.add("u", [CANARY, *KEPT])
    world.create()
    world.forget("u", CANARY)
    world.close()
    SavedWorld(home, "empty").close()


def the_name(world: SavedWorld) -> str:
    return world.snapshots.snapshots()[-1].name


# ---- what is killed ----


def create(home: Path, vfs: str) -> None:
    world = SavedWorld(home, vfs=vfs)
    world.create()
    world.close()


def rewrite(home: Path, vfs: str) -> None:
    world = SavedWorld(home, vfs=vfs)
    world.snapshots.rewrite(world.saving, budget())
    world.close()


def delete(home: Path, vfs: str) -> None:
    world = SavedWorld(home, vfs=vfs)
    world.snapshots.delete(the_name(world), budget())
    world.close()


def restore(home: Path, vfs: str) -> None:
    world = SavedWorld(home, "empty", vfs=vfs)
    world.restore(the_name(world))
    world.close()


def offline(home: Path, vfs: str) -> None:
    (snapshot,) = (path for path in (home / "saved").iterdir() if path.is_dir())
    restore_offline(home / "new", snapshot, SqliteSavedDatabases(vfs=vfs), budget())


# ---- what must hold then ----


def sound(home: Path, *, at_least: int) -> SavedWorld:
    """The store and all its snapshots are whole, and nothing half made is left."""
    world = SavedWorld(home)
    assert texts(world.store) == {"u": sorted(KEPT)}
    there = world.snapshots.snapshots()
    assert len(there) >= at_least
    for each in there:
        world.snapshots.verify(each.name, budget())
    names = {each.name for each in there}
    assert set(os.listdir(world.folder)) == names | {"FORGOTTEN"}
    return world


def created(home: Path) -> None:
    world = sound(home, at_least=1)
    assert len(world.snapshots.snapshots()) <= 2
    world.forget("u", KEPT[0])
    for number, each in enumerate(world.snapshots.snapshots()):
        other = SavedWorld(home, f"other {number}")
        other.restore(each.name)
        assert texts(other.store) == {"u": sorted(KEPT[1:])}
        other.close()
    world.close()


def rewritten(home: Path) -> None:
    world = sound(home, at_least=1)
    world.snapshots.rewrite(world.saving, budget())
    assert [each.forgotten for each in world.snapshots.snapshots()] == [0]
    files = [path for path in world.folder.rglob("*") if path.is_file()]
    assert not any(CANARY.encode() in path.read_bytes() for path in files)
    world.snapshots.verify(the_name(world), budget())
    world.close()


def deleted(home: Path) -> None:
    world = sound(home, at_least=0)
    world.close()


def restored(home: Path) -> None:
    world = SavedWorld(home, "empty")
    assert texts(world.store) in ({}, {"u": sorted(KEPT)})
    assert list(world.store.verify(None)) == []
    if not content(world.store):
        world.restore(the_name(world))
        assert texts(world.store) == {"u": sorted(KEPT)}
    world.close()


def restored_offline(home: Path) -> None:
    (snapshot,) = (path for path in (home / "saved").iterdir() if path.is_dir())
    has_begun = (home / "new" / "recall.db.partial").exists()
    if has_begun or (home / "new" / "recall.db").exists():
        reason = "none"
        try:
            world = SavedWorld(home, "new")
        except CorruptDataError as refused:
            reason = refused.reason
        else:
            assert texts(world.store) == {"u": sorted(KEPT)}
            world.close()
            return
        assert reason == "ACKNOWLEDGED_CHANGES_MISSING"
    counts = restore_offline(home / "new", snapshot, SqliteSavedDatabases(), budget())
    assert counts.messages == len(KEPT)
    world = SavedWorld(home, "new")
    assert texts(world.store) == {"u": sorted(KEPT)}
    world.close()


SCENARIOS: dict[str, tuple[Callable[[Path, str], None], Callable[[Path], None]]] = {
    "create": (create, created),
    "rewrite": (rewrite, rewritten),
    "delete": (delete, deleted),
    "restore": (restore, restored),
    "offline": (offline, restored_offline),
}


def _in_a_process(work: Callable[[], None]) -> int:
    """Its wait status; 0 is success."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def main(scenario: str, home: Path) -> int:
    """Every step until the process gets to its end; returns how many there were."""
    act, check = SCENARIOS[scenario]
    template = home / "template"
    template.mkdir()
    assert _in_a_process(lambda: prepared(template)) == 0
    for step in count(1):
        assert step < STEPS_MAX
        here = home / f"step {step}"
        shutil.copytree(template, here)

        def killed(here: Path = here, step: int = step) -> None:
            steps = Steps(step)
            steps.begin()
            act(here, steps.disk.vfs_name)

        status = _in_a_process(killed)
        if status and os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"step {step} of {scenario} failed; see {here}")
        if _in_a_process(lambda here=here: check(here)):
            raise SystemExit(f"after step {step} of {scenario}; see {here}")
        shutil.rmtree(here)
        if not status:
            return step
    raise AssertionError


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1], Path(sys.argv[2]))}\n")
