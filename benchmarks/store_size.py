"""Start-up, first recalls, memory and disk by the size of the store.

Usage: python -m benchmarks.store_size [--data-dir DIR] [--sizes 10000,100000,1000000] [--json FILE]

Every store holds 100 messages a resource; from 100,000 messages on one of its resources has 10,000
(`sized_stores`; the store of 1,000,000 is the crowded one of `growth`, `start`, `resident_memory`).
With `--data-dir` they are built once and found again; the one of 1,000,000 takes minutes to build.

  starts   seconds from exec to SERVING, resources in memory by then (read ahead), and what
           `first_recalls` asks: with snapshots of everything, and without any, in turns
  memory   resident bytes of the process at the start, and after a recall in every resource; by
           default and with `--memory low`, the model and the libraries included; what has grown
           has some 10 MB of first uses in it, which are most of it in a small store
  disk     bytes by kind of file, after the sidecar has stopped: recall.db is the record,
           embeddings.db the queries that were embedded, other all the rest

The answers must be the same with snapshots and without, and in both modes of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.derived_files import make_snapshots, snapshots_set_aside
from benchmarks.first_recalls import (
    ASKED_AGAIN,
    FIRST,
    NEW_QUERY,
    Started,
    Starts,
    measure_starts,
)
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

STATES = ("there", "missing")
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
        title="Bytes on disk for each message",
        table="disk",
        x="messages",
        y="bytes_a_message",
        by=("files",),
        x_label="messages in the store",
        y_label="bytes a message",
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


def _label(sized: SizedStore, state: str) -> str:
    return f"{sized.messages} messages, snapshots {state}"


class _Rounds:
    """Starts of every store in both states of its snapshots, in turns."""

    def __init__(self, stores: Sequence[tuple[SizedStore, Path]], config: Config) -> None:
        self._config = config
        self._cases = [(sized, path, state) for sized, path in stores for state in STATES]
        self._started: dict[str, list[Started]] = {}

    def run(self, result: Result, digest: Digest) -> None:
        """All rounds, and their table.

        Raises:
            RuntimeError: the answers depend on the snapshots.
        """
        for number in range(self._config.starts):
            print(f"starts, round {number + 1}", flush=True)
            for sized, path, state in self._cases:
                started = self._start(sized, path, state, result)
                self._started.setdefault(_label(sized, state), []).append(started)
        for sized, _, state in self._cases:
            answers = [one.ids for one in self._started[_label(sized, state)]]
            expected = self._started[_label(sized, STATES[0])][0].ids
            if any(ids != expected for ids in answers):
                raise RuntimeError("the answers depend on the snapshots")
            for ids in expected if state == STATES[0] else ():
                digest.add(ids)
        result.tables["starts"] = [
            self._row(sized, state, result) for sized, _, state in self._cases
        ]

    def _start(self, sized: SizedStore, path: Path, state: str, result: Result) -> Started:
        starts = Starts(
            store=path,
            label=_label(sized, state),
            starts=1,
            resources_asked=min(self._config.resources_asked, len(sized.plan) - 1) or 1,
            seed=self._config.seed,
        )
        with snapshots_set_aside(path) if state == "missing" else nullcontext():
            return measure_starts(starts, result)

    def _row(self, sized: SizedStore, state: str, result: Result) -> dict[str, Any]:
        label = _label(sized, state)
        started = self._started[label]
        return {
            "messages": sized.messages,
            "resources": len(sized.plan),
            "snapshots": state,
            "start_s": median(one.start_s for one in started),
            "in_memory": median(one.in_memory for one in started),
            "very_first_ms": median(one.very_first_ms for one in started),
            "first_p50_ms": 1000 * result.p50_s(f"{label}: {FIRST}"),
            "first_p99_ms": 1000 * result.p99_s(f"{label}: {FIRST}"),
            "new_query_p50_ms": 1000 * result.p50_s(f"{label}: {NEW_QUERY}"),
            "asked_again_p50_ms": 1000 * result.p50_s(f"{label}: {ASKED_AGAIN}"),
        }


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


def _disk_rows(sized: SizedStore, store: Path) -> list[dict[str, Any]]:
    return [
        {
            "messages": sized.messages,
            "files": kind,
            "mb": size / 1e6,
            "bytes_a_message": size / sized.messages,
        }
        for kind, size in disk_bytes(store / "data").items()
    ]


def _built(sized: SizedStore, directory: Path) -> Path:
    """The store's directory, with snapshots of everything."""
    store = sized.build_in(directory)
    in_snapshots = make_snapshots(store)
    if in_snapshots != sized.messages:
        raise RuntimeError(f"{in_snapshots} of {sized.messages} messages are in snapshots")
    return store


def measure(config: Config) -> Result:
    """Build the stores that are not there, start sidecars on each, measure."""
    measured = measured_resource(config.largest, config.seed)
    sizes = with_small_resources(sizes_of(config.sizes), measured, config.resource_messages)
    result, digest = Result(charts=CHARTS), Digest()
    with stores_in(config.data_dir) as directory:
        stores = [(sized, _built(sized, directory)) for sized in sizes]
        _Rounds(stores, config).run(result, digest)
        result.tables["disk"] = [row for one in stores for row in _disk_rows(*one)]
        for sized, store in stores:
            digest.add([_measure_memory(sized, store, result)])
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
