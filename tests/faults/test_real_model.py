"""The fault harness once with the model that people have."""

from __future__ import annotations

from pathlib import Path

import pytest

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.embedding.provision import default_cache_dir
from support.fault_model import AckModel
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar
from support.fault_workload import Workload

KILLS = 2
ACKS = 25


@pytest.mark.model
def test_nothing_acknowledged_is_lost_to_kill_9_with_the_real_model(tmp_path: Path) -> None:
    environment = {
        "FAULTS_REAL_MODEL": "1",
        "SEMANTICRECALL_MODEL_CACHE_DIR": str(default_cache_dir()),
    }
    with seeded("F1 kill -9, real model", tmp_path, kills=KILLS) as run:
        model = AckModel()
        workload = Workload(model, run.random)
        sidecar = FaultSidecar(tmp_path, "--snapshot-interval-ms", "50", environment=environment)
        sidecar.start()
        for _ in run.cycles(KILLS):
            workload.begin(sidecar.stubs)
            workload.wait_for_acks(ACKS)
            sidecar.kill()
            workload.end()
            run.count("kills")
            sidecar.start()
            checked = model.check(sidecar.stubs, chance=run.random, sample=20)
            run.count("recalled", checked.recalls)
        stats = sidecar.stubs.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=30)
        assert "MiniLM" in stats.index_identity
        run.count("acknowledged", model.acks)
        assert sidecar.stop() == 0
