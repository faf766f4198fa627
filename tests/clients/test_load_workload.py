"""Calls of the load tool: their shares against exact probabilities, their texts, their ids."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from semanticrecall.errors import InvalidArgumentError
from semanticrecall.load.measured import Operation
from semanticrecall.load.plan import Span, WaitMode, Workload
from semanticrecall.load.texts import Chat, name
from semanticrecall.load.workload import (
    REMEMBERED_RESOURCES_MAX,
    Call,
    CallSequence,
    Remembered,
    Zipf,
    prepared,
    resource_ids,
)
from semanticrecall.v1 import recall_pb2, types_pb2


def calls(workload: Workload, count: int, worker: int = 0, workers: int = 1) -> list[Call]:
    return list(islice(CallSequence(workload, worker, workers), count))


def recalls(sent: list[Call]) -> list[recall_pb2.RecallRequest]:
    return [
        recall_pb2.RecallRequest.FromString(call.body)
        for call in sent
        if call.operation is Operation.RECALL
    ]


def indexes(sent: list[Call]) -> list[recall_pb2.IndexRequest]:
    return [
        recall_pb2.IndexRequest.FromString(call.body)
        for call in sent
        if call.operation is Operation.INDEX
    ]


def within(found: int, tries: int, share: float, deviations: float = 5) -> bool:
    """Whether so many of so many fit a binomial distribution."""
    spread: float = (tries * share * (1 - share)) ** 0.5
    return abs(found - tries * share) <= deviations * spread + 1e-9


# --- determinism ---------------------------------------------------------------------------------


def test_equal_workloads_give_equal_calls() -> None:
    workload = Workload(thread_scope_share=0.3, top_k=(4, 8), message_range=((1, 1), (0, 3)))
    assert calls(workload, 500, 1, 3) == calls(workload, 500, 1, 3)


@pytest.mark.parametrize(
    "other", [Workload(seed=2), Workload(resource_prefix="another-"), Workload(resources=7)]
)
def test_others_do_not(other: Workload) -> None:
    assert calls(Workload(), 50) != calls(other, 50)


def test_a_prefix_changes_names_and_ids_and_nothing_else() -> None:
    def shape(workload: Workload) -> list[tuple[Operation, bool, int]]:
        return [(c.operation, c.repeated, len(c.body) > 0) for c in calls(workload, 300)]

    first, second = Workload(resource_prefix="a-"), Workload(resource_prefix="b-")
    assert shape(first) == shape(second)
    queries = {r.query for r in recalls(calls(first, 300))}
    assert queries.isdisjoint(r.query for r in recalls(calls(second, 300)))
    assert [r.resource_id[2:] for r in recalls(calls(first, 300))] == [
        r.resource_id[2:] for r in recalls(calls(second, 300))
    ]


# --- shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 2.5])
def test_zipf_draws_each_number_with_its_exact_share(exponent: float) -> None:
    tries, choices = 40_000, 20
    zipf, draws = Zipf(choices, exponent), random.Random(11)
    drawn = Counter(zipf.draw(draws) for _ in range(tries))
    weights = [n**-exponent for n in range(1, choices + 1)]
    assert set(drawn) <= set(range(choices))
    for number, weight in enumerate(weights):
        assert within(drawn[number], tries, weight / sum(weights)), number


def test_zipf_of_one_draws_it() -> None:
    assert {Zipf(1, 1.0).draw(random.Random(1)) for _ in range(10)} == {0}


def test_calls_fall_on_resources_by_zipf() -> None:
    sent = calls(Workload(resources=5, zipf_exponent=1.0, recall_share=1.0), 10_000)
    drawn = Counter(request.resource_id for request in recalls(sent))
    harmonic = sum(1 / n for n in range(1, 6))
    for n in range(1, 6):
        assert within(drawn[f"load-{n}"], 10_000, 1 / n / harmonic)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_recalls_have_their_share(share: float) -> None:
    sent = calls(Workload(recall_share=share), 4_000)
    assert within(len(recalls(sent)), 4_000, share)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_repeats_have_their_share_and_repeat_what_was_asked_of_the_resource(share: float) -> None:
    workload = Workload(resources=4, recall_share=1.0, query_repeat_share=share)
    sent = calls(workload, 5_000)
    asked: dict[str, list[bytes]] = {}
    repeats, chances = 0, 0
    for call, request in zip(sent, recalls(sent), strict=True):
        earlier = asked.setdefault(request.resource_id, [])
        chances += bool(earlier)
        if call.repeated:
            repeats += 1
            assert call.body in earlier[-16:]
        else:
            assert call.body not in earlier
            earlier.append(call.body)
    assert within(repeats, chances, share)


def test_thread_scope_has_its_share_and_names_prepared_threads() -> None:
    workload = Workload(
        recall_share=1.0, thread_scope_share=0.4, threads=30, messages_before=5, resources=3
    )
    sent = recalls(calls(replace(workload, query_repeat_share=0.0), 5_000))
    threads = [r.thread_id for r in sent if r.scope == types_pb2.SCOPE_THREAD]
    assert within(len(threads), 5_000, 0.4)
    # Five messages fill the first five threads.
    assert set(threads) == {f"thread-{n}" for n in range(1, 6)}
    others = {r.thread_id for r in sent if r.scope == types_pb2.SCOPE_RESOURCE}
    assert others == {""}


def test_without_preparation_thread_scope_names_threads_that_got_messages() -> None:
    workload = Workload(
        recall_share=0.5, thread_scope_share=1.0, messages_before=0, resources=2, threads=4
    )
    written: set[tuple[str, str]] = set()
    scoped = 0
    for call in calls(workload, 1_000):
        if call.operation is Operation.INDEX:
            request = recall_pb2.IndexRequest.FromString(call.body)
            written.add((request.resource_id, request.thread_id))
            continue
        recall = recall_pb2.RecallRequest.FromString(call.body)
        scoped += recall.scope == types_pb2.SCOPE_THREAD
        if recall.scope == types_pb2.SCOPE_THREAD:
            assert (recall.resource_id, recall.thread_id) in written
        else:
            assert not recall.thread_id
    assert scoped > 400


# --- what is asked -------------------------------------------------------------------------------


def test_new_queries_are_new_among_all_processes_however_short() -> None:
    workload = Workload(
        recall_share=1.0, query_repeat_share=0.0, query_words=Span(1, 3), resources=2
    )
    processes = [(0, 1), (0, 3), (1, 3), (2, 3), (3, 4)]
    queries = [
        request.query
        for worker, workers in processes
        for request in recalls(calls(workload, 1_500, worker, workers))
    ]
    assert len(set(queries)) == len(queries) == 7_500


def test_lengths_are_within_their_spans_and_use_all_of_them() -> None:
    workload = Workload(query_words=Span(3, 6), message_words=Span(1, 25), messages_per_index=3)
    sent = calls(workload, 3_000)
    asked = Counter(len(request.query.split()) for request in recalls(sent))
    said = Counter(len(m.text.split()) for request in indexes(sent) for m in request.messages)
    assert set(asked) == {3, 4, 5, 6}
    assert set(said) == set(range(1, 26))


def test_top_k_and_range_are_taken_in_turn() -> None:
    workload = Workload(
        recall_share=1.0,
        query_repeat_share=0.0,
        top_k=(4, 8, 16),
        message_range=((1, 1), (0, 0)),
    )
    taken = [
        (r.top_k, (r.message_range.before, r.message_range.after), r.HasField("message_range"))
        for r in recalls(calls(workload, 12))
    ]
    turn = [(k, pair, True) for pair in ((1, 1), (0, 0)) for k in (4, 8, 16)]
    assert taken == turn * 2


def test_given_queries_are_asked_in_turn_by_all_processes_together() -> None:
    workload = Workload(recall_share=1.0, query_repeat_share=0.0, queries=("a", "b", "c", "d", "e"))
    assert [r.query for r in recalls(calls(workload, 7))] == list("abcdeab")
    assert [r.query for r in recalls(calls(workload, 4, 1, 2))] == list("bdac")


def test_existing_resources_are_asked_and_nothing_is_written() -> None:
    workload = Workload(recall_share=1.0, existing_resources=("ann", "bob"), resources=50)
    assert {r.resource_id for r in recalls(calls(workload, 200))} == {"ann", "bob"}
    assert list(resource_ids(workload)) == ["ann", "bob"]
    assert list(prepared(workload, 0, 1)) == []


def test_threads_of_existing_resources_are_not_known() -> None:
    workload = Workload(recall_share=1.0, existing_resources=("ann",), thread_scope_share=0.1)
    with pytest.raises(InvalidArgumentError, match="thread_scope_share"):
        CallSequence(workload, 0, 1)


# --- what is written -----------------------------------------------------------------------------


def test_index_calls_carry_messages_of_one_thread_by_turns() -> None:
    sent = indexes(calls(Workload(recall_share=0.0, messages_per_index=4, threads=3), 200))
    for request in sent:
        assert len(request.messages) == 4
        assert {m.thread_id for m in request.messages} == {request.thread_id}
        assert [m.role for m in request.messages] == [
            types_pb2.ROLE_USER,
            types_pb2.ROLE_ASSISTANT,
        ] * 2
    assert {r.thread_id for r in sent} == {"thread-1", "thread-2", "thread-3"}


def test_ids_and_texts_are_unique_among_processes_and_what_was_prepared() -> None:
    workload = Workload(recall_share=0.0, resources=2, messages_before=300)
    sent = [
        request
        for worker, workers in ((0, 1), (0, 2), (1, 2))
        for request in indexes(calls(workload, 300, worker, workers))
    ]
    messages = [
        (request.resource_id, message)
        for request in [*sent, *prepared(workload, 0, 1)]
        for message in request.messages
    ]
    assert len(messages) == 3 * 300 * 2 + 2 * 300
    assert len({(resource, message.id) for resource, message in messages}) == len(messages)
    assert len({message.text for _, message in messages}) == len(messages)


@pytest.mark.parametrize(
    ("wait", "value"),
    [
        (WaitMode.DURABLE, types_pb2.WAIT_DURABLE),
        (WaitMode.SEARCHABLE, types_pb2.WAIT_SEARCHABLE),
    ],
)
def test_index_calls_wait_as_the_plan_says(wait: WaitMode, value: types_pb2.Wait) -> None:
    sent = indexes(calls(Workload(recall_share=0.0, wait=wait), 3))
    assert [request.wait for request in sent] == [value] * 3


def test_preparation_is_split_without_loss_and_the_same_for_any_number_of_processes() -> None:
    workload = Workload(resources=7, messages_before=230, threads=4)

    def written(parts: Iterator[recall_pb2.IndexRequest]) -> list[tuple[str, bytes]]:
        return [(part.resource_id, part.SerializeToString(deterministic=True)) for part in parts]

    whole = written(prepared(workload, 0, 1))
    split = [request for worker in range(3) for request in written(prepared(workload, worker, 3))]
    assert sorted(split) == sorted(whole)
    sizes = Counter(len(request.messages) for request in prepared(workload, 0, 1))
    assert sizes == {100: 14, 30: 7}
    for resource in resource_ids(workload):
        messages = [
            message
            for request in prepared(workload, 0, 1)
            if request.resource_id == resource
            for message in request.messages
        ]
        threads = Counter(message.thread_id for message in messages)
        assert set(threads) == {f"thread-{n}" for n in range(1, 5)}
        assert max(threads.values()) - min(threads.values()) <= 1
        first = [m.role for m in messages if m.thread_id == "thread-1"][:4]
        assert first == [types_pb2.ROLE_USER, types_pb2.ROLE_ASSISTANT] * 2


def test_requests_of_long_texts_hold_fewer() -> None:
    workload = Workload(resources=2, messages_before=100, message_words=Span(20_000, 20_000))
    requests = list(prepared(workload, 0, 1))
    # What a server takes by default.
    assert all(request.ByteSize() < 8 * 1024 * 1024 for request in requests)
    ids = [(r.resource_id, message.id) for r in requests for message in r.messages]
    names = list(resource_ids(workload))
    assert ids == [(name, f"before-{number}") for name in names for number in range(100)]
    assert all(len(request.messages) > 1 for request in requests)


def test_resource_ids_carry_the_prefix() -> None:
    assert list(resource_ids(Workload(resources=3, resource_prefix="x-"))) == ["x-1", "x-2", "x-3"]


# --- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [1, 2, 3, 8, 17, 60, 500])
def test_texts_have_their_words_their_name_and_an_end(words: int) -> None:
    draws, chat = random.Random(words), Chat("1")
    for _ in range(50):
        asked = chat.question(draws, words, "Tanvormi")
        said = chat.statement(draws, words, "Tanvormi")
        assert len(asked.split()) == len(said.split()) == words
        assert "Tanvormi" in asked
        assert "Tanvormi" in said
        assert asked.endswith("?")
        assert said.endswith(".")
        assert asked[0].isupper()
        assert said.isascii()


def test_names_of_different_numbers_differ() -> None:
    numbers = [*range(20_000), *range(62_500_000_000 - 500, 62_500_000_000 + 500), 10**18]
    names = {name(number, offset=12_345) for number in numbers}
    assert len(names) == len(numbers)
    assert all(made.isalpha() and made[0].isupper() for made in names)
    assert max(map(len, (name(number) for number in range(1_000)))) <= 12


# --- memory --------------------------------------------------------------------------------------


def test_what_is_remembered_is_the_last_sixteen_of_the_latest_resources() -> None:
    remembered = Remembered()
    for thing in range(20):
        remembered.add(0, b"%d" % thing)
    assert list(remembered.of(0)) == [b"%d" % thing for thing in range(4, 20)]
    for resource in range(1, REMEMBERED_RESOURCES_MAX):
        remembered.add(resource, b"")
    remembered.add(0, b"again")
    remembered.add(REMEMBERED_RESOURCES_MAX, b"")
    assert remembered.of(1) == ()
    assert list(remembered.of(2)) == [b""]
    assert list(remembered.of(0))[-1] == b"again"


def test_a_long_sequence_over_few_resources_costs_no_more_memory_than_a_short_one() -> None:
    sequence = CallSequence(Workload(resources=3, query_words=Span(2, 4)), 0, 1)
    for _ in islice(sequence, 1_000):
        pass
    tracemalloc.start()
    try:
        for _ in islice(sequence, 3_000):
            pass
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000
