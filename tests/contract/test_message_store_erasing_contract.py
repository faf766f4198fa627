"""Forget by condition, retention and purge: what every message store promises."""

from __future__ import annotations

import math

import pytest

from semanticrecall_core.types.errors import DeadlineExceededError
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetCondition,
    ForgetTarget,
    ListQuery,
    PurgeState,
    Role,
)
from support.message_stores import append, draft, ids

ENDLESS = CallBudget(math.inf)
HISTORY = (
    draft("a1", thread="a", author="Ann", create_time_ns=10),
    draft("a2", thread="a", author="Bob", create_time_ns=20, role=Role.TOOL),
    draft("b1", thread="b", author="Bob", create_time_ns=20),
    draft("b2", thread="b", author="bob", create_time_ns=30, role=Role.TOOL),
    draft("b3", thread="b", create_time_ns=40, role=Role.SYSTEM),
)
CONDITIONS = [
    (ForgetCondition(authors=frozenset({"Bob"})), ["a2", "b1"]),
    (ForgetCondition(authors=frozenset({"Bob", "Ann"})), ["a1", "a2", "b1"]),
    (ForgetCondition(authors=frozenset({"B"})), []),
    (ForgetCondition(thread_id="a"), ["a1", "a2"]),
    (ForgetCondition(thread_id="nobody"), []),
    (ForgetCondition(time_from_ns=20), ["a2", "b1", "b2", "b3"]),
    (ForgetCondition(time_to_ns=20), ["a1"]),
    (ForgetCondition(time_from_ns=20, time_to_ns=30), ["a2", "b1"]),
    (ForgetCondition(roles=frozenset({Role.TOOL, Role.SYSTEM})), ["a2", "b2", "b3"]),
    (ForgetCondition(thread_id="b", roles=frozenset({Role.TOOL})), ["b2"]),
    (ForgetCondition("b", frozenset({"Bob"}), 20, 21, frozenset({Role.USER})), ["b1"]),
    (ForgetCondition("b", frozenset({"Bob"}), 21, 22, frozenset({Role.USER})), []),
]


def left(store: MessageStore, resource: str = "u") -> list[str]:
    return sorted(ids(store.list_messages(ListQuery(resource, None, 1000))))


@pytest.mark.parametrize(("condition", "gone"), CONDITIONS)
def test_what_meets_all_of_a_condition_is_forgotten(
    store: MessageStore, condition: ForgetCondition, gone: list[str]
) -> None:
    append(store, *HISTORY)
    append(store, *HISTORY, resource="v")
    forgotten = store.forget("u", ForgetTarget(condition=condition))
    assert not forgotten.more
    assert left(store) == sorted(d.id for d in HISTORY if d.id not in gone)
    assert len(left(store, "v")) == len(HISTORY)
    assert len(forgotten.seqs) == len(gone)


@pytest.mark.parametrize(("condition", "gone"), CONDITIONS)
def test_the_search_finds_the_same_beside_the_writer(
    store: MessageStore, condition: ForgetCondition, gone: list[str]
) -> None:
    outcomes = append(store, *HISTORY)
    append(store, *HISTORY, resource="v")
    page = store.rows_to_forget("u", condition, None, 0, ENDLESS)
    assert page.after is None
    named = {d.id: (o.seq, o.revision) for d, o in zip(HISTORY, outcomes, strict=True)}
    assert sorted(page.rows) == sorted(named[i] for i in gone)
    assert store.rows_to_forget("nobody", condition, None, 0, ENDLESS).rows == ()


def test_only_what_changed_after_a_revision_is_looked_at(store: MessageStore) -> None:
    by_bob = ForgetCondition(authors=frozenset({"Bob"}))
    append(store, *HISTORY)
    seen = store.rows_to_forget("u", by_bob, None, 0, ENDLESS).revision
    (new, edited) = append(store, draft("n", author="Bob"), draft("a1", author="Bob", text="other"))
    assert sorted(store.rows_to_forget("u", by_bob, None, seen, ENDLESS).rows) == sorted(
        [(new.seq, new.revision), (edited.seq, edited.revision)]
    )
    store.forget("u", ForgetTarget(condition=by_bob, changed_after=seen))
    assert left(store) == ["a2", "b1", "b2", "b3"]


