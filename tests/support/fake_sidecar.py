"""A sidecar made of a dictionary, for tests of the client: every answer follows from the request.

A message matches a query with the share of the query's words that it holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from google.protobuf import message as protobuf_message

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall.v1.admin_pb2_grpc import (
    AdminServiceServicer,
    add_AdminServiceServicer_to_server,
)
from semanticrecall.v1.recall_pb2_grpc import (
    RecallServiceServicer,
    add_RecallServiceServicer_to_server,
)

PAGE_SIZE = 3
# 2024-05-01T00:00:00Z.
PURGE_DUE_SECONDS = 1_714_521_600
SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"


@dataclass
class Failure:
    """What the next call ends with. Without a detail it looks like the transport's failure."""

    code: grpc.StatusCode
    detail: types_pb2.ErrorDetail | None = None


@dataclass
class Seen:
    """One call as it arrived."""

    method: str
    request: protobuf_message.Message
    metadata: dict[str, str | bytes]
    seconds_left: float


@dataclass
class Shelf:
    """What the fake remembers, and what it was asked."""

    messages: dict[tuple[str, str], types_pb2.Message] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    pending: dict[str, int] = field(default_factory=dict)
    batch_errors: list[types_pb2.ErrorDetail] = field(default_factory=list)
    health: bytes = SERVING
    vectors: dict[tuple[str, str], types_pb2.MessageVectors] = field(default_factory=dict)
    snapshots: dict[str, dict[tuple[str, str], types_pb2.Message]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    mendable: bool = True
    hold: threading.Event | None = None
    entered: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def arrive(
        self, method: str, request: protobuf_message.Message, context: grpc.ServicerContext
    ) -> None:
        """Note the call, then fail or wait as the test wants it."""
        metadata = {entry.key: entry.value for entry in context.invocation_metadata()}
        self.seen.append(Seen(method, request, metadata, context.time_remaining()))
        context.add_callback(self.cancelled.set)
        self.entered.set()
        if self.failures:
            failure = self.failures.pop(0)
            if failure.detail is not None:
                trailer = ("semanticrecall-error-bin", failure.detail.SerializeToString())
                context.set_trailing_metadata((trailer,))
            context.abort(failure.code, failure.detail.message if failure.detail else "")
        if self.hold is not None:
            self.hold.wait(timeout=20)

    def of_resource(self, resource_id: str, thread_id: str = "") -> list[types_pb2.Message]:
        """A resource's (or a thread's) messages in the order they were first given."""
        return [
            message
            for (owner, _), message in self.messages.items()
            if owner == resource_id and thread_id in ("", message.thread_id)
        ]

    def put(self, request: recall_pb2.IndexRequest) -> recall_pb2.IndexResponse:
        """Store a request's messages; one without an id is rejected by itself."""
        response = recall_pb2.IndexResponse(read_token=f"token-{len(self.messages)}")
        for position, given in enumerate(request.messages):
            if not given.id:
                error = invalid(f"messages[{position}].id", "must not be empty")
                response.results.add(status=types_pb2.STATUS_REJECTED, error=error)
                continue
            stored = types_pb2.Message()
            stored.CopyFrom(given)
            stored.resource_id = request.resource_id
            stored.thread_id = given.thread_id or request.thread_id
            key = (request.resource_id, given.id)
            old = self.messages.get(key)
            status = types_pb2.STATUS_INDEXED if old is None else types_pb2.STATUS_REPLACED
            if old == stored:
                status = types_pb2.STATUS_UNCHANGED
            self.messages[key] = stored
            response.results.add(message_id=given.id, status=status)
        for vectors in request.vectors:
            self.vectors[(request.resource_id, vectors.message_id)] = vectors
        response.info.embeddings_computed = len(request.messages)
        return response

    def meant(self, request: recall_pb2.ForgetRequest) -> list[tuple[str, str]]:
        """Keys of the messages that a Forget names."""
        return [
            (owner, message_id)
            for (owner, message_id), message in self.messages.items()
            if owner == request.resource_id and is_meant(request, message)
        ]


def is_meant(request: recall_pb2.ForgetRequest, message: types_pb2.Message) -> bool:
    """Whether a Forget names a message of its resource."""
    target = request.WhichOneof("target")
    if target == "message_ids":
        return message.id in request.message_ids.ids
    if target == "thread_id":
        return message.thread_id == request.thread_id
    if target == "create_time_before":
        before = request.create_time_before.ToNanoseconds()
        return message.create_time.ToNanoseconds() < before
    if target == "condition":
        authors = request.condition.authors
        by_author = not authors or message.author in authors
        return by_author and is_listed(request.condition, message)
    return target == "everything"


def is_listed(
    asked: recall_pb2.ForgetCondition | recall_pb2.ListMessagesRequest, message: types_pb2.Message
) -> bool:
    """Whether thread, roles and times allow a message."""
    at = message.create_time.ToNanoseconds()
    start, end = asked.create_time_from, asked.create_time_to
    return (
        asked.thread_id in ("", message.thread_id)
        and (not asked.roles or message.role in asked.roles)
        and (not asked.HasField("create_time_from") or at >= start.ToNanoseconds())
        and (not asked.HasField("create_time_to") or at < end.ToNanoseconds())
    )


def invalid(field: str, description: str) -> types_pb2.ErrorDetail:
    """An INVALID_ARGUMENT that names one field."""
    return types_pb2.ErrorDetail(
        code=3,
        message=f"{field}: {description}",
        reason="FIELD_INVALID",
        field_violations=[types_pb2.FieldViolation(field=field, description=description)],
    )


def words(text: str) -> set[str]:
    """The words of a text, without case and punctuation."""
    return {word.strip(".,!?").lower() for word in text.split()}


def answer(shelf: Shelf, request: recall_pb2.RecallRequest) -> recall_pb2.RecallResponse:
    """The best messages first, each with its share of the query's words."""
    asked = words(request.query)
    thread_id = request.thread_id if request.scope == types_pb2.SCOPE_THREAD else ""
    scored = [
        (len(asked & words(message.text)) / len(asked), message)
        for message in shelf.of_resource(request.resource_id, thread_id)
        if asked
    ]
    ranked = sorted((s for s in scored if s[0] > 0), key=lambda s: -s[0])
    found, behind = ranked[: request.top_k or 4], ranked[request.top_k or 4 :]
    response = recall_pb2.RecallResponse(request_id=request.request_id)
    for rank, (score, message) in enumerate(found, 1):
        explain = explained(score, rank) if request.explain else None
        response.messages.add(
            message=message, hit=True, score=score, rank=rank, relevance=2 * score, explain=explain
        )
    for rank, (score, message) in enumerate(behind if request.explain else (), len(found) + 1):
        response.excluded.add(
            message_id=message.id,
            thread_id=message.thread_id,
            reason=recall_pb2.EXCLUDED_REASON_NEAR_DUPLICATE,
            rank=rank,
            relevance=2 * score,
            explain=explained(score, rank),
            near_duplicate_of=found[0][1].id,
        )
    if not found:
        response.info.why_empty = recall_pb2.WHY_EMPTY_NO_QUERY
    response.info.timings.total_us = 1500
    return response


def explained(score: float, rank: int) -> recall_pb2.Explain:
    """Numbers that all differ, so that one in the place of another is seen."""
    return recall_pb2.Explain(
        cosine=score,
        dense_rank=rank,
        chunk=20,
        chunks=21,
        bm25=2.5,
        bm25_in_context=3.5,
        lexical_rank=22,
        dense_part=0.125,
        lexical_part=0.25,
        neighbour_part=0.5,
        author_part=0.625,
        recency_part=0.75,
        diversity_part=-0.875,
    )


class FakeRecall(RecallServiceServicer):
    """RecallService over a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def Recall(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("Recall", request, context)
        return answer(self._shelf, request)

    def RecallStream(self, request_iterator, context):  # type: ignore[no-untyped-def]
        for request in request_iterator:
            self._shelf.arrive("RecallStream", request, context)
            if not request.resource_id:
                yield recall_pb2.RecallResponse(
                    request_id=request.request_id,
                    error=invalid("resource_id", "must not be empty"),
                )
                continue
            yield answer(self._shelf, request)

    def Index(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("Index", request, context)
        return self._shelf.put(request)

    def IndexStream(self, request_iterator, context):  # type: ignore[no-untyped-def]
        for request in request_iterator:
            self._shelf.arrive("IndexStream", request, context)
            if not request.resource_id:
                yield recall_pb2.IndexResponse(error=invalid("resource_id", "must not be empty"))
                continue
            if self._shelf.batch_errors:
                yield recall_pb2.IndexResponse(error=self._shelf.batch_errors.pop(0))
                continue
            yield self._shelf.put(request)

    def Forget(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("Forget", request, context)
        gone = self._shelf.meant(request)
        for key in gone:
            del self._shelf.messages[key]
        response = recall_pb2.ForgetResponse(
            messages=len(gone),
            vectors=len(gone),
            purged=request.purge and not self._shelf.left_out,
            snapshots_holding=self._shelf.left_out,
        )
        if not request.purge:
            response.purge_due_time.FromSeconds(PURGE_DUE_SECONDS)
            response.snapshots_holding.extend(self._shelf.snapshots)
        return response

    def ListMessages(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("ListMessages", request, context)
        owned = self._shelf.of_resource(request.resource_id)
        listed = [message for message in owned if is_listed(request, message)]
        if request.newest_first:
            listed.reverse()
        start = int(request.page_token or 0)
        end = start + min(PAGE_SIZE, request.page_size)
        return recall_pb2.ListMessagesResponse(
            messages=listed[start:end], next_page_token=str(end) if end < len(listed) else ""
        )

    def GetMessages(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("GetMessages", request, context)
        keys = [(request.resource_id, message_id) for message_id in request.message_ids]
        if not all(key in self._shelf.messages for key in keys):
            self._shelf.failures.append(not_found())
            self._shelf.arrive("GetMessages", request, context)
        return recall_pb2.GetMessagesResponse(messages=[self._shelf.messages[k] for k in keys])

    def ListThreads(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("ListThreads", request, context)
        counts: dict[str, int] = {}
        for message in self._shelf.of_resource(request.resource_id):
            counts[message.thread_id] = counts.get(message.thread_id, 0) + 1
        threads = [recall_pb2.Thread(thread_id=t, messages=n) for t, n in counts.items()]
        start = int(request.page_token or 0)
        end = start + PAGE_SIZE
        return recall_pb2.ListThreadsResponse(
            threads=threads[start:end], next_page_token=str(end) if end < len(threads) else ""
        )

    def TransferThread(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("TransferThread", request, context)
        moved = self._shelf.of_resource(request.resource_id, request.thread_id)
        for message in moved:
            del self._shelf.messages[(request.resource_id, message.id)]
            message.resource_id = request.to_resource_id
            self._shelf.messages[(request.to_resource_id, message.id)] = message
        return recall_pb2.TransferThreadResponse(messages=len(moved))

    def Embed(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("Embed", request, context)
        return recall_pb2.EmbedResponse(
            embeddings=[
                recall_pb2.Embedding(values=(1.0, 0.0), tokens=len(text.split()) + 2)
                for text in request.texts
            ],
            dimensions=2,
            index_identity="fake@1/2",
        )


class FakeAdmin(AdminServiceServicer):
    """AdminService over a shelf; its numbers all differ, so that a swap of two is seen."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def GetStats(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("GetStats", request, context)
        count = sum(request.resource_id in ("", owner) for owner, _ in self._shelf.messages)
        return admin_pb2.GetStatsResponse(
            messages=count,
            vectors=count,
            pending=self._shelf.pending.get(request.resource_id, 0),
            device="cpu",
            cache=admin_pb2.CacheStats(hits=5, misses=2),
            index_identity="fake@1/2",
            next_index_identity="next@1/3",
            next_embedded=31,
            expired=32,
            purge_pending=True,
            damaged=33,
            encrypted=True,
        )

    def Verify(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("Verify", request, context)
        yield admin_pb2.VerifyResponse(
            progress=admin_pb2.VerifyProgress(stage="messages", done=1, total=2)
        )
        broken = [m for m in self._shelf.messages.values() if m.text == "broken"]
        lost = [m for m in self._shelf.messages.values() if m.text == "lost" and request.repair]
        mended = request.repair and self._shelf.mendable
        for message in broken:
            yield admin_pb2.VerifyResponse(
                finding=admin_pb2.Finding(
                    kind="VECTOR_MISSING",
                    resource_id=message.resource_id,
                    message_id=message.id,
                    detail="no vector",
                    repaired=mended,
                )
            )
        for message in lost:
            found = admin_pb2.Finding(
                kind="MESSAGE_LOST", resource_id=message.resource_id, detail="row 7"
            )
            yield admin_pb2.VerifyResponse(finding=found)
        yield admin_pb2.VerifyResponse(
            summary=admin_pb2.VerifySummary(
                messages=len(self._shelf.messages),
                findings=len(broken) + len(lost),
                repaired=len(broken) if mended else 0,
                analyses=41,
                images=42,
                snapshots=len(self._shelf.snapshots),
                self_test_recalls=5 if request.repair else 0,
                self_test_failures=1 if request.repair and not mended else 0,
                lost=len(lost),
            )
        )

    def Export(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("Export", request, context)
        for message in self._shelf.of_resource(request.resource_id):
            vectors = self._shelf.vectors.get((request.resource_id, message.id))
            yield admin_pb2.ExportResponse(
                message=message, vectors=vectors if request.with_vectors else None
            )

    def CreateSnapshot(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("CreateSnapshot", request, context)
        if request.partitions_only:
            images = admin_pb2.Snapshot(bytes=2048, vectors=7)
            return admin_pb2.CreateSnapshotResponse(snapshot=images)
        name = f"saved-{len(self._shelf.snapshots)}"
        self._shelf.snapshots[name] = dict(self._shelf.messages)
        return admin_pb2.CreateSnapshotResponse(snapshot=self._described(name))

    def _described(self, name: str) -> admin_pb2.Snapshot:
        kept = self._shelf.snapshots[name]
        made = admin_pb2.Snapshot(
            name=name,
            bytes=3072,
            messages=len(kept),
            vectors=51,
            revision=52,
            digest="ab",
            index_identity="fake@1/2",
            server_version="0.0.1",
            format=4,
            encrypted=True,
            forgotten=len(kept.keys() - self._shelf.messages.keys()),
        )
        made.create_time.FromSeconds(PURGE_DUE_SECONDS)
        return made

    def ListSnapshots(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("ListSnapshots", request, context)
        names = sorted(self._shelf.snapshots, reverse=True)
        return admin_pb2.ListSnapshotsResponse(
            snapshots=map(self._described, names), left_out=self._shelf.left_out
        )

    def DeleteSnapshot(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("DeleteSnapshot", request, context)
        self._known(request, context)
        del self._shelf.snapshots[request.name]
        return admin_pb2.DeleteSnapshotResponse()

    def _known(self, request, context) -> None:  # type: ignore[no-untyped-def]
        if request.name not in self._shelf.snapshots:
            self._shelf.failures.append(not_found())
            self._shelf.arrive("(unknown)", request, context)

    def RestoreSnapshot(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("RestoreSnapshot", request, context)
        self._known(request, context)
        self._shelf.messages = dict(self._shelf.snapshots[request.name])
        count = len(self._shelf.messages)
        return admin_pb2.RestoreSnapshotResponse(
            messages=count, vectors=61, forgotten=62, without_ledger=bool(self._shelf.left_out)
        )

    def Purge(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("Purge", request, context)
        return admin_pb2.PurgeResponse(
            revision=71,
            snapshots_rewritten=self._shelf.snapshots,
            snapshots_holding=self._shelf.left_out,
        )

    def Reembed(self, request, context):  # type: ignore[no-untyped-def]
        self._shelf.arrive("Reembed", request, context)
        total = len(self._shelf.messages)
        for done in range(total + 1):
            yield admin_pb2.ReembedResponse(
                done=done,
                total=total,
                from_index_identity="fake@1/2",
                to_index_identity="next@1/3",
                complete=done == total and self._shelf.mendable,
            )


def not_found() -> Failure:
    """The failure of something that is not there."""
    detail = types_pb2.ErrorDetail(code=5, message="no such message", reason="NOT_FOUND")
    return Failure(grpc.StatusCode.NOT_FOUND, detail)


def _health(shelf: Shelf) -> grpc.GenericRpcHandler:
    check = grpc.unary_unary_rpc_method_handler(lambda request, context: shelf.health)
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})


@contextmanager
def fake_sidecar(address: str, shelf: Shelf) -> Iterator[str]:
    """Serve a shelf; gives the address with its port."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    add_RecallServiceServicer_to_server(FakeRecall(shelf), server)
    add_AdminServiceServicer_to_server(FakeAdmin(shelf), server)
    server.add_generic_rpc_handlers((_health(shelf),))
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield address if address.startswith("unix:") else f"127.0.0.1:{port}"
    finally:
        if shelf.hold is not None:
            shelf.hold.set()
        server.stop(grace=0).wait()
