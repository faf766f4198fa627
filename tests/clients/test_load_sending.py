"""The sending side of a load against a server that a test holds up, slows down or lets fail.

Nothing here is timed from above: bounds on latencies follow from what the test saw happen before
and after, so that a busy machine changes none of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from semanticrecall.errors import InvalidArgumentError
from semanticrecall.load.histograms import Histogram
from semanticrecall.load.measured import Operation, WorkerSecond
from semanticrecall.load.plan import Loop
from semanticrecall.load.sending import Sender
from support.controlled_sidecar import Arrived, ControlledSidecar, answer, controlled_sidecar
from support.load_sending import (
    all_adds_up,
    closed_plan,
    nobody,
    open_plan,
    sent,
    sum_s,
    task_of,
)

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[ControlledSidecar]:
    async with controlled_sidecar(tmp_path) as served:
        yield served


# --- no coordinated omission ---------------------------------------------------------------------


async def test_every_call_that_was_due_while_the_server_stood_still_counts_the_standstill(
    sidecar: ControlledSidecar,
) -> None:
    plan = replace(open_plan(sidecar.address, rate_per_s=50), in_flight_max=1)
    sidecar.gate.clear()
    released: list[float] = []

    def release(second: WorkerSecond) -> None:
        # The first second is over: all 50 calls were due, and one was sent.
        if second.second == 0:
            assert len(sidecar.seen) == 1
            released.append(time.monotonic())
            sidecar.gate.set()

    before = time.monotonic()
    stage = await sent(plan, tell=release)
    after = time.monotonic()

    assert all_adds_up(stage)
    assert (stage.scheduled, stage.finished, stage.unfinished) == (50, 50, 0)
    # The others had no place until the stage was over.
    assert stage.started == 1
    assert sidecar.most_running == 1
    # Call k was due at begin + k / 50, and the stage began before the first call arrived.
    begun_by = sidecar.seen[0].at
    waited = [released[0] - (begun_by + k / 50) for k in range(50)]
    recall = stage.operations[Operation.RECALL]
    latency = Histogram.decode(recall.latency).percentiles()
    assert latency.count == 50
    assert latency.min >= waited[-1] * 1e3 * 0.999
    assert latency.max >= waited[0] * 1e3 * 0.999
    assert sum_s(recall.latency) >= sum(waited) * 0.999
    assert sum_s(stage.lateness) >= sum(waited[1:]) * 0.999
    # With one place calls are under way one after the other: the times from sent to answered have
    # room in the time that went by, and those of the calls sent after the standstill in the rest.
    assert sum_s(recall.service) <= (after - before) * 1.001
    least = Histogram.decode(recall.service).percentile_ms(0) / 1e3
    assert 49 * least <= (after - released[0]) * 1.001
    # Nor is the sending process to blame: it sent each call when there was a place.
    assert sum_s(stage.client_lateness, least=50) <= (after - before) * 1.001


async def test_calls_due_while_the_server_stands_still_are_sent_all_the_same(
    sidecar: ControlledSidecar,
) -> None:
    plan = open_plan(sidecar.address, rate_per_s=100, duration_s=0.5)
    sidecar.gate.clear()
    running = asyncio.create_task(sent(plan))
    await sidecar.until(lambda: sidecar.running == 50)
    released = time.monotonic()
    sidecar.gate.set()
    stage = await running
    assert all_adds_up(stage)
    assert (stage.scheduled, stage.finished) == (50, 50)
    arrived = [arrived.at for arrived in sidecar.seen]
    service = sum_s(stage.operations[Operation.RECALL].service, least=50)
    assert service >= sum(released - at for at in arrived) * 0.999
    assert sum_s(stage.operations[Operation.RECALL].latency) >= service * 0.998


async def test_a_loop_that_stood_still_sends_all_that_is_due_and_says_how_late(
    sidecar: ControlledSidecar,
) -> None:
    plan = open_plan(sidecar.address, rate_per_s=100, duration_s=1.0)
    stood: list[float] = []

    def stand_still(arrived: Arrived) -> bytes:
        # The server is in the loop of the sender: both stand still.
        if arrived.number == 20:
            stood.append(time.monotonic())
            time.sleep(0.3)
            stood.append(time.monotonic())
        return answer(arrived)

    sidecar.behave = stand_still
    sender = Sender(plan, 0, 1)
    await sender.open()
    before = time.monotonic()
    stage = await sender.run(task_of(plan), nobody)
    await sender.close()
    assert all_adds_up(stage)
    assert (stage.scheduled, stage.finished) == (100, 100)
    # The stage began between `before` and the first arrival: calls that were surely due after the
    # standstill's begin were sent after its end.
    begun_by = sidecar.seen[0].at
    surely = [k for k in range(100) if before + k / 100 >= stood[0]]
    late = sum(max(0.0, stood[1] - (begun_by + k / 100)) for k in surely)
    assert sum_s(stage.lateness) >= late * 0.999
    assert stage.client_lateness == stage.lateness
    # A timer of 10 ms was due within the first 10 ms of it, and every 10 ms after that.
    stood_s = stood[1] - stood[0]
    assert Histogram.decode(stage.loop_lag).percentiles().max >= (stood_s - 0.01) * 999
    assert sum_s(stage.loop_lag) >= sum(stood_s - k / 100 for k in range(1, 30)) * 0.999


# --- places --------------------------------------------------------------------------------------


async def test_open_loop_keeps_to_its_places_and_loses_no_call(sidecar: ControlledSidecar) -> None:
    plan = replace(open_plan(sidecar.address, rate_per_s=100), in_flight_max=3)
    sidecar.gate.clear()

    def release(second: WorkerSecond) -> None:
        sidecar.gate.set()

    stage = await sent(plan, tell=release)
    assert all_adds_up(stage)
    assert (stage.scheduled, stage.started) == (100, 3)
    assert (stage.finished, stage.unfinished) == (100, 0)
    assert sidecar.most_running == 3


async def test_calls_that_never_get_a_place_are_unfinished(sidecar: ControlledSidecar) -> None:
    plan = replace(open_plan(sidecar.address, rate_per_s=100, duration_s=0.3), in_flight_max=4)
    sidecar.gate.clear()
    stage = await sent(plan, task_of(plan, drain_s=0.05))
    assert all_adds_up(stage)
    assert (stage.scheduled, stage.finished, stage.unfinished) == (30, 0, 30)
    assert stage.started <= len(sidecar.seen) == 4
    await sidecar.until(lambda: sidecar.cancelled == 4)
    assert stage.operations[Operation.RECALL].errors == {}


async def test_a_worker_has_its_share_of_places_and_of_the_schedule(
    sidecar: ControlledSidecar,
) -> None:
    plan = replace(open_plan(sidecar.address, rate_per_s=90), in_flight_max=7)
    sidecar.gate.clear()
    sender = Sender(plan, 2, 3)
    await sender.open()
    task = replace(task_of(plan, drain_s=0.0), worker=2, workers=3)
    stage = await sender.run(task, nobody)
    await sender.close()
    # Of 90 calls and 7 places: 30 and 2.
    assert (stage.worker, stage.scheduled, stage.started) == (2, 30, 2)


async def test_more_processes_than_places_are_refused(tmp_path: Path) -> None:
    plan = replace(open_plan(f"unix:{tmp_path}/none", rate_per_s=1), in_flight_max=2)
    with pytest.raises(InvalidArgumentError, match="in_flight_max"):
        Sender(plan, 0, 3)


@pytest.mark.parametrize("in_flight", [1, 4])
async def test_closed_loop_has_so_many_under_way_and_no_more(
    sidecar: ControlledSidecar, in_flight: int
) -> None:
    plan = closed_plan(sidecar.address, in_flight)
    sidecar.gate.clear()
    running = asyncio.create_task(sent(plan, task_of(plan, calls_max=60)))
    await sidecar.until(lambda: sidecar.running == in_flight)
    sidecar.gate.set()
    stage = await running
    assert all_adds_up(stage)
    assert (stage.scheduled, stage.started, stage.finished) == (60, 60, 60)
    assert sidecar.most_running == in_flight
    recall = stage.operations[Operation.RECALL]
    assert recall.latency == recall.service
    assert (
        len(Histogram.decode(stage.lateness)) == len(Histogram.decode(stage.client_lateness)) == 0
    )


async def test_closed_loop_ends_with_its_time(sidecar: ControlledSidecar) -> None:
    plan = closed_plan(sidecar.address, in_flight=2, duration_s=0.2)
    stage = await sent(plan)
    assert all_adds_up(stage)
    assert stage.wall_s == pytest.approx(0.2)
    assert 0 < stage.scheduled == stage.started == stage.finished == len(sidecar.seen)


async def test_a_worker_without_a_caller_waits_and_sends_nothing(
    sidecar: ControlledSidecar,
) -> None:
    plan = closed_plan(sidecar.address, in_flight=1, duration_s=0.1)
    sender = Sender(plan, 1, 2)
    await sender.open()
    stage = await sender.run(replace(task_of(plan), worker=1, workers=2), nobody)
    await sender.close()
    assert (stage.scheduled, stage.finished, len(sidecar.seen)) == (0, 0, 0)
    assert stage.wall_s == pytest.approx(0.1)


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", list(Loop))
async def test_the_last_of_its_calls_ends_a_stage(sidecar: ControlledSidecar, loop: Loop) -> None:
    opened = open_plan(sidecar.address, rate_per_s=1_000, duration_s=3_600)
    plan = opened if loop is Loop.OPEN else closed_plan(sidecar.address, 5, duration_s=3_600)
    stage = await sent(plan, task_of(plan, calls_max=33))
    assert all_adds_up(stage)
    assert stage.scheduled == stage.started == stage.finished == len(sidecar.seen) == 33
    assert stage.wall_s < 3_600


@pytest.mark.parametrize("loop", list(Loop))
async def test_a_worker_whose_share_of_the_most_calls_is_none_is_done_at_once(
    sidecar: ControlledSidecar, loop: Loop
) -> None:
    opened = open_plan(sidecar.address, rate_per_s=1_000, duration_s=3_600)
    plan = opened if loop is Loop.OPEN else closed_plan(sidecar.address, 5, duration_s=3_600)
    stage = await sent(plan, task_of(plan, calls_max=0))
    assert all_adds_up(stage)
    assert (stage.scheduled, stage.wall_s, len(sidecar.seen)) == (0, 0.0, 0)


async def test_stop_from_another_thread_ends_a_stage_with_what_there_is(
    sidecar: ControlledSidecar,
) -> None:
    plan = open_plan(sidecar.address, rate_per_s=100, duration_s=3_600)
    sidecar.gate.clear()
    sender = Sender(plan, 0, 1)
    await sender.open()
    running = asyncio.create_task(sender.run(task_of(plan), nobody))
    await sidecar.until(lambda: sidecar.running >= 10)
    thread = threading.Thread(target=sender.stop)
    thread.start()
    await asyncio.to_thread(thread.join)
    sidecar.gate.set()
    stage = await running
    assert all_adds_up(stage)
    assert stage.started == stage.finished == len(sidecar.seen) >= 10
    assert stage.wall_s < 3_600
    again = await sender.run(task_of(plan), nobody)
    assert (again.scheduled, again.finished, again.unfinished) == (0, 0, 0)
    await sender.close()


async def test_calls_that_wait_for_a_place_at_stop_are_not_sent_any_more(
    sidecar: ControlledSidecar,
) -> None:
    plan = replace(open_plan(sidecar.address, rate_per_s=200, duration_s=60), in_flight_max=2)
    sidecar.gate.clear()
    sender = Sender(plan, 0, 1)
    await sender.open()
    stopped = asyncio.Event()

    def stop(second: WorkerSecond) -> None:
        if second.second == 0:
            sender.stop()
            stopped.set()

    running = asyncio.create_task(sender.run(task_of(plan), stop))
    await stopped.wait()
    sidecar.gate.set()
    stage = await running
    await sender.close()
    assert all_adds_up(stage)
    assert (stage.started, stage.finished, len(sidecar.seen)) == (2, 2, 2)
    assert stage.scheduled >= 200
    assert stage.unfinished == stage.scheduled - 2


async def test_a_run_that_is_cancelled_cancels_its_calls(sidecar: ControlledSidecar) -> None:
    sidecar.gate.clear()
    plan = closed_plan(sidecar.address, in_flight=3)
    running = asyncio.create_task(sent(plan))
    await sidecar.until(lambda: sidecar.running == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await sidecar.until(lambda: sidecar.cancelled == 3)


@pytest.mark.parametrize("loop", list(Loop))
async def test_what_breaks_in_here_is_raised(sidecar: ControlledSidecar, loop: Loop) -> None:
    def broken(second: WorkerSecond) -> None:
        raise RuntimeError("the listener broke")

    opened = open_plan(sidecar.address, rate_per_s=20, duration_s=60)
    plan = opened if loop is Loop.OPEN else closed_plan(sidecar.address, in_flight=1)
    with pytest.raises(RuntimeError, match="the listener broke"):
        await sent(plan, tell=broken)
