"""Verify and its repair over a real socket, on a real store that was damaged while it was down."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import grpc
import pytest
from grpc_health.v1 import health_pb2

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.engine.verification import VerifyEvent
from semanticrecall_core.types.values import CallBudget, Finding
from semanticrecall_server.admin import things_damaged
from semanticrecall_server.verifying_calls import verify
from support.damaged_engine import on_record
from support.fake_engine import FakeEngine
from support.running_server import InProcessServer, ServerProcess, Stubs, parts_of, running

TEXTS = {
    "m1": "My sister's dog is called Biscuit.",
    "m2": "The boiler was repaired in March.",
    "m3": "Please book the train to Lisbon for Friday.",
}


def verified(
    stubs: Stubs, *, repair: bool = False, resource: str = ""
) -> tuple[list[tuple[str, str, bool]], admin_pb2.VerifySummary]:
    """(kind, message, repaired) of the findings, and the summary."""
    request = admin_pb2.VerifyRequest(resource_id=resource, repair=repair)
    events = [
        event
        for event in stubs.admin.Verify(request, timeout=60)
        if event.WhichOneof("event") != "progress"
    ]
    assert events[-1].WhichOneof("event") == "summary"
    findings = [event.finding for event in events[:-1]]
    found = sorted((f.kind, f.message_id, f.repaired) for f in findings)
    assert events[-1].summary.findings == len(found)
    return found, events[-1].summary


def test_every_event_of_the_engine_reaches_the_caller(
    server: InProcessServer, engine: FakeEngine
) -> None:
    request = admin_pb2.VerifyRequest(repair=True)
    progress, finding, summary = server.admin.Verify(request, timeout=20)
    assert progress.progress == admin_pb2.VerifyProgress(stage="messages", done=1, total=2)
    assert finding.finding == admin_pb2.Finding(
        kind="VECTOR_MISSING",
        resource_id="alice",
        message_id="m1",
        detail="row 7",
        repaired=True,
    )
    assert summary.summary == admin_pb2.VerifySummary(
        messages=1,
        vectors=2,
        findings=1,
        repaired=1,
        analyses=3,
        images=4,
        snapshots=5,
        self_test_recalls=6,
        self_test_failures=7,
    )
    _, finding, _ = server.admin.Verify(admin_pb2.VerifyRequest(), timeout=20)
    assert not finding.finding.repaired


def test_damage_is_counted_for_those_who_watch(server: InProcessServer) -> None:
    lines = server.sidecar.metrics.text().decode().splitlines()
    assert 'semanticrecall_damaged_total{kind="vector"} 2.0' in lines
    assert 'semanticrecall_damaged_total{kind="page"} 0.0' in lines
    stats = server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20)
    assert stats.damaged == 1 + 2 + 3


def test_one_damaged_page_counts_once_however_often_it_is_read() -> None:
    assert things_damaged({"message": 1, "vector": 2, "words": 0, "page": 207, "mark": 1}) == 5
    assert things_damaged({"message": 0, "page": 0}) == 0


def test_progress_is_sent_when_it_is_there() -> None:
    """A batch that waits for more would keep it for as long as nothing is found."""
    batches = verify(FakeEngine(), admin_pb2.VerifyRequest(), CallBudget.of_seconds(20))  # type: ignore[arg-type]
    assert len(next(batches)) == 1


@pytest.mark.parametrize("resource", ["x" * 5_000, "\x00"])
def test_a_resource_that_cannot_be_is_refused(server: InProcessServer, resource: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(server.admin.Verify(admin_pb2.VerifyRequest(resource_id=resource), timeout=20))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory that a sidecar has worked in."""
    with sidecar(tmp_path) as server:
        stubs = stubs_of(server, tmp_path)
        messages = [
            types_pb2.Message(id=name, role=types_pb2.ROLE_USER, text=text)
            for name, text in TEXTS.items()
        ]
        request = recall_pb2.IndexRequest(resource_id="alice", thread_id="t", messages=messages)
        stubs.recall.Index(request, timeout=60)
        assert verified(stubs)[0] == []
        stubs.close()
        server.signal(signal.SIGTERM)
        assert server.wait()[0] == 0
    return tmp_path


def sidecar(home: Path) -> ServerProcess:
    listen = f"unix:{home}/s.sock"
    return ServerProcess(["--data-dir", str(home / "data"), "--listen", listen])


def stubs_of(server: ServerProcess, home: Path) -> Stubs:
    server.wait_for("serving")
    return Stubs(f"unix:{home}/s.sock")


