"""Lanes: whose job is next, who is refused and when to come back, and that nothing keeps a place.

Order is that of jobs, told by events; time is a clock of the test's own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from semanticrecall_core.types.errors import DeadlineExceededError, ResourceExhaustedError
from semanticrecall_core.types.values import CallBudget
from semanticrecall_server import lanes
from semanticrecall_server.lanes import HOT_S, RETRY_MAX_MS, Lane, LaneLimits

SECONDS = 20.0
JOB_S = 0.25
RETRY_MS = 100


@dataclass
class Clock:
    """Stands for the module `time` in `lanes`."""

    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time stands still unless a test moves it."""
    made = Clock()
    monkeypatch.setattr(lanes, "time", made)
    return made


@dataclass
class Busy:
    """A lane of one thread, its first job held, and what became of the others, in order."""

    lane: Lane
    order: list[str] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    calls: list[asyncio.Task[Any]] = field(default_factory=list)

    def hold(self) -> None:
        self.entered.set()
        assert self.release.wait(SECONDS)

    async def begin(self, resource: bytes = b"hot") -> None:
        """Have the thread work on a job until `finish`."""
        self.calls.append(asyncio.create_task(self.run(self.hold, resource)))
        assert await asyncio.to_thread(self.entered.wait, SECONDS)

    def run(
        self, job: Callable[[], Any], resource: bytes, seconds: float = SECONDS, size: int = 1
    ) -> Coroutine[Any, Any, Any]:
        return self.lane.run(job, CallBudget.of_seconds(seconds), size, resource=resource)

    async def queue(self, name: str, resource: bytes, seconds: float = SECONDS) -> None:
        """Let a job wait. It is in the queue when this returns.

        Raises:
            ResourceExhaustedError: it was refused.
        """
        call = asyncio.create_task(self.run(lambda: self.order.append(name), resource, seconds))
        await asyncio.sleep(0)
        if call.done():
            call.result()
        self.calls.append(call)

    async def finish(self) -> list[str]:
        """Let the first job end; names in the order in which they were worked on."""
        self.release.set()
        await asyncio.gather(*self.calls)
        assert self.lane.in_flight == 0
        return self.order


def in_a_lane(limits: LaneLimits, test: Callable[[Busy], Awaitable[None]]) -> None:
    """Run a test with a lane of its own."""
    lane = Lane("recall", limits, RETRY_MS)
    try:
        asyncio.run(test(Busy(lane)))  # type: ignore[arg-type]
    finally:
        lane.close()


def one_thread(places: int = 256, wait_max_s: float | None = None) -> LaneLimits:
    return LaneLimits(1, places, 1_000_000, wait_max_s=wait_max_s)


async def refused(call: Awaitable[Any]) -> ResourceExhaustedError:
    with pytest.raises(ResourceExhaustedError) as raised:
        await call
    assert raised.value.reason == "QUEUE_FULL"
    return raised.value


# ---- turns ----


def test_one_call_of_another_resource_is_the_next_to_run() -> None:
    async def test(busy: Busy) -> None:
        await busy.begin()
        for number in range(100):
            await busy.queue(f"hot {number}", b"hot")
        await busy.queue("quiet", b"quiet")
        order = await busy.finish()
        assert order == ["quiet", *(f"hot {number}" for number in range(100))]

    in_a_lane(one_thread(), test)


def test_resources_take_turns() -> None:
    async def test(busy: Busy) -> None:
        await busy.begin(b"")
        for name in ("a0", "a1", "a2", "b0", "b1", "c0"):
            await busy.queue(name, name[:1].encode())
        assert await busy.finish() == ["a0", "b0", "c0", "a1", "b1", "a2"]

    in_a_lane(one_thread(), test)


def test_all_threads_work() -> None:
    """As many jobs as threads are under way at once, and all that wait are done in the end."""
    together = threading.Barrier(3)

    async def test(busy: Busy) -> None:
        jobs = [busy.run(lambda: together.wait(SECONDS), b"a") for _ in range(12)]
        assert len(await asyncio.gather(*jobs)) == 12

    in_a_lane(LaneLimits(3, 256, 1_000), test)


