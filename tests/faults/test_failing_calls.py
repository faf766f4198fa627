"""F4. Every call that changes a file fails, once or from then on: nothing of it is acknowledged."""

from __future__ import annotations

import errno
import shutil
from itertools import product
from pathlib import Path

import pytest

from support import fault_scenarios
from support.fault_calls import FOREVER, Action, Calls, Fault, needs_shim
from support.fault_children import run_with
from support.fault_report import FaultRun, seeded

CALLS_MAX = 3_000
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
    """In the quick column one of `step` calls, beginning by chance, where it fails for good."""
    begun, folder = tmp_path / "begun", tmp_path / "now"
    begun.mkdir()
    fault_scenarios.SCENARIOS[name].prepare(begun)
    kind = f"{errno.errorcode[code]} {'for good' if sticky else 'once'}"
    with seeded(f"F4 {name}: {kind}", folder) as run:
        first = run.random.randrange(step) + 1
        for cycle in run.cycles(CALLS_MAX, is_bound=True):
            number = first + cycle * step
            last = FOREVER if sticky else number
            fault = Fault(str(folder), Action.FAIL, code, first=number, last=last, syncs=False)
            if not _met(name, begun, folder, fault, run):
                break
            assert cycle < CALLS_MAX - 1, "it never comes to its end"


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
        first = run.random.randrange(step) + 1
        for cycle in run.cycles(CALLS_MAX, is_bound=True):
            number = first + cycle * step
            fault = Fault(
                str(folder), Action.SHORT, calls=Calls.WRITE, first=number, last=number, syncs=False
            )
            if not _met(name, begun, folder, fault, run):
                break
            assert cycle < CALLS_MAX - 1, "it never comes to its end"


def _met(name: str, begun: Path, folder: Path, fault: Fault, run: FaultRun) -> bool:
    """Run a scenario with a fault and check what is there; whether the fault was met."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(begun, folder)
    ended = run_with(name, folder, fault)
    told = ended.told
    assert ended.status == 0, "it died"
    if ended.met == 0:
        return False
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
    return True
