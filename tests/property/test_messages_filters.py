"""Random filters over random metadata: SQL against plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.messages.filter_sql import compile_filter
from semanticrecall_core.types.errors import CancelledError
from semanticrecall_core.types.filters import (
    All,
    Any,
    Comparison,
    Condition,
    Filter,
    Not,
    filter_keys,
    parse_filter,
)
from semanticrecall_core.types.values import CallBudget, ForgetTarget, MessageDraft, Role
from support.model_filter import has_key, holds
from support.stored_messages import open_store

LONG = CallBudget(float("inf"))

# Few keys and values, so that filters meet metadata; hard ones, so that quoting matters.
KEYS = ["a", "b", "é", "a\\b", "a'b", "a b", "$", "[0]", "\u2028", "😀"]
keys = st.sampled_from(KEYS)
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.1, 0.3, 1e-300, -0.0, 2.0, 2**53, 2**53 + 1, 2**63, 10**30, -(2**63) - 1]),
    st.floats(allow_nan=False, allow_infinity=False),
)
texts = st.one_of(
    st.sampled_from(["", "1", "true", "null", "a", "A", "é", "e\u0301", "\x00", "a\x00b", "ﬁ"]),
    st.text(max_size=3),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
documents = st.dictionaries(keys, values, max_size=4)


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    path = tuple(draw(st.lists(keys, min_size=1, max_size=2)))
    comparison = draw(st.sampled_from(Comparison))
    # Numbers in a parsed filter are floats.
    scalar = st.one_of(st.none(), st.booleans(), numbers.map(float), texts)
    if comparison is Comparison.EXISTS:
        return Condition(path, comparison, (draw(st.booleans()),))
    if comparison is Comparison.IN:
        return Condition(path, comparison, tuple(draw(st.lists(scalar, max_size=4))))
    if comparison is Comparison.EQ:
        return Condition(path, comparison, (draw(scalar),))
    return Condition(path, comparison, (draw(numbers.map(float) | texts),))


filters: st.SearchStrategy[Filter] = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: All(tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Any(tuple(parts))),
    ),
    max_leaves=5,
)

# Many conditions on one path, such as are folded into one.
one_path = st.builds(
    lambda parts, together: together(
        tuple(
            Not(replace(p, path=("a",))) if negated else replace(p, path=("a",))
            for p, negated in parts
        )
    ),
    st.lists(st.tuples(conditions(), st.booleans()), min_size=2, max_size=6),
    st.sampled_from((All, Any)),
)
nested = st.builds(
    lambda parts, together: together(tuple(parts)),
    st.lists(one_path | one_path.map(Not) | conditions(), min_size=1, max_size=3),
    st.sampled_from((All, Any)),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteMessageStore]:
    made = open_store(Path(tmp_path_factory.mktemp("filters")) / "data", generation="g")
    yield made
    made.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    metadata=st.lists(documents, min_size=1, max_size=6),
    asked=st.lists(filters | one_path | nested, min_size=1, max_size=6),
    ascii_only=st.booleans(),
)
def test_sql_and_python_agree(
    store: SqliteMessageStore,
    metadata: list[dict[str, object]],
    asked: list[Filter],
    ascii_only: bool,
) -> None:
    stored = [json.dumps(m, ensure_ascii=ascii_only) if m else "" for m in metadata]
    drafts = [
        MessageDraft(str(n), "t", Role.USER, metadata_json=text) for n, text in enumerate(stored)
    ]
    store.forget("u", ForgetTarget(everything=True))
    outcomes = store.append("u", drafts, LONG)
    for condition in asked:
        expected = [
            outcome.seq
            for outcome, text in zip(outcomes, stored, strict=True)
            if holds(condition, text)
        ]
        assert store.seqs_matching("u", condition, LONG).seqs.tolist() == expected
        named = filter_keys(condition)
        unknown = {key for key in named if not any(has_key(text, key) for text in stored)}
        assert store.unknown_metadata_keys("u", named, LONG) == tuple(sorted(unknown))


@pytest.mark.parametrize("stored", ["9007199254740993", "[9007199254740993]"])
def test_numbers_compare_as_doubles(store: SqliteMessageStore, stored: str) -> None:
    """2^53 + 1 is no double: as one it is 2^53."""
    store.forget("u", ForgetTarget(everything=True))
    (outcome,) = store.append(
        "u",
        [MessageDraft("a", "t", Role.USER, metadata_json=f'{{"k":{stored}}}')],
        LONG,
    )
    for comparison, found in (
        (Comparison.EQ, [outcome.seq]),
        (Comparison.GTE, [outcome.seq]),
        (Comparison.LTE, [outcome.seq]),
        (Comparison.GT, []),
        (Comparison.LT, []),
    ):
        condition = Condition(("k",), comparison, (2.0**53,))
        assert store.seqs_matching("u", condition, LONG).seqs.tolist() == found


def test_the_largest_filter_compiles(store: SqliteMessageStore) -> None:
    """As many conditions as the grammar lets through, side by side and nested."""
    one = Condition(("a",), Comparison.IN, tuple(float(n) for n in range(256)))
    wide: Filter = Any(tuple(Condition(("a",), Comparison.EQ, (float(n),)) for n in range(256)))
    deep: Filter = one
    for _ in range(16):
        deep = Not(All((deep,)))
    store.forget("u", ForgetTarget(everything=True))
    outcomes = store.append(
        "u",
        [MessageDraft(str(n), "t", Role.USER, metadata_json=f'{{"a":{n}}}') for n in (0, 255, 256)],
        LONG,
    )
    expected = [outcomes[0].seq, outcomes[1].seq]
    for condition in (one, wide, deep):
        assert store.seqs_matching("u", condition, LONG).seqs.tolist() == expected


@pytest.mark.parametrize(
    ("filter_object", "lists_opened"),
    [
        ({"$or": [{"tags": f"b{n}"} for n in range(250)]}, 1),
        ({"$or": [{"tags": {"$in": [n, f"b{n}"]}} for n in range(100)]}, 1),
        ({"$and": [{"tags": {"$ne": f"b{n}"}} for n in range(250)]}, 1),
        ({"$or": [{"tags": {"$gt": n}} for n in range(250)]}, 1),
        ({"$and": [{"tags": {"$lte": f"b{n}"}} for n in range(250)]}, 1),
        ({"$or": [{"tags": {"$lte": n}} for n in (1, "a")]}, 2),  # types are not mixed
        ({"$and": [{"tags": f"b{n}"} for n in range(3)]}, 3),  # each may be another element
    ],
)
def test_a_list_is_opened_once_however_many_conditions(
    filter_object: dict[str, object], lists_opened: int
) -> None:
    condition = parse_filter(filter_object)
    assert condition is not None
    text = compile_filter(condition, first_parameter=2).text
    assert text.count("json_each(m.metadata") == lists_opened


def test_a_filter_ends_while_it_runs_when_its_caller_goes(store: SqliteMessageStore) -> None:
    store.forget("u", ForgetTarget(everything=True))
    drafts = [MessageDraft(str(n), "t", Role.USER, metadata_json='{"a":1}') for n in range(1000)]
    store.append("u", drafts, LONG)
    paths = [{f"k{n}": 1} for n in range(250)]
    condition = parse_filter({"$or": paths})
    assert condition is not None
    for ask in (
        lambda budget: store.seqs_matching("u", condition, budget),
        lambda budget: store.unknown_metadata_keys("u", filter_keys(condition), budget),
    ):
        asked = count()
        with pytest.raises(CancelledError):
            ask(CallBudget(float("inf"), lambda asked=asked: next(asked) > 3))
        # Asked before the statement as well as in it, and not again after it was broken off.
        assert next(asked) == 5
        assert ask(LONG) is not None  # the connection is as good as before
