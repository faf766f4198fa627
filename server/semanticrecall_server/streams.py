"""The streaming methods.

A stream of a client that does not read is held up: so many recalls of it are under way, no more are
read before one is written, and what waits on all streams has a limit in bytes. While the server
drains, a stream reads no more, answers what it has read, and ends with UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from semanticrecall.v1 import admin_pb2, recall_pb2
from semanticrecall_core.types.errors import (
    FieldViolation,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from semanticrecall_core.types.values import CallBudget

from . import answers
from .convert import TIMEOUT_MS_MAX
from .endpoints import (
    INDEX,
    RECALL,
    Caller,
    Context,
    Deadlines,
    Runtime,
    budget_for,
    failure_of,
    guarded,
    read_early,
    recalled_again,
    run_unary,
    whose,
)
from .gate import Kind, Phase, Services
from .reembedding_calls import PROGRESS_INTERVAL_S
from .wire import decode

RECALLS_PER_STREAM_MAX = 64
END = grpc.aio.EOF


class Idle:
    """Ends a stream on which nothing moves though the server waits for the client only.

    A client that neither sends nor reads would otherwise keep its place for ever. What moves is
    noted and looked at when the time is over: to move the end of an asyncio timeout with every
    request costs as much as writing an answer.
    """

    def __init__(self, limit: asyncio.Timeout, idle_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._idle_s = idle_s
        self._works = 0
        self._since = self._loop.time()
        self._timer = self._loop.call_later(idle_s, self._look)

    def moved(self) -> None:
        """A request came or an answer left."""
        self._since = self._loop.time()

    @contextmanager
    def working(self) -> Generator[None]:
        """The server works, and the client waits for it."""
        self._works += 1
        try:
            yield
        finally:
            self._works -= 1
            self.moved()

    def close(self) -> None:
        """The stream has ended."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        end = now + self._idle_s if self._works else self._since + self._idle_s
        if end > now:
            self._timer = self._loop.call_at(end, self._look)
        elif not self._limit.expired():
            self._limit.reschedule(now)


@asynccontextmanager
async def ended_when_idle(idle_s: float) -> AsyncGenerator[Idle]:
    """Run a stream until it is done, or nothing has moved on it for so many seconds.

    Raises:
        UnavailableError: reason STREAM_IDLE.
    """
    limit = asyncio.timeout(None)
    try:
        async with limit:
            idle = Idle(limit, idle_s)
            try:
                yield idle
            finally:
                idle.close()
    except TimeoutError:
        if not limit.expired():
            raise
        raise UnavailableError(
            f"nothing moved on this stream for {idle_s:g} seconds; open a new one when needed",
            reason="STREAM_IDLE",
            retry_after_ms=0,
        ) from None


