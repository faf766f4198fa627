"""Turns indexed a second and how long each waits, by what the call waits for and by writers.

Usage: python -m benchmarks.index_ack [--writers 1,4,16,64] [--turns 960] [--rounds 3] [--json FILE]

Every writer is an agent at the end of its turns: one Index call of two new messages after the
other, in a resource of its own, on a Unix socket. All share one connection (grpcio's asyncio
client, bytes in and out) of a process that does nothing else, on the same cores. A call waits for:

  durable      the turn is on disk; it is embedded later, at the lowest priority
  searchable   it is found by a recall

Nothing is acknowledged earlier than durable. Points (what is waited for, writers) are visited in
rounds, so that a slow minute of the machine falls on all; each finds the sidecar with nothing left
to embed. All texts are distinct.

  p50_ms ...               from the request to its acknowledgement
  turns_per_s              acknowledged, from the first request to the last acknowledgement
  searchable_after_s       from the last acknowledgement until recalls with the read tokens of all
                           writers are answered; the median of the rounds
  searchable_turns_per_s   turns / (seconds until acknowledged + until searchable): what can be kept
                           up. A sidecar that is given turns quicker than that falls behind.
  processor_ms_per_turn    of the sidecar, until all turns are searchable

Checked: nothing is rejected; each writer's last turn is the first hit of its own text as soon as
the tokens say so; in the end the store holds as many messages and vectors as were acknowledged.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import corpus, processes, wire_requests
from benchmarks.axes import Numbers, numbers, say
from benchmarks.measure import Latency, processor_seconds
from benchmarks.raw_client import Client, connected
from benchmarks.raw_parts import DIMENSIONS
from benchmarks.report import Chart, Digest, Result, flag, run_script
from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2

WAITS = {"durable": types_pb2.WAIT_DURABLE, "searchable": types_pb2.WAIT_SEARCHABLE}
WRITERS_MAX = 256  # as many Index calls as a sidecar takes at once by default
WARM_UP_TURNS = 20
TURN_MESSAGES = 2
TABLE = "acknowledgements"


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    writers: Numbers = flag(  # noqa: RUF009
        Numbers((1, 4, 16, 64)), "writers at once, 1 to 256", numbers
    )
    turns: int = flag(960, "turns of each point in each round; rounded up to equal shares")
    rounds: int = flag(3, "rounds")
    seed: int = flag(7, "of texts")

    def turns_of_one(self, writers: int) -> int:
        """Turns of one of so many writers in a round."""
        return -(-self.turns // writers)


@dataclass(slots=True)
class Writer:
    """One writer in one round; `acknowledged_s` and `answers` are of its turns in order.

    Answers are decoded when all writers are done.
    """

    resource_id: str
    texts: list[str]
    wait: types_pb2.Wait
    acknowledged_s: list[float] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)

    async def write(self, client: Client) -> None:
        """All turns, one after the other."""
        requests = [
            wire_requests.turn(self.resource_id, number, text, self.wait).SerializeToString()
            for number, text in enumerate(self.texts)
        ]
        for request in requests:
            started = time.perf_counter()
            self.answers.append(await client.unary(wire_requests.INDEX, request))
            self.acknowledged_s.append(time.perf_counter() - started)

    async def wait_searchable(self, client: Client) -> None:
        """Ends when a recall finds all of it. No query is embedded for that."""
        vector = np.ones(DIMENSIONS, np.float32)
        request = wire_requests.recall_of_vector(self.resource_id, vector)
        request.read_token = recall_pb2.IndexResponse.FromString(self.answers[-1]).read_token
        await client.unary(wire_requests.RECALL, request.SerializeToString())

    def stored(self) -> Iterator[list[str]]:
        """The ids of each turn.

        Raises:
            RuntimeError: a message was rejected, or is not searchable where that was waited for.
        """
        for raw in self.answers:
            answer = recall_pb2.IndexResponse.FromString(raw)
            yield wire_requests.stored_ids(answer)
            if self.wait == types_pb2.WAIT_SEARCHABLE and any(
                one.status != types_pb2.STATUS_INDEXED for one in answer.results
            ):
                raise RuntimeError("a message was acknowledged before it was searchable")

    async def find_last(self, client: Client) -> list[str]:
        """Ids recalled with the last turn's words.

        Raises:
            RuntimeError: its message is not the first hit.
        """
        request = wire_requests.recall(self.resource_id, self.texts[-1])
        raw = await client.unary(wire_requests.RECALL, request.SerializeToString())
        answer = recall_pb2.RecallResponse.FromString(raw)
        first = [one.message.id for one in answer.messages if one.rank == 1]
        if first != [f"u{len(self.texts) - 1}"]:
            raise RuntimeError("an acknowledged turn is not found")
        return wire_requests.recalled_ids(answer)


@dataclass(frozen=True, slots=True)
class _Sidecar:
    """What is measured."""

    client: Client
    pid: int


@dataclass(slots=True)
class _Point:
    """What is waited for, by how many writers, and what came of it in all rounds.

    Attributes:
        seconds: of each round, until all turns were acknowledged.
        searchable_after_s: of each round, from then on.
        processor_s: of the sidecar, of all rounds together.
        ids: acknowledged, then recalled.
    """

    wait: str
    writers: int
    acknowledged_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    searchable_after_s: list[float] = field(default_factory=list)
    processor_s: float = 0.0
    ids: list[list[str]] = field(default_factory=list)

    async def measure(self, sidecar: _Sidecar, number: int, texts: Sequence[str]) -> None:
        """One round, with these texts."""
        client = sidecar.client
        writers = [
            Writer(
                f"{self.wait}-{self.writers}-{number}-{writer}",
                list(texts[writer :: self.writers]),
                WAITS[self.wait],
            )
            for writer in range(self.writers)
        ]
        processor_s = processor_seconds(sidecar.pid)
        started = time.perf_counter()
        await asyncio.gather(*(writer.write(client) for writer in writers))
        acknowledged = time.perf_counter()
        await asyncio.gather(*(writer.wait_searchable(client) for writer in writers))
        self.searchable_after_s.append(time.perf_counter() - acknowledged)
        self.seconds.append(acknowledged - started)
        self.processor_s += processor_seconds(sidecar.pid) - processor_s
        for writer in writers:
            self.acknowledged_s += writer.acknowledged_s
            self.ids += writer.stored()
            self.ids.append(await writer.find_last(client))

    def row(self) -> dict[str, float | str]:
        """Of the table."""
        latency = Latency.of_seconds(self.acknowledged_s)
        seconds = sum(self.seconds)
        return {
            "wait": self.wait,
            "writers": self.writers,
            "turns": latency.count,
            "turns_per_s": latency.count / seconds,
            "p50_ms": latency.p50_ms,
            "p95_ms": latency.p95_ms,
            "p99_ms": latency.p99_ms,
            "searchable_after_s": median(self.searchable_after_s),
            "searchable_turns_per_s": latency.count / (seconds + sum(self.searchable_after_s)),
            "processor_ms_per_turn": 1000 * self.processor_s / latency.count,
        }


def _points(config: Config) -> list[_Point]:
    if not all(1 <= writers <= WRITERS_MAX for writers in config.writers):
        raise ValueError(f"--writers must be 1 to {WRITERS_MAX}")
    if config.turns < 1 or config.rounds < 1:
        raise ValueError("--turns and --rounds must be at least 1")
    return [_Point(wait, writers) for wait in WAITS for writers in config.writers]


async def _stats(client: Client) -> admin_pb2.GetStatsResponse:
    """Of the whole store."""
    request = admin_pb2.GetStatsRequest().SerializeToString()
    raw = await client.unary(wire_requests.GET_STATS, request)
    return admin_pb2.GetStatsResponse.FromString(raw)


async def _measure_points(address: str, pid: int, config: Config, points: list[_Point]) -> int:
    """All rounds; returns how many messages the store then holds."""
    shares = {point.writers: config.turns_of_one(point.writers) for point in points}
    a_round = sum(point.writers * shares[point.writers] for point in points)
    turns = WARM_UP_TURNS + config.rounds * a_round
    texts = iter(corpus.queries(turns, seed=config.seed))
    order = list(points)
    async with connected("aio", address) as client:
        warm_up = Writer("warm-up", list(islice(texts, WARM_UP_TURNS)), types_pb2.WAIT_SEARCHABLE)
        await warm_up.write(client)
        for number in range(config.rounds):
            say(f"round {number + 1} of {config.rounds}: {a_round} turns")
            for point in order:
                mine = list(islice(texts, point.writers * shares[point.writers]))
                await point.measure(_Sidecar(client, pid), number, mine)
            order.append(order.pop(0))
        stats = await _stats(client)
    expected = TURN_MESSAGES * turns
    if (stats.messages, stats.vectors, stats.pending) != (expected, expected, 0):
        raise RuntimeError("the store does not hold what was acknowledged")
    return stats.messages


def _charts() -> list[Chart]:
    def by_writers(name: str, title: str, y: str, y_label: str) -> Chart:
        return Chart(
            name=f"index-{name}-by-writers",
            title=title,
            table=TABLE,
            x="writers",
            y=y,
            by=("wait",),
            x_label="writers",
            y_label=y_label,
            x_log=True,
            y_log=True,
        )

    return [
        by_writers("ack-p50", "A turn's acknowledgement, p50", "p50_ms", "p50, ms"),
        by_writers("turns", "Turns acknowledged a second", "turns_per_s", "turns/s"),
        by_writers(
            "searchable-turns",
            "Turns a second until all are searchable",
            "searchable_turns_per_s",
            "turns/s",
        ),
    ]


def measure(config: Config) -> Result:
    """Run a sidecar of its own and measure.

    Raises:
        ValueError: the configuration is out of range.
    """
    points = _points(config)
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name,
        processes.sidecar(Path(name), "--log-level", "warning") as (address, pid),
    ):
        messages = asyncio.run(_measure_points(address, pid, config, points))
    digest = Digest()
    for point in points:
        for ids in point.ids:
            digest.add(ids)
    return Result(
        figures={"messages stored and searchable in the end": messages},
        tables={TABLE: [point.row() for point in points]},
        charts=_charts(),
        digest=digest.text(),
    )


SMOKE = {"writers": Numbers((1, 5)), "turns": 24, "rounds": 2}

if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke=SMOKE)
