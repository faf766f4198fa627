"""F9. No more memory: a call is refused, or the process ends; nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
from functools import partial
from pathlib import Path

import grpc
import pytest

from support.fault_conditions import address_space_bytes, join_group, memory_group
from support.fault_model import AckModel
from support.fault_report import FaultRun, seeded
from support.fault_sidecar import FaultSidecar, wait_until
from support.fault_sizes import COLUMNS, size
from support.fault_workload import Workload

EXTRA_KIB_MAX = 96 << 10
ANSWERS = 12
PAYLOAD_BYTES = 900_000
CALL_TIMEOUT_S = 1.0
GROUP_BYTES_MAX = 32 << 20
GROUP_ANSWERS = 15
ENDS = {1: "with an error", -signal.SIGABRT: "by abort", -signal.SIGSEGV: "by a fault of memory"}
"""A server that has failed says so; native libraries that get no memory end the process."""


@pytest.mark.parametrize("column", COLUMNS)
def test_a_limit_on_memory_loses_nothing_acknowledged(tmp_path: Path, column: str) -> None:
    limits = size("F9_MEMORY_LIMITS", column)
    with seeded("F9 memory limits", tmp_path, limits=limits) as run:
        for number in run.cycles(limits):
            extra_kib = EXTRA_KIB_MAX * number // limits
            home = tmp_path / str(number)
            home.mkdir()
            model = AckModel()
            with FaultSidecar(home) as sidecar:
                _loaded_with(sidecar, model, extra_kib << 10, run)
            run.count("limits")
            run.count("acknowledged", model.acks)
            shutil.rmtree(home)


def _loaded_with(sidecar: FaultSidecar, model: AckModel, extra_bytes: int, run: FaultRun) -> None:
    pid = sidecar.pid
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    allowed = address_space_bytes(pid) + extra_bytes
    workload = Workload(
        model,
        run.random,
        payload_bytes_max=PAYLOAD_BYTES,
        call_timeout_s=CALL_TIMEOUT_S,
        goes_on=True,
    )
    resource.prlimit(pid, resource.RLIMIT_AS, (allowed, before[1]))
    workload.begin(sidecar.stubs)
    workload.wait_for_answers(ANSWERS)
    workload.end()
    run.count("calls refused", sum(workload.counts.errors.values()))
    if sidecar.is_running():
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)
    if _serves_on(sidecar, model, run):
        run.count("served on")
        assert sidecar.stop() == 0
    else:
        status = sidecar.wait()
        assert status in ENDS, (extra_bytes, status, sidecar.said[-5:])
        run.count(f"ended {ENDS[status]}")
    sidecar.start()
    model.check(sidecar.stubs, chance=run.random, sample=5)
    assert sidecar.stop() == 0


def _serves_on(sidecar: FaultSidecar, model: AckModel, run: FaultRun) -> bool:
    """Whether it lives, and then all is there; it may end while it is looked at."""
    try:
        if sidecar.is_running():
            model.check(sidecar.stubs, chance=run.random, sample=5)
    except grpc.RpcError:
        wait_until(lambda: not sidecar.is_running())
    return sidecar.is_running()


@pytest.mark.parametrize("column", COLUMNS)
def test_whoever_is_killed_for_want_of_memory_loses_nothing_acknowledged(
    tmp_path: Path, column: str
) -> None:
    limits = max(2, size("F9_MEMORY_LIMITS", column) // 5)
    with memory_group() as group, seeded("F9 killed by the kernel", tmp_path) as run:
        for number in run.cycles(limits):
            home = tmp_path / str(number)
            home.mkdir()
            model = AckModel()
            sidecar = FaultSidecar(home, prepare=partial(join_group, str(group.directory)))
            sidecar.start()
            workload = Workload(model, run.random, payload_bytes_max=PAYLOAD_BYTES, goes_on=True)
            workload.begin(sidecar.stubs)
            workload.wait_for_answers(GROUP_ANSWERS)
            group.give_back()
            group.limit_to_more((GROUP_BYTES_MAX * number // limits) + (1 << 18))
            workload.wait_for_answers(3 * GROUP_ANSWERS)
            workload.end()
            group.limit(None)
            if _serves_on(sidecar, model, run):
                run.count("served on")
                assert sidecar.stop() == 0
            else:
                assert sidecar.wait() == -signal.SIGKILL, sidecar.said[-5:]
                run.count("killed")
            sidecar.start()
            model.check(sidecar.stubs, chance=run.random, sample=5)
            sidecar.kill()
            run.count("acknowledged", model.acks)
            shutil.rmtree(home)
        assert run.counts["killed"] > 0, "no limit was too small"
