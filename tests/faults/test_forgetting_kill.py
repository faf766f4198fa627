"""kill -9 in the middle of a Forget and of a purge: the next start goes on where it was."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from support.canaries import Canary, Flock, Traces, found_in
from support.fake_embedder import FakeEmbedder
from support.fault_report import FaultRun, seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, NIGHTLY

FIRST_NS = 1_700_000_000 * 10**9
CALL_SECONDS = 60.0
MANY = 2_400
"""Messages that a Forget removes in several transactions."""

FORGET_SECONDS, PURGE_SECONDS = 0.05, 0.15
"""About as long as they take: the kill comes at any time before."""

KILLS = {"quick": 6, NIGHTLY: 100}


def index(sidecar: FaultSidecar, messages: list[types_pb2.Message]) -> None:
    for start in range(0, len(messages), 1000):
        request = recall_pb2.IndexRequest(resource_id="u", messages=messages[start : start + 1000])
        answer = sidecar.stubs.recall.Index(request, timeout=CALL_SECONDS)
        assert {r.status for r in answer.results} == {types_pb2.STATUS_INDEXED}


def killed_within(
    sidecar: FaultSidecar, run: FaultRun, call: Callable[[], object], seconds: float
) -> None:
    """Make a call and kill the process while it goes on, or soon after."""

    def calling() -> None:
        with suppress(grpc.RpcError):
            call()
            run.count("calls that ended before the kill")

    thread = threading.Thread(target=calling)
    thread.start()
    thread.join(run.random.uniform(0.0, seconds))
    sidecar.kill()
    thread.join()
    run.count("kills")
    sidecar.start()


def forget(sidecar: FaultSidecar, *, purged: bool = False) -> recall_pb2.ForgetResponse:
    request = recall_pb2.ForgetRequest(resource_id="u", thread_id="goes", purge=purged)
    return sidecar.stubs.recall.Forget(request, timeout=CALL_SECONDS)


def purge(sidecar: FaultSidecar) -> admin_pb2.PurgeResponse:
    return sidecar.stubs.admin.Purge(admin_pb2.PurgeRequest(), timeout=CALL_SECONDS)


def listed(sidecar: FaultSidecar) -> set[str]:
    request = recall_pb2.ListMessagesRequest(resource_id="u", thread_id="stays", page_size=1000)
    page = sidecar.stubs.recall.ListMessages(request, timeout=CALL_SECONDS)
    return {message.id for message in page.messages}


def messages_of(sidecar: FaultSidecar) -> int:
    return sidecar.stubs.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20).messages


@pytest.mark.parametrize("column", COLUMNS)
def test_a_killed_forget_is_repeated_and_leaves_nothing(column: str, tmp_path: Path) -> None:
    with seeded("F30, kills of Forget", tmp_path / "data") as run:
        flock = Flock(run.seed)
        goes = [
            types_pb2.Message(
                id=flock.word("id"), text=flock.word("text"), thread_id="goes", role=1
            )
            for _ in range(MANY)
        ]
        stays = [flock.make("stays", "Ann", FIRST_NS + i).message for i in range(30)]
        traces = Traces()
        traces.add_words("words", [word for m in goes for word in (m.id, m.text)])
        with FaultSidecar(tmp_path, "--purge-interval-ms", "0") as sidecar:
            index(sidecar, [*goes[: MANY // 2], *stays, *goes[MANY // 2 :]])
            for _ in run.cycles(KILLS[column] // 2):
                killed_within(sidecar, run, lambda: forget(sidecar), FORGET_SECONDS)
                assert listed(sidecar) == {m.id for m in stays}
            removed = forget(sidecar, purged=True)
            run.count("messages left for the last call", removed.messages)
            assert removed.purged
            assert messages_of(sidecar) == len(stays)
            assert listed(sidecar) == {m.id for m in stays}
            sidecar.kill()
            assert found_in([sidecar.data], traces) == Counter()


@pytest.mark.parametrize("column", COLUMNS)
def test_a_killed_purge_is_taken_up_by_the_next_start(column: str, tmp_path: Path) -> None:
    with seeded("F30, kills of purges", tmp_path / "data") as run:
        flock = Flock(run.seed)
        stays: list[Canary] = []
        with FaultSidecar(tmp_path) as sidecar:
            for cycle in run.cycles(KILLS[column]):
                goes = [flock.make("goes", "Bob", FIRST_NS + cycle) for _ in range(40)]
                stays.append(flock.make("stays", "Ann", FIRST_NS + cycle))
                index(sidecar, [c.message for c in [*goes, stays[-1]]])
                if cycle % 2 == 0:
                    sidecar.stubs.admin.CreateSnapshot(
                        admin_pb2.CreateSnapshotRequest(), timeout=CALL_SECONDS
                    )
                assert forget(sidecar).messages == len(goes)
                killed_within(sidecar, run, lambda: purge(sidecar), PURGE_SECONDS)
                wait_until_purged(sidecar)
                sidecar.kill()
                traces = Traces()
                for canary in goes:
                    traces.add_canary(canary, FakeEmbedder())
                others = Traces()
                for canary in stays:
                    others.add_canary(canary, FakeEmbedder())
                traces.leave_out(others.kinds)
                assert found_in([sidecar.data], traces) == Counter()
                sidecar.start()
                assert listed(sidecar) == {c.message.id for c in stays}


def wait_until_purged(sidecar: FaultSidecar) -> None:
    """Nobody asks for it: a start takes up what the last process did not end."""
    pause = threading.Event()
    for _ in range(3_000):
        stats = sidecar.stubs.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20)
        if not stats.purge_pending:
            return
        pause.wait(0.02)
    raise AssertionError("it was not purged")
