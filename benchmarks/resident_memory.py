"""Resident memory a message, with every partition loaded: by default, and with `--memory low`.

Usage: python -m benchmarks.resident_memory [--data-dir DIR] [--json FILE]

The crowded store of `growth` (1,000,000 messages of about 40 tokens in 10,000 resources). One
recall in every resource, with a vector in place of a query; then the whole resident set of the
process is divided by the messages, the model and the libraries included. `anonymous` is the part
that the kernel cannot drop; the rest are mapped files. The budget of partitions is raised, so that
all of them stay.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import processes, wire_requests
from benchmarks.derived_files import make_snapshots
from benchmarks.growth import measured_resource
from benchmarks.measure import Resident
from benchmarks.raw_client import Client, connected
from benchmarks.raw_parts import DIMENSIONS
from benchmarks.report import Bar, Digest, Result, flag, run_script
from benchmarks.store_builder import ResourcePlan, build, crowd, stores_in
from semanticrecall.v1 import admin_pb2, recall_pb2

PARTITIONS_BYTES_MAX = 16 << 30
MODES = {"default": (2_400.0, ()), "low": (700.0, ("--memory", "low"))}
"""By mode: the bar in bytes a message, and the flags."""


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where the store is built and found again", Path
    )
    messages: int = flag(10_000, "messages of the largest resource")
    crowd_messages: int = flag(1_000_000, "messages of all resources")
    crowd_resources: int = flag(10_000, "resources")
    seed: int = flag(7, "of texts and vectors")


async def _recall_everywhere(address: str, plan: list[ResourcePlan], digest: Digest) -> int:
    """A recall in every resource; returns how many partitions are in memory then."""
    rng = np.random.default_rng(1)
    async with connected("sync", address) as client:
        for resource in plan:
            digest.add(await _recall(client, resource.resource_id, rng))
        raw = await client.unary(wire_requests.GET_STATS, b"")
    return admin_pb2.GetStatsResponse.FromString(raw).partitions_loaded


async def _recall(client: Client, resource_id: str, rng: np.random.Generator) -> list[str]:
    vector = rng.standard_normal(DIMENSIONS, dtype=np.float32)
    request = wire_requests.recall_of_vector(resource_id, vector).SerializeToString()
    raw = await client.unary(wire_requests.RECALL, request)
    return wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(raw))


def _measure_in(directory: Path, config: Config) -> Result:
    measured = measured_resource(config.messages, config.seed)
    plan = crowd(measured, config.crowd_resources, config.crowd_messages)
    build(directory / "crowded", plan)
    # With little memory the full vectors are in the snapshots, so these come first.
    result = Result(figures={"messages in snapshots": make_snapshots(directory / "crowded")})
    digests: set[str] = set()
    budget = ("--partitions-bytes-max", str(PARTITIONS_BYTES_MAX))
    for mode, (limit, flags) in MODES.items():
        digest = Digest()
        with processes.sidecar(
            directory / "crowded", "--log-level", "warning", *budget, *flags
        ) as (address, pid):
            at_start = Resident.of(pid)
            loaded = asyncio.run(_recall_everywhere(address, plan, digest))
            full = Resident.of(pid)
        if loaded != len(plan):
            raise RuntimeError(f"{loaded} of {len(plan)} partitions are in memory")
        digests.add(digest.text())
        messages = config.crowd_messages
        result.figures[f"{mode}: bytes at start"] = at_start.bytes
        result.figures[f"{mode}: bytes with all partitions"] = full.bytes
        result.figures[f"{mode}: anonymous bytes a message"] = full.anonymous_bytes / messages
        name = f"{mode}: resident bytes a message at {messages} messages"
        result.bars.append(Bar(name, full.bytes / messages, limit))
    if len(digests) != 1:
        raise RuntimeError("the answers depend on the memory mode")
    result.digest = digests.pop()
    return result


def measure(config: Config) -> Result:
    """Build the store if it is not there, measure both modes."""
    with stores_in(config.data_dir) as directory:
        return _measure_in(directory, config)


if __name__ == "__main__":
    run_script(__doc__, Config, measure)
