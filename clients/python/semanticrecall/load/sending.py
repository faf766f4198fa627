"""One sending process: calls go out when they are due, whatever became of those before.

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
import selectors
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import grpc
import grpc.aio

from ..connection import HEALTH_CHECK, Connection, channel_options, credentials
from ..errors import InvalidArgumentError, is_silence
from .counting import Sent, StageCount
from .measured import Operation, WorkerSecond, WorkerStage
from .plan import LoadPlan, Loop, Stage
from .schedule import Timetable, share
from .workload import Call, CallSequence

READY_CALLS = 1_024
READY_BYTES_MAX = 16 * 1024 * 1024
BURST_CALLS = 64
LAG_TIMER_S = 0.01
CLOSED_LOOP_BATCH = 16
METHODS = {
    Operation.RECALL: "/semanticrecall.v1.RecallService/Recall",
    Operation.INDEX: "/semanticrecall.v1.RecallService/Index",
}
_now = time.monotonic

Rpc = grpc.aio.UnaryUnaryCall[bytes, bytes]


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


def event_loop() -> asyncio.AbstractEventLoop:
    """A loop whose timers are exact to the operating system's (some 50 us), for `asyncio.Runner`.

    The usual loop waits in `epoll`, in whole milliseconds, rounded up: calls would be sent half a
    millisecond late on average. `select` takes microseconds; a sender has two sockets to watch.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


