"""VectorService over a socket: what its requests become, and what its answers are made of."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from semanticrecall.v1 import recall_pb2, vectors_pb2
from semanticrecall_core.types.collections import (
    COLLECTION_FULL,
    COLLECTION_NOT_FOUND,
    DIMENSIONS_DIFFER,
    METRIC_DIFFERS,
    TOO_MANY_COLLECTIONS,
    VECTOR_NOT_FOUND,
    Metric,
    VectorChange,
    VectorMatch,
    VectorQuery,
    VectorSelection,
)
from semanticrecall_core.types.errors import (
    CorruptDataError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitReachedError,
    NotFoundError,
    SemanticRecallError,
    UnavailableError,
)
from semanticrecall_core.types.values import CallBudget
from semanticrecall_server.vector_convert import query_response
from support.bad_vectors import good_vector_requests
from support.fake_collections import COUNTS, MATCH
from support.fake_engine import FakeEngine
from support.running_server import InProcessServer, error_detail

PLACE: dict[str, Any] = {"resource_id": "alice", "collection": "notes"}
GOOD = good_vector_requests()
LANES = ("recall", "index", "admin", "collections")
ENGINE_NAMES = {
    "CreateCollection": "create",
    "ListCollections": "list",
    "DescribeCollection": "describe",
    "DeleteCollection": "delete",
    "UpsertVectors": "upsert",
    "QueryVectors": "query",
    "UpdateVectors": "update",
    "DeleteVectors": "delete_vectors",
}


def asked(engine: FakeEngine) -> tuple[Any, ...]:
    (one,) = engine.collections.asked
    return one


# ---- collections ----


@pytest.mark.parametrize(
    ("number", "metric"),
    [(0, Metric.COSINE), (1, Metric.COSINE), (2, Metric.EUCLIDEAN), (3, Metric.DOT_PRODUCT)],
)
def test_a_collection_is_made(
    server: InProcessServer, engine: FakeEngine, number: int, metric: Metric
) -> None:
    engine.collections.is_there = False
    request = vectors_pb2.CreateCollectionRequest(**PLACE, dimensions=8_192, metric=number)
    answer = server.vectors.CreateCollection(request, timeout=20)
    assert asked(engine) == ("create", "alice", "notes", 8_192, metric)
    assert answer == vectors_pb2.CreateCollectionResponse(
        collection={"name": "notes", "dimensions": 8_192, "metric": int(metric)}, created=True
    )


def test_one_that_is_there_was_not_created(server: InProcessServer) -> None:
    assert not server.vectors.CreateCollection(GOOD["CreateCollection"], timeout=20).created


def test_collections_are_listed_and_described(server: InProcessServer) -> None:
    notes = vectors_pb2.Collection(name="notes", dimensions=3, metric=3, vectors=7)
    other = vectors_pb2.Collection(name="other", dimensions=8, metric=2)
    listed = server.vectors.ListCollections(GOOD["ListCollections"], timeout=20)
    assert list(listed.collections) == [notes, other]
    described = server.vectors.DescribeCollection(GOOD["DescribeCollection"], timeout=20)
    assert described.collection == notes


@pytest.mark.parametrize(("is_there", "vectors"), [(True, 5), (False, 0)])
def test_a_collection_is_deleted(
    server: InProcessServer, engine: FakeEngine, is_there: bool, vectors: int
) -> None:
    engine.collections.is_there = is_there
    answer = server.vectors.DeleteCollection(GOOD["DeleteCollection"], timeout=20)
    assert asked(engine) == ("delete", "alice", "notes")
    assert (answer.vectors, answer.deleted) == (vectors, is_there)


# ---- vectors ----


def test_every_field_of_a_vector_arrives(server: InProcessServer, engine: FakeEngine) -> None:
    request = vectors_pb2.UpsertVectorsRequest(**PLACE)
    request.delete_filter.update({"project": "B"})
    first = request.entries.add(id="v1", values=[0.1, -2.5, 3e30])
    first.metadata.update({"n": 3, "half": 0.5, "list": [None, True, {"a": "b"}]})
    request.entries.add(id="v2", values=[1, 2])
    answer = server.vectors.UpsertVectors(request, timeout=20)
    name, resource, collection, entries, delete_filter = asked(engine)
    assert (name, resource, collection) == ("upsert", "alice", "notes")
    assert [entry.id for entry in entries] == ["v1", "v2"]
    assert [entry.values.tolist() for entry in entries] == [
        np.array([0.1, -2.5, 3e30], np.float32).tolist(),
        [1.0, 2.0],
    ]
    assert {entry.values.dtype for entry in entries} == {np.dtype(np.float32)}
    metadata = {"n": 3, "half": 0.5, "list": [None, True, {"a": "b"}]}
    assert [entry.metadata for entry in entries] == [metadata, {}]
    assert delete_filter == {"project": "B"}
    assert (answer.added, answer.replaced, answer.deleted) == (11, 12, 13)


def test_nothing_is_deleted_where_nothing_is_said(
    server: InProcessServer, engine: FakeEngine
) -> None:
    server.vectors.UpsertVectors(GOOD["UpsertVectors"], timeout=20)
    assert asked(engine)[-1] is None


def test_every_field_of_a_query_arrives(server: InProcessServer, engine: FakeEngine) -> None:
    request = vectors_pb2.QueryVectorsRequest(
        **PLACE, values=[1, 2, 3], top_k=10_000, score_min=0.25, include_values=True
    )
    request.filter.update({"$or": [{"a": 1, "b": 2}, {"c": [3]}]})
    server.vectors.QueryVectors(request, timeout=20)
    query: VectorQuery = asked(engine)[-1]
    assert query.values is not None
    assert list(query.values) == [1, 2, 3]
    assert (query.top_k, query.score_min, query.include_values) == (10_000, 0.25, True)
    assert query.filter == {"$or": [{"a": 1, "b": 2}, {"c": [3]}]}


def test_a_query_has_defaults(server: InProcessServer, engine: FakeEngine) -> None:
    server.vectors.QueryVectors(GOOD["QueryVectors"], timeout=20)
    query: VectorQuery = asked(engine)[-1]
    assert (query.top_k, query.score_min, query.include_values) == (10, None, False)
    assert query.filter is None


def test_a_query_without_values_compares_nothing(
    server: InProcessServer, engine: FakeEngine
) -> None:
    request = vectors_pb2.QueryVectorsRequest(**PLACE)
    request.filter.update({"a": 1})
    server.vectors.QueryVectors(request, timeout=20)
    assert asked(engine)[-1] == VectorQuery(None, 10, {"a": 1})


def test_matches_are_answered_as_they_are(server: InProcessServer, engine: FakeEngine) -> None:
    values = np.array([0.5, -0.25, 3], np.float32)
    engine.collections.matches = (MATCH, VectorMatch("v2", -0.5, {}, values))
    answer = server.vectors.QueryVectors(GOOD["QueryVectors"], timeout=20)
    first, second = answer.matches
    assert (first.id, first.score, list(first.values)) == ("v1", 0.75, [])
    expected = vectors_pb2.VectorMatch()
    expected.metadata.update(MATCH.metadata)
    assert first.metadata == expected.metadata
    assert (second.id, second.score, list(second.values)) == ("v2", -0.5, [0.5, -0.25, 3])
    assert not second.HasField("metadata")
    assert answer.dropped == 0


def test_ids_and_what_they_become_arrive(server: InProcessServer, engine: FakeEngine) -> None:
    request = vectors_pb2.UpdateVectorsRequest(**PLACE, values=[1, 2])
    request.selection.ids.ids.extend(["a", "b", "a"])
    assert server.vectors.UpdateVectors(request, timeout=20).updated == 14
    name, resource, collection, selection, change = asked(engine)
    assert (name, resource, collection) == ("update", "alice", "notes")
    assert selection == VectorSelection(ids=("a", "b", "a"))
    assert change.values.tolist() == [1, 2]
    assert change.metadata is None


def test_a_filter_and_metadata_arrive(server: InProcessServer, engine: FakeEngine) -> None:
    request = vectors_pb2.UpdateVectorsRequest(**PLACE)
    request.selection.filter.update({"a": {"$gt": 1}})
    request.metadata.update({"done": True})
    server.vectors.UpdateVectors(request, timeout=20)
    assert asked(engine)[3:] == (
        VectorSelection(filter={"a": {"$gt": 1}}),
        VectorChange(metadata={"done": True}),
    )


def test_vectors_are_deleted_by_id(server: InProcessServer, engine: FakeEngine) -> None:
    assert server.vectors.DeleteVectors(GOOD["DeleteVectors"], timeout=20).deleted == 15
    assert asked(engine) == ("delete_vectors", "alice", "notes", VectorSelection(ids=("v1",)))


def test_vectors_are_deleted_by_filter(server: InProcessServer, engine: FakeEngine) -> None:
    request = vectors_pb2.DeleteVectorsRequest(**PLACE)
    request.selection.filter.update({"thread_id": "t"})
    assert server.vectors.DeleteVectors(request, timeout=20).deleted == 15
    assert asked(engine)[-1] == VectorSelection(filter={"thread_id": "t"})


# ---- answers that would be too large ----


def many(count: int) -> list[VectorMatch]:
    return [VectorMatch(f"v{i}", 1.0, {"text": "x" * 1_000}) for i in range(count)]


def test_the_last_matches_are_left_out_of_an_answer_that_would_be_too_large(
    server: InProcessServer, engine: FakeEngine
) -> None:
    engine.collections.matches = many(10_000)
    answer = server.vectors.QueryVectors(GOOD["QueryVectors"], timeout=20)
    kept = len(answer.matches)
    assert [match.id for match in answer.matches] == [f"v{i}" for i in range(kept)]
    assert answer.dropped == 10_000 - kept
    assert 0.99 * 3 * 2**20 < answer.ByteSize() <= 3 * 2**20


@pytest.mark.parametrize(("room", "kept"), [(1, 1), (3_200, 3), (10**6, 5)])
def test_one_match_is_always_there(room: int, kept: int) -> None:
    response = query_response(many(5), room)
    assert (len(response.matches), response.dropped) == (kept, 5 - kept)


def test_no_match_is_an_empty_answer() -> None:
    assert query_response([], 1) == vectors_pb2.QueryVectorsResponse()


# ---- errors, and how long a call may take ----

ERRORS: list[tuple[SemanticRecallError, grpc.StatusCode, str]] = [
    (
        NotFoundError("no such collection", reason=COLLECTION_NOT_FOUND),
        grpc.StatusCode.NOT_FOUND,
        "COLLECTION_NOT_FOUND",
    ),
    (
        NotFoundError("no such vector", reason=VECTOR_NOT_FOUND),
        grpc.StatusCode.NOT_FOUND,
        "VECTOR_NOT_FOUND",
    ),
    (
        FailedPreconditionError("it has others", reason=DIMENSIONS_DIFFER),
        grpc.StatusCode.FAILED_PRECONDITION,
        "DIMENSIONS_DIFFER",
    ),
    (
        FailedPreconditionError("it has another", reason=METRIC_DIFFERS),
        grpc.StatusCode.FAILED_PRECONDITION,
        "METRIC_DIFFERS",
    ),
    (
        LimitReachedError("enough", reason=TOO_MANY_COLLECTIONS),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "TOO_MANY_COLLECTIONS",
    ),
    (
        LimitReachedError("full", reason=COLLECTION_FULL),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "COLLECTION_FULL",
    ),
    (CorruptDataError("damaged"), grpc.StatusCode.DATA_LOSS, "CORRUPT_DATA"),
    (UnavailableError("closed"), grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
]


@pytest.mark.parametrize("method", ENGINE_NAMES)
@pytest.mark.parametrize(("error", "code", "reason"), ERRORS, ids=[e[2] for e in ERRORS])
def test_an_error_of_a_collection_reaches_the_caller(
    server: InProcessServer,
    engine: FakeEngine,
    method: str,
    error: SemanticRecallError,
    code: grpc.StatusCode,
    reason: str,
) -> None:
    engine.fail(ENGINE_NAMES[method], error)
    with pytest.raises(grpc.RpcError) as refused:
        getattr(server.vectors, method)(GOOD[method], timeout=20)
    assert refused.value.code() is code
    assert error_detail(refused.value).reason == reason
    assert error_detail(refused.value).message == error.message
    assert error_detail(refused.value).retryable == (code is grpc.StatusCode.UNAVAILABLE)


def test_a_fault_that_only_a_collection_sees_names_its_field(
    server: InProcessServer, engine: FakeEngine
) -> None:
    engine.fail("upsert", InvalidArgumentError.of("entries[0].values", "must be 4 numbers"))
    with pytest.raises(grpc.RpcError) as refused:
        server.vectors.UpsertVectors(GOOD["UpsertVectors"], timeout=20)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = error_detail(refused.value).field_violations
    assert (violation.field, violation.description) == ("entries[0].values", "must be 4 numbers")


@pytest.mark.parametrize("method", ["UpsertVectors", "QueryVectors", "UpdateVectors"])
def test_the_deadline_of_a_call_is_that_of_the_engine(
    server: InProcessServer, engine: FakeEngine, method: str
) -> None:
    budgets: list[float] = []

    def on_call(name: str, budget: CallBudget) -> None:
        budgets.append(budget.remaining())

    engine.on_call = on_call
    getattr(server.vectors, method)(GOOD[method], timeout=7)
    assert 0 < budgets[0] < 10  # the default is 30


@pytest.mark.parametrize("method", ENGINE_NAMES)
def test_reads_have_a_place_of_their_own_and_changes_are_among_writes(
    server: InProcessServer, engine: FakeEngine, method: str
) -> None:
    reads = {"QueryVectors", "ListCollections", "DescribeCollection"}
    held = engine.hold(ENGINE_NAMES[method])
    call = getattr(server.vectors, method).future(GOOD[method], timeout=20)
    try:
        assert held.entered.wait(20)
        lanes = {lane: server.in_flight(lane) for lane in LANES}
    finally:
        held.release.set()
    call.result(20)
    mine = "collections" if method in reads else "index"
    assert lanes == dict.fromkeys(LANES, 0) | {mine: 1}


def test_queries_that_are_held_up_keep_no_recall_waiting(
    server: InProcessServer, engine: FakeEngine
) -> None:
    """More of them than there are threads for recalls."""
    held = engine.hold("query")
    calls = [server.vectors.QueryVectors.future(GOOD["QueryVectors"], timeout=60) for _ in range(8)]
    try:
        assert held.entered.wait(20)
        server.wait_until(lambda: server.sidecar.calls_inside == 8)
        recall = recall_pb2.RecallRequest(resource_id="alice", query="turkey")
        assert server.recall.Recall(recall, timeout=20).messages[0].message.id == "m1"
        request = recall_pb2.ListThreadsRequest(resource_id="alice")
        assert list(server.recall.ListThreads(request, timeout=20).threads) == []
    finally:
        held.release.set()
    assert [len(call.result(20).matches) for call in calls] == [1] * 8


def test_a_caller_who_leaves_is_told_to_the_engine(
    server: InProcessServer, engine: FakeEngine
) -> None:
    held = engine.hold("query")
    call = server.vectors.QueryVectors.future(GOOD["QueryVectors"], timeout=20)
    assert held.entered.wait(20)
    call.cancel()
    assert held.cancelled.wait(20)
    server.wait_until(lambda: server.in_flight("collections") == 0)


def test_metrics_count_collections(server: InProcessServer) -> None:
    assert server.reading("collections") == COUNTS.collections == 21
    assert server.reading("collection_vectors") == 22
    assert server.reading("collections_disk_bytes") == 23
    assert server.reading("collections_loaded") == 24
    assert server.reading("collections_bytes") == 25
    assert server.reading("collection_loads_total") == 26
    assert server.reading("collection_evictions_total") == 27
