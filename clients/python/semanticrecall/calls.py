"""How the client for threads makes its calls: connection, deadlines, retries, errors."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self, TypeVar, Unpack

import grpc

from .connection import (
    HEALTH_CHECK,
    SERVING,
    Absence,
    ClientOptions,
    Connection,
    Deadline,
    channel_options,
    connection,
    credentials,
)
from .errors import (
    UNREACHABLE,
    UnavailableError,
    client_closed,
    error_from_call,
    is_silence,
)
from .v1.admin_pb2_grpc import AdminServiceStub
from .v1.recall_pb2_grpc import RecallServiceStub

Request = TypeVar("Request")
Response = TypeVar("Response")
Response_co = TypeVar("Response_co", covariant=True)


class _Answers(Protocol[Response_co]):
    """A stream of answers under way."""

    def __iter__(self) -> Iterator[Response_co]: ...

    def cancel(self) -> object: ...


class Failing(Protocol):
    """What feeds a stream, and keeps what it raised: grpc would swallow it."""

    @property
    def failure(self) -> Exception | None:
        """What it raised, if it did."""
        ...


class Calls:
    """The connection of a client, and the ways to call. `RecallClient` adds what is called."""

    def __init__(self, address: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._settings = connection(address, options)
        self._absence = Absence()
        self._closed = False
        self._channel = _open(self._settings)
        self._recall = RecallServiceStub(self._channel)
        self._admin = AdminServiceStub(self._channel)

    @property
    def address(self) -> str:
        """Where the sidecar is."""
        return self._settings.address

    def __enter__(self) -> Self:
        """The client itself."""
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
        """Give the connection up; calls under way are cancelled, later ones raise."""
        self._closed = True
        self._channel.close()

    # --- is it there? --------------------------------------------------------------------------

    def is_serving(self, *, timeout: float | None = None) -> bool:
        """Whether the sidecar is ready for calls. False while it starts, drains, or is away."""
        seconds = self._settings.deadline(timeout).left()
        try:
            return self._check_health(seconds, wait=False) == SERVING
        except grpc.RpcError:
            return False

    def wait_until_reachable(self, *, timeout: float | None = None) -> None:
        """Wait until something answers at the address, ready or not.

        Args:
            timeout: seconds. Default: the client's `connect_timeout`.

        Raises:
            UnavailableError: nothing did in time.
        """
        limit = self._settings.connect_timeout_seconds if timeout is None else timeout
        self._reach(limit, wait=True)

    def _reach_soon(self, seconds: float | None = None) -> None:
        """Wait for a sidecar that starts or restarts; not again for one that is away."""
        limit = self._settings.connect_timeout_seconds if seconds is None else seconds
        self._reach(limit, wait=not self._absence.is_recent)

    def _reach(self, seconds: float, *, wait: bool) -> None:
        try:
            self._check_health(seconds, wait=wait)
        except grpc.RpcError as failure:
            if is_silence(failure):
                self._absence.notice()
                raise self._settings.away() from None
        self._absence.end()

    def _check_health(self, seconds: float, *, wait: bool) -> bytes:
        self._refuse_if_closed()
        # Not grpc.channel_ready_future: its thread raises when the channel is closed meanwhile.
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(HEALTH_CHECK)
        metadata = self._settings.metadata
        return check(b"", timeout=seconds, metadata=metadata, wait_for_ready=wait)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise client_closed()

    # --- how calls are made --------------------------------------------------------------------

    def _call(
        self,
        rpc: grpc.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        timeout: float | None,
    ) -> Response:
        """Call what may be sent twice; wait once for a sidecar that starts or restarts."""
        deadline = self._settings.deadline(timeout)
        try:
            return self._once(rpc, request, deadline)
        except UnavailableError as error:
            if error.reason != UNREACHABLE:
                raise
        self._reach_soon(deadline.left(self._settings.connect_timeout_seconds))
        return self._once(rpc, request, deadline)

    def _once(
        self,
        rpc: grpc.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        deadline: Deadline,
    ) -> Response:
        self._refuse_if_closed()
        try:
            answer = rpc(request, timeout=deadline.left(), metadata=self._settings.metadata)
        except grpc.RpcError as failure:
            raise error_from_call(failure, self.address) from None
        self._absence.end()
        return answer

    def _stream(
        self,
        rpc: grpc.UnaryStreamMultiCallable[Request, Response],
        request: Request,
        timeout: float | None,
    ) -> Iterator[Response]:
        self._reach_soon()
        seconds = self._settings.stream_timeout(timeout)
        call = rpc(request, timeout=seconds, metadata=self._settings.metadata)
        return self._answers(call)

    def _answers(
        self, call: _Answers[Response], batches: Failing | None = None
    ) -> Iterator[Response]:
        try:
            yield from call
        except grpc.RpcError as failure:
            if batches is not None and batches.failure is not None:
                raise batches.failure from None
            raise error_from_call(failure, self.address) from None
        finally:
            # Also when the caller stopped half way: the server must not go on for nobody.
            call.cancel()


def _open(settings: Connection) -> grpc.Channel:
    options = channel_options(settings)
    if settings.tls is None:
        return grpc.insecure_channel(settings.target, options)
    return grpc.secure_channel(settings.target, credentials(settings.tls), options)
