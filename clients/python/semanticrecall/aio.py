"""The client for asyncio: `AsyncRecallClient`. Each method is that of `RecallClient`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast

import grpc
import grpc.aio

from . import answers, requests, results, values, wire
from .connection import (
    HEALTH_CHECK,
    SERVING,
    Absence,
    ClientOptions,
    Deadline,
    channel_options,
    connection,
    credentials,
    warn_rejected,
)
from .errors import (
    FAIL_OPEN_ERRORS,
    UNREACHABLE,
    UnavailableError,
    error_from_call,
    is_silence,
)
from .session import AsyncRecallSession
from .v1 import admin_pb2, recall_pb2
from .v1.admin_pb2_grpc import AdminServiceStub
from .v1.recall_pb2_grpc import RecallServiceStub
from .values import EmbedRole, IndexBatch, JsonValue, Message, Wait

if TYPE_CHECKING:
    from .v1.admin_pb2_grpc import AdminServiceAsyncStub
    from .v1.recall_pb2_grpc import RecallServiceAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")


class AsyncRecallClient:
    """A sidecar's memory, for asyncio. Arguments, answers and errors as `RecallClient`'s.

        async with AsyncRecallClient() as memory:
            await memory.index("user-42", "thread-1", [user("Rex is allergic to chicken")])
            result = await memory.recall("user-42", "What can Rex not eat?")

    Belongs to the event loop of its first call. A task that is cancelled cancels its call.
    """

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

    # --- the two calls that matter -------------------------------------------------------------

    async def recall(
        self,
        resource_id: str,
        query: str = "",
        *,
        timeout: float | None = None,
        **options: Unpack[values.RecallOptions],
    ) -> results.RecallResult:
        """Find the messages that matter to a query; see `RecallClient.recall`."""
        request = requests.recall_request(resource_id, query, options)
        try:
            return answers.recall_result(await self._call(self._recall.Recall, request, timeout))
        except FAIL_OPEN_ERRORS as error:
            return self._settings.without_memories(error)

    def recall_stream(self) -> AsyncRecallSession:
        """One open stream for many recalls; see `RecallClient.recall_stream`."""
        return AsyncRecallSession(self._recall, self._settings, self._reach_soon)

    async def index(
        self,
        resource_id: str,
        thread_id: str,
        messages: Sequence[Message],
        *,
        wait: Wait | str = Wait.UNSPECIFIED,
        metadata: Mapping[str, JsonValue] | None = None,
        timeout: float | None = None,
    ) -> results.IndexResult:
        """Store messages and make them searchable; see `RecallClient.index`."""
        fields = {} if metadata is None else metadata
        batch = IndexBatch(resource_id, thread_id, messages, wait, fields)
        request = requests.index_request(batch)
        result = answers.index_result(await self._call(self._recall.Index, request, timeout))
        warn_rejected(result)
        return result

    async def index_stream(
        self,
        batches: Iterable[IndexBatch] | AsyncIterable[IndexBatch],
        *,
        timeout: float | None = None,
    ) -> AsyncIterator[results.IndexResult]:
        """Index many batches on one stream; see `RecallClient.index_stream`."""
        await self._reach_soon()
        reader = _BatchReader(batches)
        call = self._recall.IndexStream(
            reader.requests(),
            timeout=self._settings.stream_timeout(timeout),
            metadata=self._settings.metadata,
        )
        async for response in self._answers(call, reader):
            yield answers.index_result(response)

    # --- forgetting ----------------------------------------------------------------------------

    async def forget_messages(
        self, resource_id: str, message_ids: Sequence[str], *, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove messages from every answer at once; see `RecallClient.forget_messages`."""
        return await self._forget(
            requests.forget_messages_request(resource_id, message_ids), timeout
        )

    async def forget_thread(
        self, resource_id: str, thread_id: str, *, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove a thread with all its messages."""
        return await self._forget(requests.forget_thread_request(resource_id, thread_id), timeout)

    async def forget_everything(
        self, resource_id: str, *, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove all that is known of a resource."""
        return await self._forget(requests.forget_everything_request(resource_id), timeout)

    async def forget_before(
        self, resource_id: str, before: datetime, *, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove the messages of a resource that were created before a time."""
        return await self._forget(requests.forget_before_request(resource_id, before), timeout)

    async def _forget(
        self, request: recall_pb2.ForgetRequest, timeout: float | None
    ) -> results.ForgetResult:
        return answers.forget_result(await self._call(self._recall.Forget, request, timeout))

    # --- history -------------------------------------------------------------------------------

    async def list_messages(
        self,
        resource_id: str,
        *,
        timeout: float | None = None,
        **options: Unpack[values.ListOptions],
    ) -> AsyncIterator[Message]:
        """A thread's, or a whole resource's, messages; see `RecallClient.list_messages`."""
        request = requests.list_messages_request(resource_id, options)
        left = requests.list_limit(options)
        while True:
            page = await self._call(self._recall.ListMessages, request, timeout)
            for listed in page.messages[:left]:
                yield wire.message(listed)
            left = None if left is None else left - len(page.messages)
            if not page.next_page_token or (left is not None and left <= 0):
                return
            request.page_token = page.next_page_token

    async def get_messages(
        self, resource_id: str, message_ids: Sequence[str], *, timeout: float | None = None
    ) -> tuple[Message, ...]:
        """Messages by id; see `RecallClient.get_messages`."""
        request = requests.get_messages_request(resource_id, message_ids)
        page = await self._call(self._recall.GetMessages, request, timeout)
        return tuple(map(wire.message, page.messages))

    async def list_threads(
        self, resource_id: str, *, timeout: float | None = None
    ) -> AsyncIterator[results.ThreadSummary]:
        """The resource's threads, most recently active first."""
        request = requests.list_threads_request(resource_id)
        while True:
            page = await self._call(self._recall.ListThreads, request, timeout)
            for thread in page.threads:
                yield answers.thread_summary(thread)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def transfer_thread(
        self,
        resource_id: str,
        thread_id: str,
        to_resource_id: str,
        *,
        timeout: float | None = None,
    ) -> int:
        """Give a thread to another resource; see `RecallClient.transfer_thread`."""
        request = requests.transfer_request(resource_id, thread_id, to_resource_id)
        deadline = self._settings.deadline(timeout)
        return (await self._once(self._recall.TransferThread, request, deadline)).messages

    async def embed(
        self,
        texts: Sequence[str],
        *,
        role: EmbedRole | str = EmbedRole.UNSPECIFIED,
        timeout: float | None = None,
    ) -> results.EmbedResult:
        """Unit vectors of 1 to 256 texts, by the server's model."""
        request = requests.embed_request(texts, role)
        return answers.embed_result(await self._call(self._recall.Embed, request, timeout))

    # --- care of the store ---------------------------------------------------------------------

    async def stats(self, resource_id: str = "", *, timeout: float | None = None) -> results.Stats:
        """Counts, sizes and identity; of one resource, or of the whole store."""
        request = requests.stats_request(resource_id)
        return answers.stats(await self._call(self._admin.GetStats, request, timeout))

    async def verify(
        self, resource_id: str = "", *, timeout: float | None = None
    ) -> AsyncIterator[results.Finding | results.VerifySummary]:
        """Compare record, vectors and partitions: what does not agree, then one summary."""
        request = requests.verify_request(resource_id)
        async for item in self._stream(self._admin.Verify, request, timeout):
            yield answers.verify_item(item)

    async def export(
        self, resource_id: str, *, timeout: float | None = None
    ) -> AsyncIterator[Message]:
        """Every message of one resource by time, on one stream."""
        request = requests.export_request(resource_id)
        async for item in self._stream(self._admin.Export, request, timeout):
            yield wire.message(item.message)

    async def create_snapshot(self, *, timeout: float | None = None) -> results.Snapshot:
        """Write snapshots of all that has none or an older one; the next start reads those.

        It is not sent twice. A large store takes longer than the default timeout: what is not
        written by then goes on in the background.

        Returns:
            All snapshots that are on disk then: `bytes` and `messages` are their sums.
        """
        request = admin_pb2.CreateSnapshotRequest()
        deadline = self._settings.deadline(timeout)
        created = await self._once(self._admin.CreateSnapshot, request, deadline)
        return answers.snapshot(created.snapshot)

    async def list_snapshots(self, *, timeout: float | None = None) -> tuple[results.Snapshot, ...]:
        """UNIMPLEMENTED in this version: raises UnimplementedError. `stats` counts snapshots."""
        request = admin_pb2.ListSnapshotsRequest()
        listed = await self._call(self._admin.ListSnapshots, request, timeout)
        return tuple(map(answers.snapshot, listed.snapshots))

    async def reembed(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[results.ReembedProgress]:
        """UNIMPLEMENTED in this version: raises UnimplementedError.

        A server that starts with another model embeds every message anew by itself.
        """
        request = admin_pb2.ReembedRequest()
        async for item in self._stream(self._admin.Reembed, request, timeout):
            yield answers.reembed_progress(item)

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
        batches: _BatchReader | None = None,
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


class _BatchReader:
    """Turns batches into requests; keeps what they raise, since grpc would swallow it."""

    def __init__(self, batches: Iterable[IndexBatch] | AsyncIterable[IndexBatch]) -> None:
        self._batches = batches
        self.failure: Exception | None = None

    async def requests(self) -> AsyncIterator[recall_pb2.IndexRequest]:
        try:
            if isinstance(self._batches, AsyncIterable):
                async for batch in self._batches:
                    yield requests.index_request(batch)
            else:
                for batch in self._batches:
                    yield requests.index_request(batch)
        except Exception as error:
            self.failure = error
            raise
