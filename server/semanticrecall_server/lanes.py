"""Lanes: bounded pools of threads that keep blocking work off the event loop.

A call is admitted or refused at once; an admitted one always ends. What waits in the queue when
its caller leaves or its deadline passes is dropped before any work is done. A place is given
back when the work has really ended, not when its caller stopped waiting.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from semanticrecall_core.types.errors import DeadlineExceededError, ResourceExhaustedError
from semanticrecall_core.types.values import CallBudget

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much a lane takes on.

    Attributes:
        threads: jobs worked on at once.
        in_flight_max: jobs waiting or worked on.
        bytes_in_flight_max: bytes of their requests.
        nice: priority of the threads, 0 (normal) to 19 (only when nothing else wants the CPU).
    """

    threads: int
    in_flight_max: int
    bytes_in_flight_max: int
    nice: int = 0


def _be_nice(nice: int) -> None:
    if nice:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


class Lane:
    """One pool. `run` belongs to the event loop; the rest is thread-safe."""

    def __init__(self, name: str, limits: LaneLimits, retry_after_ms: int) -> None:
        self.name = name
        self._limits = limits
        self._retry_after_ms = retry_after_ms
        self._lock = threading.Lock()
        self._in_flight = 0
        self._bytes_in_flight = 0
        self._executor = ThreadPoolExecutor(
            limits.threads, f"{name}-lane", initializer=_be_nice, initargs=(limits.nice,)
        )

    @property
    def in_flight(self) -> int:
        """Jobs waiting or worked on."""
        return self._in_flight

    async def run(self, job: Callable[[], T], budget: CallBudget, request_bytes: int) -> T:
        """Run `job` on a thread and wait for it, at most as long as the budget lasts.

        Raises:
            ResourceExhaustedError: the lane is full; nothing was done.
            DeadlineExceededError: the budget ran out; the job stops at its next check.
            Exception: what the job raised.
        """
        self._admit(request_bytes)
        try:
            future = self._executor.submit(job)
        except BaseException:
            self._release(request_bytes)
            raise
        future.add_done_callback(lambda _: self._release(request_bytes))
        return await self._wait(future, budget)

    async def _wait(self, future: Future[T], budget: CallBudget) -> T:
        timeout = asyncio.timeout(budget.remaining())
        try:
            async with timeout:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise DeadlineExceededError("the deadline passed before the answer was ready") from None

    def close(self) -> None:
        """Drop what waits, finish what runs, end the threads."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _admit(self, request_bytes: int) -> None:
        limits = self._limits
        with self._lock:
            if (
                self._in_flight < limits.in_flight_max
                and self._bytes_in_flight + request_bytes <= limits.bytes_in_flight_max
            ):
                self._in_flight += 1
                self._bytes_in_flight += request_bytes
                return
        raise ResourceExhaustedError(
            f"the server has as many {self.name} calls in flight as it takes on; come back later",
            reason="QUEUE_FULL",
            retry_after_ms=self._retry_after_ms,
        )

    def _release(self, request_bytes: int) -> None:
        with self._lock:
            self._in_flight -= 1
            self._bytes_in_flight -= request_bytes
