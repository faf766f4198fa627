"""Mean and spread of a partition's cosines: how near to the truth, and that they never flicker."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_core.types.values import VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex, Tuning
from semanticrecall_core.vectors import moments as moments_module
from semanticrecall_core.vectors.codes import Coder
from semanticrecall_core.vectors.moments import SAMPLE_ROWS_MAX, SCAN_ROWS_MAX
from semanticrecall_core.vectors.partition import Partition
from semanticrecall_core.vectors.rows import checked_block
from support.brute_force import StoredVectors, moments, partition_rows

DIMENSIONS = 32
WAIT = 60.0
Told = tuple[bytes, bytes]


def vectors_like_messages(count: int, dimensions: int, seed: int) -> NDArray[np.float32]:
    """Unit vectors that have something in common and come in topics, as texts' do."""
    rng = np.random.default_rng(seed)
    topics = rng.normal(size=(20, dimensions))
    rows = 0.5 * rng.normal(size=dimensions) + 0.8 * topics[rng.integers(0, 20, count)]
    rows += rng.normal(size=(count, dimensions))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows, np.float32)


def messages_of(vectors: NDArray[np.float32], first: int = 1) -> list[StoredVectors]:
    return [StoredVectors(first + n, 1, n, 1, vectors[[n]], first + n) for n in range(len(vectors))]


def index_of(
    messages: Iterable[StoredVectors], dimensions: int = DIMENSIONS, **options: object
) -> FaissVectorIndex:
    rows = partition_rows(messages, dimensions)
    return FaissVectorIndex(dimensions, lambda _: rows, **options)  # type: ignore[arg-type]


