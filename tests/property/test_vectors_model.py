"""Any sequence of puts, edits, removals, drops and restarts leaves exactly the model's answers.

Vectors come from a small grid, so that duplicates and ties are everywhere; sizes are so small that
tails seal, parts merge and compact within a few steps.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from semanticrecall_core.types.values import PartitionRows, Role, VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex, Tuning, moments
from support.brute_force import (
    StoredVectors,
    answer,
    cosine_rows,
    partition_rows,
    vectors_of,
)
from support.brute_force import moments as moments_of_all

DIMENSIONS = 6
ROUNDING = 0.5 / 127 * DIMENSIONS**0.5 + 0.5 / 4096 * DIMENSIONS**0.5
"""How far a cosine of a row and a query is from that of both in whole numbers, at most."""
RESOURCES = ("a", "b")


def unit(numbers: list[int]) -> NDArray[np.float32]:
    row = np.array(numbers, np.float64)
    row[0] += 0.5  # never zero
    return (row / np.linalg.norm(row)).astype(np.float32)


vectors = st.lists(st.integers(-2, 2), min_size=DIMENSIONS, max_size=DIMENSIONS).map(unit)
times = st.integers(-3, 3)
seqs = st.integers(1, 40)
chunked = st.lists(vectors, min_size=1, max_size=5).map(np.stack)
seq_sets = st.one_of(st.none(), st.sets(seqs, max_size=12))
tunings = st.builds(
    Tuning,
    tail_rows_max=st.sampled_from((1, 3, 8, 40)),
    coded_rows_min=st.integers(1, 12),
    segment_rows_max=st.sampled_from((2, 10, 40)),
    dead_share_max=st.sampled_from((0.0, 0.3, 0.9)),
    margin_rows=st.integers(0, 4),
    gather_rows_max=st.integers(0, 6),
    parallel_rows_min=st.sampled_from((1, 10**9)),
)


def column(numbers: set[int] | None) -> NDArray[np.int64] | None:
    return None if numbers is None else np.array(sorted(numbers), np.int64)


queries = st.builds(
    lambda vector, top_k, thread, roles, start, stop, allowed, excluded: VectorQuery(
        vector,
        top_k,
        thread_key=thread,
        roles=roles,
        time_from_ns=start,
        time_to_ns=stop,
        allowed_seqs=column(allowed),
        excluded_seqs=column(excluded),
    ),
    vectors,
    st.integers(1, 45),
    st.one_of(st.none(), st.none(), st.integers(1, 3)),
    st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(list(Role)), max_size=3)),
    st.one_of(st.none(), st.none(), times),
    st.one_of(st.none(), st.none(), times),
    seq_sets,
    seq_sets,
)


class VectorIndexMachine(RuleBasedStateMachine):
    """The index beside a record of dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.record: dict[str, dict[int, StoredVectors]] = {name: {} for name in RESOURCES}
        self.revision = 0

    @initialize(
        tuning=tunings,
        clip=st.sampled_from((0.3, 1.0)),
        evicting=st.booleans(),
        scanned=st.sampled_from((3, 10, 2048)),
        sampled=st.sampled_from((10, 4096)),
    )
    def start(
        self, tuning: Tuning, clip: float, evicting: bool, scanned: int, sampled: int
    ) -> None:
        self.tuning, self.clip, self.evicting = tuning, clip, evicting
        self.sampled = sampled
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(moments, "SCAN_ROWS_MAX", scanned)
        self.patch.setattr(moments, "SAMPLE_ROWS_MAX", sampled)
        self.index = self.new_index()

    def new_index(self) -> FaissVectorIndex:
        return FaissVectorIndex(
            DIMENSIONS,
            self.load,
            scale_clip=self.clip,
            partitions_bytes_max=1 if self.evicting else 2**30,
            tuning=self.tuning,
            scan_threads=2,
        )

    @rule()
    def restart(self) -> None:
        self.index.close()
        self.index = self.new_index()

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            self.patch.undo()

    def load(self, resource_id: str) -> PartitionRows:
        return partition_rows(self.record[resource_id].values(), DIMENSIONS)

    @rule(
        resource_id=st.sampled_from(RESOURCES),
        messages=st.dictionaries(
            seqs, st.tuples(st.integers(1, 3), times, st.integers(1, 4), chunked), max_size=12
        ),
    )
    def put(
        self,
        resource_id: str,
        messages: dict[int, tuple[int, int, int, NDArray[np.float32]]],
    ) -> None:
        self.revision += 1
        rows = [StoredVectors(seq, *columns, self.revision) for seq, columns in messages.items()]
        self.record[resource_id].update({row.seq: row for row in rows})
        self.index.vectors_put(resource_id, partition_rows(rows, DIMENSIONS))

    @rule(
        resource_id=st.sampled_from(RESOURCES),
        seq=st.integers(1, 6),
        versions=st.lists(chunked, min_size=1, max_size=3),
    )
    def edit_again_and_again(
        self, resource_id: str, seq: int, versions: list[NDArray[np.float32]]
    ) -> None:
        for vectors_now in versions:  # searched first, so that the partition is in memory
            self.search(resource_id, VectorQuery(vectors_now[0], 3))
            self.put(resource_id, {seq: (1, 0, 1, vectors_now)})
        self.search(resource_id, VectorQuery(versions[0][0], 3))

    @rule(resource_id=st.sampled_from(RESOURCES), gone=st.sets(seqs, max_size=15))
    def remove(self, resource_id: str, gone: set[int]) -> None:
        for seq in gone:
            self.record[resource_id].pop(seq, None)
        self.index.vectors_removed(resource_id, np.array(sorted(gone), np.int64))

    @rule(resource_id=st.sampled_from(RESOURCES))
    def move_everything_away(self, resource_id: str) -> None:
        self.record[resource_id] = {}
        self.index.resource_dropped(resource_id)

    @rule(resource_id=st.sampled_from(RESOURCES), query=queries)
    def search(self, resource_id: str, query: VectorQuery) -> None:
        found = self.index.search(resource_id, query)
        assert found == answer(self.record[resource_id].values(), query)
        near = self.index.nearest(resource_id, [query])
        assert near.seqs.tolist() == sorted(hit.seq for hit in found.hits)
        assert (near.candidates, near.searchable) == (found.candidates, found.searchable)

    @rule(resource_id=st.sampled_from(RESOURCES), vector=vectors, top_k=st.integers(1, 6))
    def search_everything(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> None:
        self.search(resource_id, VectorQuery(vector, top_k))

    @rule(
        resource_id=st.sampled_from(RESOURCES),
        wanted=st.sets(seqs),
        asked=st.lists(vectors, min_size=1, max_size=3).map(np.stack),
    )
    def look_up(self, resource_id: str, wanted: set[int], asked: NDArray[np.float32]) -> None:
        named = np.array(sorted(wanted), np.int64)
        found = self.index.cosines(resource_id, named, asked)
        right = cosine_rows(self.record[resource_id], named, asked)
        for name in ("cosines", "chunks", "chunk_counts", "revisions"):
            np.testing.assert_array_equal(getattr(found, name), getattr(right, name))
        order, chunks = named[::-1], named % 4
        np.testing.assert_array_equal(
            self.index.vectors_of(resource_id, order, chunks),
            vectors_of(self.record[resource_id], order, chunks, DIMENSIONS),
        )

    @rule(
        resource_id=st.sampled_from(RESOURCES),
        asked=st.lists(vectors, min_size=1, max_size=3).map(np.stack),
    )
    def tell_moments(self, resource_id: str, asked: NDArray[np.float32]) -> None:
        found = self.index.moments(resource_id, asked)
        restarted = self.new_index()
        assert np.array_equal(found, restarted.moments(resource_id, asked))
        restarted.close()
        if self.sampled == 4096:  # no row is left out
            right = moments_of_all(self.record[resource_id].values(), asked)
            np.testing.assert_allclose(found, right, atol=ROUNDING)

    @rule(resource_id=st.sampled_from(RESOURCES))
    def read_back(self, resource_id: str) -> None:
        found = self.index.partition_rows(resource_id)
        right = self.load(resource_id)
        np.testing.assert_array_equal(found.seqs, right.seqs)
        np.testing.assert_array_equal(found.chunks, right.chunks)
        np.testing.assert_array_equal(found.revisions, right.revisions)
        np.testing.assert_array_equal(found.vectors, right.vectors)

    @invariant()
    def memory_is_accounted(self) -> None:
        if hasattr(self, "index"):
            assert (self.index.memory_bytes() > 0) == (self.index.partitions_loaded() > 0)
            if self.evicting:
                assert self.index.partitions_loaded() <= 1


TestVectorIndex = VectorIndexMachine.TestCase
