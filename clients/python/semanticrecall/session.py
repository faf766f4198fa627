"""One open stream for many recalls, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import queue
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import grpc

from . import answers, requests, values
from .connection import Connection
from .errors import (
    FAIL_OPEN_ERRORS,
    CancelledError,
    DeadlineExceededError,
    ResourceExhaustedError,
    SemanticRecallError,
    error_from_call,
    error_from_detail,
)
from .results import RecallResult
from .v1 import recall_pb2
from .v1.recall_pb2_grpc import RecallServiceStub

if TYPE_CHECKING:
    from .v1.recall_pb2_grpc import RecallServiceAsyncStub

PENDING_MAX = 1024
RECALL_TIMEOUT_MS_MAX = 600_000
# The server ends a recall at its own deadline; the client gives its answer time to arrive.
GRACE_SECONDS = 1.0


def _request(
    resource_id: str, query: str, options: values.RecallOptions, seconds: float
) -> recall_pb2.RecallRequest:
    request = requests.recall_request(resource_id, query, options)
    request.request_id = uuid.uuid4().hex
    request.timeout_ms = min(RECALL_TIMEOUT_MS_MAX, max(1, int(seconds * 1000)))
    return request


def _settle(
    response: recall_pb2.RecallResponse, future: Future[RecallResult] | asyncio.Future[RecallResult]
) -> None:
    if future.done():
        return
    if response.HasField("error"):
        future.set_exception(error_from_detail(response.error))
    else:
        future.set_result(answers.recall_result(response))


def _full() -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"{PENDING_MAX} recalls already wait on this stream", reason="QUEUE_FULL", retryable=True
    )


def _late(address: str) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"no answer from {address} within the timeout; give the call more time", retryable=True
    )


def _closed() -> CancelledError:
    return CancelledError("the stream was closed before the answer was there")


class _Flow:
    """One stream under way: its requests, and who waits for which answer."""

    def __init__(self, stub: RecallServiceStub, settings: Connection) -> None:
        self._address = settings.address
        self._requests: queue.SimpleQueue[recall_pb2.RecallRequest | None] = queue.SimpleQueue()
        self._waiting: dict[str, Future[RecallResult]] = {}
        self._lock = threading.Lock()
        self.ended = False
        self._call = stub.RecallStream(self._outgoing(), metadata=settings.metadata)
        self._reader = threading.Thread(target=self._read, name="recall-stream", daemon=True)
        self._reader.start()

    def _outgoing(self) -> Iterator[recall_pb2.RecallRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def submit(self, request: recall_pb2.RecallRequest) -> Future[RecallResult] | None:
        """Send a request; None if the stream has ended meanwhile."""
        future: Future[RecallResult] = Future()
        with self._lock:
            if self.ended:
                return None
            if len(self._waiting) >= PENDING_MAX:
                raise _full()
            self._waiting[request.request_id] = future
        self._requests.put(request)
        return future

    def drop(self, request_id: str) -> None:
        """Nobody waits for this answer any longer."""
        with self._lock:
            self._waiting.pop(request_id, None)

    def _read(self) -> None:
        failure: SemanticRecallError = _closed()
        try:
            for response in self._call:
                with self._lock:
                    future = self._waiting.pop(response.request_id, None)
                if future is not None:
                    _settle(response, future)
        except grpc.RpcError as error:
            failure = error_from_call(error, self._address)
        with self._lock:
            self.ended = True
            waiting, self._waiting = self._waiting, {}
        self._requests.put(None)
        for future in waiting.values():
            if not future.done():
                future.set_exception(failure)

    def close(self) -> None:
        """End the stream and fail who still waits."""
        self._requests.put(None)
        self._call.cancel()
        self._reader.join()


class RecallSession:
    """Many recalls on one open stream, answered as each is ready. Made by `recall_stream`.

    May be shared between threads. A stream that broke is opened anew by the next recall.
    """

    def __init__(
        self, stub: RecallServiceStub, settings: Connection, reach: Callable[[], None]
    ) -> None:
        self._stub = stub
        self._settings = settings
        self._reach = reach
        self._lock = threading.Lock()
        self._flow: _Flow | None = None

    def __enter__(self) -> Self:
        """The session itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End the stream; recalls under way raise CancelledError."""
        with self._lock:
            flow, self._flow = self._flow, None
        if flow is not None:
            flow.close()

    def recall(
        self,
        resource_id: str,
        query: str = "",
        *,
        timeout: float | None = None,
        **options: Unpack[values.RecallOptions],
    ) -> RecallResult:
        """As `RecallClient.recall`, on the stream."""
        deadline = self._settings.deadline(timeout)
        request = _request(resource_id, query, options, deadline.left())
        try:
            flow, future = self._send(request)
            try:
                return future.result(deadline.left() + GRACE_SECONDS)
            except DeadlineExceededError:
                raise
            except TimeoutError:
                flow.drop(request.request_id)
                raise _late(self._settings.address) from None
        except FAIL_OPEN_ERRORS as error:
            return self._settings.without_memories(error)

    def submit(
        self,
        resource_id: str,
        query: str = "",
        *,
        timeout: float | None = None,
        **options: Unpack[values.RecallOptions],
    ) -> Future[RecallResult]:
        """Send a recall and go on; the future gives its answer, or raises (no failing open)."""
        seconds = self._settings.deadline(timeout).left()
        return self._send(_request(resource_id, query, options, seconds))[1]

    def _send(self, request: recall_pb2.RecallRequest) -> tuple[_Flow, Future[RecallResult]]:
        with self._lock:
            if self._flow is not None and (future := self._flow.submit(request)) is not None:
                return self._flow, future
            self._reach()
            self._flow = _Flow(self._stub, self._settings)
            future = self._flow.submit(request)
            if future is None:
                raise _closed()
            return self._flow, future


class AsyncRecallSession:
    """Many recalls on one open stream, answered as each is ready. Made by `recall_stream`.

    May be shared between tasks of one event loop. A stream that broke is opened anew by the next
    recall.
    """

    def __init__(
        self,
        stub: RecallServiceAsyncStub,
        settings: Connection,
        reach: Callable[[], Awaitable[None]],
    ) -> None:
        self._stub = stub
        self._settings = settings
        self._reach = reach
        self._opening = asyncio.Lock()
        self._requests: asyncio.Queue[recall_pb2.RecallRequest | None] = asyncio.Queue(PENDING_MAX)
        self._waiting: dict[str, asyncio.Future[RecallResult]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """The session itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """End the stream; recalls under way raise CancelledError."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def recall(
        self,
        resource_id: str,
        query: str = "",
        *,
        timeout: float | None = None,
        **options: Unpack[values.RecallOptions],
    ) -> RecallResult:
        """As `AsyncRecallClient.recall`, on the stream."""
        deadline = self._settings.deadline(timeout)
        request = _request(resource_id, query, options, deadline.left())
        try:
            future = await self._send(request)
            try:
                async with asyncio.timeout(deadline.left() + GRACE_SECONDS):
                    return await future
            except DeadlineExceededError:
                raise
            except TimeoutError:
                raise _late(self._settings.address) from None
            finally:
                self._waiting.pop(request.request_id, None)
        except FAIL_OPEN_ERRORS as error:
            return self._settings.without_memories(error)

    async def _send(self, request: recall_pb2.RecallRequest) -> asyncio.Future[RecallResult]:
        async with self._opening:
            if self._reader is None or self._reader.done():
                await self._reach()
                self._requests = asyncio.Queue(PENDING_MAX)
                self._reader = asyncio.create_task(self._read(self._requests))
        if len(self._waiting) >= PENDING_MAX:
            raise _full()
        future: asyncio.Future[RecallResult] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = future
        await self._requests.put(request)
        return future

    async def _read(self, requests: asyncio.Queue[recall_pb2.RecallRequest | None]) -> None:
        async def outgoing() -> AsyncIterator[recall_pb2.RecallRequest]:
            while (request := await requests.get()) is not None:
                yield request

        failure: SemanticRecallError = _closed()
        call = self._stub.RecallStream(outgoing(), metadata=self._settings.metadata)
        try:
            async for response in call:
                future = self._waiting.pop(response.request_id, None)
                if future is not None:
                    _settle(response, future)
        except grpc.RpcError as error:
            failure = error_from_call(error, self._settings.address)
        finally:
            call.cancel()
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(failure)
