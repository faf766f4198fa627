"""Any changes, restarts, purges and evictions: what is found is what brute force finds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semanticrecall_core.collections import columns, loaded
from semanticrecall_core.collections.columns import Columns
from semanticrecall_core.collections.filter_parsing import parse_filter
from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.types.collections import (
    CollectionInfo,
    Metric,
    UpsertCounts,
    VectorChange,
    VectorEntry,
    VectorQuery,
    VectorSelection,
)
from semanticrecall_core.types.errors import NotFoundError
from support.collection_model import ANY_TIME, KEY, ModelCollection, holds, opened_with_mark

# Few keys and values, so that filters meet metadata; hard ones, so that types matter.
KEYS = ("a", "b", "é", "$size")
keys = st.sampled_from(KEYS)
numbers = st.sampled_from([-2, 0, 1, 2, 0.5, -0.0, 1.0, 1e300, 2**53])
texts = st.sampled_from(["", "1", "a", "A", "aa\nb", "é", "e\u0301", "\x00", "\uffff", "😀"])
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
few = st.sampled_from([None, True, 1, 2, "a", "1"])
values = st.one_of(
    few,
    scalars,
    st.lists(few, max_size=3),
    st.lists(st.dictionaries(keys, few, max_size=2) | st.lists(few, max_size=2), max_size=2),
    st.dictionaries(keys, few | st.lists(few, max_size=2), max_size=3),
)
documents = st.fixed_dictionaries({"a": values}, optional={"b": values, "é": few, "$size": few})
paths = st.sampled_from(["a", "a", "a", "b", "a.b", "a.a", "é", "none"])
ordered = st.one_of(numbers, texts)
operators: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"$eq": values}),
    st.fixed_dictionaries({"$ne": values}),
    st.fixed_dictionaries({"$gt": ordered}),
    st.fixed_dictionaries({"$lte": ordered}),
    st.fixed_dictionaries({"$gte": ordered, "$lt": ordered}),
    st.fixed_dictionaries({"$in": st.lists(values, max_size=3)}),
    st.fixed_dictionaries({"$nin": st.lists(values, max_size=3)}),
    st.fixed_dictionaries({"$all": st.lists(values, max_size=2)}),
    st.fixed_dictionaries({"$exists": st.booleans()}),
    st.fixed_dictionaries(
        {"$regex": st.sampled_from(["a", "^a$", ".", "b$", "A|b", "a.b", "^$"])},
        optional={"$options": st.sampled_from(["", "i", "m", "s", "ims"])},
    ),
    st.fixed_dictionaries({"$contains": scalars | documents}),
    st.fixed_dictionaries({"$contains": st.lists(scalars, min_size=1, max_size=2)}),
    st.fixed_dictionaries({"$size": st.integers(0, 3)}),
)
of_one_key: st.SearchStrategy[Any] = st.one_of(
    operators,
    scalars,
    st.lists(scalars, max_size=3),
    st.fixed_dictionaries({"$not": operators}),
    st.fixed_dictionaries({"$elemMatch": operators}),
)
filters: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(paths, of_one_key, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$not": inner}),
        st.fixed_dictionaries({"$and": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"$or": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"$nor": st.lists(inner, min_size=1, max_size=2)}),
        st.builds(lambda path, part: {path: {"$elemMatch": part}}, paths, inner),
    ),
    max_leaves=4,
)


# Of every kind of value one with each of every kind, so that most filters tell some from others.
_KINDS: list[Any] = [
    None,
    True,
    1,
    2,
    0.5,
    "",
    "a",
    "1",
    "aa\nb",
    [],
    [1, "a"],
    [None, True, "A"],
    [[1], {"a": 1, "b": "a"}, {"a": 2}],
    {"a": 1},
    {"a": ["a", 1], "b": {"a": 2}},
]
CORPUS: list[dict[str, Any]] = [
    {},
    *({"a": one} for one in _KINDS),
    *({"b": one, "é": 1} for one in _KINDS),
    *({"a": one, "b": other} for one in _KINDS for other in _KINDS[::4]),
]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(documents, max_size=4), filters, st.integers(0, 90))
def test_any_filter_finds_what_plain_python_finds(
    given_documents: list[dict[str, Any]], condition: dict[str, Any], seen_before: int
) -> None:
    metadata = [orjson.dumps(one) for one in (*given_documents, *CORPUS)]
    wanted = [holds(condition, orjson.loads(one)) for one in metadata]
    parsed = parse_filter(condition, "filter")
    assert parsed is not None
    for keys_per_row in (0, 10**9):  # one by one, and in columns
        with mock.patch.object(columns, "KEYS_PER_ROW", keys_per_row):
            index = Columns()
            early = np.ones(min(seen_before, len(metadata)), bool)
            assert (
                index.matching(parsed, metadata, early, ANY_TIME).tolist() == wanted[: len(early)]
            )
            found = index.matching(parsed, metadata, np.ones(len(metadata), bool), ANY_TIME)
            assert found.tolist() == wanted


coordinates = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
vectors = st.lists(coordinates, min_size=3, max_size=3).filter(any)
ids = st.sampled_from(["a", "b", "c", "é", "z", "😀", "v1", "v2", "v3", "v4"])
metadata = st.fixed_dictionaries(
    {}, optional={"a": scalars, "b": st.lists(scalars, max_size=2), "n": numbers}
)
entries = st.lists(st.builds(VectorEntry, ids, vectors, metadata), max_size=5)
simple_filters: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"a": scalars}),
    st.fixed_dictionaries({"n": st.fixed_dictionaries({"$gte": numbers})}),
    st.fixed_dictionaries({"b": st.fixed_dictionaries({"$ne": scalars})}),
    st.fixed_dictionaries({"b": st.fixed_dictionaries({"$size": st.integers(0, 2)})}),
    st.fixed_dictionaries({"a": st.fixed_dictionaries({"$exists": st.booleans()}), "n": numbers}),
)
some_filter = st.none() | simple_filters
places = st.sampled_from([("u", "c"), ("u", "d"), ("w", "c")])
Place = tuple[str, str]


class Collections(RuleBasedStateMachine):
    """Small limits, so that rows are copied, collections leave memory and columns are used."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.patches = (
            mock.patch.object(loaded, "GONE_ROWS_MIN", 2),
            mock.patch.object(columns, "KEYS_PER_ROW", 1),
        )
        for patch in self.patches:
            patch.start()
        self.model: dict[Place, ModelCollection] = {}

    @initialize(encrypted=st.booleans(), bytes_max=st.sampled_from([1, 6_000, 1 << 30]))
    def start(self, encrypted: bool, bytes_max: int) -> None:
        self.key = KEY if encrypted else None
        self.bytes_max = bytes_max
        self.collections = self.opened()

    def opened(self) -> SqliteVectorCollections:
        return opened_with_mark(self.folder, key=self.key, bytes_max=self.bytes_max)

    @rule(place=places, metric=st.sampled_from(Metric))
    def create(self, place: Place, metric: Metric) -> None:
        there = self.model.get(place)
        if there is None:
            self.model[place] = ModelCollection(3, metric)
            created = (CollectionInfo(place[1], 3, metric, 0), True)
        else:
            metric = there.metric
            created = (CollectionInfo(place[1], 3, metric, len(there.vectors)), False)
        assert self.collections.create(*place, 3, metric) == created

    @rule(place=places)
    def delete(self, place: Place) -> None:
        there = self.model.pop(place, None)
        wanted = None if there is None else len(there.vectors)
        assert self.collections.delete(*place) == wanted

    @rule(resource=st.sampled_from("uw"))
    def forget(self, resource: str) -> None:
        gone = [place for place in self.model if place[0] == resource]
        wanted = sum(len(self.model.pop(place).vectors) for place in gone)
        assert self.collections.forget_resource(resource) == wanted

    @rule(place=places, batch=entries, delete_filter=some_filter)
    def upsert(
        self, place: Place, batch: list[VectorEntry], delete_filter: Mapping[str, Any] | None
    ) -> None:
        there = self.model.get(place)
        if there is None:
            with pytest.raises(NotFoundError):
                self.collections.upsert(*place, batch, delete_filter, ANY_TIME)
            return
        removed = there.matching(delete_filter) if delete_filter else []
        for id in removed:
            del there.vectors[id]
        replaced = len({one.id for one in batch} & there.vectors.keys())
        for one in batch:
            there.vectors[one.id] = (list(one.values), dict(one.metadata))
        wanted = UpsertCounts(len({one.id for one in batch}) - replaced, replaced, len(removed))
        assert self.collections.upsert(*place, batch, delete_filter, ANY_TIME) == wanted

    @rule(
        place=places,
        chosen=st.lists(ids, min_size=1, max_size=3) | simple_filters,
        new=st.none() | vectors,
        fields=st.none() | metadata,
    )
    def update(
        self,
        place: Place,
        chosen: list[str] | dict[str, Any],
        new: list[float] | None,
        fields: dict[str, Any] | None,
    ) -> None:
        there = self.model.get(place)
        selection, change = _selection(chosen), VectorChange(new, fields)
        if there is None or (isinstance(chosen, list) and set(chosen) - there.vectors.keys()):
            with pytest.raises(NotFoundError):
                self.collections.update(*place, selection, change, ANY_TIME)
            return
        changed = set(chosen) if isinstance(chosen, list) else there.matching(chosen)
        for id in changed:
            values, before = there.vectors[id]
            there.vectors[id] = (values if new is None else new, {**before, **(fields or {})})
        assert self.collections.update(*place, selection, change, ANY_TIME) == len(changed)

    @rule(place=places, chosen=st.lists(ids, min_size=1, max_size=3) | simple_filters)
    def delete_vectors(self, place: Place, chosen: list[str] | dict[str, Any]) -> None:
        there = self.model.get(place)
        selection = _selection(chosen)
        if there is None:
            with pytest.raises(NotFoundError):
                self.collections.delete_vectors(*place, selection, ANY_TIME)
            return
        gone = set(chosen) if isinstance(chosen, list) else set(there.matching(chosen))
        gone &= there.vectors.keys()
        for id in gone:
            del there.vectors[id]
        assert self.collections.delete_vectors(*place, selection, ANY_TIME) == len(gone)

    @rule()
    def restart(self) -> None:
        self.collections.close()
        self.collections = self.opened()

    @rule()
    def purge(self) -> None:
        self.collections.purge(ANY_TIME)
        assert not self.collections.purge_pending()

    @rule()
    def verify(self) -> None:
        assert list(self.collections.verify(None, ANY_TIME)) == []

    @rule(place=places, query=vectors, top_k=st.integers(1, 12), condition=some_filter)
    def query(
        self, place: Place, query: list[float], top_k: int, condition: Mapping[str, Any] | None
    ) -> None:
        there = self.model.get(place)
        asked = VectorQuery(query, top_k, condition, include_values=True)
        if there is None:
            with pytest.raises(NotFoundError):
                self.collections.query(*place, asked, ANY_TIME)
            return
        found = self.collections.query(*place, asked, ANY_TIME)
        wanted = there.nearest(query, top_k, condition)
        assert [(one.id, one.score) for one in found] == wanted
        for one in found:
            assert one.values is not None
            assert (one.values.tolist(), one.metadata) == there.vectors[one.id]

    @rule(place=places, condition=simple_filters, top_k=st.integers(1, 12))
    def list_by_filter(self, place: Place, condition: dict[str, Any], top_k: int) -> None:
        there = self.model.get(place)
        if there is not None:
            asked = VectorQuery(None, top_k, condition)
            found = self.collections.query(*place, asked, ANY_TIME)
            wanted = there.matching(condition)[:top_k]
            assert [(one.id, one.score) for one in found] == [(id, 0.0) for id in wanted]

    @invariant()
    def lists_agree(self) -> None:
        for resource in "uw":
            wanted = [
                CollectionInfo(name, 3, there.metric, len(there.vectors))
                for (whose, name), there in sorted(self.model.items())
                if whose == resource
            ]
            assert self.collections.list(resource) == wanted

    def teardown(self) -> None:
        if hasattr(self, "collections"):
            self.collections.close()
        for patch in self.patches:
            patch.stop()
        shutil.rmtree(self.folder)


def _selection(chosen: list[str] | dict[str, Any]) -> VectorSelection:
    if isinstance(chosen, list):
        return VectorSelection(ids=chosen)
    return VectorSelection(filter=chosen)


TestCollections = Collections.TestCase
TestCollections.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
