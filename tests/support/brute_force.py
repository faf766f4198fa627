"""The plainest exact vector index: dictionaries, a float64 sum per row, a sort. The reference.

It implements the VectorIndex port, so that the contract suite runs over it too, and shares no
code with the index under test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semanticrecall_core.types.errors import EmbeddingFailedError, InvalidArgumentError
from semanticrecall_core.types.values import (
    CosineRows,
    NearestMessages,
    PartitionRows,
    VectorAnswer,
    VectorHit,
    VectorHits,
    VectorQuery,
)

ROWS_AT_ONCE = 4096
STD_MIN = 0.01
"""The least standard deviation that an index tells."""


@dataclass(frozen=True)
class StoredVectors:
    """One message: its columns and its chunks' vectors, shape (chunks, dimensions)."""

    seq: int
    thread_key: int
    time_ns: int
    role: int
    vectors: NDArray[np.float32]
    revision: int = 1
    checksums: tuple[int, ...] = ()


def cosines(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each row's product with the query, summed in float64, rounded once, within [-1, 1]."""
    wide = query.astype(np.float64)
    pieces = [
        (vectors[start : start + ROWS_AT_ONCE].astype(np.float64) * wide).sum(axis=1)
        for start in range(0, len(vectors), ROWS_AT_ONCE)
    ]
    exact = np.concatenate(pieces) if pieces else np.empty(0)
    return np.clip(exact.astype(np.float32), np.float32(-1), np.float32(1))


def meets(message: StoredVectors, query: VectorQuery) -> bool:
    """Whether a message meets every condition, read off the contract word by word."""
    if query.thread_key is not None and message.thread_key != query.thread_key:
        return False
    if query.roles and message.role not in {int(role) for role in query.roles}:
        return False
    if query.time_from_ns is not None and message.time_ns < query.time_from_ns:
        return False
    if query.time_to_ns is not None and message.time_ns >= query.time_to_ns:
        return False
    if query.allowed_seqs is not None and message.seq not in set(query.allowed_seqs.tolist()):
        return False
    return query.excluded_seqs is None or message.seq not in set(query.excluded_seqs.tolist())


def answer(messages: Iterable[StoredVectors], query: VectorQuery) -> VectorAnswer:
    """The answer to a query over these messages."""
    everything = list(messages)
    allowed = [message for message in everything if meets(message, query)]
    hits: list[VectorHit] = []
    if allowed:
        scores = cosines(np.concatenate([m.vectors for m in allowed]), query.vector)
        position = 0
        for message in allowed:
            count = len(message.vectors)
            own = scores[position : position + count]
            position += count
            chunk = int(np.argmax(own))  # the first of equals
            hits.append(VectorHit(message.seq, float(own[chunk]), chunk, count, message.revision))
        hits.sort(key=lambda hit: (-hit.score, hit.seq))
    return VectorAnswer(_columns(hits[: query.top_k]), len(allowed), len(everything))


def _columns(hits: list[VectorHit]) -> VectorHits:
    seqs, scores, chunks, counts, revisions = zip(*hits, strict=True) if hits else ((),) * 5
    return VectorHits(
        np.array(seqs, np.int64),
        np.array(scores, np.float32),
        *(np.array(column, np.int64) for column in (chunks, counts, revisions)),
    )


def cosine_rows(
    messages: Mapping[int, StoredVectors], seqs: NDArray[np.int64], vectors: NDArray[np.float32]
) -> CosineRows:
    """The cosine of each message's best chunk, NaN and zeros for messages that are not there."""
    shape = len(vectors), len(seqs)
    found = CosineRows(
        np.full(shape, np.nan, np.float32),
        np.zeros(shape, np.int64),
        np.zeros(len(seqs), np.int64),
        np.zeros(len(seqs), np.int64),
    )
    for at, seq in enumerate(seqs.tolist()):
        message = messages.get(seq)
        if message is None:
            continue
        found.chunk_counts[at], found.revisions[at] = len(message.vectors), message.revision
        for query, vector in enumerate(vectors):
            own = cosines(message.vectors, vector)
            chunk = int(np.argmax(own))  # the first of equals
            found.cosines[query, at], found.chunks[query, at] = own[chunk], chunk
    return found


def moments(
    messages: Iterable[StoredVectors], queries: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation of all rows' cosines with each query."""
    rows = [message.vectors.astype(np.float64) for message in messages]
    if not rows:
        return np.zeros(len(queries), np.float32), np.full(len(queries), STD_MIN, np.float32)
    scores = np.concatenate(rows) @ queries.astype(np.float64).T
    spread = np.maximum(scores.std(axis=0), STD_MIN)
    return scores.mean(axis=0).astype(np.float32), spread.astype(np.float32)


def vectors_of(
    messages: Mapping[int, StoredVectors],
    seqs: NDArray[np.int64],
    chunks: NDArray[np.int64],
    dimensions: int,
) -> NDArray[np.float32]:
    """The vector of each (seq, chunk), zeros for those that are not there."""
    found = np.zeros((len(seqs), dimensions), np.float32)
    for position, (seq, chunk) in enumerate(zip(seqs.tolist(), chunks.tolist(), strict=True)):
        if seq in messages and 0 <= chunk < len(messages[seq].vectors):
            found[position] = messages[seq].vectors[chunk]
    return found


def grouped(rows: PartitionRows) -> dict[int, StoredVectors]:
    """Rows by message, each message's chunks in order."""
    positions: dict[int, list[int]] = {}
    for position, seq in enumerate(rows.seqs.tolist()):
        positions.setdefault(seq, []).append(position)
    messages: dict[int, StoredVectors] = {}
    for seq, own in positions.items():
        own.sort(key=lambda position: int(rows.chunks[position]))
        at = own[0]
        messages[seq] = StoredVectors(
            seq,
            int(rows.thread_keys[at]),
            int(rows.times_ns[at]),
            int(rows.roles[at]),
            rows.vectors[own],
            int(rows.revisions[at]),
            tuple(rows.checksums[own].tolist()),
        )
    return messages


def partition_rows(messages: Iterable[StoredVectors], dimensions: int) -> PartitionRows:
    """Messages as rows by (seq, chunk)."""
    ordered = sorted(messages, key=lambda message: message.seq)
    counts = [len(message.vectors) for message in ordered]

    def column(values: list[int], dtype: type) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype), counts)

    return PartitionRows(
        seqs=column([m.seq for m in ordered], np.int64),
        thread_keys=column([m.thread_key for m in ordered], np.int64),
        times_ns=column([m.time_ns for m in ordered], np.int64),
        roles=column([m.role for m in ordered], np.uint8),
        chunks=np.array([chunk for count in counts for chunk in range(count)], np.int64),
        revisions=column([m.revision for m in ordered], np.int64),
        vectors=np.concatenate(
            [np.empty((0, dimensions), np.float32)] + [m.vectors for m in ordered]
        ),
        checksums=np.array(
            [sum_ for m in ordered for sum_ in m.checksums or (0,) * len(m.vectors)], np.int64
        ),
    )


