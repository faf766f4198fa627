"""gRPC methods: bytes in, bytes out, one hop to a lane's thread and back.

Requests are decoded and answers encoded on the lane's thread, so that nothing large is ever
handled on the event loop; small recalls alone are decoded on it, once, to know whether they were
asked before. This module is the one place where exceptions become gRPC errors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from semanticrecall.v1 import admin_pb2, recall_pb2, vectors_pb2
from semanticrecall_core.types.errors import ResourceExhaustedError, SemanticRecallError
from semanticrecall_core.types.values import CallBudget

from .answer_cache import request_key
from .answers import Clock
from .errors import AnswerTooLargeError, abort, known_error, status_code
from .fair_queue import NOBODY, resource_of
from .forgetting_calls import takes_long
from .gate import Gate, Kind, Services, Unread
from .lanes import Lane, LaneJob, Tell
from .logs import Logger
from .observability import Metrics
from .service import Call, Later, is_query_embedding
from .wire import decode

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

SMALL_REQUEST_BYTES = 16 * 1024
"""Requests up to this size may be decoded on the event loop, before they have a lane."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Where work is done.

    Attributes:
        recall: recalls and other short reads; as many threads as cores.
        index: writes, which wait for the disk.
        admin: long work that nobody waits for at a prompt, at low priority.
        collections: reads of vector collections, which may read a whole one from the disk first.
    """

    recall: Lane
    index: Lane
    admin: Lane
    collections: Lane

    def all(self) -> tuple[Lane, ...]:
        """Every lane."""
        return self.recall, self.index, self.admin, self.collections


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long calls may take, in seconds."""

    default_s: float
    max_s: float
    export_max_s: float


@dataclass(frozen=True, slots=True)
class Runtime:
    """What all endpoints share.

    Attributes:
        answer_bytes_max: no unary answer is longer, whatever is in it; clients refuse longer ones
            with an error that says less.
        stream_idle_s: how long a stream stays open on which nothing moves, in seconds.
        unread: room for answers that streams cannot write, because their clients do not read.
    """

    gate: Gate
    lanes: Lanes
    deadlines: Deadlines
    answer_bytes_max: int
    stream_idle_s: float
    unread: Unread
    metrics: Metrics
    log: Logger


class Caller:
    """Whether the caller is still there; asked from worker threads."""

    __slots__ = ("_gone",)

    def __init__(self) -> None:
        self._gone = False

    def left(self) -> None:
        """It cancelled, its deadline passed, or its connection is gone."""
        self._gone = True

    def gone(self) -> bool:
        """True after `left`."""
        return self._gone


def budget_for(remaining_s: float | None, caller: Caller, deadlines: Deadlines) -> CallBudget:
    """The budget of a call that has so many seconds left (None: it brought no deadline)."""
    seconds = deadlines.default_s if remaining_s is None else remaining_s
    return CallBudget(time.monotonic() + min(seconds, deadlines.max_s), caller.gone)


def whose(kind: type[Message]) -> Callable[[bytes], bytes]:
    """Tells the resource whose turn an encoded request of this kind waits for."""
    resource_id = cast(Descriptor, kind.DESCRIPTOR).fields_by_name.get("resource_id")
    if resource_id is None:
        return lambda raw: NOBODY
    return partial(resource_of, number=resource_id.number)


