"""Lanes: bounded pools of threads that keep blocking work off the event loop.

A call is admitted or refused at once; an admitted one always ends. What waits in the queue when
its caller leaves or its deadline passes is dropped before any work is done. A place is given
back when the work has really ended, not when its caller stopped waiting. Who waits for what is
done elsewhere holds no thread, and one of as many places beside these: those who act never stand
behind those who wait.

Resources take turns, and none may take all places (`fair_queue`): one that floods is refused, and
the others go on. How long a call would wait is estimated from how long the last jobs took: where
that is longer than the lane allows, or than its caller has time, it is refused at once.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from semanticrecall_core.types.errors import DeadlineExceededError, ResourceExhaustedError
from semanticrecall_core.types.values import CallBudget

from .fair_queue import NOBODY, FairQueue, Hot, Shares

T = TypeVar("T")

QUEUE_FULL = "QUEUE_FULL"
RETRY_STEP_MS = 50
"""What callers are told is a multiple of this: few different refusals are to be encoded."""

RETRY_MAX_MS = 5_000
HOT_S = 5.0
"""Who was refused is hot for so long: all that were told to come back have done so by then."""

PLACES_OF_HOT_MIN = 4
_JOBS_RECENT = 16
_OUTLIER = 8.0


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much a lane takes on.

    Attributes:
        threads: jobs worked on at once.
        in_flight_max: jobs queued or worked on, and as many calls again that wait elsewhere.
        bytes_in_flight_max: bytes of the requests of either.
        nice: priority of the threads, 0 (normal) to 19 (only when nothing else wants the CPU).
        wait_max_s: a call that would wait longer for a thread is refused; infinite: only where
            its deadline is nearer than that; None: jobs differ too much to tell, and none is.
    """

    threads: int
    in_flight_max: int
    bytes_in_flight_max: int
    nice: int = 0
    wait_max_s: float | None = None


def _be_nice(nice: int) -> None:
    """Give the calling thread a lower priority, unless it has that or the system does not let it.

    A server that was begun with a lower one may not go back up, and its threads work all the same.
    """
    if nice:
        thread = threading.get_native_id()
        with suppress(OSError):
            if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                os.setpriority(os.PRIO_PROCESS, thread, nice)


Tell = Callable[[T | None, BaseException | None], None]
"""Hears what came of a job: its result, or what it raised."""


class LaneJob(Generic[T]):
    """One job on its way to a thread and back. Whoever began it hears of its end once."""

    __slots__ = (
        "_job",
        "_lane",
        "_loop",
        "_tell",
        "_timer",
        "begun",
        "is_over",
        "resource",
        "size",
    )

    def __init__(
        self, lane: Lane, job: Callable[[], T], tell: Tell[T], resource: bytes, size: int
    ) -> None:
        self._lane = lane
        self._job = job
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.resource = resource
        self.size = size
        self.begun = False
        self.is_over = False

    def work(self) -> tuple[T | None, BaseException | None]:
        """Do the job. On a thread."""
        try:
            return self._job(), None
        except BaseException as raised:
            return None, raised

    def hand_over(self, outcome: tuple[T | None, BaseException | None]) -> None:
        """Give the caller what came of it. On a thread."""
        # The loop is closed when a server stopped without waiting for this job.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, *outcome)

    def expire_in(self, seconds: float) -> None:
        """Wait for it no longer than this."""
        self._timer = self._loop.call_later(seconds, self._expire)

    def give_up(self) -> None:
        """Wait for it no longer: nobody is told anything, and what has not begun is dropped."""
        if not self.is_over:
            self._end()

    def _deliver(self, result: T | None, error: BaseException | None) -> None:
        if not self.is_over:
            self._end()
            self._tell(result, error)

    def _expire(self) -> None:
        if not self.is_over:
            self._end()
            late = DeadlineExceededError("the deadline passed before the answer was ready")
            self._tell(None, late)

    def _end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.begun:
            self._lane.drop(self)


