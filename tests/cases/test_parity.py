"""Parity with Mastra's SemanticRecall, and where it has to be surpassed, as far as a server can.

| id | where it is tested |
|---|---|
| C1 | here: defaults and ranges |
| C2 | adapter (which message is the query); here: no words, no call of the model |
| C3 | here; test_isolation |
| C4 | test_scores (threshold, cosine) |
| C5 | test_windows |
| C6 | test_topk (excluded ids) |
| C7 | here: the template byte for byte; adapter (source and tag of the messages) |
| C8 | adapter |
| C9 | here: roles, ids; adapter (which messages are new) |
| C10 | here: fields of the answer |
| C11 | here: one embedding for a turn's user text |
| C12 | adapter |
| C13 | here: edit, delete, transfer reach the vectors; adapter (clone is Index of copies) |
| S1 | test_filters |
| S2 | here: one identity, whatever is asked |
| S3, S4 | test_loss, test_text |
| S5 | no foreign vector store; test_text (a vector of another size) |
| S6 | test_text |
| S7 | test_text |
| S8 | test_topk |
| S9 | test_topk |
| S10, S11 | test_windows |
| S12, S13, S14 | test_formatting |
| S15 | here: shown as User; adapter (signals are user messages) |
| S16 | test_text |
| S17 | here: role is part of the cache key; test_lifecycle (colliding hashes) |
| S18 | test_lifecycle |
| S19 | here: six messages in one call |
| S20, S21 | here; test_loss |
| S22 | test_windows |
| S23, S24, S25 | adapter (what is sent); white space: test_text |
| S26 | test_filters |
| S27 | here |
| S28 | test_formatting |
| S29 | adapter (where the block stands); here: other threads only |
| S30 | here: refused, not ignored |
| S31 | test_formatting |
| S32 | here: identity holds model, revision and dimension |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from support.fake_embedder import FakeEmbedder
from support.wire_memory import (
    ALONE,
    ASSISTANT,
    BY_COSINE,
    DEADLINE_SECONDS,
    INDEXED,
    NOON_NS,
    NOT_EMBEDDED,
    REPLACED,
    RESOURCE_WIDE,
    SECOND_NS,
    SYSTEM,
    THREAD_ONLY,
    TOOL,
    USER,
    Memory,
    Model,
    Sidecar,
    conversation,
    hit_ids,
    hits,
    ids,
    invalid,
    said,
    scores,
    window,
)

MASTRA = types_pb2.CONTEXT_MASTRA

# C1, S27 ----------------------------------------------------------------------------------------


@pytest.fixture
def two_threads(memory: Memory) -> Memory:
    """Ten messages in each of two threads, every third of them about the kite."""
    for thread in ("here", "there"):
        texts = [f"kite {thread} {i}" if i % 3 == 0 else f"{thread} filler{i}" for i in range(10)]
        memory.learn(conversation(texts, prefix=f"{thread}-"), thread=thread)
    return memory


def test_defaults_are_four_hits_one_neighbour_each_side_and_the_whole_resource(
    two_threads: Memory,
) -> None:
    plain = two_threads.recall("kite", thread_id="here")
    spelt = two_threads.recall(
        "kite",
        thread_id="here",
        top_k=4,
        message_range=window(1, 1),
        scope=RESOURCE_WIDE,
        threshold=-1.0,
        ranking=recall_pb2.Ranking(mode=types_pb2.MODE_HYBRID),
        context_format=types_pb2.CONTEXT_DEFAULT,
        time_zone="UTC",
    )
    assert len(hits(plain)) == 4
    assert list(plain.messages) == list(spelt.messages)
    assert plain.context_text == spelt.context_text
    assert plain.info.scope_used == RESOURCE_WIDE
    assert plain.info.mode_used == types_pb2.MODE_HYBRID
    assert {m.message.thread_id for m in plain.messages} == {"here", "there"}


@pytest.mark.parametrize(
    ("asked", "before", "after"),
    [
        (None, 1, 1),
        (recall_pb2.MessageRange(), 0, 0),
        (recall_pb2.MessageRange(before=2), 2, 0),
        (recall_pb2.MessageRange(after=3), 0, 3),
        (window(50, 50), 50, 50),
    ],
)
def test_a_given_range_is_taken_as_it_is(
    memory: Memory, asked: Any, before: int, after: int
) -> None:
    memory.learn(conversation(f"topic{i} matter{i}" for i in range(20)))
    answer = memory.recall("topic9 matter9", top_k=1, message_range=asked)
    assert ids(answer.messages) == [f"m{i}" for i in range(20)][max(0, 9 - before) : 10 + after]


def test_a_range_beyond_the_limit_is_refused(memory: Memory) -> None:
    for asked in (window(51, 0), window(0, 51)):
        with invalid("message_range"):
            memory.recall("kite", message_range=asked)


def test_the_scope_is_applied_or_refused_and_never_exchanged(two_threads: Memory) -> None:
    with invalid("thread_id"):
        two_threads.recall("kite", scope=THREAD_ONLY)
    with invalid("resource_id"):
        two_threads.sidecar.service.Recall(
            recall_pb2.RecallRequest(query="kite", thread_id="here", scope=RESOURCE_WIDE)
        )
    for thread in ("", "here", "nowhere"):
        answer = two_threads.recall("kite", top_k=50, thread_id=thread, scope=RESOURCE_WIDE)
        assert answer.info.scope_used == RESOURCE_WIDE
        assert len(answer.messages) == 20
    narrow = two_threads.recall("kite", top_k=50, thread_id="here", scope=THREAD_ONLY)
    assert narrow.info.scope_used == THREAD_ONLY
    assert len(narrow.messages) == 10


def test_no_words_and_no_vector_cost_no_call_of_the_model(
    two_threads: Memory, embedder: FakeEmbedder, model: Model
) -> None:
    runs = embedder.runs
    assert list(two_threads.recall("").messages) == []
    vector = [float(x) for x in model.vector("kite here")]
    answer = two_threads.recall(query_embedding=vector, top_k=3, message_range=ALONE)
    model.assert_best(answer, "kite here", two_threads.listed(), 3)
    assert embedder.runs == runs


# C7, S15, S29 -----------------------------------------------------------------------------------


def at(text: str) -> int:
    """Nanoseconds of a UTC time."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


