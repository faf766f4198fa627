"""The resident memory of a sidecar that has every partition of a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import processes, wire_requests
from benchmarks.measure import Resident
from benchmarks.raw_client import Client, connected
from benchmarks.raw_parts import DIMENSIONS
from benchmarks.report import Digest
from benchmarks.store_builder import ResourcePlan
from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2

PARTITIONS_BYTES_MAX = 16 << 30
WORDS = "what was said about the plan"
MEMORY_MODES: dict[str, tuple[str, ...]] = {"default": (), "low": ("--memory", "low")}
"""By mode, the sidecar's flags."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A sidecar's memory before it was asked anything and after every resource was asked.

    Attributes:
        answers: digest of the ids recalled.
    """

    at_start: Resident
    full: Resident
    answers: str


def measure_loaded(store: Path, plan: Sequence[ResourcePlan], mode: str) -> Loaded:
    """One hybrid recall in every resource, with words, and a vector in place of theirs.

    The budgets of partitions are raised, so that all of them stay, vectors and words. With little
    memory the full vectors are in the snapshots: make these first.

    Raises:
        RuntimeError: not all of them are in memory at the end.
    """
    digest = Digest()
    flags = (
        *("--log-level", "warning"),
        *("--partitions-bytes-max", str(PARTITIONS_BYTES_MAX)),
        *("--lexical-bytes-max", str(PARTITIONS_BYTES_MAX)),
        *MEMORY_MODES[mode],
    )
    with processes.sidecar(store, *flags) as (address, pid):
        at_start = Resident.of(pid)
        loaded = asyncio.run(_recall_everywhere(address, plan, digest))
        full = Resident.of(pid)
    if loaded != (len(plan), len(plan)):
        raise RuntimeError(f"{loaded} of {len(plan)} partitions of vectors and words are in memory")
    return Loaded(at_start, full, digest.text())


async def _recall_everywhere(
    address: str, plan: Sequence[ResourcePlan], digest: Digest
) -> tuple[int, int]:
    """Returns how many partitions of vectors, and of words, are in memory then."""
    rng = np.random.default_rng(1)
    async with connected("sync", address) as client:
        for resource in plan:
            digest.add(await _recall(client, resource.resource_id, rng))
        raw = await client.unary(wire_requests.GET_STATS, b"")
    stats = admin_pb2.GetStatsResponse.FromString(raw)
    return stats.partitions_loaded, stats.lexical_partitions_loaded


async def _recall(client: Client, resource_id: str, rng: np.random.Generator) -> list[str]:
    vector = rng.standard_normal(DIMENSIONS, dtype=np.float32)
    request = wire_requests.recall_of_vector(resource_id, vector)
    request.query, request.ranking.mode = WORDS, types_pb2.MODE_HYBRID
    raw = await client.unary(wire_requests.RECALL, request.SerializeToString())
    return wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(raw))
