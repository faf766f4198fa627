"""The streaming methods.

A stream of a client that does not read is held up: so many recalls of it are under way, no more are
read before one is written, and what waits on all streams has a limit in bytes. While the server
drains, a stream reads no more, answers what it has read, and ends with UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from semanticrecall.v1 import admin_pb2, recall_pb2
from semanticrecall_core.types.errors import (
    FieldViolation,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from semanticrecall_core.types.values import CallBudget

from . import answers
from .convert import TIMEOUT_MS_MAX
from .endpoints import (
    INDEX,
    RECALL,
    Asked,
    Caller,
    Context,
    Deadlines,
    Runtime,
    UnaryCall,
    asked_early,
    budget_for,
    failure_of,
    guarded,
    read_on_lane,
    recalled_again,
    whose,
)
from .gate import Kind, Phase, Services
from .lanes import LaneJob
from .reembedding_calls import PROGRESS_INTERVAL_S
from .service import Later
from .stream_io import AnswerWriter, Idle, RequestReader, ended_when_idle
from .wire import decode

RECALLS_PER_STREAM_MAX = 64
STREAM = "RecallStream"


# ---- RecallStream ----


class RecallStream:
    """Many recalls at once on one stream.

    A request is read, decoded and given to its lane in one step of the stream's own task, and its
    answer is written in the step in which the lane's thread is heard of: neither needs a task.
    """

    def __init__(
        self, runtime: Runtime, services: Services, context: Context, caller: Caller
    ) -> None:
        self._runtime = runtime
        self._services = services
        self._context = context
        self._caller = caller
        self._jobs: dict[str, LaneJob[bytes | Later] | None] = {}
        self._working = 0
        self._progress: asyncio.Future[None] | None = None

    async def run(self, reader: RequestReader, idle: Idle) -> None:
        """Answer until the end; every request that was read is answered first."""
        self._idle = idle
        self._writer = AnswerWriter(self._context, self._runtime.unread, self._moved, self._failed)
        async with asyncio.TaskGroup() as self._tasks:
            try:
                while (raw := await reader.next()) is not None:
                    self._take(raw)
                    while not self._has_room():
                        await self._next_move()
                while self._working or self._writer.unwritten:
                    await self._next_move()
            finally:
                self._give_up()

    def _has_room(self) -> bool:
        """Whether one more recall may be under way.

        Of answers that were there before, one is written while the next is looked up: their
        room is not counted.
        """
        writer = self._writer
        return self._working + writer.unwritten < RECALLS_PER_STREAM_MAX and writer.repeats < 2

    async def _next_move(self) -> None:
        self._progress = asyncio.get_running_loop().create_future()
        await self._progress

    def _moved(self) -> None:
        """An answer was written, or could not be."""
        self._idle.moved()
        progress, self._progress = self._progress, None
        if progress is not None and not progress.done():
            progress.set_result(None)

    def _failed(self, failure: Exception) -> None:
        """An answer could not be written."""
        # The client is gone; the stream's own task is told so by gRPC.
        self._caller.left()
        if not isinstance(failure, grpc.aio.BaseError):
            self._tasks.create_task(_raised(failure))

    def _give_up(self) -> None:
        """Whatever ended the stream; nothing is left where all was answered."""
        self._writer.close()
        for job in self._jobs.values():
            if job is not None:
                job.give_up()

    def _take(self, raw: bytes) -> None:
        """Answer a request: at once where that is possible, or else have it worked on."""
        asked = asked_early(raw)
        request = asked.message
        if request is not None and request.request_id and request.request_id not in self._jobs:
            known = recalled_again(self._services, asked)
            if known is not None:
                self._runtime.metrics.called_in_stream(STREAM, "OK")
                self._writer.repeat(known)
                return
        self._working += 1
        self._idle.begins()
        if request is None:
            self._tasks.create_task(self._read_and_begin(asked))
        else:
            self._begin(asked, request)

    async def _read_and_begin(self, asked: Asked) -> None:
        """Read a request that is not read on the event loop."""
        try:
            budget = budget_for(None, self._caller, self._runtime.deadlines)
            request = await read_on_lane(self._runtime, asked.raw, budget)
        except Exception as raised:
            self._end("", None, raised)
            return
        self._begin(Asked(asked.raw, request), request)

    def _begin(self, asked: Asked, request: recall_pb2.RecallRequest) -> None:
        request_id = request.request_id
        try:
            self._check(request)
            budget = stream_budget(request.timeout_ms, self._caller, self._runtime.deadlines)
            call = UnaryCall(self._runtime, RECALL, self._services, asked, budget)
            self._jobs[request_id] = call.begin(partial(self._begun, request_id, call))
        except Exception as raised:
            self._end(request_id, None, raised)

    def _check(self, request: recall_pb2.RecallRequest) -> None:
        """Refuse what must be known before the request is worked on."""
        if not request.request_id:
            raise InvalidArgumentError.of("request_id", "is required on RecallStream")
        if request.timeout_ms > TIMEOUT_MS_MAX:
            raise InvalidArgumentError.of("timeout_ms", f"must be 0 to {TIMEOUT_MS_MAX}")
        if request.request_id in self._jobs:
            raise InvalidArgumentError(
                (FieldViolation("request_id", "is in use by another recall of this stream"),)
            )

    def _begun(
        self,
        request_id: str,
        call: UnaryCall,
        begun: bytes | Later | None,
        error: BaseException | None,
    ) -> None:
        """The lane's thread is done with a request."""
        if isinstance(begun, Later):
            self._jobs[request_id] = None
            self._tasks.create_task(self._wait_and_end(request_id, call, begun))
        else:
            del self._jobs[request_id]
            self._end(request_id, begun, error)

    async def _wait_and_end(self, request_id: str, call: UnaryCall, begun: Later) -> None:
        """A recall that waits until what it names is searchable."""
        answer, error = None, None
        try:
            answer = await call.finish(begun)
        except Exception as raised:
            error = raised
        del self._jobs[request_id]
        self._end(request_id, answer, error)

    def _end(self, request_id: str, answer: bytes | None, error: BaseException | None) -> None:
        """A request has its answer, or failed."""
        self._working -= 1
        self._idle.ends()
        if answer is None:
            failure = failure_of(self._runtime, STREAM, error or AssertionError("no answer"))
            answer = answers.recall_error(request_id, failure).SerializeToString()
        else:
            self._runtime.metrics.called_in_stream(STREAM, "OK")
        try:
            self._writer.put(answer)
        except ResourceExhaustedError as full:
            self._writer.refuse(answers.recall_error(request_id, full).SerializeToString())


async def _raised(error: Exception) -> None:
    """In a group of tasks: what ends all of them."""
    raise error


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
            call = UnaryCall(runtime, INDEX, self._services, Asked(raw), budget)
            answer = await call.run()
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
