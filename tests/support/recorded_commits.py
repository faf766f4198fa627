"""A commit listener that writes down what it is told, and keeps the partitions it follows."""

from __future__ import annotations

import numpy as np

from semanticrecall_core.types.values import PartitionRows


class RecordedCommits:
    """Calls in order, as plain tuples."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, tuple[int, ...]]] = []
        self.put: list[PartitionRows] = []

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        self.calls.append(("put", resource_id, tuple(rows.seqs.tolist())))
        self.put.append(rows)

    def vectors_removed(self, resource_id: str, seqs: np.ndarray) -> None:
        self.calls.append(("removed", resource_id, tuple(seqs.tolist())))

    def resource_dropped(self, resource_id: str) -> None:
        self.calls.append(("dropped", resource_id, ()))
