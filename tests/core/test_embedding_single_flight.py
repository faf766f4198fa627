"""Sharing one computation among callers that want the same thing at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from semanticrecall_core.embedding.single_flight import SingleFlight
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    EmbeddingFailedError,
)
from semanticrecall_core.types.values import CallBudget

WAIT = 30.0


class WatchedBudget(CallBudget):
    """Says when its caller has begun to wait for another: it asks again and again then."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.cancel = threading.Event()
        self._asked = 0
        super().__init__(CallBudget.of_seconds(WAIT).deadline, self._is_cancelled)

    def _is_cancelled(self) -> bool:
        self._asked += 1
        if self._asked >= 2:
            self.waiting.set()
        return self.cancel.is_set()


class Work:
    """A computation that stands still until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.runs = 0
        self.errors: list[BaseException] = []

    def __call__(self) -> int:
        self.runs += 1
        self.entered.release()
        assert self.go.wait(WAIT)
        if self.errors:
            raise self.errors.pop(0)
        return self.runs


def test_waiting_callers_share_one_computation() -> None:
    flights, work = SingleFlight[str, int](), Work()
    budgets = [WatchedBudget() for _ in range(7)]
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(flights.run, "k", work, CallBudget.of_seconds(WAIT))
        assert work.entered.acquire(timeout=WAIT)
        others = [pool.submit(flights.run, "k", work, budget) for budget in budgets]
        assert all(budget.waiting.wait(WAIT) for budget in budgets)
        work.go.set()
        assert first.result(WAIT) == (1, True)
        assert [other.result(WAIT) for other in others] == [(1, False)] * 7
    assert work.runs == 1


def test_other_keys_do_not_wait() -> None:
    flights, work = SingleFlight[str, int](), Work()
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(flights.run, "held", work, CallBudget.of_seconds(WAIT))
        assert work.entered.acquire(timeout=WAIT)
        assert flights.run("free", lambda: 5, CallBudget.of_seconds(WAIT)) == (5, True)
        work.go.set()
        assert held.result(WAIT) == (1, True)


def test_the_texts_own_failure_is_everybodys_and_is_not_kept() -> None:
    flights, work = SingleFlight[str, int](), Work()
    work.errors.append(EmbeddingFailedError("no vector", reason="WHY"))
    budget = WatchedBudget()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flights.run, "k", work, CallBudget.of_seconds(WAIT))
        assert work.entered.acquire(timeout=WAIT)
        second = pool.submit(flights.run, "k", work, budget)
        assert budget.waiting.wait(WAIT)
        work.go.set()
        with pytest.raises(EmbeddingFailedError) as of_first:
            first.result(WAIT)
        with pytest.raises(EmbeddingFailedError) as of_second:
            second.result(WAIT)
    assert (of_first.value.reason, of_second.value.reason) == ("WHY", "WHY")
    assert of_first.value is not of_second.value
    assert flights.run("k", work, CallBudget.of_seconds(WAIT)) == (2, True)


def test_a_first_caller_that_stops_for_its_own_reason_hands_over() -> None:
    flights, work = SingleFlight[str, int](), Work()
    work.errors.append(CancelledError("the first caller went away"))
    budgets = [WatchedBudget() for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(flights.run, "k", work, CallBudget.of_seconds(WAIT))
        assert work.entered.acquire(timeout=WAIT)
        others = [pool.submit(flights.run, "k", work, budget) for budget in budgets]
        assert all(budget.waiting.wait(WAIT) for budget in budgets)
        work.go.set()
        with pytest.raises(CancelledError):
            first.result(WAIT)
        values = {other.result(WAIT)[0] for other in others}
    assert values <= set(range(2, work.runs + 1))


def test_a_cancelled_or_late_caller_leaves_alone() -> None:
    flights, work = SingleFlight[str, int](), Work()
    leaving, staying = WatchedBudget(), WatchedBudget()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(flights.run, "k", work, CallBudget.of_seconds(WAIT))
        assert work.entered.acquire(timeout=WAIT)
        gone = pool.submit(flights.run, "k", work, leaving)
        kept = pool.submit(flights.run, "k", work, staying)
        assert leaving.waiting.wait(WAIT)
        assert staying.waiting.wait(WAIT)
        leaving.cancel.set()
        with pytest.raises(CancelledError):
            gone.result(WAIT)
        with pytest.raises(DeadlineExceededError):
            flights.run("k", work, CallBudget.of_seconds(0.01))
        work.go.set()
        assert first.result(WAIT) == (1, True)
        assert kept.result(WAIT) == (1, False)
    assert work.runs == 1


def test_keys_that_others_compute_are_waited_for_and_the_rest_is_computed_together() -> None:
    flights = SingleFlight[str, int]()
    work, asked = Work(), list[list[str]]()

    def compute(keys: Sequence[str]) -> list[int | EmbeddingFailedError]:
        asked.append(list(keys))
        return [len(key) for key in keys]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flights.run, "theirs", work, CallBudget.of_seconds(WAIT))
        assert work.entered.acquire(timeout=WAIT)
        budget = WatchedBudget()
        both = pool.submit(flights.run_all, ["one", "theirs", "four"], compute, budget)
        assert budget.waiting.wait(WAIT)
        # Its own keys are there for everybody by now, though it still waits.
        assert flights.run("one", lambda: 7, CallBudget.of_seconds(WAIT)) == (7, True)
        work.go.set()
        value, _ = first.result(WAIT)
        assert both.result(WAIT) == [(3, True), (value, False), (4, True)]
    assert asked == [["one", "four"]]


def test_a_key_that_fails_among_others_fails_its_caller_and_no_other_key() -> None:
    flights = SingleFlight[str, int]()
    failure = EmbeddingFailedError("the model failed")
    with pytest.raises(EmbeddingFailedError):
        flights.run_all(["a", "b"], lambda keys: [1, failure], CallBudget.of_seconds(WAIT))
    with pytest.raises(ZeroDivisionError):
        flights.run_all(["a", "b"], lambda keys: [1 // 0], CallBudget.of_seconds(WAIT))
    found = flights.run_all(["b", "a"], lambda keys: [2, 1], CallBudget.of_seconds(WAIT))
    assert found == [(2, True), (1, True)]