# ---- without a task ----


class Told:
    """Hears of jobs that were begun."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, BaseException | None]] = []
        self.heard = asyncio.Event()

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.ends.append((result, error))
        self.heard.set()


def test_whoever_begins_a_job_hears_of_its_end_once_and_later() -> None:
    async def test(busy: Busy) -> None:
        def fail() -> None:
            raise StopIteration("x")

        budget = CallBudget.of_seconds(SECONDS)
        for job, expected in ((lambda: 7, (7, None)), (fail, (None, "StopIteration('x')"))):
            told = Told()
            begun = busy.lane.begin(job, budget, 1, told, resource=b"a")
            assert told.ends == []
            await asyncio.wait_for(told.heard.wait(), SECONDS)
            [(result, error)] = told.ends
            assert (result, error and repr(error)) == expected
            begun.give_up()
            assert begun.is_over
            assert busy.lane.in_flight == 0

    in_a_lane(one_thread(), test)


def test_a_job_that_was_given_up_is_heard_of_no_more() -> None:
    async def test(busy: Busy) -> None:
        waiting, working = Told(), Told()
        budget = CallBudget.of_seconds(SECONDS)
        running = busy.lane.begin(busy.hold, budget, 1, working)
        assert await asyncio.to_thread(busy.entered.wait, SECONDS)
        queued = busy.lane.begin(lambda: busy.order.append("dropped"), budget, 1, waiting)
        assert busy.lane.in_flight == 2
        queued.give_up()
        assert busy.lane.in_flight == 1
        running.give_up()
        assert busy.lane.in_flight == 1, "its place is taken until the work has ended"
        busy.release.set()
        await busy.run(lambda: None, b"a")
        assert (waiting.ends, working.ends, busy.order) == ([], [], [])

    in_a_lane(one_thread(), test)


def test_a_job_whose_deadline_passes_is_told_so_and_not_its_end() -> None:
    async def test(busy: Busy) -> None:
        told = Told()
        busy.lane.begin(busy.hold, CallBudget.of_seconds(0.01), 1, told)
        await asyncio.wait_for(told.heard.wait(), SECONDS)
        busy.release.set()
        await busy.run(lambda: None, b"a")
        [(result, error)] = told.ends
        assert result is None
        assert isinstance(error, DeadlineExceededError)

    in_a_lane(one_thread(), test)


def test_threads_are_started_as_they_are_needed_and_end_with_the_lane() -> None:
    lane = Lane("few", LaneLimits(4, 256, 1_000), RETRY_MS)

    def names() -> list[str]:
        return sorted(t.name for t in threading.enumerate() if t.name.startswith("few-lane"))

    async def test() -> None:
        together = threading.Barrier(2)
        budget = CallBudget.of_seconds(SECONDS)
        assert names() == []
        for _ in range(3):
            await lane.run(lambda: None, budget, 1)
        assert names() == ["few-lane_0"]
        await asyncio.gather(
            *(lane.run(lambda: together.wait(SECONDS), budget, 1) for _ in range(2))
        )
        assert names() == ["few-lane_0", "few-lane_1"]

    asyncio.run(test())
    lane.close()
    assert names() == []


# ---- shares ----


def test_a_hot_resource_is_refused_and_a_quiet_one_is_not() -> None:
    async def test(busy: Busy) -> None:
        await busy.begin()
        for number in range(15):
            await busy.queue(f"hot {number}", b"hot")
        error = await refused(busy.queue("too many", b"hot"))
        assert error.retry_after_ms >= RETRY_MS
        await busy.queue("quiet", b"quiet")
        order = await busy.finish()
        assert order == ["quiet", *(f"hot {number}" for number in range(15))]

    in_a_lane(one_thread(places=32), test)


def test_who_was_refused_holds_few_places_for_a_while(clock: Clock) -> None:
    async def test(busy: Busy) -> None:
        await busy.begin()
        for number in range(15):
            await busy.queue(f"hot {number}", b"hot")
        await refused(busy.queue("too many", b"hot"))
        await busy.finish()
        busy.release.clear()
        busy.entered.clear()
        await busy.begin()
        for number in range(lanes.PLACES_OF_HOT_MIN - 1):
            await busy.queue(f"again {number}", b"hot")
        await refused(busy.queue("too many", b"hot"))
        for number in range(5):
            await busy.queue(f"quiet {number}", b"quiet")
        clock.now += HOT_S
        await busy.queue("no longer hot", b"hot")
        order = await busy.finish()
        assert order[15:] == [
            "quiet 0",
            "again 0",
            "quiet 1",
            "again 1",
            "quiet 2",
            "again 2",
            "quiet 3",
            "no longer hot",
            "quiet 4",
        ]

    in_a_lane(one_thread(places=32, wait_max_s=1_000.0), test)


def test_waiting_places_are_shared_too() -> None:
    async def test(busy: Busy) -> None:
        pending = [Future[None]() for _ in range(16)]
        lane = busy.lane
        waits = [asyncio.create_task(lane.wait(one, SECONDS, 1, b"hot")) for one in pending]
        await asyncio.sleep(0)
        late: Future[None] = Future()
        await refused(lane.wait(late, SECONDS, 1, b"hot"))
        assert late.cancelled()
        done: Future[None] = Future()
        done.set_result(None)
        await lane.wait(done, SECONDS, 1, b"quiet")
        for one in pending:
            one.set_result(None)
        await asyncio.gather(*waits)
        assert lane.waiting == 0

    in_a_lane(one_thread(places=32), test)


# ---- how long a call would wait ----


async def teach(busy: Busy, clock: Clock, seconds: float = JOB_S) -> None:
    """Jobs that take so long, until the lane knows."""

    def job() -> None:
        clock.now += seconds

    for _ in range(16):
        await busy.run(job, b"before")


def test_a_call_that_would_wait_too_long_is_refused_with_when_to_come_back(clock: Clock) -> None:
    async def test(busy: Busy) -> None:
        await teach(busy, clock)
        await busy.begin()
        for number in range(5):
            await busy.queue(f"hot {number}", b"hot")
        # Five are ahead of it: 1.25 s; those who are refused come back one after the other.
        told = [(await refused(busy.queue("late", b"hot"))).retry_after_ms for _ in range(20)]
        assert told == [min(1_250 + 250 * n, RETRY_MAX_MS) for n in range(20)]
        await busy.queue("quiet", b"quiet")
        assert (await busy.finish())[0] == "quiet"

    in_a_lane(one_thread(wait_max_s=1.0), test)


def test_a_call_is_refused_that_cannot_be_answered_before_its_deadline(clock: Clock) -> None:
    async def test(busy: Busy) -> None:
        await teach(busy, clock, seconds=60.0)
        await busy.begin(b"other")
        await busy.queue("first", b"hot")
        error = await refused(busy.queue("in vain", b"quiet", seconds=50.0))
        assert error.retry_after_ms == RETRY_MAX_MS
        await busy.queue("has time", b"quiet", seconds=70.0)
        assert await busy.finish() == ["first", "has time"]

    in_a_lane(one_thread(wait_max_s=float("inf")), test)


@pytest.mark.parametrize("wait_max_s", [None, 1.0])
def test_nothing_is_refused_for_its_wait_where_none_is_known(
    clock: Clock, wait_max_s: float | None
) -> None:
    """The lane's jobs differ too much, or too few were done."""

    async def test(busy: Busy) -> None:
        if wait_max_s is None:
            await teach(busy, clock, seconds=1_000.0)
        await busy.begin()
        for number in range(50):
            await busy.queue(f"hot {number}", b"hot")
        assert len(await busy.finish()) == 50

    in_a_lane(one_thread(wait_max_s=wait_max_s), test)


