"""F4. Every call that changes a file fails, once or from then on: nothing of it is acknowledged."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from support import fault_scenarios
from support.fault_calls import FOREVER, Action, Calls, Fault, needs_shim
from support.fault_children import run_with
from support.fault_report import FaultRun, seeded

CALLS_MIN = 20
WRITERS = ("append", "images")
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EINTR)
REFUSALS = {"UnavailableError", "ResourceExhaustedError", "UnsafeEnvironmentError"}
QUICK = [
    ("append", errno.EIO, False, 1),
    ("append", errno.ENOSPC, True, 3),
    ("images", errno.EIO, False, 1),
]
EVERY = [
    (name, code, sticky, 1)
    for name, code, sticky in product(fault_scenarios.SCENARIOS, ERRNOS, (False, True))
    if code != errno.EINTR or not sticky  # who is interrupted for ever tries for ever (PEP 475)
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.nightly) for case in EVERY)]


@needs_shim
@pytest.mark.parametrize(("name", "code", "sticky", "step"), CASES)
def test_no_call_that_fails_loses_or_invents_anything(
    tmp_path: Path, name: str, code: int, sticky: bool, step: int
) -> None:
    """In the quick column one of `step` calls where it fails for good."""
    begun, folder = tmp_path / "begun", tmp_path / "now"
    begun.mkdir()
    fault_scenarios.SCENARIOS[name].prepare(begun)
    kind = f"{errno.errorcode[code]} {'for good' if sticky else 'once'}"
    with seeded(f"F4 {name}: {kind}", folder) as run:
        for number in _numbers(name, begun, folder, Calls.ALL, step, run):
            last = FOREVER if sticky else number
            fault = Fault(str(folder), Action.FAIL, code, first=number, last=last, syncs=False)
            _meet(name, begun, folder, fault, run)
        _require_met(run)


@needs_shim
@pytest.mark.parametrize(
    ("name", "step"),
    [("append", 3), *(pytest.param(n, 1, marks=pytest.mark.nightly) for n in WRITERS)],
)
def test_a_disk_that_takes_half_a_write_is_given_the_rest(
    tmp_path: Path, name: str, step: int
) -> None:
    begun, folder = tmp_path / "begun", tmp_path / "now"
    begun.mkdir()
    with seeded(f"F4 {name}: short writes", folder) as run:
        for number in _numbers(name, begun, folder, Calls.WRITE, step, run):
            fault = Fault(
                str(folder), Action.SHORT, calls=Calls.WRITE, first=number, last=number, syncs=False
            )
            _meet(name, begun, folder, fault, run)
        _require_met(run)


def _numbers(
    name: str, begun: Path, folder: Path, calls: Calls, step: int, run: FaultRun
) -> Iterator[int]:
    """Every call that a scenario makes, or one of `step`, in an order by chance, from 1."""
    shutil.copytree(begun, folder)
    count = Fault(str(folder), Action.COUNT, calls=calls, syncs=False)
    counted = run_with(name, folder, count).counted
    assert counted > CALLS_MIN
    numbers = list(range(1 + run.random.randrange(step), counted + 1, step))
    run.random.shuffle(numbers)
    for index in run.cycles(len(numbers)):
        yield numbers[index]


def _require_met(run: FaultRun) -> None:
    """Threads take turns by chance: a run may have a call more or less than another."""
    assert run.counts["runs of fewer calls"] <= max(3, run.done // 20)


def _meet(name: str, begun: Path, folder: Path, fault: Fault, run: FaultRun) -> None:
    """Run a scenario with a fault and check what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(begun, folder)
    ended = run_with(name, folder, fault)
    told = ended.told
    assert ended.status == 0, "it died"
    if ended.met == 0:
        run.count("runs of fewer calls")
    run.count("calls failed", ended.met)
    assert {*told.refused.values(), *told.not_opened} <= REFUSALS
    if not told.ended:
        assert len(told.not_opened) == 2, "it ended before its end"
        assert fault.last == FOREVER, "one fault is met once"
        run.count("not opened")
    else:
        assert told.acked[-1:] == told.begun[-1:], "no write after the fault was over"
    run.count("steps refused", len(told.refused))
    fault_scenarios.check(name, folder, told)
