"""Named collections: what their calls change, refuse and say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.types.collections import (
    CollectionInfo,
    Metric,
    UpsertCounts,
    VectorChange,
    VectorQuery,
    VectorSelection,
)
from semanticrecall_core.types.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from support.collection_model import (
    ANY_TIME,
    KEY,
    by_filter,
    by_ids,
    entry,
    find,
    ids,
    opened,
    put,
)


@pytest.fixture(params=["plain", "encrypted"])
def collections(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[SqliteVectorCollections]:
    key = KEY if request.param == "encrypted" else None
    found = opened(tmp_path, key=key, collections_max=3, vectors_max=5, metadata_bytes_max=100)
    yield found
    found.close()


def test_a_collection_is_made_once(collections: SqliteVectorCollections) -> None:
    info = CollectionInfo("c", 2, Metric.EUCLIDEAN, 0)
    assert collections.create("u", "c", 2, Metric.EUCLIDEAN) == (info, True)
    assert collections.create("u", "c", 2, Metric.EUCLIDEAN) == (info, False)
    put(collections, entry("v", [1, 2]))
    info = CollectionInfo("c", 2, Metric.EUCLIDEAN, 1)
    assert collections.create("u", "c", 2, Metric.EUCLIDEAN) == (info, False)
    assert collections.describe("u", "c") == info
    for dimensions, metric, reason in (
        (3, Metric.EUCLIDEAN, "DIMENSIONS_DIFFER"),
        (2, Metric.COSINE, "METRIC_DIFFERS"),
        (3, Metric.COSINE, "DIMENSIONS_DIFFER"),
    ):
        with pytest.raises(FailedPreconditionError) as raised:
            collections.create("u", "c", dimensions, metric)
        assert raised.value.reason == reason


def test_collections_are_their_resources_own(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 1, Metric.COSINE)
    collections.create("w", "c", 2, Metric.DOT_PRODUCT)
    collections.create("u", "b", 3, Metric.COSINE)
    put(collections, entry("v", [1], secret=1))
    assert [one.name for one in collections.list("u")] == ["b", "c"]
    assert collections.list("w") == [CollectionInfo("c", 2, Metric.DOT_PRODUCT, 0)]
    assert collections.list("nobody") == []
    query = VectorQuery([1, 1], filter={"secret": 1})
    assert collections.query("w", "c", query, ANY_TIME) == []
    assert collections.delete("w", "c") == 0
    assert ids(find(collections, [1])) == ["v"]


def test_a_resource_has_so_many_collections(collections: SqliteVectorCollections) -> None:
    for name in "abc":
        collections.create("u", name, 1, Metric.COSINE)
    with pytest.raises(ResourceExhaustedError) as raised:
        collections.create("u", "d", 1, Metric.COSINE)
    assert raised.value.reason == "TOO_MANY_COLLECTIONS"
    assert collections.create("u", "a", 1, Metric.COSINE)[1] is False
    assert collections.create("w", "d", 1, Metric.COSINE)[1] is True
    collections.delete("u", "a")
    assert collections.create("u", "d", 1, Metric.COSINE)[1] is True


def test_a_collection_is_removed_with_its_vectors(collections: SqliteVectorCollections) -> None:
    assert collections.delete("u", "c") is None
    collections.create("u", "c", 1, Metric.COSINE)
    put(collections, entry("v", [1]), entry("w", [1]))
    assert ids(find(collections, [1])) == ["v", "w"]
    assert collections.delete("u", "c") == 2
    assert collections.delete("u", "c") is None
    assert collections.list("u") == []
    collections.create("u", "c", 3, Metric.EUCLIDEAN)
    assert find(collections, [1, 2, 3]) == []
    assert collections.counts().vectors == 0


def calls(collections: SqliteVectorCollections) -> dict[str, Any]:
    """Every call that needs a collection, of one that is not there."""
    return {
        "describe": lambda: collections.describe("u", "c"),
        "upsert": lambda: put(collections, entry("v", [1])),
        "query": lambda: find(collections, [1]),
        "update": lambda: collections.update(
            "u", "c", by_ids("v"), VectorChange(metadata={}), ANY_TIME
        ),
        "delete": lambda: collections.delete_vectors("u", "c", by_filter(a=1), ANY_TIME),
    }


@pytest.mark.parametrize("call", ["describe", "upsert", "query", "update", "delete"])
@pytest.mark.parametrize("others", [False, True])
def test_what_is_not_there_is_not_found(
    collections: SqliteVectorCollections, call: str, others: bool
) -> None:
    if others:
        collections.create("w", "c", 1, Metric.COSINE)
    with pytest.raises(NotFoundError) as raised:
        calls(collections)[call]()
    assert raised.value.reason == "COLLECTION_NOT_FOUND"


def test_forgetting_a_resource_leaves_the_others(collections: SqliteVectorCollections) -> None:
    assert collections.forget_resource("u") == 0
    for resource, name in (("u", "a"), ("u", "b"), ("w", "a")):
        collections.create(resource, name, 1, Metric.COSINE)
        collections.upsert(resource, name, [entry("v", [1])], None, ANY_TIME)
    assert collections.forget_resource("u") == 2
    assert collections.list("u") == []
    assert [one.name for one in collections.list("w")] == ["a"]
    assert collections.counts().vectors == 1


def test_vectors_are_added_and_replaced(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 2, Metric.COSINE)
    first = [entry("a", [1, 0], n=1), entry("b", [0, 1], n=2)]
    assert collections.upsert("u", "c", first, None, ANY_TIME) == UpsertCounts(2, 0, 0)
    second = [entry("b", [1, 1], m=3), entry("c", [1, 0]), entry("c", [0, 2], last=True)]
    assert collections.upsert("u", "c", second, {}, ANY_TIME) == UpsertCounts(1, 1, 0)
    found = find(collections, None, filter={"x": {"$exists": False}}, include_values=True)
    assert [(one.id, one.metadata, one.score) for one in found] == [
        ("a", {"n": 1}, 0.0),
        ("b", {"m": 3}, 0.0),
        ("c", {"last": True}, 0.0),
    ]
    assert [one.values.tolist() for one in found if one.values is not None] == [
        [1, 0],
        [1, 1],
        [0, 2],
    ]


def test_what_a_filter_names_is_removed_before(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 1, Metric.DOT_PRODUCT)
    put(collections, entry("a", [1], doc=1), entry("b", [2], doc=1), entry("c", [3], doc=2))
    new = [entry("b", [5], doc=1), entry("d", [6], doc=1), entry("c", [7], doc=1)]
    counts = collections.upsert("u", "c", new, {"doc": 1}, ANY_TIME)
    assert counts == UpsertCounts(added=2, replaced=1, deleted=2)
    assert [(one.id, one.score) for one in find(collections, [1])] == [("c", 7), ("d", 6), ("b", 5)]


def test_a_bad_vector_keeps_all_out(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 2, Metric.COSINE)
    put(collections, entry("a", [1, 0], doc=1))
    for bad, where in (
        ([1.0], "entries[1].values"),
        ([1.0, 2.0, 3.0], "entries[1].values"),
        ([1.0, math.nan], "entries[1].values"),
        ([1.0, math.inf], "entries[1].values"),
        ([1.0, 1e39], "entries[1].values"),
        ([0.0, 0.0], "entries[1].values"),
        ([1e-60, 0.0], "entries[1].values"),  # zero as float32
    ):
        entries = [entry("n", [1, 1]), entry("x", bad)]
        with pytest.raises(InvalidArgumentError) as raised:
            collections.upsert("u", "c", entries, {"doc": 1}, ANY_TIME)
        assert [one.field for one in raised.value.violations] == [where]
    with pytest.raises(InvalidArgumentError) as raised:
        put(collections, entry("n", [1, 1]), entry("x", [1, 1], long="x" * 100))
    assert [one.field for one in raised.value.violations] == ["entries[1].metadata"]
    assert ids(find(collections, [1, 1])) == ["a"]


def test_zeros_have_a_distance_and_a_product(collections: SqliteVectorCollections) -> None:
    for metric, score in ((Metric.EUCLIDEAN, 1 / 6), (Metric.DOT_PRODUCT, 0.0)):
        collections.create("u", metric.name, 2, metric)
        put(collections, entry("zero", [0, 0]), name=metric.name)
        found = find(collections, [3, 4], name=metric.name)
        assert [one.score for one in found] == [pytest.approx(score)]


def test_a_collection_holds_so_many_vectors(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 1, Metric.COSINE)
    put(collections, *(entry(f"v{n}", [1], n=n) for n in range(4)))
    with pytest.raises(ResourceExhaustedError) as raised:
        put(collections, entry("v0", [1]), entry("v4", [1]), entry("v5", [1]))
    assert raised.value.reason == "COLLECTION_FULL"
    assert collections.describe("u", "c").vectors == 4
    put(collections, entry("v0", [1]), entry("v4", [1]))
    assert collections.describe("u", "c").vectors == 5
    collections.upsert("u", "c", [entry("v6", [1])], {"n": 3}, ANY_TIME)
    assert ids(find(collections, [1])) == ["v0", "v1", "v2", "v4", "v6"]


def test_vectors_are_updated(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 1, Metric.DOT_PRODUCT)
    put(collections, *(entry(f"v{n}", [n], n=n, kept=[n]) for n in range(3)))

    def update(selection: VectorSelection, **change: Any) -> int:
        return collections.update("u", "c", selection, VectorChange(**change), ANY_TIME)

    assert update(by_ids("v1", "v0", "v1"), metadata={"n": 7, "new": {"x": None}}) == 2
    assert update(by_filter(n=7), values=[9]) == 2
    assert update(by_filter(n=8), values=[9]) == 0
    assert update(by_ids("v2"), values=[3], metadata={"n": None}) == 1
    expected = [
        ("v0", 9, {"n": 7, "kept": [0], "new": {"x": None}}),
        ("v1", 9, {"n": 7, "kept": [1], "new": {"x": None}}),
        ("v2", 3, {"n": None, "kept": [2]}),
    ]
    assert [(one.id, one.score, one.metadata) for one in find(collections, [1])] == expected


@pytest.mark.parametrize(
    ("selection", "change", "where"),
    [
        (VectorSelection(), VectorChange([1]), "selection"),
        (VectorSelection(["v"], {"n": 1}), VectorChange([1]), "selection"),
        (by_filter(), VectorChange([1]), "selection.filter"),
        (by_filter(n={"$x": 1}), VectorChange([1]), "selection.filter.n.$x"),
        (by_ids("v"), VectorChange([1, 2]), "values"),
        (by_ids("v"), VectorChange([math.inf]), "values"),
        (by_ids("v"), VectorChange(metadata={"long": "x" * 60}), "metadata"),
    ],
)
def test_an_update_is_checked(
    collections: SqliteVectorCollections,
    selection: VectorSelection,
    change: VectorChange,
    where: str,
) -> None:
    collections.create("u", "c", 1, Metric.COSINE)
    put(collections, entry("v", [2], n=1, text="y" * 40))
    with pytest.raises(InvalidArgumentError) as raised:
        collections.update("u", "c", selection, change, ANY_TIME)
    assert [one.field for one in raised.value.violations] == [where]
    assert find(collections, [1])[0].metadata == {"n": 1, "text": "y" * 40}


def test_an_update_of_an_unknown_id_changes_nothing(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 1, Metric.COSINE)
    put(collections, entry("v", [1], n=1))
    with pytest.raises(NotFoundError) as raised:
        collections.update("u", "c", by_ids("v", "w"), VectorChange(metadata={"n": 2}), ANY_TIME)
    assert raised.value.reason == "VECTOR_NOT_FOUND"
    assert find(collections, [1])[0].metadata == {"n": 1}


@pytest.mark.parametrize("in_memory", [False, True])
def test_vectors_are_removed(collections: SqliteVectorCollections, in_memory: bool) -> None:
    collections.create("u", "c", 1, Metric.COSINE)
    put(collections, *(entry(f"v{n}", [1], even=n % 2 == 0) for n in range(5)))
    if in_memory:
        find(collections, [1])

    def delete(selection: VectorSelection) -> int:
        return collections.delete_vectors("u", "c", selection, ANY_TIME)

    assert delete(by_ids("v1", "v1", "nobody")) == 1
    assert delete(by_ids("v1")) == 0
    assert delete(by_filter(even=True)) == 3
    assert delete(by_filter(even=True)) == 0
    assert ids(find(collections, [1])) == ["v3"]
    assert collections.describe("u", "c").vectors == 1
    for selection, where in (
        (by_filter(), "selection.filter"),
        (VectorSelection(), "selection"),
        (VectorSelection(["v3"], {"a": 1}), "selection"),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            delete(selection)
        assert [one.field for one in raised.value.violations] == [where]