def test_one_slow_job_says_little(clock: Clock) -> None:
    async def test(busy: Busy) -> None:
        await teach(busy, clock)

        def slow() -> None:
            clock.now += 3_600.0

        await busy.run(slow, b"before")
        await busy.begin()
        # A sixteenth of eight times as long: 0.36 s each, so that two may be ahead and not three.
        for number in range(3):
            await busy.queue(f"hot {number}", b"hot")
        await refused(busy.queue("late", b"hot"))
        await busy.finish()

    in_a_lane(one_thread(wait_max_s=1.0), test)


def test_where_a_thread_is_free_nobody_is_refused_for_its_wait(clock: Clock) -> None:
    async def test(busy: Busy) -> None:
        await teach(busy, clock, seconds=1_000.0)
        await busy.queue("at once", b"a", seconds=10.0)
        busy.entered.set()
        assert await busy.finish() == ["at once"]

    in_a_lane(one_thread(wait_max_s=1.0), test)


# ---- who leaves ----


def test_who_leaves_takes_no_place_and_no_turn() -> None:
    async def test(busy: Busy) -> None:
        await busy.begin()
        for number in range(7):
            await busy.queue(f"hot {number}", b"hot")
        await busy.queue("quiet", b"quiet")
        assert busy.lane.in_flight == 9
        leaving = [busy.calls.pop(1), busy.calls.pop(3), busy.calls.pop()]
        for call in leaving:
            call.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert busy.lane.in_flight == 6
        order = await busy.finish()
        assert order == ["hot 1", "hot 2", "hot 4", "hot 5", "hot 6"]

    in_a_lane(one_thread(places=16), test)


