"""What a recall costs one caller, beside its parts: new queries, known ones, on an open stream.

Usage: python -m benchmarks.hot_path [--messages 10000] [--calls 500] [--json FILE]

One resource on a Unix socket. Each client of `raw_client` (grpcio's synchronous and its asyncio
interface, bytes in and out) measures both sides of its own ratios. Series of one turn, in order:

  raw_embed, raw_scan   the parts, in the client's process
  echo                  a unary call with the bytes of a recall
  echo_again            once more: as a warm recall, it finds its server awake
  echo_stream           the echo on an open stream
  cold                  a query never asked before
  warm                  asked again, nothing changed
  warm_stream           asked again on an open RecallStream, nothing changed
  warm_after_write      asked again after another message of the resource became searchable

Measured in turns (one of each after the other) and in loops (40 of each). The bars are judged in
turns (docs/decisions/0007); the p99 of cold recalls is compared with the parts' p50, since the p99
of each part by itself is no floor of anything.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import grpc

from benchmarks import corpus, echo_server, processes, wire_requests
from benchmarks.raw_client import CLIENTS, Client, connected
from benchmarks.raw_parts import RawEmbed, RawScan
from benchmarks.report import Bar, Digest, Result, flag, run_script
from semanticrecall.v1 import recall_pb2, recall_pb2_grpc

RESOURCE = "bench-user"
WARM_UP_CALLS = 60
BLOCKS = {"turns": 1, "loops": 40}
T = TypeVar("T")

COLD_P50_BAR, COLD_P99_BAR = 1.35, 3.0
WARM_BAR, STREAM_BAR, STREAM_TO_UNARY_BAR = 2.5, 2.0, 0.6


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    messages: int = flag(10_000, "messages of the resource")
    calls: int = flag(500, "calls of each series")
    seed: int = flag(7, "of the synthetic chat")


class _Turns:
    """One client's series in one order of calls."""

    def __init__(self, client: Client, result: Result, label: str, digest: Digest) -> None:
        self._client = client
        self._result = result
        self._label = label
        self._digest = digest

    async def timed(self, series: str, call: Awaitable[T]) -> T:
        started = time.perf_counter()
        answer = await call
        self.add(series, time.perf_counter() - started)
        return answer

    def add(self, series: str, seconds: float) -> None:
        self._result.seconds.setdefault(f"{self._label} {series}", []).append(seconds)

    async def block(self, parts: _Parts, queries: list[str], texts: list[str], tag: str) -> None:
        """One call of each series for each query; a series is done before the next begins."""
        client, echo = self._client, parts.echo
        requests = [wire_requests.recall(RESOURCE, q).SerializeToString() for q in queries]
        named = [
            wire_requests.recall(RESOURCE, q, f"{tag}-{i}").SerializeToString()
            for i, q in enumerate(queries)
        ]
        vectors = []
        for text in texts:
            started = time.perf_counter()
            vectors.append(parts.embed(text))
            self.add("raw_embed", time.perf_counter() - started)
        for vector in vectors:
            started = time.perf_counter()
            parts.scan(vector)
            self.add("raw_scan", time.perf_counter() - started)
        for series in ("echo", "echo_again"):
            for request in requests:
                await self.timed(series, echo.unary(echo_server.METHOD, request))
        for request in named:
            await self.timed("echo_stream", echo.on_stream(echo_server.STREAM_METHOD, request))
        cold = [
            await self.timed("cold", client.unary(wire_requests.RECALL, one)) for one in requests
        ]
        warm = [
            await self.timed("warm", client.unary(wire_requests.RECALL, one)) for one in requests
        ]
        stream = partial(client.on_stream, wire_requests.RECALL_STREAM)
        streamed = [await self.timed("warm_stream", stream(one)) for one in named]
        after = []
        for number, request in enumerate(requests):
            write = wire_requests.single(RESOURCE, f"{tag}-{number}", texts[number])
            await client.unary(wire_requests.INDEX, write.SerializeToString())
            recall = client.unary(wire_requests.RECALL, request)
            after.append(await self.timed("warm_after_write", recall))
        self._check((cold, warm, streamed), after)

    def _check(self, unchanged: tuple[list[bytes], ...], after_writes: list[bytes]) -> None:
        """The same query was answered alike each time that nothing had changed."""
        for answers in zip(*unchanged, strict=True):
            ids = [_ids(answer) for answer in answers]
            if any(one != ids[0] for one in ids):
                raise RuntimeError("the same query was answered differently")
            self._digest.add(ids[0])
        for answer in after_writes:
            self._digest.add(_ids(answer))