def test_a_row_that_has_changed_is_not_the_one_that_was_found(store: MessageStore) -> None:
    first, second = append(store, draft("a"), draft("b"))
    append(store, draft("a", text="other"))
    rows = ((first.seq, first.revision), (second.seq, second.revision), (999, 1))
    assert store.forget("u", ForgetTarget(rows=rows)).seqs == (second.seq,)
    assert store.forget("v", ForgetTarget(rows=rows)).seqs == ()
    assert left(store) == ["a"]


def test_a_search_ends_with_its_budget(store: MessageStore) -> None:
    append(store, *HISTORY)
    with pytest.raises(DeadlineExceededError):
        store.rows_to_forget("u", ForgetCondition("a"), None, 0, CallBudget(0.0))


def test_what_was_forgotten_is_in_the_files_until_they_are_erased(store: MessageStore) -> None:
    append(store, *HISTORY)
    assert store.purge_state() == PurgeState(0, 0)
    assert store.forget("u", ForgetTarget(thread_id="nobody")).revision == 0
    assert not store.purge_state().pending
    forgotten = store.forget("u", ForgetTarget(thread_id="a"))
    assert store.purge_state() == PurgeState(forgotten.revision, 0)
    assert store.erase(ENDLESS) == forgotten.revision
    assert store.purge_state().pending, "snapshots and caches are not the store's business"
    store.erased(forgotten.revision)
    assert not store.purge_state().pending
    later = store.forget("u", ForgetTarget(everything=True))
    store.erased(forgotten.revision)
    assert store.purge_state() == PurgeState(later.revision, forgotten.revision)
    assert later.revision > forgotten.revision


@pytest.mark.parametrize(
    ("before_ns", "messages_max", "gone"),
    [
        (None, 0, []),
        (10, 0, []),
        (21, 0, ["a1", "a2", "b1"]),
        (None, 5, []),
        (None, 3, ["a1", "a2"]),
        (None, 1, ["a1", "a2", "b1", "b2"]),
        (21, 4, ["a1", "a2", "b1"]),
        (11, 2, ["a1", "a2", "b1"]),
    ],
)
def test_the_oldest_go_first(
    store: MessageStore, before_ns: int | None, messages_max: int, gone: list[str]
) -> None:
    outcomes = append(store, *HISTORY)
    append(store, draft("old", create_time_ns=1), resource="v")
    named = {d.id: (o.seq, o.revision) for d, o in zip(HISTORY, outcomes, strict=True)}
    expected = tuple(named[i] for i in gone)
    assert store.oldest_rows("u", before_ns, messages_max, 100) == expected
    assert store.oldest_rows("u", before_ns, messages_max, 2) == expected[:2]
    assert store.oldest_rows("nobody", before_ns, messages_max, 2) == ()


def test_resources_with_old_messages_are_found_page_by_page(store: MessageStore) -> None:
    times = {"a": 5, "b": 50, "c": 5, "d": 6, "é": 5}
    for resource, time_ns in times.items():
        append(store, draft("m", create_time_ns=time_ns), resource=resource)
        append(store, draft("n", create_time_ns=100), resource=resource)
    found: list[str] = []
    after: str | None = ""
    pages = 0
    while after is not None:
        page, after = store.resources_older_than(6, after, 2)
        found += page
        pages += 1
    assert (found, pages) == (["a", "c", "é"], 3)


def test_the_clock_of_the_retention_is_kept(store: MessageStore) -> None:
    assert store.retention_time_ns() == 0
    store.keep_retention_time(1_800_000_000_000_000_000)
    assert store.retention_time_ns() == 1_800_000_000_000_000_000
