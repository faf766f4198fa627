"""How long a start takes, and the first recalls after it: snapshots there, missing and damaged.

Usage: python -m benchmarks.start [--data-dir DIR] [--starts 3] [--json FILE]

The crowded store of `growth` (1,000,000 messages in 10,000 resources), with snapshots of all of it.
Each state of the snapshots is started several times; from the same sidecar come

  start_s           from exec to the health service's SERVING
  first             the first recall of a resource after the start, a new query; resources that were
                    written to longest ago, so that those read ahead at the start come last
  new query         further new queries to the same resources, in memory by then
  asked again       the same recalls once more

The files are in the system's cache, as after a restart of the sidecar. "Warm p99" has two
readings, and both are judged: a first recall embeds its query, so the like of it is a new query; a
warm recall in the words of `hot_path` is one asked again. Only snapshots that are there are held to
the bars: without them a start may be slower, but the answers must be the same.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import corpus, processes, wire_requests
from benchmarks.derived_files import (
    SnapshotState,
    forget_cached_vectors,
    keep_snapshots,
    make_snapshots,
    set_snapshots,
)
from benchmarks.growth import measured_resource
from benchmarks.raw_client import Client, connected
from benchmarks.report import Bar, Digest, Result, flag, run_script
from benchmarks.store_builder import build, crowd, stores_in
from semanticrecall.v1 import admin_pb2, recall_pb2

START_BAR_S = 3.0
FIRST_BAR = 2.0
STATES: tuple[SnapshotState, ...] = ("there", "missing", "damaged")
QUIET = ("--log-level", "error")


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where the store is built and found again", Path
    )
    messages: int = flag(10_000, "messages of the largest resource")
    crowd_messages: int = flag(1_000_000, "messages of all resources")
    crowd_resources: int = flag(10_000, "resources")
    resources_asked: int = flag(50, "resources that are recalled from after each start")
    starts: int = flag(3, "starts for each state of the snapshots")
    seed: int = flag(7, "of texts and vectors")


class _Start:
    """The recalls after one start."""

    def __init__(self, client: Client, result: Result, state: str) -> None:
        self._client = client
        self._result = result
        self._state = state
        self.ids: list[list[str]] = []

    async def recall(self, series: str, resource: str, query: str) -> None:
        request = wire_requests.recall(resource, query).SerializeToString()
        started = time.perf_counter()
        answer = await self._client.unary(wire_requests.RECALL, request)
        seconds = time.perf_counter() - started
        self._result.seconds.setdefault(f"{self._state}: {series}", []).append(seconds)
        self.ids.append(wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(answer)))


async def _ask(address: str, config: Config, result: Result, state: str) -> list[list[str]]:
    queries = iter(corpus.queries(4 * config.resources_asked + 1, seed=config.seed))
    resources = [f"user-{number}" for number in range(config.resources_asked)]
    async with connected("sync", address) as client:
        raw = await client.unary(wire_requests.GET_STATS, b"")
        loaded = admin_pb2.GetStatsResponse.FromString(raw).partitions_loaded
        result.figures[f"{state}: resources in memory when it serves"] = loaded
        start = _Start(client, result, state)
        for resource in resources:
            await start.recall("first", resource, next(queries))
        for _ in range(3):
            for resource in resources:
                query = next(queries)
                await start.recall("new query", resource, query)
                await start.recall("asked again", resource, query)
        return start.ids


def _measure_state(
    directory: Path, kept: Path, config: Config, result: Result, state: SnapshotState
) -> list[list[str]]:
    """All starts of a state; the ids of the answers after the last."""
    start_s: list[float] = []
    very_first: list[float] = []
    ids: list[list[str]] = []
    for number in range(config.starts):
        if state != "there" or number == 0:  # sound ones are as they were; they are large
            set_snapshots(directory, kept, state)
        forget_cached_vectors(directory)
        with processes.started(directory, "semanticrecall_server", *QUIET) as sidecar:
            start_s.append(sidecar.start_s)
            firsts = len(result.seconds.get(f"{state}: first", []))
            ids = asyncio.run(_ask(sidecar.address, config, result, state))
            very_first.append(result.seconds[f"{state}: first"][firsts])
    result.figures[f"{state}: start, seconds"] = median(start_s)
    result.figures[f"{state}: very first recall, ms"] = 1000 * median(very_first)
    first = result.p50_s(f"{state}: first")
    for series in ("new query", "asked again"):
        ratio = first / result.p99_s(f"{state}: {series}")
        name = f"{state}: first recall of a resource p50 / p99 of {series}"
        if state == "there":
            result.bars.append(Bar(name, ratio, FIRST_BAR))
        else:
            result.figures[name] = ratio
    if state == "there":
        result.bars.append(Bar("there: start, seconds", median(start_s), START_BAR_S))
    return ids


def _measure_in(directory: Path, config: Config) -> Result:
    measured = measured_resource(config.messages, config.seed)
    store = directory / "crowded"
    build(store, crowd(measured, config.crowd_resources, config.crowd_messages))
    result, digest = Result(), Digest()
    result.figures["messages in snapshots"] = make_snapshots(store)
    kept = directory / "snapshots-kept"
    keep_snapshots(store, kept)
    answers = [_measure_state(store, kept, config, result, state) for state in STATES]
    if any(other != answers[0] for other in answers):
        raise RuntimeError("the answers depend on the snapshots")
    for ids in answers[0]:
        digest.add(ids)
    set_snapshots(store, kept, "there")
    result.digest = digest.text()
    return result


def measure(config: Config) -> Result:
    """Build the store if it is not there, start sidecars, measure."""
    with stores_in(config.data_dir) as directory:
        return _measure_in(directory, config)


if __name__ == "__main__":
    run_script(__doc__, Config, measure)
