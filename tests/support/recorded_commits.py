"""A commit listener that writes down what it is told, and keeps the partitions it follows."""

from __future__ import annotations

import numpy as np

from semanticrecall_core.types.values import PartitionRows


class RecordedCommits:
    """Calls in order, as plain tuples; `calls` has those about vectors, `heard` all."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, tuple[int, ...]]] = []
        self.heard: list[tuple[str, str, tuple[int, ...]]] = []
        self.put: list[PartitionRows] = []

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        self._heard("put", resource_id, tuple(rows.seqs.tolist()))
        self.put.append(rows)

    def vectors_removed(self, resource_id: str, seqs: np.ndarray) -> None:
        self._heard("removed", resource_id, tuple(seqs.tolist()))

    def resource_dropped(self, resource_id: str) -> None:
        self._heard("dropped", resource_id, ())

    def resource_changed(self, resource_id: str) -> None:
        self.heard.append(("changed", resource_id, ()))

    def clear(self) -> None:
        self.calls.clear()
        self.heard.clear()

    def _heard(self, kind: str, resource_id: str, seqs: tuple[int, ...]) -> None:
        self.calls.append((kind, resource_id, seqs))
        self.heard.append((kind, resource_id, seqs))
