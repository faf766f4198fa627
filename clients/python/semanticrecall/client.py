"""The client for threads: `RecallClient`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Protocol, Self, TypeVar, Unpack

import grpc

from . import answers, requests, results, values, wire
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
    warn_rejected,
)
from .errors import (
    FAIL_OPEN_ERRORS,
    UNREACHABLE,
    UnavailableError,
    client_closed,
    error_from_call,
    is_silence,
)
from .session import RecallSession
from .v1 import admin_pb2, recall_pb2
from .v1.admin_pb2_grpc import AdminServiceStub
from .v1.recall_pb2_grpc import RecallServiceStub
from .values import EmbedRole, IndexBatch, JsonValue, Message, Wait

Request = TypeVar("Request")
Response = TypeVar("Response")
Response_co = TypeVar("Response_co", covariant=True)


class _Answers(Protocol[Response_co]):
    """A stream of answers under way."""

    def __iter__(self) -> Iterator[Response_co]: ...

    def cancel(self) -> object: ...


class RecallClient:
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
        wait: Wait | str = Wait.UNSPECIFIED,
        metadata: Mapping[str, JsonValue] | None = None,
        timeout: float | None = None,
    ) -> results.IndexResult:
        """Store messages durably and make them searchable. Idempotent by message id.

        A bad message is rejected by itself (`IndexResult.rejected`, and a warning in the log);
        the others are stored. `raise_for_rejected()` makes that an error.

        Args:
            thread_id: the conversation; may be empty where every message names its own.
            messages: 1 to 1,000, in the order they were said. More: `index_stream`.
            wait: return once they are searchable (default), or once they are on disk.
            metadata: fields for every message of this call; a message's own field wins.
        """
        fields = {} if metadata is None else metadata
        batch = IndexBatch(resource_id, thread_id, messages, wait, fields)
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

    def forget_messages(
        self, resource_id: str, message_ids: Sequence[str], *, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove messages (1 to 10,000 ids) from every answer at once. Unknown ids count zero."""
        return self._forget(requests.forget_messages_request(resource_id, message_ids), timeout)

    def forget_thread(
        self, resource_id: str, thread_id: str, *, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove a thread with all its messages."""
        return self._forget(requests.forget_thread_request(resource_id, thread_id), timeout)

    def forget_everything(
        self, resource_id: str, *, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove all that is known of a resource."""
        return self._forget(requests.forget_everything_request(resource_id), timeout)

    def forget_before(
        self, resource_id: str, before: datetime, *, timeout: float | None = None
    ) -> results.ForgetResult:
        """Remove the messages of a resource that were created before a time."""
        return self._forget(requests.forget_before_request(resource_id, before), timeout)

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

    # --- care of the store ---------------------------------------------------------------------

    def stats(self, resource_id: str = "", *, timeout: float | None = None) -> results.Stats:
        """Counts, sizes and identity; of one resource, or of the whole store."""
        request = requests.stats_request(resource_id)
        return answers.stats(self._call(self._admin.GetStats, request, timeout))

    def verify(
        self, resource_id: str = "", *, timeout: float | None = None
    ) -> Iterator[results.Finding | results.VerifySummary]:
        """Compare record, vectors and partitions: what does not agree, then one summary."""
        request = requests.verify_request(resource_id)
        for item in self._stream(self._admin.Verify, request, timeout):
            yield answers.verify_item(item)

    def export(self, resource_id: str, *, timeout: float | None = None) -> Iterator[Message]:
        """Every message of one resource by time, on one stream."""
        request = requests.export_request(resource_id)
        for item in self._stream(self._admin.Export, request, timeout):
            yield wire.message(item.message)

    def create_snapshot(self, *, timeout: float | None = None) -> results.Snapshot:
        """Write snapshots of all that has none or an older one; the next start reads those.

        It is not sent twice. A large store takes longer than the default timeout: what is not
        written by then goes on in the background.

        Returns:
            All snapshots that are on disk then: `bytes` and `messages` are their sums.
        """
        request = admin_pb2.CreateSnapshotRequest()
        deadline = self._settings.deadline(timeout)
        return answers.snapshot(self._once(self._admin.CreateSnapshot, request, deadline).snapshot)

    def list_snapshots(self, *, timeout: float | None = None) -> tuple[results.Snapshot, ...]:
        """UNIMPLEMENTED in this version: raises UnimplementedError. `stats` counts snapshots."""
        request = admin_pb2.ListSnapshotsRequest()
        listed = self._call(self._admin.ListSnapshots, request, timeout)
        return tuple(map(answers.snapshot, listed.snapshots))

    def reembed(self, *, timeout: float | None = None) -> Iterator[results.ReembedProgress]:
        """UNIMPLEMENTED in this version: raises UnimplementedError.

        A server that starts with another model embeds every message anew by itself.
        """
        for item in self._stream(self._admin.Reembed, admin_pb2.ReembedRequest(), timeout):
            yield answers.reembed_progress(item)

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
        self, call: _Answers[Response], batches: _BatchReader | None = None
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


def _open(settings: Connection) -> grpc.Channel:
    options = channel_options(settings)
    if settings.tls is None:
        return grpc.insecure_channel(settings.target, options)
    return grpc.secure_channel(settings.target, credentials(settings.tls), options)