class Sender:
    """Sends one process's share of a plan, stage by stage, over one connection of its own.

    Belongs to the event loop in which it is opened. What it knows of the workload (queries to
    repeat, which numbers are used) goes on from stage to stage.

    Args:
        plan: checked. worker, workers: which process this is, from 0, and how many there are.

    Raises:
        InvalidArgumentError: the plan cannot be sent: there are more processes than places, or see
            `CallSequence`.
    """

    def __init__(self, plan: LoadPlan, worker: int, workers: int) -> None:
        if plan.loop is Loop.OPEN and plan.in_flight_max < workers:
            raise InvalidArgumentError.of(
                "in_flight_max", f"must be at least {workers}, one place for each process"
            )
        self._plan = plan
        self._calls = CallSequence(plan.workload, worker, workers)
        self._ready: deque[Call] = deque()
        self._ready_bytes = 0
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[Operation, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._metadata = grpc.aio.Metadata(*plan.connection.metadata)
        self._timeout_s = plan.timeout_ms / 1e3
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run: _Run | None = None
        self._stopped = False

    async def open(self) -> None:
        """Connect, and write the first requests.

        Raises:
            SemanticRecallError: nothing answers within the connection's connect timeout.
        """
        settings = self._plan.connection
        self._loop = asyncio.get_running_loop()
        self._channel = _open_channel(settings)
        method = self._channel.unary_unary
        self._methods = {operation: method(path) for operation, path in METHODS.items()}
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = method(HEALTH_CHECK)
        seconds = settings.connect_timeout_seconds
        try:
            await check(b"", timeout=seconds, metadata=self._metadata, wait_for_ready=True)
        except grpc.RpcError as failure:
            if is_silence(failure):
                raise await asyncio.to_thread(settings.away) from None
        self.write_ahead(READY_CALLS)

    async def run(self, task: StageTask, on_second: Callable[[WorkerSecond], None]) -> WorkerStage:
        """Send one stage's calls and wait for their answers.

        Args:
            on_second: told of each second when it is over, in the event loop; the last, which may
                not be a whole one, before this returns.
        """
        kind = _OpenLoop if self._plan.loop is Loop.OPEN else _ClosedLoop
        self._run = kind(self, self._plan, task, on_second)
        try:
            if self._stopped:
                self._run.stop()
            stage = await self._run.measure()
        finally:
            self._run = None
        # Now, rather than before the next stage: it begins in all processes at once.
        self.write_ahead(READY_CALLS)
        return stage

    def stop(self) -> None:
        """No further call begins; `run` returns after the drain with what there is. For good.

        May be called from any thread.
        """
        self._stopped = True
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed: nothing runs.
                self._loop.call_soon_threadsafe(self._stop_run)

    async def close(self) -> None:
        """Give the connection up."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def next_call(self) -> Call:
        """The next call of the workload."""
        if not self._ready:
            return next(self._calls)
        call = self._ready.popleft()
        self._ready_bytes -= len(call.body)
        return call

    def write_ahead(self, calls: int) -> None:
        """Write requests for later, at most so many, within the limits of what is kept ready."""
        for _ in range(min(calls, READY_CALLS - len(self._ready))):
            if self._ready_bytes >= READY_BYTES_MAX:
                return
            call = next(self._calls)
            self._ready.append(call)
            self._ready_bytes += len(call.body)

    def send(self, call: Call) -> Rpc:
        """Begin a call."""
        return self._methods[call.operation](
            call.body, timeout=self._timeout_s, metadata=self._metadata
        )

    def _stop_run(self) -> None:
        if self._run is not None:
            self._run.stop()


class _Run(ABC):
    """One stage while it runs: what open and closed loops have in common."""

    def __init__(
        self,
        sender: Sender,
        plan: LoadPlan,
        task: StageTask,
        on_second: Callable[[WorkerSecond], None],
    ) -> None:
        self._sender = sender
        self._plan = plan
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._begin = _now()
        self._ends_at = self._begin + task.stage.duration_s
        self._count = StageCount(self._begin, on_second)
        self._sent = 0
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
            if not self._stopped:
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
    def _waits(self) -> bool:
        """Whether calls that are due by the end of sending still wait to be sent."""

    @abstractmethod
    def _never_sent(self) -> int:
        """How many of those there are."""

    # --- one call ------------------------------------------------------------------------------

    def _send(self, due_at: float | None, ready_at: float | None) -> tuple[Sent, Rpc]:
        call = self._sender.next_call()
        sent_at = _now()
        rpc = self._sender.send(call)
        sent = Sent(self._sent, call, sent_at if due_at is None else due_at, sent_at)
        self._sent += 1
        self._rpcs.add(rpc)
        self._count.sent(sent, ready_at, sent_at < self._ends_at)
        if self._sent == self._task.calls_max:
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

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
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
        if self._sending_over.is_set() and not self._tasks and (self._stopped or not self._waits()):
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


class _OpenLoop(_Run):
    def __init__(
        self,
        sender: Sender,
        plan: LoadPlan,
        task: StageTask,
        on_second: Callable[[WorkerSecond], None],
    ) -> None:
        super().__init__(sender, plan, task, on_second)
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
            if due_at > _now():
                self._at("due", due_at, self._send_due)
                break
            if sent == BURST_CALLS:
                # Answers that came meanwhile are taken in between.
                self._at("due", due_at, self._send_due)
                break
            self._free -= 1
            self._next = next(self._arrivals, None)
            self._spawn(self._call(*self._send(due_at, max(due_at, self._free_since))))
            sent += 1
        if sent:
            self._loop.call_soon(self._sender.write_ahead, sent)

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

    def _waits(self) -> bool:
        return self._next is not None

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


class _ClosedLoop(_Run):
    def _start(self) -> None:
        task = self._task
        for _ in range(min(share(task.stage.in_flight, task.worker, task.workers), task.calls_max)):
            self._spawn(self._caller())

    async def _caller(self) -> None:
        while not self._sending_over.is_set() and _now() < self._ends_at:
            await self._await(*self._send(None, None))
            if self._count.unread >= CLOSED_LOOP_BATCH:
                self._count.read_answers()
                self._sender.write_ahead(CLOSED_LOOP_BATCH)

    def _waits(self) -> bool:
        return False

    def _never_sent(self) -> int:
        return 0


def _open_channel(settings: Connection) -> grpc.aio.Channel:
    # Retries would hide what the server answers: a load measures that.
    options = [given for given in channel_options(settings) if given[0] != "grpc.service_config"]
    options.append(("grpc.enable_retries", 0))
    if settings.tls is None:
        return grpc.aio.insecure_channel(settings.target, options)
    return grpc.aio.secure_channel(settings.target, credentials(settings.tls), options)
