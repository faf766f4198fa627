"""The sending side of a load against a server that a test holds up, slows down or lets fail.

Nothing here is timed from above: bounds on latencies follow from what the test saw happen before
and after, so that a busy machine changes none of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from semanticrecall import Tls
from semanticrecall.connection import connection
from semanticrecall.errors import InvalidArgumentError, UnavailableError
from semanticrecall.load.histograms import Histogram
from semanticrecall.load.measured import Operation, WorkerSecond, WorkerStage
from semanticrecall.load.plan import Arrivals, LoadPlan, Loop, Stage, Workload
from semanticrecall.load.sending import Sender, StageTask, event_loop
from semanticrecall.load.workload import CallSequence
from semanticrecall.v1 import recall_pb2, types_pb2
from support.controlled_sidecar import Arrived, ControlledSidecar, answer, controlled_sidecar

pytestmark = pytest.mark.asyncio

RECALLS = Workload(recall_share=1.0, resources=5)
Tell = Callable[[WorkerSecond], None]


def nobody(second: WorkerSecond) -> None:
    del second


@pytest_asyncio.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[ControlledSidecar]:
    async with controlled_sidecar(tmp_path) as served:
        yield served


def open_plan(address: str, rate_per_s: float, duration_s: float = 1.0) -> LoadPlan:
    return LoadPlan(
        connection=connection(address, {}),
        workload=RECALLS,
        arrivals=Arrivals.CONSTANT,
        stages=(Stage(rate_per_s=rate_per_s, duration_s=duration_s),),
    )


def closed_plan(address: str, in_flight: int, duration_s: float = 60.0) -> LoadPlan:
    return LoadPlan(
        connection=connection(address, {}),
        workload=RECALLS,
        loop=Loop.CLOSED,
        stages=(Stage(in_flight=in_flight, duration_s=duration_s),),
    )


def task_of(plan: LoadPlan, calls_max: int = 1_000_000, drain_s: float = 30.0) -> StageTask:
    return StageTask(
        stage=plan.stages[0], number=1, worker=0, workers=1, calls_max=calls_max, drain_s=drain_s
    )


async def sent(plan: LoadPlan, task: StageTask | None = None, tell: Tell = nobody) -> WorkerStage:
    sender = Sender(plan, 0, 1)
    await sender.open()
    try:
        return await sender.run(task or task_of(plan), tell)
    finally:
        await sender.close()


def all_adds_up(stage: WorkerStage) -> bool:
    """No call is lost: every one that was due ended or is unfinished, in totals and seconds."""
    answered = sum(len(Histogram.decode(o.latency)) for o in stage.operations.values())
    failed = sum(sum(o.errors.values()) for o in stage.operations.values())
    recorded = sum(len(Histogram.decode(o.failed_latency)) for o in stage.operations.values())
    seconds = stage.seconds
    return (
        stage.scheduled == stage.finished + stage.unfinished
        and stage.started <= stage.scheduled
        and stage.finished == answered + failed
        and recorded == failed
        and [second.second for second in seconds] == list(range(len(seconds)))
        and sum(second.finished for second in seconds) == stage.finished
        and sum(second.failed for second in seconds) == failed
    )


def sum_s(encoded: bytes, least: int = 0) -> float:
    """The sum of a histogram's times, to a thousandth; checks how many there are."""
    found = Histogram.decode(encoded).percentiles()
    assert found.count >= least
    return found.count * found.mean / 1e3


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


# --- results -------------------------------------------------------------------------------------


async def test_errors_are_counted_by_code_and_sent_once(sidecar: ControlledSidecar) -> None:
    codes = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, None]
    sidecar.behave = lambda arrived: codes[arrived.number % 3] or answer(arrived)
    plan = replace(
        closed_plan(sidecar.address, in_flight=1), workload=replace(RECALLS, recall_share=0.5)
    )
    stage = await sent(plan, task_of(plan, calls_max=90))
    assert all_adds_up(stage)
    # Retries would show as more calls.
    assert len(sidecar.seen) == stage.finished == 90
    by_code: dict[str, int] = {}
    for operation, kind in (
        (Operation.RECALL, recall_pb2.RecallRequest),
        (Operation.INDEX, recall_pb2.IndexRequest),
    ):
        numbers = [seen.number for seen in sidecar.seen if isinstance(seen.request, kind)]
        measured = stage.operations[operation]
        assert measured.errors == {
            "UNAVAILABLE": sum(number % 3 == 0 for number in numbers),
            "RESOURCE_EXHAUSTED": sum(number % 3 == 1 for number in numbers),
        }
        assert len(Histogram.decode(measured.latency)) == sum(n % 3 == 2 for n in numbers)
        for code, count in measured.errors.items():
            by_code[code] = by_code.get(code, 0) + count
    seconds: dict[str, int] = {}
    for second in stage.seconds:
        for code, count in second.errors.items():
            seconds[code] = seconds.get(code, 0) + count
    assert seconds == by_code == {"UNAVAILABLE": 30, "RESOURCE_EXHAUSTED": 30}


