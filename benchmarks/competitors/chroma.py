"""Chroma, embedded: a collection per user. `chroma_server` does the same with its server.

Its guide to performance advises a collection for each customer's isolated data, and says of one
node that splitting neither helps nor hurts speed. A filter on metadata in one collection is its
other way; the graph then holds everybody, and every search walks past the others.

The graph is approximate. Messages are in SQLite's log when `add` returns; Chroma moves them into
the graph in batches, and searches those that are not yet there by plain comparison.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
from chromadb.api.collection_configuration import CreateCollectionConfiguration
from chromadb.config import Settings
from chromadb.errors import NotFoundError
from numpy.typing import NDArray

from benchmarks.competitors.port import Found, Rows, Setup, System

# The defaults, written out: "work well for most use cases". An ef_construction of 200, which the
# guide names where build time is no concern, halves the speed of loading.
_CONFIGURATION = CreateCollectionConfiguration(
    hnsw={"space": "cosine", "ef_construction": 100, "ef_search": 100, "max_neighbors": 16}
)
# "Anything between 50 and 250 is a reasonable choice."
_BATCH_ROWS = 250


def settings() -> Settings:
    """Of a client: its defaults, without telemetry."""
    return Settings(anonymized_telemetry=False)


class Chroma:
    """A database. Not for several threads at a time.

    Args:
        client: of Chroma; what it is declared to be has no `close`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._collections: dict[str, chromadb.Collection] = {}

    @property
    def setup(self) -> Setup:
        """How it was set up."""
        return Setup(
            name="Chroma",
            versions={"chromadb": version("chromadb")},
            tenants="a collection per user, named by a hash of the user's id",
            index=(
                "approximate: HNSW per user, cosine, float32, M 16, ef_construction 100, "
                "ef_search 100 (all defaults), threads as many as cores"
            ),
            durability=(
                "committed and synced to disk (SQLite, 250 messages a commit); the graph follows, "
                "and is written every 1,000 messages"
            ),
            advice=(
                "https://docs.trychroma.com/guides/performance/distributed (a collection per "
                "customer), https://docs.trychroma.com/guides/performance/hnsw-tuning"
            ),
        )

    def add(self, rows: Rows) -> None:
        """Add to the user's collection, in batches of the advised size."""
        collection = self._collection(rows.resource_id)
        if collection is None:
            collection = self._client.create_collection(
                _collection_name(rows.resource_id),
                configuration=_CONFIGURATION,
                embedding_function=None,
            )
            self._collections[rows.resource_id] = collection
        for first in range(0, len(rows.ids), _BATCH_ROWS):
            part = slice(first, first + _BATCH_ROWS)
            collection.add(
                ids=list(rows.ids[part]),
                embeddings=rows.vectors[part],
                documents=list(rows.texts[part]),
                metadatas=[{"thread_id": thread_id} for thread_id in rows.thread_ids[part]],
            )

    def loaded(self) -> None:
        """Nothing is advised: the graphs are built as messages arrive."""

    def search(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> list[Found]:
        """The nearest by the graph, best first."""
        collection = self._collection(resource_id)
        if collection is None:
            return []
        questions: list[Any] = [vector]
        answer = collection.query(
            query_embeddings=questions, n_results=top_k, include=["documents"]
        )
        documents = answer["documents"]
        assert documents is not None
        return [
            Found(id=message_id, text=text)
            for message_id, text in zip(answer["ids"][0], documents[0], strict=True)
        ]

    def close(self) -> None:
        """Stop Chroma."""
        self._collections.clear()
        self._client.close()

    def _collection(self, resource_id: str) -> chromadb.Collection | None:
        known = self._collections.get(resource_id)
        if known is None:
            try:
                known = self._client.get_collection(
                    _collection_name(resource_id), embedding_function=None
                )
            except NotFoundError:
                return None
            self._collections[resource_id] = known
        return known


def _collection_name(resource_id: str) -> str:
    # Names are 3 to 512 of [a-zA-Z0-9._-]; a user's id may be anything.
    return f"user-{hashlib.sha256(resource_id.encode()).hexdigest()}"


def open_system(directory: Path, dimensions: int) -> System:
    """Open the store in `directory`, or begin one; a collection learns `dimensions` itself."""
    return Chroma(chromadb.PersistentClient(directory, settings=settings()))