@dataclass(frozen=True, slots=True)
class _Parts:
    embed: RawEmbed
    scan: RawScan
    echo: Client


def _ids(answer: bytes) -> list[str]:
    return wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(answer))


async def _measure(
    config: Config, addresses: tuple[str, str], result: Result, digest: Digest
) -> None:
    """All clients and orders; `addresses` are the sidecar's and the echo's."""
    per_run = 2 * config.calls
    runs = [(kind, order) for kind in CLIENTS for order in BLOCKS]
    texts = corpus.queries(per_run * len(runs), seed=config.seed + 1)
    embed, scan = RawEmbed(), RawScan(config.messages, seed=config.seed)
    for number, (kind, order) in enumerate(runs):
        mine = texts[number * per_run : (number + 1) * per_run]
        queries, other = mine[::2], mine[1::2]
        async with connected(kind, addresses[0]) as client, connected(kind, addresses[1]) as echo:
            turns = _Turns(client, result, f"{kind} {order}", digest)
            parts = _Parts(embed, scan, echo)
            step = BLOCKS[order]
            for start in range(0, config.calls, step):
                block = slice(start, min(start + step, config.calls))
                tag = f"{kind}-{order}-{start}"
                await turns.block(parts, queries[block], other[block], tag)


def _import(address: str, config: Config) -> int:
    """Fill the resource, warm up; returns the bytes of a usual answer."""
    with grpc.insecure_channel(address) as channel:
        stub = recall_pb2_grpc.RecallServiceStub(channel)
        requests = wire_requests.chat_imports(RESOURCE, config.messages, seed=config.seed)
        for answer in stub.IndexStream(requests):
            if answer.HasField("error"):
                raise RuntimeError(answer.error.message)
        warm_up = corpus.queries(WARM_UP_CALLS, seed=config.seed)
        answers = [stub.Recall(wire_requests.recall(RESOURCE, query)) for query in warm_up]
        return round(median(answer.ByteSize() for answer in answers))


def _judge(result: Result) -> None:
    """The ratios of every client: in turns against the bars, in loops as figures."""
    for kind in CLIENTS:
        for order in BLOCKS:
            label = f"{kind} {order}"
            p50 = {
                name.removeprefix(f"{label} "): result.p50_s(name)
                for name in result.seconds
                if name.startswith(f"{label} ")
            }
            floor = p50["raw_embed"] + p50["raw_scan"] + p50["echo"]
            again, written = p50["warm"], p50["warm_after_write"]
            echo, streamed = p50["echo_again"], p50["warm_stream"]
            cold_p99 = result.p99_s(f"{label} cold")
            bars = [
                Bar("cold p50 / (embed + scan + echo)", p50["cold"] / floor, COLD_P50_BAR),
                Bar("cold p99 / p50 of (embed + scan + echo)", cold_p99 / floor, COLD_P99_BAR),
                Bar("warm p50 / echo", again / echo, WARM_BAR),
                Bar("warm after a write p50 / echo", written / echo, WARM_BAR),
                Bar("warm on a stream p50 / echo", streamed / p50["echo_stream"], STREAM_BAR),
                Bar("warm on a stream p50 / unary", streamed / again, STREAM_TO_UNARY_BAR),
            ]
            for bar in bars:
                named = Bar(f"{bar.name}, {kind} client in {order}", bar.measured, bar.limit)
                if order == "turns":
                    result.bars.append(named)
                else:
                    result.figures[named.name] = named.measured


def measure(config: Config) -> Result:
    """Run a sidecar of its own and measure."""
    result, digest = Result(), Digest()
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name,
        processes.sidecar(Path(name), "--log-level", "warning") as (address, _),
    ):
        answer_bytes = _import(address, config)
        with processes.echo(Path(name), answer_bytes) as echo_address:
            asyncio.run(_measure(config, (address, echo_address), result, digest))
    result.figures["bytes of an answer"] = answer_bytes
    result.digest = digest.text()
    _judge(result)
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke={"messages": 1_000, "calls": 100})
