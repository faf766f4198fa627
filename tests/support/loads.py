"""What tests of the load tool share: small plans, sidecars to send them to, counts of their own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from semanticrecall import RecallClient
from semanticrecall.connection import connection
from semanticrecall.load.measured import (
    HISTOGRAM_US_MAX,
    SIGNIFICANT_DIGITS,
    Operation,
    WorkerOperation,
    WorkerSecond,
    WorkerStage,
)
from semanticrecall.load.plan import Arrivals, LoadPlan, Loop, Stage, Workload
from semanticrecall.load.result import FindingCode, LoadResult
from semanticrecall.load.run import Observer
from support.running_engine import Running
from support.running_server import InProcessServer, parts_of, running

PREFIX = "load-test-"
# A resource that is none of a load's.
OTHERS = "of somebody"


def plan(address: str, *, workload: Workload | None = None, **fields: Any) -> LoadPlan:
    """A plan of 40 calls in 0.4 seconds, one process; `fields` are the plan's."""
    values: dict[str, Any] = {
        "connection": connection(address, {"timeout": 20.0, "connect_timeout": 5.0}),
        "workload": workload if workload is not None else work(),
        "arrivals": Arrivals.CONSTANT,
        "stages": (Stage(rate_per_s=100, duration_s=0.4),),
        "warm_up_s": 0.0,
        "ramp_s": 0.0,
        "processes": 1,
    }
    return LoadPlan(**(values | fields))


def closed(*in_flight: int, duration_s: float = 0.4) -> dict[str, Any]:
    """The fields of a closed loop."""
    stages = tuple(Stage(in_flight=number, duration_s=duration_s) for number in in_flight)
    return {"loop": Loop.CLOSED, "stages": stages}


def work(**fields: Any) -> Workload:
    """Four made-up resources of six messages each, short texts."""
    values: dict[str, Any] = {
        "resources": 4,
        "threads": 2,
        "messages_before": 6,
        "resource_prefix": PREFIX,
    }
    return Workload(**(values | fields))


@contextlib.contextmanager
def small_sidecar(directory: Path, **settings: Any) -> Iterator[InProcessServer]:
    """The real server over a real store and index, in this process, without a model."""
    with running(directory, parts_of(Running(directory / "store").engine), **settings) as server:
        yield server


def address_of(server: InProcessServer) -> str:
    """Where it listens."""
    return server.sidecar.addresses[0].target


def left(address: str, **options: Any) -> int:
    """Messages in the store."""
    with RecallClient(address, timeout=30, **options) as memory:
        return memory.stats().messages


def codes(result: LoadResult) -> set[FindingCode]:
    """What was found."""
    return {finding.code for finding in result.findings}


def calls(server: InProcessServer, method: str, code: str = "OK") -> int:
    """How many calls of a method ended so, by the server's own count."""
    for line in server.sidecar.metrics.text().decode().splitlines():
        if line.startswith("semanticrecall_calls_total{"):
            labels, _, count = line.rpartition(" ")
            if f'method="{method}"' in labels and f'code="{code}"' in labels:
                return int(float(count))
    return 0


def encoded(values_us: Sequence[int]) -> bytes:
    """The library's own encoding of these times."""
    histogram = HdrHistogram(1, HISTOGRAM_US_MAX, SIGNIFICANT_DIGITS)
    for value in values_us:
        histogram.record_value(value)
    return bytes(histogram.encode())


def worker_second(
    second: int, recalls_us: Sequence[int] = (), indexes_us: Sequence[int] = (), **fields: Any
) -> WorkerSecond:
    """A second with these answers."""
    given = {Operation.RECALL: recalls_us, Operation.INDEX: indexes_us}
    answered = len(recalls_us) + len(indexes_us)
    values: dict[str, Any] = {
        "started": answered,
        "finished": answered,
        "failed": 0,
        "in_flight": 0,
        "errors": {},
        "latencies": {name: encoded(us) for name, us in given.items() if us},
    }
    return WorkerSecond(second=second, **(values | fields))


def worker_operation(
    latencies_us: Sequence[int] = (), failed_us: Sequence[int] = (), **fields: Any
) -> WorkerOperation:
    """An operation with these answers."""
    values: dict[str, Any] = {
        "latency": encoded(latencies_us),
        "service": encoded([max(1, us // 2) for us in latencies_us]),
        "failed_latency": encoded(failed_us),
    }
    return WorkerOperation(**(values | fields))


def worker_stage(worker: int = 0, **fields: Any) -> WorkerStage:
    """A stage in which nothing happened, but for `fields`."""
    values: dict[str, Any] = {
        **dict.fromkeys(("scheduled", "started", "finished", "unfinished"), 0),
        **dict.fromkeys(("lateness", "client_lateness", "loop_lag"), encoded(())),
        "wall_s": 1.0,
        "cpu_s": 0.0,
        "drain_s": 0.0,
        "digest": f"{worker:016x}",
        "operations": {},
    }
    return WorkerStage(worker=worker, **(values | fields))


@dataclasses.dataclass
class Told(Observer):
    """Keeps what an observer is told."""

    phases: list[str] = dataclasses.field(default_factory=list)
    processes: list[int] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    seconds: list[tuple[int, WorkerSecond]] = dataclasses.field(default_factory=list)
    done: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def phase(self, name: str, *, seconds: float = 0.0, processes: int = 0) -> None:
        self.phases.append(name)
        self.processes.append(processes)

    def progress(self, done: int, total: int) -> None:
        self.done.append((done, total))

    def second(self, worker: int, second: WorkerSecond) -> None:
        self.seconds.append((worker, second))

    def note(self, text: str) -> None:
        self.notes.append(text)
