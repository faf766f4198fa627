"""Lanes: bounded pools of threads that keep blocking work off the event loop.

A call is admitted or refused at once; an admitted one always ends. What waits in the queue when
its caller leaves or its deadline passes is dropped before any work is done. A place is given
back when the work has really ended, not when its caller stopped waiting. Who waits for what is
done elsewhere holds no thread, and one of as many places beside these: those who act never stand
behind those who wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from semanticrecall_core.types.errors import DeadlineExceededError, ResourceExhaustedError
from semanticrecall_core.types.values import CallBudget

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much a lane takes on.

    Attributes:
        threads: jobs worked on at once.
        in_flight_max: jobs queued or worked on, and as many calls again that wait elsewhere.
        bytes_in_flight_max: bytes of the requests of either.
        nice: priority of the threads, 0 (normal) to 19 (only when nothing else wants the CPU).
    """

    threads: int
    in_flight_max: int
    bytes_in_flight_max: int
    nice: int = 0


def _be_nice(nice: int) -> None:
    if nice:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


class _Task(Generic[T]):
    """One job on its way to a thread and back: asyncio's own way takes twice the time."""

    __slots__ = ("_job", "_release", "answer")

    def __init__(
        self, job: Callable[[], T], answer: asyncio.Future[T], release: Callable[[], None]
    ) -> None:
        self._job = job
        self._release = release
        self.answer = answer

    def work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do the job and hand over what came of it. On a thread."""
        result: T | None = None
        error: BaseException | None = None
        try:
            result = self._job()
        except BaseException as raised:
            error = raised
        self._release()
        # The loop is closed when a server stopped without waiting for this job.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._deliver, result, error)

    def _deliver(self, result: T | None, error: BaseException | None) -> None:
        if self.answer.done():
            return
        if isinstance(error, StopIteration):
            # A future cannot carry it.
            self.answer.set_exception(RuntimeError("a job ended an iteration"))
        elif error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(cast(T, result))

    def expire(self) -> None:
        """Stop waiting: the deadline passed."""
        if not self.answer.done():
            self.answer.set_exception(
                DeadlineExceededError("the deadline passed before the answer was ready")
            )


class _Places:
    """So many calls and bytes at once. Thread-safe."""

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._bytes = 0
        self.taken = 0

    def take(self, request_bytes: int, *, in_any_case: bool = False) -> bool:
        """Take one, unless all are taken."""
        with self._lock:
            if not in_any_case and (
                self.taken >= self._limits.in_flight_max
                or self._bytes + request_bytes > self._limits.bytes_in_flight_max
            ):
                return False
            self.taken += 1
            self._bytes += request_bytes
            return True

    def give_back(self, request_bytes: int) -> None:
        """Give back what `take` took."""
        with self._lock:
            self.taken -= 1
            self._bytes -= request_bytes


class Lane:
    """One pool. `run` and `wait` belong to the event loop; the rest is thread-safe."""

    def __init__(self, name: str, limits: LaneLimits, retry_after_ms: int) -> None:
        self.name = name
        self._retry_after_ms = retry_after_ms
        self._working = _Places(limits)
        self._waiting = _Places(limits)
        self._executor = ThreadPoolExecutor(
            limits.threads, f"{name}-lane", initializer=_be_nice, initargs=(limits.nice,)
        )

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
        has_waited: bool = False,
    ) -> T:
        """Run `job` on a thread and wait for it, at most as long as the budget lasts.

        A call that has waited with `wait` was admitted then, and is not refused now.

        Raises:
            ResourceExhaustedError: the lane is full; nothing was done.
            DeadlineExceededError: the budget ran out; the job stops at its next check.
            Exception: what the job raised.
        """
        if not self._working.take(request_bytes, in_any_case=has_waited):
            raise self._full("in flight")
        loop = asyncio.get_running_loop()
        task = _Task(job, loop.create_future(), lambda: self._working.give_back(request_bytes))
        try:
            queued = self._executor.submit(task.work, loop)
        except BaseException:
            self._working.give_back(request_bytes)
            raise
        timer = loop.call_later(budget.remaining(), task.expire)
        try:
            answer: T = await task.answer
            return answer
        finally:
            timer.cancel()
            # Whoever stopped waiting: what has not begun is dropped, and its place is free.
            if queued.cancel():
                self._working.give_back(request_bytes)

    async def wait(self, ready: Future[None], seconds: float, request_bytes: int) -> None:
        """Wait for something done elsewhere, without a thread, at most so many seconds.

        A wait that ends before `ready` cancels it.

        Raises:
            ResourceExhaustedError: as many wait as the lane takes on.
        """
        if not self._waiting.take(request_bytes):
            ready.cancel()
            raise self._full("waiting")
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(ready), seconds)
        finally:
            self._waiting.give_back(request_bytes)

    def close(self) -> None:
        """Drop what waits, finish what runs, end the threads."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _full(self, how: str) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            f"the server has as many {self.name} calls {how} as it takes on; come back later",
            reason="QUEUE_FULL",
            retry_after_ms=self._retry_after_ms,
        )
