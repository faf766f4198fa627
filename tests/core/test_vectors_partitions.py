"""Loading, eviction and memory of partitions, and searches beside a writer."""

from __future__ import annotations

import faulthandler
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.partitions import resident
from semanticrecall_core.types.errors import (
    CorruptDataError,
    InvalidArgumentError,
    UnavailableError,
)
from semanticrecall_core.types.values import PartitionRows, VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex, Tuning
from support.brute_force import StoredVectors, cosines, partition_rows

DIMENSIONS = 16
WAIT_S = 30


def units(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    rows = rng.normal(size=(count, DIMENSIONS))
    unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(
        np.float32
    )
    return unit


def one_row(seq: int, vector: NDArray[np.float32]) -> PartitionRows:
    return partition_rows([StoredVectors(seq, 1, 0, 1, vector.reshape(1, -1))], DIMENSIONS)


def seqs_found(index: FaissVectorIndex, resource_id: str, query: NDArray[np.float32]) -> list[int]:
    return [hit.seq for hit in index.search(resource_id, VectorQuery(query, 100)).hits]


class SlowLoader:
    """A loader that reads when told to, and says when it has begun."""

    def __init__(self, *answers: PartitionRows | Exception) -> None:
        self.answers = list(answers)
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.calls = 0

    def __call__(self, _: str) -> PartitionRows:
        self.calls += 1
        self.begun.release()
        assert self.go_on.acquire(timeout=WAIT_S)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def vectors() -> NDArray[np.float32]:
    return units(np.random.default_rng(1), 20)


def test_many_threads_that_need_a_partition_load_it_once(vectors: NDArray[np.float32]) -> None:
    loader = SlowLoader(one_row(1, vectors[1]))
    index = FaissVectorIndex(DIMENSIONS, loader)
    with ThreadPoolExecutor(8) as pool:
        searches = [pool.submit(seqs_found, index, "u", vectors[0]) for _ in range(8)]
        assert loader.begun.acquire(timeout=WAIT_S)
        loader.go_on.release()
        assert [search.result(WAIT_S) for search in searches] == [[1]] * 8
    assert loader.calls == 1


def test_all_who_wait_for_a_failed_load_are_told(vectors: NDArray[np.float32]) -> None:
    loader = SlowLoader(OSError("gone"), one_row(1, vectors[1]))
    index = FaissVectorIndex(DIMENSIONS, loader)
    waiting = threading.Event()

    class WatchedEvent(threading.Event):
        """Tells when someone waits for it."""

        def wait(self, timeout: float | None = None) -> bool:
            waiting.set()
            return super().wait(timeout)

    class WatchedSlot(resident._Slot[Any]):
        """A slot that tells when a second thread waits for it."""

        def __init__(self) -> None:
            super().__init__()
            self.done = WatchedEvent()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(resident, "_Slot", WatchedSlot)
        first = pool.submit(seqs_found, index, "u", vectors[0])
        assert loader.begun.acquire(timeout=WAIT_S)
        second = pool.submit(seqs_found, index, "u", vectors[0])
        assert waiting.wait(WAIT_S)
        loader.go_on.release()
        for search in (first, second):
            with pytest.raises(OSError, match="gone"):
                search.result(WAIT_S)
    loader.go_on.release()
    assert seqs_found(index, "u", vectors[0]) == [1]


def test_changes_during_a_load_are_not_lost_and_do_not_wait(vectors: NDArray[np.float32]) -> None:
    # The load read after the put of 2 and before the removal of 1.
    loader = SlowLoader(
        partition_rows(
            [StoredVectors(seq, 1, 0, 1, vectors[[seq]]) for seq in (1, 2, 3)], DIMENSIONS
        )
    )
    index = FaissVectorIndex(DIMENSIONS, loader)
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(seqs_found, index, "u", vectors[9])
        assert loader.begun.acquire(timeout=WAIT_S)
        index.vectors_put("u", one_row(2, vectors[2]))
        index.vectors_removed("u", np.array([1], np.int64))
        index.vectors_put("u", one_row(3, vectors[9]))
        index.vectors_put("u", one_row(4, vectors[4]))
        assert index.partitions_loaded() == 0
        loader.go_on.release()
        found = search.result(WAIT_S)
    assert found[0] == 3
    assert sorted(found) == [2, 3, 4]
    assert index.search("u", VectorQuery(vectors[9], 1)).searchable == 3


def test_a_drop_during_a_load_reads_the_record_again(vectors: NDArray[np.float32]) -> None:
    loader = SlowLoader(one_row(1, vectors[1]), one_row(2, vectors[2]))
    index = FaissVectorIndex(DIMENSIONS, loader)
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(seqs_found, index, "u", vectors[0])
        assert loader.begun.acquire(timeout=WAIT_S)
        index.vectors_put("u", one_row(7, vectors[7]))
        index.resource_dropped("u")
        index.vectors_put("u", one_row(8, vectors[8]))
        loader.go_on.release(2)
        assert sorted(search.result(WAIT_S)) == [2, 8]
    assert loader.calls == 2


def test_more_changes_than_are_kept_during_a_load_read_the_record_again(
    vectors: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "QUEUED_CHANGES_MAX", 3)
    after = [StoredVectors(seq, 1, 0, 1, vectors[[seq]]) for seq in range(1, 6)]
    loader = SlowLoader(partition_rows([], DIMENSIONS), partition_rows(after, DIMENSIONS))
    index = FaissVectorIndex(DIMENSIONS, loader)
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(seqs_found, index, "u", vectors[0])
        assert loader.begun.acquire(timeout=WAIT_S)
        for seq in range(1, 6):
            index.vectors_put("u", one_row(seq, vectors[seq]))
        loader.go_on.release(2)
        assert sorted(search.result(WAIT_S)) == [1, 2, 3, 4, 5]
    assert loader.calls == 2


def test_a_resource_dropped_at_every_load_ends_in_an_error(vectors: NDArray[np.float32]) -> None:
    calls: list[str] = []

    def loader(resource_id: str) -> PartitionRows:
        calls.append(resource_id)
        index.resource_dropped(resource_id)
        return one_row(1, vectors[1])

    index = FaissVectorIndex(DIMENSIONS, loader)
    with pytest.raises(UnavailableError):
        index.search("u", VectorQuery(vectors[0], 1))
    assert len(calls) == resident.LOAD_ATTEMPTS_MAX


@pytest.mark.parametrize("bad", [np.nan, 0.0])
def test_a_record_with_spoilt_vectors_is_never_served(
    vectors: NDArray[np.float32], bad: float
) -> None:
    index = FaissVectorIndex(DIMENSIONS, lambda _: one_row(1, vectors[1] * np.float32(bad)))
    with pytest.raises(CorruptDataError):
        index.search("u", VectorQuery(vectors[0], 1))
    assert index.partitions_loaded() == 0


def test_the_least_recently_used_partition_is_evicted(vectors: NDArray[np.float32]) -> None:
    loads: list[str] = []

    def loader(resource_id: str) -> PartitionRows:
        loads.append(resource_id)
        return one_row(len(loads), vectors[1])

    probe = FaissVectorIndex(DIMENSIONS, loader)
    seqs_found(probe, "a", vectors[0])
    loads.clear()
    index = FaissVectorIndex(DIMENSIONS, loader, partitions_bytes_max=2 * probe.memory_bytes())
    for resource_id in ("a", "b", "a", "c", "a", "b"):
        seqs_found(index, resource_id, vectors[0])
    assert loads == ["a", "b", "c", "b"]
    assert index.partitions_loaded() == 2
    assert index.memory_bytes() == 2 * probe.memory_bytes()


def test_a_growing_partition_evicts_others_and_is_kept(vectors: NDArray[np.float32]) -> None:
    index = FaissVectorIndex(
        DIMENSIONS, lambda _: one_row(1, vectors[1]), partitions_bytes_max=60_000
    )
    seqs_found(index, "a", vectors[0])
    seqs_found(index, "b", vectors[0])
    rows = units(np.random.default_rng(2), 2000)
    for seq in range(1, 2001):
        index.vectors_put("b", one_row(seq, rows[seq - 1]))
    assert index.partitions_loaded() == 1
    assert len(seqs_found(index, "b", vectors[0])) == 100


def test_memory_is_rows_codes_and_columns() -> None:
    count = 20_000
    rows = units(np.random.default_rng(3), count)
    messages = [StoredVectors(seq, 1, 0, 1, rows[[seq - 1]]) for seq in range(1, count + 1)]
    index = FaissVectorIndex(DIMENSIONS, lambda _: partition_rows(messages, DIMENSIONS))
    index.search("u", VectorQuery(rows[0], 1))
    long, short, roles, error = 2 * 8, 3 * 4, 1, 4  # columns of equal numbers cost nothing
    a_row = DIMENSIONS * 4 + DIMENSIONS + long + short + roles + error
    assert count * a_row <= index.memory_bytes() <= count * a_row + 20_000


def test_a_part_with_many_dead_rows_is_written_anew() -> None:
    rows = units(np.random.default_rng(6), 10_000)
    messages = [StoredVectors(seq, 1, 0, 1, rows[[seq - 1]]) for seq in range(1, 10_001)]
    index = FaissVectorIndex(DIMENSIONS, lambda _: partition_rows(messages, DIMENSIONS))
    index.search("u", VectorQuery(rows[0], 1))
    full = index.memory_bytes()
    index.vectors_removed("u", np.arange(1, 2501))
    assert index.memory_bytes() >= full  # 25 % dead: marked, not moved
    index.vectors_removed("u", np.arange(2501, 5001))
    assert index.memory_bytes() <= 0.6 * full
    assert index.partition_rows("u").seqs.tolist() == list(range(5001, 10_001))


def test_ten_rounds_of_filling_and_emptying_stay_bounded() -> None:
    rng = np.random.default_rng(4)
    query, kept = units(rng, 2)
    index = FaissVectorIndex(DIMENSIONS, lambda _: one_row(1, kept))
    index.search("u", VectorQuery(query, 4))
    peaks, lows = [], []
    seq = 2
    for _ in range(10):
        rows = units(rng, 10_000)
        seqs = np.arange(seq, seq + 10_000)
        seq += 10_000
        for start in range(0, 10_000, 250):
            part = slice(start, start + 250)
            zeros = np.zeros(250, np.int64)
            index.vectors_put(
                "u",
                PartitionRows(
                    seqs=seqs[part],
                    thread_keys=zeros + 1,
                    times_ns=zeros,
                    roles=np.ones(250, np.uint8),
                    chunks=zeros,
                    revisions=zeros,
                    vectors=rows[part],
                    checksums=zeros,
                ),
            )
        peaks.append(index.memory_bytes())
        found = index.search("u", VectorQuery(query, 4))
        assert (len(found.hits), found.searchable) == (4, 10_001)
        gone = rng.permutation(seqs)
        for start in range(0, 10_000, 100):
            index.vectors_removed("u", np.sort(gone[start : start + 100]))
        lows.append(index.memory_bytes())
        assert seqs_found(index, "u", query) == [1]
    assert max(peaks) <= 1.1 * peaks[0]
    assert max(lows) <= 200_000


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dimensions", {"dimensions": 0}),
        ("dimensions", {"dimensions": 10_000_000}),
        ("scale_clip", {"scale_clip": 0.0}),
        ("scale_clip", {"scale_clip": float("nan")}),
        ("partitions_bytes_max", {"partitions_bytes_max": 0}),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, float]) -> None:
    arguments = {"dimensions": DIMENSIONS, "loader": lambda _: None, **options}
    with pytest.raises(InvalidArgumentError) as caught:
        FaissVectorIndex(**arguments)  # type: ignore[arg-type]
    assert caught.value.violations[0].field == name


