"""F14. Two processes, one directory: one holds it, the other is refused by name; none is stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fault_model import AckModel
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, size
from support.fault_workload import Workload

CONTENDERS = 3


@pytest.mark.parametrize("column", COLUMNS)
def test_one_of_many_holds_a_directory_and_a_killed_one_never_blocks_it(
    tmp_path: Path, column: str
) -> None:
    holders = size("F14_HOLDERS", column)
    with seeded("F14 holders", tmp_path, holders=holders) as run:
        model = AckModel()
        workload = Workload(model, run.random, workers=2)
        for _ in run.cycles(holders):
            contenders = [
                FaultSidecar(tmp_path, socket=tmp_path / f"s{number}")
                for number in range(CONTENDERS)
            ]
            for one in contenders:
                one.start(wait=False)  # all at once
            (holder,) = [one for one in contenders if one.is_listening()]
            holder.wait_for("serving")
            workload.begin(holder.stubs)
            for one in contenders:
                if one is not holder:
                    assert one.wait() == 2
                    (line,) = [line for line in one.said if line.startswith("semanticrecall:")]
                    assert f"in use by process {holder.pid};" in line
                    run.count("refused by name")
            workload.wait_for_acks(10)
            holder.kill()
            workload.end()
            run.count("holders killed")
            (tmp_path / "data" / "LOCK").write_text("1\n")  # somebody who lives and holds nothing
            with FaultSidecar(tmp_path) as after:
                model.check(after.stubs, chance=run.random, sample=5)
