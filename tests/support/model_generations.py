"""Vectors of several models in the dictionary model. See `GenerationStore`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from semanticrecall_core.types.generations import LackingRows, ModelIdentity
from semanticrecall_core.types.values import (
    PartitionRows,
    PendingRow,
    RowChecksums,
    VectorRecord,
)
from support.model_rows import Row

if TYPE_CHECKING:
    import numpy as np

    from support.model_store import ModelStore


class ModelVectors:
    """The vectors of one generation."""

    def __init__(self, store: ModelStore, generation: str) -> None:
        self._store = store
        self.generation = generation

    def load_partition(self, resource_id: str) -> PartitionRows:
        return self._store.partition_of(resource_id, self.generation)

    def row_checksums(self, resource_id: str) -> RowChecksums:
        rows = self.load_partition(resource_id)
        return RowChecksums(rows.seqs, rows.chunks, rows.checksums)

    def load_rows(self, resource_id: str, seqs: np.ndarray) -> PartitionRows:
        return self._store.rows_of(resource_id, seqs, self.generation)

    def recent_resources(self, limit: int) -> list[str]:
        return self._store.recent_resources(limit)

    def lacking(self, after_seq: int, limit: int) -> LackingRows:
        found = [pending_row(row) for row in self._lacking() if row.seq > after_seq][:limit]
        return LackingRows(tuple(found), (), found[-1].seq if len(found) == limit else None)

    def lacking_among(self, seqs: Sequence[int]) -> LackingRows:
        found = [pending_row(row) for row in self._lacking() if row.seq in seqs]
        return LackingRows(tuple(found), (), None)

    def put(self, records: Sequence[VectorRecord]) -> list[bool]:
        return self._store.put_of(records, self.generation)

    def _lacking(self) -> list[Row]:
        rows = [r for r in self._store.rows if r.draft.embeddable and self.generation not in r.made]
        return sorted(rows, key=lambda row: row.seq)


class ModelGenerations:
    """Part of `ModelStore`."""

    generation: str
    rows: list[Row]
    _revision: int
    _kept: set[str]

    def embedded(self, generation: str) -> int:
        return sum(generation in row.made for row in self.rows)

    def vectors_of(self: ModelStore, model: ModelIdentity) -> ModelVectors:
        known = {self.generation, model.generation}
        if model.generation != self.generation and self._kept != known:
            self._revision += 1
            self._keep(known)
        return ModelVectors(self, model.generation)

    def serve(
        self: ModelStore,
        generation: str,
        without: Collection[int],
        switched: Callable[[], None],
    ) -> tuple[int, ...]:
        if generation == self.generation:
            return ()
        searchable = [row for row in self.rows if self.generation in row.made]
        lacking = [r.seq for r in searchable if generation not in r.made and r.seq not in without]
        if lacking:
            return tuple(sorted(lacking))
        self._revision += 1
        self.generation = generation
        self._keep({generation})
        switched()
        return ()

    def drop_unused_vectors(self, after: tuple[int, int], rows_max: int) -> tuple[int, int] | None:
        return None

    def _keep(self, generations: set[str]) -> None:
        self._kept = generations
        for row in self.rows:
            row.made = {key: made for key, made in row.made.items() if key in generations}


def pending_row(row: Row) -> PendingRow:
    return PendingRow(row.resource_id, row.seq, row.revision, row.draft.text)
