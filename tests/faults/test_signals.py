"""F12. SIGTERM, SIGINT and SIGHUP at any moment: exit 0, and what was acknowledged is kept.

While the model loads: tests/server/test_lifecycle_guards.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
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


OWN_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child")


@pytest.mark.parametrize("moment", ["idle", "under load", "while a snapshot is saved"])
def test_as_process_1_a_signal_ends_it_too(tmp_path: Path, moment: str) -> None:
    """The kernel drops signals to process 1 that have no handler."""
    require_namespaces()
    weights = {"under load": EVERYTHING, "while a snapshot is saved": MANY_SAVED}.get(moment)
    with seeded(f"F12 process 1, {moment}", tmp_path) as run:
        model = AckModel()
        workload = Workload(model, run.random, weights=weights) if weights else None
        number = run.random.choice(STOPPING)
        with FaultSidecar(tmp_path, prefix=OWN_PROCESS_1) as sidecar:
            if workload is not None:
                workload.begin(sidecar.stubs)
                workload.wait_for_acks(20)
            children = Path(f"/proc/{sidecar.pid}/task/{sidecar.pid}/children").read_text()
            assert "\nNSpid:\t" + children.strip() + "\t1\n" in status_of(int(children))
            os.kill(int(children), number)
            assert sidecar.wait() == 0, (signal.Signals(number).name, sidecar.said[-20:])
        if workload is not None:
            workload.end()
        with FaultSidecar(tmp_path) as again:
            model.check(again.stubs)
        run.count("acknowledged", model.acks)


def status_of(pid: int) -> str:
    """What the kernel says of a process, seen from here."""
    return Path(f"/proc/{pid}/status").read_text()


def require_namespaces() -> None:
    """Skip where no process can be the first of a namespace."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (of util-linux)")
    done = subprocess.run([*OWN_PROCESS_1, "true"], capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"no process namespace can be made: {done.stderr.strip()[:100]}")
