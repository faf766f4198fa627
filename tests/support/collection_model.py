"""Collections of vectors as a dictionary, and brute force over it.

Filters are read as they are given, from the meaning at the top of collections/filters.py; scores
are computed a vector at a time in float64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semanticrecall_core.collections.file_format import CollectionsFile
from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.messages.high_water_mark import HighWaterMark
from semanticrecall_core.types.collections import (
    CollectionLimits,
    Metric,
    VectorEntry,
    VectorMatch,
    VectorQuery,
    VectorSelection,
)
from semanticrecall_core.types.values import CallBudget
from semanticrecall_server.collections_assembly import MARK_FILE, MarkFile

ANY_TIME = CallBudget(math.inf)
KEY = bytes(range(32))
_MISSING = object()
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


def opened(
    folder: Path, *, key: bytes | None = None, vfs: str = "unix-excl", **limits: int
) -> SqliteVectorCollections:
    """Collections in `collections.db` of a folder."""
    file = CollectionsFile(folder / "collections.db", vfs=vfs, key=key)
    return SqliteVectorCollections(file, CollectionLimits(**limits))


def opened_with_mark(
    folder: Path, *, key: bytes | None = None, accept_loss: bool = False, **limits: int
) -> SqliteVectorCollections:
    """The same, held against what was acknowledged."""
    return SqliteVectorCollections(
        CollectionsFile(folder / "collections.db", key=key),
        CollectionLimits(**limits),
        lambda: MarkFile(HighWaterMark(folder / MARK_FILE)),
        accept_loss=accept_loss,
    )


def entry(id: str, values: Any, **metadata: object) -> VectorEntry:
    return VectorEntry(id, values, metadata)


# ---- filters ----


def holds(condition: Mapping[str, Any], document: Any) -> bool:
    """Whether a document matches a filter as it is given."""
    return all(_key_holds(key, operand, document) for key, operand in condition.items())


def _key_holds(key: str, operand: Any, document: Any) -> bool:
    if key == "$and":
        return all(holds(one, document) for one in operand)
    if key == "$or":
        return any(holds(one, document) for one in operand)
    if key == "$nor":
        return not any(holds(one, document) for one in operand)
    if key == "$not":
        return not holds(operand, document)
    value = document
    for step in key.split("."):
        value = value[step] if isinstance(value, dict) and step in value else _MISSING
    if isinstance(operand, dict) and not any(name.startswith("$") for name in operand):
        return holds(operand, value)
    if isinstance(operand, dict):
        return _operators_hold(operand, value)
    return _operator_holds("$in" if isinstance(operand, list) else "$eq", operand, value, {})


def _operators_hold(operators: Mapping[str, Any], value: Any) -> bool:
    return all(
        _operator_holds(name, operand, value, operators)
        for name, operand in operators.items()
        if name != "$options"
    )


def _operator_holds(name: str, operand: Any, value: Any, beside: Mapping[str, Any]) -> bool:
    elements = value if isinstance(value, list) else [value]
    match name:
        case "$eq":
            if operand is None and value is _MISSING:
                return True
            return _same(value, operand) or any(_same(one, operand) for one in elements)
        case "$ne" | "$nin":
            return not _operator_holds("$eq" if name == "$ne" else "$in", operand, value, {})
        case "$in":
            return any(_operator_holds("$eq", one, value, {}) for one in operand)
        case "$all":
            return bool(operand) and all(_operator_holds("$eq", o, value, {}) for o in operand)
        case "$gt" | "$gte" | "$lt" | "$lte":
            return any(_kind(o) == _kind(operand) and _ORDERS[name](o, operand) for o in elements)
        case "$exists":
            return (value is not _MISSING) == operand
        case "$regex":
            flags = sum(getattr(re, letter.upper()) for letter in beside.get("$options", ""))
            return any(isinstance(o, str) and re.search(operand, o, flags) for o in elements)
        case "$contains":
            return all(
                _contains(value, o) for o in (operand if isinstance(operand, list) else [operand])
            )
        case "$size":
            return isinstance(value, list) and len(value) == operand
        case "$elemMatch":
            return isinstance(value, list) and any(_element_holds(operand, o) for o in value)
        case "$not":
            return not _operators_hold(operand, value)
    raise AssertionError(name)


def _element_holds(operand: Mapping[str, Any], element: Any) -> bool:
    inner: Any = operand
    while isinstance(inner, dict) and inner.keys() == {"$not"}:
        inner = inner["$not"]
    if all(name.startswith("$") and name not in ("$and", "$or", "$nor") for name in inner):
        return _operators_hold(operand, element)
    return isinstance(element, dict) and holds(operand, element)


def _contains(value: Any, operand: Any) -> bool:
    if value is _MISSING:
        return False
    if isinstance(value, list):
        return any(_has_fields(one, operand) for one in value)
    if isinstance(value, str) and isinstance(operand, str):
        return operand in value
    return _has_fields(value, operand)


def _has_fields(value: Any, operand: Any) -> bool:
    if isinstance(value, dict) and isinstance(operand, dict):
        return all(name in value and _has_fields(value[name], operand[name]) for name in operand)
    return _same(value, operand)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def _same(one: Any, other: Any) -> bool:
    if _kind(one) != _kind(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(float(one) == float(other) if _kind(one) == "number" else one == other)


# ---- vectors ----


@dataclass
class ModelCollection:
    """One collection."""

    dimensions: int
    metric: Metric
    vectors: dict[str, tuple[list[float], dict[str, Any]]] = field(default_factory=dict)

    def score(self, id: str, query: Sequence[float]) -> float:
        """As float32, by the definition of the metric."""
        a = np.array(self.vectors[id][0], np.float32).astype(np.float64)
        b = np.array(query, np.float32).astype(np.float64)
        match self.metric:
            case Metric.COSINE:
                found = a @ b / (math.sqrt(a @ a) * math.sqrt(b @ b))
            case Metric.EUCLIDEAN:
                found = 1 / (1 + math.sqrt((a - b) @ (a - b)))
            case Metric.DOT_PRODUCT:
                found = a @ b
        return float(np.float32(found))

    def matching(self, condition: Mapping[str, Any] | None) -> list[str]:
        """Ids that match, sorted by their bytes."""
        found = [
            id
            for id, (_, metadata) in self.vectors.items()
            if not condition or holds(condition, metadata)
        ]
        return sorted(found, key=str.encode)

    def nearest(
        self, query: Sequence[float], top_k: int, condition: Mapping[str, Any] | None
    ) -> list[tuple[str, float]]:
        """The best by (score, id)."""
        scored = [(id, self.score(id, query)) for id in self.matching(condition)]
        return sorted(scored, key=lambda one: (-one[1], one[0].encode()))[:top_k]


# ---- calls ----


def find(
    collections: SqliteVectorCollections,
    values: Sequence[float] | None,
    name: str = "c",
    **fields: Any,
) -> list[VectorMatch]:
    """What a query finds in a collection of the resource "u"."""
    return list(collections.query("u", name, VectorQuery(values, **fields), ANY_TIME))


def ids(matches: Sequence[VectorMatch]) -> list[str]:
    return [one.id for one in matches]


def put(collections: SqliteVectorCollections, *entries: VectorEntry, name: str = "c") -> None:
    collections.upsert("u", name, entries, None, ANY_TIME)


def by_ids(*ids: str) -> VectorSelection:
    return VectorSelection(ids=ids)


def by_filter(**filter: object) -> VectorSelection:
    return VectorSelection(filter=filter)


def filled(
    collections: SqliteVectorCollections, name: str, vectors: int, seed: int
) -> NDArray[np.float32]:
    """A new collection of 16 dimensions; the vectors `v0` ... have the field `n`."""
    collections.create("u", name, 16, Metric.COSINE)
    values = np.random.default_rng(seed).standard_normal((vectors, 16)).astype(np.float32)
    for start in range(0, vectors, 1_000):
        part = range(start, min(start + 1_000, vectors))
        put(collections, *(entry(f"v{n}", values[n], n=n) for n in part), name=name)
    return values