def test_searches_beside_a_writer_see_whole_states() -> None:
    """One writer, three searchers, four seconds.

    A message's vector is a function of its seq and version, and message 1 is replaced all the
    time while messages come and go: each hit must have been alive at some time during its search,
    with the score of a vector it had then.
    """
    faulthandler.enable()
    rng = np.random.default_rng(5)
    pool_of_vectors = units(rng, 4096)
    index = FaissVectorIndex(
        DIMENSIONS,
        lambda _: one_row(1, pool_of_vectors[1]),
        tuning=Tuning(tail_rows_max=32, coded_rows_min=40, segment_rows_max=600, margin_rows=2),
    )
    queries = units(rng, 8)
    scores = np.stack([cosines(pool_of_vectors, query) for query in queries])
    index.search("u", VectorQuery(queries[0], 1))
    window = 800
    newest = [1]  # set before a put
    oldest = [1]  # set after a removal
    over = threading.Event()
    deadline = time.monotonic() + 4

    def write() -> int:
        seq = 0
        while seq <= window or time.monotonic() < deadline:
            seq += 1
            newest[0] = seq
            index.vectors_put("u", one_row(seq, pool_of_vectors[seq % 4096]))
            if seq % 5 == 0:  # an edit that changes nothing moves the row to the tail
                back = max(oldest[0], seq - 300)
                index.vectors_put("u", one_row(back, pool_of_vectors[back % 4096]))
            if seq > window:
                index.vectors_removed("u", np.array([seq - window], np.int64))
                oldest[0] = seq - window + 1
        over.set()
        return seq

    def read(number: int) -> int:
        searches = 0
        while not over.is_set():
            which = (searches + number) % len(queries)
            low = oldest[0]
            answer = index.search("u", VectorQuery(queries[which], 5))
            high = newest[0]
            searches += 1
            seen = [hit.seq for hit in answer.hits]
            assert len(set(seen)) == len(seen) == min(5, answer.searchable)
            assert answer.searchable <= window + 1
            for hit in answer.hits:
                assert low <= hit.seq <= high
                assert hit.score == float(scores[which, hit.seq % 4096])
            ranked = [(-hit.score, hit.seq) for hit in answer.hits]
            assert ranked == sorted(ranked)
        return searches

    with ThreadPoolExecutor(4) as pool:
        writing = pool.submit(write)
        reading = [pool.submit(read, number) for number in range(3)]
        assert writing.result(WAIT_S) > window
        assert all(result.result(WAIT_S) > 0 for result in reading)
    final = index.partition_rows("u").seqs
    assert final.tolist() == list(range(oldest[0], newest[0] + 1))


