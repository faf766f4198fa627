"""F12. SIGTERM, SIGINT and SIGHUP at any moment: exit 0, and what was acknowledged is kept.

As process 1 and while the model loads: tests/server/test_lifecycle_guards.py.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from support.fault_model import AckModel
from support.fault_report import FaultRun, seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, size
from support.fault_workload import EVERYTHING, Workload

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MOMENT_S_MAX = 0.05
SAMPLE = 5
MANY_IMAGES = {**EVERYTHING, "images": 40}
MANY_SAVED = {**EVERYTHING, "save": 40}
MOMENTS = (
    "idle",
    "under load",
    "while images are written",
    "while a snapshot is saved",
    "at the start",
    "twice",
)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_signal_ends_it_with_0_and_keeps_what_was_acknowledged(
    tmp_path: Path, column: str
) -> None:
    signals = size("F12_SIGNALS", column)
    with seeded("F12 signals", tmp_path, signals=signals) as run:
        model = AckModel()
        workloads = {
            "under load": Workload(model, run.random, name="a"),
            "while images are written": Workload(model, run.random, weights=MANY_IMAGES, name="b"),
            "while a snapshot is saved": Workload(model, run.random, weights=MANY_SAVED, name="c"),
            "twice": Workload(model, run.random, name="d"),
        }
        sidecar = FaultSidecar(tmp_path, "--snapshot-interval-ms", "50")
        for cycle in run.cycles(signals):
            moment = MOMENTS[cycle % len(MOMENTS)]
            _end(sidecar, moment, workloads.get(moment), run)
            run.count(moment)
            sidecar.start()
            model.check(sidecar.stubs, chance=run.random, sample=SAMPLE)
            assert sidecar.stop() == 0
        assert [line for line in sidecar.said if "Traceback" in line] == []


def _end(sidecar: FaultSidecar, moment: str, workload: Workload | None, run: FaultRun) -> None:
    number = run.random.choice(STOPPING)
    sidecar.start(wait=moment != "at the start")
    if moment == "at the start":
        sidecar.wait_for("listening")
    if workload is not None:
        workload.begin(sidecar.stubs)
        workload.wait_for_acks(run.random.randrange(1, 20))
    threading.Event().wait(run.random.uniform(0, MOMENT_S_MAX))
    sidecar.signal(number)
    if moment == "twice":
        sidecar.wait_for("draining")
        sidecar.signal(run.random.choice(STOPPING))
    assert sidecar.wait() == 0, f"{signal.Signals(number).name} {moment}"
    if workload is not None:
        workload.end()
