"""Operations that change nothing: each reads as one resource, and what it reads is its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.types.values import EmbedRole
from support.fake_embedder import text_vector
from support.isolation_ids import canary
from support.isolation_world import NOON_NS, SECOND_NS, Memory, Operation
from support.wire_memory import timestamp

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
DIMENSIONS = 64
Shape = Callable[[str, str], tuple[str, Message]]
"""A call of a resource with an id: the method and its request."""


def other_of(operation: Operation) -> Memory:
    """Another resource, with messages where there is one."""
    memories = operation.world.memories
    names = sorted(name for name in memories if name != operation.resource)
    filled = [name for name in names if memories[name].messages]
    return memories[operation.rng.choice(filled or names)]


# ---- Recall ----


def recall(operation: Operation) -> None:
    """A recall of any kind: its messages are the resource's, as they were indexed."""
    request = recall_request(operation)
    answer = operation.ask("Recall", request).answer
    check_recalled(operation, request, answer)


def recall_on_stream(operation: Operation) -> None:
    """Recalls of several resources on one stream."""
    world, rng = operation.world, operation.rng
    readers = [operation.resource, *rng.sample(sorted(world.memories), 3)]
    requests: dict[str, recall_pb2.RecallRequest] = {}
    for position, reader in enumerate(readers):
        step = Operation(world, operation.number, reader)
        step.rng.seed(f"{operation.number}/{position}")
        requests[f"{position}"] = recall_request(step)
        requests[f"{position}"].request_id = f"{position}"
    world.count(len(requests))
    stub = world.server.recall
    answers = list(stub.RecallStream(iter(requests.values()), timeout=60.0))
    operation.expect(
        sorted(a.request_id for a in answers) == sorted(requests), "answers of a stream", answers
    )
    for answer in answers:
        request = requests[answer.request_id]
        sent = request.SerializeToString()
        world.check(request.resource_id, "RecallStream", sent, answer)
        operation.expect(not answer.error.code, "a recall of a stream", request, answer)
        check_recalled(Operation(world, operation.number, request.resource_id), request, answer)


