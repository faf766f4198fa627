"""Budgets of tokens against the rule: what is taken of a choice, and whole answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semanticrecall_core.ranking.budget import Choice, Taken, take_what_fits
from semanticrecall_core.types.recalling import ContextFormat, GroupState
from semanticrecall_core.types.values import MessageDraft, Role
from support.assembled_answers import Assembling, PlainTokenizer, assert_within_tokens
from support.budget_rule import rule

# ---- which messages are taken ----


class _Sizes:
    """A room of one number."""

    def __init__(self, sizes: Sequence[int], limit: int) -> None:
        self._sizes = sizes
        self._limit = self._left = limit

    def take(self, seqs: Sequence[int]) -> bool:
        size = sum(self._sizes[seq] for seq in seqs)
        if size > self._left:
            return False
        self._left -= size
        return True

    def fits_alone(self, seq: int) -> bool:
        return self._sizes[seq] <= self._limit


@st.composite
def _choices(draw: st.DrawFn) -> tuple[Choice, list[int], int]:
    """One thread; hits, windows of one or two steps and groups of neighbours in it."""
    count = draw(st.integers(1, 14))
    hits = tuple(draw(st.permutations(range(count)))[: draw(st.integers(1, min(6, count)))])
    reach = draw(st.integers(0, 3))
    seqs = list(range(count))
    windows = {
        hit: (seqs[max(0, hit - reach) : hit][::-1], seqs[hit + 1 : hit + 1 + reach])
        for hit in hits
    }
    groups: dict[int, tuple[int, ...]] = {}
    start = 0
    while start < count:
        length = draw(st.integers(1, 4))
        members = tuple(seqs[start : start + length])
        if len(members) > 1 and draw(st.booleans()):
            groups.update(dict.fromkeys(members, members))
        start += length
    sizes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    return Choice(hits, groups, windows), sizes, draw(st.integers(1, 40))


@given(_choices())
def test_what_is_taken_is_what_the_rule_says(asked: tuple[Choice, list[int], int]) -> None:
    choice, sizes, limit = asked
    taken = take_what_fits(choice, _Sizes(sizes, limit))
    expected = rule(choice, sizes, limit)
    assert taken == Taken(frozenset(expected - {-1}), best_is_too_large=-1 in expected)


@given(_choices())
def test_no_budget_is_exceeded_and_no_order_broken(asked: tuple[Choice, list[int], int]) -> None:
    choice, sizes, limit = asked
    taken = take_what_fits(choice, _Sizes(sizes, limit))
    if taken.best_is_too_large:
        assert taken.seqs == {choice.hits[0]}
        assert sizes[choice.hits[0]] > limit
        return
    assert sum(sizes[seq] for seq in taken.seqs) <= limit
    # A lower hit may come with the group of a higher one.
    with_higher = {
        member
        for rank, hit in enumerate(choice.hits)
        for member in choice.groups.get(hit, ())
        if hit in taken.seqs and member in choice.hits[rank + 1 :] and member in taken.seqs
    }
    there = [
        hit in taken.seqs for hit in choice.hits if sizes[hit] <= limit and hit not in with_higher
    ]
    assert there == sorted(there, reverse=True)
    for group in set(choice.groups.values()):
        present = taken.seqs & set(group)
        assert present == set(group) or present <= set(choice.hits)
    if not all(there):  # context made room first
        with_groups = {m for hit in choice.hits for m in choice.groups.get(hit, (hit,))}
        assert taken.seqs <= with_groups


# ---- answers ----


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[list[tuple[int, str]]], list[str], dict[str, int]]:
    """Threads of messages (words, group), hits by id, and what is asked for."""
    threads: list[list[tuple[int, str]]] = []
    for thread in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=10))
        groups = draw(
            st.lists(
                st.sampled_from(["", "", f"g{thread}", f"h{thread}"]),
                min_size=len(sizes),
                max_size=len(sizes),
            )
        )
        threads.append(list(zip(sizes, groups, strict=True)))
    ids = [f"{t}-{n}" for t, thread in enumerate(threads) for n in range(len(thread))]
    hits = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=6, unique=True))
    asked = {
        "before": draw(st.integers(0, 3)),
        "after": draw(st.integers(0, 3)),
        "tokens_max": draw(st.integers(1, 40)),
    }
    return threads, hits, asked


def _choice_of(
    threads: list[list[tuple[int, str]]], hits: list[str], before: int, after: int
) -> tuple[Choice, list[int], list[str], set[int]]:
    """What there is to take, numbered in answer order, and what may be in the answer at all."""
    ids = [f"{t}-{n}" for t, thread in enumerate(threads) for n in range(len(thread))]
    sizes = [size for thread in threads for size, _ in thread]
    numbers = {id: number for number, id in enumerate(ids)}
    windows: dict[int, tuple[list[int], list[int]]] = {}
    around: set[int] = set()
    for hit in hits:
        thread, place = map(int, hit.split("-"))
        first = numbers[f"{thread}-0"]
        end = first + len(threads[thread])
        here = first + place
        windows[here] = (
            list(range(max(first, here - before), here))[::-1],
            list(range(here + 1, min(end, here + 1 + after))),
        )
        around |= {here, *windows[here][0], *windows[here][1]}
    groups: dict[int, tuple[int, ...]] = {}
    for t, messages in enumerate(threads):
        for name in {group for _, group in messages if group}:
            members = tuple(numbers[f"{t}-{n}"] for n, (_, g) in enumerate(messages) if g == name)
            if around & set(members):
                groups.update(dict.fromkeys(members, members))
                around |= set(members)
    return Choice(tuple(numbers[hit] for hit in hits), groups, windows), sizes, ids, around


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembling]:
    made = Assembling(tmp_path_factory.mktemp("shared") / "data", PlainTokenizer())
    yield made
    made.store.close()


@given(_histories())
def test_answers_are_those_of_therule(
    shared: Assembling,
    asked: tuple[list[list[tuple[int, str]]], list[str], dict[str, int]],
) -> None:
    threads, hits, fields = asked
    choice, sizes, ids, around = _choice_of(threads, hits, fields["before"], fields["after"])
    shared.resource = uuid.uuid4().hex
    shared.add(
        *(
            MessageDraft(
                f"{t}-{n}",
                f"t{t}",
                Role.USER,
                text="word " * size,
                create_time_ns=(1000 * t + n) * 10**9,
                group_id=group,
            )
            for t, thread in enumerate(threads)
            for n, (size, group) in enumerate(thread)
        )
    )
    answer = shared.answer(*hits, context_format=ContextFormat.NONE, **fields)
    expected = rule(choice, sizes, fields["tokens_max"])
    is_cut = -1 in expected
    expected -= {-1}
    assert [m.message.id for m in answer.messages] == [ids[number] for number in sorted(expected)]
    for recalled in answer.messages:
        number = ids.index(recalled.message.id)
        group = choice.groups.get(number)
        assert recalled.group_state == (
            GroupState.NO_GROUP
            if group is None
            else GroupState.WHOLE
            if set(group) <= expected
            else GroupState.HIT_ONLY
        )
        assert bool(recalled.rank) == (recalled.message.id in hits)
    ranks = sorted((m.rank, hits.index(m.message.id)) for m in answer.messages if m.rank)
    assert [rank for rank, _ in ranks] == list(range(1, len(ranks) + 1))
    assert [place for _, place in ranks] == sorted(place for _, place in ranks)
    broken = [
        threads[int(ids[group[0]].split("-")[0])][int(ids[group[0]].split("-")[1])][1]
        for group in set(choice.groups.values())
        if not set(group) <= expected
    ]
    assert sorted(shared.info.absent_group_ids) == sorted(broken)
    assert shared.info.messages_dropped_for_tokens == len(around - expected) + is_cut
    assert shared.info.messages_dropped == 0
    assert_within_tokens(shared, answer, fields["tokens_max"])
    left = [ids.index(one.message.id) for one in answer.left_out if one.message]
    assert left == [number for number in choice.hits if number not in expected]
