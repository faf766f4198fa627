"""Places: calls, streams and exports never keep each other out, nor health checks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from semanticrecall.v1 import admin_pb2, recall_pb2, vectors_pb2
from semanticrecall_core.types.errors import ResourceExhaustedError
from semanticrecall_server import gate
from semanticrecall_server.gate import Gate, Kind
from semanticrecall_server.health import WATCHES_MAX
from support.fake_engine import MESSAGE, FakeEngine
from support.running_server import InProcessServer, error_detail, parts_of, running
from support.stored_messages import changed

SMALL = {
    "calls_in_flight_max": 12,
    "recalls_in_flight_max": 2,
    "index_in_flight_max": 2,
    "index_threads": 2,
    "admin_in_flight_max": 2,
    "collection_reads_in_flight_max": 2,
    "streams_open_max": 3,
}
CHECK = health_pb2.HealthCheckRequest()
FORGET = recall_pb2.ForgetRequest(resource_id="alice", everything=True)
COLLECTIONS = vectors_pb2.ListCollectionsRequest(resource_id="alice")
RECALL = recall_pb2.RecallRequest(resource_id="alice", query="turkey", request_id="r1")


@pytest.fixture
def small(engine: FakeEngine, tmp_path: Path) -> Iterator[InProcessServer]:
    with running(tmp_path, parts_of(engine), **SMALL) as serving:
        yield serving


class Silent:
    """Clients that open a stream and send nothing until the end."""

    def __init__(self) -> None:
        self._done = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        self._done.wait(60)
        yield from ()

    def end(self) -> None:
        self._done.set()


def refusal(call: Any) -> grpc.RpcError:
    """How the server ends a call, which must say when to come back, in both ways."""
    with pytest.raises(grpc.RpcError) as refused:
        call()
    error = refused.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    detail = error_detail(error)
    assert (detail.reason, detail.retryable) == ("QUEUE_FULL", True)
    assert detail.retry_after_ms > 0
    packed = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(packed)
    retry = error_details_pb2.RetryInfo()
    assert any(part.Unpack(retry) for part in status.details)
    assert retry.retry_delay.ToMilliseconds() == detail.retry_after_ms
    return error


def test_idle_streams_keep_no_call_out_and_one_too_many_is_told(small: InProcessServer) -> None:
    silent = Silent()
    kinds = (small.recall.IndexStream, small.recall.RecallStream, small.recall.IndexStream)
    streams = [open_stream(iter(silent), timeout=60) for open_stream in kinds]
    small.wait_until(lambda: small.sidecar.calls_inside == 3)
    refusal(lambda: next(small.recall.RecallStream(iter([RECALL]), timeout=20)))
    assert small.recall.Recall(RECALL, timeout=20).request_id == "r1"
    assert small.health.Check(CHECK, timeout=20).status == health_pb2.HealthCheckResponse.SERVING
    silent.end()
    assert [list(stream) for stream in streams] == [[]] * 3
    small.wait_until(lambda: small.sidecar.calls_inside == 0)
    assert len(list(small.recall.RecallStream(iter([RECALL]), timeout=20))) == 1


def test_more_calls_than_places_are_told_when_to_come_back(
    small: InProcessServer, engine: FakeEngine
) -> None:
    """Waiting ones are calls too: two of each lane wait, two of each are worked on."""
    embedding = engine.hold_embedding()
    calls = [small.recall.Index.future(index(), timeout=60) for _ in range(2)]
    calls += [small.recall.Recall.future(recall_after(), timeout=60) for _ in range(2)]
    for lane in ("index", "recall"):
        small.wait_until(lambda lane=lane: small.reading(f'waiting{{lane="{lane}"}}') == 2)
    release = threading.Event()
    engine.on_call = lambda name, budget: wait_for(release)
    calls += [small.recall.Recall.future(RECALL, timeout=60) for _ in range(2)]
    calls += [small.recall.Forget.future(FORGET, timeout=60) for _ in range(2)]
    calls += [small.admin.GetStats.future(admin_pb2.GetStatsRequest(), timeout=60)]
    calls += [small.admin.GetStats.future(admin_pb2.GetStatsRequest(), timeout=60)]
    calls += [small.vectors.ListCollections.future(COLLECTIONS, timeout=60) for _ in range(2)]
    small.wait_until(lambda: small.sidecar.calls_inside == SMALL["calls_in_flight_max"])
    error = refusal(lambda: small.recall.Recall(RECALL, timeout=20))
    assert error.details() == "the server has as many calls as it takes on; come back later"
    assert small.health.Check(CHECK, timeout=20).status == health_pb2.HealthCheckResponse.SERVING
    assert list(small.recall.IndexStream(iter(()), timeout=20)) == []
    release.set()
    embedding.set_result(None)
    for call in calls:
        call.result(20)


def wait_for(event: threading.Event) -> None:
    assert event.wait(20)


def index() -> recall_pb2.IndexRequest:
    return recall_pb2.IndexRequest(
        resource_id="alice", thread_id="t", messages=[{"id": "m", "role": 1, "text": "x"}]
    )


def recall_after() -> recall_pb2.RecallRequest:
    return recall_pb2.RecallRequest(resource_id="alice", query="q", read_token="1.x.y.9")


def test_the_gate_counts_by_kind() -> None:
    made = Gate({Kind.CALL: 1, Kind.STREAM: 1, Kind.EXPORT: 1})
    services: Any = object()
    made.open(services)
    with made.enter(Kind.CALL), made.enter(Kind.STREAM), made.enter(Kind.EXPORT):
        assert made.inside == 3
        for kind in Kind:
            with pytest.raises(ResourceExhaustedError, match=kind.value), made.enter(kind):
                pass
        assert made.inside == 3
    assert made.inside == 0
    with made.enter(Kind.CALL) as inside:
        assert inside is services


def test_watches_are_bounded_and_checks_are_not(small: InProcessServer) -> None:
    watches = [small.health.Watch(CHECK, timeout=60) for _ in range(WATCHES_MAX)]
    for watch in watches:
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    refusal(lambda: next(small.health.Watch(CHECK, timeout=20)))
    assert small.health.Check(CHECK, timeout=20).status == health_pb2.HealthCheckResponse.SERVING
    watches.pop().cancel()

    def watched_again() -> bool:
        try:
            return bool(next(small.health.Watch(CHECK, timeout=20)).status)
        except grpc.RpcError:
            return False

    small.wait_until(watched_again)
    for watch in watches:
        watch.cancel()


# ---- streams on which nothing moves ----


def test_a_silent_stream_is_ended_and_says_why(engine: FakeEngine, tmp_path: Path) -> None:
    with running(tmp_path, parts_of(engine), stream_idle_timeout_ms=50) as server:
        silent = Silent()
        for open_stream in (server.recall.RecallStream, server.recall.IndexStream):
            with pytest.raises(grpc.RpcError) as ended:
                next(open_stream(iter(silent), timeout=60))
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            detail = error_detail(ended.value)
            assert (detail.reason, detail.retryable) == ("STREAM_IDLE", True)
        silent.end()
        assert server.sidecar.calls_inside == 0


def test_a_stream_that_waits_for_the_server_is_not_idle(engine: FakeEngine, tmp_path: Path) -> None:
    with running(tmp_path, parts_of(engine), stream_idle_timeout_ms=50) as server:
        held = engine.hold("recall")
        silent = Silent()

        def requests() -> Iterator[Any]:
            yield RECALL
            yield from silent

        answers = server.recall.RecallStream(requests(), timeout=60)
        # The other stream lives and dies in the meantime: more than an idle time has passed.
        assert held.entered.wait(20)
        with pytest.raises(grpc.RpcError):
            next(server.recall.IndexStream(iter(silent), timeout=60))
        held.release.set()
        assert next(answers).request_id == "r1"
        with pytest.raises(grpc.RpcError) as ended:
            next(answers)
        assert error_detail(ended.value).reason == "STREAM_IDLE"
        silent.end()


ANSWERS = 40


def answers_of(server: InProcessServer, method: str, silent: Silent) -> Any:
    """A stream with more in it than gRPC buffers, 1 MiB an answer."""
    if method == "Export":
        return server.admin.Export(admin_pb2.ExportRequest(resource_id="alice"), timeout=60)

    def requests() -> Iterator[Any]:
        for i in range(ANSWERS):
            yield recall_pb2.RecallRequest(resource_id="alice", query="q", request_id=f"r{i}")
        yield from silent

    return server.recall.RecallStream(requests(), timeout=60)


def fill(engine: FakeEngine) -> None:
    large = changed(MESSAGE, payload=b"x" * 1024 * 1024)
    engine.recalled = large
    engine.history = [changed(large, seq=i, id=f"m{i}") for i in range(ANSWERS)]


@pytest.mark.parametrize("method", ["RecallStream", "Export"])
def test_a_client_that_does_not_read_loses_its_place(
    engine: FakeEngine, tmp_path: Path, method: str
) -> None:
    fill(engine)
    silent = Silent()
    with running(tmp_path, parts_of(engine), stream_idle_timeout_ms=50) as server:
        answers = answers_of(server, method, silent)
        server.wait_until(lambda: server.sidecar.calls_inside == 1)
        server.wait_until(lambda: server.sidecar.calls_inside == 0)
        read: list[Any] = []
        with pytest.raises(grpc.RpcError) as ended:
            read.extend(answers)
        assert error_detail(ended.value).reason == "STREAM_IDLE"
        assert len(read) < ANSWERS
        silent.end()


def test_answers_that_no_client_reads_are_bounded(engine: FakeEngine, tmp_path: Path) -> None:
    fill(engine)
    silent = Silent()
    room = 8 * 1024 * 1024
    with running(tmp_path, parts_of(engine), bytes_in_flight_max=room) as server:
        streams = [answers_of(server, "RecallStream", silent) for _ in range(2)]
        # Nobody reads until every recall is done.
        server.wait_until(lambda: len(engine.queries) == 2 * ANSWERS)
        server.wait_until(lambda: server.in_flight("recall") == 0)
        read = [[next(answers) for _ in range(ANSWERS)] for answers in streams]
        silent.end()
    for answers in read:
        assert {answer.request_id for answer in answers} == {f"r{i}" for i in range(ANSWERS)}
    refused = [a.error.reason for answers in read for a in answers if a.HasField("error")]
    assert set(refused) == {"QUEUE_FULL"}
    # What was held at once, and what gRPC's own buffers had taken before.
    assert len(refused) >= ANSWERS


def test_open_exports_are_bounded_while_they_are_open(
    small: InProcessServer, engine: FakeEngine
) -> None:
    fill(engine)
    unread = [answers_of(small, "Export", Silent()) for _ in range(2)]
    for answers in unread:
        assert next(answers).message.id == "m0"
    refusal(lambda: next(answers_of(small, "Export", Silent())))
    assert small.recall.Recall(RECALL, timeout=20).request_id == "r1"
    unread[0].cancel()
    small.wait_until(lambda: small.sidecar.calls_inside == 1)
    assert next(answers_of(small, "Export", Silent())).message.id == "m0"
    unread[1].cancel()


def test_clients_that_never_read_are_not_let_in_without_end(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LEAVING_MAX", 1)
    fill(engine)
    with running(tmp_path, parts_of(engine), stream_idle_timeout_ms=50) as server:
        unread = answers_of(server, "Export", Silent())
        server.wait_until(lambda: server.sidecar.calls_inside == 1)
        server.wait_until(lambda: server.sidecar.calls_inside == 0)
        refusal(lambda: next(server.recall.RecallStream(iter([RECALL]), timeout=20)))
        assert server.recall.Recall(RECALL, timeout=20).request_id == "r1"
        unread.cancel()

        def let_in() -> bool:
            try:
                return bool(next(server.recall.RecallStream(iter([RECALL]), timeout=20)))
            except grpc.RpcError:
                return False

        server.wait_until(let_in)
