"""Processes that send: all told at once, listened to, ended, and never waited for in vain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram

from semanticrecall.connection import connection
from semanticrecall.load import fleet as fleet_module
from semanticrecall.load.fleet import Fleet, SendingError
from semanticrecall.load.loops import StageTask
from semanticrecall.load.measured import Operation, WorkerSecond, WorkerStage
from semanticrecall.load.plan import LoadPlan, Stage
from support.fake_sidecar import Shelf, fake_sidecar
from support.loads import plan, work, worker_second

TOKEN = "a-token-that-nobody-may-see"
Heard = list[tuple[int, WorkerSecond]]


def never() -> bool:
    return False


def task(workers: int, duration_s: float = 0.4, **fields: float) -> Callable[[int], StageTask]:
    def of(worker: int) -> StageTask:
        return StageTask(
            stage=Stage(rate_per_s=100, duration_s=duration_s),
            number=1,
            worker=worker,
            workers=workers,
            calls_max=10_000,
            drain_s=fields.get("drain_s", 10.0),
        )

    return of


@pytest.fixture
def load(address: str) -> LoadPlan:
    given = connection(address, {"token": TOKEN, "connect_timeout": 5.0})
    return plan(address, connection=given, workload=work(recall_share=0.5))


def test_all_send_their_part_of_one_schedule(load: LoadPlan, shelf: Shelf) -> None:
    heard: Heard = []
    with Fleet(load, 2, lambda worker, second: heard.append((worker, second)), never) as fleet:
        fleet.open()
        parts = fleet.run(task(2))
        again = fleet.run(task(2, duration_s=0.2))
    assert [part.worker for part in parts] == [0, 1]
    assert [part.scheduled for part in parts] == [20, 20]
    assert [part.finished for part in again] == [10, 10]
    arrived = [seen for seen in shelf.seen if seen.method in ("Recall", "Index")]
    assert len(arrived) == 60
    assert {seen.metadata["authorization"] for seen in arrived} == {f"Bearer {TOKEN}"}
    for operation, method in ((Operation.RECALL, "Recall"), (Operation.INDEX, "Index")):
        counted = sum(
            HdrHistogram.decode(part.operations[operation].latency).total_count
            for part in (*parts, *again)
        )
        assert counted == sum(seen.method == method for seen in arrived) > 0
    for worker in (0, 1):
        of_worker = [second for number, second in heard if number == worker]
        assert of_worker == [*parts[worker].seconds, *again[worker].seconds]


def test_processes_are_gone_afterwards_and_show_no_token(load: LoadPlan) -> None:
    with Fleet(load, 2, lambda worker, second: None, never) as fleet:
        fleet.open()
        pids = [pid for pid in fleet.pids if pid is not None]
        shown = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
        shown += [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]
    assert len(pids) == 2
    assert not any(TOKEN.encode() in one for one in shown)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_signals_that_the_first_one_sees_to_do_not_reach_them(load: LoadPlan) -> None:
    def interrupt_all(worker: int, second: WorkerSecond) -> None:
        for pid in fleet.pids:
            assert pid is not None
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(pid, number)

    with Fleet(load, 2, interrupt_all, never) as fleet:
        # Before they can say anything about signals.
        interrupt_all(0, worker_second(0))
        fleet.open()
        parts = fleet.run(task(2, duration_s=1.2))
    assert [part.finished for part in parts] == [60, 60]


def test_a_stop_ends_the_stage_with_what_there_is(load: LoadPlan, shelf: Shelf) -> None:
    busy: set[int] = set()

    def hear(worker: int, second: WorkerSecond) -> None:
        if second.finished:
            busy.add(worker)

    with Fleet(load, 2, hear, lambda: len(busy) == 2) as fleet:
        fleet.open()
        parts = fleet.run(task(2, duration_s=600.0))
    assert all(part.scheduled == part.finished > 0 for part in parts)
    assert sum(part.finished for part in parts) == sum(
        seen.method in ("Recall", "Index") for seen in shelf.seen
    )


def test_a_killed_process_ends_the_stage(load: LoadPlan) -> None:
    def kill(worker: int, second: WorkerSecond) -> None:
        pid = fleet.pids[1]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    with Fleet(load, 2, kill, never) as fleet:
        fleet.open()
        pids = fleet.pids
        with pytest.raises(SendingError, match=r"sending process 2 was killed \(SIGKILL\)"):
            fleet.run(task(2, duration_s=600.0))
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_calls_that_could_not_be_sent_may_take_long_to_count(
    load: LoadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def listen(fleet: Fleet, until: float, drain_s: float) -> list[WorkerStage]:
        waits.append(until - time.monotonic())
        return []

    monkeypatch.setattr(Fleet, "_listen", listen)
    with Fleet(load, 1, lambda worker, second: None, never) as fleet:
        stage = Stage(rate_per_s=100_000, duration_s=1_000)
        for calls_max in (1, 100_000_000):
            fleet.run(lambda w, most=calls_max: replace(task(1)(w), stage=stage, calls_max=most))
    # Some 0.5 us each on a quick machine.
    assert waits[1] - waits[0] > 100_000_000 * 1e-6


def test_a_process_that_cannot_connect_says_so(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody.sock"
    absent = plan(address, connection=connection(address, {"connect_timeout": 0.2}))
    with (
        Fleet(absent, 1, lambda worker, second: None, never) as fleet,
        pytest.raises(SendingError, match="sending process 1 failed: no sidecar answers at"),
    ):
        fleet.open()


def test_a_defect_in_a_process_is_told_by_its_place(load: LoadPlan) -> None:
    def without_a_stage(worker: int) -> StageTask:
        given = task(1)(worker)
        object.__setattr__(given, "ramp_s", None)
        return given

    with Fleet(load, 1, lambda worker, second: None, never) as fleet:
        fleet.open()
        with pytest.raises(SendingError, match=r"process 1 failed: TypeError at \w+\.py:\d+"):
            fleet.run(without_a_stage)


def test_a_process_that_does_not_answer_is_not_waited_for(
    load: LoadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "MARGIN_SECONDS", 0.5)

    with Fleet(load, 1, lambda worker, second: None, never) as fleet:
        fleet.open()
        (pid,) = fleet.pids
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(SendingError, match="sending process 1 did not end its stage in time"):
            fleet.run(task(1, duration_s=0.1, drain_s=0.1))


ORPHANS = """
import sys
from semanticrecall.load.fleet import Fleet
from support.loads import plan
if __name__ == "__main__":
    with Fleet(plan(sys.argv[1]), 2, lambda worker, second: None, lambda: False) as fleet:
        fleet.open()
        print(*fleet.pids, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def orphans(address: str) -> Iterator[list[int]]:
    tests = str(Path(__file__).resolve().parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": tests},
    ) as first:
        assert first.stdout is not None
        pids = [int(word) for word in first.stdout.readline().split()]
        first.kill()
        first.wait()
        yield pids


def test_processes_whose_first_one_is_killed_end_too(orphans: list[int]) -> None:
    assert len(orphans) == 2
    until = time.monotonic() + 20
    while any(is_running(pid) for pid in orphans):
        assert time.monotonic() < until, "a process outlived the one that began it"
        threading.Event().wait(0.02)


def is_running(pid: int) -> bool:
    """Whether it is there, and not only waits to be buried by whoever inherited it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_server_that_goes_away_is_no_end_of_the_fleet(tmp_path: Path) -> None:
    gone = fake_sidecar(f"unix:{tmp_path}/s.sock", Shelf())
    address = gone.__enter__()
    once = iter([True])

    def leave(worker: int, second: WorkerSecond) -> None:
        if next(once, False):
            gone.__exit__(None, None, None)

    with Fleet(plan(address), 1, leave, never) as fleet:
        fleet.open()
        (part,) = fleet.run(task(1, duration_s=1.5))
    errors = {name: found.errors for name, found in part.operations.items()}
    assert part.scheduled == part.finished == 150
    assert sum(sum(codes.values()) for codes in errors.values()) > 0
    assert {code for codes in errors.values() for code in codes} <= {"UNAVAILABLE", "CANCELLED"}
