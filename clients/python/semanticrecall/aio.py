"""The client for asyncio: `AsyncRecallClient`. Each method is that of `RecallClient`, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Unpack

from . import answers, requests, results, values, wire
from .aio_care import AsyncCareCalls
from .connection import warn_rejected
from .errors import FAIL_OPEN_ERRORS
from .session import AsyncRecallSession
from .v1 import recall_pb2
from .values import EmbedRole, IndexBatch, Message


class AsyncRecallClient(AsyncCareCalls):
    """A sidecar's memory, for asyncio. Arguments, answers and errors as `RecallClient`'s.

        async with AsyncRecallClient() as memory:
            await memory.index("user-42", "thread-1", [user("Rex is allergic to chicken")])
            result = await memory.recall("user-42", "What can Rex not eat?")

    Belongs to the event loop of its first call. A task that is cancelled cancels its call.
    """

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
        timeout: float | None = None,
        **options: Unpack[values.IndexOptions],
    ) -> results.IndexResult:
        """Store messages and make them searchable; see `RecallClient.index`."""
        batch = requests.index_batch(resource_id, thread_id, messages, options)
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

    async def forget(
        self,
        resource_id: str,
        *,
        purge: bool = False,
        timeout: float | None = None,
        **conditions: Unpack[values.ForgetConditions],
    ) -> results.ForgetResult:
        """Remove the messages that meet all conditions; see `RecallClient.forget`."""
        request = requests.forget_request(resource_id, conditions, purge)
        return await self._forget(request, timeout)

    async def forget_messages(
        self,
        resource_id: str,
        message_ids: Sequence[str],
        *,
        purge: bool = False,
        timeout: float | None = None,
    ) -> results.ForgetResult:
        """Remove messages from every answer at once; see `RecallClient.forget_messages`."""
        request = requests.forget_messages_request(resource_id, message_ids, purge)
        return await self._forget(request, timeout)

    async def forget_thread(
        self, resource_id: str, thread_id: str, *, purge: bool = False, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove a thread with all its messages."""
        request = requests.forget_thread_request(resource_id, thread_id, purge)
        return await self._forget(request, timeout)

    async def forget_everything(
        self, resource_id: str, *, purge: bool = False, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove all that is known of a resource."""
        return await self._forget(requests.forget_everything_request(resource_id, purge), timeout)

    async def forget_before(
        self,
        resource_id: str,
        before: datetime,
        *,
        purge: bool = False,
        timeout: float | None = None,
    ) -> results.ForgetResult:
        """Remove the messages of a resource that were created before a time."""
        request = requests.forget_before_request(resource_id, before, purge)
        return await self._forget(request, timeout)

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
