"""The README's first table: what one call costs, beside what its parts cost in the same run.

Usage: python -m benchmarks.first_table [--messages 10000] [--rounds 10] [--calls 50] [--json FILE]

Every round takes `calls` of each series in turn (raw embed, raw scan, echo, cold recall, warm
recall, index of a turn), so that noise of the machine falls on all alike. The ratio that counts:
cold recall p50 / (raw embed p50 + raw scan p50 + echo p50).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import grpc

from benchmarks import corpus, echo_server, processes
from benchmarks.measure import Latency, machine, resident_bytes, timed
from benchmarks.raw_parts import RawEmbed, RawScan
from semanticrecall.v1 import recall_pb2, recall_pb2_grpc, types_pb2

RESOURCE = "bench-user"
COLD_RATIO_BAR = 1.6
IMPORT_BATCH_MESSAGES = 100


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured; printed with every result."""

    messages: int
    rounds: int
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

    def add(self, name: str, call: Callable[[], object]) -> None:
        """Time one call."""
        self.seconds.setdefault(name, []).append(timed(call))

    def latencies(self) -> dict[str, Latency]:
        """Percentiles of each."""
        return {name: Latency.of_seconds(seconds) for name, seconds in self.seconds.items()}


def _import_requests(config: Config) -> Iterator[recall_pb2.IndexRequest]:
    batch: list[types_pb2.Message] = []
    for message in corpus.chat(config.messages, seed=config.seed):
        role = types_pb2.ROLE_USER if message.from_user else types_pb2.ROLE_ASSISTANT
        batch.append(
            types_pb2.Message(
                id=message.id, thread_id=message.thread_id, role=role, text=message.text
            )
        )
        if len(batch) == IMPORT_BATCH_MESSAGES:
            yield recall_pb2.IndexRequest(resource_id=RESOURCE, messages=batch)
            batch = []
    if batch:
        yield recall_pb2.IndexRequest(resource_id=RESOURCE, messages=batch)


def _turn(number: int, text: str) -> recall_pb2.IndexRequest:
    """A turn of a user's and an assistant's message, of another resource than is recalled."""
    return recall_pb2.IndexRequest(
        resource_id="bench-writer",
        thread_id=f"turns-{number // 20}",
        messages=[
            types_pb2.Message(id=f"u{number}", role=types_pb2.ROLE_USER, text=text),
            types_pb2.Message(
                id=f"a{number}", role=types_pb2.ROLE_ASSISTANT, text=f"I noted that {text}"
            ),
        ],
    )


def _recall(query: str) -> recall_pb2.RecallRequest:
    return recall_pb2.RecallRequest(resource_id=RESOURCE, query=query, top_k=4)


def _measure(
    config: Config, stub: recall_pb2_grpc.RecallServiceStub, directory: Path
) -> tuple[Series, str]:
    """All series of all rounds, and a digest of what was recalled."""
    series = Series()
    count = config.rounds * config.calls
    texts = corpus.queries(3 * count + 64, seed=config.seed + 1)
    cold, raw, turns, warm_up = texts[:count], texts[count : 2 * count], texts[2 * count :], 20
    embed, scan = RawEmbed(), RawScan(config.messages, seed=config.seed)
    for query in texts[-warm_up:]:
        answer = stub.Recall(_recall(query))
    digest = hashlib.sha256()
    answer_bytes = answer.ByteSize()
    with processes.echo(directory, answer_bytes) as address, grpc.insecure_channel(address) as ch:
        unary = ch.unary_unary(echo_server.METHOD)
        request = _recall(cold[0]).SerializeToString()
        for _ in range(warm_up):
            unary(request)
        for i in range(config.rounds):
            part = slice(i * config.calls, (i + 1) * config.calls)
            for query in raw[part]:
                series.add("raw_embed", lambda query=query: embed(query))
            for query in raw[part]:
                vector = embed(query)
                series.add("raw_scan", lambda vector=vector: scan(vector))
            for _ in range(config.calls):
                series.add("echo", lambda: unary(request))
            for query in cold[part]:
                series.add("recall_cold", lambda query=query: stub.Recall(_recall(query)))
            for query in cold[part]:
                series.add("recall_warm", lambda query=query: stub.Recall(_recall(query)))
                found = stub.Recall(_recall(query)).messages
                digest.update("|".join(m.message.id for m in found).encode())
            for number, text in enumerate(turns[part], i * config.calls):
                turn = _turn(number, text)
                series.add("index_turn", lambda turn=turn: stub.Index(turn))
    return series, digest.hexdigest()[:16]


def run(config: Config) -> dict[str, object]:
    """Measure; returns what is printed and written as JSON."""
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name,
        processes.sidecar(Path(name), "--log-level", "warning") as (address, pid),
        grpc.insecure_channel(address) as channel,
    ):
        stub = recall_pb2_grpc.RecallServiceStub(channel)
        stub.Recall(_recall("warm up"))
        before = resident_bytes(pid)
        started = time.perf_counter()
        for answer in stub.IndexStream(_import_requests(config)):
            if answer.HasField("error"):
                raise RuntimeError(answer.error.message)
        import_seconds = time.perf_counter() - started
        series, digest = _measure(config, stub, Path(name))
        resident = resident_bytes(pid) - before
    latencies = series.latencies()
    floor_ms = sum(latencies[part].p50_ms for part in ("raw_embed", "raw_scan", "echo"))
    return {
        "machine": machine(),
        "versions": {
            name: version(name) for name in ("grpcio", "protobuf", "faiss-cpu", "onnxruntime")
        },
        "config": asdict(config),
        "latencies_ms": {name: asdict(latency) for name, latency in latencies.items()},
        "cold_floor_p50_ms": floor_ms,
        "cold_ratio_p50": latencies["recall_cold"].p50_ms / floor_ms,
        "cold_ratio_bar": COLD_RATIO_BAR,
        "import_messages_per_second": config.messages / import_seconds,
        "resident_bytes_per_message": resident / config.messages,
        "answers_digest": digest,
    }


def _print(result: dict[str, object]) -> None:
    print(json.dumps(result, indent=2))
    latencies = result["latencies_ms"]
    assert isinstance(latencies, dict)
    print(f"\n{'':<14}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}")
    for name, latency in latencies.items():
        print(
            f"{name:<14}{latency['p50_ms']:>9.3f}{latency['p95_ms']:>9.3f}{latency['p99_ms']:>9.3f}"
        )
    print(
        f"\ncold recall p50 / (raw embed + raw scan + echo) = {result['cold_ratio_p50']:.2f} "
        f"(bar {COLD_RATIO_BAR})"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    result = run(Config(arguments.messages, arguments.rounds, arguments.calls))
    _print(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
