"""What a caller does to a resource, as `growth_curve` times it: one request, and what is untimed.

Operations on one resource must come in the order in which they stand here: a thread is imported
before it is forgotten, and recalls see the resource as it was built.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks import corpus, wire_requests
from benchmarks.raw_client import Client
from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2

PAGE_MESSAGES = 40
THREAD_MESSAGES = 40  # of the synthetic chat

Untimed = Callable[[Client, int], Awaitable[None]]
AfterAnswer = Callable[[Client, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kind of call; the n-th of them is the same in every store.

    Attributes:
        method: full gRPC name.
        request: of the n-th call.
        ids: what the answer says, for comparison: the same from every store.
        before, after: what is done around the call, untimed.
    """

    name: str
    method: str
    request: Callable[[int], bytes]
    ids: Callable[[bytes], list[str]]
    before: Untimed | None = None
    after: AfterAnswer | None = None


def recall(name: str, resource_id: str, queries: Sequence[str]) -> Operation:
    """The n-th query."""

    def request(number: int) -> bytes:
        return wire_requests.recall(resource_id, queries[number]).SerializeToString()

    def ids(answer: bytes) -> list[str]:
        return wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(answer))

    return Operation(name=name, method=wire_requests.RECALL, request=request, ids=ids)


def list_messages(name: str, resource_id: str, messages: int) -> Operation:
    """A page of a thread, threads in turn."""
    threads = -(-messages // THREAD_MESSAGES)

    def request(number: int) -> bytes:
        return recall_pb2.ListMessagesRequest(
            resource_id=resource_id,
            thread_id=f"thread-{number % threads}",
            page_size=PAGE_MESSAGES,
            newest_first=True,
        ).SerializeToString()

    def ids(answer: bytes) -> list[str]:
        messages = recall_pb2.ListMessagesResponse.FromString(answer).messages
        if not messages:
            raise RuntimeError("a thread is empty")
        return [message.id for message in messages]

    return Operation(name=name, method=wire_requests.LIST_MESSAGES, request=request, ids=ids)


def get_stats(name: str, resource_id: str) -> Operation:
    """Of a resource, or of the whole store ("")."""
    request = admin_pb2.GetStatsRequest(resource_id=resource_id).SerializeToString()

    def ids(answer: bytes) -> list[str]:
        counted = admin_pb2.GetStatsResponse.FromString(answer).messages
        return [str(counted)] if resource_id else []

    return Operation(
        name=name, method=wire_requests.GET_STATS, request=lambda number: request, ids=ids
    )


def searchable_turn(name: str, resource_id: str, texts: Sequence[str]) -> Operation:
    """A turn of two messages, answered when a recall finds it."""
    return Operation(
        name=name,
        method=wire_requests.INDEX,
        request=lambda number: wire_requests.turn(
            resource_id, number, texts[number], types_pb2.WAIT_SEARCHABLE
        ).SerializeToString(),
        ids=lambda answer: _indexed(answer, types_pb2.STATUS_INDEXED),
    )


def durable_turn(name: str, resource_id: str, texts: Sequence[str], first: int) -> Operation:
    """A turn of two messages, answered when it is on disk; numbered from `first`.

    Its embeddings are waited for, untimed, so that they are not made during the next one.
    """

    async def after(client: Client, answer: bytes) -> None:
        request = wire_requests.recall(resource_id, "anything")
        request.read_token = recall_pb2.IndexResponse.FromString(answer).read_token
        await client.unary(wire_requests.RECALL, request.SerializeToString())

    return Operation(
        name=name,
        method=wire_requests.INDEX,
        request=lambda number: wire_requests.turn(
            resource_id, first + number, texts[number], types_pb2.WAIT_DURABLE
        ).SerializeToString(),
        ids=lambda answer: _indexed(answer, types_pb2.STATUS_PENDING, types_pb2.STATUS_INDEXED),
        after=after,
    )


def import_of_thread(name: str, resource_id: str, messages: int, seed: int) -> Operation:
    """A thread of new text in one call, answered when all of it is searchable."""

    def request(number: int) -> bytes:
        batch = [
            wire_requests.message(one, f"import-{number}-")
            for one in corpus.chat(messages, seed=seed + number)
        ]
        for message in batch:
            message.thread_id = _imported(number)
        return recall_pb2.IndexRequest(resource_id=resource_id, messages=batch).SerializeToString()

    return Operation(
        name=name,
        method=wire_requests.INDEX,
        request=request,
        ids=lambda answer: _indexed(answer, types_pb2.STATUS_INDEXED),
    )


def forget_thread(name: str, resource_id: str, messages: int) -> Operation:
    """A thread that was imported. Before each, the resource's snapshot is there and is current."""

    async def before(client: Client, number: int) -> None:
        request = admin_pb2.CreateSnapshotRequest(partitions_only=True).SerializeToString()
        await client.unary(wire_requests.CREATE_SNAPSHOT, request)

    def ids(answer: bytes) -> list[str]:
        forgotten = recall_pb2.ForgetResponse.FromString(answer)
        if (forgotten.messages, forgotten.vectors) != (messages, messages):
            raise RuntimeError("a thread was not forgotten")
        return []

    return Operation(
        name=name,
        method=wire_requests.FORGET,
        request=lambda number: recall_pb2.ForgetRequest(
            resource_id=resource_id, thread_id=_imported(number)
        ).SerializeToString(),
        ids=ids,
        before=before,
    )


def _imported(number: int) -> str:
    return f"import-{number}"


def _indexed(answer: bytes, *allowed: int) -> list[str]:
    results = recall_pb2.IndexResponse.FromString(answer).results
    if not results or any(result.status not in allowed for result in results):
        raise RuntimeError("a message was not indexed")
    return [result.message_id for result in results]
