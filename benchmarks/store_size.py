"""Start-up, first recalls, memory and disk by the size of the store.

Usage: python -m benchmarks.store_size [--data-dir DIR] [--sizes 10000,100000,1000000] [--json FILE]

Every store holds 100 messages a resource; from 100,000 messages on one of its resources has 10,000
(`sized_stores`; the store of 1,000,000 is the crowded one of `growth`, `start`, `resident_memory`).
With `--data-dir` they are built once and found again; the one of 1,000,000 takes minutes to build.

  starts   seconds from exec to SERVING, resources in memory by then (read ahead), and what
           `first_recalls` asks: with snapshots of everything, and without any
  memory   resident bytes of the process at the start, and after a recall in every resource; by
           default and with `--memory low`, the model and the libraries included
  disk     bytes by kind of file, after the sidecar has stopped: recall.db is the record,
           embeddings.db the queries that were embedded, other all the rest

The answers must be the same with snapshots and without, and in both modes of memory.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.derived_files import make_snapshots, snapshots_set_aside
from benchmarks.first_recalls import ASKED_AGAIN, FIRST, NEW_QUERY, Starts, measure_starts
from benchmarks.loaded_partitions import MEMORY_MODES, measure_loaded
from benchmarks.report import Chart, Digest, Result, flag, run_script
from benchmarks.sized_stores import (
    SizedStore,
    measured_resource,
    sizes_of,
    with_small_resources,
)
from benchmarks.store_builder import stores_in
from semanticrecall_server.assembly import SNAPSHOTS

FILES = {"recall.db": "recall.db*", "embeddings.db": "embeddings.db*"}
"""By kind of file: which files of a data directory it is."""

CHARTS = [
    Chart(
        name="start_by_store_size",
        title="Seconds until it serves",
        table="starts",
        x="messages",
        y="start_s",
        by=("snapshots",),
        x_label="messages in the store",
        y_label="seconds from exec to SERVING",
        x_log=True,
    ),
    Chart(
        name="first_recall_by_store_size",
        title="First recall of a resource after a start",
        table="starts",
        x="messages",
        y="first_p50_ms",
        by=("snapshots",),
        x_label="messages in the store",
        y_label="p50, ms",
        x_log=True,
    ),
    Chart(
        name="memory_by_store_size",
        title="Resident memory with every resource in memory",
        table="memory",
        x="messages",
        y="resident_mb",
        by=("mode",),
        x_label="messages in the store",
        y_label="resident, MB",
        x_log=True,
        y_log=True,
    ),
    Chart(
        name="disk_by_store_size",
        title="Bytes on disk",
        table="disk",
        x="messages",
        y="mb",
        by=("files",),
        x_label="messages in the store",
        y_label="MB",
        kind="bar",
    ),
]


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where the stores are built and found again", Path
    )
    sizes: str = flag("10000,100000,1000000", "messages of each store", str)
    resource_messages: int = flag(100, "messages for each resource of a store")
    largest: int = flag(10_000, "messages of the largest resource, in stores ten times as large")
    resources_asked: int = flag(50, "resources that are recalled from after each start")
    starts: int = flag(3, "starts with snapshots, and as many without")
    seed: int = flag(7, "of texts and vectors")


def _measure_starts(
    sized: SizedStore, store: Path, config: Config, result: Result
) -> list[list[str]]:
    """With snapshots and without; the ids of the answers."""
    answers: list[list[list[str]]] = []
    for state in ("there", "missing"):
        label = f"{sized.messages} messages, snapshots {state}"
        print(f"starting on {label}", flush=True)

        def before(number: int, *, state: str = state) -> None:
            if state == "missing" and number:  # the last stop may have begun new ones
                shutil.rmtree(store / "data" / SNAPSHOTS, ignore_errors=True)

        starts = Starts(
            store=store,
            label=label,
            starts=config.starts,
            resources_asked=min(config.resources_asked, len(sized.plan) - 1) or 1,
            seed=config.seed,
        )
        with ExitStack() as aside:
            if state == "missing":
                aside.enter_context(snapshots_set_aside(store))
            started = measure_starts(starts, result, before)
        answers.append(started.ids)
        result.tables.setdefault("starts", []).append(
            {
                "messages": sized.messages,
                "resources": len(sized.plan),
                "snapshots": state,
                "start_s": started.start_s,
                "in_memory": started.in_memory,
                "very_first_ms": started.very_first_ms,
                "first_p50_ms": 1000 * result.p50_s(f"{label}: {FIRST}"),
                "first_p99_ms": 1000 * result.p99_s(f"{label}: {FIRST}"),
                "new_query_p50_ms": 1000 * result.p50_s(f"{label}: {NEW_QUERY}"),
                "asked_again_p50_ms": 1000 * result.p50_s(f"{label}: {ASKED_AGAIN}"),
            }
        )
    if answers[0] != answers[1]:
        raise RuntimeError("the answers depend on the snapshots")
    return answers[0]


def _measure_memory(sized: SizedStore, store: Path, result: Result) -> str:
    """In both modes; the digest of the answers."""
    digests: set[str] = set()
    for mode in MEMORY_MODES:
        print(f"loading {sized.messages} messages, --memory {mode}", flush=True)
        loaded = measure_loaded(store, sized.plan, mode)
        digests.add(loaded.answers)
        full = loaded.full
        result.tables.setdefault("memory", []).append(
            {
                "messages": sized.messages,
                "mode": mode,
                "at_start_mb": loaded.at_start.bytes / 1e6,
                "resident_mb": full.bytes / 1e6,
                "bytes_a_message": full.bytes / sized.messages,
                "anonymous_bytes_a_message": full.anonymous_bytes / sized.messages,
                "grown_bytes_a_message": (full.bytes - loaded.at_start.bytes) / sized.messages,
            }
        )
    if len(digests) != 1:
        raise RuntimeError("the answers depend on the memory mode")
    return digests.pop()


def disk_bytes(data: Path) -> dict[str, int]:
    """Bytes of a data directory by kind of file: those of `FILES`, snapshots, other."""
    found = {
        kind: sum(path.stat().st_size for path in data.glob(pattern))
        for kind, pattern in FILES.items()
    }
    snapshots = sum(f.stat().st_size for f in (data / SNAPSHOTS).rglob("*") if f.is_file())
    all_of_it = sum(f.stat().st_size for f in data.rglob("*") if f.is_file())
    found["snapshots"] = snapshots
    return {**found, "other": all_of_it - sum(found.values())}


def _measure_store(
    sized: SizedStore, directory: Path, config: Config, result: Result, digest: Digest
) -> None:
    store = sized.build_in(directory)
    in_snapshots = make_snapshots(store)
    if in_snapshots != sized.messages:
        raise RuntimeError(f"{in_snapshots} of {sized.messages} messages are in snapshots")
    for ids in _measure_starts(sized, store, config, result):
        digest.add(ids)
    for kind, size in disk_bytes(store / "data").items():
        row = {"messages": sized.messages, "files": kind, "mb": size / 1e6}
        result.tables.setdefault("disk", []).append(
            {**row, "bytes_a_message": size / sized.messages}
        )
    digest.add([_measure_memory(sized, store, result)])


def measure(config: Config) -> Result:
    """Build the stores that are not there, start sidecars on each, measure."""
    measured = measured_resource(config.largest, config.seed)
    result, digest = Result(charts=CHARTS), Digest()
    with stores_in(config.data_dir) as directory:
        for sized in with_small_resources(
            sizes_of(config.sizes), measured, config.resource_messages
        ):
            _measure_store(sized, directory, config, result, digest)
    result.digest = digest.text()
    return result


SMOKE = {
    "sizes": "120,600",
    "resource_messages": 20,
    "largest": 60,
    "resources_asked": 4,
    "starts": 1,
}

if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke=SMOKE)
