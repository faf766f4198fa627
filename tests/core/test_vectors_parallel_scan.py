"""Searches that several threads share answer as one thread does, and wait for nobody busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.types.values import PartitionRows, Role, VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex, Tuning
from semanticrecall_core.vectors.parallel_scan import ScanThreads
from support.brute_force import StoredVectors, answer, partition_rows

DIMENSIONS = 32
WAIT_SECONDS = 20.0
PARTS = Tuning(
    tail_rows_max=64,
    coded_rows_min=128,
    segment_rows_max=512,
    margin_rows=4,
    gather_rows_max=16,
    parallel_rows_min=1,
)


def unit(rng: np.random.Generator, count: int, spread: float) -> NDArray[np.float32]:
    """Rows around 12 centres; `spread` 0 is 12 vectors, repeated."""
    centres = np.random.default_rng(99).normal(size=(12, DIMENSIONS))
    rows = centres[rng.integers(0, 12, count)] + spread * rng.normal(size=(count, DIMENSIONS))
    made: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(
        np.float32
    )
    return made


def messages(
    rng: np.random.Generator, count: int, spread: float, chunks_max: int
) -> dict[int, StoredVectors]:
    """Messages of one to `chunks_max` chunks."""
    return {
        seq: StoredVectors(
            seq,
            thread_key=seq % 5 + 1,
            time_ns=seq * 10,
            role=seq % 4 + 1,
            vectors=unit(rng, int(rng.integers(1, chunks_max + 1)), spread),
            revision=seq + 3,
        )
        for seq in range(1, count + 1)
    }


@pytest.fixture
def indexes() -> Iterator[list[FaissVectorIndex]]:
    """Closed at the end, whatever was made."""
    made: list[FaissVectorIndex] = []
    yield made
    for index in made:
        index.close()


def index_of(
    record: dict[int, StoredVectors], indexes: list[FaissVectorIndex], threads: int
) -> FaissVectorIndex:
    def load(resource_id: str) -> PartitionRows:
        return partition_rows(record.values(), DIMENSIONS)

    index = FaissVectorIndex(DIMENSIONS, load, tuning=PARTS, scan_threads=threads)
    indexes.append(index)
    return index


CONDITIONS: list[dict[str, object]] = [
    {},
    {"thread_key": 2},
    {"roles": frozenset((Role.USER, Role.TOOL))},
    {"time_from_ns": 5_000, "time_to_ns": 15_000},
    {"excluded_seqs": np.arange(1, 2_000, 3)},
    {"allowed_seqs": np.arange(600, 640)},
]


@pytest.mark.parametrize("chunks_max", [1, 4])
@pytest.mark.parametrize("spread", [0.0, 1e-4, 0.3, 3.0])
def test_shared_searches_equal_brute_force(
    spread: float, chunks_max: int, indexes: list[FaissVectorIndex]
) -> None:
    rng = np.random.default_rng(int(spread * 10) + chunks_max)
    record = messages(rng, 2_000, spread, chunks_max)
    index = index_of(record, indexes, threads=3)
    for query in unit(rng, 2, spread):
        for conditions in CONDITIONS:
            for top_k in (1, 7, 60):
                asked = replace(VectorQuery(query, top_k), **conditions)  # type: ignore[arg-type]
                assert index.search("u", asked) == answer(record.values(), asked)


def test_shared_searches_skip_dead_rows(indexes: list[FaissVectorIndex]) -> None:
    rng = np.random.default_rng(5)
    record = messages(rng, 2_000, 0.3, 3)
    index = index_of(record, indexes, threads=3)
    asked = VectorQuery(unit(rng, 1, 0.3)[0], 8)
    for _ in range(12):
        found = index.search("u", asked)
        assert found == answer(record.values(), asked)
        gone = [hit.seq for hit in found.hits]
        for seq in gone:
            del record[seq]
        index.vectors_removed("u", np.array(sorted(gone)))
        later = {seq: replace(record[seq], vectors=unit(rng, 2, 0.3)) for seq in list(record)[:9]}
        record.update(later)
        index.vectors_put("u", partition_rows(later.values(), DIMENSIONS))


def test_answers_are_of_one_state_while_parts_change(indexes: list[FaissVectorIndex]) -> None:
    rng = np.random.default_rng(6)
    record = messages(rng, 1_500, 0.3, 2)
    index = index_of(record, indexes, threads=3)
    asked = VectorQuery(unit(rng, 1, 0.3)[0], 5)
    nearest = StoredVectors(5_000, 1, 1, 1, np.repeat(asked.vector[np.newaxis], 300, axis=0))
    without, within = (answer(rows, asked) for rows in (record.values(), [nearest]))
    best_with = answer([*record.values(), nearest], asked)
    assert best_with.hits[0] == within.hits[0]
    index.search("u", asked)
    stop = threading.Event()
    wrong: list[object] = []
    seen: set[int] = set()

    def search() -> None:
        while not stop.is_set():
            found = index.search("u", asked)
            seen.add(found.searchable)
            if found not in (without, best_with):
                wrong.append(found)

    searching = [threading.Thread(target=search) for _ in range(4)]
    for thread in searching:
        thread.start()
    rows = partition_rows([nearest], DIMENSIONS)
    for _ in range(60):
        index.vectors_put("u", rows)
        index.vectors_removed("u", np.array([5_000]))
    stop.set()
    for thread in searching:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert wrong == []
    assert seen <= {1_500, 1_501}


def test_a_closed_index_has_no_threads_and_still_answers(
    indexes: list[FaissVectorIndex],
) -> None:
    before = set(threading.enumerate())
    rng = np.random.default_rng(7)
    record = messages(rng, 1_500, 0.3, 1)
    index = index_of(record, indexes, threads=4)
    asked = VectorQuery(unit(rng, 1, 0.3)[0], 5)
    right = answer(record.values(), asked)
    assert index.search("u", asked) == right
    started = {t for t in threading.enumerate() if t not in before}
    assert 1 <= len(started) <= 3
    index.close()
    index.close()
    assert not [thread for thread in started if thread.is_alive()]
    other = VectorQuery(unit(rng, 1, 0.3)[0], 5)
    assert index.search("u", other) == answer(record.values(), other)
    assert not [t for t in threading.enumerate() if t not in before and t.is_alive()]


def test_small_searches_start_no_thread(indexes: list[FaissVectorIndex]) -> None:
    rng = np.random.default_rng(8)
    record = messages(rng, 1_500, 0.3, 1)
    tuning = replace(PARTS, parallel_rows_min=1_501)
    index = FaissVectorIndex(
        DIMENSIONS,
        lambda _: partition_rows(record.values(), DIMENSIONS),
        tuning=tuning,
        scan_threads=4,
    )
    indexes.append(index)
    before = threading.active_count()
    asked = VectorQuery(unit(rng, 1, 0.3)[0], 5)
    assert index.search("u", asked) == answer(record.values(), asked)
    assert threading.active_count() == before


@pytest.fixture
def one_helper() -> Iterator[ScanThreads]:
    threads = ScanThreads(1)
    yield threads
    threads.close()


def test_two_parts_are_scanned_at_once(one_helper: ScanThreads) -> None:
    both = threading.Barrier(2)
    met: dict[int, int] = {}

    def scan(part: int) -> int:
        # A caller that finds the helper late scans its part too: nobody meets it then.
        if part not in met:
            met[part] = threading.get_ident()
            both.wait(WAIT_SECONDS)
        return part * part

    assert one_helper.map(scan, [3, 4]) == [9, 16]
    assert len(set(met.values())) == 2


def test_a_caller_whose_helpers_are_busy_does_all_itself(one_helper: ScanThreads) -> None:
    busy, done = threading.Barrier(3), threading.Event()

    def hold(part: int) -> int:
        busy.wait(WAIT_SECONDS)
        done.wait(WAIT_SECONDS)
        return part

    other = threading.Thread(target=one_helper.map, args=(hold, [1, 2]))
    other.start()
    busy.wait(WAIT_SECONDS)  # the other caller and the helper have a part in hand each
    found = one_helper.map(lambda part: (part, threading.get_ident()), list(range(20)))
    assert found == [(part, threading.get_ident()) for part in range(20)]
    done.set()
    other.join(WAIT_SECONDS)
    assert not other.is_alive()


def test_a_helper_that_is_held_up_is_not_waited_for(one_helper: ScanThreads) -> None:
    caller = threading.get_ident()
    taken, go_on = threading.Event(), threading.Event()

    def scan(part: int) -> tuple[int, int]:
        if threading.get_ident() == caller:
            assert taken.wait(WAIT_SECONDS)
        else:
            taken.set()
            assert go_on.wait(WAIT_SECONDS)
        return part, threading.get_ident()

    assert one_helper.map(scan, [1, 2, 3]) == [(part, caller) for part in (1, 2, 3)]
    go_on.set()


def test_an_error_reaches_the_caller(one_helper: ScanThreads) -> None:
    def scan(part: int) -> int:
        if part == 7:
            raise MemoryError
        return part

    for _ in range(20):
        with pytest.raises(MemoryError):
            one_helper.map(scan, [1, 2, 7, 3])
    assert one_helper.map(scan, [1, 2, 3]) == [1, 2, 3]


def test_an_error_on_a_helper_alone_costs_nothing_but_time(one_helper: ScanThreads) -> None:
    caller = threading.get_ident()
    failed = threading.Event()

    def scan(part: int) -> int:
        if threading.get_ident() != caller:
            failed.set()
            raise MemoryError
        assert failed.wait(WAIT_SECONDS)
        return part

    for _ in range(3):
        failed.clear()
        assert one_helper.map(scan, [4, 5, 6]) == [4, 5, 6]
