"""Recalls while far more are asked than can be answered: those accepted, others', those after it.

Usage: python -m benchmarks.overload [--callers 1000] [--connections 100] [--seconds 10]
           [--patience 0] [--json FILE]

A process of its own floods one resource: so many callers, each sending again as soon as it is
answered or refused; with `--patience 1` a refused one waits as long as it is told first. Beside it,
in this process and on one connection, recalls of another resource are sent one after the other;
where one is refused it comes back as it is told, and its time counts from its first try. Before and
after, the same recalls alone.

  idle             the other resource's recalls before the flood
  other            the same during the flood
  accepted         the flooding callers' recalls that were answered
  after            the other resource's recalls when the flood is over
  recovered_after_s    from the end of the flood until the other resource's next answer

All share the machine's processors: with few of them the flooding process takes its part from the
sidecar, and ratios are larger than where callers are elsewhere.

Checked: every answer is of the resource that asked; every refusal is RESOURCE_EXHAUSTED or
UNAVAILABLE and says when to come back.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from benchmarks import processes, wire_requests
from benchmarks.report import Bar, Digest, Result, flag, run_script
from semanticrecall.v1 import recall_pb2, types_pb2

HOT, OTHER = "hot", "other"
MESSAGES = 50
CALL_SECONDS = 60.0
PAUSE_S = 0.01
SHED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
LATENCY_RATIO_MAX = 2.0
RECOVERY_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    callers: int = flag(1_000, "callers that flood, at once")
    connections: int = flag(100, "connections of theirs")
    seconds: float = flag(10.0, "of the flood")
    patience: float = flag(0.0, "share of the time they are told to wait that they do wait")
    calls: int = flag(300, "recalls alone, before and after")


@dataclass(slots=True)
class Tally:
    """What came of calls: seconds of those answered, and how often others were refused."""

    seconds: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


async def ask(channel: grpc.aio.Channel, resource_id: str, query: str) -> float | None:
    """One recall. None: answered; else seconds to wait before coming back.

    Raises:
        RuntimeError: an answer of another resource, or a refusal that says nothing.
    """
    request = wire_requests.recall(resource_id, query)
    call = channel.unary_unary(wire_requests.RECALL)
    try:
        raw = await call(request.SerializeToString(), timeout=CALL_SECONDS)
    except grpc.aio.AioRpcError as error:
        wait_s = told_wait_s(error)
        if error.code() not in SHED or wait_s <= 0:
            raise RuntimeError(f"refused with {error.code().name}, without advice") from None
        return wait_s
    answer = recall_pb2.RecallResponse.FromString(raw)
    if {one.message.resource_id for one in answer.messages} != {resource_id}:
        raise RuntimeError("an answer of another resource")
    return None


def told_wait_s(error: grpc.aio.AioRpcError) -> float:
    """What RetryInfo says; 0 where there is none."""
    trailers = dict(error.trailing_metadata() or ())
    packed = trailers.get("grpc-status-details-bin", b"")
    retry = error_details_pb2.RetryInfo()
    details: list[Message] = list(status_pb2.Status.FromString(bytes(packed)).details)
    for part in details:
        if part.Unpack(retry):  # type: ignore[attr-defined]
            return retry.retry_delay.ToMilliseconds() / 1000
    return 0.0


async def one_after_the_other(
    channel: grpc.aio.Channel, name: str, until: float, most: int
) -> Tally:
    """Recalls of the other resource until a time of `time.monotonic`, or so many."""
    tally = Tally()
    while time.monotonic() < until and len(tally.seconds) < most:
        begun = time.perf_counter()
        query = f"{name} {len(tally.seconds)}"
        while (wait_s := await ask(channel, OTHER, query)) is not None:
            tally.refused[name] += 1
            await asyncio.sleep(wait_s)
        tally.seconds.append(time.perf_counter() - begun)
        await asyncio.sleep(PAUSE_S)
    return tally


# ---- the flood, in a process of its own ----


async def _flood(address: str, config: Config, told: Connection) -> None:
    channels = [
        grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
        for _ in range(config.connections)
    ]
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    tally = Tally()
    told.send("begins")
    until = time.monotonic() + config.seconds

    async def call_again_and_again(number: int) -> None:
        channel, count = channels[number % len(channels)], 0
        while time.monotonic() < until:
            begun = time.perf_counter()
            refused = await ask(channel, HOT, f"query {number} {count}")
            count += 1
            if refused is None:
                tally.seconds.append(time.perf_counter() - begun)
            else:
                tally.refused[HOT] += 1
                await asyncio.sleep(config.patience * refused)

    await asyncio.gather(*(call_again_and_again(number) for number in range(config.callers)))
    told.send(tally)
    await asyncio.gather(*(channel.close() for channel in channels))


def flooding(address: str, config: Config, told: Connection) -> None:
    """Runs in the process that floods."""
    asyncio.run(_flood(address, config, told))


# ---- measuring ----


async def _measure(address: str, config: Config) -> tuple[dict[str, Tally], float, list[str]]:
    """Tallies by series; seconds until recovery; ids recalled in the end."""
    async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
        index = channel.unary_unary(wire_requests.INDEX)
        for name in (HOT, OTHER):
            for number in range(MESSAGES):
                request = wire_requests.turn(
                    name, number, f"note {number} of {name}", types_pb2.WAIT_SEARCHABLE
                )
                await index(request.SerializeToString(), timeout=CALL_SECONDS)
        never = float("inf")
        tallies = {"idle": await one_after_the_other(channel, "idle", never, config.calls)}
        heard, told = multiprocessing.get_context("spawn").Pipe(duplex=False)
        flood = multiprocessing.get_context("spawn").Process(
            target=flooding, args=(address, config, told), daemon=True
        )
        flood.start()
        await asyncio.to_thread(heard.recv)
        until = time.monotonic() + config.seconds
        tallies["other"] = await one_after_the_other(channel, "other", until, 1_000_000)
        tallies["accepted"] = await asyncio.to_thread(heard.recv)
        ended = time.perf_counter()
        first = await one_after_the_other(channel, "first", never, 1)
        recovered_after_s = time.perf_counter() - ended - PAUSE_S
        tallies["after"] = await one_after_the_other(channel, "after", never, config.calls)
        flood.join(CALL_SECONDS)
        tallies["after"].refused.update(first.refused)
        request = wire_requests.recall(OTHER, "note 7 of other")
        raw = await channel.unary_unary(wire_requests.RECALL)(request.SerializeToString())
        answer = recall_pb2.RecallResponse.FromString(raw)
        return tallies, recovered_after_s, wire_requests.recalled_ids(answer)


def measure(config: Config) -> Result:
    """Run a sidecar of its own and measure.

    Raises:
        ValueError: the configuration is out of range.
        RuntimeError: an answer or a refusal is not as it must be.
    """
    if not 1 <= config.connections <= config.callers:
        raise ValueError("connections must be at least 1 and at most as many as callers")
    if config.calls < 1 or config.seconds <= 0 or config.patience < 0:
        raise ValueError("calls must be at least 1, seconds positive, patience not negative")
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name,
        processes.sidecar(Path(name), "--log-level", "warning") as (address, _),
    ):
        tallies, recovered_after_s, ids = asyncio.run(_measure(address, config))
    result = Result(
        seconds={name: tally.seconds for name, tally in tallies.items() if tally.seconds},
        figures={
            "recalls of the flood refused": tallies["accepted"].refused.total(),
            "tries of the other resource refused": tallies["other"].refused.total(),
            "recalls accepted a second": len(tallies["accepted"].seconds) / config.seconds,
            "recovered_after_s": recovered_after_s,
        },
    )
    for series in ("accepted", "other", "after"):
        if series in result.seconds:
            ratio = result.p99_s(series) / result.p99_s("idle")
            result.bars.append(Bar(f"p99 {series} / p99 idle", ratio, LATENCY_RATIO_MAX))
    result.bars.append(Bar("seconds until recovery", recovered_after_s, RECOVERY_S_MAX))
    digest = Digest()
    digest.add(ids)
    result.digest = digest.text()
    return result


SMOKE = {"callers": 40, "connections": 4, "seconds": 1.0, "calls": 10}

if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke=SMOKE)
