"""F2. kill -9 at every call that changes a file: before it, and in the middle of every write."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from support import fault_scenarios
from support.fault_calls import Action, Calls, Fault, needs_shim
from support.fault_children import run_with
from support.fault_report import seeded
from support.fault_sizes import COLUMNS, size

CALLS_MAX = 3_000
QUICK_FIRST = ("append", "forget", "images", "upgrade")


@needs_shim
@pytest.mark.parametrize("column", COLUMNS)
def test_killed_at_every_call_a_store_holds_what_was_acknowledged(
    tmp_path: Path, column: str
) -> None:
    names = QUICK_FIRST[: size("F2_SCENARIOS", column)]
    for name in names:
        scenario = fault_scenarios.SCENARIOS[name]
        begun = tmp_path / name
        begun.mkdir()
        scenario.prepare(begun)
        with seeded(f"F2 kill at every call: {name}", tmp_path / "now") as run:
            for action in (Action.KILL, Action.TEAR):
                killed = _killed_at_every(name, begun, tmp_path / "now", action)
                run.count("kills" if action is Action.KILL else "torn writes", killed)


def _killed_at_every(name: str, begun: Path, folder: Path, action: Action) -> int:
    """How many calls there were."""
    calls = Calls.WRITE if action is Action.TEAR else Calls.ALL
    for number in range(1, CALLS_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(begun, folder)
        fault = Fault(str(folder), action, calls=calls, first=number, last=number, syncs=False)
        ended = run_with(name, folder, fault)
        if ended.status == 0:
            assert ended.told.ended
            assert ended.counted == number - 1
            return number - 1
        assert ended.status == -signal.SIGKILL, ended
        fault_scenarios.check(name, folder, ended.told)
    raise AssertionError("it never came to its end")
