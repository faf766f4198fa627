"""More calls than a server can answer: it sheds, says when to come back, and is well afterwards.

Ten thousand recalls at once on a thousand connections, nine in ten of one resource. Those that are
accepted are right; memory has a bound; the others' calls are answered when they come back as told.
"""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall.v1.recall_pb2_grpc import RecallServiceStub
from support.fault_report import seeded
from support.fault_sidecar import FaultSidecar, wait_until
from support.fault_sizes import COLUMNS, size
from support.process_gauges import Watched, gauge
from support.wire_memory import said

CALLS_AT_ONCE = 10_000
CONNECTIONS = 1_000
HANDLES_NEEDED = 2 * CONNECTIONS + 500
QUIET = [f"quiet{number}" for number in range(20)]
SHARE_OF_THE_HOT = 0.9
CALL_SECONDS = 120.0
RETRIES_MAX = 200
GROWTH_BYTES_MAX = 320 * 1024 * 1024
SHED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


@dataclass(frozen=True)
class Outcome:
    """How a recall ended; `wait_s` is what the server said of coming back."""

    resource_id: str
    code: grpc.StatusCode
    found: str = ""
    wait_s: float = 0.0
    details: str = ""


@contextmanager
def many_handles() -> Iterator[None]:
    """Room for a thousand connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < HANDLES_NEEDED:
        pytest.skip(f"needs {HANDLES_NEEDED} open files, may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HANDLES_NEEDED), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fill(sidecar: FaultSidecar) -> None:
    """One message with a word of its own for each resource."""
    for name in ("hot", *QUIET):
        request = recall_pb2.IndexRequest(
            resource_id=name, thread_id="t", messages=[said(name, f"the word of {name} is {name}")]
        )
        sidecar.stubs.recall.Index(request, timeout=CALL_SECONDS)


async def recall(channel: grpc.aio.Channel, resource_id: str, number: int) -> Outcome:
    """One recall that nobody has asked before."""
    request = recall_pb2.RecallRequest(resource_id=resource_id, query=f"word {number}", top_k=1)
    request.context_format = types_pb2.CONTEXT_NONE
    try:
        answer = await RecallServiceStub(channel).Recall(request, timeout=CALL_SECONDS)  # type: ignore[misc]
    except grpc.aio.AioRpcError as error:
        return Outcome(
            resource_id,
            error.code(),
            wait_s=_told_wait_s(error),
            details=error.debug_error_string(),
        )
    return Outcome(resource_id, grpc.StatusCode.OK, answer.messages[0].message.id)


def _told_wait_s(error: grpc.aio.AioRpcError) -> float:
    """What RetryInfo says; 0 where it is missing."""
    packed = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    retry = error_details_pb2.RetryInfo()
    for part in status_pb2.Status.FromString(packed).details:  # type: ignore[arg-type]
        if part.Unpack(retry):
            return retry.retry_delay.ToMilliseconds() / 1000
    return 0.0


async def until_answered(channel: grpc.aio.Channel, resource_id: str, number: int) -> int:
    """Come back as told until there is an answer; how often that was."""
    for tries in range(RETRIES_MAX):
        outcome = await recall(channel, resource_id, number)
        if outcome.code is grpc.StatusCode.OK:
            assert outcome.found == resource_id
            return tries
        assert outcome.code in SHED, outcome
        await asyncio.sleep(outcome.wait_s)
    raise AssertionError(f"{resource_id} was shed {RETRIES_MAX} times")


async def flood(target: str, calls: int, chance: random.Random) -> tuple[list[Outcome], list[int]]:
    """All calls at once; quiet resources come back until they are answered, and health is asked."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(CONNECTIONS)]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        names = [
            "hot" if chance.random() < SHARE_OF_THE_HOT else chance.choice(QUIET)
            for _ in range(calls)
        ]
        burst = [
            recall(channels[number % CONNECTIONS], name, number)
            for number, name in enumerate(names)
        ]
        patient = [until_answered(channels[n], name, -n) for n, name in enumerate(QUIET)]
        health = health_pb2_grpc.HealthStub(channels[0])
        asked = health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
        outcomes, tries, state = await asyncio.gather(
            asyncio.gather(*burst), asyncio.gather(*patient), asked
        )
        assert state.status == health_pb2.HealthCheckResponse.SERVING
        # The burst is over: the next call of everybody is answered, without coming back.
        for name in ("hot", *QUIET):
            assert (await recall(channels[1], name, calls)).found == name
        return outcomes, tries
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


def check(outcome: Outcome) -> None:
    """Right, or told when to come back."""
    if outcome.code is grpc.StatusCode.OK:
        assert outcome.found == outcome.resource_id
    else:
        assert outcome.code in SHED, outcome
        assert outcome.wait_s > 0, outcome


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("column", COLUMNS)
def test_ten_thousand_calls_at_once_on_a_thousand_connections(tmp_path: Path, column: str) -> None:
    calls = size("F18_CALLS", column)
    sidecar = FaultSidecar(tmp_path)
    with many_handles(), seeded("F18 flood", sidecar.data, calls=calls) as run, sidecar:
        fill(sidecar)
        quiet = gauge(sidecar.pid)
        target = f"unix:{sidecar.socket}"
        with Watched(sidecar.pid) as watched:
            for _ in run.cycles(-(-calls // CALLS_AT_ONCE)):
                outcomes, tries = asyncio.run(flood(target, min(calls, CALLS_AT_ONCE), run.random))
                for outcome in outcomes:
                    run.count(outcome.code.name)
                    check(outcome)
                run.count("tries of quiet resources", sum(tries))
        run.count("KiB of memory more", watched.growth_bytes() // 1024)
        assert run.counts["RESOURCE_EXHAUSTED"] > 0, "nothing was shed: that was no flood"
        assert run.counts["OK"] > 0
        assert watched.growth_bytes() < GROWTH_BYTES_MAX
        assert max(one.threads for one in watched.seen) < quiet.threads + 64
        wait_until(lambda: gauge(sidecar.pid).handles <= quiet.handles + 8)
        assert not sidecar.logged("internal_error")
        assert len(sidecar.said) < 100