Handler = Callable[[Services, Any, Call], Message | bytes | Later]


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """One request, one answer."""

    name: str
    request: type[Message]
    handler: Handler
    lane: Callable[[Lanes, bytes], Lane]
    resource: Callable[[bytes], bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Look the resource's field up once."""
        object.__setattr__(self, "resource", whose(self.request))


def _embed_lane(lanes: Lanes, raw: bytes) -> Lane:
    if len(raw) > SMALL_REQUEST_BYTES:
        return lanes.admin
    try:
        is_query = is_query_embedding(recall_pb2.EmbedRequest.FromString(raw))
    except DecodeError:
        return lanes.admin
    return lanes.recall if is_query else lanes.admin


def _reads(lanes: Lanes, raw: bytes) -> Lane:
    del raw
    return lanes.recall


def _reads_collections(lanes: Lanes, raw: bytes) -> Lane:
    del raw
    return lanes.collections


def _writes(lanes: Lanes, raw: bytes) -> Lane:
    del raw
    return lanes.index


def _forgets(lanes: Lanes, raw: bytes) -> Lane:
    is_long = len(raw) <= SMALL_REQUEST_BYTES and takes_long(raw)
    return lanes.admin if is_long else lanes.index


def _admin(lanes: Lanes, raw: bytes) -> Lane:
    del raw
    return lanes.admin


RECALL = UnaryMethod(
    "Recall", recall_pb2.RecallRequest, lambda s, r, c: s.recall.recall(r, c), _reads
)
INDEX = UnaryMethod("Index", recall_pb2.IndexRequest, lambda s, r, c: s.recall.index(r, c), _writes)

RECALL_UNARY = (
    RECALL,
    INDEX,
    UnaryMethod(
        "Forget", recall_pb2.ForgetRequest, lambda s, r, c: s.recall.forget(r, c), _forgets
    ),
    UnaryMethod(
        "ListMessages",
        recall_pb2.ListMessagesRequest,
        lambda s, r, c: s.recall.list_messages(r, c),
        _reads,
    ),
    UnaryMethod(
        "GetMessages",
        recall_pb2.GetMessagesRequest,
        lambda s, r, c: s.recall.get_messages(r, c),
        _reads,
    ),
    UnaryMethod(
        "ListThreads",
        recall_pb2.ListThreadsRequest,
        lambda s, r, c: s.recall.list_threads(r, c),
        _reads,
    ),
    UnaryMethod(
        "TransferThread",
        recall_pb2.TransferThreadRequest,
        lambda s, r, c: s.recall.transfer_thread(r, c),
        _writes,
    ),
    UnaryMethod(
        "Embed", recall_pb2.EmbedRequest, lambda s, r, c: s.recall.embed(r, c), _embed_lane
    ),
)
ADMIN_UNARY = (
    UnaryMethod(
        "GetStats", admin_pb2.GetStatsRequest, lambda s, r, c: s.admin.get_stats(r, c), _admin
    ),
    UnaryMethod(
        "CreateSnapshot",
        admin_pb2.CreateSnapshotRequest,
        lambda s, r, c: s.admin.saving.create(r, c),
        _admin,
    ),
    UnaryMethod(
        "ListSnapshots",
        admin_pb2.ListSnapshotsRequest,
        lambda s, r, c: s.admin.saving.list(r, c),
        _admin,
    ),
    UnaryMethod(
        "DeleteSnapshot",
        admin_pb2.DeleteSnapshotRequest,
        lambda s, r, c: s.admin.saving.delete(r, c),
        _admin,
    ),
    UnaryMethod(
        "RestoreSnapshot",
        admin_pb2.RestoreSnapshotRequest,
        lambda s, r, c: s.admin.saving.restore(r, c),
        _admin,
    ),
    UnaryMethod(
        "Purge", admin_pb2.PurgeRequest, lambda s, r, c: s.admin.purging.purge(r, c), _admin
    ),
)
VECTOR_UNARY = (
    UnaryMethod(
        "CreateCollection",
        vectors_pb2.CreateCollectionRequest,
        lambda s, r, c: s.vectors.create_collection(r, c),
        _writes,
    ),
    UnaryMethod(
        "ListCollections",
        vectors_pb2.ListCollectionsRequest,
        lambda s, r, c: s.vectors.list_collections(r, c),
        _reads_collections,
    ),
    UnaryMethod(
        "DescribeCollection",
        vectors_pb2.DescribeCollectionRequest,
        lambda s, r, c: s.vectors.describe_collection(r, c),
        _reads_collections,
    ),
    UnaryMethod(
        "DeleteCollection",
        vectors_pb2.DeleteCollectionRequest,
        lambda s, r, c: s.vectors.delete_collection(r, c),
        _writes,
    ),
    UnaryMethod(
        "UpsertVectors",
        vectors_pb2.UpsertVectorsRequest,
        lambda s, r, c: s.vectors.upsert(r, c),
        _writes,
    ),
    UnaryMethod(
        "QueryVectors",
        vectors_pb2.QueryVectorsRequest,
        lambda s, r, c: s.vectors.query(r, c),
        _reads_collections,
    ),
    UnaryMethod(
        "UpdateVectors",
        vectors_pb2.UpdateVectorsRequest,
        lambda s, r, c: s.vectors.update(r, c),
        _writes,
    ),
    UnaryMethod(
        "DeleteVectors",
        vectors_pb2.DeleteVectorsRequest,
        lambda s, r, c: s.vectors.delete(r, c),
        _writes,
    ),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came, and what of a recall is known on the event loop.

    Attributes:
        message: the recall, where it is small and sound.
        key: identity of what is asked (`request_key`), where that is known.
    """

    raw: bytes
    message: recall_pb2.RecallRequest | None = None
    key: bytes = b""


def asked_early(raw: bytes) -> Asked:
    """A recall, read at once where that is quick. Whoever works on it has no need to read it."""
    if len(raw) <= SMALL_REQUEST_BYTES:
        with suppress(DecodeError):
            request = recall_pb2.RecallRequest.FromString(raw)
            return Asked(raw, request, request_key(request))
    return Asked(raw)


async def read_on_lane(
    runtime: Runtime, raw: bytes, budget: CallBudget
) -> recall_pb2.RecallRequest:
    """A recall that must be known before it is run, and takes a thread to be read.

    Raises:
        InvalidArgumentError: it is no such message.
    """
    return await runtime.lanes.recall.run(
        lambda: decode(raw, recall_pb2.RecallRequest),
        budget,
        len(raw),
        resource=RECALL.resource(raw),
    )


def recalled_again(services: Services, asked: Asked) -> bytes | None:
    """A recall's answer without a thread, where it was found before and is the same now."""
    if asked.message is None:
        return None
    return services.recall.recall_again(asked.message, asked.key)


class UnaryCall:
    """One request on its lane. While it waits for embeddings it holds no thread."""

    __slots__ = (
        "_arrived",
        "_asked",
        "_budget",
        "_lane",
        "_method",
        "_resource",
        "_runtime",
        "_services",
    )

    def __init__(
        self,
        runtime: Runtime,
        method: UnaryMethod,
        services: Services,
        asked: Asked,
        budget: CallBudget,
    ) -> None:
        self._arrived = time.monotonic()
        self._runtime = runtime
        self._method = method
        self._services = services
        self._asked = asked
        self._budget = budget
        self._lane = method.lane(runtime.lanes, asked.raw)
        self._resource = method.resource(asked.raw)

    async def run(self) -> bytes:
        """The answer.

        Raises:
            Exception: whatever went wrong, not yet translated.
        """
        begun = await self._lane.run(
            self._work, self._budget, len(self._asked.raw), resource=self._resource
        )
        return begun if isinstance(begun, bytes) else await self.finish(begun)

    def begin(self, tell: Tell[bytes | Later]) -> LaneJob[bytes | Later]:
        """Begin without waiting: `tell` hears of the answer, or of what `finish` ends."""
        return self._lane.begin(
            self._work, self._budget, len(self._asked.raw), tell, resource=self._resource
        )

    async def finish(self, begun: Later) -> bytes:
        """The answer of a call that has to wait."""
        size = len(self._asked.raw)
        if begun.is_optional:
            # Where too many wait already: the work is done, and the answer says what is not.
            with suppress(ResourceExhaustedError):
                await self._lane.wait(begun.ready, begun.patience(), size, self._resource)
            return encoded(self._runtime, begun.finish())
        await self._lane.wait(begun.ready, begun.patience(), size, self._resource)

        def rest() -> bytes:
            self._budget.check()
            return encoded(self._runtime, begun.finish())

        return await self._lane.run(
            rest, self._budget, size, resource=self._resource, is_admitted=True
        )

    def _work(self) -> bytes | Later:
        """On a thread of the lane."""
        asked, budget = self._asked, self._budget
        budget.check()
        call = Call(budget, Clock(self._arrived, time.monotonic()), asked.key)
        request = (
            decode(asked.raw, self._method.request) if asked.message is None else asked.message
        )
        answer = self._method.handler(self._services, request, call)
        return answer if isinstance(answer, Later) else encoded(self._runtime, answer)


def encoded(runtime: Runtime, answer: Message | bytes) -> bytes:
    """An answer as bytes.

    Raises:
        AnswerTooLargeError: clients would refuse it.
    """
    raw = answer if isinstance(answer, bytes) else answer.SerializeToString()
    if len(raw) > runtime.answer_bytes_max:
        raise AnswerTooLargeError(
            f"the answer would be larger than {runtime.answer_bytes_max} bytes; ask for less"
        )
    return raw


def unary_endpoint(runtime: Runtime, method: UnaryMethod) -> grpc.RpcMethodHandler[Any, Any]:
    """The gRPC handler of a method."""

    async def handle(raw: bytes, context: Context) -> bytes:
        caller = Caller()

        async def answer() -> bytes:
            with runtime.gate.enter(Kind.CALL) as services:
                asked = asked_early(raw) if method is RECALL else Asked(raw)
                if (known := recalled_again(services, asked)) is not None:
                    return known
                budget = budget_for(context.time_remaining(), caller, runtime.deadlines)
                return await UnaryCall(runtime, method, services, asked, budget).run()

        return await guarded(runtime, method.name, context, caller, answer)

    return grpc.unary_unary_rpc_method_handler(handle)


async def guarded(
    runtime: Runtime,
    name: str,
    context: Context,
    caller: Caller,
    work: Callable[[], Awaitable[T]],
) -> T:
    """Run a call's work; whatever it raises becomes a gRPC error of the table."""
    started = time.monotonic()

    def ended(code: grpc.StatusCode) -> None:
        # Before the client is told, which may look at the metrics next.
        runtime.metrics.called(name, code.name, time.monotonic() - started)

    try:
        answer = await work()
    except asyncio.CancelledError:
        caller.left()
        ended(grpc.StatusCode.CANCELLED)
        raise
    except Exception as raised:
        caller.left()
        error = known_error(raised, runtime.log)
        error = await runtime.gate.held_back.hold(error, context.time_remaining())
        ended(status_code(error))
        with runtime.gate.leaving():
            await abort(context, error)
        raise AssertionError("unreachable: abort always raises") from None
    ended(grpc.StatusCode.OK)
    return answer


def failure_of(runtime: Runtime, name: str, raised: BaseException) -> SemanticRecallError:
    """The error of one request inside a stream, counted like a call's."""
    error = known_error(raised, runtime.log)
    runtime.metrics.called_in_stream(name, status_code(error).name)
    return error
