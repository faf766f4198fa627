"""Recalls per second with many in flight, beside what the model's graph alone can do.

Usage: python -m benchmarks.throughput [--calls 1500] [--rounds 5] [--json FILE]

Distinct queries of 16 tokens, 64 in flight from one client process: on one RecallStream (64 is
what a stream works on at once) and as unary calls, to resources of 100, 1,000 and 10,000 messages.
Every round measures the raw throughput of its own texts first (`raw_throughput`), so each ratio is
between neighbours in time; the medians of the rounds are judged. The bar is that of the largest
resource. The client runs on the same cores as the sidecar; the raw graph has them to itself.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc

from benchmarks import corpus, processes, wire_requests
from benchmarks.load_client import Load, run_load
from benchmarks.raw_parts import RawEmbed
from benchmarks.raw_throughput import Throughput, raw_throughput
from benchmarks.report import Bar, Digest, Result, flag, run_script
from semanticrecall.v1 import recall_pb2, recall_pb2_grpc

THROUGHPUT_BAR = 0.8
QUERY_TOKENS = 16
IN_FLIGHT = 64
KINDS = {"stream": wire_requests.RECALL_STREAM, "unary": wire_requests.RECALL}


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    messages: int = flag(10_000, "messages of the largest resource; the others have 1/10, 1/100")
    calls: int = flag(1_500, "recalls of each kind in each round")
    rounds: int = flag(5, "rounds for each resource")
    seed: int = flag(7, "of texts")


def _resource(messages: int) -> str:
    return f"bench-user-{messages}"


def _fill(address: str, sizes: list[int], seed: int) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = recall_pb2_grpc.RecallServiceStub(channel)
        for size in sizes:
            requests = wire_requests.chat_imports(_resource(size), size, seed=seed)
            for answer in stub.IndexStream(requests):
                if answer.HasField("error"):
                    raise RuntimeError(answer.error.message)
            # The first search of a resource may load it.
            stub.Recall(wire_requests.recall(_resource(size), "warm up"))


class _Rounds:
    """All rounds of all resources; texts are used once."""

    def __init__(self, config: Config, address: str) -> None:
        self._config = config
        self._address = address
        self._embed = RawEmbed()
        self.digest = Digest()

    def _texts(self, seed: int) -> list[str]:
        return corpus.queries_of_tokens(
            self._config.calls * self._config.rounds * len(KINDS),
            QUERY_TOKENS,
            count_tokens=lambda text: len(self._embed.token_ids(text)),
            seed=seed,
        )

    def measure(self, size: int, result: Result) -> None:
        """One resource."""
        calls = self._config.calls
        texts = self._texts(self._config.seed + size)
        raws: list[Throughput] = []
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for start in range(0, len(texts), calls * len(KINDS)):
            raws.append(raw_throughput(self._embed, texts[start : start + calls]))
            for number, kind in enumerate(KINDS):
                begin = start + number * calls
                queries = texts[begin : begin + calls]
                rates[kind].append(self._recalls_per_second(kind, size, queries))
        ways = [raw.way for raw in raws]
        result.figures[f"{size} messages, raw texts/s"] = median(r.texts_per_second for r in raws)
        result.figures[f"{size} messages, quickest raw way"] = max(ways, key=ways.count)
        for kind in KINDS:
            pairs = zip(rates[kind], raws, strict=True)
            ratio = median(rate / raw.texts_per_second for rate, raw in pairs)
            result.figures[f"{size} messages, {kind}, recalls/s"] = median(rates[kind])
            result.figures[f"{size} messages, {kind} / raw"] = ratio
            if size == self._config.messages:
                name = f"recalls/s, {kind}, {IN_FLIGHT} in flight, {size} messages / raw texts/s"
                result.bars.append(Bar(name, ratio, THROUGHPUT_BAR, at_most=False))

    def _recalls_per_second(self, kind: str, size: int, queries: list[str]) -> float:
        requests = [
            wire_requests.recall(_resource(size), query, f"r{number:06}").SerializeToString()
            for number, query in enumerate(queries)
        ]
        done = run_load(self._address, Load(KINDS[kind], kind, IN_FLIGHT), requests)
        answers = [recall_pb2.RecallResponse.FromString(answer) for answer in done.answers]
        answers.sort(key=lambda answer: answer.request_id)
        if [answer.request_id for answer in answers] != [f"r{n:06}" for n in range(len(queries))]:
            raise RuntimeError("not every recall was answered once")
        for answer in answers:
            self.digest.add(wire_requests.recalled_ids(answer))
        return len(queries) / done.seconds


def measure(config: Config) -> Result:
    """Run a sidecar of its own and measure."""
    result = Result()
    sizes = sorted({max(1, config.messages // part) for part in (100, 10, 1)})
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name,
        processes.sidecar(Path(name), "--log-level", "warning") as (address, _),
    ):
        _fill(address, sizes, config.seed)
        rounds = _Rounds(config, address)
        for size in sizes:
            rounds.measure(size, result)
    result.digest = rounds.digest.text()
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke={"messages": 1_000, "calls": 300, "rounds": 2})
