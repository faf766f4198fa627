"""The least that a Python client costs: bytes in, bytes out, over grpcio's two interfaces.

Both sides of a ratio are measured with the same client. `SyncClient` blocks inside its coroutines:
they suspend nowhere, so what is timed is grpcio's synchronous call and nothing else.
"""

from __future__ import annotations

import queue
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc
import grpc.aio

DEADLINE_S = 60.0
_Call = Callable[..., Any]


class Client(Protocol):
    """One connection; streams stay open until it is closed."""

    async def unary(self, method: str, request: bytes) -> bytes:
        """One unary call."""
        ...

    async def on_stream(self, method: str, request: bytes) -> bytes:
        """One request and its answer on the method's open stream."""
        ...

    async def close(self) -> None:
        """End streams and connection."""
        ...


class SyncClient:
    """`grpc.insecure_channel`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._calls: dict[str, _Call] = {}
        self._streams: dict[str, tuple[queue.SimpleQueue[bytes | None], Iterator[bytes]]] = {}

    async def unary(self, method: str, request: bytes) -> bytes:
        """See Client."""
        if method not in self._calls:
            self._calls[method] = self._channel.unary_unary(method)
        answer: bytes = self._calls[method](request, timeout=DEADLINE_S)
        return answer

    async def on_stream(self, method: str, request: bytes) -> bytes:
        """See Client."""
        if method not in self._streams:
            requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            call: _Call = self._channel.stream_stream(method)
            self._streams[method] = requests, call(iter(requests.get, None))
        sent, answers = self._streams[method]
        sent.put(request)
        return next(answers)

    async def close(self) -> None:
        """See Client."""
        for requests, _ in self._streams.values():
            requests.put(None)
        self._channel.close()


class AioClient:
    """`grpc.aio.insecure_channel`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._calls: dict[str, _Call] = {}
        self._streams: dict[str, Any] = {}

    async def unary(self, method: str, request: bytes) -> bytes:
        """See Client."""
        if method not in self._calls:
            self._calls[method] = self._channel.unary_unary(method)
        answer: bytes = await self._calls[method](request, timeout=DEADLINE_S)
        return answer

    async def on_stream(self, method: str, request: bytes) -> bytes:
        """See Client."""
        if method not in self._streams:
            call: _Call = self._channel.stream_stream(method)
            self._streams[method] = call()
        stream = self._streams[method]
        await stream.write(request)
        answer = await stream.read()
        if answer is grpc.aio.EOF:
            raise RuntimeError("the stream ended")
        return bytes(answer)

    async def close(self) -> None:
        """See Client."""
        for stream in self._streams.values():
            await stream.done_writing()
            await stream.read()
        await self._channel.close()


CLIENTS: dict[str, type[SyncClient] | type[AioClient]] = {"sync": SyncClient, "aio": AioClient}


@asynccontextmanager
async def connected(kind: str, address: str) -> AsyncIterator[Client]:
    """A client of a kind: "sync" or "aio"."""
    client = CLIENTS[kind](address)
    try:
        yield client
    finally:
        await client.close()