def test_whose_deadline_passes_in_the_queue_is_dropped() -> None:
    async def test(busy: Busy) -> None:
        await busy.begin()
        with pytest.raises(DeadlineExceededError):
            await busy.run(lambda: busy.order.append("late"), b"hot", seconds=0.01)
        assert busy.lane.in_flight == 1
        assert await busy.finish() == []

    in_a_lane(one_thread(), test)


def test_a_job_that_fails_gives_its_place_back_and_the_next_one_runs() -> None:
    async def test(busy: Busy) -> None:
        def fail() -> None:
            raise KeyError("x")

        await busy.begin()
        failing = asyncio.create_task(busy.run(fail, b"a"))
        await asyncio.sleep(0)
        await busy.queue("after", b"a")
        assert await busy.finish() == ["after"]
        with pytest.raises(KeyError):
            await failing

    in_a_lane(one_thread(), test)


async def until_it_is_refused(busy: Busy) -> None:
    while True:
        await busy.queue("dropped too", b"a")


def test_a_closed_lane_drops_what_waits_and_takes_nothing_on() -> None:
    async def test(busy: Busy) -> None:
        await busy.begin()
        await busy.queue("dropped", b"a")
        closing = asyncio.create_task(asyncio.to_thread(busy.lane.close))
        with pytest.raises(RuntimeError, match="closed"):
            await asyncio.wait_for(until_it_is_refused(busy), SECONDS)
        busy.release.set()
        await closing
        assert busy.order == []
        for dropped in busy.calls[1:]:
            dropped.cancel()
        await asyncio.gather(*busy.calls, return_exceptions=True)
        assert busy.lane.in_flight == 0

    in_a_lane(one_thread(places=100_000), test)


# ---- priority ----


@pytest.mark.parametrize(("has", "gets"), [(0, [10]), (10, []), (15, [])])
def test_a_thread_never_raises_its_priority(
    has: int, gets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most may not: a server begun at 15 would have no thread left."""
    asked: list[int] = []

    def priority(which: int, who: int, *nice: int) -> int:
        asked.extend(nice)
        return has

    monkeypatch.setattr(os, "getpriority", priority)
    monkeypatch.setattr(os, "setpriority", priority)

    async def test(busy: Busy) -> None:
        await busy.run(int, b"a")
        assert asked == gets

    in_a_lane(LaneLimits(1, 16, 1_000, nice=10), test)


def test_a_thread_works_whose_priority_the_system_does_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(which: int, who: int, *nice: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "getpriority", refuse)
    monkeypatch.setattr(os, "setpriority", refuse)

    async def test(busy: Busy) -> None:
        assert await busy.run(lambda: "done", b"a", seconds=2.0) == "done"

    in_a_lane(LaneLimits(1, 16, 1_000, nice=10), test)
