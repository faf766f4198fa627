"""One sending process: its connection, the calls it has ready, and its stages one after the other.

When calls go out and what becomes of each: see `loops`. Retries are off, since a load measures what
the server answers.
"""

from __future__ import annotations

import asyncio
import selectors
from array import array
from collections import deque
from contextlib import suppress
from dataclasses import replace

import grpc
import grpc.aio

from ..connection import HEALTH_CHECK, Connection, channel_options, credentials
from ..errors import InvalidArgumentError, is_silence
from .loops import ClosedLoop, OpenLoop, Rpc, StageRun, StageTask, Tell
from .measured import Operation, WorkerStage
from .plan import LoadPlan, Loop
from .workload import Call, CallSequence

__all__ = ["Sender", "StageTask", "event_loop"]

READY_CALLS = 1_024
READY_BYTES_MAX = 16 * 1024 * 1024
METHODS = {
    Operation.RECALL: "/semanticrecall.v1.RecallService/Recall",
    Operation.INDEX: "/semanticrecall.v1.RecallService/Index",
}


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
        self._run: StageRun | None = None
        # One byte for each resource: whether it was written to. And those that nobody was told of.
        self._is_written = bytearray(plan.workload.resources)
        self._written = array("I")
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

    async def run(self, task: StageTask, on_second: Tell) -> WorkerStage:
        """Send one stage's calls and wait for their answers.

        Args:
            on_second: told of each second when it is over, in the event loop; the last, which may
                not be a whole one, before this returns.
        """
        kind = OpenLoop if self._plan.loop is Loop.OPEN else ClosedLoop
        self._run = kind(self, self._plan, task, on_second)
        try:
            if self._stopped:
                self._run.stop()
            stage = await self._run.measure()
        finally:
            self._run = None
        # Now, rather than before the next stage: it begins in all processes at once.
        self.write_ahead(READY_CALLS)
        written, self._written = self._written, array("I")
        return replace(stage, resources_written=written)

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
        if call.operation is Operation.INDEX and not self._is_written[call.resource]:
            # Before it is sent: what becomes of it is not known, and it may have been stored.
            self._is_written[call.resource] = True
            self._written.append(call.resource)
        return self._methods[call.operation](
            call.body, timeout=self._timeout_s, metadata=self._metadata
        )

    def _stop_run(self) -> None:
        if self._run is not None:
            self._run.stop()


def _open_channel(settings: Connection) -> grpc.aio.Channel:
    options = [given for given in channel_options(settings) if given[0] != "grpc.service_config"]
    options.append(("grpc.enable_retries", 0))
    if settings.tls is None:
        return grpc.aio.insecure_channel(settings.target, options)
    return grpc.aio.secure_channel(settings.target, credentials(settings.tls), options)
