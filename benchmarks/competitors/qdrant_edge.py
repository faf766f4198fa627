"""Qdrant Edge: one shard in the process, users told apart by a payload field.

Its documentation advises one collection with a tenant field: a keyword index with `is_tenant`, a
filter in every search, and an HNSW graph per tenant instead of one for all (`m` 0, `payload_m`
16). Edge runs no optimiser in the background: graphs exist from `optimize` on, and what came since
is compared one by one, so it is found at once.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from uuid import UUID, uuid5

import numpy as np
import qdrant_edge as edge
from numpy.typing import NDArray

from benchmarks.competitors.port import Found, Rows, Setup, System

_SHARD = "shard"
_USER = "user"
_IDS = UUID("0f5f6a70-6f2b-4f0d-9d7c-2a6f0a3c9b11")
_BATCH_ROWS = 1000
# Qdrant's defaults, which this binding wants to be told; m and payload_m are those for tenants.
_EF_CONSTRUCT = 100
_FULL_SCAN_THRESHOLD_KB = 10_000


class QdrantEdge:
    """One shard. Not for several threads at a time."""

    def __init__(self, directory: Path, dimensions: int) -> None:
        path = directory / _SHARD
        config = _config(dimensions)
        if path.exists():
            self._shard = edge.EdgeShard.load(str(path), config)
            return
        path.mkdir()
        self._shard = edge.EdgeShard.create(str(path), config)
        self._shard.update(
            edge.UpdateOperation.create_field_index(_USER, edge.KeywordIndexParams(is_tenant=True))
        )

    @property
    def setup(self) -> Setup:
        """How it was set up."""
        return Setup(
            name="Qdrant Edge",
            versions={"qdrant-edge-py": version("qdrant-edge-py")},
            tenants="one shard, keyword index on `user` with is_tenant, a filter in every search",
            index=(
                "approximate: HNSW per user (m 0, payload_m 16, ef_construct 100), exact for "
                "users below the full-scan threshold (10,000 kB) and for what came since "
                "optimize; cosine, float32, threads as many as cores"
            ),
            durability="written to the write-ahead log; not synced before flush or close",
            advice=(
                "https://qdrant.tech/documentation/manage-data/multitenancy/, "
                "https://qdrant.tech/documentation/edge/edge-vs-qdrant-cluster/"
            ),
        )

    def add(self, rows: Rows) -> None:
        """Upsert, in batches."""
        for first in range(0, len(rows.ids), _BATCH_ROWS):
            self._shard.update(
                edge.UpdateOperation.upsert_points(
                    [
                        _point(rows, row)
                        for row in range(first, min(first + _BATCH_ROWS, len(rows.ids)))
                    ]
                )
            )

    def loaded(self) -> None:
        """Merge segments and build the graphs, as advised after a batch of updates."""
        self._shard.optimize()
        self._shard.flush()

    def search(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> list[Found]:
        """The nearest, best first."""
        user = edge.FieldCondition(key=_USER, match=edge.MatchValue(value=resource_id))
        points = self._shard.query(
            edge.QueryRequest(
                limit=top_k,
                query=edge.Query.Nearest(vector.tolist()),
                filter=edge.Filter(must=[user]),
                with_payload=["id", "text"],
            )
        )
        found = []
        for point in points:
            assert point.payload is not None
            found.append(Found(id=point.payload["id"], text=point.payload["text"]))
        return found

    def close(self) -> None:
        """Flush and close the shard."""
        self._shard.flush()
        self._shard.close()


def _config(dimensions: int) -> edge.EdgeConfig:
    return edge.EdgeConfig(
        vectors=edge.EdgeVectorParams(size=dimensions, distance=edge.Distance.Cosine),
        hnsw_config=edge.HnswIndexConfig(
            m=0,
            payload_m=16,
            ef_construct=_EF_CONSTRUCT,
            full_scan_threshold=_FULL_SCAN_THRESHOLD_KB,
        ),
    )


def _point(rows: Rows, row: int) -> edge.Point:
    # Points are named by integers or UUIDs; the same message id may belong to two users.
    name = json.dumps([rows.resource_id, rows.ids[row]])
    return edge.Point(
        id=uuid5(_IDS, name),
        vector=rows.vectors[row].tolist(),
        payload={
            _USER: rows.resource_id,
            "id": rows.ids[row],
            "thread_id": rows.thread_ids[row],
            "text": rows.texts[row],
        },
    )


def open_system(directory: Path, dimensions: int) -> System:
    """Open the shard in `directory`, or create it."""
    return QdrantEdge(directory, dimensions)
