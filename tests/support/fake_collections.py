"""Vector collections that remember what they were asked and keep nothing.

For tests of the server alone. What they answer are constants below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from semanticrecall_core.types.collections import (
    CollectionCounts,
    CollectionInfo,
    Metric,
    UpsertCounts,
    VectorChange,
    VectorEntry,
    VectorMatch,
    VectorQuery,
    VectorSelection,
)
from semanticrecall_core.types.values import CallBudget, Finding

INFO = CollectionInfo("notes", 3, Metric.DOT_PRODUCT, 7)
COUNTS = CollectionCounts(21, 22, 23, 24, 25, 26, 27, 28)
MATCH = VectorMatch("v1", 0.75, {"project": "A", "tags": ["x", None, True, {"n": 0.5}]})
REMOVED = 5
UPSERTED = UpsertCounts(11, 12, 13)
UPDATED = 14
DELETED = 15


class FakeCollections:
    """See the module. `on_call` runs first in every call, on its thread."""

    def __init__(self, on_call: Callable[[str, CallBudget], None]) -> None:
        self._on_call = on_call
        self.asked: list[tuple[Any, ...]] = []
        self.matches: Sequence[VectorMatch] = (MATCH,)
        self.is_there = True

    def _note(self, name: str, *values: Any, budget: CallBudget | None = None) -> None:
        self.asked.append((name, *values))
        self._on_call(name, budget or CallBudget.of_seconds(60))

    def create(
        self, resource_id: str, name: str, dimensions: int, metric: Metric
    ) -> tuple[CollectionInfo, bool]:
        self._note("create", resource_id, name, dimensions, metric)
        return CollectionInfo(name, dimensions, metric, 0), not self.is_there

    def list(self, resource_id: str) -> Sequence[CollectionInfo]:
        self._note("list", resource_id)
        return (INFO, CollectionInfo("other", 8, Metric.EUCLIDEAN, 0))

    def describe(self, resource_id: str, name: str) -> CollectionInfo:
        self._note("describe", resource_id, name)
        return INFO

    def delete(self, resource_id: str, name: str, budget: CallBudget | None = None) -> int | None:
        self._note("delete", resource_id, name, budget=budget)
        return REMOVED if self.is_there else None

    def upsert(
        self,
        resource_id: str,
        name: str,
        entries: Sequence[VectorEntry],
        delete_filter: Mapping[str, object] | None,
        budget: CallBudget,
    ) -> UpsertCounts:
        self._note("upsert", resource_id, name, entries, delete_filter, budget=budget)
        return UPSERTED

    def query(
        self, resource_id: str, name: str, query: VectorQuery, budget: CallBudget
    ) -> Sequence[VectorMatch]:
        self._note("query", resource_id, name, query, budget=budget)
        return self.matches

    def update(
        self,
        resource_id: str,
        name: str,
        selection: VectorSelection,
        change: VectorChange,
        budget: CallBudget,
    ) -> int:
        self._note("update", resource_id, name, selection, change, budget=budget)
        return UPDATED

    def delete_vectors(
        self, resource_id: str, name: str, selection: VectorSelection, budget: CallBudget
    ) -> int:
        self._note("delete_vectors", resource_id, name, selection, budget=budget)
        return DELETED

    def forget_resource(self, resource_id: str) -> int:
        raise AssertionError("the server does not call it")

    def purge(self, budget: CallBudget) -> None:
        raise AssertionError("the server does not call it")

    def purge_pending(self) -> bool:
        return False

    def tell_removed(self, told: Callable[[], None]) -> None:
        raise AssertionError("the server does not call it")

    def damaged(self) -> int:
        return COUNTS.damaged

    def verify(self, resource_id: str | None, budget: CallBudget) -> Iterator[Finding]:
        raise AssertionError("the server does not call it")

    def counts(self) -> CollectionCounts:
        return COUNTS

    def close(self) -> None:
        """Nothing is open."""
