"""Micro-batches: what shares a run, who gets which vector, and what a failure takes along."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from semanticrecall_core.embedding import batching
from semanticrecall_core.embedding.batching import (
    QUERY_BATCHES_IN_A_ROW_MAX,
    BatchScheduler,
    BatchShape,
    Lane,
    batching_scheduler,
)
from semanticrecall_core.embedding.scheduler import Scheduling
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    EmbeddingFailedError,
    ResourceExhaustedError,
    UnavailableError,
)
from semanticrecall_core.types.stats import (
    SchedulerStats,
)
from semanticrecall_core.types.values import (
    CallBudget,
    EmbedRole,
)
from support.token_runner import WAIT, Caller, TokenRunner, budget, text, vector_of, wait_until

QUERY, PASSAGE = EmbedRole.QUERY, EmbedRole.PASSAGE
SHAPE = BatchShape(tokens_max=100, padding_max=0.25, texts_max=8)


class Bench:
    """A lane of both roles over one runner, and threads that call it."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        *,
        shape: BatchShape = SHAPE,
        workers: int = 1,
        takes_padding: bool = True,
        **scheduling: int,
    ) -> None:
        self.runner = TokenRunner(takes_padding=takes_padding)
        lane = Lane((QUERY, PASSAGE), self.runner, shape, workers, Scheduling(**scheduling))
        self.scheduler = BatchScheduler(dict.fromkeys(EmbedRole, lane), 1)
        self._pool = pool
        self._waiting = 0

    def call(
        self, first: int, length: int = 1, role: EmbedRole = QUERY, by: CallBudget | None = None
    ) -> Future[NDArray[np.float32]]:
        return self._pool.submit(self.scheduler.run, role, text(first, length), by or budget())

    def occupy(self, workers: int = 1) -> list[Future[NDArray[np.float32]]]:
        """Hold every worker with a text of its own, so that what comes next has to wait."""
        self.runner.hold()
        calls = []
        for worker in range(workers):
            calls.append(self.call(1000 + worker))
            self.runner.wait_for_runs(worker + 1)
        return calls

    def queue(
        self, first: int, length: int = 1, role: EmbedRole = QUERY, by: CallBudget | None = None
    ) -> Future[NDArray[np.float32]]:
        """A call that is known to wait, behind those queued before."""
        call = self.call(first, length, role, by)
        self._waiting += 1
        self.wait_for_queue(self._waiting)
        return call

    def wait_for_queue(self, texts: int) -> None:
        wait_until(lambda: self.scheduler.stats().queued_texts == texts)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as made:
        yield made


def test_a_lone_text_runs_at_once_and_what_came_meanwhile_runs_together(
    pool: ThreadPoolExecutor,
) -> None:
    bench = Bench(pool)
    (lone,) = bench.occupy()
    calls = [bench.queue(first) for first in range(5)]
    expected = SchedulerStats(5, 5, running_texts=1, batches=1, batched_texts=1)
    assert bench.scheduler.stats() == expected
    bench.runner.release()
    assert lone.result(WAIT)[0] == 1000
    for first, call in enumerate(calls):
        assert np.array_equal(call.result(WAIT), vector_of(text(first)))
    assert bench.runner.runs == [[1000], [0, 1, 2, 3, 4]]
    wait_until(lambda: bench.scheduler.stats() == SchedulerStats(batches=2, batched_texts=6))


@pytest.mark.parametrize(
    ("lengths", "takes_padding", "batches"),
    [
        ([10, 9, 10, 11, 10], True, [[0, 2, 4, 1, 3]]),
        ([10, 9, 10, 11, 10], False, [[0, 2, 4], [1], [3]]),
        ([10, 40, 10, 40], True, [[0, 2], [1, 3]]),
        ([40, 10, 39, 10, 10, 10, 10], True, [[0, 2], [1, 3, 4, 5, 6]]),
        ([50, 50, 50], True, [[0, 1], [2]]),
        ([400, 400, 3], True, [[0], [1], [2]]),
        ([1] * 10, True, [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]),
        ([4, 5, 5, 5], True, [[0, 1, 2, 3]]),
        ([4, 6, 6], True, [[0, 1, 2]]),
        ([4, 7, 7], True, [[0], [1, 2]]),
    ],
)
def test_equal_lengths_are_packed_first_then_near_ones_and_the_oldest_is_always_in(
    pool: ThreadPoolExecutor, lengths: list[int], takes_padding: bool, batches: list[list[int]]
) -> None:
    bench = Bench(pool, takes_padding=takes_padding)
    bench.occupy()
    calls = [bench.queue(first, length) for first, length in enumerate(lengths)]
    bench.runner.release()
    for first, (call, length) in enumerate(zip(calls, lengths, strict=True)):
        assert np.array_equal(call.result(WAIT), vector_of(text(first, length)))
    assert bench.runner.runs[1:] == batches