def test_resources_without_vectors_take_no_memory(vectors: NDArray[np.float32]) -> None:
    record = {"real": one_row(1, vectors[1])}
    loads: list[str] = []

    def load(resource_id: str) -> PartitionRows:
        loads.append(resource_id)
        return record.get(resource_id, partition_rows([], DIMENSIONS))

    index = FaissVectorIndex(DIMENSIONS, load, partitions_bytes_max=20_000)
    assert seqs_found(index, "real", vectors[0]) == [1]
    kept = index.memory_bytes()
    for number in range(100):
        assert seqs_found(index, f"made up {number}", vectors[0]) == []
        assert len(index.partition_rows(f"made up {number}").seqs) == 0
    assert (index.memory_bytes(), index.partitions_loaded()) == (kept, 1)
    assert seqs_found(index, "real", vectors[0]) == [1]
    assert loads.count("real") == 1  # never evicted for them
    record["made up 7"] = one_row(9, vectors[2])
    index.vectors_put("made up 7", record["made up 7"])
    assert seqs_found(index, "made up 7", vectors[0]) == [9]


def test_those_who_wait_for_an_empty_load_are_answered(vectors: NDArray[np.float32]) -> None:
    loader = SlowLoader(partition_rows([], DIMENSIONS), one_row(4, vectors[4]))
    index = FaissVectorIndex(DIMENSIONS, loader)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(seqs_found, index, "u", vectors[0])
        assert loader.begun.acquire(timeout=WAIT_S)
        index.vectors_put("u", one_row(3, vectors[3]))
        index.vectors_removed("u", np.array([3], np.int64))
        loader.go_on.release()
        assert first.result(WAIT_S) == []
    assert index.memory_bytes() == 0
    loader.go_on.release()
    assert seqs_found(index, "u", vectors[0]) == [4]
