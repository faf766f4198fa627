"""Single runs: how many at once, in which order, and who leaves the queue without a run."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.embedding import scheduler as scheduler_module
from semanticrecall_core.embedding.embedder import OnnxEmbedder
from semanticrecall_core.embedding.scheduler import RunSlots, Scheduling, SlotScheduler
from semanticrecall_core.embedding.session import EncoderSession
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    EmbeddingFailedError,
    ResourceExhaustedError,
)
from semanticrecall_core.types.stats import (
    SchedulerStats,
)
from semanticrecall_core.types.values import (
    CallBudget,
    EmbedRole,
)
from support import tiny_model
from support.token_runner import WAIT, Caller, TokenRunner, budget, text, vector_of, wait_until

QUERY, PASSAGE = EmbedRole.QUERY, EmbedRole.PASSAGE


class Bench:
    """A scheduler over two runners, and threads that call it."""

    def __init__(self, pool: ThreadPoolExecutor, **scheduling: int) -> None:
        self.queries, self.passages = TokenRunner(), TokenRunner()
        self.scheduler = SlotScheduler(
            {QUERY: self.queries, PASSAGE: self.passages}, Scheduling(**scheduling)
        )
        self._pool = pool

    def call(
        self, first: int, role: EmbedRole = QUERY, by: CallBudget | None = None, length: int = 1
    ) -> Future[NDArray[np.float32]]:
        ids = text(first, length)
        return self._pool.submit(self.scheduler.run, role, ids, by or budget())

    def wait_for_queue(self, texts: int) -> None:
        wait_until(lambda: self.scheduler.stats().queued_texts == texts)


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(64)


def test_so_many_run_at_once_and_the_others_follow_in_the_order_they_came(
    pool: ThreadPoolExecutor,
) -> None:
    bench = Bench(pool, runs_max=2)
    bench.queries.hold()
    calls = []
    for first in range(6):
        calls.append(bench.call(first))
        bench.queries.wait_for_runs(min(first + 1, 2))
        bench.wait_for_queue(max(0, first - 1))
    stats = bench.scheduler.stats()
    assert stats == SchedulerStats(queued_texts=4, queued_tokens=4, running_texts=2)
    for begun in range(3, 7):
        bench.queries.let_one_go()
        bench.queries.wait_for_runs(begun)
    bench.queries.release()
    for first, call in enumerate(calls):
        assert np.array_equal(call.result(WAIT), vector_of(text(first)))
    assert bench.queries.runs[2:] == [[2], [3], [4], [5]]
    assert bench.queries.at_once_max == 2
    assert bench.scheduler.stats() == SchedulerStats(batches=6, batched_texts=6)


def test_by_default_as_many_run_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "worker_threads", lambda: 7)
    assert SlotScheduler({QUERY: TokenRunner()}, Scheduling()).passages_at_once == 7
    assert SlotScheduler({QUERY: TokenRunner()}, Scheduling(runs_max=3)).passages_at_once == 3


def test_passages_never_hold_what_a_query_needs(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, runs_max=1, queue_texts_max=2)
    bench.passages.hold()
    passages = [bench.call(first, PASSAGE) for first in range(3)]
    bench.wait_for_queue(2)
    with pytest.raises(ResourceExhaustedError):
        bench.scheduler.run(PASSAGE, text(9), budget())
    for first in range(4):
        assert bench.call(first).result(WAIT)[0] == first
    bench.passages.release()
    assert [call.result(WAIT)[0] for call in passages] == [0, 1, 2]


def test_a_lone_caller_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = SlotScheduler({QUERY: TokenRunner()}, Scheduling(runs_max=1))
    monkeypatch.setattr(scheduler_module, "_Waiter", None)
    for first in range(3):
        assert scheduler.run(QUERY, text(first), CallBudget.of_seconds(-1))[0] == first


@pytest.mark.parametrize(
    ("limits", "length"),
    [({"queue_texts_max": 3}, 1), ({"queue_tokens_max": 30}, 10), ({"queue_tokens_max": 39}, 10)],
)
def test_a_full_queue_refuses_at_once(
    pool: ThreadPoolExecutor, limits: dict[str, int], length: int
) -> None:
    bench = Bench(pool, runs_max=1, **limits)
    bench.queries.hold()
    calls = [bench.call(first, length=length) for first in range(4)]
    bench.wait_for_queue(3)
    with pytest.raises(ResourceExhaustedError) as raised:
        bench.scheduler.run(QUERY, text(9, length), budget())
    assert raised.value.reason == "QUEUE_FULL"
    assert raised.value.retry_after_ms > 0
    assert bench.scheduler.stats().refused == 1
    bench.queries.release()
    assert sorted(call.result(WAIT)[0] for call in calls) == [0, 1, 2, 3]
    assert bench.scheduler.run(QUERY, text(9, length), budget())[0] == 9
    assert bench.queries.runs.count([9]) == 1


def test_a_text_longer_than_the_queue_may_still_wait_alone(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, runs_max=1, queue_tokens_max=5)
    bench.queries.hold()
    calls = [bench.call(first, length=50) for first in range(2)]
    bench.wait_for_queue(1)
    bench.queries.release()
    assert sorted(call.result(WAIT)[0] for call in calls) == [0, 1]


def test_who_is_late_or_gone_leaves_the_queue_and_costs_nothing(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, runs_max=1)
    bench.queries.hold()
    first = bench.call(0)
    bench.queries.wait_for_runs(1)
    leaving, late = Caller(), Caller(0.05)
    gone, over = bench.call(1, by=leaving.budget), bench.call(2, by=late.budget)
    with pytest.raises(DeadlineExceededError):
        over.result(WAIT)
    staying = bench.call(3)
    bench.wait_for_queue(2)
    leaving.gone.set()
    with pytest.raises(CancelledError):
        gone.result(WAIT)
    assert bench.scheduler.stats().queued_texts == 1
    assert bench.scheduler.stats().queued_tokens == 1
    bench.queries.release()
    assert first.result(WAIT)[0] == 0
    assert staying.result(WAIT)[0] == 3
    assert bench.queries.runs == [[0], [3]]


def test_who_goes_away_just_as_his_turn_comes_hands_it_on() -> None:
    slots = RunSlots(1, Scheduling())
    slots.enter(1, budget())
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            slots.leave()  # his turn comes while he asks whether he is still wanted
        return asked > 1

    with pytest.raises(CancelledError):
        slots.enter(1, CallBudget(budget().deadline, is_cancelled))
    slots.enter(1, CallBudget.of_seconds(0))
    assert slots.stats().running_texts == 1
    with pytest.raises(DeadlineExceededError):
        slots.enter(1, CallBudget.of_seconds(0))


@pytest.mark.parametrize("error", [EmbeddingFailedError("no"), SystemExit(1), MemoryError()])
def test_a_run_that_fails_gives_its_slot_back(error: BaseException) -> None:
    runner = TokenRunner()
    scheduler = SlotScheduler({QUERY: runner}, Scheduling(runs_max=1))
    runner.fatal = error
    with pytest.raises(type(error)):
        scheduler.run(QUERY, text(1), budget())
    runner.fatal = None
    assert scheduler.run(QUERY, text(2), CallBudget.of_seconds(0))[0] == 2
    assert scheduler.healthy


def test_no_slot_is_lost_whoever_comes_and_goes(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, runs_max=3, queue_texts_max=20)
    bench.queries.failing = set(range(0, 100, 7))

    def work(seed: int) -> int:
        rng, ended = random.Random(seed), 0
        for first in range(100):
            caller = Caller(rng.choice((0.0, 0.0005, WAIT)))
            if rng.random() < 0.2:
                caller.gone.set()
            try:
                vector = bench.scheduler.run(QUERY, text(first), caller.budget)
                assert vector[0] == first
            except (DeadlineExceededError, CancelledError, ResourceExhaustedError):
                pass
            except EmbeddingFailedError:
                assert first in bench.queries.failing
            ended += 1
        return ended

    assert [f.result(WAIT) for f in [pool.submit(work, n) for n in range(32)]] == [100] * 32
    assert bench.queries.at_once_max <= 3
    stats = bench.scheduler.stats()
    assert (stats.queued_texts, stats.queued_tokens, stats.running_texts) == (0, 0, 0)
    bench.queries.failing = set()
    bench.queries.hold()
    calls = [bench.call(first) for first in range(3)]
    bench.queries.wait_for_runs(stats.batches + 3)
    bench.queries.release()
    assert sorted(call.result(WAIT)[0] for call in calls) == [0, 1, 2]


# ---- through the embedder ----


class HeldSession:
    """Holds the runs of every session made while it is in place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.runs = 0
        run = EncoderSession.run

        def held(session: EncoderSession, ids: NDArray[np.int64]) -> NDArray[np.float32]:
            self.runs += 1
            self.begun.release()
            assert self.go.wait(WAIT)
            return run(session, ids)

        monkeypatch.setattr(EncoderSession, "run", held)


