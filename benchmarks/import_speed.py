"""Messages a second of a bulk import, beside the raw embedding of the same texts.

Usage: python -m benchmarks.import_speed [--messages 2000] [--rounds 5] [--json FILE]

Every round takes texts never seen before, about 40 tokens each, and measures one after the other:
the raw throughput of the texts (`raw_throughput`); their import through 8 Index calls of 100
messages in flight, until all are searchable; the same messages again (UNCHANGED); and the same
texts as messages of new ids in the same resource (their vectors are known). Each ratio is between
neighbours in time; the medians of the rounds are judged. The client runs on the same cores.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import corpus, processes, wire_requests
from benchmarks.load_client import Load, run_load
from benchmarks.raw_parts import RawEmbed
from benchmarks.raw_throughput import raw_throughput
from benchmarks.report import Bar, Digest, Result, flag, run_script
from semanticrecall.v1 import recall_pb2, types_pb2

IMPORT_BAR, AGAIN_BAR = 0.85, 15.0
IN_FLIGHT = 8
RESOURCE = "bench-importer"
KINDS = ("new", "same ids", "new ids")


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    messages: int = flag(2_000, "messages of each round")
    rounds: int = flag(5, "rounds")
    seed: int = flag(7, "of the synthetic chat")


def _import(address: str, messages: list[types_pb2.Message], status: int, digest: Digest) -> float:
    """Messages a second; every one must get this status."""
    requests = [
        request.SerializeToString() for request in wire_requests.imports(RESOURCE, messages)
    ]
    done = run_load(address, Load(wire_requests.INDEX, "unary", IN_FLIGHT), requests)
    for raw in done.answers:
        results = recall_pb2.IndexResponse.FromString(raw).results
        if any(result.status != status for result in results):
            raise RuntimeError("a message was not indexed as it should be")
        digest.add(result.message_id for result in results)
    return len(messages) / done.seconds


def _rounds(config: Config, address: str, result: Result) -> None:
    embed, digest = RawEmbed(), Digest()
    raws: list[float] = []
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    ways: list[str] = []
    for number in range(config.rounds):
        chat = list(corpus.chat(config.messages, seed=config.seed + number))
        first = [wire_requests.message(one, f"{number}-") for one in chat]
        again = [wire_requests.message(one, f"{number}-again-") for one in chat]
        raw = raw_throughput(embed, [one.text for one in chat])
        raws.append(raw.texts_per_second)
        ways.append(raw.way)
        for kind, messages, status in (
            ("new", first, types_pb2.STATUS_INDEXED),
            ("same ids", first, types_pb2.STATUS_UNCHANGED),
            ("new ids", again, types_pb2.STATUS_INDEXED),
        ):
            rates[kind].append(_import(address, messages, status, digest))
    result.digest = digest.text()
    result.figures["raw texts/s"] = median(raws)
    result.figures["quickest raw way"] = max(set(ways), key=ways.count)
    for kind in KINDS:
        result.figures[f"{kind}: messages/s"] = median(rates[kind])
    new = rates["new"]
    ratio = median(rate / raw for rate, raw in zip(new, raws, strict=True))
    result.bars.append(Bar("import of new text / raw embedding", ratio, IMPORT_BAR, at_most=False))
    for kind in KINDS[1:]:
        ratio = median(rate / first for rate, first in zip(rates[kind], new, strict=True))
        name = f"import of the same texts, {kind} / import of new text"
        result.bars.append(Bar(name, ratio, AGAIN_BAR, at_most=False))


def measure(config: Config) -> Result:
    """Run a sidecar of its own and measure."""
    result = Result()
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name,
        processes.sidecar(Path(name), "--log-level", "warning") as (address, _),
    ):
        _rounds(config, address, result)
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke={"messages": 300, "rounds": 1})
