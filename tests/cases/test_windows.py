"""Windows and order: the hit with its true neighbours, each message once, always in one order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from support.fake_embedder import FakeEmbedder
from support.wire_memory import (
    ALONE,
    ASSISTANT,
    INDEXED,
    NOON_NS,
    REPLACED,
    SECOND_NS,
    THREAD_ONLY,
    TOOL,
    UNCHANGED,
    Memory,
    conversation,
    hit_ids,
    ids,
    nanoseconds,
    said,
    window,
)

MILLISECOND_NS = 1_000_000
WHOLE = types_pb2.GROUP_STATE_WHOLE
HIT_ONLY = types_pb2.GROUP_STATE_HIT_ONLY


def in_order(messages: Sequence[types_pb2.Message]) -> list[str]:
    """Ids by (create_time, arrival); the messages come as they arrived."""
    return ids(sorted(messages, key=lambda m: nanoseconds(m.create_time)))


def around(ordered: Sequence[str], hit: str, before: int, after: int) -> list[str]:
    """The window that a list of ids has around one of them."""
    at = ordered.index(hit)
    return list(ordered[max(0, at - before) : at + after + 1])


def texts_apart(count: int) -> list[str]:
    return [f"topic{i} subject{i} matter{i}" for i in range(count)]


# WIN-1 and WIN-2 --------------------------------------------------------------------------------

TIMES: dict[str, list[int]] = {
    "one instant": [0] * 7,
    "one millisecond": [0, 999_999, 1, 500_000, 2, 400_000, 3],
    "microseconds in a millisecond": [i * 1000 for i in range(7)],
    "nanoseconds apart": [6, 5, 4, 3, 2, 1, 0],
    "pairs at one instant": [0, 0, 1, 1, 1000, 1000, 1000],
    "mixed writers": [0, MILLISECOND_NS, 123_456, 123_456_789, 123_000_000, 123_456_000, 5],
    "arrived backwards": [7 * SECOND_NS - i * SECOND_NS for i in range(7)],
    "around a second": [-1, 0, 1, SECOND_NS - 1, SECOND_NS, SECOND_NS + 1, -SECOND_NS],
    "before 1970": [-NOON_NS - i for i in range(7)],
}


@pytest.mark.parametrize("offsets", TIMES.values(), ids=TIMES.keys())
@pytest.mark.parametrize("ids_ascend", [True, False], ids=["ids up", "ids down"])
def test_the_hit_and_its_true_neighbours_at_any_precision(
    memory: Memory, offsets: list[int], ids_ascend: bool
) -> None:
    texts = texts_apart(len(offsets))
    messages = [
        said(f"{'abcdefg'[i if ids_ascend else -1 - i]}", texts[i], at=NOON_NS + offset)
        for i, offset in enumerate(offsets)
    ]
    memory.learn(messages)
    ordered = in_order(messages)
    assert ids(memory.listed("t")) == ordered
    for message, text in zip(messages, texts, strict=True):
        for before, after in ((0, 0), (1, 1), (2, 0), (0, 3), (50, 50)):
            answer = memory.recall(text, top_k=1, message_range=window(before, after))
            assert hit_ids(answer) == [message.id]
            assert ids(answer.messages) == around(ordered, message.id, before, after)
            times = {m.message.id: nanoseconds(m.message.create_time) for m in answer.messages}
            assert times[message.id] == nanoseconds(message.create_time)


# WIN-3 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_overlapping_windows_give_each_message_once_in_order(memory: Memory, seed: int) -> None:
    rng = random.Random(seed)
    threads: dict[str, list[types_pb2.Message]] = {}
    for number in range(30):
        thread = rng.choice(["x", "y", "z"])
        text = "shared words here" if rng.random() < 0.3 else f"other{number}"
        message = said(f"m{number}", text, at=NOON_NS + rng.randrange(12))
        memory.learn([message], thread=thread)
        threads.setdefault(thread, []).append(message)
    wanted = {m.id for known in threads.values() for m in known if m.text == "shared words here"}
    before, after = rng.randrange(3), rng.randrange(3)
    answer = memory.recall(
        "shared words here", threshold=0.99, top_k=30, message_range=window(before, after)
    )
    position = {m.id: i for i, m in enumerate(memory.exported())}
    right = {
        thread: [
            i
            for i in in_order(known)
            if any(
                i in around(in_order(known), hit, before, after) for hit in wanted & {*ids(known)}
            )
        ]
        for thread, known in threads.items()
    }
    blocks = sorted((block for block in right.values() if block), key=lambda b: position[b[0]])
    assert ids(answer.messages) == [i for block in blocks for i in block]
    assert {m.message.id for m in answer.messages if m.hit} == wanted


# WIN-4 ------------------------------------------------------------------------------------------


def test_one_hit_in_a_thread_of_500_brings_at_most_its_neighbours(memory: Memory) -> None:
    messages = conversation(texts_apart(500))
    memory.learn(messages)
    memory.learn([said("elsewhere", "topic250 subject250 matter250")], thread="other")
    ordered = in_order(messages)
    for number in (0, 1, 250, 498, 499):
        answer = memory.recall(
            f"topic{number} subject{number} matter{number}",
            top_k=1,
            message_range=window(1, 1),
            scope=THREAD_ONLY,
            thread_id="t",
        )
        assert ids(answer.messages) == around(ordered, f"m{number}", 1, 1)
        assert len(answer.messages) <= 3


# WIN-5 ------------------------------------------------------------------------------------------


def with_tool_calls(calls: int) -> list[types_pb2.Message]:
    """A turn with parallel tool calls: question, reply with calls, results, reply, thanks."""
    group: dict[str, Any] = {"group_id": "call-1"}
    turn = [
        said("before", "early remark"),
        said("question", "what is the weather in Oslo"),
        said("call", "let me look", role=ASSISTANT, **group),
        *(said(f"result{i}", f"snow {i}", role=TOOL, **group) for i in range(calls)),
        said("reply", "heavy snowfall expected tonight", role=ASSISTANT),
        said("after", "late remark"),
    ]
    for position, message in enumerate(turn):
        message.create_time.FromNanoseconds(NOON_NS + position * SECOND_NS)
    return turn


def assert_groups_are_whole_or_absent(
    answer: recall_pb2.RecallResponse, everything: Sequence[types_pb2.Message]
) -> None:
    """The promise of `group_state`, on any answer."""
    present = {*ids(answer.messages)}
    for recalled in answer.messages:
        group = recalled.message.group_id
        members = {m.id for m in everything if group and m.group_id == group}
        if not group:
            assert recalled.group_state == types_pb2.GROUP_STATE_UNSPECIFIED
        elif recalled.group_state == WHOLE:
            assert members <= present
        else:
            assert recalled.group_state == HIT_ONLY
            assert recalled.hit
            assert members & present <= {m.message.id for m in answer.messages if m.hit}


@pytest.mark.parametrize("calls", [1, 3, 63])
@pytest.mark.parametrize(
    ("query", "before", "after", "brings_group"),
    [
        ("what is the weather in Oslo", 0, 1, True),
        ("heavy snowfall expected tonight", 1, 0, True),
        ("let me look", 0, 0, True),
        ("late remark", 2, 0, True),
        ("heavy snowfall expected tonight", 0, 1, False),
        ("late remark", 1, 0, False),
    ],
    ids=["edge after", "edge before", "hit inside", "far edge", "just outside", "not touched"],
)
def test_a_window_takes_a_tool_call_with_all_its_results_or_not_at_all(
    memory: Memory, calls: int, query: str, before: int, after: int, brings_group: bool
) -> None:
    turn = with_tool_calls(calls)
    memory.learn(turn)
    answer = memory.recall(query, top_k=1, message_range=window(before, after))
    group = {m.id for m in turn if m.group_id}
    plain = {*around(ids(turn), hit_ids(answer)[0], before, after)}
    assert {*ids(answer.messages)} == (plain | group if brings_group else plain)
    assert ids(answer.messages) == [i for i in ids(turn) if i in {*ids(answer.messages)}]
    assert_groups_are_whole_or_absent(answer, turn)
    assert list(answer.info.absent_group_ids) == []


@pytest.mark.parametrize("calls", [64, 80])
def test_a_group_beyond_the_limit_is_absent_and_named(memory: Memory, calls: int) -> None:
    turn = with_tool_calls(calls)
    memory.learn(turn)
    answer = memory.recall("late remark", top_k=1, message_range=window(3, 0))
    assert ids(answer.messages) == ["reply", "after"]
    assert list(answer.info.absent_group_ids) == ["call-1"]
    inside = memory.recall("let me look", top_k=1, message_range=window(1, 1))
    assert ids(inside.messages) == ["question", "call"]
    assert [m.group_state for m in inside.messages] == [
        types_pb2.GROUP_STATE_UNSPECIFIED,
        HIT_ONLY,
    ]


LEAVING_OUT: dict[str, dict[str, Any]] = {
    "a result in the prompt": {"exclude_message_ids": ["result1"]},
    "the call in the prompt": {"exclude_message_ids": ["call"]},
    "all results in the prompt": {"exclude_message_ids": ["result0", "result1", "result2"]},
    "filter leaves a result out": {"filter": {"$not": {"part": "result1"}}},
    "filter leaves the call out": {"filter": {"part": {"$ne": "call"}}},
}


@pytest.mark.parametrize("fields", LEAVING_OUT.values(), ids=LEAVING_OUT.keys())
@pytest.mark.parametrize("query", ["late remark", "let me look", "what is the weather in Oslo"])
def test_a_group_that_loses_a_member_is_not_called_whole(
    memory: Memory, fields: dict[str, Any], query: str
) -> None:
    turn = with_tool_calls(3)
    for message in turn:
        message.metadata.update({"part": message.id})
    memory.learn(turn)
    for k in (1, 5):
        answer = memory.recall(query, top_k=k, message_range=window(2, 2), **fields)
        assert not {*fields.get("exclude_message_ids", ())} & {*ids(answer.messages)}
        assert_groups_are_whole_or_absent(answer, turn)
        if query == "what is the weather in Oslo":
            assert list(answer.info.absent_group_ids) == ["call-1"]


def test_a_group_that_does_not_fit_the_answer_is_not_called_whole(memory: Memory) -> None:
    turn = with_tool_calls(4)
    for message in turn:
        if message.id.startswith("result"):
            message.payload = bytes(900_000)
    memory.learn(turn)
    for query in ("late remark", "let me look"):
        answer = memory.recall(query, top_k=1, message_range=window(2, 1))
        assert answer.info.messages_dropped > 0
        assert_groups_are_whole_or_absent(answer, turn)


def test_equal_group_ids_of_two_threads_are_two_groups(memory: Memory) -> None:
    memory.learn(with_tool_calls(1))
    memory.learn([said("foreign", "snow elsewhere", role=TOOL, group_id="call-1")], thread="u")
    answer = memory.recall("let me look", top_k=1, message_range=ALONE)
    assert ids(answer.messages) == ["call", "result0"]


# WIN-6 ------------------------------------------------------------------------------------------


def content(answer: recall_pb2.RecallResponse) -> bytes:
    """The bytes of an answer without what tells of this one call: timings and the cache."""
    answer.info.ClearField("timings")
    answer.info.ClearField("cache_hit")
    answer.info.ClearField("answer_cache_hit")
    return answer.SerializeToString(deterministic=True)


def test_the_same_recall_gives_the_same_bytes_a_hundred_times(memory: Memory) -> None:
    for thread in ("x", "y"):
        memory.learn(
            [
                said(
                    f"{thread}{i}",
                    "equal words",
                    at=NOON_NS + i % 3,
                    metadata={f"key{j}": j for j in range(9)},
                )
                for i in range(20)
            ],
            thread=thread,
        )
    fields: dict[str, Any] = {"top_k": 7, "message_range": window(2, 2), "explain": True}

    def once(_: int) -> bytes:
        return content(memory.recall("equal words", thread_id="x", **fields))

    with ThreadPoolExecutor(8) as pool:
        answers = [*map(once, range(50)), *pool.map(once, range(50))]
    requests = [
        memory.request("equal words", request_id=f"{i}", thread_id="x", **fields) for i in range(20)
    ]
    for answer in memory.sidecar.stream(requests).values():
        answer.ClearField("request_id")
        answers.append(content(answer))
    assert len(set(answers)) == 1


# WIN-7 and WIN-8 --------------------------------------------------------------------------------


def history(*, with_times: bool) -> list[types_pb2.Message]:
    messages = conversation(texts_apart(12), metadata={"b": 1, "a": [1, {"x": None}], "c": "d"})
    messages += [said("tool", "result", role=TOOL, at=NOON_NS), said("blank", " ", at=NOON_NS)]
    if not with_times:
        for message in messages:
            message.ClearField("create_time")
    return messages


def counted(memory: Memory) -> tuple[int, int, int, int]:
    stats = memory.stats()
    return stats.messages, stats.vectors, stats.pending, stats.threads


@pytest.mark.parametrize("with_times", [True, False], ids=["with times", "without times"])
def test_history_resent_in_full_writes_and_embeds_nothing(
    memory: Memory, embedder: FakeEmbedder, with_times: bool
) -> None:
    memory.learn(history(with_times=True), metadata={"project": "A"})
    counts, runs, stored = counted(memory), embedder.runs, memory.listed()
    for _ in range(10):
        again = history(with_times=with_times)
        answer = memory.index_answer(again, metadata={"project": "A"})
        assert {r.status for r in answer.results} == {UNCHANGED}
        assert (answer.info.embeddings_computed, answer.info.embeddings_cached) == (0, 0)
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(
            lambda _: memory.index(history(with_times=with_times), metadata={"project": "A"}),
            range(10),
        )
        assert {status for statuses in answers for status in statuses} == {UNCHANGED}
    assert counted(memory) == counts == (14, 12, 0, 1)
    assert embedder.runs == runs
    assert memory.listed() == stored


def test_history_resent_without_times_keeps_its_order(memory: Memory) -> None:
    messages = conversation(texts_apart(9))
    random.Random(3).shuffle(messages)
    memory.learn(messages)
    before = [(m.id, nanoseconds(m.create_time)) for m in memory.listed("t")]
    shuffled = [said(m.id, m.text) for m in messages]
    for seed in range(3):
        random.Random(seed).shuffle(shuffled)
        assert set(memory.index(shuffled)) == {UNCHANGED}
        assert [(m.id, nanoseconds(m.create_time)) for m in memory.listed("t")] == before
    answer = memory.recall("topic4 subject4 matter4", top_k=1, message_range=window(50, 50))
    assert ids(answer.messages) == [message_id for message_id, _ in before]


def test_an_edit_without_a_time_keeps_its_place_and_a_new_message_comes_last(
    memory: Memory,
) -> None:
    memory.learn(conversation(texts_apart(5)))
    times = {m.id: nanoseconds(m.create_time) for m in memory.listed()}
    statuses = memory.index([said("new", "brand new words"), said("m2", "edited words")])
    assert statuses == [INDEXED, REPLACED]
    assert ids(memory.listed("t")) == ["m0", "m1", "m2", "m3", "m4", "new"]
    assert nanoseconds(memory.got("m2")[0].create_time) == times["m2"]
    answer = memory.recall("edited words", top_k=1, message_range=window(1, 1))
    assert ids(answer.messages) == ["m1", "m2", "m3"]


def test_a_message_without_a_time_keeps_the_order_it_was_sent_in(memory: Memory) -> None:
    texts = texts_apart(20)
    memory.learn([said(f"{20 - i}", text) for i, text in enumerate(texts)])
    assert ids(memory.listed("t")) == [f"{20 - i}" for i in range(20)]


def test_a_message_sent_twice_in_one_call_counts_once(
    memory: Memory, embedder: FakeEmbedder
) -> None:
    runs = embedder.runs
    statuses = memory.index([said("a", "twice sent words"), said("a", "twice sent words")])
    assert statuses == [INDEXED, UNCHANGED]
    assert memory.stats().messages == 1
    assert memory.stats().vectors == 1
    assert embedder.runs == runs + 1