def one_by_one(**scheduling: int) -> OnnxEmbedder:
    model = tiny_model.model()
    model = replace(model, spec=replace(model.spec, quantisation="int8"))
    return OnnxEmbedder(model, device="cpu", scheduling=Scheduling(**scheduling))


def test_whoever_calls_queries_share_the_slots(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = one_by_one(runs_max=1, queue_texts_max=1)
    held = HeldSession(monkeypatch)
    recall = pool.submit(embedder.embed_query, "blue", budget(), "alice")
    assert held.begun.acquire(timeout=WAIT)
    embed = pool.submit(embedder.embed_window, "dark", QUERY, budget())
    wait_until(lambda: embedder.scheduler_stats().queued_texts == 1)
    with pytest.raises(ResourceExhaustedError):
        embedder.embed_query("hello", budget(), "bob")
    assert embedder.healthy
    held.go.set()
    for call, word in ((recall, "blue"), (embed, "dark")):
        expected = tiny_model.expected_vector(word)
        np.testing.assert_allclose(call.result(WAIT).vectors[0], expected, atol=1e-6)
    assert held.runs == 2


def test_who_waits_for_a_caller_that_leaves_the_queue_takes_its_place(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = one_by_one(runs_max=1)
    held = HeldSession(monkeypatch)
    other = pool.submit(embedder.embed_query, "blue", budget(), "alice")
    assert held.begun.acquire(timeout=WAIT)
    leaving = Caller()
    leader = pool.submit(embedder.embed_query, "dark", leaving.budget, "alice")
    wait_until(lambda: embedder.scheduler_stats().queued_texts == 1)
    followers = [pool.submit(embedder.embed_query, "dark", budget(), "alice") for _ in range(3)]
    leaving.gone.set()
    with pytest.raises(CancelledError):
        leader.result(WAIT)
    held.go.set()
    expected = tiny_model.expected_vector("dark")
    for follower in followers:
        np.testing.assert_allclose(follower.result(WAIT).vectors[0], expected, atol=1e-6)
    assert sum(follower.result().computed for follower in followers) == 1
    assert other.result(WAIT).computed == 1
    assert held.runs == 2


def test_texts_of_one_caller_are_shared_with_slots_that_are_free(
    pool: ThreadPoolExecutor,
) -> None:
    bench = Bench(pool, runs_max=3)
    bench.queries.hold()
    texts = [text(first) for first in range(7)]
    call = pool.submit(bench.scheduler.run_all, QUERY, texts, budget())
    bench.queries.wait_for_runs(3)
    assert bench.scheduler.stats() == SchedulerStats(running_texts=3)
    bench.queries.release()
    for first, vector in enumerate(call.result(WAIT)):
        assert not isinstance(vector, EmbeddingFailedError)
        assert np.array_equal(vector, vector_of(text(first)))
    assert sorted(bench.queries.runs) == [[first] for first in range(7)]
    assert bench.queries.at_once_max == 3
    wait_until(lambda: bench.scheduler.stats() == SchedulerStats(batches=7, batched_texts=7))


def test_helpers_take_no_slot_that_another_caller_wants(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, runs_max=2)
    bench.queries.hold()
    others = [bench.call(first) for first in (100, 101)]
    bench.queries.wait_for_runs(2)
    call = pool.submit(bench.scheduler.run_all, QUERY, [text(n) for n in range(3)], budget())
    bench.wait_for_queue(1)
    bench.queries.release()
    assert [other.result(WAIT)[0] for other in others] == [100, 101]
    assert len(call.result(WAIT)) == 3
    assert bench.queries.at_once_max == 2


def test_a_text_that_fails_among_others_fails_alone(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, runs_max=2)
    bench.queries.failing = {1}
    results = bench.scheduler.run_all(QUERY, [text(n) for n in range(3)], budget())
    assert isinstance(results[1], EmbeddingFailedError)
    assert [results[n][0] for n in (0, 2)] == [0, 2]  # type: ignore[index]
    (alone,) = bench.scheduler.run_all(QUERY, [text(1)], budget())
    assert isinstance(alone, EmbeddingFailedError)
    assert bench.scheduler.run_all(QUERY, [], budget()) == []


@pytest.mark.parametrize("texts", [1, 4])
def test_what_is_no_failure_of_a_text_is_raised(pool: ThreadPoolExecutor, texts: int) -> None:
    bench = Bench(pool, runs_max=2)
    bench.queries.fatal = MemoryError()
    with pytest.raises(MemoryError):
        bench.scheduler.run_all(QUERY, [text(n) for n in range(texts)], budget())
    bench.queries.fatal = None
    wait_until(lambda: bench.scheduler.stats().running_texts == 0)
    assert bench.scheduler.run(QUERY, text(9), budget())[0] == 9


def test_a_caller_of_many_who_goes_away_leaves_no_text_behind(pool: ThreadPoolExecutor) -> None:
    bench = Bench(pool, runs_max=2)
    bench.queries.hold()
    other = bench.call(100)
    bench.queries.wait_for_runs(1)
    caller = Caller()
    call = pool.submit(bench.scheduler.run_all, QUERY, [text(n) for n in range(5)], caller.budget)
    bench.queries.wait_for_runs(2)
    caller.gone.set()
    bench.queries.release()
    with pytest.raises(CancelledError):
        call.result(WAIT)
    assert other.result(WAIT)[0] == 100
    wait_until(lambda: bench.scheduler.stats().running_texts == 0)
    assert len(bench.queries.runs) < 6