class RequestReader:
    """Reads requests until the client is done or the server drains."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reading: asyncio.Task[Any] | None = None
        self.drained = False

    def end(self) -> None:
        """Read no more."""
        self.drained = True
        if self._reading is not None:
            self._reading.cancel()

    async def next(self) -> bytes | None:
        """The next request, or None at the end."""
        if self.drained:
            return None
        reading = asyncio.ensure_future(self._context.read())
        self._reading = reading
        try:
            raw = await reading
        except asyncio.CancelledError:
            # Not where the stream itself is cancelled: its reading is then still to be.
            if not (self.drained and reading.cancelled()):
                raise
            return None
        finally:
            self._reading = None
        return None if raw is END else raw


# ---- RecallStream ----


class RecallStream:
    """Many recalls at once on one stream."""

    def __init__(
        self, runtime: Runtime, services: Services, context: Context, caller: Caller
    ) -> None:
        self._runtime = runtime
        self._services = services
        self._context = context
        self._caller = caller
        self._free = asyncio.Semaphore(RECALLS_PER_STREAM_MAX)
        self._writing = asyncio.Lock()
        self._ids: set[str] = set()

    async def run(self, reader: RequestReader, idle: Idle) -> None:
        """Answer until the end; every request that was read is answered first."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._free.acquire()
                raw = await reader.next()
                if raw is None:
                    break
                if (known := self._again(raw)) is None:
                    tasks.create_task(self._answer(raw, idle))
                else:
                    await self._write(known, idle)
                    self._free.release()

    async def _answer(self, raw: bytes, idle: Idle) -> None:
        try:
            with idle.working():
                request_id, answer = await self._recall(raw)
            try:
                with self._runtime.unread.hold(len(answer)):
                    await self._write(answer, idle)
            except ResourceExhaustedError as full:
                refusal = answers.recall_error(request_id, full)
                await self._write(refusal.SerializeToString(), idle)
        finally:
            self._free.release()

    async def _write(self, answer: bytes, idle: Idle) -> None:
        try:
            async with self._writing:
                await self._context.write(answer)
            idle.moved()
        except grpc.aio.BaseError:
            # The client is gone; the stream's own task is told so by gRPC.
            self._caller.left()

    def _again(self, raw: bytes) -> bytes | None:
        """The answer to a recall that was asked before, without a task of its own."""
        known = recalled_again(self._services, raw, self._ids)
        if known is not None:
            self._runtime.metrics.called_in_stream("RecallStream", "OK")
        return known

    async def _recall(self, raw: bytes) -> tuple[str, bytes]:
        """A request's id and its encoded answer."""
        request_id = ""
        is_mine = False
        deadlines = self._runtime.deadlines
        try:
            early = budget_for(None, self._caller, deadlines)
            lane = self._runtime.lanes.recall
            resource = RECALL.resource(raw)
            request = await read_early(lane, raw, recall_pb2.RecallRequest, early, resource)
            request_id = request.request_id
            is_mine = self._claim(request)
            budget = stream_budget(request.timeout_ms, self._caller, deadlines)
            raw_answer = await run_unary(self._runtime, RECALL, self._services, raw, budget)
            self._runtime.metrics.called_in_stream("RecallStream", "OK")
            return request_id, raw_answer
        except Exception as raised:
            error = failure_of(self._runtime, "RecallStream", raised)
            return request_id, answers.recall_error(request_id, error).SerializeToString()
        finally:
            if is_mine:
                self._ids.discard(request_id)

    def _claim(self, request: recall_pb2.RecallRequest) -> bool:
        """Take the request's id for as long as it is worked on."""
        if not request.request_id:
            raise InvalidArgumentError.of("request_id", "is required on RecallStream")
        if request.timeout_ms > TIMEOUT_MS_MAX:
            raise InvalidArgumentError.of("timeout_ms", f"must be 0 to {TIMEOUT_MS_MAX}")
        if request.request_id in self._ids:
            raise InvalidArgumentError(
                (FieldViolation("request_id", "is in use by another recall of this stream"),)
            )
        self._ids.add(request.request_id)
        return True


def stream_budget(timeout_ms: int, caller: Caller, deadlines: Deadlines) -> CallBudget:
    """The budget of one request of a stream; 0 is the server's default."""
    return budget_for(timeout_ms / 1000 if timeout_ms else None, caller, deadlines)


# ---- IndexStream ----


class IndexStream:
    """One Index request after the other, each answered before the next is read."""

    def __init__(
        self, runtime: Runtime, services: Services, context: Context, caller: Caller
    ) -> None:
        self._runtime = runtime
        self._services = services
        self._context = context
        self._caller = caller

    async def run(self, reader: RequestReader, idle: Idle) -> None:
        """Answer until the end."""
        while (raw := await reader.next()) is not None:
            with idle.working():
                answer = await self._index(raw)
            await self._context.write(answer)
            idle.moved()

    async def _index(self, raw: bytes) -> bytes:
        runtime = self._runtime
        try:
            budget = budget_for(None, self._caller, runtime.deadlines)
            answer = await run_unary(runtime, INDEX, self._services, raw, budget)
            runtime.metrics.called_in_stream("IndexStream", "OK")
            return answer
        except Exception as raised:
            error = failure_of(runtime, "IndexStream", raised)
            return answers.index_error(error).SerializeToString()


CLIENT_STREAMS: tuple[type[RecallStream | IndexStream], ...] = (RecallStream, IndexStream)
"""Their names are their methods' names."""


