"""The vectors on record, and what they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semanticrecall_core.engine.serving import Serving
from semanticrecall_core.types.given_vectors import VectorForm
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import PartitionRows


class StoredVectors:
    """Reads vectors of the model that serves. Thread-safe."""

    def __init__(self, store: MessageStore, serving: Serving) -> None:
        self._store = store
        self._serving = serving

    @property
    def form(self) -> VectorForm:
        """What the vectors are that are searched now."""
        embedder = self._serving.model.embedder
        return VectorForm(embedder.generation, embedder.index_identity, embedder.dimensions)

    def of(self, resource_id: str, seqs: Sequence[int]) -> PartitionRows:
        """Those of these messages (sorted, unique), by (seq, chunk)."""
        return self._store.load_rows(resource_id, np.array(seqs, np.int64))
