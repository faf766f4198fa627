"""The README's first table: what one call costs, beside what its parts cost in the same run.

Usage: python -m benchmarks.first_table [--messages 10000] [--calls 500] [--json FILE]

Series: raw embed, raw scan, echo, cold recall, warm recall, index of a turn. Measured twice:
in turns (one call of each after the other, as an agent's turn comes after other work) and in loops
(40 calls of each, so that a series finds the processor's caches as it left them). Noise of the
machine falls on all series alike. The ratio that counts, for both: cold recall p50 / (raw embed p50
+ raw scan p50 + echo p50).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import grpc

from benchmarks import corpus, echo_server, processes, wire_requests
from benchmarks.measure import Latency, machine, resident_bytes, timed
from benchmarks.raw_parts import RawEmbed, RawScan
from semanticrecall.v1 import recall_pb2, recall_pb2_grpc, types_pb2

RESOURCE = "bench-user"
COLD_RATIO_BAR = 1.35
WARM_UP_CALLS = 60
BLOCKS = {"in_turns": 1, "in_loops": 40}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured; printed with every result."""

    messages: int
    calls: int
    top_k: int = 4
    message_range: str = "1/1"
    seed: int = 7
    socket: str = "unix"
    callers: int = 1


@dataclass(slots=True)
class Series:
    """Seconds of every call, by what was called."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, call: Callable[[], T]) -> T:
        """Time one call; returns what it gave."""
        seconds, answer = timed(call)
        self.seconds.setdefault(name, []).append(seconds)
        return answer

    def latencies(self) -> dict[str, Latency]:
        """Percentiles of each."""
        return {name: Latency.of_seconds(seconds) for name, seconds in self.seconds.items()}


def _turn(number: int, text: str) -> recall_pb2.IndexRequest:
    """A turn of another resource than is recalled, searchable when the answer comes."""
    return wire_requests.turn("bench-writer", number, text, types_pb2.WAIT_SEARCHABLE)


def _recall(query: str) -> recall_pb2.RecallRequest:
    return wire_requests.recall(RESOURCE, query)


def _measure(
    config: Config, stub: recall_pb2_grpc.RecallServiceStub, directory: Path, block_calls: int
) -> tuple[Series, str]:
    """All series, `block_calls` of each at a time, and a digest of what was recalled."""
    series = Series()
    texts = corpus.queries(3 * config.calls + WARM_UP_CALLS, seed=config.seed + block_calls)
    warm_up, cold = texts[:WARM_UP_CALLS], texts[WARM_UP_CALLS::3]
    raw, turns = texts[WARM_UP_CALLS + 1 :: 3], texts[WARM_UP_CALLS + 2 :: 3]
    embed, scan = RawEmbed(), RawScan(config.messages, seed=config.seed)
    answer_bytes = max(stub.Recall(_recall(query)).ByteSize() for query in warm_up)
    digest = hashlib.sha256()
    with processes.echo(directory, answer_bytes) as address, grpc.insecure_channel(address) as ch:
        unary: Callable[..., bytes] = ch.unary_unary(echo_server.METHOD)
        for start in range(0, config.calls, block_calls):
            block = range(start, min(start + block_calls, config.calls))
            requests = [_recall(cold[number]) for number in block]
            vectors = [series.add("raw_embed", partial(embed, raw[number])) for number in block]
            for vector in vectors:
                series.add("raw_scan", partial(scan, vector))
            for request in requests:
                series.add("echo", partial(unary, request.SerializeToString()))
            for request in requests:
                series.add("recall_cold", partial(stub.Recall, request))
            for request in requests:
                answer = series.add("recall_warm", partial(stub.Recall, request))
                digest.update("|".join(m.message.id for m in answer.messages).encode())
            for number in block:
                turn = _turn(block_calls * config.calls + number, turns[number])
                series.add("index_turn", partial(stub.Index, turn))
    return series, digest.hexdigest()[:16]


def _account(series: Series, digest: str) -> dict[str, object]:
    latencies = series.latencies()
    floor_ms = sum(latencies[part].p50_ms for part in ("raw_embed", "raw_scan", "echo"))
    return {
        "latencies_ms": {name: asdict(latency) for name, latency in latencies.items()},
        "cold_floor_p50_ms": floor_ms,
        "cold_ratio_p50": latencies["recall_cold"].p50_ms / floor_ms,
        "answers_digest": digest,
    }


def run(config: Config) -> dict[str, Any]:
    """Measure; returns what is printed and written as JSON."""
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as directory,
        processes.sidecar(Path(directory), "--log-level", "warning") as (address, pid),
        grpc.insecure_channel(address) as channel,
    ):
        stub = recall_pb2_grpc.RecallServiceStub(channel)
        stub.Recall(_recall("warm up"))
        before = resident_bytes(pid)
        started = time.perf_counter()
        requests = wire_requests.chat_imports(RESOURCE, config.messages, seed=config.seed)
        for answer in stub.IndexStream(requests):
            if answer.HasField("error"):
                raise RuntimeError(answer.error.message)
        import_seconds = time.perf_counter() - started
        measured = {
            name: _account(*_measure(config, stub, Path(directory), block_calls))
            for name, block_calls in BLOCKS.items()
        }
        resident = resident_bytes(pid) - before
    return {
        "machine": machine(),
        "versions": {
            name: version(name) for name in ("grpcio", "protobuf", "faiss-cpu", "onnxruntime")
        },
        "config": asdict(config),
        "cold_ratio_bar": COLD_RATIO_BAR,
        "import_messages_per_second": config.messages / import_seconds,
        "resident_bytes_per_message": resident / config.messages,
        **measured,
    }


def _print(result: dict[str, Any]) -> None:
    print(json.dumps(result, indent=2))
    for name in BLOCKS:
        measured = result[name]
        print(f"\n{name:<16}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}")
        for series, latency in measured["latencies_ms"].items():
            figures = (latency["p50_ms"], latency["p95_ms"], latency["p99_ms"])
            print(f"  {series:<14}" + "".join(f"{figure:>9.3f}" for figure in figures))
        ratio = measured["cold_ratio_p50"]
        print(f"  cold recall / (embed + scan + echo), p50: {ratio:.2f} (bar {COLD_RATIO_BAR})")


def _markdown(result: dict[str, Any]) -> str:
    """The README's table."""
    turns = result["in_turns"]
    rows = [
        ("cold recall (new query)", "recall_cold"),
        ("warm recall (asked again, nothing changed)", "recall_warm"),
        ("index of a two-message turn, searchable", "index_turn"),
        ("its parts: one embedding", "raw_embed"),
        ("its parts: one int8 scan", "raw_scan"),
        ("its parts: one gRPC echo", "echo"),
    ]
    lines = ["| | p50 | p99 |", "|---|---|---|"]
    for title, name in rows:
        latency = turns["latencies_ms"][name]
        lines.append(f"| {title} | {latency['p50_ms']:.1f} ms | {latency['p99_ms']:.1f} ms |")
    lines += [
        f"| cold recall / sum of its parts, in turns (in loops) | {turns['cold_ratio_p50']:.2f} "
        f"({result['in_loops']['cold_ratio_p50']:.2f}) | |",
        f"| bulk import of new text | {result['import_messages_per_second']:.0f} messages/s | |",
        "| resident memory a message, embedding cache included | "
        f"{result['resident_bytes_per_message'] / 1000:.1f} kB | |",
    ]
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    result = run(Config(arguments.messages, arguments.calls))
    _print(result)
    print(f"\n{_markdown(result)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
