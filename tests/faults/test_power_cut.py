"""F3. Power cuts: a file system that loses what was not synced, under a mixed load."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.fault_conditions import LoopDisk
from support.fault_model import AckModel
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, size
from support.fault_workload import Workload

ACKS_MAX = 30
MOMENT_S_MAX = 0.03
SAMPLE = 10
MESSAGES_MAX = 400


@pytest.mark.parametrize("column", COLUMNS)
def test_nothing_acknowledged_is_lost_to_a_power_cut(tmp_path: Path, column: str) -> None:
    cuts = size("F3_POWER_CUTS", column)
    with seeded("F3 power cuts", tmp_path / "disk", cuts=cuts) as run:
        disk = LoopDisk(tmp_path)
        model = AckModel()
        workload = Workload(model, run.random)
        life = 0
        sidecar = _on(disk, tmp_path, life)
        try:
            sidecar.start()
            for _ in run.cycles(cuts):
                before = model.acks
                workload.begin(sidecar.stubs)
                workload.wait_for_acks(run.random.randrange(1, ACKS_MAX))
                threading.Event().wait(run.random.uniform(0, MOMENT_S_MAX))
                disk.cut()
                sidecar.kill()
                workload.end()
                disk.unmount()
                disk.mount()
                run.count("power cuts")
                run.count("acknowledged", model.acks - before)
                sidecar.start()
                checked = model.check(sidecar.stubs, chance=run.random, sample=SAMPLE)
                run.count("recalled", checked.recalls)
                run.count("cut off and there", checked.unknown_there)
                run.count("cut off and absent", checked.unknown_absent)
                if model.total() > MESSAGES_MAX:
                    sidecar.kill()
                    life += 1
                    model = AckModel()
                    workload = Workload(model, run.random)
                    sidecar = _on(disk, tmp_path, life).start()
        finally:
            sidecar.kill()
            disk.close()


def _on(disk: LoopDisk, folder: Path, life: int) -> FaultSidecar:
    """A sidecar on the disk; its socket is elsewhere."""
    home = disk.place / str(life)
    home.mkdir()
    return FaultSidecar(home, "--snapshot-interval-ms", "50", socket=folder / "s")
