"""F1. kill -9 at random moments: nothing acknowledged is lost, nothing forgotten comes back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.fault_model import AckModel
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, size
from support.fault_workload import Workload

ACKS_MAX = 30
MOMENT_S_MAX = 0.03
SAMPLE = 10
MESSAGES_MAX = 400
SNAPSHOTS_OFTEN = ("--snapshot-interval-ms", "50")


@pytest.mark.parametrize("column", COLUMNS)
def test_nothing_acknowledged_is_lost_to_kill_9(tmp_path: Path, column: str) -> None:
    kills = size("F1_KILLS", column)
    with seeded("F1 kill -9", tmp_path, kills=kills) as run:
        life = 0
        model, workload = AckModel(), None
        sidecar = FaultSidecar(tmp_path / "0", *SNAPSHOTS_OFTEN)
        for _ in run.cycles(kills):
            if workload is None or model.total() > MESSAGES_MAX:
                # Another store: else a night would be spent on reading what is old.
                sidecar.kill()
                life += 1
                (tmp_path / str(life)).mkdir()
                sidecar = FaultSidecar(tmp_path / str(life), *SNAPSHOTS_OFTEN)
                model = AckModel()
                workload = Workload(model, run.random)
                sidecar.start()
            before = model.acks
            workload.begin(sidecar.stubs)
            workload.wait_for_acks(run.random.randrange(1, ACKS_MAX))
            threading.Event().wait(run.random.uniform(0, MOMENT_S_MAX))
            sidecar.kill()
            workload.end()
            run.count("kills")
            run.count("acknowledged", model.acks - before)
            sidecar.start()
            checked = model.check(sidecar.stubs, chance=run.random, sample=SAMPLE)
            run.count("recalled", checked.recalls)
            run.count("gone looked for", checked.gone)
            run.count("cut off and there", checked.unknown_there)
            run.count("cut off and absent", checked.unknown_absent)
        last = model.check(sidecar.stubs)
        run.count("recalled", last.recalls)
        sidecar.kill()
