"""What one call costs, beside what its parts cost in the same run: for the README.

Usage: python -m benchmarks.first_table [--messages 10000] [--calls 500] [--json FILE]

Series: raw embed, raw scan, echo, cold recall, warm recall, index of a turn. Measured twice:
in turns (one call of each after the other, as an agent's turn comes after other work) and in loops
(40 calls of each, so that a series finds the processor's caches as it left them). Noise of the
machine falls on all series alike. The ratio that counts, for both: cold recall p50 / (raw embed p50
+ raw scan p50 + echo p50). grpcio's synchronous client, with messages as Python objects.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc

from benchmarks import corpus, echo_server, processes, wire_requests
from benchmarks.measure import timed
from benchmarks.raw_parts import RawEmbed, RawScan
from benchmarks.report import Bar, Digest, Result, flag, run_script
from semanticrecall.v1 import recall_pb2, recall_pb2_grpc, types_pb2

RESOURCE = "bench-user"
COLD_RATIO_BAR = 1.35
WARM_UP_CALLS = 60
BLOCKS = {"turns": 1, "loops": 40}
PARTS = ("raw_embed", "raw_scan", "echo")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    messages: int = flag(10_000, "messages of the resource")
    calls: int = flag(500, "calls of each series")
    seed: int = flag(7, "of the synthetic chat")


def _turn(number: int, text: str) -> recall_pb2.IndexRequest:
    """A turn of another resource than is recalled, searchable when the answer comes."""
    return wire_requests.turn("bench-writer", number, text, types_pb2.WAIT_SEARCHABLE)


def _recall(query: str) -> recall_pb2.RecallRequest:
    return wire_requests.recall(RESOURCE, query)


@dataclass(frozen=True, slots=True)
class _Order:
    """All series in one order of calls."""

    name: str
    result: Result
    digest: Digest
    stub: recall_pb2_grpc.RecallServiceStub

    def add(self, series: str, call: Callable[[], T]) -> T:
        """Time one call; returns what it gave."""
        seconds, answer = timed(call)
        self.result.seconds.setdefault(f"{self.name}: {series}", []).append(seconds)
        return answer

    def measure(self, config: Config, directory: Path) -> None:
        """`BLOCKS[name]` of each series at a time."""
        step = BLOCKS[self.name]
        texts = corpus.queries(3 * config.calls + WARM_UP_CALLS, seed=config.seed + step)
        warm_up, cold = texts[:WARM_UP_CALLS], texts[WARM_UP_CALLS::3]
        raw, turns = texts[WARM_UP_CALLS + 1 :: 3], texts[WARM_UP_CALLS + 2 :: 3]
        embed, scan = RawEmbed(), RawScan(config.messages, seed=config.seed)
        answer_bytes = max(self.stub.Recall(_recall(query)).ByteSize() for query in warm_up)
        with (
            processes.echo(directory, answer_bytes) as address,
            grpc.insecure_channel(address) as channel,
        ):
            unary: Callable[..., bytes] = channel.unary_unary(echo_server.METHOD)
            for start in range(0, config.calls, step):
                block = range(start, min(start + step, config.calls))
                requests = [_recall(cold[number]) for number in block]
                vectors = [self.add("raw_embed", partial(embed, raw[number])) for number in block]
                for vector in vectors:
                    self.add("raw_scan", partial(scan, vector))
                for request in requests:
                    self.add("echo", partial(unary, request.SerializeToString()))
                for request in requests:
                    self.add("recall_cold", partial(self.stub.Recall, request))
                for request in requests:
                    answer = self.add("recall_warm", partial(self.stub.Recall, request))
                    self.digest.add(wire_requests.recalled_ids(answer))
                for number in block:
                    turn = _turn(step * config.calls + number, turns[number])
                    self.add("index_turn", partial(self.stub.Index, turn))


def _judge(result: Result) -> None:
    """Cold recall against its parts: in turns against the bar, in loops as a figure."""
    for name in BLOCKS:
        floor_s = sum(result.p50_s(f"{name}: {part}") for part in PARTS)
        ratio = result.p50_s(f"{name}: recall_cold") / floor_s
        title = f"cold p50 / (embed + scan + echo), in {name}"
        if name == "turns":
            result.bars.append(Bar(title, ratio, COLD_RATIO_BAR))
        else:
            result.figures[title] = ratio


def measure(config: Config) -> Result:
    """Run a sidecar of its own and measure."""
    result, digest = Result(), Digest()
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as directory,
        processes.sidecar(Path(directory), "--log-level", "warning") as (address, _),
        grpc.insecure_channel(address) as channel,
    ):
        stub = recall_pb2_grpc.RecallServiceStub(channel)
        requests = wire_requests.chat_imports(RESOURCE, config.messages, seed=config.seed)
        for answer in stub.IndexStream(requests):
            if answer.HasField("error"):
                raise RuntimeError(answer.error.message)
        for name in BLOCKS:
            _Order(name, result, digest, stub).measure(config, Path(directory))
    result.digest = digest.text()
    _judge(result)
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke={"messages": 120, "calls": 5})
