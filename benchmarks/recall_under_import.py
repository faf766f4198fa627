"""What a recall costs while another process imports as fast as it can.

Usage: python -m benchmarks.recall_under_import [--messages 10000] [--calls 400] [--json FILE]

Cold recalls (new queries) from one caller, first on an idle sidecar, then while `import_load`
brings new text into another resource. The import is in full swing before the first recall and must
still go on after the last. Unix socket, grpcio's synchronous client; all processes share the cores.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks import corpus, processes, wire_requests
from benchmarks.import_load import importing
from benchmarks.raw_client import Client, connected
from benchmarks.report import Bar, Digest, Result, flag, run_script
from semanticrecall.v1 import admin_pb2, recall_pb2, recall_pb2_grpc

P50_BAR, P99_BAR = 4.0, 6.0
RESOURCE = "bench-user"
IMPORTER = "bench-importer"
WARM_UP_CALLS = 30
IDLE, IMPORTING = "cold, idle", "cold, under import"


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    messages: int = flag(10_000, "messages of the resource that is recalled from")
    calls: int = flag(400, "recalls of each series")
    seed: int = flag(7, "of texts")


async def _recalls(
    client: Client, series: str, queries: list[str], result: Result, digest: Digest
) -> None:
    for query in queries:
        request = wire_requests.recall(RESOURCE, query).SerializeToString()
        started = time.perf_counter()
        answer = await client.unary(wire_requests.RECALL, request)
        seconds = time.perf_counter() - started
        result.seconds.setdefault(series, []).append(seconds)
        digest.add(wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(answer)))


async def _stats(client: Client) -> admin_pb2.GetStatsResponse:
    """Of the resource that is imported into."""
    request = admin_pb2.GetStatsRequest(resource_id=IMPORTER).SerializeToString()
    raw = await client.unary(wire_requests.GET_STATS, request)
    return admin_pb2.GetStatsResponse.FromString(raw)


async def _measure(config: Config, address: str, result: Result) -> None:
    digest = Digest()
    texts = corpus.queries(2 * config.calls + WARM_UP_CALLS, seed=config.seed)
    idle = texts[WARM_UP_CALLS : WARM_UP_CALLS + config.calls]
    busy = texts[WARM_UP_CALLS + config.calls :]
    async with connected("sync", address) as client:
        await _recalls(client, "warm up", texts[:WARM_UP_CALLS], result, digest)
        await _recalls(client, IDLE, idle, result, digest)
        with importing(address, IMPORTER, config.seed + 1):
            before, started = await _stats(client), time.perf_counter()
            await _recalls(client, IMPORTING, busy, result, digest)
            after, seconds = await _stats(client), time.perf_counter() - started
    if not (before.pending and after.pending):
        raise RuntimeError("the import did not keep the sidecar busy")
    imported = after.vectors - before.vectors
    result.figures["imported meanwhile, messages/s"] = imported / seconds
    result.figures["messages waiting to be embedded at the end"] = after.pending
    result.digest = digest.text()


def measure(config: Config) -> Result:
    """Run a sidecar of its own and measure."""
    result = Result()
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name,
        processes.sidecar(Path(name), "--log-level", "warning") as (address, _),
    ):
        with grpc.insecure_channel(address) as channel:
            stub = recall_pb2_grpc.RecallServiceStub(channel)
            requests = wire_requests.chat_imports(RESOURCE, config.messages, seed=config.seed)
            for answer in stub.IndexStream(requests):
                if answer.HasField("error"):
                    raise RuntimeError(answer.error.message)
        asyncio.run(_measure(config, address, result))
    result.bars = [
        Bar("p50 under import / idle", result.p50_s(IMPORTING) / result.p50_s(IDLE), P50_BAR),
        Bar("p99 under import / idle", result.p99_s(IMPORTING) / result.p99_s(IDLE), P99_BAR),
    ]
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke={"messages": 1_000, "calls": 100})
