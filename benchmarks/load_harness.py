"""What `semanticrecall load` itself adds, beside a bare gRPC loop against the same server.

Usage: python -m benchmarks.load_harness [--rounds 9] [--calls 2000] [--json FILE]

The server answers every Recall with the same bytes (`echo_server`), so that what is measured is the
client. Closed loop: with 1 and with 16 calls in flight, the load tool's sender and a bare loop of
grpc.aio send the same requests from one event loop, in turns; each has a connection of its own. In
each round the p50 of one is divided by that of the other; medians of the rounds are judged. The
sender also reads every answer, counts it second by second and writes the next request, which the
bare loop does not: that costs calls a second (a figure), and must not cost latency (the bar).

Open loop: the whole tool, as a user runs it, with 1,000 scheduled calls a second. Whether it kept
its schedule, how late its calls were by its own fault, and what it says where it could not.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc.aio

from benchmarks import processes
from benchmarks.axes import say
from benchmarks.echo_server import HITS, RECALL
from benchmarks.measure import Latency
from benchmarks.report import Bar, Chart, Digest, Result, flag, run_script
from semanticrecall.connection import connection
from semanticrecall.load.adding_up import stage_result
from semanticrecall.load.plan import Arrivals, LoadPlan, Loop, Stage, Workload
from semanticrecall.load.result import FindingCode, LoadResult, StageResult
from semanticrecall.load.run import Observer, run_load
from semanticrecall.load.sending import Sender, StageTask, event_loop
from semanticrecall.load.workload import CallSequence

P50_BAR = 1.10
DEVIATION_BAR = 0.01
IN_FLIGHT = (1, 16)
RATE_PER_S = 1_000.0
TIMEOUT_S = 10.0
STAGE_SECONDS_MAX = 120.0
# The answer that both are for: `echo_server` itself is asked with its own method elsewhere.
ANSWER_BYTES = 1
WORKLOAD = Workload(recall_share=1.0, existing_resources=("user",), query_repeat_share=0.2)


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    rounds: int = flag(9, "rounds of both loops, for each number of calls in flight")
    calls: int = flag(2_000, "calls of each loop in each round")
    seconds: float = flag(10.0, "of the open loop", float)


@dataclass(frozen=True, slots=True)
class Block:
    """So many calls of one of the loops."""

    latencies: Latency
    calls_per_s: float


class BareLoop:
    """So many callers on one connection, each calling again when it is answered; no more."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            RECALL
        )
        self._bodies = itertools.cycle(
            [call.body for call in itertools.islice(CallSequence(WORKLOAD, 0, 1), 4_096)]
        )

    async def run(self, in_flight: int, calls: int) -> Block:
        """Send so many calls."""
        seconds: list[float] = []
        left = itertools.repeat(None, calls)

        async def caller() -> None:
            for _ in left:
                body = next(self._bodies)
                sent = time.monotonic()
                await self._method(body, timeout=TIMEOUT_S)
                seconds.append(time.monotonic() - sent)

        begun = time.monotonic()
        await asyncio.gather(*(caller() for _ in range(in_flight)))
        return Block(Latency.of_seconds(seconds), calls / (time.monotonic() - begun))

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()


class LoadLoop:
    """The same, sent by the load tool's sender; `digest` is told of the ids recalled."""

    def __init__(self, address: str, digest: Digest) -> None:
        self._digest = digest
        self._plan = plan_of(address, loop=Loop.CLOSED, stages=(Stage(in_flight=1),))
        self._sender = Sender(self._plan, 0, 1)

    async def open(self) -> None:
        """Connect."""
        await self._sender.open()

    async def run(self, in_flight: int, calls: int) -> Block:
        """Send so many calls.

        Raises:
            RuntimeError: a call failed, or an answer was not as the server gives it.
        """
        stage = Stage(in_flight=in_flight, duration_s=STAGE_SECONDS_MAX)
        task = StageTask(
            stage=stage, number=0, worker=0, workers=1, calls_max=calls, drain_s=TIMEOUT_S
        )
        begun = time.monotonic()
        part = await self._sender.run(task, lambda second: None)
        seconds = time.monotonic() - begun
        result = stage_result(Loop.CLOSED, stage, [part])
        check(result, calls)
        self._digest.add([result.answers_digest])
        found = result.operations["recall"].service_ms
        return Block(Latency(found.count, found.p50, found.p95, found.p99), calls / seconds)

    async def close(self) -> None:
        """End the connection."""
        await self._sender.close()


def plan_of(address: str, *, loop: Loop, stages: tuple[Stage, ...]) -> LoadPlan:
    """A load that only recalls, on the server at this address."""
    return LoadPlan(
        connection=connection(address, {"token": ""}),
        workload=WORKLOAD,
        loop=loop,
        arrivals=Arrivals.POISSON,
        stages=stages,
        warm_up_s=2.0,
        timeout_ms=round(TIMEOUT_S * 1000),
    )


def check(result: StageResult, calls: int) -> None:
    """Raises RuntimeError where a call failed or was given up, or an answer was another one."""
    recall = result.operations["recall"]
    if recall.ok != calls or result.unfinished or recall.counts["hits"] != HITS * calls:
        raise RuntimeError(f"{recall.ok} of {calls} calls were answered as the server answers")