def history(stubs: Stubs) -> list[str]:
    request = recall_pb2.ListMessagesRequest(resource_id="alice")
    return sorted(m.id for m in stubs.recall.ListMessages(request, timeout=20).messages)


@pytest.mark.model
def test_a_real_sidecar_serves_the_rest_and_mends_itself(home: Path) -> None:
    data = home / "data"
    on_record(data, "UPDATE messages SET encoded = x'ff' WHERE id = 'm2'")
    on_record(data, "UPDATE vectors SET checksum = checksum + 1 WHERE seq = 1")
    with sidecar(home) as server:
        stubs = stubs_of(server, home)
        assert history(stubs) == ["m1", "m3"]
        named = recall_pb2.GetMessagesRequest(resource_id="alice", message_ids=["m2"])
        with pytest.raises(grpc.RpcError) as lost:
            stubs.recall.GetMessages(named, timeout=20)
        assert lost.value.code() is grpc.StatusCode.DATA_LOSS
        stats = stubs.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20)
        assert stats.damaged >= 1
        found, _ = verified(stubs)
        assert ("ROW_CORRUPT", "m2", False) in found
        found, summary = verified(stubs, repair=True)
        assert ("MESSAGE_LOST", "m2", False) in found
        assert "ROW_CORRUPT" not in {kind for kind, _, _ in found}  # it is not mended
        assert all(repaired for kind, _, repaired in found if kind != "MESSAGE_LOST")
        assert (summary.lost, summary.repaired) == (1, summary.findings - 1)
        assert summary.self_test_failures == 0
        assert verified(stubs)[0] == []
        assert history(stubs) == ["m1", "m3"]
        query = recall_pb2.RecallRequest(resource_id="alice", query=TEXTS["m1"], top_k=1)
        assert stubs.recall.Recall(query, timeout=60).messages[0].message.id == "m1"
        stubs.close()
        server.signal(signal.SIGTERM)
        status, log = server.wait()
    assert status == 0
    assert "store_row_corrupt" in log
    assert "store_messages_lost" in log
    assert TEXTS["m2"] not in log


@pytest.mark.model
def test_a_damaged_page_is_data_loss_with_the_way_out_and_health_stays(home: Path) -> None:
    """A byte between the rows of the page that holds the messages: no row of it is lost."""
    data = home / "data"
    connection = apsw.Connection(str(data / "recall.db"))
    page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages'").get
    connection.close()
    with (data / "recall.db").open("r+b") as file:
        file.seek((page - 1) * 8192 + 4000)
        byte = file.read(1)[0]
        file.seek((page - 1) * 8192 + 4000)
        file.write(bytes([byte ^ 4]))
    with sidecar(home) as server:
        stubs = stubs_of(server, home)
        with pytest.raises(grpc.RpcError) as lost:
            history(stubs)
        assert lost.value.code() is grpc.StatusCode.DATA_LOSS
        assert "verify --repair" in (lost.value.details() or "")
        health = stubs.health.Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        assert {kind for kind, _, _ in verified(stubs)[0]} == {"PAGE_DAMAGED"}
        found, summary = verified(stubs, repair=True)
        assert all(repaired for _, _, repaired in found)
        assert (summary.messages, summary.self_test_failures) == (3, 0)
        assert history(stubs) == sorted(TEXTS)
        assert verified(stubs)[0] == []
        stubs.close()


@pytest.mark.parametrize("how", ["cancelled", "deadline", "idle"])
def test_a_repair_whose_caller_is_gone_is_let_go_of_at_once(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It keeps other repairs out for as long as it is there."""
    ended = threading.Event()

    def findings(*_: object, **__: object) -> Iterator[VerifyEvent]:
        try:
            while True:
                yield Finding("VECTOR_MISSING", "alice", "m1", "row 7" * 1_000)
        finally:
            ended.set()

    monkeypatch.setattr(engine, "verify", findings)
    gc.disable()
    try:
        with running(
            tmp_path, parts_of(engine), stream_idle_timeout_ms=500 if how == "idle" else 60_000
        ) as server:
            timeout_s = 1.0 if how == "deadline" else 20.0
            call = server.admin.Verify(admin_pb2.VerifyRequest(repair=True), timeout=timeout_s)
            next(call)  # and no more: the server waits until the client reads
            if how == "cancelled":
                call.cancel()
            assert ended.wait(10)
    finally:
        gc.enable()
