"""VectorService over a socket and a real engine: kept, found, changed, removed, told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall.v1 import recall_pb2, vectors_pb2
from semanticrecall_server.assembly import default_parts
from support.fake_embedder import FakeEmbedder
from support.running_server import InProcessServer, error_detail, running

COSINE, EUCLIDEAN, DOT_PRODUCT = (
    vectors_pb2.METRIC_COSINE,
    vectors_pb2.METRIC_EUCLIDEAN,
    vectors_pb2.METRIC_DOT_PRODUCT,
)
SEED = 20_261
COUNT = 300
DIMENSIONS = 12


class Notes:
    """Calls on one collection of one resource."""

    def __init__(
        self, server: InProcessServer, resource_id: str = "alice", collection: str = "notes"
    ) -> None:
        self._vectors = server.vectors
        self._place: dict[str, Any] = {"resource_id": resource_id, "collection": collection}

    def create(self, dimensions: int = 3, metric: Any = 0) -> Any:
        request = vectors_pb2.CreateCollectionRequest(
            **self._place, dimensions=dimensions, metric=metric
        )
        return self._vectors.CreateCollection(request, timeout=20)

    def upsert(self, *entries: Any, delete: dict[str, Any] | None = None) -> Any:
        request = vectors_pb2.UpsertVectorsRequest(**self._place)
        for vector_id, values, metadata in entries:
            request.entries.add(id=vector_id, values=values).metadata.update(metadata)
        if delete is not None:
            request.delete_filter.update(delete)
        return self._vectors.UpsertVectors(request, timeout=20)

    def query(self, values: Any = (), condition: dict[str, Any] | None = None, **rest: Any) -> Any:
        request = vectors_pb2.QueryVectorsRequest(**self._place, values=values, **rest)
        if condition is not None:
            request.filter.update(condition)
        return self._vectors.QueryVectors(request, timeout=20)

    def ids(self, condition: dict[str, Any]) -> str:
        """What matches, by id."""
        return "".join(match.id for match in self.query((), condition).matches)

    def update(self, selection: Any, **rest: Any) -> int:
        request = vectors_pb2.UpdateVectorsRequest(**self._place, values=rest.get("values", ()))
        fill_selection(request.selection, selection)
        if "metadata" in rest:
            request.metadata.update(rest["metadata"])
        return int(self._vectors.UpdateVectors(request, timeout=20).updated)

    def delete(self, selection: Any) -> int:
        request = vectors_pb2.DeleteVectorsRequest(**self._place)
        fill_selection(request.selection, selection)
        return int(self._vectors.DeleteVectors(request, timeout=20).deleted)

    def describe(self) -> Any:
        request = vectors_pb2.DescribeCollectionRequest(**self._place)
        return self._vectors.DescribeCollection(request, timeout=20).collection

    def drop(self) -> Any:
        request = vectors_pb2.DeleteCollectionRequest(**self._place)
        return self._vectors.DeleteCollection(request, timeout=20)

    def names(self) -> list[str]:
        request = vectors_pb2.ListCollectionsRequest(resource_id=self._place["resource_id"])
        return [one.name for one in self._vectors.ListCollections(request, timeout=20).collections]


def fill_selection(target: Any, selection: list[str] | dict[str, Any]) -> None:
    if isinstance(selection, list):
        target.ids.ids.extend(selection)
    else:
        target.filter.update(selection)


def refused(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Code, reason and first field of the error that a call ends with."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    detail = error_detail(error.value)
    assert not detail.retryable
    fields = [violation.field for violation in detail.field_violations]
    return error.value.code(), detail.reason, fields[0] if fields else ""


def serving(directory: Path, **settings: Any) -> Any:
    return running(directory, default_parts(lambda _: FakeEmbedder()), **settings)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    """A server with small limits; each test has a resource of its own in it."""
    limits = {"collections_max": 3, "collection_vectors_max": 4, "collection_upsert_max": 5}
    with serving(tmp_path_factory.mktemp("vectors"), **limits) as server:
        yield server


@pytest.fixture
def notes(shared: InProcessServer, request: pytest.FixtureRequest) -> Notes:
    """An empty collection of 3 dimensions."""
    made = Notes(shared, request.node.name)
    made.create()
    return made


Entry = tuple[str, Sequence[float], dict[str, Any]]
A: Entry = ("a", (1, 0, 0), {"n": 1})
B: Entry = ("b", (0, 1, 0), {"n": 2})
C: Entry = ("c", (0, 0, 1), {"n": 3})


# ---- collections ----


def test_making_a_collection_again_changes_nothing(notes: Notes) -> None:
    notes.upsert(A)
    again = notes.create(3, COSINE)
    assert not again.created
    assert (again.collection.vectors, again.collection.dimensions) == (1, 3)
    assert refused(lambda: notes.create(4)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "DIMENSIONS_DIFFER",
        "",
    )
    assert refused(lambda: notes.create(3, DOT_PRODUCT)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "METRIC_DIFFERS",
        "",
    )
    assert [match.id for match in notes.query((1, 1, 0)).matches] == ["a"]


def test_a_resource_has_so_many_collections(shared: InProcessServer) -> None:
    made = [Notes(shared, "many", name) for name in ("b", "a", "c", "d")]
    for one in made[:3]:
        assert one.create().created
    full = (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_COLLECTIONS", "")
    assert refused(made[3].create) == full
    assert made[0].names() == ["a", "b", "c"]
    assert made[1].drop().deleted
    assert made[3].create().created
    assert made[0].names() == ["b", "c", "d"]


def test_what_is_deleted_is_gone_and_may_be_made_with_other_dimensions(notes: Notes) -> None:
    notes.upsert(A, B)
    gone = notes.drop()
    assert (gone.vectors, gone.deleted) == (2, True)
    again = notes.drop()
    assert (again.vectors, again.deleted) == (0, False)
    assert notes.names() == []
    assert notes.create(2, EUCLIDEAN).created
    assert notes.describe() == vectors_pb2.Collection(name="notes", dimensions=2, metric=EUCLIDEAN)
    assert list(notes.query((1, 0)).matches) == []


# ---- vectors ----


def test_vectors_are_added_and_replaced_with_their_metadata(notes: Notes) -> None:
    first = notes.upsert(A, B)
    assert (first.added, first.replaced, first.deleted) == (2, 0, 0)
    second = notes.upsert(("a", (0, 0, 2), {"m": "new"}), C, ("c", (1, 1, 1), {}))
    assert (second.added, second.replaced) == (1, 1)
    answer = notes.query((0, 0, 1), include_values=True)
    assert [(match.id, list(match.values)) for match in answer.matches] == [
        ("a", [0, 0, 2]),
        ("c", [1, 1, 1]),
        ("b", [0, 1, 0]),
    ]
    assert answer.matches[0].score == pytest.approx(1.0)
    assert dict(answer.matches[0].metadata) == {"m": "new"}
    assert notes.describe().vectors == 3


def test_a_bad_vector_keeps_all_others_of_the_call_out(notes: Notes) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    for values in ((1, 2), (1, 2, 3, 4), (0, 0, 0)):
        bad: Entry = ("z", values, {})
        assert refused(lambda bad=bad: notes.upsert(A, bad, B)) == (
            invalid,
            "FIELD_INVALID",
            "entries[1].values",
        )
    assert notes.describe().vectors == 0


def test_a_full_collection_takes_nothing_of_a_call_that_does_not_fit(notes: Notes) -> None:
    notes.upsert(A, B, C)
    two_more: list[Entry] = [("d", (1, 1, 0), {}), ("e", (1, 0, 1), {})]
    full = (grpc.StatusCode.RESOURCE_EXHAUSTED, "COLLECTION_FULL", "")
    assert refused(lambda: notes.upsert(*two_more)) == full
    assert notes.describe().vectors == 3
    counts = notes.upsert(*two_more, delete={"n": {"$lte": 1}})
    assert (counts.added, counts.replaced, counts.deleted) == (2, 0, 1)
    assert sorted(match.id for match in notes.query((1, 1, 1)).matches) == ["b", "c", "d", "e"]


def test_so_many_vectors_go_into_one_call(notes: Notes) -> None:
    six: list[Entry] = [(str(i), (1, i, 0), {}) for i in range(6)]
    assert refused(lambda: notes.upsert(*six)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "FIELD_INVALID",
        "entries",
    )


def test_updates_set_what_they_name(notes: Notes) -> None:
    notes.upsert(A, B, C)
    assert notes.update(["a", "b"], metadata={"done": True}) == 2
    assert notes.update({"n": {"$gte": 2}}, values=(1, 0, 0), metadata={"n": 9}) == 2
    assert notes.update({"n": 77}, metadata={"n": 0}) == 0
    found = {match.id: match for match in notes.query((1, 0, 0), include_values=True).matches}
    assert {name: dict(match.metadata) for name, match in found.items()} == {
        "a": {"n": 1, "done": True},
        "b": {"n": 9, "done": True},
        "c": {"n": 9},
    }
    assert {tuple(match.values) for match in found.values()} == {(1, 0, 0)}


def test_an_update_of_an_id_that_is_not_there_changes_nothing(notes: Notes) -> None:
    notes.upsert(A)
    missing = (grpc.StatusCode.NOT_FOUND, "VECTOR_NOT_FOUND", "")
    assert refused(lambda: notes.update(["a", "zz"], metadata={"n": 5})) == missing
    assert notes.ids({"n": 1}) == "a"


def test_vectors_are_deleted_by_id_and_by_filter(notes: Notes) -> None:
    notes.upsert(A, B, C)
    assert notes.delete(["a", "never", "a"]) == 1
    assert notes.delete({"n": {"$in": [2, 5]}}) == 1
    assert notes.delete({"n": 2}) == 0
    assert [match.id for match in notes.query((1, 1, 1)).matches] == ["c"]


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("values", lambda notes: notes.query((1, 2))),
        ("values", lambda notes: notes.query((0, 0, 0))),
        ("values", lambda notes: notes.update(["a"], values=(1, 2))),
        ("filter", lambda notes: notes.query((1, 0, 0), {"a": {"$where": 1}})),
        ("filter", lambda notes: notes.query((), {"a": {"$regex": "(?=x)"}})),
        ("delete_filter", lambda notes: notes.upsert(A, delete={"$near": 1})),
        ("selection.filter", lambda notes: notes.delete({"$and": []})),
        ("selection.filter", lambda notes: notes.update({"a": {"$gt": None}}, values=(1, 0, 0))),
    ],
)
def test_what_only_a_collection_can_tell_names_its_field(
    notes: Notes, field: str, call: Any
) -> None:
    notes.upsert(A)
    code, reason, named = refused(lambda: call(notes))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
    assert named == field or named.startswith(f"{field}.")
    assert notes.ids({"n": 1}) == "a"


# ---- filters: each operator once; their meaning is tried in tests/core ----

PEOPLE = {
    "a": {"name": "Ann", "age": 30, "tags": ["x", "y"], "pets": [{"kind": "cat", "age": 3}]},
    "b": {"name": "bob", "age": 40, "tags": ["y"], "pets": [{"kind": "dog", "age": 3}]},
    "c": {"name": "Cid", "age": None, "tags": [], "address": {"town": "Ulm"}},
    "d": {"age": "40"},
}


@pytest.fixture(scope="module")
def people(shared: InProcessServer) -> Notes:
    made = Notes(shared, "people")
    made.create(1)
    made.upsert(*((name, (1,), metadata) for name, metadata in PEOPLE.items()))
    return made


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ({"age": 30}, "a"),
        ({"age": {"$eq": 40}}, "b"),
        ({"age": {"$ne": 40}}, "acd"),
        ({"age": {"$gt": 30}}, "b"),
        ({"age": {"$gte": 30, "$lt": 40}}, "a"),
        ({"age": {"$lte": 40}}, "ab"),
        ({"name": ["Ann", "Cid"]}, "ac"),
        ({"name": {"$in": ["bob"]}}, "b"),
        ({"name": {"$nin": ["bob"]}}, "acd"),
        ({"tags": {"$all": ["x", "y"]}}, "a"),
        ({"tags": "y"}, "ab"),
        ({"pets": {"$elemMatch": {"kind": "dog", "age": 3}}}, "b"),
        ({"name": {"$exists": False}}, "d"),
        ({"name": {"$regex": "^[ab]", "$options": "i"}}, "ab"),
        ({"name": {"$contains": "i"}}, "c"),
        ({"tags": {"$size": 1}}, "b"),
        ({"age": {"$not": {"$gt": 30}}}, "acd"),
        ({"address.town": "Ulm"}, "c"),
        ({"$and": [{"age": 30}, {"name": "Ann"}]}, "a"),
        ({"$or": [{"age": 30, "name": "nobody"}, {"name": "bob"}]}, "b"),
        ({"$nor": [{"age": 30}, {"name": "bob"}]}, "cd"),
        ({"$not": {"age": 30}}, "bcd"),
        ({"no_such_key": 1}, ""),
    ],
    ids=str,
)
def test_a_filter_chooses(people: Notes, condition: dict[str, Any], ids: str) -> None:
    assert people.ids(condition) == ids
    assert "".join(sorted(match.id for match in people.query((1,), condition).matches)) == ids


# ---- scores, against brute force ----

Rows = NDArray[np.float64]


def brute_force(rows: Rows, query: Rows, metric: int) -> Rows:
    """Scores in float64, as the contract defines them."""
    if metric == EUCLIDEAN:
        scores: Rows = 1 / (1 + np.linalg.norm(rows - query, axis=1))
        return scores
    scores = rows @ query
    if metric == DOT_PRODUCT:
        return scores
    lengths: Rows = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    return np.asarray(scores / lengths)


@pytest.mark.parametrize("metric", [COSINE, EUCLIDEAN, DOT_PRODUCT])
def test_scores_are_those_of_brute_force(tmp_path: Path, metric: int) -> None:
    random = np.random.default_rng(SEED + metric)
    rows = random.standard_normal((COUNT, DIMENSIONS)).astype(np.float32)
    query = random.standard_normal(DIMENSIONS).astype(np.float32)
    expected = brute_force(rows.astype(np.float64), query.astype(np.float64), metric)
    with serving(tmp_path) as server:
        notes = Notes(server)
        notes.create(DIMENSIONS, metric)
        notes.upsert(*((f"{i:03}", row.tolist(), {"i": i}) for i, row in enumerate(rows)))
        for condition, allowed in (
            (None, range(COUNT)),
            ({"i": {"$lt": 50}}, range(50)),
            ({"i": {"$gte": 290}}, range(290, COUNT)),
        ):
            best = sorted(allowed, key=lambda i: (-expected[i], i))
            answer = notes.query(query.tolist(), condition, top_k=20)
            assert [match.id for match in answer.matches] == [f"{i:03}" for i in best[:20]], SEED
            assert [match.score for match in answer.matches] == pytest.approx(
                [expected[i] for i in best[:20]], abs=1e-5
            )
            least = float(np.float32(answer.matches[6].score))
            kept = notes.query(query.tolist(), condition, top_k=20, score_min=least)
            assert [match.id for match in kept.matches] == [f"{i:03}" for i in best[:7]]


# ---- whose it is ----


def test_another_resource_reaches_nothing(shared: InProcessServer) -> None:
    mine, theirs = Notes(shared, "mine"), Notes(shared, "theirs")
    mine.create()
    mine.upsert(A, B)
    unknown = (grpc.StatusCode.NOT_FOUND, "COLLECTION_NOT_FOUND", "")
    for call in (
        theirs.describe,
        lambda: theirs.query((1, 0, 0)),
        lambda: theirs.query((), {"n": 1}),
        lambda: theirs.upsert(C),
        lambda: theirs.update(["a"], values=(0, 0, 1)),
        lambda: theirs.update({"n": 1}, metadata={"n": 7}),
        lambda: theirs.delete(["a"]),
        lambda: theirs.delete({"n": 1}),
    ):
        assert refused(call) == unknown
    assert theirs.names() == []
    assert not theirs.drop().deleted
    assert theirs.create(2, EUCLIDEAN).created
    assert list(theirs.query((1, 0)).matches) == []
    theirs.upsert(("a", (5, 5), {}))
    assert [match.id for match in mine.query((1, 0, 0)).matches] == ["a", "b"]
    assert mine.describe().dimensions == 3


def test_forgetting_everything_takes_the_collections_too(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        alice, bob = Notes(server, "alice"), Notes(server, "bob")
        for one in (alice, bob):
            one.create()
            one.upsert(A)
        everything = recall_pb2.ForgetRequest(resource_id="alice", everything=True)
        server.recall.Forget(everything, timeout=20)
        assert alice.names() == []
        assert refused(alice.describe)[1] == "COLLECTION_NOT_FOUND"
        assert bob.ids({"n": 1}) == "a"
        assert server.reading("collection_vectors") == 1
        assert server.reading("collections") == 1


def test_what_a_collection_holds_is_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        notes = Notes(server)
        notes.create(32)
        notes.upsert(("a", [1.0] * 32, {"content": "Rex eats turkey"}))
        query = recall_pb2.RecallRequest(resource_id="alice", query="Rex eats turkey")
        assert list(server.recall.Recall(query, timeout=20).messages) == []
        listed = recall_pb2.ListMessagesRequest(resource_id="alice")
        assert list(server.recall.ListMessages(listed, timeout=20).messages) == []


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        notes = Notes(server)
        notes.create(3, DOT_PRODUCT)
        notes.upsert(A, B, C)
        notes.delete(["b"])
        notes.update(["c"], metadata={"kept": True})
    with serving(tmp_path) as server:
        notes = Notes(server)
        assert notes.describe() == vectors_pb2.Collection(
            name="notes", dimensions=3, metric=DOT_PRODUCT, vectors=2
        )
        answer = notes.query((2, 0, 3), include_values=True)
        assert [(match.id, match.score) for match in answer.matches] == [("c", 3.0), ("a", 2.0)]
        assert dict(answer.matches[0].metadata) == {"n": 3, "kept": True}
        assert list(answer.matches[0].values) == [0, 0, 1]


def test_a_collection_is_kept_to_what_it_was_made_with(tmp_path: Path) -> None:
    """A smaller limit of dimensions holds for new collections alone."""
    with serving(tmp_path) as server:
        Notes(server).create(64)
    with serving(tmp_path, collection_dimensions_max=8) as server:
        notes = Notes(server)
        notes.upsert(("a", [1.0] * 64, {"n": 1}))
        assert notes.ids({"n": 1}) == "a"
        too_many = Notes(server, "alice", "other")
        assert refused(lambda: too_many.create(9)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "FIELD_INVALID",
            "dimensions",
        )
