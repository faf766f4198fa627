"""F4, two faults: a start that follows a crash fails, or is killed, at each of its calls.

The start after it must find everything that was acknowledged before the crash.
"""

from __future__ import annotations

import errno
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import fault_scenarios
from support.fault_calls import Action, Calls, Fault, needs_shim
from support.fault_children import Ended, recover_with, run_with
from support.fault_report import FaultRun, seeded
from support.fault_sizes import COLUMNS, size

CALLS_MAX = 1_000
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EINTR)
REFUSALS = {"UnavailableError", "ResourceExhaustedError", "UnsafeEnvironmentError"}
RECORD = ("append", "forget", "upgrade")


@dataclass(frozen=True)
class Kind:
    """What happens to the start."""

    action: Action
    code: int = 0

    @property
    def calls(self) -> Calls:
        return Calls.WRITE if self.action is Action.TEAR else Calls.ALL


QUICK = (Kind(Action.KILL), Kind(Action.FAIL, errno.EIO))
EVERY = (
    Kind(Action.KILL),
    Kind(Action.TEAR),
    *(Kind(Action.FAIL, code) for code in ERRNOS),
)


@needs_shim
@pytest.mark.parametrize("column", COLUMNS)
def test_a_start_that_is_cut_off_after_a_crash_loses_nothing(tmp_path: Path, column: str) -> None:
    crashes = size("F4_CRASHES", column)
    with seeded("F4 faults of a start after a crash", tmp_path, crashes=crashes) as run:
        for number in run.cycles(crashes):
            name = RECORD[number % len(RECORD)]
            begun = tmp_path / f"begun {number}"
            begun.mkdir()
            fault_scenarios.SCENARIOS[name].prepare(begun)
            told = _crash(name, begun, tmp_path, run)
            kinds = QUICK if column == "quick" else EVERY
            for kind in kinds:
                _start_again_at_every_call(name, begun, tmp_path / "now", (kind, told), run)
            shutil.rmtree(begun)


def _crash(name: str, begun: Path, tmp_path: Path, run: FaultRun) -> fault_scenarios.Told:
    """Kill it somewhere in the second half, where there is something to lose, in place."""
    trial = tmp_path / "trial"
    shutil.copytree(begun, trial)
    counted = run_with(name, trial, Fault(str(trial), Action.COUNT, syncs=False)).counted
    earliest = counted // 2
    while True:
        shutil.rmtree(trial)
        shutil.copytree(begun, trial)
        at = run.random.randrange(earliest, counted)
        fault = Fault(str(trial), Action.KILL, first=at, last=at, syncs=False)
        ended = run_with(name, trial, fault)
        assert ended.status == -signal.SIGKILL
        if name == "upgrade" or ended.told.acked:
            break
        earliest = at + 1  # nothing was acknowledged yet
    shutil.rmtree(begun)
    trial.rename(begun)
    run.count("crashes")
    return ended.told


def _start_again_at_every_call(
    name: str,
    begun: Path,
    folder: Path,
    what: tuple[Kind, fault_scenarios.Told],
    run: FaultRun,
) -> None:
    kind, told = what
    for number in range(1, CALLS_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(begun, folder)
        fault = Fault(
            str(folder),
            kind.action,
            kind.code,
            calls=kind.calls,
            first=number,
            last=number,
            syncs=False,
        )
        ended = recover_with(name, folder, fault)
        if ended.status == 0 and ended.met == 0:
            assert number > 1, "a start that changes no file recovers nothing"
            return
        _judge(ended, kind, run)
        fault_scenarios.check(name, folder, told)
        if run.is_over():
            return
    raise AssertionError("it never comes to its end")


def _judge(ended: Ended, kind: Kind, run: FaultRun) -> None:
    """It was killed, or went on, or was refused for a reason that is known."""
    if kind.action is Action.FAIL:
        assert ended.status == 0, "it died"
        assert set(ended.told.not_opened) <= REFUSALS
        assert ended.told.ended, "one fault is met once"
        run.count("calls failed")
    else:
        assert ended.status == -signal.SIGKILL, ended
        run.count("starts killed")