def told(index: FaissVectorIndex, queries: NDArray[np.float32]) -> Told:
    mean, std = index.moments("u", queries)
    return mean.tobytes(), std.tobytes()


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read whole and what a sample holds are so few that a few hundred rows pass both."""
    monkeypatch.setattr(moments_module, "SCAN_ROWS_MAX", 20)
    monkeypatch.setattr(moments_module, "SAMPLE_ROWS_MAX", 100)


@pytest.mark.parametrize(
    ("dimensions", "count", "std_error", "mean_error"),
    [
        (64, 500, 1e-6, 1e-6),
        (64, SCAN_ROWS_MAX, 1e-6, 1e-6),
        (64, SCAN_ROWS_MAX + 1, 2e-3, 3e-3),
        (64, SAMPLE_ROWS_MAX, 2e-3, 3e-3),
        (64, SAMPLE_ROWS_MAX + 1, 0.06, 0.09),
        (64, 30_000, 0.06, 0.09),
        (600, SAMPLE_ROWS_MAX, 1e-6, 1e-6),
        (600, 9_000, 0.06, 0.09),
    ],
)
def test_they_are_near_the_moments_of_all_rows(
    dimensions: int, count: int, std_error: float, mean_error: float
) -> None:
    vectors = vectors_like_messages(count, dimensions, 3)
    queries = vectors_like_messages(40, dimensions, 4)
    messages = messages_of(vectors)
    mean, std = index_of(messages, dimensions).moments("u", queries)
    right_mean, right_std = moments(messages, queries)
    assert np.abs(std / right_std - 1).max() < std_error
    assert np.abs((mean - right_mean) / right_std).max() < mean_error
    assert np.sqrt(np.square(std / right_std - 1).mean()) < std_error / 2


def test_a_sample_is_one_of_all_rows_and_not_of_a_stretch() -> None:
    halves = vectors_like_messages(1, 64, 1)[0], vectors_like_messages(1, 64, 2)[0]
    for stretch in (1, 2, 64, 7_000):  # users and assistants in turn; one topic after another
        rows = np.stack([halves[n // stretch % 2] for n in range(14_000)])
        mean, _ = index_of(messages_of(rows), 64).moments("u", halves[0][np.newaxis])
        assert mean[0] == pytest.approx((1 + halves[0] @ halves[1]) / 2, abs=0.04)


def test_chunks_of_one_message_are_rows_like_others() -> None:
    vectors = vectors_like_messages(9_000, 64, 5)
    long = StoredVectors(1, 1, 1, 1, vectors[:8_000], 1)
    messages = [long, *messages_of(vectors[8_000:], 2)]
    queries = vectors_like_messages(10, 64, 6)
    mean, std = index_of(messages, 64).moments("u", queries)
    right_mean, right_std = moments(messages, queries)
    assert np.abs(std / right_std - 1).max() < 0.06
    assert np.abs((mean - right_mean) / right_std).max() < 0.09


class Edited:
    """One partition that goes through many changes, and its equal that was just read."""

    def __init__(self, tuning: Tuning) -> None:
        self.rng = np.random.default_rng(11)
        self.tuning = tuning
        self.record: dict[int, StoredVectors] = {}
        self.revision = 0
        self.index = FaissVectorIndex(
            DIMENSIONS,
            lambda _: partition_rows(self.record.values(), DIMENSIONS),
            tuning=tuning,
        )
        self.queries = vectors_like_messages(3, DIMENSIONS, 12)

    def put(self, seqs: Sequence[int]) -> None:
        self.revision += 1
        vectors = vectors_like_messages(4 * len(seqs), DIMENSIONS, self.revision)
        rows = []
        for place, seq in enumerate(seqs):
            own = vectors[4 * place :][: 1 + int(self.rng.integers(0, 3))]
            rows.append(StoredVectors(seq, 1, seq, 1, own, self.revision))
        self.record.update({row.seq: row for row in rows})
        self.index.vectors_put("u", partition_rows(rows, DIMENSIONS))

    def remove(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self.record.pop(seq, None)
        self.index.vectors_removed("u", np.array(seqs, np.int64))

    def expect_the_same_after_a_restart(self) -> None:
        restarted = index_of(self.record.values(), tuning=self.tuning)
        assert told(self.index, self.queries) == told(restarted, self.queries)


@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(),
        Tuning(tail_rows_max=4, coded_rows_min=6, segment_rows_max=40, dead_share_max=0.2),
        Tuning(tail_rows_max=30, coded_rows_min=20, segment_rows_max=300, dead_share_max=0.9),
    ],
)
def test_they_are_the_same_bytes_whatever_the_parts_and_the_order_of_changes(
    tuning: Tuning, small_sizes: None
) -> None:
    edited = Edited(tuning)
    edited.put([1])
    edited.index.search("u", VectorQuery(edited.queries[0], 1))
    edited.expect_the_same_after_a_restart()
    for start in range(2, 400, 13):
        edited.put(list(range(start, start + 13)))
        edited.expect_the_same_after_a_restart()
        edited.put(sorted(set(edited.rng.integers(1, start + 13, 3).tolist())))
        edited.remove(sorted(set(edited.rng.integers(1, start + 13, 2).tolist())))
        edited.expect_the_same_after_a_restart()
    for start in range(1, 400, 31):
        edited.remove(list(range(start, start + 25)))
        edited.expect_the_same_after_a_restart()
    edited.remove(list(range(1, 420)))
    edited.expect_the_same_after_a_restart()


def test_the_matrix_that_follows_is_the_one_that_is_made_anew(small_sizes: None) -> None:
    edited = Edited(Tuning(tail_rows_max=8, coded_rows_min=10, segment_rows_max=60))
    edited.put(list(range(1, 20)))
    edited.index.search("u", VectorQuery(edited.queries[0], 1))
    made: list[int] = []
    init = moments_module._SecondMoment.__init__

    def counted(self: object, *args: object) -> None:
        made.append(1)
        init(self, *args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments_module._SecondMoment, "__init__", counted)
        told(edited.index, edited.queries)
        for seq in range(20, 40):  # appended: sealed and merged, and nothing made anew
            edited.put([seq])
            told(edited.index, edited.queries)
    assert len(made) == 1
    edited.expect_the_same_after_a_restart()


def test_an_older_view_may_be_asked_about_after_a_newer_one(small_sizes: None) -> None:
    messages = messages_of(vectors_like_messages(120, DIMENSIONS, 7))
    block = checked_block(partition_rows(messages, DIMENSIONS), DIMENSIONS, CorruptDataError)
    partition = Partition(Coder(DIMENSIONS, 0.3), Tuning(), block)
    queries = vectors_like_messages(2, DIMENSIONS, 8)
    old = partition.view
    before = partition.moments.of(old, queries)
    partition.remove(np.arange(1, 40))
    after = partition.moments.of(partition.view, queries)
    assert not np.array_equal(before, after)
    assert np.array_equal(partition.moments.of(old, queries), before)
    assert np.array_equal(partition.moments.of(partition.view, queries), after)


def test_they_keep_nothing_of_what_was_removed(small_sizes: None) -> None:
    messages = messages_of(vectors_like_messages(120, DIMENSIONS, 7))
    block = checked_block(partition_rows(messages, DIMENSIONS), DIMENSIONS, CorruptDataError)
    partition = Partition(Coder(DIMENSIONS, 0.3), Tuning(), block)
    partition.moments.of(partition.view, vectors_like_messages(2, DIMENSIONS, 8))
    vectors = weakref.ref(partition.view.parts[0].block.vectors)
    del block
    partition.remove(np.arange(1, 100))
    gc.collect()
    assert vectors() is None


def test_their_memory_is_counted_and_evicts_others() -> None:
    messages = messages_of(vectors_like_messages(SCAN_ROWS_MAX + 1, 384, 9))
    queries = vectors_like_messages(1, 384, 10)
    index = index_of(messages, 384)
    index.search("u", VectorQuery(queries[0], 1))
    before = index.memory_bytes()
    index.moments("u", queries)
    matrix, names_and_places = 384 * 385 * 8, 17 * len(messages)
    assert index.memory_bytes() - before == matrix + names_and_places

    limited = index_of(messages, 384, partitions_bytes_max=2 * before + matrix)
    for name in ("u", "v"):
        limited.search(name, VectorQuery(queries[0], 1))
    assert limited.partitions_loaded() == 2
    limited.moments("u", queries)
    assert limited.partitions_loaded() == 1


def test_they_may_be_asked_while_messages_come_and_go(small_sizes: None) -> None:
    edited = Edited(Tuning(tail_rows_max=8, coded_rows_min=10, segment_rows_max=60))
    edited.put(list(range(1, 60)))
    edited.index.search("u", VectorQuery(edited.queries[0], 1))
    done, errors = threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            while not done.is_set():
                mean, std = edited.index.moments("u", edited.queries)
                assert np.isfinite(mean).all()
                assert (std > 0).all()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seq in range(60, 200):
        edited.put([seq])
        edited.remove([seq - 50])
    done.set()
    for thread in threads:
        thread.join(WAIT)
    assert not errors
    edited.expect_the_same_after_a_restart()
