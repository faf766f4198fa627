"""How the client for asyncio makes its calls: connection, deadlines, retries, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast

import grpc
import grpc.aio

from .calls import Failing
from .connection import (
    HEALTH_CHECK,
    SERVING,
    Absence,
    ClientOptions,
    Deadline,
    channel_options,
    connection,
    credentials,
)
from .errors import UNREACHABLE, UnavailableError, error_from_call, is_silence
from .v1.admin_pb2_grpc import AdminServiceStub
from .v1.recall_pb2_grpc import RecallServiceStub

if TYPE_CHECKING:
    from .v1.admin_pb2_grpc import AdminServiceAsyncStub
    from .v1.recall_pb2_grpc import RecallServiceAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")


class AsyncCalls:
    """The connection of a client, and the ways to call. `AsyncRecallClient` adds what is called."""

    def __init__(self, address: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._settings = connection(address, options)
        self._absence = Absence()
        self._opened: grpc.aio.Channel | None = None

    @property
    def address(self) -> str:
        """Where the sidecar is."""
        return self._settings.address

    async def __aenter__(self) -> Self:
        """The client itself."""
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
        """Give the connection up; calls under way are cancelled. The next call opens it anew."""
        channel, self._opened = self._opened, None
        if channel is not None:
            await channel.close()

    # --- is it there? --------------------------------------------------------------------------

    async def is_serving(self, *, timeout: float | None = None) -> bool:
        """Whether the sidecar is ready for calls. False while it starts, drains, or is away."""
        seconds = self._settings.deadline(timeout).left()
        try:
            return await self._check_health(seconds, wait=False) == SERVING
        except grpc.RpcError:
            return False

    async def wait_until_reachable(self, *, timeout: float | None = None) -> None:
        """Wait until something answers at the address; see `RecallClient.wait_until_reachable`."""
        limit = self._settings.connect_timeout_seconds if timeout is None else timeout
        await self._reach(limit, wait=True)

    async def _reach_soon(self, seconds: float | None = None) -> None:
        """Wait for a sidecar that starts or restarts; not again for one that is away."""
        limit = self._settings.connect_timeout_seconds if seconds is None else seconds
        await self._reach(limit, wait=not self._absence.is_recent)

    async def _reach(self, seconds: float, *, wait: bool) -> None:
        try:
            await self._check_health(seconds, wait=wait)
        except grpc.RpcError as failure:
            if is_silence(failure):
                self._absence.notice()
                raise await asyncio.to_thread(self._settings.away) from None
        self._absence.end()

    async def _check_health(self, seconds: float, *, wait: bool) -> bytes:
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        check = self._channel.unary_unary(HEALTH_CHECK)
        metadata = self._settings.metadata
        return await check(b"", timeout=seconds, metadata=metadata, wait_for_ready=wait)

    # --- how calls are made --------------------------------------------------------------------

    @property
    def _channel(self) -> grpc.aio.Channel:
        # Opened late: a channel belongs to the event loop that runs when it is made.
        if self._opened is None:
            options = channel_options(self._settings)
            if self._settings.tls is None:
                self._opened = grpc.aio.insecure_channel(self._settings.target, options)
            else:
                secret = credentials(self._settings.tls)
                self._opened = grpc.aio.secure_channel(self._settings.target, secret, options)
        return self._opened

    @property
    def _recall(self) -> RecallServiceAsyncStub:
        return cast("RecallServiceAsyncStub", RecallServiceStub(self._channel))

    @property
    def _admin(self) -> AdminServiceAsyncStub:
        return cast("AdminServiceAsyncStub", AdminServiceStub(self._channel))

    async def _call(
        self,
        rpc: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        timeout: float | None,
    ) -> Response:
        """Call what may be sent twice; wait once for a sidecar that starts or restarts."""
        deadline = self._settings.deadline(timeout)
        try:
            return await self._once(rpc, request, deadline)
        except UnavailableError as error:
            if error.reason != UNREACHABLE:
                raise
        await self._reach_soon(deadline.left(self._settings.connect_timeout_seconds))
        return await self._once(rpc, request, deadline)

    async def _once(
        self,
        rpc: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        deadline: Deadline,
    ) -> Response:
        try:
            answer = await rpc(request, timeout=deadline.left(), metadata=self._settings.metadata)
        except grpc.RpcError as failure:
            raise error_from_call(failure, self.address) from None
        self._absence.end()
        return answer

    async def _stream(
        self,
        rpc: grpc.aio.UnaryStreamMultiCallable[Request, Response],
        request: Request,
        timeout: float | None,
    ) -> AsyncIterator[Response]:
        await self._reach_soon()
        seconds = self._settings.stream_timeout(timeout)
        call = rpc(request, timeout=seconds, metadata=self._settings.metadata)
        async for response in self._answers(call):
            yield response

    async def _answers(
        self,
        call: grpc.aio.UnaryStreamCall[Request, Response]
        | grpc.aio.StreamStreamCall[Request, Response],
        batches: Failing | None = None,
    ) -> AsyncIterator[Response]:
        try:
            async for response in call:
                yield response
        except (grpc.RpcError, asyncio.CancelledError) as failure:
            if batches is not None and batches.failure is not None:
                raise batches.failure from None
            if isinstance(failure, asyncio.CancelledError):
                raise
            raise error_from_call(failure, self.address) from None
        finally:
            # Also when the caller stopped half way: the server must not go on for nobody.
            call.cancel()