async def test_a_deadline_ends_a_call_with_its_code(sidecar: ControlledSidecar) -> None:
    plan = replace(open_plan(sidecar.address, rate_per_s=100, duration_s=0.2), timeout_ms=100)
    sidecar.gate.clear()
    stage = await sent(plan)
    assert all_adds_up(stage)
    recall = stage.operations[Operation.RECALL]
    assert recall.errors == {"DEADLINE_EXCEEDED": 20}
    assert (stage.finished, stage.unfinished) == (20, 0)
    assert Histogram.decode(recall.failed_latency).percentiles().min >= 95


async def test_a_server_that_cancels_is_an_error_not_an_unfinished_call(
    sidecar: ControlledSidecar,
) -> None:
    sidecar.behave = lambda arrived: grpc.StatusCode.CANCELLED
    plan = closed_plan(sidecar.address, in_flight=2)
    stage = await sent(plan, task_of(plan, calls_max=6))
    assert all_adds_up(stage)
    assert stage.operations[Operation.RECALL].errors == {"CANCELLED": 6}


async def test_an_answer_that_cannot_be_read_is_a_failure(sidecar: ControlledSidecar) -> None:
    sidecar.behave = lambda arrived: b"\xff\xff\xff"
    plan = closed_plan(sidecar.address, in_flight=1)
    stage = await sent(plan, task_of(plan, calls_max=5))
    assert all_adds_up(stage)
    assert stage.operations[Operation.RECALL].errors == {"INTERNAL": 5}


def flagged(arrived: Arrived) -> bytes:
    """Every third recall is empty, every second from a cache; index results of every status."""
    if isinstance(arrived.request, recall_pb2.IndexRequest):
        statuses = [
            types_pb2.STATUS_INDEXED,
            types_pb2.STATUS_REPLACED,
            types_pb2.STATUS_NOT_EMBEDDED,
            types_pb2.STATUS_UNCHANGED,
            types_pb2.STATUS_PENDING,
            types_pb2.STATUS_REJECTED,
        ]
        results = [recall_pb2.IndexResult(status=status) for status in statuses]
        return recall_pb2.IndexResponse(results=results).SerializeToString()
    response = recall_pb2.RecallResponse.FromString(answer(arrived))
    if arrived.number % 3 == 0:
        del response.messages[:]
    response.info.cache_hit = arrived.number % 2 == 0
    response.info.answer_cache_hit = arrived.number % 4 == 0
    return response.SerializeToString()


async def test_counts_are_what_the_answers_say(sidecar: ControlledSidecar) -> None:
    sidecar.behave = flagged
    workload = Workload(recall_share=0.6, resources=2, query_repeat_share=0.5)
    plan = replace(closed_plan(sidecar.address, in_flight=3), workload=workload)
    stage = await sent(plan, task_of(plan, calls_max=120))
    assert all_adds_up(stage)
    asked = [s for s in sidecar.seen if isinstance(s.request, recall_pb2.RecallRequest)]
    written = len(sidecar.seen) - len(asked)
    planned = list(islice(CallSequence(workload, 0, 1), 120))
    full = sum(s.number % 3 != 0 for s in asked)
    assert stage.operations[Operation.RECALL].counts == {
        "hits": full,
        "messages": 2 * full,
        "empty": len(asked) - full,
        "query_cache_hits": sum(s.number % 2 == 0 for s in asked),
        "answer_cache_hits": sum(s.number % 4 == 0 for s in asked),
        "repeated": sum(call.repeated for call in planned),
        "answer_bytes": sum(len(flagged(s)) for s in asked),
    }
    assert stage.operations[Operation.INDEX].counts == {
        "messages": 6 * written,
        "indexed": 3 * written,
        "unchanged": written,
        "pending": written,
        "rejected": written,
    }


async def test_calls_are_sent_in_the_order_of_the_plan_over_all_stages(
    sidecar: ControlledSidecar,
) -> None:
    plan = replace(closed_plan(sidecar.address, in_flight=1), workload=Workload())
    sender = Sender(plan, 0, 1)
    await sender.open()
    for number in range(3):
        await sender.run(replace(task_of(plan, calls_max=40), number=number), nobody)
    await sender.close()
    planned = [call.body for call in islice(CallSequence(plan.workload, 0, 1), 120)]
    assert [seen.body for seen in sidecar.seen] == planned


def digest_of(bodies: list[bytes]) -> str:
    """The digest of answers by `answer`, written down once more."""
    total = 0
    for number, body in enumerate(bodies):
        query = recall_pb2.RecallRequest.FromString(body).query
        text = f"{number}\0{query}\0{query} too".encode()
        total += int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    return f"{total % 2**64:016x}"


