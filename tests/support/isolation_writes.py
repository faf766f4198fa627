"""Operations that change what a resource holds, each with what has to become of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import grpc

from semanticrecall.v1 import recall_pb2, types_pb2
from support.isolation_ids import canaries_in
from support.isolation_reads import foreign_forgotten_looks_unknown
from support.isolation_world import Memory, Operation
from support.wire_memory import nanoseconds, timestamp

NOT_FOUND = grpc.StatusCode.NOT_FOUND
ALREADY_EXISTS = grpc.StatusCode.ALREADY_EXISTS


def index(operation: Operation) -> None:
    """New messages, and some that are there with other content or the same."""
    request, before = _index_request(operation)
    answer = operation.ask("Index", request).answer
    _indexed(operation, request, before, answer)


def index_on_stream(operation: Operation) -> None:
    """The same on a stream, beside a request that is refused as a whole."""
    request, before = _index_request(operation)
    nobody = recall_pb2.IndexRequest(thread_id="t", messages=request.messages)
    operation.world.count(2)
    stub = operation.world.server.recall
    refusal, answer = stub.IndexStream(iter([nobody, request]), timeout=60.0)
    for part in (refusal, answer):
        operation.world.check(operation.resource, "IndexStream", request.SerializeToString(), part)
    operation.expect(refusal.error.field_violations[0].field == "resource_id", "refusal", refusal)
    _indexed(operation, request, before, answer)


def _index_request(
    operation: Operation,
) -> tuple[recall_pb2.IndexRequest, dict[str, types_pb2.Message]]:
    """A request, and the messages that it finds."""
    memory = operation.memory
    request = recall_pb2.IndexRequest(resource_id=memory.resource, thread_id=operation.thread())
    chosen: dict[str, types_pb2.Message] = {}
    for _ in range(operation.rng.randint(1, 6)):
        message = operation.message(request.thread_id)
        known = [m for m in memory.messages.values() if m.thread_id == request.thread_id]
        if known and operation.rng.random() < 0.15:
            message = operation.rng.choice(known)
        elif known and operation.rng.random() < 0.15:
            message.id = operation.rng.choice(known).id
        chosen[message.id] = message
    request.messages.extend(chosen.values())
    return request, {id: memory.messages[id] for id in chosen if id in memory.messages}


def _indexed(
    operation: Operation,
    request: recall_pb2.IndexRequest,
    before: dict[str, types_pb2.Message],
    answer: recall_pb2.IndexResponse,
) -> None:
    """What became of each message, and what nobody may see any more."""
    memory = operation.memory
    for message, result in zip(request.messages, answer.results, strict=True):
        old = before.get(message.id)
        embedded = message.text and message.role in (types_pb2.ROLE_USER, types_pb2.ROLE_ASSISTANT)
        if old is not None and old == message:
            expected = types_pb2.STATUS_UNCHANGED
        elif not embedded:
            expected = types_pb2.STATUS_NOT_EMBEDDED
        else:
            expected = types_pb2.STATUS_INDEXED if old is None else types_pb2.STATUS_REPLACED
        operation.expect(result.status == expected, "status", message, old, result)
        memory.messages[message.id] = types_pb2.Message.FromString(message.SerializeToString())
        if old is not None and old != message:
            _unseen(operation, [old])
    memory.read_token = answer.read_token


def _unseen(operation: Operation, gone: Iterable[types_pb2.Message]) -> None:
    """Take the canaries of messages that are gone, but for those that are still in others."""
    marks: set[str] = set()
    for message in gone:
        marks |= canaries_in(message.SerializeToString())
    if not marks:
        return
    kept: set[str] = set()
    for message in operation.memory.messages.values():
        kept |= canaries_in(message.SerializeToString())
    for mark in marks - kept:
        operation.world.holders.take(mark)


# ---- Forget ----


def forget(operation: Operation) -> None:
    """Messages by id, by thread, by time, by author, or all."""
    memory, rng = operation.memory, operation.rng
    request = recall_pb2.ForgetRequest(resource_id=memory.resource)
    kind = rng.choices(("ids", "thread", "time", "condition", "everything"), (8, 4, 2, 3, 1))[0]
    if kind == "ids":
        own = rng.sample(sorted(memory.messages), min(len(memory.messages), rng.randint(1, 4)))
        ids = [*own, *_foreign_ids(operation), "never-was"]
        request.message_ids.ids.extend(ids)
        doomed = [memory.messages[id] for id in own]
    elif kind == "thread":
        request.thread_id = rng.choice(sorted({*memory.threads, *_foreign_threads(operation), "t"}))
        doomed = [m for m in memory.messages.values() if m.thread_id == request.thread_id]
    elif kind == "condition":
        author = rng.choice(("Ann", "nobody"))
        request.condition.authors.append(author)
        doomed = [m for m in memory.messages.values() if m.author == author]
    elif kind == "time":
        times = sorted(nanoseconds(m.create_time) for m in memory.messages.values())
        until = times[len(times) // 3] if times else 1
        request.create_time_before.CopyFrom(timestamp(until))
        doomed = [m for m in memory.messages.values() if nanoseconds(m.create_time) < until]
    else:
        request.everything = True
        doomed = list(memory.messages.values())
    threads = set(memory.threads)
    vectors = memory.embedded()
    answer = operation.ask("Forget", request).answer
    for message in doomed:
        del memory.messages[message.id]
    _unseen(operation, doomed)
    counts = (answer.messages, answer.vectors, answer.threads)
    expected = (len(doomed), vectors - memory.embedded(), len(threads - set(memory.threads)))
    operation.expect(counts == expected, f"forgetting by {kind}", request, counts, expected)


def _others(operation: Operation) -> list[Memory]:
    memories = operation.world.memories
    return [memories[name] for name in operation.rng.sample(sorted(memories), 3)]


def _foreign_ids(operation: Operation) -> list[str]:
    """Ids of others that this resource has not."""
    own = operation.memory.messages
    return [id for other in _others(operation) for id in list(other.messages)[:2] if id not in own]


def _foreign_threads(operation: Operation) -> list[str]:
    return [thread for other in _others(operation) for thread in list(other.threads)[:2]]


# ---- TransferThread ----


def transfer(operation: Operation, receiver: Memory) -> None:
    """A thread becomes another's, unless something of the same name is there."""
    memory = operation.memory
    thread = operation.rng.choice([*sorted(memory.threads), "never-was"])
    moved = {id: m for id, m in memory.messages.items() if m.thread_id == thread}
    request = recall_pb2.TransferThreadRequest(
        resource_id=memory.resource, thread_id=thread, to_resource_id=receiver.resource
    )
    outcome = operation.ask("TransferThread", request)
    if not moved:
        operation.expect(outcome.code is NOT_FOUND, "transfer of nothing", outcome)
        return
    if thread in receiver.threads or moved.keys() & receiver.messages.keys():
        operation.expect(outcome.code is ALREADY_EXISTS, "transfer onto what is there", outcome)
        return
    operation.expect(outcome.answer.messages == len(moved), "transfer", outcome)
    for message_id, message in moved.items():
        del memory.messages[message_id]
        message.resource_id = receiver.resource
        receiver.messages[message_id] = message
        for mark in canaries_in(message.SerializeToString()):
            operation.world.holders.give(mark, receiver.resource)
        # Their names may come back to those who never gave one away only.
        memory.given_away |= {name for name in (message_id, thread) if canaries_in(name.encode())}


WRITES: tuple[tuple[Callable[[Operation], None], int], ...] = (
    (index, 70),
    (index_on_stream, 8),
    (forget, 14),
    (foreign_forgotten_looks_unknown, 4),
)
"""With how often each is chosen; `transfer` needs two."""
