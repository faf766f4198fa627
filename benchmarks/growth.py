"""Whether a recall's cost follows the resource asked, and not the store around it.

Usage: python -m benchmarks.growth [--data-dir DIR] [--calls 300] [--json FILE]

Three stores of `store_builder`, built once in `--data-dir` (a temporary directory without it):

  alone     one resource of 10,000 messages
  crowded   the same resource among others, 1,000,000 messages in 10,000 resources
  sizes     the same resource and one of 100,000 messages

The sidecars of `alone` and `crowded` run at the same time and are asked in turns, which one first
changes with every turn; their answers must be the same. So are both resources of `sizes`. One
caller, Unix sockets, grpcio's synchronous client.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import corpus, processes, wire_requests
from benchmarks.derived_files import forget_cached_vectors
from benchmarks.raw_client import Client, connected
from benchmarks.report import Bar, Digest, Result, flag, run_script
from benchmarks.sized_stores import measured_resource
from benchmarks.store_builder import ResourcePlan, build, crowd, stores_in
from semanticrecall.v1 import recall_pb2

STORE_BAR, RESOURCE_BAR = 1.2, 2.5
WARM_UP_CALLS = 30
QUIET = ("--log-level", "warning")


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where the stores are built and found again", Path
    )
    messages: int = flag(10_000, "messages of the resource")
    large_messages: int = flag(100_000, "messages of the larger resource")
    crowd_messages: int = flag(1_000_000, "messages of the crowded store, the resource's included")
    crowd_resources: int = flag(10_000, "resources of the crowded store")
    calls: int = flag(300, "calls of each series")
    seed: int = flag(7, "of texts and vectors")


class _Asking:
    """One recall after another; ids of the answers."""

    def __init__(self, result: Result) -> None:
        self._result = result

    async def timed(self, series: str, client: Client, resource: str, query: str) -> list[str]:
        request = wire_requests.recall(resource, query).SerializeToString()
        started = time.perf_counter()
        answer = await client.unary(wire_requests.RECALL, request)
        seconds = time.perf_counter() - started
        self._result.seconds.setdefault(series, []).append(seconds)
        return wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(answer))


async def _warm_up(client: Client, resources: list[str], queries: list[str]) -> None:
    for resource in resources:
        for query in queries:
            request = wire_requests.recall(resource, query).SerializeToString()
            await client.unary(wire_requests.RECALL, request)


async def _ask_stores(
    config: Config, addresses: dict[str, str], result: Result, digest: Digest
) -> None:
    """The same resource, alone and crowded."""
    resource = measured_resource(config.messages, config.seed).resource_id
    texts = corpus.queries(config.calls + WARM_UP_CALLS, seed=config.seed)
    asking = _Asking(result)
    async with (
        connected("sync", addresses["alone"]) as alone,
        connected("sync", addresses["crowded"]) as crowded,
    ):
        clients = [("alone", alone), ("crowded", crowded)]
        for _, client in clients:
            await _warm_up(client, [resource], texts[:WARM_UP_CALLS])
        for query in texts[WARM_UP_CALLS:]:
            answers = [
                await asking.timed(f"{kind}, {name}", client, resource, query)
                for kind in ("cold", "warm")
                for name, client in clients
            ]
            if any(answer != answers[0] for answer in answers):
                raise RuntimeError("the crowded store answers differently")
            digest.add(answers[0])
            clients.reverse()


async def _ask_sizes(config: Config, address: str, result: Result, digest: Digest) -> None:
    """A small and a large resource of one store. Queries are used once."""
    resources = [
        (f"cold, {config.messages} messages", "measured"),
        (f"cold, {config.large_messages} messages", "large"),
    ]
    texts = corpus.queries(2 * config.calls + WARM_UP_CALLS, seed=config.seed + 1)
    asking = _Asking(result)
    async with connected("sync", address) as client:
        await _warm_up(client, ["measured", "large"], texts[:WARM_UP_CALLS])
        queries = iter(texts[WARM_UP_CALLS:])
        for _ in range(config.calls):
            for series, resource in resources:
                digest.add(await asking.timed(series, client, resource, next(queries)))
            resources.reverse()


def _measure_in(directory: Path, config: Config) -> Result:
    measured = measured_resource(config.messages, config.seed)
    larger = ResourcePlan("large", config.large_messages, config.seed + 1)
    plans = {
        "alone": [measured],
        "crowded": crowd(measured, config.crowd_resources, config.crowd_messages),
        "sizes": [larger, measured],
    }
    for name, plan in plans.items():
        build(directory / name, plan)
        forget_cached_vectors(directory / name)
    result, digest = Result(), Digest()
    with ExitStack() as sidecars:
        addresses = {
            name: sidecars.enter_context(processes.sidecar(directory / name, *QUIET))[0]
            for name in ("alone", "crowded")
        }
        asyncio.run(_ask_stores(config, addresses, result, digest))
    with processes.sidecar(directory / "sizes", *QUIET) as (address, _):
        asyncio.run(_ask_sizes(config, address, result, digest))
    for kind in ("cold", "warm"):
        ratio = result.p50_s(f"{kind}, crowded") / result.p50_s(f"{kind}, alone")
        name = f"{kind} p50 with {config.crowd_messages} messages in the store / {config.messages}"
        result.bars.append(Bar(name, ratio, STORE_BAR))
    ratio = result.p50_s(f"cold, {config.large_messages} messages") / result.p50_s(
        f"cold, {config.messages} messages"
    )
    name = f"cold p50 of a resource of {config.large_messages} messages / {config.messages}"
    result.bars.append(Bar(name, ratio, RESOURCE_BAR))
    result.digest = digest.text()
    return result


def measure(config: Config) -> Result:
    """Build what is not there, run the sidecars, measure."""
    with stores_in(config.data_dir) as directory:
        return _measure_in(directory, config)


if __name__ == "__main__":
    SMOKE = {
        "messages": 1_000,
        "large_messages": 10_000,
        "crowd_messages": 20_000,
        "crowd_resources": 200,
        "calls": 60,
    }
    run_script(__doc__, Config, measure, smoke=SMOKE)
