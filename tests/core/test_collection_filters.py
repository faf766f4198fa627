"""Each operator of the filter, by what it matches: with columns and without."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import orjson
import pytest

from semanticrecall_core.collections.columns import COLUMNS_MAX, ROWS_ONE_BY_ONE_MAX, Columns
from semanticrecall_core.collections.filter_parsing import parse_filter
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
)
from semanticrecall_core.types.values import CallBudget
from support.collection_model import ANY_TIME, holds

DOCUMENTS: dict[str, dict[str, Any]] = {
    "empty": {},
    "null": {"a": None},
    "one": {"a": 1, "b": 2},
    "one.0": {"a": 1.0, "b": 9},
    "true": {"a": True},
    "text": {"a": "1"},
    "words": {"a": "Alpha beta\nGamma"},
    "list": {"a": [1, "x", None]},
    "nested": {"a": [[1, "x", None], {"n": 1, "m": {"k": "v"}}, {"n": 5}]},
    "none in it": {"a": []},
    "object": {"a": {"n": 1, "m": "x"}},
    "dotted": {"a": {"b": {"c": 7}}, "c": "other"},
    "two": {"a": 2, "c": "c"},
}

CASES: list[tuple[dict[str, Any], str]] = [
    ({"a": 1}, "one, one.0, list"),
    ({"a": {"$eq": 1.0}}, "one, one.0, list"),
    ({"a": True}, "true"),
    ({"a": "1"}, "text"),
    ({"a": None}, "empty, null, list"),
    ({"a": {"$eq": [1, "x", None]}}, "list, nested"),
    ({"a": {"$eq": []}}, "none in it"),
    ({"a": {"$eq": {"m": "x", "n": 1.0}}}, "object"),
    ({"a": {"$eq": {"n": 5}}}, "nested"),
    ({"a": {"$ne": 1}}, "empty, null, true, text, words, nested, none in it, object, dotted, two"),
    (
        {"a": {"$ne": None}},
        "one, one.0, true, text, words, nested, none in it, object, dotted, two",
    ),
    ({"a": {"$gt": 1}}, "two"),
    ({"a": {"$gte": 1}}, "one, one.0, list, two"),
    ({"a": {"$lt": 2}}, "one, one.0, list"),
    ({"a": {"$lte": 2}}, "one, one.0, list, two"),
    ({"a": {"$gt": "1"}}, "words, list"),
    ({"a": {"$lte": "1"}}, "text"),
    ({"a": {"$gt": 1, "$lt": 1}}, ""),
    ({"a": {"$gte": 1, "$lte": 1}}, "one, one.0, list"),
    ({"a": [1, "1"]}, "one, one.0, text, list"),
    ({"a": {"$in": [2, None]}}, "empty, null, list, two"),
    ({"a": {"$in": [[], {"n": 5}]}}, "nested, none in it"),
    ({"a": {"$in": []}}, ""),
    ({"a": []}, ""),
    ({"a": {"$nin": [1, None, "1"]}}, "true, words, nested, none in it, object, dotted, two"),
    ({"a": {"$nin": []}}, ", ".join(DOCUMENTS)),
    ({"a": {"$all": [1, "x"]}}, "list"),
    ({"a": {"$all": [1]}}, "one, one.0, list"),
    ({"a": {"$all": [1, 2]}}, ""),
    ({"a": {"$all": []}}, ""),
    ({"a": {"$elemMatch": {"n": 1}}}, "nested"),
    ({"a": {"$elemMatch": {"n": {"$gt": 1}}}}, "nested"),
    ({"a": {"$elemMatch": {"n": 1, "m.k": "v"}}}, "nested"),
    ({"a": {"$elemMatch": {"n": 5, "m.k": "v"}}}, ""),
    ({"a": {"$elemMatch": {"n": {"$ne": 1}}}}, "nested"),
    ({"a": {"$elemMatch": {"$or": [{"n": 9}, {"n": 5}]}}}, "nested"),
    ({"a": {"$elemMatch": {"$gte": 1, "$lt": 2}}}, "list, nested"),
    ({"a": {"$elemMatch": {"$eq": "x"}}}, "list, nested"),
    ({"a": {"$elemMatch": {"$not": {"$exists": False}}}}, "list, nested"),
    ({"a": {"$elemMatch": {"$not": {"n": 5}}}}, "nested"),
    ({"a": {"$elemMatch": {"$not": {"$not": {"$eq": "x"}}}}}, "list, nested"),
    ({"a": {"$exists": True}}, ", ".join(name for name in DOCUMENTS if name != "empty")),
    ({"a": {"$exists": False}}, "empty"),
    ({"a.b.c": {"$exists": True}}, "dotted"),
    ({"a": {"$regex": "^Alpha"}}, "words"),
    ({"a": {"$regex": "alpha"}}, ""),
    ({"a": {"$regex": "alpha", "$options": "i"}}, "words"),
    ({"a": {"$regex": "^Gamma$"}}, ""),
    ({"a": {"$regex": "^Gamma$", "$options": "m"}}, "words"),
    ({"a": {"$regex": "beta.gamma", "$options": "i"}}, ""),
    ({"a": {"$regex": "beta.gamma", "$options": "si"}}, "words"),
    ({"a": {"$regex": "^.$"}}, "text, list"),
    (
        {"a": {"$not": {"$regex": "^.$"}}},
        ", ".join(n for n in DOCUMENTS if n not in ("text", "list")),
    ),
    ({"a": {"$contains": "beta"}}, "words"),
    ({"a": {"$contains": "x"}}, "list"),
    ({"a": {"$contains": 1}}, "one, one.0, list"),
    ({"a": {"$contains": [1, "x"]}}, "list"),
    ({"a": {"$contains": ["Alpha", "Gamma"]}}, "words"),
    ({"a": {"$contains": {"n": 1}}}, "nested, object"),
    ({"a": {"$contains": {"m": {"k": "v"}}}}, "nested"),
    ({"a": {"$contains": None}}, "null, list"),
    ({"a": {"$size": 3}}, "list, nested"),
    ({"a": {"$size": 0}}, "none in it"),
    ({"a": {"$not": {"$gt": 1}}}, ", ".join(name for name in DOCUMENTS if name != "two")),
    ({"$not": {"a": 1, "b": 2}}, ", ".join(name for name in DOCUMENTS if name != "one")),
    ({"$and": [{"a": 1}, {"b": 9}]}, "one.0"),
    ({"$or": [{"a": 1, "b": 2}, {"c": "c"}]}, "one, two"),
    ({"$or": [{"a": 2}, {"a": "1"}], "c": "c"}, "two"),
    ({"$nor": [{"a": {"$exists": True}}, {"b": 1}]}, "empty"),
    ({"a": {"b": {"c": 7}}}, "dotted"),
    ({"a": {"b.c": {"$gt": 6}}, "c": {"$ne": "c"}}, "dotted"),
    ({"a": {"n": 1, "m": "x"}}, "object"),
    ({"no such key": "x"}, ""),
    ({"no such key": {"$ne": "x"}}, ", ".join(DOCUMENTS)),
    ({"a.n": 1}, "object"),
]


@pytest.mark.parametrize(("condition", "expected"), CASES)
@pytest.mark.parametrize("how", ["one by one", "in columns"])
def test_a_filter_matches(condition: dict[str, Any], expected: str, how: str) -> None:
    copies = 1 + ROWS_ONE_BY_ONE_MAX // len(DOCUMENTS)
    metadata = [orjson.dumps(one) for one in DOCUMENTS.values()] * copies
    parsed = parse_filter(condition, "filter")
    assert parsed is not None
    among = np.ones(len(metadata), bool)
    if how == "one by one":  # few are left to be looked at
        among[len(DOCUMENTS) :] = False
    index = Columns()
    found = index.matching(parsed, metadata, among, ANY_TIME)
    wanted = [name in expected.split(", ") for name in DOCUMENTS]
    assert found.tolist() == (np.array(wanted * copies) & among).tolist()
    if how == "one by one":
        assert index.memory_bytes == 0
    assert [holds(condition, one) for one in DOCUMENTS.values()] == wanted  # the other tests' model


def test_only_the_rows_asked_for_match() -> None:
    metadata = [orjson.dumps({"a": row % 2}) for row in range(10)]
    columns = Columns()
    among = np.arange(10) < 5
    for condition, expected in (({"a": 1}, [1, 3]), ({"a": {"$ne": 1}}, [0, 2, 4])):
        parsed = parse_filter(condition, "filter")
        assert parsed is not None
        found = columns.matching(parsed, metadata, among, ANY_TIME)
        assert np.flatnonzero(found).tolist() == expected


def test_rows_that_came_later_are_read_and_others_do_not_see_them() -> None:
    metadata = [orjson.dumps({"a": row % 2}) for row in range(10)]
    columns, parsed = Columns(), parse_filter({"a": {"$gte": 1}}, "filter")
    assert parsed is not None
    for rows in (4, 10, 6):
        found = columns.matching(parsed, metadata, np.ones(rows, bool), ANY_TIME)
        assert np.flatnonzero(found).tolist() == list(range(1, rows, 2))


def test_a_column_that_is_not_used_makes_room() -> None:
    metadata = [orjson.dumps({f"k{key}": row for key in range(100)}) for row in range(20)]
    columns = Columns()
    largest = 0
    for key in range(100):
        parsed = parse_filter({f"k{key}": 7}, "filter")
        assert parsed is not None
        found = columns.matching(parsed, metadata, np.ones(20, bool), ANY_TIME)
        assert np.flatnonzero(found).tolist() == [7]
        largest = max(largest, columns.memory_bytes)
    assert columns.memory_bytes == largest
    assert largest < 50 * 20 * 300


WRONG: list[tuple[Any, str]] = [
    ({"a": {"$foo": 1}}, "filter.a.$foo"),
    ({"$foo": 1}, "filter.$foo"),
    ({"$eq": 1}, "filter.$eq"),
    ({"a": {"$eq": 1, "b": 2}}, "filter.a.b"),
    ({"a": {}}, "filter.a"),
    ({"a": {"b": {}}}, "filter.a.b"),
    ({"a": {"$and": [{"b": 1}]}}, "filter.a.$and"),
    ({"a": {"b": {"c": 1, "$or": []}}}, "filter.a.b.c"),
    ({"$and": []}, "filter.$and"),
    ({"$or": {"a": 1}}, "filter.$or"),
    ({"$or": [{"a": 1}, {}]}, "filter.$or[1]"),
    ({"$nor": ["a"]}, "filter.$nor[0]"),
    ({"$not": 1}, "filter.$not"),
    ({"a": {"$not": 1}}, "filter.a.$not"),
    ({"a": {"$not": {}}}, "filter.a.$not"),
    ({"a": {"$in": 1}}, "filter.a.$in"),
    ({"a": {"$all": "x"}}, "filter.a.$all"),
    ({"a": {"$gt": None}}, "filter.a.$gt"),
    ({"a": {"$lt": True}}, "filter.a.$lt"),
    ({"a": {"$gte": [1]}}, "filter.a.$gte"),
    ({"a": {"$lte": float("inf")}}, "filter.a.$lte"),
    ({"a": float("nan")}, "filter.a"),
    ({"a": {"$exists": 1}}, "filter.a.$exists"),
    ({"a": {"$size": -1}}, "filter.a.$size"),
    ({"a": {"$size": 1.5}}, "filter.a.$size"),
    ({"a": {"$size": True}}, "filter.a.$size"),
    ({"a": {"$contains": []}}, "filter.a.$contains"),
    ({"a": {"$elemMatch": 1}}, "filter.a.$elemMatch"),
    ({"a": {"$elemMatch": {}}}, "filter.a.$elemMatch"),
    ({"a": {"$elemMatch": {"$not": {}}}}, "filter.a.$elemMatch.$not"),
    ({"a": {"$elemMatch": {"$not": {"$gt": 1, "b": 1}}}}, "filter.a.$elemMatch.$not.$gt"),
    ({"a": {"$elemMatch": {"$gt": 1, "b": 1}}}, "filter.a.$elemMatch.$gt"),
    ({"a": {"$regex": 1}}, "filter.a.$regex"),
    ({"a": {"$regex": "("}}, "filter.a.$regex"),
    ({"a": {"$regex": "(?=a)"}}, "filter.a.$regex"),
    ({"a": {"$regex": "a" * 1_001}}, "filter.a.$regex"),
    ({"a": {"$regex": "((a{100}){100}){100}"}}, "filter.a.$regex"),
    ({"a": {"$regex": "a", "$options": "x"}}, "filter.a.$regex"),
    ({"a": {"$regex": "a", "$options": 1}}, "filter.a.$regex"),
    ({"a": {"$options": "i"}}, "filter.a"),
    ({"": 1}, "filter."),
    ({"a..b": 1}, "filter.a..b"),
    ({"k" * 513: 1}, f"filter.{'k' * 64}"),
]


@pytest.mark.parametrize(("condition", "where"), WRONG)
def test_what_is_not_in_the_grammar_is_refused_by_its_place(condition: Any, where: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        parse_filter(condition, "filter")
    assert [one.field for one in raised.value.violations] == [where]


def nested(levels: int) -> dict[str, Any]:
    condition: dict[str, Any] = {"a": 1}
    for _ in range(levels - 1):
        condition = {"$not": condition}
    return condition


def test_a_filter_has_limits() -> None:
    parse_filter({"a": {"$in": list(range(256))}}, "filter")
    parse_filter({f"k{key}": 1 for key in range(256)}, "filter")
    parse_filter(nested(16), "filter")
    parse_filter({"a": {"$regex": "a" * 1_000}}, "filter")
    for condition in (
        {"a": {"$in": list(range(257))}},
        {"a": {"$eq": list(range(256))}},
        {f"k{key}": 1 for key in range(257)},
        nested(17),
    ):
        with pytest.raises(InvalidArgumentError):
            parse_filter(condition, "filter")


@pytest.mark.parametrize("none", [None, {}])
def test_an_empty_filter_is_none(none: Any) -> None:
    assert parse_filter(none, "filter") is None


def test_no_expression_is_slow() -> None:
    metadata = [orjson.dumps({"a": "a" * 50_000 + "b"})]
    parsed = parse_filter({"a": {"$regex": "^(a+)+$"}}, "filter")
    assert parsed is not None
    # With backtracking this would go on for longer than the world has been there.
    assert not Columns().matching(parsed, metadata, np.ones(1, bool), ANY_TIME).any()


def test_nothing_is_said_of_a_pattern_that_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        parse_filter({"a": {"$regex": "secret("}}, "filter")
    assert "secret" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_a_search_ends_with_its_budget() -> None:
    metadata = [orjson.dumps({"a": row}) for row in range(3_000)]
    parsed = parse_filter({"a": 1}, "filter")
    assert parsed is not None
    with pytest.raises(DeadlineExceededError):
        Columns().matching(parsed, metadata, np.ones(3_000, bool), CallBudget(time.monotonic() - 1))


@pytest.mark.parametrize("operator", ["$gt", "$regex", "$contains"])
def test_a_filter_of_many_conditions_ends_with_its_budget(operator: str) -> None:
    metadata = [b'{"a": "%d"}' % i for i in range(3_000)]
    many = parse_filter({"$nor": [{"a": {operator: f"x{i}"}} for i in range(200)]}, "filter")
    assert many is not None
    columns, alive = Columns(), np.ones(len(metadata), bool)
    assert columns.matching(many, metadata, alive, ANY_TIME).all()
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    with pytest.raises(CancelledError):
        columns.matching(many, metadata, alive, CallBudget(math.inf, is_cancelled))
    assert asked == 6


def test_a_filter_with_many_keys_takes_no_more_memory_than_columns_may() -> None:
    metadata = [
        orjson.dumps({f"k{key}": f"{row}" for key in range(2 * COLUMNS_MAX)})
        for row in range(2 * ROWS_ONE_BY_ONE_MAX)
    ]
    parsed = parse_filter(
        {"$nor": [{f"k{key}": "none"} for key in range(2 * COLUMNS_MAX)]}, "filter"
    )
    assert parsed is not None
    columns, sizes = Columns(), [0]

    def look() -> bool:
        sizes.append(columns.memory_bytes)
        return False

    alive = np.ones(len(metadata), bool)
    assert columns.matching(parsed, metadata, alive, CallBudget(time.monotonic() + 60, look)).all()
    assert 0 < max(sizes) <= columns.memory_bytes * (COLUMNS_MAX + 1) / COLUMNS_MAX
