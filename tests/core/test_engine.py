"""The use cases over the real record and index, with an embedder that fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from semanticrecall_core.engine import VerifyReport
from semanticrecall_core.engine.warming import WarmingLimits
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    EmbeddingFailedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnimplementedError,
)
from semanticrecall_core.types.filters import parse_filter
from semanticrecall_core.types.recalling import (
    GroupState,
    Mode,
    RecallAnswer,
    RecallQuery,
    Scope,
    WhyEmpty,
)
from semanticrecall_core.types.values import CallBudget, EmbedRole, ForgetTarget, Role, Status, Wait
from support.fake_embedder import text_vector
from support.running_engine import WAIT_SECONDS, Running, await_pending, draft, hit_ids, ids


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "data")
    yield made
    made.embedder.heal()
    made.engine.stop()


def test_statuses_say_what_became_of_each_message(running: Running) -> None:
    first = running.add(draft("a", "green tea"), draft("b", "", embeddable=False))
    assert [r.status for r in first.results] == [Status.INDEXED, Status.NOT_EMBEDDED]
    again = running.add(
        draft("a", "green tea"), draft("b", "", embeddable=False), draft("c", "black tea")
    )
    assert [r.status for r in again.results] == [
        Status.UNCHANGED,
        Status.UNCHANGED,
        Status.INDEXED,
    ]
    assert again.embeddings_computed == 1
    edited = running.add(draft("a", "white tea"))
    assert [r.status for r in edited.results] == [Status.REPLACED]


def test_scores_are_the_cosines(running: Running) -> None:
    texts = {"a": "green tea", "b": "black tea with milk", "c": "the harbour of Oslo"}
    running.add(*(draft(id, text) for id, text in texts.items()))
    answer = running.recall("green tea please", before=0, after=0)
    query = text_vector("green tea please", 64).astype(np.float64)
    right = {id: float(text_vector(text, 64) @ query) for id, text in texts.items()}
    assert hit_ids(answer) == sorted(right, key=lambda id: -right[id])
    for message in answer.messages:
        assert message.found is not None
        assert message.found.cosine == pytest.approx(right[message.message.id], abs=1e-6)
    assert answer.info.best_score == max(m.found.cosine for m in answer.messages if m.found)


@pytest.mark.parametrize("fault", ["raise", "nan", "zeros", "size"])
def test_one_bad_embedding_harms_only_its_message(running: Running, fault: str) -> None:
    """LOSS-1, TEXT-4: durable, pending, retried until it works; the others are searchable."""
    bad = "the third one breaks"
    match fault:
        case "raise":
            running.embedder.fail_on(bad)
        case "nan":
            running.embedder.return_nan_on(bad)
        case "zeros":
            running.embedder.return_zeros_on(bad)
        case _:
            running.embedder.fail_on(bad, EmbeddingFailedError("wrong size"))
    texts = ["one", "two", bad, "four", "five", "six"]
    answer = running.add(*(draft(str(i), text) for i, text in enumerate(texts)))
    assert [r.status for r in answer.results] == [
        Status.INDEXED,
        Status.INDEXED,
        Status.PENDING,
        Status.INDEXED,
        Status.INDEXED,
        Status.INDEXED,
    ]
    assert answer.results[2].error is not None
    assert answer.results[2].error.reason == "EMBEDDING_FAILED"
    before = running.recall("four", top_k=10, before=0, after=0)
    assert sorted(hit_ids(before)) == ["0", "1", "3", "4", "5"]
    assert before.info.pending == 1
    running.embedder.heal()
    running.embedder._bad.clear()
    await_pending(running, 0)
    assert hit_ids(running.recall(bad, top_k=1, before=0, after=0)) == ["2"]


def test_pending_rows_survive_a_restart(tmp_path: Path) -> None:
    first = Running(tmp_path / "data")
    first.embedder.fail_everything()
    answer = first.add(draft("a", "green tea"), wait=Wait.DURABLE)
    assert answer.results[0].status is Status.PENDING
    first.engine.stop()
    second = Running(tmp_path / "data")
    await_pending(second, 0)
    assert hit_ids(second.recall("green tea")) == ["a"]
    second.engine.stop()


def test_an_edit_while_its_old_text_is_embedded_wins(running: Running) -> None:
    gate = running.embedder.block_on("old text")
    running.add(draft("a", "old text"), wait=Wait.DURABLE)
    assert gate.entered.wait(WAIT_SECONDS)
    running.add(draft("a", "new words"))
    gate.release.set()
    await_pending(running, 0)
    answer = running.recall("old text", before=0, after=0)
    assert [m.message.text for m in answer.messages] == ["new words"]
    assert answer.messages[0].found is not None
    right = float(text_vector("old text", 64) @ text_vector("new words", 64))
    assert answer.messages[0].found.cosine == pytest.approx(right, abs=1e-6)


def test_forgetting_while_a_text_is_embedded_leaves_nothing(running: Running) -> None:
    gate = running.embedder.block_on("secret text")
    running.add(draft("a", "secret text"), draft("b", "other"), wait=Wait.DURABLE)
    assert gate.entered.wait(WAIT_SECONDS)
    report = running.engine.forget("u", ForgetTarget(message_ids=("a",)))
    assert report.messages == 1
    gate.release.set()
    await_pending(running, 0)
    assert ids(running.recall("any text", top_k=10)) == ["b"]
    assert ("u", "secret text") not in running.embedder._cache


def test_a_thread_given_away_while_pending_is_searchable_there(running: Running) -> None:
    gate = running.embedder.block_on("my diary")
    running.add(draft("a", "my diary"), wait=Wait.DURABLE)
    assert gate.entered.wait(WAIT_SECONDS)
    assert running.engine.transfer_thread("u", "t", "v") == 1
    gate.release.set()
    await_pending(running, 0)
    assert ids(running.recall("my diary", resource="u")) == []
    assert ids(running.recall("my diary", resource="v")) == ["a"]


def test_read_token_waits_for_what_was_accepted(running: Running) -> None:
    gate = running.embedder.block_on("slow text")
    token = running.add(draft("a", "slow text"), wait=Wait.DURABLE).read_token
    answers: list[RecallAnswer] = []
    caller = threading.Thread(
        target=lambda: answers.append(running.recall("anything", read_token=token))
    )
    caller.start()
    assert gate.entered.wait(WAIT_SECONDS)
    assert not answers
    gate.release.set()
    caller.join(WAIT_SECONDS)
    assert ids(answers[0]) == ["a"]


def test_read_token_ends_with_the_deadline_and_not_for_a_failed_text(running: Running) -> None:
    gate = running.embedder.block_on("slow text")
    token = running.add(draft("a", "slow text"), wait=Wait.DURABLE).read_token
    with pytest.raises(DeadlineExceededError):
        running.engine.recall(RecallQuery("u", "x", read_token=token), CallBudget.of_seconds(0.05))
    running.embedder.fail_on("slow text")
    gate.release.set()
    assert running.recall("x", read_token=token).info.pending == 1


@pytest.mark.parametrize(
    "token", ["", "1", "nonsense", "1.x.y.z", "2.a.b.3", "1.a.b.-3", "1.a.b.²"]
)
def test_read_token_that_is_none(running: Running, token: str) -> None:
    if token:
        with pytest.raises(InvalidArgumentError, match="read_token"):
            running.recall("x", read_token=token)
    else:
        assert running.recall("x").info.why_empty is WhyEmpty.NO_MESSAGES


def test_read_token_of_another_place(running: Running, tmp_path: Path) -> None:
    token = running.add(draft("a", "x")).read_token
    with pytest.raises(InvalidArgumentError, match="read_token"):
        running.recall("x", resource="v", read_token=token)
    other = Running(tmp_path / "other")
    with pytest.raises(FailedPreconditionError, match="read_token"):
        other.recall("x", read_token=token)
    other.engine.stop()


def test_groups_are_whole(running: Running) -> None:
    """WIN-5: a call and its three results at the edge of a window."""
    tool = {"role": Role.TOOL, "embeddable": False, "group_id": "g"}
    running.add(
        draft("hit", "what is the weather in Oslo"),
        draft("call", "", role=Role.ASSISTANT, embeddable=False, group_id="g"),
        *(draft(f"result{i}", f"result {i}", **tool) for i in range(3)),
        draft("last", "so it rains"),
    )
    answer = running.recall("weather in Oslo", top_k=1, before=0, after=1)
    assert ids(answer) == ["hit", "call", "result0", "result1", "result2"]
    assert [m.group_state for m in answer.messages] == [
        GroupState.NO_GROUP,
        *[GroupState.WHOLE] * 4,
    ]


def test_a_group_too_large_is_absent_but_for_its_hits(running: Running) -> None:
    group = {"group_id": "g"}
    running.add(
        draft("before", "something else"),
        draft("hit", "the needle", **group),
        *(draft(f"m{i}", f"straw {i}", embeddable=False, **group) for i in range(70)),
    )
    answer = running.recall("the needle", top_k=1, before=1, after=1)
    assert ids(answer) == ["before", "hit"]
    assert answer.messages[1].group_state is GroupState.HIT_ONLY
    assert answer.info.absent_group_ids == ("g",)


def test_filter_holds_for_neighbours_too_and_unknown_keys_are_refused(running: Running) -> None:
    running.add(
        draft("a1", "plan of the house", metadata_json='{"project":"A"}'),
        draft("b1", "plan of the garden", metadata_json='{"project":"B"}'),
        draft("a2", "plan of the roof", metadata_json='{"project":"A"}'),
    )
    only_a = parse_filter({"project": "A"})
    assert ids(running.recall("plan of the house", top_k=1, filter=only_a)) == ["a1"]
    with pytest.raises(InvalidArgumentError, match="projct"):
        running.recall("plan", filter=parse_filter({"projct": {"$ne": "B"}}))
    asked = running.recall("plan", filter=parse_filter({"projct": {"$exists": False}}))
    assert sorted(ids(asked)) == ["a1", "a2", "b1"]
    assert asked.info.unknown_filter_keys == ("projct",)
    fresh = running.recall("plan", resource="new", filter=parse_filter({"projct": "A"}))
    assert fresh.info.why_empty is WhyEmpty.NO_MESSAGES


def test_declared_filter_keys_may_be_absent(tmp_path: Path) -> None:
    running = Running(tmp_path / "data", filter_keys=frozenset(("project",)))
    running.add(draft("a", "plan"))
    answer = running.recall("plan", filter=parse_filter({"project": "A"}))
    assert answer.info.why_empty is WhyEmpty.FILTERED
    running.engine.stop()


def test_answers_stay_below_the_byte_limit(tmp_path: Path) -> None:
    running = Running(tmp_path / "data", answer_bytes_max=1400)
    running.add(*(draft(f"m{i}", f"needle {'straw ' * i}", payload=b"x" * 300) for i in range(9)))
    answer = running.recall("needle", top_k=2, before=2, after=2)
    assert hit_ids(answer) == ["m0", "m1"]
    said = sum(len(m.message.payload) + len(m.message.text) for m in answer.messages)
    assert said + len(answer.context_text) <= 1400
    assert answer.info.messages_dropped == 4 - len(answer.messages)
    running.engine.stop()


def test_index_answers_with_pending_when_its_time_ends(running: Running) -> None:
    gate = running.embedder.block_on("slow text")
    answer = running.engine.index(
        "u", [draft("a", "slow text")], Wait.SEARCHABLE, CallBudget.of_seconds(0.2)
    )
    assert answer.results[0].status is Status.PENDING
    gate.release.set()
    await_pending(running, 0)
    assert ids(running.recall("slow text")) == ["a"]


def test_a_full_backlog_refuses_before_anything_is_stored(tmp_path: Path) -> None:
    running = Running(tmp_path / "data", backlog_rows_max=2)
    running.embedder.fail_everything()
    running.add(draft("a", "one"), draft("b", "two"), wait=Wait.DURABLE)
    with pytest.raises(ResourceExhaustedError) as refused:
        running.add(draft("c", "three"))
    assert refused.value.reason == "BACKLOG_FULL"
    assert running.engine.stats("u").messages == 2
    running.engine.stop()


def test_what_is_not_there_yet_says_so(running: Running) -> None:
    for mode in (Mode.HYBRID, Mode.LEXICAL):
        with pytest.raises(UnimplementedError):
            running.recall("x", mode=mode)


def test_cancelled_and_late_callers_cost_nothing(running: Running) -> None:
    runs = running.embedder.runs
    with pytest.raises(CancelledError):
        running.engine.recall(RecallQuery("u", "x"), CallBudget(float("inf"), lambda: True))
    with pytest.raises(DeadlineExceededError):
        running.engine.recall(RecallQuery("u", "x"), CallBudget.of_seconds(-1))
    with pytest.raises((CancelledError, DeadlineExceededError)):
        running.engine.index("u", [draft("a", "x")], Wait.DURABLE, CallBudget.of_seconds(-1))
    assert running.embedder.runs == runs
    assert running.engine.stats(None).messages == 0


def test_query_embedding_stands_in_for_the_query(running: Running) -> None:
    running.add(draft("a", "green tea"), draft("b", "harbour"))
    vector = 7.5 * text_vector("harbour", 64)
    answer = running.recall("", embedding=vector, top_k=1, before=0, after=0)
    assert ids(answer) == ["b"]
    assert answer.info.best_score == pytest.approx(1.0, abs=1e-6)
    for bad in (np.zeros(64), np.full(64, np.nan), np.ones(63), np.full(64, np.inf)):
        with pytest.raises(InvalidArgumentError, match="query_embedding"):
            running.recall("", embedding=bad.astype(np.float32))


def test_empty_answers_say_why(running: Running) -> None:
    assert running.recall("  \u200b\n").info.why_empty is WhyEmpty.NO_QUERY
    assert running.recall("x").info.why_empty is WhyEmpty.NO_MESSAGES
    running.add(draft("a", "green tea"))
    nowhere = running.recall("x", scope=Scope.THREAD, thread_id="nowhere")
    assert nowhere.info.why_empty is WhyEmpty.NO_MESSAGES
    assert (nowhere.info.candidates, nowhere.info.searchable) == (0, 1)  # of the resource
    excluded = running.recall("green tea", excluded_ids=("a",))
    assert (excluded.info.why_empty, excluded.info.best_score) == (WhyEmpty.FILTERED, None)
    below = running.recall("harbour", threshold=0.99)
    assert below.info.why_empty is WhyEmpty.BELOW_THRESHOLD
    right = float(text_vector("harbour", 64) @ text_vector("green tea", 64))
    assert below.info.best_score == pytest.approx(right, abs=1e-6)


def test_get_says_nothing_about_strangers(running: Running) -> None:
    running.add(draft("a", "x"), resource="u")
    running.add(draft("b", "y"), resource="v")
    texts = []
    for id in ("b", "never"):
        with pytest.raises(NotFoundError) as refused:
            running.engine.get_messages("u", ["a", id])
        texts.append(refused.value.message)
    assert texts[0] == texts[1]


def test_embed_gives_one_unit_vector_a_text(running: Running) -> None:
    long = " ".join(f"word{i}" for i in range(100))
    for role in EmbedRole:
        budget = CallBudget.of_seconds(WAIT_SECONDS)
        embedding = running.engine.embed(["green tea", long], role, budget)
        assert embedding.dimensions == 64
        assert embedding.index_identity == running.embedder.index_identity
        short, cut = embedding.texts
        assert np.array_equal(short.vectors[0], text_vector("green tea", 64))
        assert not short.truncated
        assert cut.truncated
        assert cut.vectors.shape == (1, 64)


def test_verify_of_a_sound_store_finds_nothing(running: Running) -> None:
    running.add(*(draft(str(i), f"text number {i}") for i in range(50)))
    assert list(running.engine.verify("u")) == [VerifyReport(50, 50, 0)]
    assert list(running.engine.verify(None)) == [VerifyReport(50, 50, 0)]


def test_start_reads_the_resources_written_last(tmp_path: Path) -> None:
    first = Running(tmp_path / "data")
    for resource in ("a", "b", "c"):
        first.add(draft("m", "x"), resource=resource)
    first.engine.stop()
    second = Running(tmp_path / "data", warming=WarmingLimits(WAIT_SECONDS, 2))
    assert second.engine.partitions_loaded() == 2
    assert ids(second.recall("x", resource="a")) == ["m"]
    second.engine.stop()


def test_metadata_that_grows_in_the_answer_is_dropped_not_refused(tmp_path: Path) -> None:
    running = Running(tmp_path / "data", answer_bytes_max=500_000)
    wide = '{"a":[' + ",".join(["0"] * 30_000) + "]}"
    running.add(*(draft(f"m{i}", f"needle {'straw ' * i}", metadata_json=wide) for i in range(6)))
    answer = running.recall("needle", top_k=4, before=1, after=1)
    assert hit_ids(answer) == ["m0"]
    assert answer.info.messages_dropped == 4
    running.engine.stop()


def test_what_one_resource_said_is_not_quicker_for_another(running: Running) -> None:
    """Else a guess could be confirmed by a cache hit."""
    running.add(draft("a", "my pin code is 4821"), resource="alice")
    guess = running.recall("my pin code is 4821", resource="bob")
    assert not guess.info.cache_hit
    indexed = running.add(draft("b", "my pin code is 4821"), resource="eve")
    assert (indexed.embeddings_computed, indexed.embeddings_cached) == (1, 0)
    assert running.recall("my pin code is 4821", resource="alice").info.cache_hit
    for resource, entries in (("alice", 1), ("eve", 1)):
        report = running.engine.forget(resource, ForgetTarget(everything=True))
        assert report.cache_entries == entries