MASTRA_BLOCK = (
    "The following messages were remembered from a different conversation:\n"
    "<remembered_from_other_conversation>\n"
    "\nthe following messages are from 2024, Feb, 1\n"
    "Message from previous conversation at 12:00 AM: User: kite at midnight"
    "Message from previous conversation at 3:05 AM: User: kite question"
    "Message from previous conversation at 3:05 AM: Assistant: kite answer"
    "Message from previous conversation at 3:05 AM: Assistant: kite elsewhere"
    "Message from previous conversation at 12:30 PM: User: kite at noon"
    "\nthe following messages are from 2024, Feb, 29\n"
    "Message from previous conversation at 11:59 PM: User: kite <b>late</b>\nsecond line"
    "\n<end_remembered_from_other_conversation>"
)


def test_the_mastra_format_is_its_template_to_the_byte(memory: Memory) -> None:
    known = [
        # The assistant's message arrived first: at one instant the user goes before it.
        ("b", said("m1", "kite answer", at=at("2024-02-01T03:05"), role=ASSISTANT)),
        ("b", said("m2", "kite question", at=at("2024-02-01T03:05"))),
        ("c", said("m0", "kite elsewhere", at=at("2024-02-01T03:05"), role=ASSISTANT)),
        ("b", said("m3", "kite <b>late</b>\nsecond line", at=at("2024-02-29T23:59"))),
        ("c", said("m4", "kite at midnight", at=at("2024-02-01T00:00"))),
        ("c", said("m5", "kite at noon", at=at("2024-02-01T12:30"))),
        ("now", said("m6", "kite of this very thread", at=at("2024-03-01T10:00"))),
    ]
    for thread, message in known:
        memory.learn([message], thread=thread)
    answer = memory.recall("kite", top_k=9, thread_id="now", context_format=MASTRA)
    assert len(answer.messages) == 7
    assert answer.context_text == MASTRA_BLOCK
    narrow = memory.recall(
        "kite", top_k=9, thread_id="now", scope=THREAD_ONLY, context_format=MASTRA
    )
    assert narrow.context_text == ""
    assert ids(narrow.messages) == ["m6"]


