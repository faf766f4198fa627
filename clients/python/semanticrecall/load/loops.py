"""One stage of one sending process while it runs: when calls go out, and what becomes of each.

Open loop: when calls are due follows from the plan alone (`schedule`). A call is sent when it is
due and one of the process's places (its share of `in_flight_max`) is free: at once, or as soon as a
call before it ends, in the order of the schedule. Its latency counts from when it was due. Where
the event loop wakes late, all that is due is sent then, and the delay is in the latencies. Closed
loop: each of the process's callers sends a call when the one before is answered.

What becomes of every call:

    scheduled   due before the end of sending. That is the stage's end, `calls_max` calls sent, or
                `stop`. Closed loop: sent.
    started     of these, sent before the end of sending.
    late        the others, which had no place until then. After the stage's end they are sent as
                places come free, until `drain_s` is over; after `stop` no more.
    finished    ended, with an answer or an error (a deadline is one), whenever they were sent.
    unfinished  cancelled when `drain_s` was over, or never sent.

    scheduled = started + late;  scheduled = finished + unfinished

A stage costs no memory for calls that are due and wait: the schedule is read on when they are sent.
Requests are written ahead of time and answers are read after their times were taken: in an open
loop one by one, as soon as there is one, so that none of it holds up what is due for long; in a
closed loop sixteen at a time, before a caller goes on, so that fifteen of sixteen calls follow the
one before at once, as a bare loop's would.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import grpc.aio

from .counting import Sent, StageCount
from .measured import WorkerSecond, WorkerStage
from .plan import LoadPlan, Stage
from .schedule import Timetable, share
from .workload import Call

BURST_CALLS = 64
LAG_TIMER_S = 0.01
CLOSED_LOOP_BATCH = 16

Rpc = grpc.aio.UnaryUnaryCall[bytes, bytes]
Tell = Callable[[WorkerSecond], None]
_now = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """One process's part of one stage. Picklable.

    Attributes:
        number: of the stage; with the plan's seed it decides when a Poisson process's calls are.
        worker, workers: which process this is, from 0, and how many there are.
        ramp_s: the rate rises evenly from 0 over this time at the stage's begin (open loop).
        calls_max: of this process in this stage; then sending ends.
        drain_s: how long to wait for answers after the end of sending.
    """

    stage: Stage
    number: int
    worker: int
    workers: int
    ramp_s: float = 0.0
    calls_max: int
    drain_s: float


class Outlet(Protocol):
    """Where calls come from and go to."""

    def next_call(self) -> Call:
        """The next call of the workload."""
        ...

    def write_ahead(self, calls: int) -> None:
        """Write requests for later, at most so many."""
        ...

    def send(self, call: Call) -> Rpc:
        """Begin a call."""
        ...


class StageRun(ABC):
    """What open and closed loops have in common."""

    def __init__(self, outlet: Outlet, plan: LoadPlan, task: StageTask, on_second: Tell) -> None:
        self._outlet = outlet
        self._plan = plan
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._begin = _now()
        self._ends_at = self._begin + task.stage.duration_s
        self._count = StageCount(self._begin, on_second)
        self._sent = 0
        self._calls_left = task.calls_max
        self._cancelled = 0
        self._rpcs: set[Rpc] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._sending_over = asyncio.Event()
        self._all_over = asyncio.Event()
        self._begun = False
        self._stopped = False
        self._failure: BaseException | None = None

    async def measure(self) -> WorkerStage:
        """The whole stage."""
        self._begun = True
        cpu = time.process_time()
        self._at("end", self._ends_at, self._end_of_time)
        self._tick_seconds()
        self._tick_lag(self._begin + LAG_TIMER_S)
        try:
            if self._calls_left <= 0:
                self._end_sending(self._begin)
                self._all_over.set()
            elif not self._stopped:
                self._start()
            await self._sending_over.wait()
            cpu = time.process_time() - cpu
            self._cancel_timer("lag")
            await self._drain()
        finally:
            await self._give_up()
        if self._failure is not None:
            raise self._failure
        self._count.roll(_now())
        self._count.close()
        never_sent = self._never_sent()
        stage = self._count.measured(
            self._task.worker,
            scheduled=self._sent + never_sent,
            unfinished=self._cancelled + never_sent,
        )
        return replace(
            stage,
            wall_s=self._ends_at - self._begin,
            cpu_s=cpu,
            drain_s=max(0.0, self._count.last_end - self._ends_at),
        )

    def stop(self) -> None:
        """No further call begins."""
        if not self._stopped:
            self._stopped = True
            self._end_sending(_now() if self._begun else self._begin)
            self._look_whether_all_is_over()

    @abstractmethod
    def _start(self) -> None:
        """Begin to send."""

    @abstractmethod
    def _never_sent(self) -> int:
        """How many calls that were due by the end of sending still wait to be sent."""

    # --- one call ------------------------------------------------------------------------------

    def _send(self, due_at: float | None, ready_at: float | None) -> tuple[Sent, Rpc]:
        call = self._outlet.next_call()
        sent_at = _now()
        rpc = self._outlet.send(call)
        sent = Sent(self._sent, call, sent_at if due_at is None else due_at, sent_at)
        self._sent += 1
        self._calls_left -= 1
        self._rpcs.add(rpc)
        self._count.sent(sent, ready_at, sent_at < self._ends_at)
        if not self._calls_left:
            self._end_sending(sent_at)
        return sent, rpc

    async def _await(self, sent: Sent, rpc: Rpc) -> float:
        """Wait for one call and count it; when it ended."""
        try:
            answer = await rpc
        except grpc.aio.AioRpcError as failure:
            end = _now()
            self._count.failed(sent, end, failure.code().name)
        except asyncio.CancelledError:
            self._cancelled += 1
            self._count.given_up()
            raise
        else:
            end = _now()
            self._count.answered(sent, end, answer)
        finally:
            self._rpcs.discard(rpc)
        return end

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._fail(failure)
        self._look_whether_all_is_over()

    def _fail(self, failure: BaseException) -> None:
        """Something in here is broken: the stage ends, and its `run` raises it."""
        if self._failure is None:
            self._failure = failure
        self.stop()

    # --- the end -------------------------------------------------------------------------------

    def _end_of_time(self) -> None:
        self._end_sending(self._ends_at)
        self._look_whether_all_is_over()

    def _end_sending(self, at: float) -> None:
        if not self._sending_over.is_set():
            self._ends_at = min(at, self._ends_at)
            self._cancel_timer("end")
            self._sending_over.set()

    def _look_whether_all_is_over(self) -> None:
        # A call that waits for a place waits for another one to end, which then sends it.
        if self._sending_over.is_set() and not self._tasks:
            self._all_over.set()

    async def _drain(self) -> None:
        left = self._ends_at + self._task.drain_s - _now()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await self._all_over.wait()
        except TimeoutError:
            self._stopped = True

    async def _give_up(self) -> None:
        """Cancel what is left and see it end."""
        self._stopped = True
        for name in list(self._timers):
            self._cancel_timer(name)
        for rpc in list(self._rpcs):
            rpc.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- timers --------------------------------------------------------------------------------

    def _at(self, name: str, when: float, work: Callable[..., None], *args: float) -> None:
        # The loop's clock is `time.monotonic` too.
        self._timers[name] = self._loop.call_at(when, self._guarded, work, *args)

    def _guarded(self, work: Callable[..., None], *args: float) -> None:
        try:
            work(*args)
        except Exception as failure:
            self._fail(failure)

    def _cancel_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _tick_seconds(self) -> None:
        now = _now()
        self._count.roll(now)
        self._at("second", self._begin + int(now - self._begin) + 1, self._tick_seconds)

    def _tick_lag(self, planned: float) -> None:
        # One lag for each tick that should have been: a loop that stands still is late for all.
        now = _now()
        while planned <= now:
            self._count.lagged(now - planned)
            planned += LAG_TIMER_S
        self._at("lag", planned, self._tick_lag, planned)


class OpenLoop(StageRun):
    """Calls by a schedule."""

    def __init__(self, outlet: Outlet, plan: LoadPlan, task: StageTask, on_second: Tell) -> None:
        super().__init__(outlet, plan, task, on_second)
        self._free = share(plan.in_flight_max, task.worker, task.workers)
        self._free_since = self._begin
        self._arrivals = islice(self._times(), task.calls_max)
        self._next = next(self._arrivals, None)

    def _times(self) -> Iterator[float]:
        task = self._task
        timetable = Timetable(
            arrivals=self._plan.arrivals,
            rate_per_s=task.stage.rate_per_s,
            duration_s=task.stage.duration_s,
            ramp_s=task.ramp_s,
        )
        seed = f"{self._plan.workload.seed}/{task.number}"
        return timetable.due(task.worker, task.workers, seed)

    def _start(self) -> None:
        self._send_due()

    def _send_due(self) -> None:
        """Send all that is due and has a place; look again when the next one is due."""
        self._cancel_timer("due")
        sent = 0
        while self._free and not self._stopped and self._next is not None:
            due_at = self._begin + self._next
            # In a long burst answers that came meanwhile are taken in between.
            if due_at > _now() or sent == BURST_CALLS:
                self._at("due", due_at, self._send_due)
                break
            self._free -= 1
            self._next = next(self._arrivals, None)
            self._spawn(self._call(*self._send(due_at, max(due_at, self._free_since))))
            sent += 1
        if sent:
            self._loop.call_soon(self._outlet.write_ahead, sent)

    async def _call(self, sent: Sent, rpc: Rpc) -> None:
        end = await self._await(sent, rpc)
        self._free += 1
        if self._free == 1:
            # Calls may wait for a place. With more places free none does.
            self._free_since = end
            self._send_due()
        self._count.read_answers()

    def _end_of_time(self) -> None:
        self._send_due()
        super()._end_of_time()

    def _never_sent(self) -> int:
        ended = self._ends_at - self._begin
        if self._next is None or self._next >= ended:
            return 0
        rest = 1
        for due in self._arrivals:
            if due >= ended:
                break
            rest += 1
        return rest


class ClosedLoop(StageRun):
    """So many callers, each calling again when it is answered."""

    def _start(self) -> None:
        task = self._task
        for _ in range(min(share(task.stage.in_flight, task.worker, task.workers), task.calls_max)):
            self._spawn(self._caller())

    async def _caller(self) -> None:
        while not self._sending_over.is_set() and _now() < self._ends_at:
            await self._await(*self._send(None, None))
            if self._count.unread >= CLOSED_LOOP_BATCH:
                self._count.read_answers()
                self._outlet.write_ahead(CLOSED_LOOP_BATCH)

    def _never_sent(self) -> int:
        return 0
