"""The error table, its details, and that texts of exceptions go nowhere."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.types import errors as core_errors
from semanticrecall_core.types.errors import (
    FieldViolation,
    InvalidArgumentError,
    ResourceExhaustedError,
    SemanticRecallError,
)
from semanticrecall_server.errors import error_detail as detail_of
from semanticrecall_server.errors import rich_status, status_code, trailers
from support.fake_engine import MESSAGE, FakeEngine
from support.running_server import InProcessServer, error_detail, parts_of, running
from support.stored_messages import changed

CANARY = "canary-4111-text"
RECALL = recall_pb2.RecallRequest(resource_id="alice", query="q", request_id="r1")
INDEX = recall_pb2.IndexRequest(
    resource_id="alice", thread_id="t", messages=[{"id": "m", "role": 1, "text": "x"}]
)
CODES = {
    "SemanticRecallError": grpc.StatusCode.INTERNAL,
    "InvalidArgumentError": grpc.StatusCode.INVALID_ARGUMENT,
    "NotFoundError": grpc.StatusCode.NOT_FOUND,
    "AlreadyExistsError": grpc.StatusCode.ALREADY_EXISTS,
    "FailedPreconditionError": grpc.StatusCode.FAILED_PRECONDITION,
    "ModelUnavailableError": grpc.StatusCode.FAILED_PRECONDITION,
    "StoreLockedError": grpc.StatusCode.FAILED_PRECONDITION,
    "UnsafeEnvironmentError": grpc.StatusCode.FAILED_PRECONDITION,
    "ResourceExhaustedError": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "LimitReachedError": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "DeadlineExceededError": grpc.StatusCode.DEADLINE_EXCEEDED,
    "CancelledError": grpc.StatusCode.CANCELLED,
    "UnavailableError": grpc.StatusCode.UNAVAILABLE,
    "UnimplementedError": grpc.StatusCode.UNIMPLEMENTED,
    "EmbeddingFailedError": grpc.StatusCode.UNAVAILABLE,
    "CorruptDataError": grpc.StatusCode.DATA_LOSS,
}


def all_kinds() -> dict[str, type[SemanticRecallError]]:
    return {
        name: kind
        for name, kind in vars(core_errors).items()
        if inspect.isclass(kind) and issubclass(kind, SemanticRecallError)
    }


def made(kind: type[SemanticRecallError]) -> SemanticRecallError:
    if issubclass(kind, InvalidArgumentError):
        return kind((FieldViolation("top_k", "must be positive"),))
    return kind("it went wrong")


def test_the_table_knows_every_error_of_the_engine() -> None:
    assert {name: status_code(made(kind)) for name, kind in all_kinds().items()} == CODES


@pytest.mark.parametrize("name", sorted(set(CODES) - {"SemanticRecallError"}))
def test_every_error_arrives_with_code_reason_and_details(
    server: InProcessServer, engine: FakeEngine, name: str
) -> None:
    error = made(all_kinds()[name])
    engine.fail("recall", error)
    with pytest.raises(grpc.RpcError) as failed:
        server.recall.Recall(RECALL, timeout=20)
    assert failed.value.code() is CODES[name]
    assert failed.value.details() == error.message
    detail = error_detail(failed.value)
    assert detail.code == CODES[name].value[0]
    assert (detail.message, detail.reason) == (error.message, error.reason)
    assert (detail.retryable, detail.retry_after_ms) == (error.retryable, error.retry_after_ms)
    status = status_pb2.Status.FromString(
        dict(failed.value.trailing_metadata())["grpc-status-details-bin"]
    )
    assert (status.code, status.message) == (CODES[name].value[0], error.message)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (error.reason, "semanticrecall")


def test_bad_fields_travel_as_bad_request() -> None:
    error = InvalidArgumentError((FieldViolation("a", "x"), FieldViolation("b[1].c", "y")))
    bad = error_details_pb2.BadRequest()
    assert rich_status(error).details[1].Unpack(bad)
    found = [(v.field, v.description) for v in bad.field_violations]
    assert found == [("a", "x"), ("b[1].c", "y")]
    assert [(v.field, v.description) for v in detail_of(error).field_violations] == found


def test_when_to_come_back_travels_as_retry_info() -> None:
    error = ResourceExhaustedError("full", retry_after_ms=1_250)
    retry = error_details_pb2.RetryInfo()
    assert rich_status(error).details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1_250


def test_a_thousand_bad_fields_fit_into_trailers(
    server: InProcessServer, engine: FakeEngine
) -> None:
    error = InvalidArgumentError(
        [FieldViolation(f"messages[{i}].text", "is bad " * 9) for i in range(1_000)]
    )
    assert sum(len(key) + len(value) for key, value in trailers(error)) < 6_000
    engine.fail("recall", error)
    with pytest.raises(grpc.RpcError) as failed:
        server.recall.Recall(RECALL, timeout=20)
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_detail(failed.value).field_violations[0].field == "messages[0].text"


# ---- what nobody expected ----

CALLS: list[tuple[str, Any]] = [
    ("recall", lambda s: s.recall.Recall(RECALL, timeout=20)),
    ("index", lambda s: s.recall.Index(INDEX, timeout=20)),
    ("stats", lambda s: s.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20)),
    (
        "list_messages",
        lambda s: list(s.admin.Export(admin_pb2.ExportRequest(resource_id="a"), timeout=20)),
    ),
    ("verify", lambda s: list(s.admin.Verify(admin_pb2.VerifyRequest(), timeout=20))),
]


@pytest.mark.parametrize(("method", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_text_of_an_unexpected_exception_reaches_neither_client_nor_log(
    server: InProcessServer, engine: FakeEngine, method: str, call: Any
) -> None:
    engine.fail(method, ValueError(f"cannot parse {CANARY}\nINFO: forged line"))
    with pytest.raises(grpc.RpcError) as failed:
        call(server)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    detail = error_detail(failed.value)
    assert CANARY not in str(failed.value.trailing_metadata()) + str(failed.value.details())
    assert (detail.reason, detail.retryable) == ("INTERNAL", False)
    logged = [line for line in server.log_lines if line["event"] == "internal_error"]
    assert len(logged) == 1
    assert logged[0]["error_id"] in detail.message
    assert logged[0]["exception"] == "builtins.ValueError"
    assert logged[0]["at"][-1].startswith("fake_engine.py:")
    assert CANARY not in server.log_text
    engine.on_call = lambda name, budget: None
    assert server.recall.Recall(RECALL, timeout=20).request_id == "r1"


def test_inside_a_stream_too(server: InProcessServer, engine: FakeEngine) -> None:
    engine.fail("recall", ValueError(CANARY))
    answer = next(iter(server.recall.RecallStream(iter([RECALL]), timeout=20)))
    assert answer.request_id == "r1"
    assert answer.error.code == grpc.StatusCode.INTERNAL.value[0]
    engine.fail("index", ValueError(CANARY))
    indexed = next(iter(server.recall.IndexStream(iter([INDEX]), timeout=20)))
    assert indexed.error.reason == "INTERNAL"
    assert CANARY not in str(answer) + str(indexed) + server.log_text


def test_exhausted_memory_is_no_internal_error(server: InProcessServer, engine: FakeEngine) -> None:
    engine.fail("recall", MemoryError(CANARY))
    with pytest.raises(grpc.RpcError) as failed:
        server.recall.Recall(RECALL, timeout=20)
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_detail(failed.value).reason == "OUT_OF_MEMORY"
    assert CANARY not in str(failed.value)


# ---- limits and deadlines ----


def test_over_the_limit_a_call_is_refused_at_once_with_when_to_come_back(tmp_path: Path) -> None:
    engine = FakeEngine()
    limits = {"recalls_in_flight_max": 2, "index_in_flight_max": 1, "index_threads": 1}
    with running(tmp_path, parts_of(engine), **limits) as server:
        held = engine.hold("recall")
        inside = [server.recall.Recall.future(RECALL, timeout=60) for _ in range(2)]
        server.wait_until(lambda: server.in_flight("recall") == 2)
        with pytest.raises(grpc.RpcError) as refused:
            server.recall.Recall(RECALL, timeout=20)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        detail = error_detail(refused.value)
        assert (detail.reason, detail.retryable) == ("QUEUE_FULL", True)
        assert detail.retry_after_ms > 0
        assert server.recall.Index(INDEX, timeout=20).results[0].status == types_pb2.STATUS_INDEXED
        held.release.set()
        assert [call.result(20).request_id for call in inside] == ["r1", "r1"]
        assert server.recall.Recall(RECALL, timeout=20).request_id == "r1"


def test_bytes_in_flight_are_limited_too(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine), bytes_in_flight_max=8 * 1024 * 1024) as server:
        held = engine.hold("index")
        big = recall_pb2.IndexRequest()
        big.CopyFrom(INDEX)
        big.messages.extend(
            types_pb2.Message(id=str(i), role=1, payload=b"x" * 1_000_000) for i in range(5)
        )
        first = server.recall.Index.future(big, timeout=60)
        assert held.entered.wait(20)
        with pytest.raises(grpc.RpcError) as refused:
            server.recall.Index(big, timeout=20)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        held.release.set()
        assert len(first.result(20).results) == 6


def test_a_deadline_stops_the_work_and_says_so(server: InProcessServer, engine: FakeEngine) -> None:
    held = engine.hold("recall")
    with pytest.raises(grpc.RpcError) as late:
        server.recall.Recall(RECALL, timeout=0.2)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server.wait_until(lambda: server.in_flight("recall") == 0)
    assert held.entered.is_set()


def test_the_servers_own_deadline_holds_where_the_client_brings_none(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine), deadline_default_ms=100) as server:
        engine.hold("recall")
        with pytest.raises(grpc.RpcError) as late:
            server.recall.Recall(RECALL)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error_detail(late.value).reason == "DEADLINE_EXCEEDED"
        server.wait_until(lambda: server.in_flight("recall") == 0)


def test_a_longer_deadline_than_allowed_is_cut(tmp_path: Path) -> None:
    engine = FakeEngine()
    budgets: list[float] = []
    engine.on_call = lambda name, budget: budgets.append(budget.remaining())
    deadlines = {"deadline_default_ms": 1_000, "deadline_max_ms": 5_000}
    with running(tmp_path, parts_of(engine), answer_cache_bytes_max=0, **deadlines) as server:
        server.recall.Recall(RECALL, timeout=3_600)
        server.recall.Recall(RECALL, timeout=3)
        server.recall.Recall(RECALL)
    assert 3 < budgets[0] <= 5
    assert 1 < budgets[1] < 4
    assert budgets[2] < 2


def test_a_cancelled_call_stops_and_one_that_waits_never_starts(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine), recall_threads=1) as server:
        held = engine.hold("recall")
        first = server.recall.Recall.future(RECALL, timeout=60)
        assert held.entered.wait(20)
        second = server.recall.Recall.future(RECALL, timeout=60)
        server.wait_until(lambda: server.in_flight("recall") == 2)
        second.cancel()
        server.wait_until(lambda: server.in_flight("recall") == 1)
        first.cancel()
        server.wait_until(lambda: server.in_flight("recall") == 0)
        assert held.cancelled.is_set()
        assert len(engine.queries) == 1
        held.release.set()
        assert server.recall.Recall(RECALL, timeout=20).request_id == "r1"


def test_an_expired_call_in_the_queue_is_dropped_before_it_is_worked_on(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine), recall_threads=1) as server:
        held = engine.hold("recall")
        first = server.recall.Recall.future(RECALL, timeout=60)
        assert held.entered.wait(20)
        with pytest.raises(grpc.RpcError):
            server.recall.Recall(RECALL, timeout=0.1)
        held.release.set()
        first.result(20)
        assert len(engine.queries) == 1


def test_an_answer_larger_than_clients_take_is_refused(
    server: InProcessServer, engine: FakeEngine
) -> None:
    long = b"x" * (2 * 1024 * 1024)
    engine.recalled = changed(MESSAGE, payload=long)
    with pytest.raises(grpc.RpcError) as refused:
        server.recall.Recall(RECALL, timeout=20)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_detail(refused.value).reason == "ANSWER_TOO_LARGE"