def test_no_context_and_other_threads_only_change_the_text_and_not_the_messages(
    two_threads: Memory,
) -> None:
    whole = two_threads.recall("kite", thread_id="here")
    none = two_threads.recall("kite", thread_id="here", context_format=types_pb2.CONTEXT_NONE)
    others = two_threads.recall("kite", thread_id="here", context_other_threads_only=True)
    assert none.context_text == ""
    assert list(none.messages) == list(whole.messages) == list(others.messages)
    assert 'Conversation "here" (this conversation)' in whole.context_text
    assert "kite here" not in others.context_text
    assert "kite there" in others.context_text


# C9, C10 ----------------------------------------------------------------------------------------


def test_an_answer_carries_every_field_as_it_was_sent(memory: Memory) -> None:
    sent = said(
        "id-1",
        "kite over the bay",
        at=NOON_NS + 123_456_789,
        role=ASSISTANT,
        author="Ann",
        metadata={"project": "A", "n": 1.5, "list": [1, None, {"deep": True}]},
        payload=bytes(range(256)),
        payload_type="application/x-turn",
        group_id="g1",
    )
    memory.learn([sent], thread="here")
    sent.thread_id, sent.resource_id = "here", memory.resource_id
    answer = memory.recall("kite over the bay")
    assert [m.message for m in answer.messages] == [sent]
    assert memory.got("id-1") == memory.listed() == memory.exported() == [sent]


def test_user_and_assistant_texts_are_embedded_and_the_others_are_not(
    memory: Memory, embedder: FakeEmbedder
) -> None:
    runs = embedder.runs
    statuses = memory.index(
        [said(f"m{r}", f"kite {memory.resource_id} {r}", role=r) for r in (USER, ASSISTANT)]
        + [said(f"m{r}", f"kite {memory.resource_id} {r}", role=r) for r in (SYSTEM, TOOL)]
    )
    assert statuses == [INDEXED, INDEXED, NOT_EMBEDDED, NOT_EMBEDDED]
    assert embedder.runs == runs + 2
    answer = memory.recall("kite", top_k=9, message_range=window(0, 2))
    assert sorted(hit_ids(answer)) == [f"m{USER}", f"m{ASSISTANT}"]
    assert len(answer.messages) == 4


# C11, S17, S19 ----------------------------------------------------------------------------------


@pytest.mark.model
def test_a_turns_user_text_is_embedded_once_for_recall_and_index(real_memory: Memory) -> None:
    text = f"a question nobody asked before, of {real_memory.resource_id}"
    assert not real_memory.recall(text).info.cache_hit
    turn = [said("q", text), said("a", f"an answer for {real_memory.resource_id}", role=ASSISTANT)]
    info = real_memory.index_answer(turn).info
    assert (info.embeddings_computed, info.embeddings_cached) == (1, 1)
    assert real_memory.recall(text).info.cache_hit


def test_six_messages_of_a_call_are_embedded_once_each(
    memory: Memory, embedder: FakeEmbedder
) -> None:
    runs = embedder.runs
    messages = conversation(f"{memory.resource_id} kite {i}" for i in range(6))
    info = memory.index_answer([*messages, said("again", messages[0].text)]).info
    assert info.embeddings_computed == 6
    assert info.embeddings_cached == 1
    assert embedder.runs == runs + 6


@pytest.mark.model
def test_a_cached_vector_is_that_of_its_own_role_and_text(real: Sidecar) -> None:
    texts = ["kite over the bay", "Kite over the bay", "kite over the bay ", "kite  over the bay"]
    vectors = {}
    for role in (recall_pb2.EMBED_ROLE_QUERY, recall_pb2.EMBED_ROLE_PASSAGE):
        request = recall_pb2.EmbedRequest(texts=texts, role=role)
        answer = real.service.Embed(request, timeout=DEADLINE_SECONDS)
        vectors[role] = np.array([e.values for e in answer.embeddings])
        assert answer.dimensions == vectors[role].shape[1]
        assert np.allclose(np.linalg.norm(vectors[role], axis=1), 1, atol=1e-5)
    # The default model has no prompts and is uncased: the same vectors, by whichever way.
    assert (vectors[recall_pb2.EMBED_ROLE_QUERY] == vectors[recall_pb2.EMBED_ROLE_PASSAGE]).all()
    first = vectors[recall_pb2.EMBED_ROLE_QUERY][0]
    assert np.allclose(vectors[recall_pb2.EMBED_ROLE_QUERY], first, atol=1e-6)


# C13, S20, S21 ----------------------------------------------------------------------------------

