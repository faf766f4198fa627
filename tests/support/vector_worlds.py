"""A record of dictionaries with a vector index that follows it: every implementation there is.

FAISS comes with the sizes it ships with, and with sizes so small that a dozen rows seal the tail,
merge, compact and go through the coded scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from semanticrecall_core.types.ports import VectorIndex
from semanticrecall_core.types.values import PartitionRows, VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex, Tuning
from support.brute_force import BruteForceIndex, StoredVectors, answer, partition_rows

DIMENSIONS = 32
TINY = Tuning(
    tail_rows_max=4,
    coded_rows_min=6,
    segment_rows_max=40,
    margin_rows=2,
    gather_rows_max=2,
)
Loader = Callable[[str], PartitionRows]
Maker = Callable[[Loader], VectorIndex]

MAKERS: dict[str, Maker] = {
    "brute_force": lambda loader: BruteForceIndex(DIMENSIONS, loader),
    "faiss": lambda loader: FaissVectorIndex(DIMENSIONS, loader),
    "faiss_tiny": lambda loader: FaissVectorIndex(DIMENSIONS, loader, tuning=TINY),
    "faiss_tiny_unclipped": lambda loader: FaissVectorIndex(
        DIMENSIONS, loader, scale_clip=1.0, tuning=TINY
    ),
}


class World:
    """A record of dictionaries, and an index that follows it as a store would make it."""

    def __init__(self, make: Maker) -> None:
        self.record: dict[str, dict[int, StoredVectors]] = {}
        self.loads: list[str] = []
        self.failures: list[Exception] = []
        self.index = make(self.load)
        self.rng = np.random.default_rng(7)

    def load(self, resource_id: str) -> PartitionRows:
        self.loads.append(resource_id)
        if self.failures:
            raise self.failures.pop()
        return partition_rows(self.record.get(resource_id, {}).values(), DIMENSIONS)

    def units(self, count: int) -> NDArray[np.float32]:
        rows = self.rng.normal(size=(count, DIMENSIONS))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        unit: NDArray[np.float32] = rows.astype(np.float32)
        return unit

    def message(self, seq: int, vectors: NDArray[np.float32] | None = None) -> StoredVectors:
        own = self.units(1) if vectors is None else np.atleast_2d(vectors)
        revision = int(self.rng.integers(1, 2**40))
        return StoredVectors(seq, 1 + seq % 3, seq * 10, 1 + seq % 4, own, revision)

    def put(self, resource_id: str, messages: Sequence[StoredVectors]) -> None:
        self.record.setdefault(resource_id, {}).update({m.seq: m for m in messages})
        self.index.vectors_put(resource_id, partition_rows(messages, DIMENSIONS))

    def remove(self, resource_id: str, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self.record[resource_id].pop(seq, None)
        self.index.vectors_removed(resource_id, np.array(seqs, np.int64))

    def check(self, resource_id: str, query: VectorQuery) -> list[int]:
        """The index answers as the record does; returns the seqs found."""
        found = self.index.search(resource_id, query)
        assert found == answer(self.record.get(resource_id, {}).values(), query)
        return [hit.seq for hit in found.hits]
