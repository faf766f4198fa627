"""F11. The wall clock jumps by days and years under load: nothing is lost, no deadline moves."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from support.fault_calls import WallClock, follow_clock, needs_shim
from support.fault_model import AckModel, listed
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, size
from support.fault_workload import Workload

DAY_S = 86_400
JUMPS_S = (DAY_S, -DAY_S, 3_652 * DAY_S, -3_652 * DAY_S)
ACKS_EACH = 15
TURNS_EACH = 5


@needs_shim
@pytest.mark.parametrize("column", COLUMNS)
def test_a_clock_that_jumps_under_load_loses_nothing_and_moves_no_deadline(
    tmp_path: Path, column: str
) -> None:
    jumps = size("F11_CLOCK_JUMPS", column)
    with seeded("F11 clock jumps", tmp_path, jumps=jumps) as run:
        clock = WallClock(tmp_path / "clock")
        model = AckModel()
        workload = Workload(model, run.random)
        prepare = partial(follow_clock, str(tmp_path / "clock"))
        with FaultSidecar(tmp_path, "--snapshot-interval-ms", "50", prepare=prepare) as sidecar:
            workload.begin(sidecar.stubs)
            for number in run.cycles(jumps):
                workload.wait_for_acks(ACKS_EACH * (2 * number + 1))
                clock.set(JUMPS_S[number % len(JUMPS_S)])
                workload.wait_for_acks(ACKS_EACH * (2 * number + 2))
                clock.set(0)
                run.count("jumps there and back")
            workload.end()
            assert workload.counts.errors == {}  # deadlines are of the monotonic clock
            model.check(sidecar.stubs)
            clock.set(-JUMPS_S[2])
            sidecar.kill()
            sidecar.start()  # ten years earlier than what is on record
            model.check(sidecar.stubs, chance=run.random, sample=20)
            run.count("acknowledged", model.acks)


@needs_shim
@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_messages_without_a_time_stay_in_the_order_they_came(tmp_path: Path, jump_s: int) -> None:
    """Jumps of years: tests/core/test_arrival_clock.py."""
    clock = WallClock(tmp_path / "clock")
    prepare = partial(follow_clock, str(tmp_path / "clock"))
    said: list[str] = []
    with FaultSidecar(tmp_path, prepare=prepare) as sidecar:
        for offset_s in (0, jump_s, 0):
            clock.set(offset_s)
            for _ in range(TURNS_EACH):
                said.append(f"m{len(said)}")
                message = {"id": said[-1], "role": types_pb2.ROLE_USER, "text": f"hello {said[-1]}"}
                sidecar.stubs.recall.Index(
                    recall_pb2.IndexRequest(resource_id="u", thread_id="t", messages=[message]),
                    timeout=30,
                )
        assert [message.id for message in listed(sidecar.stubs, "u")] == said
