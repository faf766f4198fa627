"""What every message store promises about vector rows' checksums and about changed resources."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from semanticrecall_core.types.errors import AlreadyExistsError
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    ForgetTarget,
    PartitionRows,
    Role,
    VectorRecord,
)
from support.message_stores import append, draft, embed
from support.recorded_commits import RecordedCommits

NOWHERE = ForgetTarget(message_ids=("no such",))


def checksums(store: MessageStore, resource: str = "u") -> dict[tuple[int, int], int]:
    """Checksums by (seq, chunk), and that they are those of the rows, in order."""
    told, rows = store.row_checksums(resource), store.load_partition(resource)
    for name in ("seqs", "chunks", "checksums"):
        column = getattr(told, name)
        assert column.dtype == np.int64
        assert column.tolist() == getattr(rows, name).tolist()
    places = list(zip(told.seqs.tolist(), told.chunks.tolist(), strict=True))
    assert places == sorted(places)
    return dict(zip(places, told.checksums.tolist(), strict=True))


def row_lists(rows: PartitionRows) -> list[list[object]]:
    return [getattr(rows, field.name).tolist() for field in fields(rows)]


def test_checksums_are_those_of_the_rows_by_seq_and_chunk(store: MessageStore) -> None:
    assert checksums(store) == {}
    first, second, waits = append(store, draft("a"), draft("b"), draft("c", text="later"))
    embed(store, second, [0.0, 1.0])
    embed(store, first, [1.0, 0.0], [0.6, 0.8], [0.0, 1.0])
    found = checksums(store)
    assert list(found) == [(first.seq, 0), (first.seq, 1), (first.seq, 2), (second.seq, 0)]
    assert len(set(found.values())) == 4
    assert waits.pending
    assert checksums(store, "somebody else") == {}


@pytest.mark.parametrize(
    "change",
    [
        {"thread_id": "t2"},
        {"role": Role.TOOL},
        {"create_time_ns": 99},
        {"metadata_json": '{"k":1}'},
    ],
)
def test_any_change_of_a_message_changes_its_checksums_and_no_others(
    store: MessageStore, change: dict[str, object]
) -> None:
    one = draft("a", create_time_ns=5)
    outcome, other = append(store, one, draft("b"))
    embed(store, outcome, [1.0, 0.0], [0.6, 0.8])
    embed(store, other, [1.0, 0.0])
    before = checksums(store)
    append(store, replace(one, **change))  # type: ignore[arg-type]
    after = checksums(store)
    assert list(after) == list(before)
    changed = {place[0] for place in before if before[place] != after[place]}
    assert changed == {outcome.seq}
    assert after[outcome.seq, 0] != before[outcome.seq, 0]
    assert after[outcome.seq, 1] != before[outcome.seq, 1]


def test_an_equal_vector_put_again_has_the_same_checksum_and_another_has_not(
    store: MessageStore,
) -> None:
    (outcome,) = append(store, draft("a"))
    embed(store, outcome, [0.6, 0.8])
    before = checksums(store)
    embed(store, outcome, [0.6, 0.8])
    assert checksums(store) == before
    embed(store, outcome, [0.8, 0.6])
    assert checksums(store) != before


def test_a_moved_message_has_another_checksum(store: MessageStore) -> None:
    (outcome,) = append(store, draft("a"))
    embed(store, outcome, [1.0, 0.0])
    before = checksums(store)
    store.transfer_thread("u", "t", "v")
    assert checksums(store) == {}
    (moved,) = checksums(store, "v").items()
    assert moved[0] == (outcome.seq, 0)
    assert moved[1] != before[outcome.seq, 0]


def test_rows_of_chosen_messages(store: MessageStore) -> None:
    outcomes = append(store, *(draft(i) for i in "abcd"))
    for outcome in outcomes[:3]:
        embed(store, outcome, [1.0, 0.0], [0.6, 0.8])
    a, _, c, waits = (outcome.seq for outcome in outcomes)
    everything = store.load_partition("u")
    kept = np.isin(everything.seqs, [a, c])
    expected = PartitionRows(
        **{field.name: getattr(everything, field.name)[kept] for field in fields(everything)}
    )
    found = store.load_rows("u", np.array([a, c, waits, 10**9], np.int64))
    assert row_lists(found) == row_lists(expected)
    assert found.vectors.shape == (4, 2)
    assert store.load_rows("u", np.array([waits], np.int64)).seqs.tolist() == []
    assert store.load_rows("u", np.array([], np.int64)).seqs.tolist() == []
    assert store.load_rows("v", np.array([a], np.int64)).seqs.tolist() == []


def test_told_rows_carry_the_checksums_on_record(
    store: MessageStore, commits: RecordedCommits
) -> None:
    (outcome,) = append(store, draft("a", create_time_ns=5))
    embed(store, outcome, [1.0, 0.0], [0.6, 0.8])
    assert commits.put[-1].checksums.tolist() == list(checksums(store).values())
    append(store, draft("a", create_time_ns=6))
    assert commits.put[-1].checksums.tolist() == list(checksums(store).values())


def test_every_change_of_a_resource_is_told_after_its_other_notices(
    store: MessageStore, commits: RecordedCommits
) -> None:
    (outcome,) = append(store, draft("a"))
    append(store, draft("a"))  # unchanged
    assert commits.heard == [("changed", "u", ())]
    commits.clear()
    assert embed(store, outcome, [1.0, 0.0])
    assert commits.heard == [("put", "u", (outcome.seq,)), ("changed", "u", ())]
    commits.clear()
    append(store, draft("a", text="another"), draft("b"))
    assert commits.heard == [("removed", "u", (outcome.seq,)), ("changed", "u", ())]
    commits.clear()
    assert not embed(store, outcome, [1.0, 0.0])
    store.forget("u", NOWHERE)
    assert commits.heard == []
    store.forget("u", ForgetTarget(message_ids=("b",)))
    assert [call[:2] for call in commits.heard] == [("removed", "u"), ("changed", "u")]
    commits.clear()
    store.forget("u", ForgetTarget(everything=True))
    assert commits.heard == [("dropped", "u", ()), ("changed", "u", ())]


def test_a_move_changes_both_resources(store: MessageStore, commits: RecordedCommits) -> None:
    append(store, draft("a"))
    append(store, draft("b", thread="x"), resource="v")
    commits.clear()
    store.transfer_thread("u", "t", "v")
    assert [call[:2] for call in commits.heard] == [
        ("removed", "u"),
        ("dropped", "v"),
        ("changed", "u"),
        ("changed", "v"),
    ]
    commits.clear()
    append(store, draft("c"))
    append(store, draft("d"), resource="v")
    commits.clear()
    with pytest.raises(AlreadyExistsError):
        store.transfer_thread("u", "t", "v")
    assert commits.heard == []


def test_a_put_for_two_resources_changes_each_once(
    store: MessageStore, commits: RecordedCommits
) -> None:
    a, b = append(store, draft("a"), draft("b"))
    (c,) = append(store, draft("c"), resource="v")
    commits.clear()
    row = np.array([[1.0, 0.0]], np.float32)
    owners = [("u", a), ("v", c), ("u", b)]
    store.put_vectors([VectorRecord(r, o.seq, o.revision, row) for r, o in owners])
    assert sorted(call[:2] for call in commits.heard[:2]) == [("put", "u"), ("put", "v")]
    assert sorted(commits.heard[2:]) == [("changed", "u", ()), ("changed", "v", ())]


def test_each_listener_is_told_in_the_order_they_came(
    store: MessageStore, commits: RecordedCommits
) -> None:
    seen: list[int] = []
    told: list[int] = []

    class Follower(RecordedCommits):
        def resource_changed(self, resource_id: str) -> None:
            super().resource_changed(resource_id)
            seen.append(len(commits.heard))

        def _heard(self, kind: str, resource_id: str, seqs: tuple[int, ...]) -> None:
            super()._heard(kind, resource_id, seqs)
            told.append(len(commits.calls))

    follower = Follower()
    store.subscribe(follower)
    (outcome,) = append(store, draft("a"))
    embed(store, outcome, [1.0, 0.0])
    store.forget("u", ForgetTarget(thread_id="t"))
    assert follower.heard == commits.heard
    assert len(follower.heard) == 5
    assert seen == [1, 3, 5]  # the first had been told already
    assert told == [1, 2]
