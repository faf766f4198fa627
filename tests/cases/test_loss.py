"""Loss, edits, deletion: nothing accepted is lost, nothing replaced or forgotten comes back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.errors import EmbeddingFailedError, UnavailableError
from support.fake_embedder import FakeEmbedder
from support.wire_memory import (
    ALONE,
    ASSISTANT,
    BY_COSINE,
    DURABLE,
    INDEXED,
    NOON_NS,
    PENDING,
    REPLACED,
    SECOND_NS,
    UNCHANGED,
    Memory,
    Model,
    Refusal,
    conversation,
    eventually,
    hit_ids,
    hits,
    ids,
    refused,
    said,
    scores,
    window,
)


def is_settled(memory: Memory) -> bool:
    """Nothing waits to be embedded, and Recall knows it."""
    return memory.stats().pending == 0 and memory.recall("").info.pending == 0


# LOSS-1 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(6))
@pytest.mark.parametrize("times", [1, 2])
def test_one_failure_of_six_is_told_counted_and_made_good(
    memory: Memory, embedder: FakeEmbedder, model: Model, position: int, times: int
) -> None:
    messages = conversation(f"{memory.resource_id} item{i} thing{i}" for i in range(6))
    failing = messages[position]
    embedder.fail_on(failing.text, EmbeddingFailedError("out of order"), times=times)
    answer = memory.index_answer(messages)
    for i, result in enumerate(answer.results):
        assert result.status == (PENDING if i == position else INDEXED)
        assert (result.error.reason == "EMBEDDING_FAILED") is (i == position)
    others = [m for m in messages if m.id != failing.id]
    query = f"item{position} thing{position}"
    at_once = memory.recall(query, top_k=6, message_range=ALONE, ranking=BY_COSINE)
    if at_once.info.pending:
        model.assert_best(at_once, query, others, 6)
    eventually(lambda: is_settled(memory))
    healed = memory.recall(query, top_k=6, message_range=ALONE, ranking=BY_COSINE)
    model.assert_best(healed, query, messages, 6)
    assert healed.info.pending == 0


# LOSS-2 -----------------------------------------------------------------------------------------

DOWN: dict[str, Exception] = {
    "failed": EmbeddingFailedError("the model failed"),
    "unavailable": UnavailableError("the endpoint is away"),
    "unexpected": ConnectionResetError("secret detail of a library"),
}


@pytest.mark.parametrize("error", DOWN.values(), ids=DOWN.keys())
def test_recall_heals_by_itself_when_the_embedder_was_down_at_the_first_call(
    start: Any, tmp_path: Path, model: Model, error: Exception
) -> None:
    with start(tmp_path) as server:
        memory, embedder = server.sidecar.memory("u"), server.embedder
        embedder.fail_everything(error)
        messages = conversation(["oak tree", "pine cone", "maple syrup"])
        assert memory.index(messages) == [PENDING] * 3
        for _ in range(2):
            refusal = Refusal()
            with pytest.raises(grpc.RpcError) as caught:
                memory.recall("oak leaf", ranking=BY_COSINE)
            refusal.keep(caught.value)
            known = not isinstance(error, ConnectionResetError)
            expected = grpc.StatusCode.UNAVAILABLE if known else grpc.StatusCode.INTERNAL
            assert refusal.code is expected
            assert refusal.detail.retryable is known
            assert "secret" not in refusal.details
        assert ids(memory.listed()) == ["m0", "m1", "m2"]
        embedder.heal()
        model_answer = memory.recall("oak leaf", top_k=3, message_range=ALONE, ranking=BY_COSINE)
        assert {*hit_ids(model_answer)} <= {"m0", "m1", "m2"}
        assert memory.index([said("m3", "oak leaf")]) == [INDEXED]
        eventually(lambda: is_settled(memory))
        answer = memory.recall("oak leaf", top_k=4, message_range=ALONE, ranking=BY_COSINE)
        model.assert_best(answer, "oak leaf", memory.listed(), 4)


def test_messages_accepted_while_the_embedder_was_down_survive_a_restart(
    start: Any, tmp_path: Path, model: Model
) -> None:
    messages = conversation(["oak tree", "pine cone", "maple syrup"])
    with start(tmp_path) as server:
        server.embedder.fail_everything()
        assert server.sidecar.memory("u").index(messages) == [PENDING] * 3
    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        eventually(lambda: is_settled(memory))
        answer = memory.recall("oak leaf", top_k=3, message_range=ALONE, ranking=BY_COSINE)
        model.assert_best(answer, "oak leaf", messages, 3)


# LOSS-3 -----------------------------------------------------------------------------------------


def test_a_restart_changes_no_answer_over_5000_messages(start: Any, tmp_path: Path) -> None:
    rng = random.Random(11)
    words = [f"word{i}" for i in range(400)]
    texts = [" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(5_000)]
    queries = [" ".join(rng.choices(words, k=4)) for _ in range(12)]

    def answers(memory: Memory) -> list[Any]:
        found = [memory.recall(query, top_k=20, message_range=window(1, 1)) for query in queries]
        assert all(len(hits(answer)) == 20 for answer in found)
        return [(list(answer.messages), answer.context_text) for answer in found]

    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        for start_at in range(0, 5_000, 500):
            thread = f"t{start_at % 3}"
            messages = conversation(texts[start_at : start_at + 500], prefix=f"m{start_at}-")
            memory.learn(messages, thread=thread)
        memory.forget(thread_id="t2")
        memory.index([said("m0-0", "rewritten words here")], thread="t0")
        before, token = answers(memory), memory.index_answer([said("x", "word1")]).read_token
        memory.forget("x")
    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        assert answers(memory) == before
        assert memory.recall(queries[0], read_token=token).messages
        # The embeddings were read from the record: only the queries (and the start) ran.
        assert not {*server.embedder.texts_run} & {*texts}


# LOSS-4 -----------------------------------------------------------------------------------------

OLD, NEW = "Maya works at Acme", "Maya works at Beta Corp"
NEWS: dict[str, dict[str, Any]] = {
    "same time": {"at": NOON_NS},
    "no time": {},
    "later": {"at": NOON_NS + SECOND_NS},
    "by the assistant": {"role": ASSISTANT},
}


def assert_only_the_new_text(memory: Memory, model: Model) -> None:
    """Neither query finds the old text; both find the new one with its own score."""
    for query in ("Acme", "Beta Corp", OLD, NEW):
        answer = memory.recall(query, top_k=5, ranking=BY_COSINE)
        assert [m.message.text for m in answer.messages] == [NEW]
        assert "Acme" not in answer.context_text
        model.assert_best(answer, query, [said("m", NEW)], 5)
    assert [m.text for m in (*memory.listed(), *memory.exported(), *memory.got("m"))] == [NEW] * 3
    stats = memory.stats()
    assert (stats.messages, stats.vectors, stats.pending) == (1, 1, 0)


@pytest.mark.parametrize("news", NEWS.values(), ids=NEWS.keys())
def test_an_edited_message_is_only_what_it_says_now(
    start: Any, tmp_path: Path, model: Model, news: dict[str, Any]
) -> None:
    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        memory.learn([said("m", OLD, at=NOON_NS)])
        assert hit_ids(memory.recall("Acme")) == ["m"]
        assert memory.index([said("m", NEW, **news)]) == [REPLACED]
        assert_only_the_new_text(memory, model)
    with start(tmp_path) as server:
        assert_only_the_new_text(server.sidecar.memory("u"), model)


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "restart"])
def test_an_edit_while_the_embedder_is_down_hides_the_old_text_at_once(
    start: Any, tmp_path: Path, model: Model, restart: bool
) -> None:
    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        memory.learn([said("m", OLD, at=NOON_NS), said("other", "weather report", at=NOON_NS)])
        server.embedder.fail_on(NEW)
        assert memory.index([said("m", NEW)]) == [PENDING]
        for query in (OLD, "Acme", "Maya", "Beta Corp"):
            answer = memory.recall(query, top_k=5, ranking=BY_COSINE)
            assert hit_ids(answer) == ["other"]
            assert OLD not in [m.message.text for m in answer.messages]
            assert answer.info.pending == 1
            by_default = memory.recall(query, top_k=5)
            assert {m.message.text for m in by_default.messages} <= {NEW, "weather report"}
        [found] = [m for m in memory.recall("Beta Corp").messages if m.message.id == "m"]
        assert (found.message.text, found.lexical_only) == (NEW, True)
        by_words = recall_pb2.Ranking(mode=types_pb2.MODE_LEXICAL)
        assert hit_ids(memory.recall("Acme", ranking=by_words)) == []
        memory.forget("other")
        if not restart:
            server.embedder.heal()
            eventually(lambda: is_settled(memory))
            assert_only_the_new_text(memory, model)
    if restart:
        with start(tmp_path) as server:
            memory = server.sidecar.memory("u")
            eventually(lambda: is_settled(memory))
            assert_only_the_new_text(memory, model)


def test_an_edit_back_to_the_first_text_is_that_text_again(memory: Memory, model: Model) -> None:
    for text in (OLD, NEW, OLD, NEW):
        memory.index([said("m", text, at=NOON_NS)])
    assert_only_the_new_text(memory, model)


@pytest.mark.parametrize("emptied", [said("m", " "), said("m", OLD, role=types_pb2.ROLE_TOOL)])
def test_an_edit_to_nothing_embeddable_leaves_no_vector(
    memory: Memory, emptied: types_pb2.Message
) -> None:
    memory.learn([said("m", OLD)])
    memory.index([emptied])
    assert list(memory.recall("Acme").messages) == []
    stats = memory.stats()
    assert (stats.messages, stats.vectors, stats.pending) == (1, 0, 0)


def test_an_edit_that_overtakes_its_first_embedding_wins(
    memory: Memory, embedder: FakeEmbedder, model: Model
) -> None:
    old, new = f"{memory.resource_id} works at Acme", f"{memory.resource_id} works at Beta"
    gate = embedder.block_on(old)
    assert memory.index([said("m", old)], wait=DURABLE) == [PENDING]
    assert gate.entered.wait(30)
    assert memory.index([said("m", new)], wait=DURABLE) == [PENDING]
    gate.release.set()
    eventually(lambda: is_settled(memory))
    for query in (old, new, "Acme", "Beta"):
        answer = memory.recall(query, top_k=5, ranking=BY_COSINE)
        model.assert_best(answer, query, [said("m", new)], 5)
        assert [m.message.text for m in answer.messages] == [new]
    assert memory.stats().vectors == 1


# LOSS-5 -----------------------------------------------------------------------------------------

TAIL = "zebra xylophone quartz"


@pytest.mark.parametrize("chunks", [2, 5])
def test_the_tail_of_a_long_message_is_gone_when_it_becomes_short(
    start: Any, tmp_path: Path, model: Model, chunks: int
) -> None:
    words = 64 + (chunks - 1) * 56
    long = " ".join([f"filler{i}" for i in range(words - 3)] + [TAIL])
    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        memory.learn([said("m", long)])
        assert memory.stats().vectors == chunks
        found = memory.recall(TAIL, explain=True, ranking=BY_COSINE)
        assert hits(found)[0].explain.chunk == chunks - 1
        assert memory.index([said("m", "short note")]) == [REPLACED]
        assert memory.stats().vectors == 1
    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        answer = memory.recall(TAIL, explain=True, ranking=BY_COSINE)
        model.assert_best(answer, TAIL, [said("m", "short note")], 4)
        assert hits(answer)[0].explain.chunks == 1
        assert list(memory.recall(TAIL, threshold=0.4, ranking=BY_COSINE).messages) == []


# LOSS-6 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [["a"], ["b"], ["c"], ["a", "c"], ["a", "b", "c"]])
def test_what_follows_a_deletion_takes_nobodys_place(
    start: Any, tmp_path: Path, model: Model, gone: list[str]
) -> None:
    texts = {name: f"{name} song about {name}land" for name in "abcde"}
    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        memory.learn([said(name, texts[name], at=NOON_NS) for name in "abc"])
        assert memory.forget(*gone).messages == len(gone)
        memory.learn([said("d", texts["d"], at=NOON_NS)])
        here = [name for name in "abcd" if name not in gone]
        assert_each_is_itself(memory, texts, here)
    with start(tmp_path) as server:
        memory = server.sidecar.memory("u")
        assert_each_is_itself(memory, texts, here)
        memory.learn([said("e", texts["e"], at=NOON_NS)])
        assert_each_is_itself(memory, texts, [*here, "e"])
        model.assert_best(
            memory.recall("song", top_k=9, message_range=ALONE, ranking=BY_COSINE),
            "song",
            memory.listed(),
            9,
        )


def assert_each_is_itself(memory: Memory, texts: dict[str, str], here: list[str]) -> None:
    for name in here:
        answer = memory.recall(texts[name], top_k=1, message_range=ALONE)
        assert hit_ids(answer) == [name]
        assert answer.messages[0].message.text == texts[name]
        assert scores(answer)[0] >= 0.999
    assert sorted(ids(memory.listed())) == sorted(here)


@pytest.mark.parametrize("seed", range(4))
def test_any_history_of_changes_leaves_what_a_dictionary_would_hold(
    start: Any, tmp_path: Path, model: Model, seed: int
) -> None:
    rng = random.Random(seed)
    right: dict[str, str] = {}
    arrival: dict[str, int] = {}
    for round_number in range(2):
        with start(tmp_path) as server:
            memory = server.sidecar.memory("u")
            for step in range(40):
                name = f"m{rng.randrange(9)}"
                text = " ".join(rng.choices(["red", "blue", "fox", "owl", "ice", "sun"], k=3))
                if rng.random() < 0.3:
                    assert memory.forget(name).messages == (name in right)
                    right.pop(name, None)
                else:
                    expected = (
                        UNCHANGED
                        if right.get(name) == text
                        else REPLACED
                        if name in right
                        else INDEXED
                    )
                    assert memory.index([said(name, text)]) == [expected]
                    if expected == INDEXED:
                        arrival[name] = round_number * 100 + step
                    right[name] = text
            in_order = sorted(right, key=lambda name: arrival[name])
            messages = [said(name, right[name]) for name in in_order]
            answer = memory.recall("red fox", top_k=9, message_range=ALONE, ranking=BY_COSINE)
            assert {m.message.id: m.message.text for m in answer.messages} == right
            assert ids(memory.listed("t")) == in_order
            expected_scores = [score for _, score in model.ranked("red fox", messages)]
            assert scores(answer) == pytest.approx(expected_scores, abs=2e-6)


def test_forgetting_what_is_not_there_counts_zero_and_harms_nothing(memory: Memory) -> None:
    memory.learn(conversation(["one", "two"]))
    assert memory.forget("unknown").messages == 0
    assert memory.forget(thread_id="unknown").threads == 0
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        memory.forget(everything=False)
    assert ids(memory.listed()) == ["m0", "m1"]
