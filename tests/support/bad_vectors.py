"""The worst values of every field of every request of VectorService."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from semanticrecall.v1 import vectors_pb2
from support.bad_values import Case, Change, count, enum, extend, identifier, ids, set_to

NO_BAD_VECTOR_VALUE = {"QueryVectorsRequest.include_values"}
"""Fields that take every value of their type."""

SELECTED_MAX = 10_000


def good_vector_requests() -> dict[str, Message]:
    """A request of every method of VectorService."""
    v = vectors_pb2
    place: dict[str, Any] = {"resource_id": "alice", "collection": "notes"}
    return {
        "CreateCollection": v.CreateCollectionRequest(**place, dimensions=3),
        "ListCollections": v.ListCollectionsRequest(resource_id="alice"),
        "DescribeCollection": v.DescribeCollectionRequest(**place),
        "DeleteCollection": v.DeleteCollectionRequest(**place),
        "UpsertVectors": v.UpsertVectorsRequest(
            **place, entries=[v.VectorEntry(id="v1", values=[1, 2, 3])]
        ),
        "QueryVectors": v.QueryVectorsRequest(**place, values=[1, 2, 3]),
        "UpdateVectors": v.UpdateVectorsRequest(
            **place, selection={"ids": {"ids": ["v1"]}}, values=[3, 2, 1]
        ),
        "DeleteVectors": v.DeleteVectorsRequest(**place, selection={"ids": {"ids": ["v1"]}}),
    }


def vector_cases() -> Iterator[Case]:
    """Fields of all of them."""
    for method in good_vector_requests():
        yield from identifier(method, "resource_id")
        if method != "ListCollections":
            yield from identifier(method, "collection")
    yield from count("CreateCollection", "dimensions", [0, 8_193])
    yield from enum("CreateCollection", "metric")
    yield from _entries()
    yield from _structs("UpsertVectors", "delete_filter", _UNREADABLE)
    yield from _values("QueryVectors", "values", may_be_empty=True)
    yield from count("QueryVectors", "top_k", [0, 10_001])
    yield from _structs("QueryVectors", "filter", _UNREADABLE)
    yield Case("QueryVectors", "filter", "neither values nor filter", extend("values", []))
    for value in (math.nan, math.inf, -math.inf):
        yield Case("QueryVectors", "score_min", str(value), set_to("score_min", value))
    yield from _selections("UpdateVectors")
    yield from _values("UpdateVectors", "values", may_be_empty=True)
    yield Case("UpdateVectors", "values", "neither values nor metadata", extend("values", []))
    yield from _structs("UpdateVectors", "metadata", {**_UNREADABLE, **_TOO_LARGE})
    yield from _selections("DeleteVectors")


def _entries() -> Iterator[Case]:
    method = "UpsertVectors"
    yield Case(method, "entries", "none", extend("entries", []))
    yield Case(method, "entries", "too many", _thousand_and_one)
    for case in (
        *identifier(method, "id"),
        *_values(method, "values"),
        *_structs(method, "metadata", {**_UNREADABLE, **_TOO_LARGE}),
    ):
        yield Case(method, f"entries[1].{case.field}", case.label, _second(case.change))


def _second(change: Change) -> Change:
    """Do to the second of two entries what `change` does to a good one."""

    def changed(request: Any) -> None:
        request.entries.add().CopyFrom(request.entries[0])
        change(request.entries[1])

    return changed


def _thousand_and_one(request: Any) -> None:
    request.entries.extend([request.entries[0]] * 1_000)


def _values(method: str, field: str, *, may_be_empty: bool = False) -> Iterator[Case]:
    worst = {
        "nan": [1.0, math.nan, 2.0],
        "inf": [math.inf, 1.0, 2.0],
        "minus inf": [1.0, 2.0, -math.inf],
        "huge": [1.0] * 65_537,
    }
    for label, values in worst.items():
        yield Case(method, field, label, extend(field, values))
    if not may_be_empty:
        yield Case(method, field, "none", extend(field, []))


def _nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    nested: dict[str, Any] = value
    return nested


_UNREADABLE: dict[str, dict[str, Any]] = {
    "nan": {"a": math.nan},
    "inf": {"a": [1, -math.inf]},
    "too deep": _nested(33),
}
_TOO_LARGE: dict[str, dict[str, Any]] = {
    "a level too deep": _nested(17),
    "too long": {"a": "x" * 65_536},
}


def _structs(method: str, field: str, worst: dict[str, dict[str, Any]]) -> Iterator[Case]:
    for label, value in worst.items():

        def change(request: Any, value: dict[str, Any] = value) -> None:
            getattr(request, field).update(value)

        yield Case(method, field, label, change)


def _selections(method: str) -> Iterator[Case]:
    yield Case(method, "selection", "missing", lambda request: request.ClearField("selection"))
    yield from ids(method, "selection.ids.ids", SELECTED_MAX + 1)
    yield Case(
        method,
        "selection.filter",
        "empty",
        lambda request: request.selection.filter.SetInParent(),
    )
    for label, value in _UNREADABLE.items():

        def change(request: Any, value: dict[str, Any] = value) -> None:
            request.selection.filter.update(value)

        yield Case(method, "selection.filter", label, change)
