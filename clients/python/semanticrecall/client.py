"""The client for threads: `RecallClient`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Unpack

from . import answers, requests, results, values, wire
from .care import CareCalls
from .connection import warn_rejected
from .errors import FAIL_OPEN_ERRORS
from .session import RecallSession
from .v1 import recall_pb2
from .values import EmbedRole, IndexBatch, Message


class RecallClient(CareCalls):
    """A sidecar's memory: index what was said, recall what matters.

        from semanticrecall import RecallClient, user, assistant
        with RecallClient() as memory:
            memory.index("user-42", "thread-1", [user("Rex is allergic to chicken")])
            for m in memory.recall("user-42", "What can Rex not eat?"):
                print(m.score, m.message.text)

    It may be shared between threads, and holds nothing of a conversation: only the connection.
    Every method takes `timeout` in seconds, and raises errors of `semanticrecall.errors`: any of
    them InvalidArgumentError, UnauthenticatedError, ResourceExhaustedError, DeadlineExceededError,
    UnavailableError and InternalError, beside those it names.

    Args:
        address: "HOST:PORT" or "unix:/path/to.sock". Default: SEMANTICRECALL_ADDRESS, else
            "127.0.0.1:7650".
        options: see `ClientOptions`.

    Raises:
        InvalidArgumentError: an argument makes no sense. Nothing is connected until the first
            call.
    """

    # --- the two calls that matter -------------------------------------------------------------

    def recall(
        self,
        resource_id: str,
        query: str = "",
        *,
        timeout: float | None = None,
        **options: Unpack[values.RecallOptions],
    ) -> results.RecallResult:
        """Find the messages that matter to a query, with their neighbours.

        Args:
            resource_id: whose memory.
            query: what to look for. Blank gives an empty answer, never an error.
            options: see `RecallOptions`, e.g. `top_k=8, threshold=0.3`.

        Raises:
            FailedPreconditionError: `query_embedding` does not fit the model, or `read_token` is
                another store's.
        """
        request = requests.recall_request(resource_id, query, options)
        try:
            return answers.recall_result(self._call(self._recall.Recall, request, timeout))
        except FAIL_OPEN_ERRORS as error:
            return self._settings.without_memories(error)

    def recall_stream(self) -> RecallSession:
        """One open stream for many recalls: each is quicker than a single call.

        with memory.recall_stream() as session:
            result = session.recall("user-42", "What can Rex not eat?")
        """
        return RecallSession(self._recall, self._settings, self._reach_soon)

    def index(
        self,
        resource_id: str,
        thread_id: str,
        messages: Sequence[Message],
        *,
        timeout: float | None = None,
        **options: Unpack[values.IndexOptions],
    ) -> results.IndexResult:
        """Store messages durably and make them searchable. Idempotent by message id.

        A bad message is rejected by itself (`IndexResult.rejected`, and a warning in the log);
        the others are stored. `raise_for_rejected()` makes that an error.

        Args:
            thread_id: the conversation; may be empty where every message names its own.
            messages: 1 to 1,000, in the order they were said. More: `index_stream`.
            options: see `IndexOptions`, e.g. `wait="durable"`.
        """
        batch = requests.index_batch(resource_id, thread_id, messages, options)
        request = requests.index_request(batch)
        result = answers.index_result(self._call(self._recall.Index, request, timeout))
        warn_rejected(result)
        return result

    def index_stream(
        self, batches: Iterable[IndexBatch], *, timeout: float | None = None
    ) -> Iterator[results.IndexResult]:
        """Index many batches on one stream, as fast as the sidecar takes them.

        Gives one result a batch, in order. A batch that fails as a whole has its `error` set; the
        stream goes on.

        Args:
            batches: read lazily, by another thread. What it raises is raised here.
            timeout: seconds for the whole stream. Default: an hour.
        """
        self._reach_soon()
        reader = _BatchReader(batches)
        call = self._recall.IndexStream(
            iter(reader),
            timeout=self._settings.stream_timeout(timeout),
            metadata=self._settings.metadata,
        )
        for response in self._answers(call, reader):
            yield answers.index_result(response)

    # --- forgetting ----------------------------------------------------------------------------

    def forget(
        self,
        resource_id: str,
        *,
        purge: bool = False,
        timeout: float | None = None,
        **conditions: Unpack[values.ForgetConditions],
    ) -> results.ForgetResult:
        """Remove the messages that meet all conditions, e.g. what one author wrote in a week.

        Args:
            purge: answer when nothing of it is left in the server's files and snapshots either.
                Give it time. Default: that is done later (`ForgetResult.purge_due_time`).
            conditions: see `ForgetConditions`, e.g. `authors=["Mallory"]`; at least one.

        Raises:
            DeadlineExceededError: the messages may be forgotten already; a purge goes on.
        """
        request = requests.forget_request(resource_id, conditions, purge)
        return self._forget(request, timeout)

    def forget_messages(
        self,
        resource_id: str,
        message_ids: Sequence[str],
        *,
        purge: bool = False,
        timeout: float | None = None,
    ) -> results.ForgetResult:
        """Remove messages (1 to 10,000 ids) from every answer at once. Unknown ids count zero."""
        request = requests.forget_messages_request(resource_id, message_ids, purge)
        return self._forget(request, timeout)

    def forget_thread(
        self, resource_id: str, thread_id: str, *, purge: bool = False, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove a thread with all its messages."""
        return self._forget(requests.forget_thread_request(resource_id, thread_id, purge), timeout)

    def forget_everything(
        self, resource_id: str, *, purge: bool = False, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove all that is known of a resource."""
        return self._forget(requests.forget_everything_request(resource_id, purge), timeout)

    def forget_before(
        self,
        resource_id: str,
        before: datetime,
        *,
        purge: bool = False,
        timeout: float | None = None,
    ) -> results.ForgetResult:
        """Remove the messages of a resource that were created before a time."""
        return self._forget(requests.forget_before_request(resource_id, before, purge), timeout)

    def _forget(
        self, request: recall_pb2.ForgetRequest, timeout: float | None
    ) -> results.ForgetResult:
        return answers.forget_result(self._call(self._recall.Forget, request, timeout))

    # --- history -------------------------------------------------------------------------------

    def list_messages(
        self,
        resource_id: str,
        *,
        timeout: float | None = None,
        **options: Unpack[values.ListOptions],
    ) -> Iterator[Message]:
        """A thread's, or a whole resource's, messages by time; pages are fetched as needed.

        Args:
            options: see `ListOptions`, e.g. `thread_id="t", newest_first=True, limit=20`.
            timeout: seconds a page.
        """
        request = requests.list_messages_request(resource_id, options)
        return islice(self._messages(request, timeout), requests.list_limit(options))

    def _messages(
        self, request: recall_pb2.ListMessagesRequest, timeout: float | None
    ) -> Iterator[Message]:
        while True:
            page = self._call(self._recall.ListMessages, request, timeout)
            yield from map(wire.message, page.messages)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def get_messages(
        self, resource_id: str, message_ids: Sequence[str], *, timeout: float | None = None
    ) -> tuple[Message, ...]:
        """Messages by id (1 to 1,000), in the order asked.

        Raises:
            NotFoundError: one of them is not this resource's.
        """
        request = requests.get_messages_request(resource_id, message_ids)
        page = self._call(self._recall.GetMessages, request, timeout)
        return tuple(map(wire.message, page.messages))

    def list_threads(
        self, resource_id: str, *, timeout: float | None = None
    ) -> Iterator[results.ThreadSummary]:
        """The resource's threads, most recently active first; pages are fetched as needed."""
        request = requests.list_threads_request(resource_id)
        while True:
            page = self._call(self._recall.ListThreads, request, timeout)
            yield from map(answers.thread_summary, page.threads)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def transfer_thread(
        self,
        resource_id: str,
        thread_id: str,
        to_resource_id: str,
        *,
        timeout: float | None = None,
    ) -> int:
        """Give a thread with all its messages to another resource; how many went.

        Raises:
            NotFoundError: this resource has no such thread. Also after a call that was lost on
                its way back: it is never sent twice by itself.
            AlreadyExistsError: the other resource holds a thread or a message of the same id.
        """
        request = requests.transfer_request(resource_id, thread_id, to_resource_id)
        deadline = self._settings.deadline(timeout)
        return int(self._once(self._recall.TransferThread, request, deadline).messages)

    def embed(
        self,
        texts: Sequence[str],
        *,
        role: EmbedRole | str = EmbedRole.UNSPECIFIED,
        timeout: float | None = None,
    ) -> results.EmbedResult:
        """Unit vectors of 1 to 256 texts, by the server's model."""
        request = requests.embed_request(texts, role)
        return answers.embed_result(self._call(self._recall.Embed, request, timeout))


class _BatchReader:
    """Turns batches into requests; keeps what they raise, since grpc would swallow it."""

    def __init__(self, batches: Iterable[IndexBatch]) -> None:
        self._batches = batches
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[recall_pb2.IndexRequest]:
        try:
            yield from map(requests.index_request, self._batches)
        except Exception as error:
            self.failure = error
            raise