CHANGES: dict[str, tuple[Callable[[Memory], object], int, int]] = {
    "edit": (lambda memory: memory.index([said("m0", "a plain stone")]), 3, 3),
    "delete one": (lambda memory: memory.forget("m0"), 2, 2),
    "delete thread": (lambda memory: memory.forget(thread_id="t"), 0, 0),
    "delete all": (lambda memory: memory.forget(everything=True), 0, 0),
    "give away": (lambda memory: memory.transfer("t", f"{memory.resource_id}-heir"), 0, 0),
    "edit to a tool's": (lambda memory: memory.index([said("m0", "kite", role=TOOL)]), 3, 2),
}


@pytest.mark.parametrize(("change", "messages", "vectors"), CHANGES.values(), ids=CHANGES.keys())
def test_every_change_of_a_message_reaches_its_vectors_before_it_answers(
    memory: Memory, model: Model, change: Callable[[Memory], object], messages: int, vectors: int
) -> None:
    memory.learn(conversation(["kite over the bay", "kite two", "three"]))
    assert hit_ids(memory.recall("kite over the bay", top_k=1, ranking=BY_COSINE)) == ["m0"]
    change(memory)
    stats = memory.stats()
    assert (stats.messages, stats.vectors, stats.pending) == (messages, vectors, 0)
    searchable = [m for m in memory.listed() if m.role == USER]
    answer = memory.recall("kite over the bay", top_k=9, message_range=ALONE, ranking=BY_COSINE)
    model.assert_best(answer, "kite over the bay", searchable, 9)


def test_a_thread_given_away_is_found_by_its_new_owner_alone(memory: Memory, model: Model) -> None:
    heir = memory.sidecar.memory(f"{memory.resource_id}-heir")
    memory.learn(conversation(["kite over the bay", "kite two"]))
    before = memory.recall("kite over the bay", top_k=2, message_range=ALONE, ranking=BY_COSINE)
    assert memory.transfer("t", heir.resource_id) == 2
    after = heir.recall("kite over the bay", top_k=2, message_range=ALONE)
    assert hit_ids(after) == hit_ids(before)
    assert scores(after) == scores(before)
    assert {m.message.resource_id for m in after.messages} == {heir.resource_id}
    assert memory.threads() == []
    assert memory.index([said("m0", "a message of my own")]) == [INDEXED]
    assert heir.index([said("m0", "kite no more")]) == [REPLACED]
    model.assert_best(heir.recall("kite", top_k=9), "kite", heir.listed(), 9)


# S2, S30, S32 -----------------------------------------------------------------------------------


@pytest.mark.model
def test_one_identity_holds_model_revision_and_dimension(real: Sidecar, fresh: str) -> None:
    memory = real.memory(fresh)
    memory.learn([said("m", "kite")])
    request = recall_pb2.EmbedRequest(texts=["kite"])
    embedded = real.service.Embed(request, timeout=DEADLINE_SECONDS)
    identities = {
        real.stats().index_identity,
        memory.recall("kite").info.index_identity,
        embedded.index_identity,
    }
    [identity] = identities
    assert re.fullmatch(r"all-MiniLM-L6-v2@[0-9a-f]{8,}/384/int8#[0-9a-f]{8}", identity)
    assert embedded.dimensions == 384


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"max_tokens": 1000}, "HYBRID"),
        ({"ranking": {"mode": types_pb2.MODE_HYBRID}}, "HYBRID"),
        ({"ranking": {"mode": types_pb2.MODE_LEXICAL}}, "LEXICAL"),
        ({"ranking": {"mode": types_pb2.MODE_DENSE, "recency_weight": 0.5}}, "DENSE"),
        ({"ranking": {"recency_weight": 0.5, "recency_half_life": {"seconds": 3600}}}, "HYBRID"),
        ({"ranking": {"diversity": 0.5}}, "HYBRID"),
        ({"ranking": {"near_duplicate_cosine": 0.98}}, "HYBRID"),
        ({"alternative_queries": ["another phrasing"]}, "HYBRID"),
    ],
    ids=str,
)
def test_every_way_of_ranking_is_done_and_said(
    two_threads: Memory, fields: dict[str, Any], mode: str
) -> None:
    answer = two_threads.recall("kite", **fields)
    assert types_pb2.Mode.Name(answer.info.mode_used) == f"MODE_{mode}"
    assert hits(answer)
    for hit in hits(answer):
        assert hit.HasField("relevance")
        assert hit.HasField("score") is (mode != "LEXICAL")
