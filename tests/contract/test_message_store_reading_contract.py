"""Reading: what every message store promises, tried on each of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from semanticrecall_core.types.errors import CancelledError, DeadlineExceededError
from semanticrecall_core.types.filters import parse_filter
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    TIME_NS_MAX,
    TIME_NS_MIN,
    CallBudget,
    ForgetTarget,
    ListQuery,
    Role,
    ThreadSummary,
)
from semanticrecall_core.types.windows import GroupQuery, GroupRows, WindowQuery
from support.message_stores import BYTES_MAX, append, draft, embed, ids, window


def test_a_window_holds_the_hit_and_its_true_neighbours(store: MessageStore) -> None:
    # Nanoseconds apart, given out of order.
    times = {"d": 1_000_003, "a": 1_000_000, "c": 1_000_002, "b": 1_000_001}
    outcomes = append(store, *(draft(i, create_time_ns=t) for i, t in times.items()))
    seqs = {i: o.seq for i, o in zip(times, outcomes, strict=True)}
    assert window(store, [seqs["b"]]) == ["a", "b", "c"]
    assert window(store, [seqs["a"]]) == ["a", "b"]
    assert window(store, [seqs["d"]], before=2, after=5) == ["b", "c", "d"]
    assert window(store, [seqs["c"]], before=0, after=0) == ["c"]
    assert window(store, [seqs["c"]], before=0, after=1) == ["c", "d"]


def test_equal_times_are_ordered_by_arrival(store: MessageStore) -> None:
    seqs = [o.seq for o in append(store, *(draft(i, create_time_ns=5) for i in "zyx"))]
    assert window(store, [seqs[0]], before=0, after=0) == ["z"]
    assert window(store, [seqs[0]]) == ["z", "y"]
    assert window(store, [seqs[2]]) == ["y", "x"]


def test_windows_that_overlap_hold_each_message_once(store: MessageStore) -> None:
    seqs = [o.seq for o in append(store, *(draft(f"m{n}", create_time_ns=n) for n in range(9)))]
    assert window(store, [seqs[3], seqs[2], seqs[7], seqs[3]]) == [
        "m1",
        "m2",
        "m3",
        "m4",
        "m6",
        "m7",
        "m8",
    ]


def test_threads_stand_in_order_of_their_first_message_here(store: MessageStore) -> None:
    drafts = [
        draft("b1", thread="b", create_time_ns=10),
        draft("a1", thread="a", create_time_ns=20),
        draft("b2", thread="b", create_time_ns=30),
        draft("a2", thread="a", create_time_ns=40),
        draft("c1", thread="c", create_time_ns=5),
    ]
    seqs = {d.id: o.seq for d, o in zip(drafts, append(store, *drafts), strict=True)}
    assert window(store, [seqs["a2"], seqs["b1"]]) == ["b1", "b2", "a1", "a2"]
    assert window(store, [seqs["b2"], seqs["a1"]], before=0, after=0) == ["a1", "b2"]
    assert window(store, [seqs["c1"], seqs["a1"]]) == ["c1", "a1", "a2"]


def test_excluded_messages_take_no_place(store: MessageStore) -> None:
    seqs = [o.seq for o in append(store, *(draft(f"m{n}", create_time_ns=n) for n in range(7)))]
    out = ("m2", "m4", "nobody")
    assert window(store, [seqs[3]], excluded_ids=out) == ["m1", "m3", "m5"]
    assert window(store, [seqs[3]], before=2, after=2, excluded_ids=out) == [
        "m0",
        "m1",
        "m3",
        "m5",
        "m6",
    ]


def test_a_hit_that_is_gone_takes_its_window_along(store: MessageStore) -> None:
    seqs = [o.seq for o in append(store, *(draft(f"m{n}", create_time_ns=n) for n in range(5)))]
    store.forget("u", ForgetTarget(message_ids=("m1",)))
    assert window(store, [seqs[1]]) == []
    assert window(store, [seqs[1], seqs[4]]) == ["m3", "m4"]
    assert window(store, [seqs[2]]) == ["m0", "m2", "m3"]


def group(
    store: MessageStore, group_id: str, limit: int, *, bytes_max: int = BYTES_MAX
) -> GroupRows:
    return store.group(GroupQuery("u", "t", group_id, limit, bytes_max))


def test_a_group_is_read_in_order_and_whole_or_not_at_all(store: MessageStore) -> None:
    append(
        store,
        *(draft(f"g{n}", group_id="g", create_time_ns=10 - n) for n in range(4)),
        draft("alone"),
        draft("elsewhere", thread="t2", group_id="g"),
    )
    append(store, draft("foreign", group_id="g"), resource="v")
    assert ids(group(store, "g", 4).messages or ()) == ["g3", "g2", "g1", "g0"]
    assert group(store, "g", 3, bytes_max=0) == GroupRows(None)
    assert group(store, "none", 10) == GroupRows(())
    assert group(store, "", 10) == GroupRows(())


def test_a_group_of_too_many_bytes_is_not_read(store: MessageStore) -> None:
    outcomes = append(
        store,
        draft("a", text="äöü", payload=b"12345", group_id="g"),
        draft("b", text="text", metadata_json='{"k":1}', group_id="g"),
    )
    size = sum(len(message.encoded) for message in store.get("u", ["a", "b"]))
    assert ids(group(store, "g", 2, bytes_max=size).messages or ()) == ["a", "b"]
    seqs = tuple(outcome.seq for outcome in outcomes)
    assert group(store, "g", 2, bytes_max=size - 1) == GroupRows(None, seqs)
    assert group(store, "none", 9, bytes_max=0) == GroupRows(())


def test_get_keeps_the_order_of_the_ids(store: MessageStore) -> None:
    append(store, draft("a"), draft("b"), draft("c"))
    assert ids(store.get("u", ["c", "nobody", "a", "c"])) == ["c", "a"]
    assert store.get("nobody", ["a"]) == []


def test_seqs_of_ids_are_sorted(store: MessageStore) -> None:
    seqs = [o.seq for o in append(store, draft("a"), draft("b"), draft("c"))]
    found = store.seqs_of_ids("u", ["c", "a", "a", "nobody"])
    assert found.tolist() == [seqs[0], seqs[2]]
    assert found.dtype == np.int64


def test_history_is_paged_in_both_directions(store: MessageStore) -> None:
    append(store, *(draft(f"m{n}", thread=f"t{n % 2}", create_time_ns=n // 3) for n in range(10)))
    for newest_first in (False, True):
        for thread, expected in ((None, range(10)), ("t1", range(1, 10, 2))):
            pages: list[str] = []
            after = None
            for _ in range(10):
                page = store.list_messages(
                    ListQuery("u", thread, limit=3, newest_first=newest_first, after=after)
                )
                pages += ids(page)
                if len(page) < 3:
                    break
                after = (page[-1].create_time_ns, page[-1].seq)
            names = [f"m{n}" for n in expected]
            assert pages == (names[::-1] if newest_first else names)


def test_history_is_narrowed_by_time_and_role(store: MessageStore) -> None:
    append(
        store,
        *(draft(f"m{n}", create_time_ns=n, role=Role(n % 4 + 1)) for n in range(8)),
        draft("last", create_time_ns=TIME_NS_MAX),
        draft("first", create_time_ns=TIME_NS_MIN),
    )

    def listed(**more: object) -> list[str]:
        return ids(store.list_messages(replace(ListQuery("u", "t", limit=20), **more)))

    assert listed(time_from_ns=2, time_to_ns=4) == ["m2", "m3"]
    assert listed(time_from_ns=7) == ["m7", "last"]
    assert listed(time_to_ns=1) == ["first", "m0"]
    assert listed(roles=frozenset({Role.TOOL, Role.ASSISTANT})) == ["m1", "m3", "m5", "m7"]
    assert listed(time_from_ns=2, after=(0, 0)) == ["m2", "m3", "m4", "m5", "m6", "m7", "last"]
    assert listed(time_to_ns=4, newest_first=True, after=(TIME_NS_MAX, 10**9)) == [
        "m3",
        "m2",
        "m1",
        "m0",
        "first",
    ]


def test_threads_are_listed_most_recently_active_first(store: MessageStore) -> None:
    outcomes = append(
        store,
        draft("a1", thread="a", create_time_ns=1),
        draft("b1", thread="b", create_time_ns=5),
        draft("a2", thread="a", create_time_ns=5),
        draft("c1", thread="c", create_time_ns=3),
    )
    seqs = [o.seq for o in outcomes]
    expected = [
        ThreadSummary("a", 2, 1, 5, seqs[2]),
        ThreadSummary("b", 1, 5, 5, seqs[1]),
        ThreadSummary("c", 1, 3, 3, seqs[3]),
    ]
    assert store.list_threads("u", 10, None) == expected
    assert store.list_threads("u", 1, None) == expected[:1]
    assert store.list_threads("u", 10, (5, seqs[2])) == expected[1:]
    assert store.list_threads("u", 10, (3, seqs[3])) == []
    assert store.list_threads("nobody", 10, None) == []


def test_recent_resources_come_newest_first(store: MessageStore) -> None:
    for resource, times in {"u": (1, 9), "v": (5,), "w": (7, 2)}.items():
        drafts = [draft(f"m{t}", create_time_ns=t) for t in times]
        append(store, *drafts, resource=resource)
    assert store.recent_resources(10) == ["u", "w", "v"]
    assert store.recent_resources(2) == ["u", "w"]


METADATA = {
    "int": {"v": 1},
    "float": {"v": 1.0},
    "text": {"v": "1"},
    "true": {"v": True},
    "null": {"v": None},
    "none": {},
    "list": {"v": [1, "a", None, [2]]},
    "empty": {"v": []},
    "object": {"v": {"w": 1, "v": "x"}},
    "dotted": {"a.b": 1, "v": -3.5},
    "big": {"v": 1e300, "a": {"b": "y"}},
}
EVERYTHING = {*METADATA, "unset"}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"v": 1}, {"int", "float", "list"}),
        ({"v": "1"}, {"text"}),
        ({"v": True}, {"true"}),
        ({"v": None}, {"null", "none", "list", "unset"}),
        ({"v": {"$ne": 1}}, EVERYTHING - {"int", "float", "list"}),
        ({"v": {"$gt": 0}}, {"int", "float", "list", "big"}),
        ({"v": {"$lt": "b"}}, {"text", "list"}),
        ({"v": {"$gte": 1, "$lte": 1}}, {"int", "float", "list"}),
        ({"v": ["a", True, -3.5]}, {"list", "true", "dotted"}),
        ({"v": {"$in": []}}, set()),
        ({"v": {"$nin": []}}, EVERYTHING),
        ({"v": {"$exists": True}}, set(METADATA) - {"none"}),
        ({"v": {"$exists": False}}, {"none", "unset"}),
        ({"v.w": 1}, {"object"}),
        ({"v.v": "x"}, {"object"}),
        ({"v": 2}, set()),
        ({"a.b": 1}, set()),
        ({"a.b": "y"}, {"big"}),
        ({"v": {"$not": {"$exists": True}}}, {"none", "unset"}),
        ({"$or": [{"v": 1, "a": 9}, {"v": "1"}]}, {"text"}),
        ({"$and": [{"v": {"$gt": 0}}, {"$not": {"v": 1}}]}, {"big"}),
        ({"v": "x' OR 1=1 --"}, set()),
        ({"v') OR 1=1 --": None}, EVERYTHING),
    ],
)
def test_filters_mean_what_is_written(
    store: MessageStore, condition: dict[str, object], expected: set[str]
) -> None:
    drafts = [draft(name, metadata_json=json.dumps(data)) for name, data in METADATA.items()]
    drafts.append(draft("unset"))
    outcomes = append(store, *drafts)
    append(store, draft("foreign", metadata_json='{"v":1}'), resource="v")
    seqs = {o.seq: d.id for o, d in zip(outcomes, drafts, strict=True)}
    parsed = parse_filter(condition)
    assert parsed is not None
    found = store.seqs_matching("u", parsed, CallBudget.of_seconds(60))
    assert {seqs[seq] for seq in found.seqs.tolist()} == expected
    assert found.seqs.tolist() == sorted(found.seqs.tolist())


def test_keys_that_no_message_carries_are_told(store: MessageStore) -> None:
    append(store, draft("a", metadata_json='{"k":{"n":null},"x.y":1,"l":[{"in":1}]}'), draft("b"))
    append(store, draft("c", metadata_json='{"theirs":1}'), resource="v")
    asked = frozenset({"k", "k.n", "k.m", "x.y", "l", "l.in", "theirs"})
    budget = CallBudget.of_seconds(60)
    assert store.unknown_metadata_keys("u", asked, budget) == ("k.m", "l.in", "theirs", "x.y")
    assert store.unknown_metadata_keys("u", frozenset({"k.m", "k"}), budget) == ("k.m",)
    assert store.unknown_metadata_keys("nobody", asked, budget) == tuple(sorted(asked))


def test_filters_of_a_call_that_is_over_are_not_read(store: MessageStore) -> None:
    append(store, draft("a", metadata_json='{"k":1}'))
    condition = parse_filter({"k": 1})
    assert condition is not None
    late = CallBudget.of_seconds(-1)
    gone = CallBudget(float("inf"), lambda: True)
    for budget, error in ((late, DeadlineExceededError), (gone, CancelledError)):
        with pytest.raises(error):
            store.seqs_matching("u", condition, budget)
        with pytest.raises(error):
            store.unknown_metadata_keys("u", frozenset({"k"}), budget)


def test_counts_are_of_one_resource_or_of_all(store: MessageStore) -> None:
    a, _ = append(store, draft("a"), draft("b", thread="t2"))
    append(store, draft("a"), resource="v")
    embed(store, a, [1.0, 0.0], [0.0, 1.0])
    one, every, none = store.stats("u"), store.stats(None), store.stats("nobody")
    assert (one.messages, one.vectors, one.pending, one.threads) == (2, 2, 1, 2)
    assert (every.messages, every.vectors, every.pending, every.threads) == (3, 2, 2, 3)
    assert every.resources == 2
    assert (none.messages, none.vectors, none.pending, none.threads) == (0, 0, 0, 0)


def test_a_hit_of_another_revision_is_gone(store: MessageStore) -> None:
    a, b, c = append(store, *(draft(i, create_time_ns=n) for n, i in enumerate("abc")))
    (edited,) = append(store, draft("b", text="other"))
    assert edited.seq == b.seq

    def found(*hits: tuple[int, int]) -> list[tuple[str, int]]:
        rows = store.windows(WindowQuery("u", hits, 1, 0, BYTES_MAX))
        return [(row.id, row.revision) for row in rows.messages]

    assert found((b.seq, b.revision)) == []
    now = [("a", a.revision), ("b", edited.revision), ("c", c.revision)]
    assert found((b.seq, edited.revision)) == now[:2]
    # As a neighbour it is whatever it is now.
    assert found((b.seq, b.revision), (c.seq, c.revision)) == now[1:]


def test_a_filter_speaks_of_the_rows_it_has_read(store: MessageStore) -> None:
    drafts = [draft(i, create_time_ns=n, metadata_json='{"k":1}') for n, i in enumerate("abcde")]
    outcomes = append(store, *drafts[:4], replace(drafts[4], metadata_json='{"k":2}'))
    condition = parse_filter({"k": 1})
    assert condition is not None
    matching = store.seqs_matching("u", condition, CallBudget.of_seconds(60))
    assert matching.revision >= max(o.revision for o in outcomes)
    a, b, c, d, e = outcomes
    (edited,) = append(store, replace(drafts[1], author="someone"))

    def found(seq: int, revision: int) -> list[str]:
        query = WindowQuery("u", ((seq, revision),), 2, 1, BYTES_MAX, matching=matching)
        return ids(store.windows(query).messages)

    assert found(c.seq, c.revision) == ["a", "c", "d"]  # b took a place
    assert found(d.seq, d.revision) == ["c", "d"]  # so did b, and e, which never matched
    assert found(b.seq, edited.revision) == []
    assert found(e.seq, e.revision) == []
    assert found(a.seq, a.revision) == ["a"]


@pytest.mark.parametrize(
    ("messages", "bytes_more", "taken"),
    [
        (0, 0, "d"),  # the best hit in any case
        (1, 0, "d"),
        (2, -1, "d"),
        (2, 0, "bd"),  # then the other hit,
        (3, 0, "bcd"),  # then neighbours: the better hit's first, its earlier side first
        (4, 0, "bcde"),
        (5, 0, "abcde"),
    ],
)
def test_windows_hold_the_best_of_what_fits(
    store: MessageStore, messages: int, bytes_more: int, taken: str
) -> None:
    drafts = [
        draft(i, create_time_ns=n, text="ä" * 10, payload=b"x" * 69, metadata_json='{"k":"123"}')
        for n, i in enumerate("abcdef", 1)
    ]
    seqs = {d.id: o for d, o in zip(drafts, append(store, *drafts), strict=True)}
    hits = tuple((seqs[i].seq, seqs[i].revision) for i in "db")
    sizes = {len(message.encoded) for message in store.get("u", list("abcdef"))}
    assert len(sizes) == 1
    bytes_max = messages * sizes.pop() + bytes_more
    rows = store.windows(WindowQuery("u", hits, 1, 1, bytes_max))
    assert ids(rows.messages) == list(taken)
    assert rows.dropped == tuple(seqs[i].seq for i in "abcde" if i not in taken)


def test_what_is_not_allowed_fills_no_bytes_and_is_not_counted(store: MessageStore) -> None:
    big = {"payload": b"x" * 1000}
    drafts = [
        draft("a", create_time_ns=0, metadata_json='{"k":1}'),
        draft("b", create_time_ns=1, **big),
        draft("hit", create_time_ns=2, metadata_json='{"k":1}'),
        draft("c", create_time_ns=3, **big),
        draft("d", create_time_ns=4, metadata_json='{"k":1}', **big),
    ]
    outcomes = append(store, *drafts)
    condition = parse_filter({"k": 1})
    assert condition is not None
    matching = store.seqs_matching("u", condition, CallBudget.of_seconds(60))
    hit = (outcomes[2].seq, outcomes[2].revision)
    rows = store.windows(WindowQuery("u", (hit,), 2, 2, 200, matching=matching))
    assert ids(rows.messages) == ["a", "hit"]
    assert rows.dropped == (outcomes[4].seq,)
