"""F10. A quota of CPU time: as many threads as it allows, and calls are answered."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from support.fault_conditions import cpu_group, join_group, tell_threads, told_threads, use_one_core
from support.fault_model import AckModel
from support.fault_report import seeded
from support.fault_serving import Prepare
from support.fault_sidecar import FaultSidecar
from support.fault_workload import Workload

ACKS = 60


@pytest.mark.parametrize("quota", [0.5, 0.1])
def test_under_a_quota_a_pool_has_one_thread_and_all_calls_are_answered(
    tmp_path: Path, quota: float
) -> None:
    with cpu_group(quota) as group:
        _serve(tmp_path, partial(join_group, str(group)), f"quota {quota:g}")


def test_on_one_core_a_pool_has_one_thread(tmp_path: Path) -> None:
    _serve(tmp_path, use_one_core, "one core")


def _serve(folder: Path, limit: Prepare, what: str) -> None:
    names_file = folder / "threads"
    sidecar = FaultSidecar(folder, prepare=partial(tell_threads, str(names_file), limit))
    with seeded(f"F10 {what}", folder) as run, sidecar:
        model = AckModel()
        workload = Workload(model, run.random)
        workload.begin(sidecar.stubs)
        workload.wait_for_acks(ACKS)
        names = told_threads(names_file)
        workload.end()
        assert workload.counts.errors == {}
        assert len([name for name in names if name.startswith("recall-lane")]) == 1, names
        model.check(sidecar.stubs, chance=run.random, sample=5)
        run.count("acknowledged", model.acks)
        assert sidecar.stop() == 0
