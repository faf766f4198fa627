"""A RecallService over a real socket that answers as a test lets it, in the test's event loop.

Every call waits at `gate`; `behave` then says what it is answered with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
from google.protobuf.message import Message

from semanticrecall.v1 import recall_pb2, types_pb2

Behaviour = Callable[["Arrived"], bytes | grpc.StatusCode]


@dataclass(frozen=True)
class Arrived:
    """One call as the server saw it: `number` in order of arrival, `at` of time.monotonic."""

    number: int
    request: recall_pb2.RecallRequest | recall_pb2.IndexRequest
    body: bytes
    at: float
    metadata: dict[str, str | bytes]


def answer(arrived: Arrived) -> bytes:
    """Two messages whose ids follow from the query; every message indexed."""
    request = arrived.request
    response: Message
    if isinstance(request, recall_pb2.IndexRequest):
        results = [
            recall_pb2.IndexResult(message_id=message.id, status=types_pb2.STATUS_INDEXED)
            for message in request.messages
        ]
        response = recall_pb2.IndexResponse(results=results)
    else:
        response = recall_pb2.RecallResponse(
            messages=[
                recall_pb2.RecalledMessage(message=types_pb2.Message(id=found), hit=hit)
                for found, hit in ((request.query, True), (f"{request.query} too", False))
            ]
        )
    return response.SerializeToString()


@dataclass
class ControlledSidecar:
    """What it was asked and how it behaves. `most_running`: calls that ran at once, at most."""

    address: str
    behave: Behaviour = answer
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Arrived] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    cancelled: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self.gate.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is so; looked at whenever a call arrives or ends."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(true)

    async def _handle(
        self,
        kind: type[recall_pb2.RecallRequest] | type[recall_pb2.IndexRequest],
        body: bytes,
        context: grpc.aio.ServicerContext[bytes, bytes],
    ) -> bytes:
        metadata = dict(context.invocation_metadata() or ())
        number = len(self.seen)
        arrived = Arrived(number, kind.FromString(body), body, time.monotonic(), metadata)
        self.seen.append(arrived)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await self._tell()
        try:
            await self.gate.wait()
            behaved = self.behave(arrived)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            await self._tell()
        if isinstance(behaved, grpc.StatusCode):
            await context.abort(behaved)
        return behaved

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def recall(self, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return await self._handle(recall_pb2.RecallRequest, body, context)

    async def index(self, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return await self._handle(recall_pb2.IndexRequest, body, context)


@asynccontextmanager
async def controlled_sidecar(directory: Path) -> AsyncIterator[ControlledSidecar]:
    """Serve on a socket in the directory."""
    sidecar = ControlledSidecar(f"unix:{directory}/load.sock")
    server = grpc.aio.server()
    handlers = {
        "Recall": grpc.unary_unary_rpc_method_handler(sidecar.recall),
        "Index": grpc.unary_unary_rpc_method_handler(sidecar.index),
    }
    handler = grpc.method_handlers_generic_handler("semanticrecall.v1.RecallService", handlers)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(sidecar.address)
    await server.start()
    try:
        yield sidecar
    finally:
        await server.stop(grace=None)
