"""Everything at once, for a minute: index, edit, recall, forget, purge, images, snapshots, moves,
verification, exports, restores that must be refused, and callers that leave.

A model agrees with every recall while it goes on, and with everything at the end. Memory, threads,
open files and logs stay where they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2
from support.fault_model import AckModel
from support.fault_report import FaultRun, seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, size
from support.fault_workload import EVERYTHING, SHARED, Workload
from support.process_gauges import Watched

WEIGHTS = {**EVERYTHING, "images": 1, "save": 1, "purge": 1}
FLAGS = ("--snapshot-interval-ms", "500", "--purge-interval-ms", "2000")
ENVIRONMENT = {"PYTHONFAULTHANDLER": "1"}
PAUSE_S = 0.02
CALL_SECONDS = 60.0
GROWTH_BYTES_MAX = 160 * 1024 * 1024
THREADS_MORE_MAX = 8
HANDLES_MORE_MAX = 24
LOG_BYTES_MAX = 64 * 1024 * 1024
LINES_A_SECOND_MAX = 5.0
SAMPLE = 60
SECONDS_LEAST = 5


class Beside:
    """Calls that change nothing that the model knows, each on a thread of its own."""

    def __init__(self, sidecar: FaultSidecar, run: FaultRun) -> None:
        self._sidecar = sidecar
        self._run = run
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.faults: list[str] = []
        steps = (
            self._verify,
            self._export,
            self._listed,
            self._refused,
            self._counts,
            self._leave,
            self._leave,
        )
        self._threads = [
            threading.Thread(target=self._repeat, args=(step,), name="beside") for step in steps
        ]

    def begin(self) -> None:
        """Until `end`."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Wait for the last calls."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * CALL_SECONDS)
            assert not thread.is_alive(), "a call does not end"

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                step()
            except Exception as error:
                self.faults.append(f"{step.__name__}: {type(error).__name__}: {error}")
                return
            with self._lock:
                self._run.count(step.__name__.strip("_"))

    def _verify(self) -> None:
        """Nothing is damaged, and no change on its way is taken for damage."""
        request = admin_pb2.VerifyRequest()
        events = list(self._sidecar.stubs.admin.Verify(request, timeout=CALL_SECONDS))
        found = [event.finding for event in events if event.HasField("finding")]
        assert found == [], found[:3]

    def _export(self) -> None:
        request = admin_pb2.ExportRequest(resource_id=SHARED, with_vectors=True)
        answers = list(self._sidecar.stubs.admin.Export(request, timeout=CALL_SECONDS))
        assert {answer.message.resource_id for answer in answers} <= {SHARED}

    def _listed(self) -> None:
        """Snapshots; the workload deletes them."""
        request = admin_pb2.ListSnapshotsRequest()
        listed = self._sidecar.stubs.admin.ListSnapshots(request, timeout=CALL_SECONDS)
        names = [snapshot.name for snapshot in listed.snapshots]
        assert len(set(names)) == len(names), names

    def _refused(self) -> None:
        """Names that are none, and a restore into a store that has messages."""
        admin = self._sidecar.stubs.admin
        for name in ("../recall.db", "none"):
            request = admin_pb2.RestoreSnapshotRequest(name=name)
            code = _code(lambda r=request: admin.RestoreSnapshot(r, timeout=CALL_SECONDS))
            assert code in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.FAILED_PRECONDITION,
            ), code
        request = admin_pb2.ReembedRequest()
        code = _code(lambda: list(admin.Reembed(request, timeout=CALL_SECONDS)))
        assert code is grpc.StatusCode.FAILED_PRECONDITION, code

    def _counts(self) -> None:
        request = admin_pb2.GetStatsRequest()
        stats = self._sidecar.stubs.admin.GetStats(request, timeout=CALL_SECONDS)
        assert stats.damaged == 0, stats

    def _leave(self) -> None:
        """Recalls, embeddings and streams whose callers go away at some moment."""
        recall = self._sidecar.stubs.recall
        request = recall_pb2.RecallRequest(
            resource_id=SHARED, query=f"lantern {time.monotonic_ns()}", request_id="r"
        )
        texts = recall_pb2.EmbedRequest(texts=[f"orchard {time.monotonic_ns()}"] * 4)
        calls: list[Any] = [
            recall.Recall.future(request, timeout=CALL_SECONDS),
            recall.Embed.future(texts, timeout=CALL_SECONDS),
            recall.RecallStream(iter([request]), timeout=CALL_SECONDS),
        ]
        self._stop.wait(0.002)
        for call in calls:
            call.cancel()


def _code(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return code
    return grpc.StatusCode.OK


@pytest.mark.slow
@pytest.mark.timeout(10_800)
@pytest.mark.parametrize("column", COLUMNS)
def test_everything_at_once(tmp_path: Path, column: str) -> None:
    wanted = size("F13_HAMMER_SECONDS", column)
    sidecar = FaultSidecar(tmp_path, *FLAGS, environment=ENVIRONMENT)
    with seeded("F13 hammer", sidecar.data, seconds=wanted) as run, sidecar:
        seconds = run.fitted(wanted, SECONDS_LEAST, a_second=0.8)
        model = AckModel()
        workload = Workload(model, run.random, weights=WEIGHTS, goes_on=True)
        beside = Beside(sidecar, run)
        workload.begin(sidecar.stubs)
        workload.wait_for_acks(200)
        beside.begin()
        with Watched(sidecar.pid) as watched:
            _keep_on(workload, seconds)
        workload.end()
        beside.end()
        for kind, count in workload.counts.calls.items():
            run.count(kind, count)
        assert set(workload.counts.errors) <= {"ALREADY_EXISTS"}, workload.counts.errors
        model.check(sidecar.stubs, chance=run.random, sample=SAMPLE)
        told = [line for line in sidecar.said if "damaged" in line or "corrupt" in line]
        assert beside.faults == [], (beside.faults[:3], told[:5])
        _stays_flat(run, watched, seconds)
        _logs_little(sidecar, seconds)
        assert sidecar.stop() == 0, sidecar.said[-20:]


def _keep_on(workload: Workload, seconds: float) -> None:
    """Until the time is over, or a worker has found a fault."""
    until = time.monotonic() + seconds
    poll = threading.Event()
    while time.monotonic() < until and not workload.faults:
        poll.wait(0.1)


def _stays_flat(run: FaultRun, watched: Watched, seconds: float) -> None:
    grown = watched.growth_bytes()
    run.count("KiB of memory more", grown // 1024)
    run.count("bytes a second more", int(watched.slope_bytes() / 0.25))
    assert grown < GROWTH_BYTES_MAX, grown
    before, after = watched.halves("threads")
    assert after <= before + THREADS_MORE_MAX, (before, after)
    before, after = watched.halves("handles")
    assert after <= before + HANDLES_MORE_MAX, (before, after)


def _logs_little(sidecar: FaultSidecar, seconds: float) -> None:
    lines = len(sidecar.said)
    assert lines < 100 + LINES_A_SECOND_MAX * seconds, sidecar.said[-20:]
    assert not [line for line in sidecar.said if "Traceback" in line or "Fatal" in line]
    assert not sidecar.logged("internal_error")
    size_bytes = sum(file.stat().st_size for file in sidecar.data.glob("*-wal"))
    assert size_bytes < LOG_BYTES_MAX, size_bytes