async def test_the_digest_is_over_ids_in_the_order_of_the_plan_not_of_the_answers(
    sidecar: ControlledSidecar,
) -> None:
    plan = closed_plan(sidecar.address, in_flight=1)
    one_by_one = await sent(plan, task_of(plan, calls_max=40))
    planned = [seen.body for seen in sidecar.seen]
    assert one_by_one.digest == digest_of(planned)
    assert digest_of([planned[1], planned[0], *planned[2:]]) != one_by_one.digest

    # All 40 under way, and only the last to arrive is answered at first: it ends before the others.
    many = replace(open_plan(sidecar.address, rate_per_s=1_000), in_flight_max=40)
    sidecar.seen.clear()
    sidecar.gate.clear()
    running = asyncio.create_task(sent(many, task_of(many, calls_max=40)))
    await sidecar.until(lambda: sidecar.running == 40)
    sidecar.gate.set()
    assert (await running).digest == one_by_one.digest

    other = replace(plan, workload=replace(RECALLS, seed=2))
    assert (await sent(other, task_of(other, calls_max=40))).digest != one_by_one.digest


async def test_each_second_is_told_when_it_is_over_and_the_last_before_the_end(
    sidecar: ControlledSidecar,
) -> None:
    told: list[WorkerSecond] = []
    plan = open_plan(sidecar.address, rate_per_s=40, duration_s=1.2)
    stage = await sent(plan, tell=told.append)
    assert all_adds_up(stage)
    assert tuple(told) == stage.seconds
    assert len(told) >= 2
    assert sum(second.started for second in told) == stage.scheduled == 48
    assert told[-1].in_flight == 0
    added = Histogram()
    for second in told:
        assert second.in_flight >= 0
        if Operation.RECALL in second.latencies:
            added.decode_and_add(second.latencies[Operation.RECALL])
    assert added.encode() == stage.operations[Operation.RECALL].latency


async def test_a_second_without_calls_is_told_too(sidecar: ControlledSidecar) -> None:
    told: list[WorkerSecond] = []
    plan = open_plan(sidecar.address, rate_per_s=0.5, duration_s=2.1)
    await sent(plan, tell=told.append)
    quiet = [second for second in told if second.started == second.finished == 0]
    assert quiet
    assert all(second.latencies == {} for second in quiet)


async def test_poisson_calls_are_those_of_the_schedule(sidecar: ControlledSidecar) -> None:
    constant = open_plan(sidecar.address, rate_per_s=400, duration_s=0.5)
    plan = replace(constant, arrivals=Arrivals.POISSON)
    first = await sent(plan)
    second = await sent(plan)
    assert first.scheduled == second.scheduled
    assert abs(first.scheduled - 200) < 5 * 200**0.5
    other = await sent(plan, replace(task_of(plan), number=2))
    assert all(map(all_adds_up, (first, second, other)))


async def test_a_ramp_sends_fewer(sidecar: ControlledSidecar) -> None:
    plan = open_plan(sidecar.address, rate_per_s=100, duration_s=0.6)
    stage = await sent(plan, replace(task_of(plan), ramp_s=0.4))
    assert stage.scheduled == stage.finished == 40


# --- connections ---------------------------------------------------------------------------------


async def test_the_token_goes_with_every_call(sidecar: ControlledSidecar) -> None:
    secret = connection(sidecar.address, {"token": "s3cret"})
    plan = replace(closed_plan(sidecar.address, in_flight=1), connection=secret)
    await sent(plan, task_of(plan, calls_max=3))
    assert [seen.metadata["authorization"] for seen in sidecar.seen] == ["Bearer s3cret"] * 3


async def test_nobody_there_is_said(tmp_path: Path) -> None:
    away = connection(f"unix:{tmp_path}/none.sock", {"connect_timeout": 0.1})
    sender = Sender(replace(open_plan("unix:/unused", 1), connection=away), 0, 1)
    with pytest.raises(UnavailableError) as raised:
        await sender.open()
    assert raised.value.reason == "UNREACHABLE"
    await sender.close()


async def test_somebody_who_cannot_be_talked_to_is_said(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"{tmp_path}/mute.sock")
        mute.listen()
        there = connection(f"unix:{tmp_path}/mute.sock", {"connect_timeout": 0.1})
        sender = Sender(replace(open_plan("unix:/unused", 1), connection=there), 0, 1)
        with pytest.raises(UnavailableError) as raised:
            await sender.open()
        assert raised.value.reason == "NO_CONNECTION"
        await sender.close()


async def test_a_certificate_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    tls = connection("127.0.0.1:1", {"tls": Tls(ca_file=tmp_path / "none.pem")})
    sender = Sender(replace(open_plan("unix:/unused", 1), connection=tls), 0, 1)
    with pytest.raises(InvalidArgumentError, match="tls"):
        await sender.open()


async def test_what_processes_are_given_travels() -> None:
    plan = open_plan("unix:/unused", 1)
    task = task_of(plan)
    assert pickle.loads(pickle.dumps((plan, task))) == (plan, task)


async def test_the_senders_loop_is_exact_and_carries_calls(tmp_path: Path) -> None:
    async def serve_and_send() -> WorkerStage:
        async with controlled_sidecar(tmp_path) as sidecar:
            plan = open_plan(sidecar.address, rate_per_s=100, duration_s=0.2)
            return await sent(plan)

    def run() -> WorkerStage:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            return runner.run(serve_and_send())

    stage = await asyncio.to_thread(run)
    assert all_adds_up(stage)
    assert (stage.scheduled, stage.finished) == (20, 20)
