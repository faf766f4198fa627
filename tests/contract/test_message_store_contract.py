"""Writing: what every message store promises, tried on each of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from semanticrecall_core.types.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    NotFoundError,
)
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    TIME_NS_MAX,
    TIME_NS_MIN,
    CallBudget,
    ForgetTarget,
    ListQuery,
    MessageDraft,
    Role,
    Status,
    VectorRecord,
)
from support.message_stores import FIRST_TICK, append, draft, embed, ids, window
from support.recorded_commits import RecordedCommits
from support.stored_messages import CODEC


@pytest.mark.parametrize(
    "given",
    [
        MessageDraft("a", "t", Role.TOOL),
        MessageDraft(
            id="Ω 'quoted\" \\ %_",
            thread_id="t/ñ",
            role=Role.ASSISTANT,
            author="Zoë",
            text="line\nNUL \x00 emoji 👩‍👩‍👧 العربية " + "long " * 5000,
            create_time_ns=TIME_NS_MIN,
            metadata_json='{"k":[1,null,"x"],"n":{"é":true}}',
            payload=bytes(range(256)) * 40,
            payload_type="application/x",
            group_id="g-1",
        ),
        MessageDraft("b", "t", Role.SYSTEM, create_time_ns=TIME_NS_MAX, embeddable=False),
    ],
)
def test_a_message_comes_back_as_it_was_given(store: MessageStore, given: MessageDraft) -> None:
    (outcome,) = append(store, given)
    (found,) = store.get("u", [given.id])
    time_ns = FIRST_TICK if given.create_time_ns is None else given.create_time_ns
    assert (found.seq, found.revision, found.resource_id) == (outcome.seq, outcome.revision, "u")
    assert found.create_time_ns == time_ns
    assert found.encoded == CODEC.encode("u", given, time_ns)
    for name in (
        "thread_id",
        "id",
        "role",
        "author",
        "text",
        "metadata_json",
        "payload",
        "payload_type",
        "group_id",
    ):
        assert getattr(found, name) == getattr(given, name), name


def test_the_same_again_changes_nothing(store: MessageStore) -> None:
    given = draft("a", metadata_json='{"k":1}', create_time_ns=5)
    (first,) = append(store, given)
    (again,) = append(store, given)
    (without_time,) = append(store, replace(given, create_time_ns=None))
    assert first.status is Status.INDEXED
    assert [again.status, without_time.status] == [Status.UNCHANGED] * 2
    assert {(o.seq, o.revision, o.pending) for o in (first, again, without_time)} == {
        (first.seq, first.revision, True)
    }
    assert store.stats("u").messages == 1


@pytest.mark.parametrize(
    "change",
    [
        {"text": "other"},
        {"author": "bob"},
        {"role": Role.ASSISTANT},
        {"metadata_json": '{"k":2}'},
        {"payload": b"x"},
        {"payload_type": "p"},
        {"group_id": "g"},
        {"thread_id": "t2"},
        {"create_time_ns": 6},
    ],
)
def test_any_difference_replaces_in_place(store: MessageStore, change: dict[str, object]) -> None:
    given = draft("a", create_time_ns=5)
    (first,) = append(store, given)
    (second,) = append(store, replace(given, **{"create_time_ns": None, **change}))
    (found,) = store.get("u", ["a"])
    assert second.status is Status.REPLACED
    assert second.seq == first.seq == found.seq
    assert second.revision > first.revision
    assert found.create_time_ns == change.get("create_time_ns", 5)
    for name, value in change.items():
        assert getattr(found, name) == value


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        ({"text": "1"}, {"text": "2"}, "1"),
        ({"text": "1"}, {"text": "1"}, None),
        ({"text": "1"}, {"text": "1", "author": "bob"}, None),
        ({"text": "1"}, {"text": "1", "role": Role.SYSTEM, "embeddable": False}, "1"),
        ({"text": "1", "role": Role.SYSTEM, "embeddable": False}, {"text": "2"}, None),
    ],
)
def test_the_text_that_an_edit_replaces_is_told(
    store: MessageStore,
    before: dict[str, Any],
    after: dict[str, Any],
    replaced: str | None,
) -> None:
    (first,) = append(store, draft("a", **before))
    assert first.replaced_text is None
    (second,) = append(store, draft("a", **after))
    assert second.replaced_text == replaced


def test_an_id_given_twice_is_first_new_then_replaced(store: MessageStore) -> None:
    outcomes = append(store, draft("a", text="1"), draft("b"), draft("a", text="2"), draft("b"))
    assert [o.status for o in outcomes] == [
        Status.INDEXED,
        Status.INDEXED,
        Status.REPLACED,
        Status.UNCHANGED,
    ]
    assert outcomes[0].seq == outcomes[2].seq
    assert outcomes[0].revision == outcomes[2].revision
    assert [m.text for m in store.get("u", ["a", "b"])] == ["2", "text"]
    assert [row.text for row in store.pending(0, 10)] == ["2", "text"]


def test_seqs_grow_and_are_never_used_again(store: MessageStore) -> None:
    first, second = (o.seq for o in append(store, draft("a"), draft("b")))
    store.forget("u", ForgetTarget(everything=True))
    (third,) = (o.seq for o in append(store, draft("b")))
    assert 0 < first < second < third


def test_a_new_row_without_time_gets_the_clocks(store: MessageStore) -> None:
    append(store, draft("a"), draft("b", create_time_ns=3))
    append(store, draft("c"))
    times = {m.id: m.create_time_ns for m in store.get("u", ["a", "b", "c"])}
    assert times == {"a": FIRST_TICK, "b": 3, "c": FIRST_TICK + 1}


def test_a_thread_that_a_replacement_leaves_empty_is_gone(store: MessageStore) -> None:
    append(store, draft("a", thread="old"))
    append(store, draft("a", thread="new"))
    assert store.thread_key("u", "old") is None
    assert store.thread_key("u", "new") is not None
    assert store.stats("u").threads == 1


@pytest.mark.parametrize(
    ("budget", "error"),
    [
        (CallBudget(time.monotonic() - 1), DeadlineExceededError),
        (CallBudget(time.monotonic() + 1e6, cancelled=lambda: True), CancelledError),
    ],
)
def test_a_call_that_is_over_does_nothing(
    store: MessageStore, budget: CallBudget, error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.append("u", [draft("a")], budget)
    assert store.stats("u").messages == 0


LOOKALIKES = ["john_doe", "john-doe", "john%doe", "john\\doe", "JOHN_DOE", "john_doe ", "acme:1"]


def test_ids_compare_by_equality_only(store: MessageStore) -> None:
    for resource in LOOKALIKES:
        append(store, draft("m", thread="t1", text=resource), resource=resource)
    for resource in LOOKALIKES:
        assert [m.text for m in store.get(resource, ["m", "M", "%", "_"])] == [resource]
        (listed,) = store.list_messages(ListQuery(resource, "t1", limit=10))
        assert (listed.text, listed.resource_id) == (resource, resource)
        assert store.stats(resource).messages == 1
    keys = {store.thread_key(resource, "t1") for resource in LOOKALIKES}
    assert len(keys) == len(LOOKALIKES)
    store.forget("john_doe", ForgetTarget(everything=True))
    assert store.stats(None).messages == len(LOOKALIKES) - 1


def test_pairs_of_ids_do_not_run_together(store: MessageStore) -> None:
    append(store, draft("m", thread="b:c"), resource="a")
    append(store, draft("m", thread="c"), resource="a:b")
    assert store.thread_key("a", "b:c") != store.thread_key("a:b", "c")
    assert store.thread_key("a", "c") is None
    assert store.thread_key("a:b", "b:c") is None


def test_a_foreign_seq_or_id_finds_nothing(store: MessageStore) -> None:
    (outcome,) = append(store, draft("m"), resource="other")
    append(store, draft("mine"))
    assert window(store, [outcome.seq]) == []
    assert store.get("u", ["m"]) == []
    assert store.seqs_of_ids("u", ["m"]).size == 0
    vectors = np.ones((1, 2), np.float32)
    assert store.put_vectors([VectorRecord("u", outcome.seq, outcome.revision, vectors)]) == [False]
    assert store.forget("u", ForgetTarget(message_ids=("m",))).seqs == ()
    assert store.get("other", ["m"])[0].id == "m"


def test_vectors_are_served_with_their_messages_columns(
    store: MessageStore, commits: RecordedCommits
) -> None:
    first, second = append(
        store,
        draft("a", create_time_ns=7),
        draft("b", thread="t2", role=Role.ASSISTANT, create_time_ns=3),
    )
    assert embed(store, second, [0.0, 1.0])
    assert embed(store, first, [1.0, 0.0], [0.6, 0.8])
    rows = store.load_partition("u")
    keys = [store.thread_key("u", "t"), store.thread_key("u", "t2")]
    assert rows.seqs.tolist() == [first.seq, first.seq, second.seq]
    assert rows.thread_keys.tolist() == [keys[0], keys[0], keys[1]]
    assert rows.times_ns.tolist() == [7, 7, 3]
    assert rows.roles.tolist() == [Role.USER, Role.USER, Role.ASSISTANT]
    assert rows.chunks.tolist() == [0, 1, 0]
    assert rows.vectors.tolist() == np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32).tolist()
    assert rows.vectors.dtype == np.float32
    assert commits.calls == [("put", "u", (second.seq,)), ("put", "u", (first.seq, first.seq))]
    assert commits.put[1].times_ns.tolist() == [7, 7]
    assert commits.put[1].thread_keys.tolist() == [keys[0], keys[0]]


def test_vectors_of_a_row_that_changed_come_too_late(
    store: MessageStore, commits: RecordedCommits
) -> None:
    (old,) = append(store, draft("a", text="Maya works at Acme"))
    (new,) = append(store, draft("a", text="Maya works at Beta Corp"))
    assert not embed(store, old, [1.0, 0.0])
    assert store.load_partition("u").seqs.size == 0
    assert embed(store, new, [0.0, 1.0])
    assert commits.calls == [("removed", "u", (old.seq,)), ("put", "u", (new.seq,))]


def test_an_edit_takes_every_vector_of_the_old_text_away(
    store: MessageStore, commits: RecordedCommits
) -> None:
    (old,) = append(store, draft("a", text="long"))
    embed(store, old, [1.0, 0.0], [0.0, 1.0], [0.6, 0.8])
    (new,) = append(store, draft("a", text="short"))
    assert new.pending
    assert store.load_partition("u").seqs.size == 0
    assert store.stats("u").vectors == 0
    assert commits.calls[-1] == ("removed", "u", (old.seq,))


def test_vectors_are_kept_where_the_text_is_the_same(
    store: MessageStore, commits: RecordedCommits
) -> None:
    (old,) = append(store, draft("a", create_time_ns=5))
    embed(store, old, [0.6, 0.8], [0.0, 1.0])
    change = {"metadata_json": '{"k":1}', "thread_id": "t2", "create_time_ns": 9}
    (new,) = append(store, draft("a", role=Role.ASSISTANT, **change))
    assert (new.status, new.pending) == (Status.REPLACED, False)
    rows, told = store.load_partition("u"), commits.put[-1]
    for partition in (rows, told):
        assert partition.seqs.tolist() == [old.seq] * 2
        assert partition.times_ns.tolist() == [9, 9]
        assert partition.thread_keys.tolist() == [store.thread_key("u", "t2")] * 2
        assert partition.roles.tolist() == [Role.ASSISTANT] * 2
        expected = np.array([[0.6, 0.8], [0.0, 1.0]], np.float32)
        assert partition.vectors.tolist() == expected.tolist()
    assert commits.calls[-1] == ("put", "u", (old.seq, old.seq))
    assert store.pending(0, 10) == []
    assert list(store.verify(None)) == []


def test_a_text_that_is_no_longer_embeddable_loses_its_vectors(store: MessageStore) -> None:
    (old,) = append(store, draft("a"))
    embed(store, old, [1.0, 0.0])
    (new,) = append(store, draft("a", role=Role.TOOL, embeddable=False))
    assert not new.pending
    assert store.load_partition("u").seqs.size == 0
    assert store.pending(0, 10) == []


def test_pending_rows_come_by_seq_until_they_are_embedded(store: MessageStore) -> None:
    outcomes = append(
        store, draft("a", text="1"), draft("b", text="", embeddable=False), draft("c", text="3")
    )
    append(store, draft("d", text="4"), resource="v")
    waiting = store.pending(0, 10)
    assert [(r.resource_id, r.text) for r in waiting] == [("u", "1"), ("u", "3"), ("v", "4")]
    assert [r.text for r in store.pending(waiting[0].seq, 1)] == ["3"]
    assert [o.pending for o in outcomes] == [True, False, True]
    embed(store, outcomes[0], [1.0, 0.0])
    assert [r.text for r in store.pending(0, 10)] == ["3", "4"]
    assert append(store, draft("a", text="1"))[0].pending is False
    assert (store.stats("u").pending, store.stats(None).pending) == (1, 2)


def test_one_call_puts_vectors_of_many_rows(store: MessageStore, commits: RecordedCommits) -> None:
    a, b = append(store, draft("a"), draft("b"))
    (c,) = append(store, draft("c"), resource="v")
    one, two = np.ones((1, 2), np.float32), np.zeros((2, 2), np.float32)
    put = store.put_vectors(
        [
            VectorRecord("u", a.seq, a.revision, one),
            VectorRecord("u", b.seq, b.revision + 99, one),
            VectorRecord("v", c.seq, c.revision, one),
            VectorRecord("u", a.seq, a.revision, two),
        ]
    )
    assert put == [True, False, True, True]
    assert store.load_partition("u").vectors.tolist() == two.tolist()
    assert sorted(commits.calls) == [("put", "u", (a.seq, a.seq)), ("put", "v", (c.seq,))]


@pytest.mark.parametrize(
    ("target", "gone"),
    [
        (ForgetTarget(message_ids=("a1", "b1", "a1", "nobody")), ["a1", "b1"]),
        (ForgetTarget(thread_id="a"), ["a1", "a2"]),
        (ForgetTarget(everything=True), ["a1", "a2", "b1"]),
        (ForgetTarget(create_time_before_ns=30), ["a1", "a2"]),
        (ForgetTarget(message_ids=()), []),
        (ForgetTarget(thread_id="nobody"), []),
        (ForgetTarget(create_time_before_ns=10), []),
    ],
)
def test_forget_removes_what_is_named_and_nothing_else(
    store: MessageStore, commits: RecordedCommits, target: ForgetTarget, gone: list[str]
) -> None:
    drafts = [
        draft("a1", thread="a", text="A1", create_time_ns=10),
        draft("a2", thread="a", text="A2", create_time_ns=20),
        draft("b1", thread="b", text="B1", create_time_ns=30),
    ]
    outcomes = append(store, *drafts)
    for outcome in outcomes[:2]:
        embed(store, outcome, [1.0, 0.0], [0.0, 1.0])
    append(store, draft("a1", thread="a"), resource="v")
    commits.calls.clear()
    forgotten = store.forget("u", target)
    seqs = {d.id: o.seq for d, o in zip(drafts, outcomes, strict=True)}
    left = [d.id for d in drafts if d.id not in gone]
    assert sorted(forgotten.seqs) == [seqs[i] for i in gone]
    assert forgotten.vectors == sum(2 for i in gone if i != "b1")
    assert forgotten.threads == 2 - len({i[0] for i in left})
    # Where all is meant, nobody needs to be told what.
    assert forgotten.texts_left_out == (target.everything and bool(gone))
    assert sorted(forgotten.texts) == ([] if target.everything else [i.upper() for i in gone])
    assert ids(store.list_messages(ListQuery("u", None, 10))) == left
    assert store.stats("u").messages == len(left)
    assert set(store.load_partition("u").seqs.tolist()) == {seqs[i] for i in left if i != "b1"}
    assert store.stats("v").messages == 1
    if not gone:
        assert commits.calls == []
    elif target.everything:
        assert commits.calls == [("dropped", "u", ())]
    else:
        assert commits.calls == [("removed", "u", tuple(seqs[i] for i in gone))]


def test_what_was_forgotten_does_not_come_back_with_late_vectors(store: MessageStore) -> None:
    (outcome,) = append(store, draft("a"))
    store.forget("u", ForgetTarget(message_ids=("a",)))
    assert not embed(store, outcome, [1.0, 0.0])
    assert store.stats(None).vectors == 0
    assert store.stats(None).resources == 0
    assert store.pending(0, 10) == []


def test_a_thread_that_comes_back_has_another_key(store: MessageStore) -> None:
    append(store, draft("a"))
    before = store.thread_key("u", "t")
    store.forget("u", ForgetTarget(thread_id="t"))
    assert store.thread_key("u", "t") is None
    append(store, draft("a"))
    assert store.thread_key("u", "t") not in (before, None)


def test_a_thread_moves_with_its_messages_and_vectors(
    store: MessageStore, commits: RecordedCommits
) -> None:
    a, b = append(store, draft("a", create_time_ns=1), draft("b", create_time_ns=2))
    append(store, draft("stays", thread="t2"))
    append(store, draft("theirs", thread="x"), resource="v")
    embed(store, a, [1.0, 0.0])
    commits.calls.clear()
    assert store.transfer_thread("u", "t", "v") == 2
    assert ids(store.list_messages(ListQuery("u", None, 10))) == ["stays"]
    moved = store.list_messages(ListQuery("v", "t", 10))
    assert [(m.id, m.seq, m.resource_id) for m in moved] == [("a", a.seq, "v"), ("b", b.seq, "v")]
    rows = store.load_partition("v")
    assert rows.seqs.tolist() == [a.seq]
    assert rows.thread_keys.tolist() == [store.thread_key("v", "t")]
    assert store.load_partition("u").seqs.size == 0
    assert store.thread_key("u", "t") is None
    assert [(r.resource_id, r.seq) for r in store.pending(b.seq - 1, 1)] == [("v", b.seq)]
    assert commits.calls == [("removed", "u", (a.seq, b.seq)), ("dropped", "v", ())]
    assert not embed(store, b, [1.0, 0.0])  # the old owner's worker comes too late
    assert list(store.verify(None)) == []


def test_a_thread_does_not_move_onto_another(store: MessageStore) -> None:
    append(store, draft("a"), draft("b", thread="t2"), draft("free", thread="t3"))
    append(store, draft("x", thread="t"), draft("b", thread="y"), resource="v")
    for thread, to, error in (
        ("nobody", "v", NotFoundError),
        ("t", "v", AlreadyExistsError),
        ("t2", "v", AlreadyExistsError),
        ("t3", "u", AlreadyExistsError),
    ):
        with pytest.raises(error):
            store.transfer_thread("u", thread, to)
    with pytest.raises(NotFoundError):
        store.transfer_thread("nobody", "t", "w")
    assert store.stats(None).resources == 2
    assert ids(store.list_messages(ListQuery("u", None, 10))) == ["a", "b", "free"]