def recall_request(operation: Operation) -> recall_pb2.RecallRequest:
    """A valid request with any fields, and others' ids where ids can be given."""
    rng, memory = operation.rng, operation.memory
    other = other_of(operation)
    request = recall_pb2.RecallRequest(
        resource_id=memory.resource,
        query=operation.words(),
        top_k=rng.choice((1, 4, 20, 1000)),
        explain=rng.random() < 0.4,
        context_format=rng.choice(types_pb2.ContextFormat.values()),
        context_other_threads_only=rng.random() < 0.2,
        max_tokens=rng.choice((0, 0, 0, 40, 400)),
    )
    request.ranking.mode = rng.choice(types_pb2.Mode.values())
    request.message_range.before, request.message_range.after = rng.choices((0, 1, 3, 50), k=2)
    if other.messages and rng.random() < 0.5:
        # Somebody else's very words: the best there is, if it could be found.
        request.query = rng.choice(sorted(m.text for m in other.messages.values())) or "seven"
    if rng.random() < 0.3:
        threads = (*sorted(memory.threads), *sorted(other.threads), "never-was")
        request.thread_id = rng.choice(threads)
        request.scope = rng.choice((types_pb2.SCOPE_THREAD, types_pb2.SCOPE_RESOURCE))
    if rng.random() < 0.3:
        ids = [*list(memory.messages)[:5], *list(other.messages)[:5], "never-was"]
        request.exclude_message_ids.extend(ids)
    if rng.random() < 0.2:
        request.alternative_queries.extend((operation.words(), operation.words()))
    if rng.random() < 0.1:
        request.query_embedding.extend(text_vector(operation.words(), DIMENSIONS).tolist())
    if rng.random() < 0.2:
        request.filter.update({"kind": "a"} if memory.messages else {"kind": {"$exists": True}})
    if rng.random() < 0.15:
        request.roles.extend((types_pb2.ROLE_USER, types_pb2.ROLE_TOOL))
    if rng.random() < 0.15:
        request.create_time_from.CopyFrom(timestamp(NOON_NS + operation.number // 2 * SECOND_NS))
    if rng.random() < 0.15:
        request.ranking.recency_weight = 0.3
        request.ranking.diversity = 0.3
        request.ranking.near_duplicate_cosine = 0.95
    if rng.random() < 0.1:
        request.threshold = 0.2
    if rng.random() < 0.2:
        request.read_token = memory.read_token
    return request


def check_recalled(
    operation: Operation, request: recall_pb2.RecallRequest, answer: recall_pb2.RecallResponse
) -> None:
    """Known messages with their own content, and counts of this resource alone."""
    memory = operation.memory
    for recalled in answer.messages:
        message = recalled.message
        known = memory.messages.get(message.id)
        operation.expect(known is not None, "a message nobody indexed here", request, message)
        assert known is not None
        whole = known if not recalled.text_cut else None
        operation.expect(whole is None or message == whole, "another message", message, known)
    excluded = {one.message_id for one in answer.excluded}
    operation.expect(excluded <= memory.messages.keys(), "excluded candidates", excluded)
    searchable = memory.embedded()
    if request.query.strip() and searchable and not request.thread_id:
        operation.expect(answer.info.searchable == searchable, "searchable", answer.info)
    plain = not (
        request.filter.fields
        or request.roles
        or request.HasField("create_time_from")
        or request.thread_id
    )
    if plain and request.ranking.mode == types_pb2.MODE_DENSE and searchable:
        expected = memory.embedded(*request.exclude_message_ids)
        operation.expect(answer.info.candidates == expected, "candidates", answer.info, expected)
    operation.expect(answer.info.pending == 0, "pending", answer.info)


def recall_with_foreign_key(operation: Operation) -> None:
    """A filter key that only another resource carries is as unknown as one nobody carries."""
    other = other_of(operation)
    keys = [key for m in other.messages.values() for key in m.metadata.fields if "zq" in key]
    if not keys or not operation.memory.messages:
        return
    foreign, unknown = operation.rng.choice(sorted(keys)), f"key{canary(0xFFFFFFF0)}"
    outcomes = []
    for key in (foreign, unknown):
        request = recall_pb2.RecallRequest(resource_id=operation.resource, query="seven")
        request.filter.update({key: "x"})
        outcome = operation.ask("Recall", request)
        operation.expect(outcome.code is INVALID, "a filter key nobody has here", outcome)
        outcomes.append(outcome.as_bytes(key))
    operation.expect(outcomes[0] == outcomes[1], "foreign and unknown keys", *outcomes)


# ---- history ----


def list_messages(operation: Operation) -> None:
    """All pages of a thread or of the resource, own or another's."""
    rng, memory = operation.rng, operation.memory
    thread = rng.choice(["", *sorted(memory.threads), *sorted(other_of(operation).threads)])
    request = recall_pb2.ListMessagesRequest(
        resource_id=memory.resource,
        thread_id=thread,
        page_size=rng.choice((3, 40, 1000)),
        newest_first=rng.random() < 0.5,
    )
    listed: list[types_pb2.Message] = []
    while True:
        page = operation.ask("ListMessages", request).answer
        listed += page.messages
        if not page.next_page_token or len(listed) > 30:
            break
        request.page_token = page.next_page_token
    expected = {m.id for m in memory.messages.values() if thread in ("", m.thread_id)}
    found = [m.id for m in listed]
    operation.expect(len(set(found)) == len(found), "a message listed twice", found)
    same = set(found) == expected if not page.next_page_token else set(found) <= expected
    operation.expect(same, "listed", request, found, expected)
    operation.expect(all(memory.messages[m.id] == m for m in listed), "listed content", listed)


def list_threads(operation: Operation) -> None:
    """Threads with their counts."""
    request = recall_pb2.ListThreadsRequest(resource_id=operation.resource, page_size=1000)
    answer = operation.ask("ListThreads", request).answer
    threads = {thread.thread_id: thread.messages for thread in answer.threads}
    operation.expect(threads == operation.memory.threads, "threads", threads)


def get_messages(operation: Operation) -> None:
    """Own messages by id; one that is not there hides them all."""
    memory, rng = operation.memory, operation.rng
    ids = rng.sample(sorted(memory.messages), min(len(memory.messages), 4))
    strange = [id for id in list(other_of(operation).messages)[:1] if id not in memory.messages]
    wanted: list[tuple[list[str], grpc.StatusCode]] = [([], grpc.StatusCode.OK)] if ids else []
    if strange:
        wanted.append((strange, NOT_FOUND))
    for extra, expected in wanted:
        request = recall_pb2.GetMessagesRequest(
            resource_id=memory.resource, message_ids=[*ids, *extra]
        )
        outcome = operation.ask("GetMessages", request)
        operation.expect(outcome.code is expected, "get", request, outcome)
        if not extra:
            content = [memory.messages[id] for id in ids]
            operation.expect(list(outcome.answer.messages) == content, "content", outcome)


# ---- counts ----


def counts(operation: Operation) -> None:
    """What GetStats counts of one resource."""
    memory = operation.memory
    request = admin_pb2.GetStatsRequest(resource_id=memory.resource)
    stats = operation.ask("GetStats", request).answer
    found = (stats.messages, stats.vectors, stats.threads, stats.pending)
    expected = (len(memory.messages), memory.embedded(), len(memory.threads), 0)
    operation.expect(found == expected, "counts", found, expected)


def export(operation: Operation) -> None:
    """Every message, once."""
    request = admin_pb2.ExportRequest(resource_id=operation.resource)
    outcome = operation.ask("Export", request)
    found = {answer.message.id: answer.message for answer in outcome.answers}
    operation.expect(len(found) == len(outcome.answers), "exported twice", outcome)
    operation.expect(found == operation.memory.messages, "export", list(found))


def verify(operation: Operation) -> None:
    """Nothing disagrees, and only the resource's messages are read."""
    request = admin_pb2.VerifyRequest(resource_id=operation.resource)
    outcome = operation.ask("Verify", request)
    operation.expect(outcome.code is grpc.StatusCode.OK, "verify", outcome)
    events = outcome.answers
    operation.expect(not [e for e in events if e.HasField("finding")], "findings", events)
    found = events[-1].summary.messages
    operation.expect(found == len(operation.memory.messages), "verified", events[-1])


def embed(operation: Operation) -> None:
    """Texts of somebody else become the vectors that they always are."""
    texts = [m.text for m in list(other_of(operation).messages.values())[:3] if m.text]
    texts = texts or ["seven"]
    request = recall_pb2.EmbedRequest(texts=texts, role=operation.rng.choice(list(EmbedRole)))  # type: ignore[arg-type]
    answer = operation.ask("Embed", request).answer
    for text, found in zip(texts, answer.embeddings, strict=True):
        vector = text_vector(text, DIMENSIONS)
        same = all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(found.values, vector))  # noqa: B905
        operation.expect(same and len(found.values) == DIMENSIONS, "embedding", text)


# ---- unknown and foreign ----


def foreign_looks_unknown(operation: Operation) -> None:
    """What another has and what nobody has are answered alike, to the byte."""
    look_alike(operation, BY_MESSAGE, BY_THREAD)


def foreign_forgotten_looks_unknown(operation: Operation) -> None:
    """To forget it is to forget nothing. No read: it empties the resource's cache of vectors."""
    look_alike(operation, [forget_message], [forget_thread])


def look_alike(operation: Operation, by_message: list[Shape], by_thread: list[Shape]) -> None:
    """Compare requests that differ only in an id that another has, or nobody."""
    memory = operation.memory
    other = other_of(operation)
    ids = sorted(id for id in other.messages if id not in memory.messages and "zq" in id)
    threads = sorted(id for id in other.threads if id not in memory.threads and "zq" in id)
    operation.ask("Recall", recall_pb2.RecallRequest(resource_id=memory.resource, query="seven"))
    for known, shapes in ((ids, by_message), (threads, by_thread)):
        if not known:
            continue
        foreign = operation.rng.choice(known)
        unknown = foreign[: foreign.index("zq")] + canary(0xFFFFFFF1)
        if len(unknown) != len(foreign):
            continue
        shape = operation.rng.choice(shapes)
        seen = []
        for name in (foreign, unknown):
            rpc, request = shape(memory.resource, name)
            seen.append(operation.ask(rpc, request).as_bytes(name))
        operation.expect(seen[0] == seen[1], "foreign and unknown", rpc, foreign, *seen)


def _recall(resource: str, **fields: Any) -> tuple[str, Message]:
    return "Recall", recall_pb2.RecallRequest(resource_id=resource, query="seven", **fields)


BY_MESSAGE: list[Shape] = [
    lambda r, id: ("GetMessages", recall_pb2.GetMessagesRequest(resource_id=r, message_ids=[id])),
    lambda r, id: _recall(r, exclude_message_ids=[id], explain=True),
]
BY_THREAD: list[Shape] = [
    lambda r, id: ("ListMessages", recall_pb2.ListMessagesRequest(resource_id=r, thread_id=id)),
    lambda r, id: _recall(r, thread_id=id, scope=types_pb2.SCOPE_THREAD),
    lambda r, id: _recall(r, thread_id=id),
    lambda r, id: (
        "TransferThread",
        recall_pb2.TransferThreadRequest(resource_id=r, thread_id=id, to_resource_id="nobody"),
    ),
]


def forget_message(resource: str, message_id: str) -> tuple[str, Message]:
    ids = recall_pb2.MessageIds(ids=[message_id])
    return "Forget", recall_pb2.ForgetRequest(resource_id=resource, message_ids=ids)


def forget_thread(resource: str, thread_id: str) -> tuple[str, Message]:
    return "Forget", recall_pb2.ForgetRequest(resource_id=resource, thread_id=thread_id)


# ---- cursors and caches ----


def foreign_tokens(operation: Operation) -> None:
    """Page tokens and read tokens of another open nothing, and are told from no other."""
    other = other_of(operation)
    if len(other.messages) < 2:
        return
    first = recall_pb2.ListMessagesRequest(resource_id=other.resource, page_size=1)
    token = operation.world.ask(other.resource, "ListMessages", first).answer.next_page_token
    forged = token[:-6] + "AAAAAA"
    seen = []
    for page_token in (token, forged):
        request = recall_pb2.ListMessagesRequest(
            resource_id=operation.resource, page_size=1, page_token=page_token
        )
        outcome = operation.ask("ListMessages", request)
        operation.expect(outcome.code is INVALID, "a page token of another", outcome)
        seen.append(outcome.as_bytes())
    operation.expect(seen[0] == seen[1], "foreign and forged page tokens", *seen)
    if other.read_token:
        _, request = _recall(operation.resource, read_token=other.read_token)
        outcome = operation.ask("Recall", request)
        operation.expect(outcome.code is INVALID, "a read token of another", outcome)


def caches(operation: Operation) -> None:
    """What one resource has asked is no quicker for another, nor answered from what that got."""
    other = other_of(operation)
    if not operation.memory.embedded() or not other.embedded():
        return
    query = f"{operation.words()} {operation.number} {canary(0xFFFFFFF2)}"
    seen = []
    for memory in (operation.memory, other, operation.memory):
        request = recall_pb2.RecallRequest(resource_id=memory.resource, query=query)
        info = operation.world.ask(memory.resource, "Recall", request).answer.info
        seen.append(info.cache_hit)
    operation.expect(seen == [False, False, True], "cached for whom", seen)


READS: tuple[tuple[Callable[[Operation], None], int], ...] = (
    (recall, 40),
    (recall_on_stream, 6),
    (recall_with_foreign_key, 4),
    (list_messages, 8),
    (list_threads, 4),
    (get_messages, 6),
    (counts, 10),
    (export, 3),
    (verify, 1),
    (embed, 2),
    (foreign_looks_unknown, 8),
    (foreign_tokens, 4),
    (caches, 4),
)
"""With how often each is chosen."""
