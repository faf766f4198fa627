"""Bad input: every field names itself, and the server serves the next call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from semanticrecall.v1 import recall_pb2, types_pb2
from support.bad_values import (
    NO_BAD_VALUE,
    Case,
    good_requests,
    message_cases,
    other_cases,
    recall_cases,
)
from support.bad_vectors import NO_BAD_VECTOR_VALUE, good_vector_requests, vector_cases
from support.fake_engine import FakeEngine
from support.running_server import InProcessServer, error_detail, parts_of, running

VECTORS = good_vector_requests()
GOOD = {**good_requests(), **VECTORS}
ADMIN = ("GetStats", "Verify", "Export")
REQUEST_CASES = [*recall_cases(), *other_cases(), *vector_cases()]
MESSAGE_CASES = list(message_cases())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    """One server for the whole table: it has to survive all of it."""
    with running(tmp_path_factory.mktemp("bad"), parts_of(FakeEngine())) as serving:
        yield serving


def send(server: InProcessServer, method: str, request: Any) -> Any:
    """Call a method; a stream's answers as a list."""
    stub = server.vectors if method in VECTORS else server.recall
    answer = getattr(server.admin if method in ADMIN else stub, method)(request, timeout=20)
    return list(answer) if method in ("Verify", "Export") else answer


def send_raw(server: InProcessServer, method: str, raw: bytes) -> bytes:
    """Send bytes as a unary request."""
    service = "VectorService" if method in VECTORS else "RecallService"
    service = "AdminService" if method in ADMIN else service
    return server.raw(service, method, raw)


def serves_the_next_call(server: InProcessServer) -> None:
    assert server.recall.Recall(GOOD["Recall"], timeout=20).messages


@pytest.mark.parametrize("method", sorted(GOOD))
def test_the_request_that_the_table_changes_is_good(server: InProcessServer, method: str) -> None:
    assert send(server, method, GOOD[method])


