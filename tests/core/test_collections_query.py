"""Named collections: what a query finds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.types.collections import (
    Metric,
)
from semanticrecall_core.types.errors import (
    InvalidArgumentError,
)
from support.collection_model import (
    KEY,
    ModelCollection,
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


@pytest.mark.parametrize("metric", list(Metric))
def test_scores_are_those_of_the_metric(
    collections: SqliteVectorCollections, metric: Metric
) -> None:
    model = ModelCollection(3, metric)
    collections.create("u", "c", 3, metric)
    for id, values in (("a", [1, 2, 3]), ("b", [-1, 0, 2]), ("c", [3, 2, 1]), ("d", [0, 0, 5])):
        model.vectors[id] = ([float(one) for one in values], {})
        put(collections, entry(id, values))
    found = find(collections, [1, 1, 2], top_k=3)
    assert [(one.id, one.score) for one in found] == [
        (id, pytest.approx(score, rel=1e-6)) for id, score in model.nearest([1, 1, 2], 3, None)
    ]
    expected = {
        Metric.COSINE: [9 / math.sqrt(14 * 6), 2 / math.sqrt(6)],
        Metric.EUCLIDEAN: [1 / (1 + math.sqrt(2)), 1 / (1 + math.sqrt(5))],
        Metric.DOT_PRODUCT: [10, 9],
    }
    assert [one.score for one in found[:2]] == pytest.approx(expected[metric], rel=1e-6)


def test_equal_scores_are_ordered_by_the_bytes_of_the_id(
    collections: SqliteVectorCollections,
) -> None:
    collections.create("u", "c", 2, Metric.COSINE)
    names = ["é", "z", "Z", "\U0001f600", "\uff5e"]
    put(collections, *(entry(id, [0.3, 0.7]) for id in names))
    assert ids(find(collections, [1, 2])) == sorted(names, key=str.encode)
    assert ids(find(collections, [1, 2], top_k=2)) == ["Z", "z"]
    assert ids(find(collections, None, filter={"a": None}, top_k=2)) == ["Z", "z"]


def test_a_score_may_be_the_least(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 2, Metric.DOT_PRODUCT)
    put(collections, entry("a", [1, 0]), entry("b", [0.1, 0]), entry("c", [-1, 0]))
    assert ids(find(collections, [1, 0], score_min=0.1)) == ["a", "b"]
    assert ids(find(collections, [1, 0], score_min=0.100001)) == ["a"]
    assert ids(find(collections, [1, 0], score_min=0.1, top_k=1)) == ["a"]
    assert ids(find(collections, None, filter={"x": None}, score_min=0.0)) == ["a", "b", "c"]
    assert ids(find(collections, None, filter={"x": None}, score_min=0.1)) == []


def test_the_filter_comes_before_the_best(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 1, Metric.DOT_PRODUCT)
    put(collections, *(entry(f"v{n}", [n], even=n % 2 == 0) for n in range(5)))
    assert ids(find(collections, [1], filter={"even": True}, top_k=2)) == ["v4", "v2"]
    assert ids(find(collections, [1], filter={"even": "?"})) == []


def test_values_are_given_as_they_came(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 4, Metric.COSINE)
    values = np.array([1e-45, 3e38, -0.1, -0.0], np.float32)
    put(collections, entry("v", values))
    assert find(collections, [1, 1, 1, 1])[0].values is None
    found = find(collections, [1, 1, 1, 1], include_values=True)[0].values
    assert found is not None
    assert found.tobytes() == values.tobytes()


def test_extreme_numbers_are_compared(collections: SqliteVectorCollections) -> None:
    for name, scale in (("huge", 3e38), ("tiny", 1e-44)):
        collections.create("u", name, 2, Metric.COSINE)
        vectors = {"a": [1, 0], "b": [1, 1], "c": [0, 1], "d": [-1, 0]}
        put(
            collections,
            *(entry(id, [scale * one for one in two]) for id, two in vectors.items()),
            name=name,
        )
        found = find(collections, [scale, 0], name=name, top_k=3)
        assert ids(found) == ["a", "b", "c"]
        assert [one.score for one in found] == pytest.approx([1, math.sqrt(0.5), 0], abs=1e-6)
    collections.create("u", "dot", 2, Metric.DOT_PRODUCT)
    put(collections, entry("b", [3e38, 0]), entry("a", [2e38, 0]), name="dot")
    found = find(collections, [1e30, 0], name="dot")
    assert [(one.id, one.score) for one in found] == [
        (id, pytest.approx(float(np.finfo(np.float32).max))) for id in ("a", "b")
    ]


def test_a_query_is_checked(collections: SqliteVectorCollections) -> None:
    collections.create("u", "c", 2, Metric.COSINE)
    for values, filter, where in (
        ([1.0], None, "values"),
        ([0.0, 0.0], None, "values"),
        ([1.0, math.nan], None, "values"),
        (None, None, "filter"),
        (None, {}, "filter"),
        ([1.0, 1.0], {"a": {"$foo": 1}}, "filter.a.$foo"),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            find(collections, values, filter=filter)
        assert [one.field for one in raised.value.violations] == [where]
