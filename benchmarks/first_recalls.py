"""Starts of a sidecar on a store that is there, and the first recalls after each of them.

From every start come

  first             the first recall of a resource, a new query; resources that were written to
                    longest ago, so that those read ahead at the start come last
  new query         further new queries to the same resources, in memory by then
  asked again       the same recalls once more

The files are in the system's cache, as after a restart of the sidecar.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import corpus, processes, wire_requests
from benchmarks.derived_files import forget_cached_vectors
from benchmarks.raw_client import Client, connected
from benchmarks.report import Result
from semanticrecall.v1 import admin_pb2, recall_pb2

FIRST, NEW_QUERY, ASKED_AGAIN = "first", "new query", "asked again"
ROUNDS = 3
QUIET = ("--log-level", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """What is started, and what is asked then.

    Attributes:
        store: a directory of `store_builder`.
        label: before the name of every series and figure.
        starts: how many.
        resources_asked: recalled from after each: `user-0`, `user-1`, ...
        seed: of the queries.
    """

    store: Path
    label: str
    starts: int
    resources_asked: int
    seed: int


@dataclass(frozen=True, slots=True)
class Started:
    """What came of all starts.

    Attributes:
        start_s: seconds from exec to SERVING, the median.
        very_first_ms: of the first recall of all, the median.
        in_memory: resources that were in memory when the last one served.
        ids: recalled after the last start, in order.
    """

    start_s: float
    very_first_ms: float
    in_memory: int
    ids: list[list[str]]


def _nothing(number: int) -> None:
    """The files are as they should be before a start."""


def measure_starts(
    starts: Starts, result: Result, before: Callable[[int], None] = _nothing
) -> Started:
    """Start, ask and stop; seconds of the recalls go into `result`, under the label.

    Args:
        before: brings the files into their state before the start of that number.
    """
    start_s: list[float] = []
    very_first_s: list[float] = []
    in_memory, ids = 0, list[list[str]]()
    firsts = result.seconds.setdefault(f"{starts.label}: {FIRST}", [])
    for number in range(starts.starts):
        before(number)
        forget_cached_vectors(starts.store)
        with processes.started(starts.store, "semanticrecall_server", *QUIET) as sidecar:
            start_s.append(sidecar.start_s)
            at = len(firsts)
            in_memory, ids = asyncio.run(_ask(sidecar.address, starts, result))
            very_first_s.append(firsts[at])
    return Started(median(start_s), 1000 * median(very_first_s), in_memory, ids)


class _Start:
    """The recalls after one start."""

    def __init__(self, client: Client, result: Result, label: str) -> None:
        self._client = client
        self._result = result
        self._label = label
        self.ids: list[list[str]] = []

    async def recall(self, series: str, resource: str, query: str) -> None:
        request = wire_requests.recall(resource, query).SerializeToString()
        started = time.perf_counter()
        answer = await self._client.unary(wire_requests.RECALL, request)
        seconds = time.perf_counter() - started
        self._result.seconds.setdefault(f"{self._label}: {series}", []).append(seconds)
        self.ids.append(wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(answer)))


async def _ask(address: str, starts: Starts, result: Result) -> tuple[int, list[list[str]]]:
    """Resources in memory at first, and the ids of all answers."""
    queries = iter(corpus.queries((1 + ROUNDS) * starts.resources_asked, seed=starts.seed))
    resources = [f"user-{number}" for number in range(starts.resources_asked)]
    async with connected("sync", address) as client:
        raw = await client.unary(wire_requests.GET_STATS, b"")
        in_memory = admin_pb2.GetStatsResponse.FromString(raw).partitions_loaded
        start = _Start(client, result, starts.label)
        for resource in resources:
            await start.recall(FIRST, resource, next(queries))
        for _ in range(ROUNDS):
            for resource in resources:
                query = next(queries)
                await start.recall(NEW_QUERY, resource, query)
                await start.recall(ASKED_AGAIN, resource, query)
        return in_memory, start.ids