@pytest.mark.parametrize("case", REQUEST_CASES, ids=str)
def test_a_bad_field_is_named(server: InProcessServer, case: Case) -> None:
    request = type(GOOD[case.method])()
    request.CopyFrom(GOOD[case.method])
    case.change(request)
    with pytest.raises(grpc.RpcError) as refused:
        send(server, case.method, request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    detail = error_detail(refused.value)
    assert detail.reason == "FIELD_INVALID"
    named = [violation.field for violation in detail.field_violations]
    assert named
    assert named[0] == case.field or named[0].startswith((f"{case.field}.", f"{case.field}["))
    assert all(violation.description for violation in detail.field_violations)
    serves_the_next_call(server)


@pytest.mark.parametrize("case", MESSAGE_CASES, ids=str)
def test_a_bad_message_is_rejected_by_itself(server: InProcessServer, case: Case) -> None:
    good = types_pb2.Message(id="good", role=types_pb2.ROLE_USER, text="x")
    bad = types_pb2.Message(id="bad", role=types_pb2.ROLE_USER, text="x")
    case.change(bad)
    request = recall_pb2.IndexRequest(
        resource_id="alice", thread_id="t", messages=[good, bad, good]
    )
    results = server.recall.Index(request, timeout=20).results
    assert [result.status for result in results] == [
        types_pb2.STATUS_INDEXED,
        types_pb2.STATUS_REJECTED,
        types_pb2.STATUS_INDEXED,
    ]
    error = results[1].error
    assert results[1].message_id == bad.id
    assert (error.code, error.reason) == (3, "FIELD_INVALID")
    named = error.field_violations[0].field
    assert named == f"messages[1].{case.field}"
    assert not error.retryable


def test_the_thread_must_come_from_somewhere(server: InProcessServer) -> None:
    request = recall_pb2.IndexRequest(
        resource_id="alice",
        messages=[{"id": "a", "role": 1}, {"id": "b", "role": 1, "thread_id": "t"}],
    )
    results = server.recall.Index(request, timeout=20).results
    assert results[0].error.field_violations[0].field == "messages[0].thread_id"
    assert results[1].status == types_pb2.STATUS_INDEXED


def test_all_faults_of_a_request_are_told_at_once(server: InProcessServer) -> None:
    request = recall_pb2.RecallRequest(top_k=0, scope=2, threshold=7, time_zone="Mars")
    with pytest.raises(grpc.RpcError) as refused:
        server.recall.Recall(request, timeout=20)
    named = {violation.field for violation in error_detail(refused.value).field_violations}
    assert named == {"resource_id", "thread_id", "top_k", "threshold", "time_zone"}


# ---- the table is complete ----


def fields_of(descriptor: Descriptor, path: str = "") -> Iterator[str]:
    """Dotted names of all fields below a request, messages and vectors of Index excepted."""
    for field in descriptor.fields:
        name = f"{path}{field.name}"
        own = field.message_type is not None and field.message_type.file.package.startswith(
            "semanticrecall"
        )
        if own and name not in ("messages", "vectors"):
            yield from fields_of(field.message_type, f"{name}.")
        else:
            yield name


PLACE = re.compile(r"\[\d+\]")


def tried(cases: list[Case], method: str) -> set[str]:
    fields = {case.field for case in cases if case.method == method}
    return {field.split("[")[0] for field in fields} | {PLACE.sub("", field) for field in fields}


@pytest.mark.parametrize("method", sorted(GOOD))
def test_the_table_has_every_field(method: str) -> None:
    descriptor = GOOD[method].DESCRIPTOR
    any_value_will_do = NO_BAD_VALUE | NO_BAD_VECTOR_VALUE
    expected = {
        name
        for name in fields_of(descriptor)
        if f"{descriptor.name}.{name}" not in any_value_will_do
    }
    assert expected - tried(REQUEST_CASES, method) == set()


def test_the_table_has_every_field_of_a_message() -> None:
    expected = {field.name for field in types_pb2.Message.DESCRIPTOR.fields}
    assert expected - tried(MESSAGE_CASES, "Index") == set()


# ---- bytes that are no request ----


def string_fields(descriptor: Descriptor, path: str = "") -> Iterator[str]:
    """Paths of all string fields of a request, ours only."""
    for field in descriptor.fields:
        mark = "[0]" if field.is_repeated else ""
        if field.type == FieldDescriptor.TYPE_STRING:
            yield f"{path}{field.name}{mark}"
        elif field.message_type is not None and field.message_type.file.package.startswith(
            "semanticrecall"
        ):
            yield from string_fields(field.message_type, f"{path}{field.name}{mark}.")


def with_marker(method: str, path: str) -> bytes:
    """The good request with MARKER in one string field, encoded."""
    request = type(GOOD[method])()
    request.CopyFrom(GOOD[method])
    target: Any = request
    *steps, last = path.replace("[0]", "").split(".")
    for step in steps:
        target = getattr(target, step)
        if step in ("messages", "entries"):
            target = target[0]
        elif step == "vectors":
            target = target.add()
    if isinstance(getattr(target, last), str):
        setattr(target, last, MARKER)
    else:
        target.ClearField(last)
        getattr(target, last).append(MARKER)
    return request.SerializeToString()


MARKER = "@@marker@@"
NOT_UTF8 = b"ok\xff\xfe\xc0\xaf\xed\xa0\x80!"
UTF8_CASES = [
    (method, path) for method in sorted(GOOD) for path in string_fields(GOOD[method].DESCRIPTOR)
]


@pytest.mark.parametrize(("method", "path"), UTF8_CASES, ids=lambda value: str(value))
def test_invalid_utf8_names_the_field(server: InProcessServer, method: str, path: str) -> None:
    assert len(NOT_UTF8) == len(MARKER)
    raw = with_marker(method, path).replace(MARKER.encode(), NOT_UTF8)
    with pytest.raises(grpc.RpcError) as refused:
        send_raw(server, method, raw)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    violation = error_detail(refused.value).field_violations[0]
    assert (violation.field, violation.description) == (path, "is not valid UTF-8")
    serves_the_next_call(server)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def nested_struct(levels: int) -> bytes:
    """A filter (field 11) of Structs inside Structs, as bytes."""
    value = b""
    for _ in range(levels):
        entry = b"\x0a\x01a\x12" + varint(len(value) + len(varint(len(value))) + 1)
        inner = b"\x2a" + varint(len(value)) + value
        entry += inner
        value = b"\x0a" + varint(len(entry)) + entry
    return b"\x5a" + varint(len(value)) + value


MALFORMED = {
    "garbage": b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    "cut off": b"\x12\x7fabc",
    "overlong varint": b"\x40" + b"\x80" * 11,
    "end group": b"\x14",
    "unknown wire type": b"\x17",
    "length beyond memory": b"\x12\xff\xff\xff\xff\x0f",
    "nested too deep": nested_struct(5_000),
    "key no utf8": b"\x5a\x07\x0a\x05\x0a\x03\xff\xfe\xfd",
}


def is_malformed(method: str, label: str) -> bool:
    """Whether protobuf refuses these bytes; fields that a request does not know are passed over."""
    try:
        type(GOOD[method]).FromString(MALFORMED[label])
    except DecodeError:
        return True
    return False


MALFORMED_CASES = [
    (method, label)
    for method in sorted(set(GOOD) - {"Verify", "Export"})
    for label in sorted(MALFORMED)
    if is_malformed(method, label)
]


@pytest.mark.parametrize(("method", "label"), MALFORMED_CASES)
def test_malformed_bytes_are_an_invalid_argument(
    server: InProcessServer, method: str, label: str
) -> None:
    raw = MALFORMED[label]
    with pytest.raises(grpc.RpcError) as refused:
        send_raw(server, method, raw)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    violation = error_detail(refused.value).field_violations[0]
    assert violation.field
    assert violation.description
    serves_the_next_call(server)


@pytest.mark.parametrize(
    ("label", "field"),
    [("nested too deep", "filter"), ("key no utf8", "filter"), ("cut off", "resource_id")],
)
def test_the_field_at_fault_is_found_in_malformed_bytes(
    server: InProcessServer, label: str, field: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        send_raw(server, "Recall", MALFORMED[label])
    assert error_detail(refused.value).field_violations[0].field == field


def test_a_negative_count_is_out_of_range(server: InProcessServer) -> None:
    raw = GOOD["Recall"].SerializeToString() + b"\x40" + varint(2**64 - 1)
    with pytest.raises(grpc.RpcError) as refused:
        send_raw(server, "Recall", raw)
    assert error_detail(refused.value).field_violations[0].field == "top_k"


def test_a_request_larger_than_the_limit_is_refused(server: InProcessServer) -> None:
    request = recall_pb2.RecallRequest(resource_id="alice", query="x" * (9 * 1024 * 1024))
    with pytest.raises(grpc.RpcError) as refused:
        server.recall.Recall(request, timeout=20)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    serves_the_next_call(server)


def test_a_compressed_bomb_is_refused(server: InProcessServer) -> None:
    request = recall_pb2.RecallRequest(resource_id="alice", query="x" * (9 * 1024 * 1024))
    with pytest.raises(grpc.RpcError) as refused:
        server.recall.Recall(request, timeout=20, compression=grpc.Compression.Gzip)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    serves_the_next_call(server)


# ---- streams ----


def test_a_stream_goes_on_after_bad_requests(server: InProcessServer) -> None:
    stream = server.channel.stream_stream("/semanticrecall.v1.RecallService/RecallStream")
    requests = [
        b"\xff\xff",
        recall_pb2.RecallRequest(resource_id="alice", query="x").SerializeToString(),
        recall_pb2.RecallRequest(request_id="a\nb", resource_id="alice").SerializeToString(),
        recall_pb2.RecallRequest(request_id="r2", top_k=0).SerializeToString(),
        recall_pb2.RecallRequest(
            request_id="r3", resource_id="alice", timeout_ms=600_001
        ).SerializeToString(),
        recall_pb2.RecallRequest(
            request_id="r4", resource_id="alice", query="x"
        ).SerializeToString(),
    ]
    answers = [
        recall_pb2.RecallResponse.FromString(raw) for raw in stream(iter(requests), timeout=20)
    ]
    fields = sorted(
        (a.request_id, a.error.field_violations[0].field) for a in answers if a.error.code
    )
    assert fields == [
        ("", "RecallRequest"),
        ("", "request_id"),
        ("", "request_id"),
        ("r2", "resource_id"),
        ("r3", "timeout_ms"),
    ]
    assert [a.request_id for a in answers if not a.error.code] == ["r4"]


def test_an_index_stream_answers_in_order_and_goes_on(server: InProcessServer) -> None:
    stream = server.channel.stream_stream("/semanticrecall.v1.RecallService/IndexStream")
    good = GOOD["Index"].SerializeToString()
    answers = [
        recall_pb2.IndexResponse.FromString(raw)
        for raw in stream(iter([good, b"\xff\xff", b"", good]), timeout=20)
    ]
    assert [a.error.reason for a in answers] == ["", "FIELD_INVALID", "FIELD_INVALID", ""]
    assert [len(a.results) for a in answers] == [1, 0, 0, 1]