def test_queries_go_before_passages_and_do_not_share_their_runs(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool)
    bench.occupy()
    calls = [bench.queue(n, role=PASSAGE if n % 2 else QUERY) for n in range(6)]
    bench.runner.release()
    assert [call.result(WAIT)[0] for call in calls] == list(range(6))
    assert bench.runner.runs[1:] == [[0, 2, 4], [1, 3, 5]]


def test_queries_without_end_do_not_starve_passages(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, shape=replace(SHAPE, texts_max=1))
    bench.occupy()
    count = QUERY_BATCHES_IN_A_ROW_MAX + 5
    calls = [bench.queue(500, role=PASSAGE), *(bench.queue(n) for n in range(count))]
    bench.runner.release()
    for call in calls:
        call.result(WAIT)
    before = bench.runner.runs[1:].index([500])
    assert before == QUERY_BATCHES_IN_A_ROW_MAX - 1  # the text that held the worker was a query
    assert bench.runner.runs[1:].count([500]) == 1


def test_workers_share_what_waits(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, workers=2)
    bench.occupy(workers=2)
    calls = [bench.queue(first) for first in range(6)]
    bench.runner.let_one_go()
    bench.runner.wait_for_runs(3)
    assert bench.runner.runs[2] == [0, 1, 2]
    bench.runner.release()
    assert [call.result(WAIT)[0] for call in calls] == list(range(6))


def test_a_full_queue_refuses_at_once_and_each_role_has_its_own(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, queue_texts_max=2)
    bench.occupy()
    calls = [bench.queue(first, role=PASSAGE) for first in range(2)]
    with pytest.raises(ResourceExhaustedError) as raised:
        bench.scheduler.run(PASSAGE, text(9), budget())
    assert (raised.value.reason, bench.scheduler.stats().refused) == ("QUEUE_FULL", 1)
    calls.append(bench.queue(2))
    bench.runner.release()
    assert [call.result(WAIT)[0] for call in calls] == [0, 1, 2]
    assert [9] not in bench.runner.runs


def test_who_is_late_or_gone_is_not_in_the_batch(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool)
    bench.occupy()
    leaving, late = Caller(), Caller(0.05)
    calls = [bench.queue(0), bench.queue(1, by=leaving.budget)]
    over = bench.call(2, by=late.budget)
    with pytest.raises(DeadlineExceededError):
        over.result(WAIT)
    leaving.gone.set()
    with pytest.raises(CancelledError):
        calls[1].result(WAIT)
    bench.wait_for_queue(1)
    assert bench.scheduler.stats().queued_tokens == 1
    bench.runner.release()
    assert calls[0].result(WAIT)[0] == 0
    assert bench.runner.runs == [[1000], [0]]


def test_who_goes_away_between_two_looks_is_not_in_the_batch_either(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "CANCEL_POLL_SECONDS", WAIT)
    bench = Bench(pool)
    bench.occupy()
    leaving = Caller()
    calls = [bench.queue(0), bench.queue(1, by=leaving.budget), bench.queue(2)]
    leaving.gone.set()
    bench.runner.release()
    with pytest.raises(CancelledError):
        calls[1].result(WAIT)
    assert [calls[n].result(WAIT)[0] for n in (0, 2)] == [0, 2]
    assert bench.runner.runs == [[1000], [0, 2]]


def test_a_caller_whose_question_fails_harms_nobody(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool)
    bench.occupy()

    def is_cancelled() -> bool:
        if threading.current_thread().name.startswith("embed-batch"):
            raise RuntimeError("a caller's bug")
        return False

    odd = bench.queue(0, by=CallBudget(budget().deadline, is_cancelled))
    sound = bench.queue(1)
    bench.runner.release()
    with pytest.raises(RuntimeError):
        odd.result(WAIT)
    assert sound.result(WAIT)[0] == 1
    assert bench.scheduler.healthy


def test_a_text_that_fails_does_not_fail_its_neighbours(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool)
    bench.runner.failing = {1}
    bench.runner.unusable = {2}
    bench.occupy()
    calls = [bench.queue(first) for first in range(4)]
    with capture_logs() as logs:
        bench.runner.release()
        with pytest.raises(EmbeddingFailedError):
            calls[1].result(WAIT)
        assert [calls[n].result(WAIT)[0] for n in (0, 2, 3)] == [0, 2, 3]
    assert bench.runner.runs[1:] == [[0, 1, 2, 3], [0], [1], [2], [3]]
    assert [entry["event"] for entry in logs] == ["embedding.batch_failed"]
    bench.runner.failing = set()
    bench.runner.runs.clear()
    bench.occupy()
    calls = [bench.call(first) for first in range(2, 5)]
    bench.wait_for_queue(3)
    bench.runner.release()
    assert [call.result(WAIT)[0] for call in calls] == [2, 3, 4]
    assert bench.runner.runs[2:] == [[2]]  # the one whose vector could not be used in the batch