class BruteForceIndex:
    """VectorIndex by brute force under one lock."""

    def __init__(self, dimensions: int, loader: Callable[[str], PartitionRows]) -> None:
        self._dimensions = dimensions
        self._loader = loader
        self._lock = threading.RLock()
        self._partitions: dict[str, dict[int, StoredVectors]] = {}

    def _partition(self, resource_id: str) -> dict[int, StoredVectors]:
        if resource_id not in self._partitions:
            self._partitions[resource_id] = grouped(self._loader(resource_id))
        return self._partitions[resource_id]

    def _check(self, vector: NDArray[np.float32]) -> None:
        if vector.shape != (self._dimensions,) or vector.dtype != np.float32:
            raise InvalidArgumentError.of("query_embedding", "wrong shape or dtype")
        if not _units(vector[np.newaxis]):
            raise InvalidArgumentError.of("query_embedding", "not a unit vector")

    def search(self, resource_id: str, query: VectorQuery) -> VectorAnswer:
        vector = query.vector
        if query.top_k < 1:
            raise InvalidArgumentError.of("top_k", "must be at least 1")
        self._check(vector)
        with self._lock:
            return answer(self._partition(resource_id).values(), query)

    def cosines(
        self, resource_id: str, seqs: NDArray[np.int64], vectors: NDArray[np.float32]
    ) -> CosineRows:
        for vector in vectors:
            self._check(vector)
        with self._lock:
            return cosine_rows(self._partition(resource_id), seqs, vectors)

    def nearest(self, resource_id: str, queries: Sequence[VectorQuery]) -> NearestMessages:
        answers = [self.search(resource_id, query) for query in queries]
        vectors = np.array([query.vector for query in queries])
        return NearestMessages(
            np.array(sorted({hit.seq for answer in answers for hit in answer.hits}), np.int64),
            answers[0].candidates,
            answers[0].searchable,
            *self.moments(resource_id, vectors),
        )

    def moments(
        self, resource_id: str, vectors: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        for vector in vectors:
            self._check(vector)
        with self._lock:
            return moments(self._partition(resource_id).values(), vectors)

    def vectors_of(
        self, resource_id: str, seqs: NDArray[np.int64], chunks: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        with self._lock:
            return vectors_of(self._partition(resource_id), seqs, chunks, self._dimensions)

    def partition_rows(self, resource_id: str) -> PartitionRows:
        with self._lock:
            return partition_rows(self._partition(resource_id).values(), self._dimensions)

    def partitions_loaded(self) -> int:
        with self._lock:
            return len(self._partitions)

    def memory_bytes(self) -> int:
        with self._lock:
            messages = [m for p in self._partitions.values() for m in p.values()]
            return sum(message.vectors.nbytes for message in messages)

    def close(self) -> None:
        pass

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        if rows.vectors.shape != (len(rows.seqs), self._dimensions) or not _units(rows.vectors):
            raise EmbeddingFailedError("not unit vectors")
        with self._lock:
            if resource_id in self._partitions:
                self._partitions[resource_id].update(grouped(rows))

    def vectors_removed(self, resource_id: str, seqs: NDArray[np.int64]) -> None:
        with self._lock:
            for seq in seqs.tolist():
                self._partitions.get(resource_id, {}).pop(seq, None)

    def resource_dropped(self, resource_id: str) -> None:
        with self._lock:
            self._partitions.pop(resource_id, None)

    def resource_changed(self, resource_id: str) -> None:
        pass


def _units(vectors: NDArray[np.float32]) -> bool:
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return bool(np.all(np.isfinite(lengths)) and np.all(np.abs(lengths - 1.0) < 0.01))
