"""What one sending process says of its calls, and how it is connected."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import socket
from collections.abc import AsyncIterator
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
from semanticrecall.load.plan import Arrivals, Workload
from semanticrecall.load.sending import Sender, event_loop
from semanticrecall.load.workload import CallSequence
from semanticrecall.v1 import recall_pb2, types_pb2
from support.controlled_sidecar import Arrived, ControlledSidecar, answer, controlled_sidecar
from support.load_sending import (
    RECALLS,
    all_adds_up,
    closed_plan,
    nobody,
    open_plan,
    sent,
    task_of,
)

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[ControlledSidecar]:
    async with controlled_sidecar(tmp_path) as served:
        yield served


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


async def test_resources_are_told_of_once_whether_their_calls_were_answered_or_cut_off(
    sidecar: ControlledSidecar,
) -> None:
    """Of each stage those that are new, by what arrived at the server."""
    workload = replace(RECALLS, recall_share=0.5, resources=1_000, zipf_exponent=0.0)
    plan = replace(open_plan(sidecar.address, rate_per_s=100, duration_s=0.5), workload=workload)
    sender = Sender(plan, 0, 1)
    await sender.open()
    answered = await sender.run(task_of(plan), nobody)
    first = arrived_resources(sidecar)
    sidecar.gate.clear()
    cut_off = await sender.run(task_of(plan, drain_s=1.0), nobody)
    await sender.close()
    assert cut_off.unfinished == 50
    assert first
    assert sorted(answered.resources_written) == sorted(first)
    new = arrived_resources(sidecar) - first
    assert new
    assert sorted(cut_off.resources_written) == sorted(new)


def arrived_resources(sidecar: ControlledSidecar) -> set[int]:
    """Numbers, from 0, of the resources to which Index calls came."""
    return {
        int(arrived.request.resource_id.removeprefix(RECALLS.resource_prefix)) - 1
        for arrived in sidecar.seen
        if isinstance(arrived.request, recall_pb2.IndexRequest)
    }