def test_a_bug_for_one_text_is_that_texts_failure(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool)
    bench.runner.fatal = ValueError("secret words")
    with pytest.raises(EmbeddingFailedError) as raised:
        bench.call(1).result(WAIT)
    assert "secret" not in raised.value.message
    bench.runner.fatal = None
    assert bench.call(2).result(WAIT)[0] == 2
    assert bench.scheduler.healthy


@pytest.mark.parametrize("fatal", [SystemExit(1), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("in_hand", [1, 3])
def test_a_worker_that_dies_tells_all_who_wait(
    pool: ThreadPoolExecutor, fatal: BaseException, in_hand: int
) -> None:
    bench = Bench(pool, shape=replace(SHAPE, texts_max=3))
    (first,) = bench.occupy()
    calls = [bench.queue(n) for n in range(3)]
    if in_hand == 3:
        bench.runner.let_one_go()
        bench.runner.wait_for_runs(2)
        assert first.result(WAIT)[0] == 1000
        bench.wait_for_queue(0)
        calls += [bench.call(n) for n in range(3, 6)]
        bench.wait_for_queue(3)
    else:
        calls.append(first)
    calls.append(bench.call(7, role=PASSAGE))
    bench.wait_for_queue(4)
    bench.runner.fatal = fatal
    with capture_logs() as logs:
        bench.runner.release()
        for call in calls:
            with pytest.raises(UnavailableError) as raised:
                call.result(WAIT)
            assert raised.value.reason == "EMBEDDING_STOPPED"
    assert not bench.scheduler.healthy
    assert [entry["event"] for entry in logs] == ["embedding.worker_died"]
    with pytest.raises(UnavailableError):
        bench.scheduler.run(QUERY, text(8), budget())
    stats = bench.scheduler.stats()
    assert (stats.queued_texts, stats.queued_tokens, stats.running_texts) == (0, 0, 0)


def test_the_processor_has_a_lane_for_each_role_and_a_gpu_one_for_both() -> None:
    before = set(threading.enumerate())

    def workers() -> int:
        new = set(threading.enumerate()) - before
        return sum(thread.name.startswith("embed-batch") for thread in new)

    runners = {role: TokenRunner() for role in EmbedRole}
    on_cpu = batching_scheduler(runners, "cpu", Scheduling(runs_max=3))
    assert workers() == 6
    on_cuda = batching_scheduler(dict.fromkeys(EmbedRole, runners[QUERY]), "cuda", Scheduling())
    assert workers() == 7
    assert on_cuda.passages_at_once > on_cpu.passages_at_once > 3
    small = Scheduling(runs_max=3, queue_texts_max=5)
    assert batching_scheduler(runners, "cpu", small).passages_at_once == 5
    for made in (on_cpu, on_cuda):
        for role in EmbedRole:
            assert made.run(role, text(5), budget())[0] == 5
        assert made.healthy
    del on_cpu, on_cuda, made
    gc.collect()
    wait_until(lambda: workers() == 0)


def test_texts_of_one_caller_share_a_batch(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool)
    bench.runner.unusable = {2}
    results = bench.scheduler.run_all(QUERY, [text(first) for first in range(5)], budget())
    for first, vector in enumerate(results):
        assert not isinstance(vector, EmbeddingFailedError)
        assert np.array_equal(vector, vector_of(text(first)))
    assert bench.runner.runs == [[0, 1, 2, 3, 4], [2]]


def test_a_text_of_several_fails_alone(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool)
    bench.runner.failing = {1}
    results = bench.scheduler.run_all(QUERY, [text(first) for first in range(3)], budget())
    assert [isinstance(result, EmbeddingFailedError) for result in results] == [False, True, False]


def test_several_texts_wait_all_or_none(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, queue_texts_max=3)
    (lone,) = bench.occupy()
    with pytest.raises(ResourceExhaustedError):
        bench.scheduler.run_all(QUERY, [text(first) for first in range(4)], budget())
    assert bench.scheduler.stats().queued_texts == 0
    with pytest.raises(DeadlineExceededError):
        bench.scheduler.run_all(QUERY, [text(7), text(8)], CallBudget.of_seconds(0.02))
    assert bench.scheduler.stats().queued_texts == 0
    bench.runner.release()
    assert lone.result(WAIT)[0] == 1000
