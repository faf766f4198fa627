"""What the two caches do for an agent's recalls, by their size, under replayed conversations.

Usage: python -m benchmarks.query_cache [--cache-bytes 0,65536,1048576,67108864]
           [--answer-cache-bytes 0,16777216] [--conversations FILE] [--json FILE]

What is replayed: see `replay`. Without a file the conversations are made up. Every combination of
sizes has a sidecar with an empty store of its own:

  cache_bytes         --cache-bytes-max: vectors of queries and messages, in memory
  answer_cache_bytes  --answer-cache-bytes-max: whole answers, each until its user's next Index

The cache on disk is off (--cache-disk-bytes-max 0) in all of them: with it, what the memory does
not hold would be found there. All sidecars get the same calls, 100 at a time one after the other,
in turns, so that a slow minute of the machine falls on all. One call at a time, grpcio's
synchronous client, Unix sockets; an Index answers when its turn is searchable.

Latencies have two peaks, of hits and of the rest, and the median of all jumps from one to the other
where half of the recalls are hits: the charts show the mean.

A recall is a hit of the answers, else a hit of the queries, else its query is embedded. What was
possible is worked out from the replay alone: a cache without bounds could have known the query if
the same user had asked, said or been told the same text before. A hit beyond that is an error, and
so is an answer that differs from that of another sidecar.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import corpus, processes, replay, wire_requests
from benchmarks.axes import Numbers, numbers, say
from benchmarks.measure import Latency
from benchmarks.raw_client import Client, connected
from benchmarks.report import Chart, Digest, Result, flag, run_script
from semanticrecall.v1 import recall_pb2, types_pb2

BLOCK_CALLS = 100
BLOCKS_BETWEEN_LINES = 10
THREAD_TURNS = 20
SIDECARS_MAX = 24
ANSWER_HIT, QUERY_HIT, MISS = "answer_hit", "query_hit", "miss"
TABLE = "caches"
KIB = 1024


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    cache_bytes: Numbers = flag(  # noqa: RUF009
        Numbers((0, 64 * KIB, KIB**2, 64 * KIB**2)), "sizes of the embedding cache", numbers
    )
    answer_cache_bytes: Numbers = flag(  # noqa: RUF009
        Numbers((0, 16 * KIB**2)), "sizes of the answer cache", numbers
    )
    conversations: Path | None = flag(  # noqa: RUF009
        None, "file to replay; see benchmarks/conversations.py", Path
    )
    users: int = flag(24, "users of made-up conversations")
    turns: int = flag(1_000, "turns of all users together, at most")
    model_calls: int = flag(2, "recalls in each turn")
    zipf_exponent: float = flag(1.0, "how unevenly users speak; 0: evenly", float)
    repeat_share: float = flag(0.2, "of turns that ask again what the user asked before", float)
    seed: int = flag(7, "of texts and of the order of calls")

    @property
    def manner(self) -> replay.Manner:
        """How the conversations are replayed."""
        return replay.Manner(
            self.turns, self.model_calls, self.zipf_exponent, self.repeat_share, self.seed
        )


def _request(call: replay.Call) -> tuple[str, bytes]:
    """Method and request."""
    if not call.is_index:
        request = wire_requests.recall(call.user, call.said.text)
        return wire_requests.RECALL, request.SerializeToString()
    thread = f"thread-{call.turn // THREAD_TURNS}"
    said = (
        corpus.ChatMessage(f"u{call.turn}", thread, True, call.said.text),
        corpus.ChatMessage(f"a{call.turn}", thread, False, call.said.reply),
    )
    turn = recall_pb2.IndexRequest(
        resource_id=call.user, messages=[wire_requests.message(one) for one in said]
    )
    return wire_requests.INDEX, turn.SerializeToString()


@dataclass(slots=True)
class Point:
    """One combination of sizes, and what its sidecar answered.

    Attributes:
        seconds: of recalls, by how they were answered.
        ids: of every recall's answer, in order.
        indexed, indexed_cached: vectors that messages needed, and those the cache had.
    """

    cache_bytes: int
    answer_cache_bytes: int
    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {ANSWER_HIT: [], QUERY_HIT: [], MISS: []}
    )
    ids: list[list[str]] = field(default_factory=list)
    indexed: int = 0
    indexed_cached: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """Of the sidecar."""
        return (
            *("--log-level", "warning", "--cache-disk-bytes-max", "0"),
            *("--cache-bytes-max", str(self.cache_bytes)),
            *("--answer-cache-bytes-max", str(self.answer_cache_bytes)),
        )

    def recalled(self, raw: bytes, seconds: float, could_be: replay.Possible) -> None:
        """Count one recall.

        Raises:
            RuntimeError: it was a hit and cannot have been one.
        """
        answer = recall_pb2.RecallResponse.FromString(raw)
        self.ids.append(wire_requests.recalled_ids(answer))
        info = answer.info
        kind = ANSWER_HIT if info.answer_cache_hit else QUERY_HIT if info.cache_hit else MISS
        # A text beyond the model's window is known by its beginning.
        if kind == QUERY_HIT and not could_be.vector and not info.query_truncated:
            raise RuntimeError("a query was known that its user has never asked or said")
        if kind == ANSWER_HIT and not could_be.answer:
            raise RuntimeError("an answer was given again after its user's next turn")
        self.seconds[kind].append(seconds)

    def turn_indexed(self, raw: bytes) -> None:
        """Count one Index.

        Raises:
            RuntimeError: a message is not searchable.
        """
        answer = recall_pb2.IndexResponse.FromString(raw)
        if any(one.status != types_pb2.STATUS_INDEXED for one in answer.results):
            raise RuntimeError("a message was not indexed")
        self.indexed_cached += answer.info.embeddings_cached
        self.indexed += answer.info.embeddings_cached + answer.info.embeddings_computed

    async def send(
        self, client: Client, calls: Sequence[replay.Call], could_be: Sequence[replay.Possible]
    ) -> None:
        """Some calls in order; `could_be` of all recalls there are."""
        for call in calls:
            method, request = _request(call)
            started = time.perf_counter()
            raw = await client.unary(method, request)
            seconds = time.perf_counter() - started
            if call.is_index:
                self.turn_indexed(raw)
            else:
                self.recalled(raw, seconds, could_be[len(self.ids)])

    def row(self, could_be: Sequence[replay.Possible]) -> dict[str, float | str | None]:
        """Of the table."""
        recalls = len(self.ids)
        hits = len(self.seconds[ANSWER_HIT]), len(self.seconds[QUERY_HIT])
        every = [seconds for kind in self.seconds.values() for seconds in kind]
        return {
            "cache": _size(self.cache_bytes),
            "answer_cache": _size(self.answer_cache_bytes),
            "cache_bytes": self.cache_bytes,
            "answer_cache_bytes": self.answer_cache_bytes,
            "recalls": recalls,
            "answer_cache_hit_share": hits[0] / recalls,
            "query_cache_hit_share": hits[1] / recalls,
            "hit_share": sum(hits) / recalls,
            "possible_hit_share": sum(one.vector for one in could_be) / recalls,
            "possible_answer_hit_share": sum(one.answer for one in could_be) / recalls,
            "index_cached_share": self.indexed_cached / self.indexed,
            "mean_ms": 1000 * sum(every) / recalls,
            "p50_ms": _p50_ms(every),
            "p50_answer_hit_ms": _p50_ms(self.seconds[ANSWER_HIT]),
            "p50_query_hit_ms": _p50_ms(self.seconds[QUERY_HIT]),
            "p50_miss_ms": _p50_ms(self.seconds[MISS]),
        }


def _p50_ms(seconds: Sequence[float]) -> float | None:
    return Latency.of_seconds(seconds).p50_ms if seconds else None


def _size(size_bytes: int) -> str:
    """For people: 0, 100 B, 64 KiB, 1 MiB."""
    for unit, name in ((KIB**2, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B" if size_bytes else "0"


async def _replay(
    points: list[Point],
    addresses: list[str],
    calls: Sequence[replay.Call],
    could_be: Sequence[replay.Possible],
) -> None:
    """The same calls to every sidecar, block by block; who is first changes with every block."""
    async with AsyncExitStack() as connections:
        clients = [
            await connections.enter_async_context(connected("sync", address))
            for address in addresses
        ]
        pairs = list(zip(points, clients, strict=True))
        for number, start in enumerate(range(0, len(calls), BLOCK_CALLS)):
            if number % BLOCKS_BETWEEN_LINES == 0:
                say(f"call {start} of {len(calls)}")
            for point, client in pairs:
                await point.send(client, calls[start : start + BLOCK_CALLS], could_be)
            pairs.append(pairs.pop(0))


def _charts() -> list[Chart]:
    shares = Chart(
        name="query-cache-hit-share",
        title="Recalls that embed nothing, by size of the two caches",
        table=TABLE,
        x="cache",
        y="hit_share",
        by=("answer_cache",),
        x_label="embedding cache",
        y_label="share of recalls",
        kind="bar",
    )
    mean = Chart(
        name="query-cache-mean",
        title="A recall, mean, by size of the two caches",
        table=TABLE,
        x="cache",
        y="mean_ms",
        by=("answer_cache",),
        x_label="embedding cache",
        y_label="mean, ms",
        kind="bar",
    )
    return [shares, mean]


def _measure_points(
    points: list[Point], calls: Sequence[replay.Call], could_be: Sequence[replay.Possible]
) -> None:
    with ExitStack() as running:
        addresses = []
        for point in points:
            name = running.enter_context(
                tempfile.TemporaryDirectory(prefix="semanticrecall-bench-")
            )
            sidecar = processes.sidecar(Path(name), *point.flags)
            addresses.append(running.enter_context(sidecar)[0])
        asyncio.run(_replay(points, addresses, calls, could_be))
    for point in points[1:]:
        if point.ids != points[0].ids:
            raise RuntimeError("caches of another size give other answers")


def measure(config: Config) -> Result:
    """Run the sidecars and measure.

    Raises:
        ValueError: the configuration is out of range.
    """
    points = [
        Point(size, answer_size)
        for answer_size in config.answer_cache_bytes
        for size in config.cache_bytes
    ]
    if len(points) > SIDECARS_MAX:
        raise ValueError(f"at most {SIDECARS_MAX} combinations of sizes")
    if config.conversations is None:
        conversations = replay.made_up(config.users, config.turns, seed=config.seed)
    else:
        conversations = replay.read(config.conversations)
    calls = replay.calls(conversations, config.manner)
    could_be = replay.possible(calls)
    say(f"{len(calls)} calls of {len(conversations)} users, {len(points)} sidecars")
    _measure_points(points, calls, could_be)
    digest = Digest()
    for ids in points[0].ids:
        digest.add(ids)
    turns = sum(call.is_index for call in calls)
    return Result(
        figures={
            "users that spoke": len({call.user for call in calls}),
            "turns": turns,
            "recalls": len(could_be),
            "texts": len({(c.user, t) for c in calls for t in (c.said.text, c.said.reply)}),
        },
        tables={TABLE: [point.row(could_be) for point in points]},
        charts=_charts(),
        digest=digest.text(),
    )


SMOKE = {
    "cache_bytes": Numbers((64 * KIB, 64 * KIB**2)),
    "users": 5,
    "turns": 60,
}

if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke=SMOKE)