def client_stream_endpoint(
    runtime: Runtime, kind: type[RecallStream | IndexStream]
) -> grpc.RpcMethodHandler[Any, Any]:
    """The gRPC handler of one of CLIENT_STREAMS."""

    async def handle(requests: object, context: Context) -> None:
        del requests
        caller = Caller()
        reader = RequestReader(context)

        async def answer() -> None:
            gate = runtime.gate
            with gate.enter(Kind.STREAM) as services, gate.on_drain(reader.end):
                stream = kind(runtime, services, context, caller)
                async with ended_when_idle(runtime.stream_idle_s) as idle:
                    await stream.run(reader, idle)
            if reader.drained:
                raise runtime.gate.refusal()

        await guarded(runtime, kind.__name__, context, caller, answer)

    return grpc.stream_stream_rpc_method_handler(handle)


# ---- Export, Verify, Reembed ----

Batches = Generator[list[bytes]]


@dataclass(frozen=True, slots=True)
class ServerStreamMethod:
    """One request, many answers, made in batches on the admin lane.

    Attributes:
        name, request: see UnaryMethod.
        begin: makes the batches; each is asked for once the one before was written.
        interval_s: waited between two batches of a call that follows what goes on by itself; it
            holds no thread meanwhile, and ends when the server drains.
    """

    name: str
    request: type[Message]
    begin: Callable[[Services, Any, CallBudget], Batches]
    interval_s: float = 0.0

    def resource(self, raw: bytes) -> bytes:
        """Whose turn an encoded request waits for."""
        return whose(self.request)(raw)


ADMIN_STREAMS = (
    ServerStreamMethod("Verify", admin_pb2.VerifyRequest, lambda s, r, b: s.admin.verify(r, b)),
    ServerStreamMethod("Export", admin_pb2.ExportRequest, lambda s, r, b: s.admin.export(r, b)),
    ServerStreamMethod(
        "Reembed",
        admin_pb2.ReembedRequest,
        lambda s, r, b: s.admin.reembedding.reembed(r, b),
        PROGRESS_INTERVAL_S,
    ),
)


@contextmanager
def given_up_at_the_end(batches: Batches) -> Generator[None]:
    """Whatever ends the stream: a repair keeps others out for as long as it is held.

    One that a thread is in gives up at its next look at the call's budget.
    """
    try:
        yield
    finally:
        with suppress(ValueError):
            batches.close()


def server_stream_endpoint(
    runtime: Runtime, method: ServerStreamMethod
) -> grpc.RpcMethodHandler[Any, Any]:
    """The gRPC handler of a method; a slow reader holds no thread."""
    long = Deadlines(
        runtime.deadlines.export_max_s,
        runtime.deadlines.export_max_s,
        runtime.deadlines.export_max_s,
    )

    async def stream(services: Services, raw: bytes, context: Context, caller: Caller) -> None:
        budget = budget_for(context.time_remaining(), caller, long)
        lane, resource = runtime.lanes.admin, method.resource(raw)

        def begin() -> Batches:
            return method.begin(services, decode(raw, method.request), budget)

        async with ended_when_idle(runtime.stream_idle_s) as idle:
            with idle.working():
                batches = await lane.run(begin, budget, len(raw), resource=resource)
            with given_up_at_the_end(batches):
                while True:
                    with idle.working():
                        batch = await lane.run(
                            lambda: next(batches, None),
                            budget,
                            0,
                            resource=resource,
                            is_admitted=True,
                        )
                    if batch is None:
                        return
                    for answer in batch:
                        await context.write(answer)
                        idle.moved()
                    if method.interval_s:
                        await runtime.gate.wait_until_draining(method.interval_s)
                        if runtime.gate.phase is Phase.DRAINING:
                            raise runtime.gate.refusal()

    async def handle(raw: bytes, context: Context) -> None:
        caller = Caller()

        async def answer() -> None:
            with runtime.gate.enter(Kind.EXPORT) as services:
                await stream(services, raw, context, caller)

        await guarded(runtime, method.name, context, caller, answer)

    return grpc.unary_stream_rpc_method_handler(handle)
