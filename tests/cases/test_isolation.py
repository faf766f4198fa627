"""Isolation: nobody sees, counts, changes or learns of anybody else's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from semanticrecall import RecallClient, Scope
from semanticrecall.v1 import admin_pb2, recall_pb2
from support.wire_memory import (
    ALONE,
    DEADLINE_SECONDS,
    INDEXED,
    NOON_NS,
    RESOURCE_WIDE,
    SECOND_NS,
    THREAD_ONLY,
    UNCHANGED,
    Memory,
    Sidecar,
    conversation,
    hit_ids,
    ids,
    invalid,
    refused,
    said,
)

SECRET = "the vault code is seven four nine"

LOOKALIKES = {
    "pattern": ["john_doe", "john-doe", "john%doe", "john\\doe", "john*doe", "john?doe", "joh_doe"],
    "wildcard": ["%", "_", "*", "?", "%%", ".*", "__", "\\%"],
    "case": ["John_Doe", "john_doe", "JOHN_DOE", "john_doe "],
    "unicode": ["jos\u00e9", "jose\u0301", "jose", "jos\u0435", "JOS\u00c9"],
    "quoting": ["o'neil", "o''neil", 'o"neil', "o\\'neil", "' OR '1'='1", "o'neil; --"],
    "number": ["1", "01", "1.0", "1e0", "+1", "0x1", "true", "null", "None"],
    "prefix": ["acme", "acme-corp", "acme:1", "acme/", "acm", "acme\u00a0", "acme:", "aacme"],
    "long": ["r" * 512, "r" * 511, "r" * 510 + "s"],
}
FAMILIES = [pytest.param(family, id=name) for name, family in LOOKALIKES.items()]

PAIRS = [
    pair
    for separator in (":", "/", "|", "-", "::", "#", ".", " ", "\\", "\u00a7", "")
    for pair in ((f"a{separator}b", "c"), ("a", f"b{separator}c"))
] + [("a", "b"), ("b", "a"), ("a", "a"), ("1:a", "b"), ("1", "a:b")]


def owned(owner: str, thread: str = "t") -> list[Any]:
    """Two messages whose payload says whose they are; same ids and text for everybody."""
    return [
        said(f"m{i}", SECRET, at=NOON_NS + i * SECOND_NS, payload=f"{owner}\0{thread}".encode())
        for i in range(2)
    ]


def owners(messages: Any) -> set[bytes]:
    """Whom the messages say they belong to."""
    return {(m.message if hasattr(m, "message") else m).payload for m in messages}


# ISO-1 and the first half of ISO-2 ------------------------------------------------------------


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, sidecar: Sidecar) -> list[Memory]:
    """Resources whose ids look alike, each with the same two messages."""
    memories = [sidecar.memory(name) for name in request.param]
    for memory in memories:
        memory.forget(everything=True)
        assert memory.index(owned(memory.resource_id)) == [INDEXED, INDEXED]
    return memories


def test_recall_sees_only_the_resource_named_letter_for_letter(family: list[Memory]) -> None:
    for memory in family:
        for scope in (RESOURCE_WIDE, THREAD_ONLY):
            answer = memory.recall(SECRET, top_k=100, scope=scope, thread_id="t")
            assert owners(answer.messages) == {f"{memory.resource_id}\0t".encode()}
            assert {m.message.resource_id for m in answer.messages} == {memory.resource_id}
            assert len(answer.messages) == 2
            assert (answer.info.candidates, answer.info.searchable) == (2, 2)


def test_recall_on_a_stream_keeps_resources_apart(family: list[Memory], sidecar: Sidecar) -> None:
    requests = [
        memory.request(SECRET, request_id=f"{position}", top_k=100)
        for position, memory in enumerate(family)
    ]
    answers = sidecar.stream(requests)
    for position, memory in enumerate(family):
        messages = answers[f"{position}"].messages
        assert owners(messages) == {f"{memory.resource_id}\0t".encode()}
        assert len(messages) == 2


def test_history_export_counts_and_threads_keep_resources_apart(family: list[Memory]) -> None:
    for memory in family:
        mine = {f"{memory.resource_id}\0t".encode()}
        history = (memory.listed(), memory.listed("t"), memory.exported())
        for read in (*history, memory.got("m0", "m1")):
            assert owners(read) == mine
            assert len(read) == 2
        counts = memory.stats()
        assert (counts.messages, counts.vectors, counts.threads) == (2, 2, 1)
        assert [(t.thread_id, t.messages) for t in memory.threads()] == [("t", 2)]


@pytest.mark.parametrize(
    "forget",
    [
        lambda memory: memory.forget("m0", "m1"),
        lambda memory: memory.forget(thread_id="t"),
        lambda memory: memory.forget(everything=True),
        lambda memory: memory.forget(
            create_time_before=said("x", at=NOON_NS + 60 * SECOND_NS).create_time
        ),
    ],
    ids=["ids", "thread", "everything", "before"],
)
def test_forgetting_one_resource_leaves_the_lookalikes_whole(
    family: list[Memory], forget: Callable[[Memory], recall_pb2.ForgetResponse]
) -> None:
    victim, others = family[0], family[1:]
    assert forget(victim).messages == 2
    assert list(victim.recall(SECRET).messages) == []
    for memory in others:
        assert len(memory.recall(SECRET).messages) == 2
        assert len(memory.listed()) == 2
    assert victim.index(owned(victim.resource_id)) == [INDEXED, INDEXED]


# ISO-2: pairs whose ids read the same when they are put side by side ---------------------------


@pytest.fixture(scope="module")
def pairs(sidecar: Sidecar) -> list[tuple[Memory, str]]:
    """(resource, thread) pairs, each with two messages of the same text."""
    known = [(sidecar.memory(resource), thread) for resource, thread in dict.fromkeys(PAIRS)]
    for memory in {memory for memory, _ in known}:
        memory.forget(everything=True)
    for position, (memory, thread) in enumerate(known):
        messages = owned(memory.resource_id, thread)
        for message in messages:
            message.id = f"{position}-{message.id}"
        assert memory.index(messages, thread=thread) == [INDEXED, INDEXED]
    return known


def test_no_two_pairs_of_resource_and_thread_share_anything(
    pairs: list[tuple[Memory, str]],
) -> None:
    for memory, thread in pairs:
        mine = {f"{memory.resource_id}\0{thread}".encode()}
        answer = memory.recall(SECRET, top_k=100, scope=THREAD_ONLY, thread_id=thread)
        assert owners(answer.messages) == mine
        assert len(answer.messages) == 2
        assert owners(memory.listed(thread)) == mine
    for memory in {memory for memory, _ in pairs}:
        threads = sorted(thread for owner, thread in pairs if owner == memory)
        assert sorted(t.thread_id for t in memory.threads()) == threads
        assert len(memory.recall(SECRET, top_k=100).messages) == 2 * len(threads)
        assert {m.resource_id for m in memory.exported()} == {memory.resource_id}


def test_forgetting_one_pair_leaves_every_other_pair(pairs: list[tuple[Memory, str]]) -> None:
    gone, gone_thread = pairs[0]
    assert gone.forget(thread_id=gone_thread).messages == 2
    for memory, thread in pairs[1:]:
        assert len(memory.listed(thread)) == 2
        answer = memory.recall(SECRET, top_k=100, scope=THREAD_ONLY, thread_id=thread)
        assert len(answer.messages) == 2


# ISO-3 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", ["t1", "t:1", "%", "_", "t/../t"])
def test_same_thread_id_of_two_resources_is_two_threads(
    sidecar: Sidecar, fresh: str, thread: str
) -> None:
    mine, theirs = sidecar.memory(f"{fresh}-A"), sidecar.memory(f"{fresh}-B")
    for memory in (mine, theirs):
        memory.learn(owned(memory.resource_id, thread), thread=thread)
    for memory in (mine, theirs):
        answer = memory.recall(SECRET, scope=THREAD_ONLY, thread_id=thread, top_k=100)
        assert owners(answer.messages) == {f"{memory.resource_id}\0{thread}".encode()}


# ISO-4 ------------------------------------------------------------------------------------------

Call = Callable[[Sidecar], Any]
_IDS = recall_pb2.MessageIds(ids=["m0"])
WITHOUT_RESOURCE: dict[str, Call] = {
    "Recall": lambda s: s.service.Recall(recall_pb2.RecallRequest(query=SECRET, thread_id="t")),
    "Index": lambda s: s.service.Index(
        recall_pb2.IndexRequest(thread_id="t", messages=[said("m", SECRET)])
    ),
    "ListMessages": lambda s: s.service.ListMessages(recall_pb2.ListMessagesRequest(thread_id="t")),
    "GetMessages": lambda s: s.service.GetMessages(
        recall_pb2.GetMessagesRequest(message_ids=["m0"])
    ),
    "ListThreads": lambda s: s.service.ListThreads(recall_pb2.ListThreadsRequest()),
    "Forget ids": lambda s: s.service.Forget(recall_pb2.ForgetRequest(message_ids=_IDS)),
    "Forget thread": lambda s: s.service.Forget(recall_pb2.ForgetRequest(thread_id="t")),
    "Forget everything": lambda s: s.service.Forget(recall_pb2.ForgetRequest(everything=True)),
    "TransferThread": lambda s: s.service.TransferThread(
        recall_pb2.TransferThreadRequest(thread_id="t", to_resource_id="thief")
    ),
    "Export": lambda s: list(s.admin.Export(admin_pb2.ExportRequest())),
}


@pytest.mark.parametrize("call", WITHOUT_RESOURCE.values(), ids=WITHOUT_RESOURCE.keys())
def test_no_resource_is_refused_and_never_means_everybody(
    sidecar: Sidecar, memory: Memory, call: Call
) -> None:
    memory.learn(owned(memory.resource_id))
    with invalid("resource_id"):
        call(sidecar)
    assert len(memory.listed()) == 2
    assert list(sidecar.memory("thief").listed()) == []


def test_no_resource_on_a_stream_fails_that_request_alone(memory: Memory) -> None:
    memory.learn(owned(memory.resource_id))
    nobody = recall_pb2.RecallRequest(request_id="nobody", query=SECRET)
    answers = memory.sidecar.stream([nobody, memory.request(SECRET, request_id="me")])
    assert answers["nobody"].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert answers["nobody"].error.field_violations[0].field == "resource_id"
    assert list(answers["nobody"].messages) == []
    assert len(answers["me"].messages) == 2


def test_no_resource_on_an_index_stream_stores_nothing(sidecar: Sidecar, memory: Memory) -> None:
    before = sidecar.stats().messages
    requests = [
        recall_pb2.IndexRequest(thread_id="t", messages=[said("m", SECRET)]),
        recall_pb2.IndexRequest(
            resource_id=memory.resource_id, thread_id="t", messages=[said("m", SECRET)]
        ),
    ]
    refusal, stored = sidecar.service.IndexStream(iter(requests), timeout=DEADLINE_SECONDS)
    assert refusal.error.field_violations[0].field == "resource_id"
    assert [r.status for r in stored.results] == [INDEXED]
    assert sidecar.stats().messages == before + 1


def test_a_message_that_names_another_owner_is_rejected(memory: Memory) -> None:
    foreign = said("m", SECRET)
    foreign.resource_id = "somebody-else"
    answer = memory.index_answer([foreign, said("n", SECRET)])
    assert answer.results[0].error.field_violations[0].field == "messages[0].resource_id"
    assert ids(memory.listed()) == ["n"]
    assert list(memory.sidecar.memory("somebody-else").listed()) == []


# ISO-5 ------------------------------------------------------------------------------------------


def test_one_client_keeps_nothing_of_the_thread_before(memory: Memory) -> None:
    for thread in ("T1", "T2"):
        memory.learn([said(f"{thread}-{i}", SECRET) for i in range(3)], thread=thread)
    with RecallClient(memory.sidecar.target) as client, client.recall_stream() as session:
        for recall in (client.recall, session.recall):
            for thread in ("T1", "T2", "T1"):
                result = recall(
                    memory.resource_id, SECRET, scope=Scope.THREAD, thread_id=thread, top_k=10
                )
                assert len(result) == 3
                assert {m.message.thread_id for m in result} == {thread}
                assert ("T2" if thread == "T1" else "T1") not in result.context_text


# ISO-6 ------------------------------------------------------------------------------------------


@pytest.fixture
def alice(sidecar: Sidecar, fresh: str) -> Memory:
    memory = sidecar.memory(f"{fresh}-alice")
    memory.learn(conversation([SECRET, "one", "two", "three"]))
    return memory


@pytest.fixture
def bob(sidecar: Sidecar, fresh: str) -> Memory:
    memory = sidecar.memory(f"{fresh}-bob")
    memory.learn([said("b0", "my own words"), said("b1", SECRET)], thread="bobs")
    return memory


@pytest.mark.parametrize(
    "read",
    [
        lambda bob, message, thread: bob.got(message),
        lambda bob, message, thread: bob.got("b0", message),
        lambda bob, message, thread: bob.transfer(thread, "thief"),
    ],
    ids=["get", "get among own", "transfer"],
)
def test_a_foreign_id_reads_exactly_like_an_unknown_one(
    alice: Memory, bob: Memory, read: Callable[[Memory, str, str], Any]
) -> None:
    with refused(grpc.StatusCode.NOT_FOUND) as foreign:
        read(bob, "m0", "t")
    with refused(grpc.StatusCode.NOT_FOUND) as unknown:
        read(bob, "never-was", "never-was")
    assert foreign == unknown
    assert len(alice.listed("t")) == 4


@pytest.mark.parametrize("thread", ["t", "never-was"])
def test_a_foreign_thread_is_as_empty_as_an_unknown_one(
    alice: Memory, bob: Memory, thread: str
) -> None:
    assert len(alice.listed()) == 4
    assert bob.listed(thread) == []
    answer = bob.recall(SECRET, scope=THREAD_ONLY, thread_id=thread)
    assert list(answer.messages) == []
    assert answer.info.why_empty == recall_pb2.WHY_EMPTY_NO_MESSAGES
    assert not answer.info.HasField("best_score")
    assert bob.forget(thread_id=thread) == recall_pb2.ForgetResponse()


def test_excluding_or_forgetting_a_foreign_message_does_nothing(alice: Memory, bob: Memory) -> None:
    plain = bob.recall(SECRET, message_range=ALONE)
    excluding = bob.recall(SECRET, message_range=ALONE, exclude_message_ids=["m0", "m1", "nobody"])
    assert list(excluding.messages) == list(plain.messages)
    assert excluding.info.candidates == plain.info.candidates
    assert bob.forget("m0", "m1") == recall_pb2.ForgetResponse()
    assert ids(alice.listed()) == ["m0", "m1", "m2", "m3"]


def test_a_foreign_page_token_opens_nothing(alice: Memory, bob: Memory) -> None:
    request = recall_pb2.ListMessagesRequest(resource_id=alice.resource_id, page_size=1)
    token = alice.sidecar.service.ListMessages(request).next_page_token
    assert token
    request = recall_pb2.ListMessagesRequest(
        resource_id=bob.resource_id, page_size=1, page_token=token
    )
    with invalid("page_token"):
        bob.sidecar.service.ListMessages(request)


def test_a_foreign_read_token_is_refused(alice: Memory, bob: Memory) -> None:
    token = alice.index_answer([said("m9", "more words")]).read_token
    with invalid("read_token"):
        bob.recall(SECRET, read_token=token)


def test_the_same_message_id_of_another_resource_is_another_message(
    alice: Memory, bob: Memory
) -> None:
    assert bob.index([said("m0", "not alice's words")]) == [INDEXED]
    assert alice.got("m0")[0].text == SECRET
    assert alice.index(conversation([SECRET])) == [UNCHANGED]
    assert bob.forget("m0").messages == 1
    assert hit_ids(alice.recall(SECRET, top_k=1)) == ["m0"]