def _settle(answer: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Have a future end as a job did."""
    if answer.done():
        return
    if isinstance(error, StopIteration):
        # A future cannot carry it.
        answer.set_exception(RuntimeError("a job ended an iteration"))
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(cast(T, result))


class _Pace:
    """How long jobs take of late, and when who was refused is to come back."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._jobs = 0
        self._job_s = 0.0
        self._next_return = 0.0

    def took(self, seconds: float) -> None:
        """A job took so long. One that took much longer than the others says little of them."""
        if self._jobs < _JOBS_RECENT:
            self._jobs += 1
        else:
            seconds = min(seconds, _OUTLIER * self._job_s)
        self._job_s += (seconds - self._job_s) / self._jobs

    def wait_s(self, ahead: int) -> float:
        """How long a job waits that has so many ahead of it; 0 until enough were done to tell."""
        return ahead * self._job_s / self._threads if self._jobs == _JOBS_RECENT else 0.0

    def return_ms(self, wait_s: float, *, in_turn: bool) -> int:
        """When to come back, at the soonest after `wait_s`.

        In turn: each after the one before, as far apart as jobs are done, so that they do not come
        back all at once and are refused again.
        """
        if in_turn:
            now = time.monotonic()
            self._next_return = min(max(self._next_return, now + wait_s), now + RETRY_MAX_MS / 1000)
            wait_s = self._next_return - now
            self._next_return += self.wait_s(1)
        steps = math.ceil(wait_s * 1000 / RETRY_STEP_MS)
        return min(max(steps, 1) * RETRY_STEP_MS, RETRY_MAX_MS)


class Lane:
    """One pool. `run`, `begin` and `wait` belong to the event loop; the rest is thread-safe."""

    def __init__(self, name: str, limits: LaneLimits, retry_after_ms: int) -> None:
        self.name = name
        self._retry_after_ms = retry_after_ms
        self._limits = limits
        self._lock = threading.Lock()
        self._queue: FairQueue[LaneJob[Any]] = FairQueue()
        self._working = Shares(limits.in_flight_max, limits.bytes_in_flight_max)
        self._waiting = Shares(limits.in_flight_max, limits.bytes_in_flight_max)
        self._hot = Hot(HOT_S)
        self._pace = _Pace(limits.threads)
        # As many threads as jobs were ever worked on at once. `_workers` of them are at work or
        # called to it by an entry of `_calls`, each by one; an entry of False ends a thread.
        self._threads: list[threading.Thread] = []
        self._workers = 0
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Jobs queued or worked on."""
        return self._working.taken

    @property
    def waiting(self) -> int:
        """Calls that wait for what is done elsewhere."""
        return self._waiting.taken

    async def run(
        self,
        job: Callable[[], T],
        budget: CallBudget,
        request_bytes: int,
        *,
        resource: bytes = NOBODY,
        is_admitted: bool = False,
    ) -> T:
        """Run `job` on a thread and wait for it, at most as long as the budget lasts.

        A call that was admitted before (it has waited with `wait`, or its stream has begun) is not
        refused now.

        Raises:
            ResourceExhaustedError: the lane or the resource's share of it is full, or its turn
                would come too late; nothing was done.
            DeadlineExceededError: the budget ran out; the job stops at its next check.
            Exception: what the job raised.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        begun = self.begin(
            job,
            budget,
            request_bytes,
            partial(_settle, answer),
            resource=resource,
            is_admitted=is_admitted,
        )
        try:
            return await answer
        finally:
            begun.give_up()

    def begin(
        self,
        job: Callable[[], T],
        budget: CallBudget,
        request_bytes: int,
        tell: Tell[T],
        *,
        resource: bytes = NOBODY,
        is_admitted: bool = False,
    ) -> LaneJob[T]:
        """Have `job` run on a thread; `tell` hears how it ended, on the event loop, never at once.

        It hears of DeadlineExceededError when the budget has run out, and of nothing once the
        job was given up. Without a task and a future for each call this is quicker than `run`.

        Raises:
            ResourceExhaustedError: see `run`.
        """
        seconds = budget.remaining()
        begun = LaneJob(self, job, tell, resource, request_bytes)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the lane is closed")
            if not is_admitted:
                self._admit(resource, request_bytes, seconds)
            needs_thread = self._workers < self._limits.threads
            if needs_thread:
                self._have_thread()
            self._working.take(resource, request_bytes)
            self._queue.add(resource, begun)
        if needs_thread:
            self._calls.put(True)
        begun.expire_in(seconds)
        return begun

    def _have_thread(self) -> None:
        """Count one more thread as at work, and start it where none is idle. Locked."""
        if self._workers == len(self._threads):
            # A daemon: a process that ends without closing its lanes does not wait for them.
            thread = threading.Thread(
                target=self._serve, name=f"{self.name}-lane_{len(self._threads)}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        self._workers += 1

    def _serve(self) -> None:
        """Work whenever called, until the lane is closed. A thread's whole life."""
        _be_nice(self._limits.nice)
        while self._calls.get():
            self._work()

    def _admit(self, resource: bytes, size: int, seconds: float) -> None:
        """Refuse what there is no room or no time for. Locked."""
        wait_max_s, threads = self._limits.wait_max_s, self._limits.threads
        wait_s, most = 0.0, None
        if wait_max_s is not None and self._workers >= threads:
            wait_s = self._pace.wait_s(self._queue.ahead(resource))
            if self._hot.has(resource, time.monotonic()):
                # Its next calls come soon enough: those that are let in need not also wait long.
                most = max(PLACES_OF_HOT_MIN, 2 * threads)
        if not self._working.has_room(resource, size, most):
            message = self._full("in flight")
        elif wait_max_s is not None and wait_s > min(wait_max_s, seconds):
            message = f"the server has more {self.name} calls waiting than it answers in time"
        else:
            return
        # Whom others keep out does not come back behind all of theirs.
        in_turn = self._working.holds(resource)
        if in_turn:
            self._hot.add(resource, time.monotonic())
        raise self._refusal(message, wait_s, in_turn=in_turn)

    def _work(self) -> None:
        """Work on what waits, until nothing does."""
        job = self._next(None, 0.0)
        while job is not None:
            began = time.monotonic()
            outcome = job.work()
            following = self._next(job, time.monotonic() - began)
            # The place was free before the caller hears.
            job.hand_over(outcome)
            job = following
            del outcome, following

    def _next(self, done: LaneJob[Any] | None, took_s: float) -> LaneJob[Any] | None:
        """Give back the place of what is done, and take the next job."""
        with self._lock:
            if done is not None:
                self._working.give_back(done.resource, done.size)
                self._pace.took(took_s)
            job = None if self._is_closed else self._queue.take()
            if job is None:
                self._workers -= 1
            else:
                job.begun = True
            return job

    def drop(self, job: LaneJob[Any]) -> None:
        """Take a job out of the queue, unless it has begun."""
        with self._lock:
            if self._queue.remove(job.resource, job):
                self._working.give_back(job.resource, job.size)

    async def wait(
        self,
        ready: Future[None],
        seconds: float,
        request_bytes: int,
        resource: bytes = NOBODY,
    ) -> None:
        """Wait for something done elsewhere, without a thread, at most so many seconds.

        A wait that ends before `ready` cancels it.

        Raises:
            ResourceExhaustedError: as many wait as the lane takes on, or of this resource.
        """
        with self._lock:
            is_admitted = self._waiting.has_room(resource, request_bytes)
            if is_admitted:
                self._waiting.take(resource, request_bytes)
        if not is_admitted:
            ready.cancel()
            raise self._refusal(self._full("waiting"), 0.0, in_turn=False)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(ready), seconds)
        finally:
            with self._lock:
                self._waiting.give_back(resource, request_bytes)

    def close(self) -> None:
        """Drop what waits, finish what runs, end the threads."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(False)
        for thread in threads:
            thread.join()

    def _full(self, how: str) -> str:
        return (
            f"the server has as many {self.name} calls {how}, or of this resource, as it takes on"
        )

    def _refusal(self, message: str, wait_s: float, *, in_turn: bool) -> ResourceExhaustedError:
        least_s = self._retry_after_ms / 1000
        return ResourceExhaustedError(
            f"{message}; come back later",
            reason=QUEUE_FULL,
            retry_after_ms=self._pace.return_ms(max(wait_s, least_s), in_turn=in_turn),
        )