async def measure_closed(address: str, config: Config, result: Result, digest: Digest) -> None:
    """Both loops in turns."""
    bare, load = BareLoop(address), LoadLoop(address, digest)
    rows = result.tables.setdefault("rounds", [])
    try:
        await load.open()
        for in_flight in IN_FLIGHT:
            for loop in (bare, load):  # connections are made, code is warm
                await loop.run(in_flight, max(in_flight, config.calls // 10))
            for number in range(config.rounds):
                first = number % 2 == 0
                order = (bare, load) if first else (load, bare)
                blocks = [await loop.run(in_flight, config.calls) for loop in order]
                of_bare, of_load = blocks if first else reversed(blocks)
                rows += [
                    _row(number + 1, in_flight, "bare gRPC loop", of_bare),
                    _row(number + 1, in_flight, "semanticrecall load", of_load),
                ]
            _judge(in_flight, result)
    finally:
        await load.close()
        await bare.close()


def _row(number: int, in_flight: int, sender: str, block: Block) -> dict[str, object]:
    return {
        "round": number,
        "in flight": in_flight,
        "sender": sender,
        "p50 ms": block.latencies.p50_ms,
        "p99 ms": block.latencies.p99_ms,
        "calls/s": block.calls_per_s,
    }


def _judge(in_flight: int, result: Result) -> None:
    rows = [row for row in result.tables["rounds"] if row["in flight"] == in_flight]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    for column in ("p50 ms", "p99 ms", "calls/s"):
        ratio = median(load[column] / bare[column] for bare, load in pairs)
        result.figures[f"{in_flight} in flight: {column}, load / bare"] = ratio
        if column == "p50 ms":
            name = f"p50 of the load tool / bare gRPC loop, {in_flight} in flight"
            result.bars.append(Bar(name, ratio, P50_BAR))
    for who, rows_of in zip(("bare", "load"), zip(*pairs, strict=True), strict=True):
        result.figures[f"{in_flight} in flight: p50 ms, {who}"] = median(
            row["p50 ms"] for row in rows_of
        )


def report_open(found: LoadResult, result: Result) -> None:
    """What came of the open loop.

    Raises:
        RuntimeError: the schedule was not kept, and the load tool does not say so.
    """
    (stage,) = found.stages
    schedule = stage.schedule
    if schedule is None:
        raise RuntimeError("an open loop has a schedule")
    late, own = schedule.lateness_ms, schedule.client_lateness_ms
    result.figures |= {
        "open loop: scheduled calls/s": schedule.scheduled_per_s,
        "open loop: sent in time, calls/s": schedule.started_per_s,
        "open loop: deviation": schedule.deviation_share,
        "open loop: sent late, p50 ms": late.p50,
        "open loop: sent late, p99 ms": late.p99,
        "open loop: sent late by itself, p50 ms": own.p50,
        "open loop: sent late by itself, p99 ms": own.p99,
        "open loop: sent late by itself, p99.9 ms": own.p99_9,
        "open loop: sent late by itself, max ms": own.max,
        "open loop: p50 ms": stage.operations["recall"].latency_ms.p50,
        "open loop: p99 ms": stage.operations["recall"].latency_ms.p99,
        "open loop: sending processes": stage.client.processes,
        "open loop: most CPU of one, cores": max(stage.client.cpu_shares),
    }
    codes = [finding.code for finding in found.findings]
    if (FindingCode.SCHEDULE_NOT_KEPT in codes) is not (schedule.deviation_share > DEVIATION_BAR):
        raise RuntimeError("the load tool does not say whether it kept its schedule")
    result.tables["findings of the open loop"] = [
        {"code": finding.code.value, "text": finding.text} for finding in found.findings
    ]
    name = f"|scheduled - sent in time| / scheduled, {RATE_PER_S:,.0f} calls/s"
    result.bars.append(Bar(name, abs(schedule.deviation_share), DEVIATION_BAR))


def measure(config: Config) -> Result:
    """Both loops, against one server after the other."""
    result = Result(
        charts=[
            Chart(
                name="load_harness",
                title="A bare gRPC loop and the load tool, round by round",
                table="rounds",
                x="round",
                y="p50 ms",
                by=("sender", "in flight"),
                x_label="round",
                y_label="p50, ms",
            )
        ]
    )
    digest = Digest()
    with (
        tempfile.TemporaryDirectory() as name,
        processes.echo(Path(name), ANSWER_BYTES) as address,
    ):
        say("closed loop: bare gRPC and the load tool in turns")
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(measure_closed(address, config, result, digest))
        say(f"open loop: {RATE_PER_S:g} calls/s for {config.seconds:g} s")
        stage = Stage(rate_per_s=RATE_PER_S, duration_s=config.seconds)
        plan = plan_of(address, loop=Loop.OPEN, stages=(stage,))
        report_open(run_load(plan, "", Observer()), result)
    result.digest = digest.text()
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke={"rounds": 2, "calls": 100, "seconds": 2.0})
