"""Filter, then k: the k best of what is allowed, however much that is not allowed is nearer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semanticrecall.v1 import recall_pb2
from support.wire_memory import (
    ALONE,
    ASSISTANT,
    BY_COSINE,
    NOON_NS,
    REPLACED,
    SECOND_NS,
    THREAD_ONLY,
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
    timestamp,
    window,
)

QUERY = "where does the red kite nest in spring"
QUERY_WORDS = QUERY.split()
NEAR = 1000
DAY_NS = 86_400 * SECOND_NS


def graded(count: int) -> list[str]:
    """Texts that hold fewer and fewer words of the query, and more and more of their own."""
    return [
        " ".join(QUERY_WORDS[: max(1, 7 - i % 7)] + [f"own{i}x{j}" for j in range(1 + i // 7)])
        for i in range(count)
    ]


# TOPK-1 -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd(sidecar: Sidecar) -> Memory:
    """1,000 messages of thread `noise` next to the query, and ten farther ones in `signal`."""
    memory = sidecar.memory("crowd")
    memory.forget(everything=True)
    noise = [
        said(f"noise{i}", f"{QUERY} {i}", at=NOON_NS - DAY_NS + i, role=ASSISTANT)
        for i in range(NEAR)
    ]
    memory.learn(noise, thread="noise", metadata={"kind": "noise"})
    memory.learn(conversation(graded(10)), thread="signal", metadata={"kind": "signal"})
    return memory


ONLY_THE_TEN: dict[str, dict[str, Any]] = {
    "thread": {"scope": THREAD_ONLY, "thread_id": "signal"},
    "filter": {"filter": {"kind": "signal"}},
    "negative filter": {"filter": {"kind": {"$ne": "noise"}}},
    "role": {"roles": [USER]},
    "from": {"create_time_from": timestamp(NOON_NS)},
    "excluded ids": {"exclude_message_ids": [f"noise{i}" for i in range(NEAR)]},
    "all of them": {
        "scope": THREAD_ONLY,
        "thread_id": "signal",
        "filter": {"kind": "signal"},
        "roles": [USER],
        "create_time_from": timestamp(NOON_NS),
        "create_time_to": timestamp(NOON_NS + DAY_NS),
        "exclude_message_ids": ["noise1"],
    },
}


@pytest.mark.parametrize("fields", ONLY_THE_TEN.values(), ids=ONLY_THE_TEN.keys())
@pytest.mark.parametrize("k", [1, 5, 10, 11])
def test_a_thousand_nearer_messages_that_are_not_allowed_take_no_place(
    crowd: Memory, model: Model, fields: dict[str, Any], k: int
) -> None:
    answer = crowd.recall(QUERY, top_k=k, message_range=ALONE, ranking=BY_COSINE, **fields)
    model.assert_best(answer, QUERY, crowd.listed("signal"), k)
    assert answer.info.candidates == 10
    assert answer.info.searchable == NEAR + 10


def test_before_a_time_is_exclusive_and_applied_before_k(crowd: Memory) -> None:
    answer = crowd.recall(
        QUERY, top_k=3, message_range=ALONE, create_time_to=timestamp(NOON_NS - DAY_NS + 2)
    )
    assert set(hit_ids(answer)) == {"noise0", "noise1"}


def test_a_thousand_nearer_messages_of_another_resource_take_no_place(
    crowd: Memory, memory: Memory, model: Model
) -> None:
    memory.learn(conversation(graded(10)))
    answer = memory.recall(QUERY, top_k=5, message_range=ALONE, ranking=BY_COSINE)
    model.assert_best(answer, QUERY, memory.listed(), 5)
    assert answer.info.candidates == 10
    assert crowd.stats().messages == NEAR + 10


# TOPK-2 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("long_first", [True, False], ids=["long first", "long last"])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_ten_nearest_chunks_of_one_message_are_one_hit(
    memory: Memory, model: Model, long_first: bool, k: int
) -> None:
    # 568 words are ten windows of 64 that overlap by 8.
    words = [*QUERY_WORDS * 71]
    long = said("long", " ".join(words), at=NOON_NS)
    others = conversation(graded(5))
    memory.learn([long, *others] if long_first else [*others, long])
    assert memory.stats().vectors == 15
    answer = memory.recall(QUERY, top_k=k, message_range=ALONE, explain=True, ranking=BY_COSINE)
    model.assert_best(answer, QUERY, memory.listed(), k)
    assert hit_ids(answer)[0] == "long"
    assert len(set(ids(answer.messages))) == k
    assert hits(answer)[0].explain.chunks == 10
    assert answer.info.candidates == 6


# TOPK-3 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_prompt", [0, 1, 6, 19, 20])
def test_messages_in_the_prompt_take_no_place_and_do_not_come_back_as_neighbours(
    memory: Memory, model: Model, in_prompt: int
) -> None:
    memory.learn(conversation(graded(20)))
    everything = memory.listed()
    nearest = model.ids(QUERY, everything, in_prompt)
    answer = memory.recall(
        QUERY,
        top_k=4,
        message_range=window(2, 2),
        exclude_message_ids=[*nearest, "unknown", *nearest],
        ranking=BY_COSINE,
    )
    model.assert_best(answer, QUERY, [m for m in everything if m.id not in nearest], 4)
    assert not set(ids(answer.messages)) & set(nearest)
    assert answer.info.candidates == 20 - in_prompt
    if in_prompt == 20:
        assert answer.info.why_empty == recall_pb2.WHY_EMPTY_FILTERED


def test_ten_thousand_excluded_ids_are_taken_and_one_more_is_refused(
    memory: Memory, model: Model
) -> None:
    memory.learn(conversation(graded(5)))
    excluded = [f"unknown{i}" for i in range(9_999)] + ["m0"]
    answer = memory.recall(
        QUERY, top_k=9, message_range=ALONE, exclude_message_ids=excluded, ranking=BY_COSINE
    )
    model.assert_best(answer, QUERY, memory.listed()[1:], 9)
    with invalid("exclude_message_ids"):
        memory.recall(QUERY, exclude_message_ids=[*excluded, "one-more"], ranking=BY_COSINE)


# TOPK-4 -----------------------------------------------------------------------------------------

GOING: dict[str, Callable[[Memory], object]] = {
    "forgotten by id": lambda memory: memory.forget("nearest"),
    "forgotten by thread": lambda memory: memory.forget(thread_id="going"),
    "forgotten by time": lambda memory: memory.forget(create_time_before=timestamp(NOON_NS)),
    "moved to another resource": lambda memory: memory.transfer("going", "elsewhere"),
    "edited": lambda memory: memory.index([said("nearest", "nothing alike")], thread="going"),
}


@pytest.mark.parametrize("go", GOING.values(), ids=GOING.keys())
def test_where_the_nearest_message_went_the_next_best_takes_its_place(
    memory: Memory, model: Model, go: Callable[[Memory], object]
) -> None:
    memory.sidecar.memory("elsewhere").forget(everything=True)
    memory.learn([said("nearest", QUERY, at=NOON_NS - 1)], thread="going")
    memory.learn(conversation(graded(6)))
    assert hit_ids(memory.recall(QUERY, top_k=1, ranking=BY_COSINE)) == ["nearest"]
    go(memory)
    for k in (1, 3):
        answer = memory.recall(QUERY, top_k=k, message_range=ALONE, ranking=BY_COSINE)
        model.assert_best(answer, QUERY, memory.listed("t"), k)


# TOPK-5 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("k", [8, 1000])
def test_k_beyond_the_messages_gives_what_there_is(
    memory: Memory, model: Model, count: int, k: int
) -> None:
    memory.learn(conversation(graded(count)))
    answer = memory.recall(QUERY, top_k=k, message_range=ALONE, ranking=BY_COSINE)
    model.assert_best(answer, QUERY, memory.listed(), count)
    assert len(answer.messages) == count


def emptied(memory: Memory) -> None:
    memory.learn(conversation(graded(3)))
    memory.forget(everything=True)


EMPTY: dict[str, Callable[[Memory], object]] = {
    "never written": lambda memory: None,
    "emptied": emptied,
    "nothing to embed": lambda memory: memory.index([said("m", "  ")]),
}


@pytest.mark.parametrize("prepare", EMPTY.values(), ids=EMPTY.keys())
def test_an_empty_memory_gives_an_empty_answer_and_says_why(
    memory: Memory, prepare: Callable[[Memory], object]
) -> None:
    prepare(memory)
    batch = [memory.request(f"{QUERY} {i}", request_id=f"{i}", top_k=10) for i in range(25)]
    answers = [memory.recall(QUERY), *memory.sidecar.stream(batch).values()]
    assert len(answers) == 26
    for answer in answers:
        assert list(answer.messages) == []
        assert answer.context_text == ""
        assert answer.info.why_empty == recall_pb2.WHY_EMPTY_NO_MESSAGES
        assert not answer.info.HasField("best_score")
        assert not answer.HasField("error")


# TOPK-6 -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred(sidecar: Sidecar) -> Memory:
    memory = sidecar.memory("hundred")
    memory.forget(everything=True)
    memory.learn(conversation(graded(100)))
    return memory


@pytest.mark.parametrize("k", [1, 4, 10, 50, 99, 100, 1000])
def test_any_k_up_to_the_limit_is_given_in_full(hundred: Memory, model: Model, k: int) -> None:
    answer = hundred.recall(QUERY, top_k=k, message_range=ALONE, ranking=BY_COSINE)
    model.assert_best(answer, QUERY, hundred.listed(), k)
    assert len(answer.messages) == min(k, 100)
    assert answer.info.exact


@pytest.mark.parametrize("k", [0, 1001, 2**32 - 1])
def test_a_k_outside_the_limits_is_refused_and_the_limit_named(hundred: Memory, k: int) -> None:
    with invalid("top_k") as refusal:
        hundred.recall(QUERY, top_k=k)
    assert "1 to 1000" in refusal.detail.message.replace(",", "")


def test_equal_scores_come_by_arrival_whatever_k(memory: Memory) -> None:
    memory.learn([said(f"{9 - i}", QUERY, at=NOON_NS - i) for i in range(10)])
    arrival = [f"{9 - i}" for i in range(10)]
    for k in range(1, 11):
        assert (
            hit_ids(memory.recall(QUERY, top_k=k, message_range=ALONE, ranking=BY_COSINE))
            == arrival[:k]
        )


def test_a_replaced_message_keeps_its_place_among_equals(memory: Memory) -> None:
    memory.learn([said("a", "first words"), said("b", QUERY), said("c", QUERY)])
    assert memory.index([said("a", QUERY)]) == [REPLACED]
    assert hit_ids(memory.recall(QUERY, top_k=3, message_range=ALONE, ranking=BY_COSINE)) == [
        "a",
        "b",
        "c",
    ]
