"""Forget in batches, by condition beside edits, and what saved snapshots are told of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from semanticrecall_core.messages import forget as forget_module
from semanticrecall_core.messages.commit import Change
from semanticrecall_core.types.errors import DeadlineExceededError, UnavailableError
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetCondition,
    ForgetTarget,
    ListQuery,
    Role,
)
from support.running_engine import Running, draft

BY_BOB = ForgetTarget(condition=ForgetCondition(authors=frozenset({"Bob"})))
COUNT = 23
AT_ONCE = 5


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forget_module, "FORGET_ROWS_MAX", AT_ONCE)
    monkeypatch.setattr(forget_module, "SEARCHED_ROWS", 4)


class Saved:
    """Saved snapshots: what they were told, and which fail."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.error: Exception | None = None
        self.unread: tuple[str, ...] = ()

    def start(self) -> None:
        """Nothing is left over."""

    def forgotten(self, seqs: Sequence[int], revision: int) -> None:
        if self.error is not None:
            raise self.error
        self.told += seqs

    def complete(self) -> None:
        if self.error is not None:
            raise self.error

    def holding(self) -> tuple[str, ...]:
        return ("one", "two")

    def left_out(self) -> tuple[str, ...]:
        return self.unread

    def rewrite(self, budget: CallBudget) -> tuple[str, ...]:
        return ()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    engine = Running(tmp_path / "data")
    engine.add(
        *(
            draft(f"m{n}", f"sentence number {n}", author="Bob" if n % 2 else "Ann")
            for n in range(COUNT)
        )
    )
    yield engine
    engine.engine.stop()


def left(running: Running) -> list[str]:
    return [m.id for m in running.engine.list_messages(ListQuery("u", None, 1000))]


@pytest.mark.parametrize(
    "target",
    [
        ForgetTarget(everything=True),
        ForgetTarget(thread_id="t"),
        ForgetTarget(message_ids=tuple(f"m{n}" for n in range(COUNT))),
        ForgetTarget(create_time_before_ns=2**62),
        ForgetTarget(condition=ForgetCondition(thread_id="t")),
        ForgetTarget(condition=ForgetCondition(authors=frozenset({"Ann", "Bob"}))),
        ForgetTarget(condition=ForgetCondition(roles=frozenset({Role.USER}))),
    ],
)
def test_more_than_goes_at_once_goes_in_batches(running: Running, target: ForgetTarget) -> None:
    running.recall("sentence number 3")
    batches: list[int] = []
    forget = running.store.forget

    def counted(resource_id: str, wanted: ForgetTarget) -> Any:
        outcome = forget(resource_id, wanted)
        batches.append(len(outcome.seqs))
        return outcome

    running.store.forget = counted  # type: ignore[method-assign]
    report = running.engine.forget("u", target)
    assert (report.messages, report.vectors, report.threads) == (COUNT, COUNT, 1)
    assert sum(batches) == COUNT
    assert max(batches) <= AT_ONCE
    assert left(running) == []
    assert running.engine.cache_stats().entries == 0
    assert running.recall("sentence number 3").messages == ()
    stats = running.engine.stats("u")
    assert (stats.messages, stats.vectors, stats.pending, stats.threads) == (0, 0, 0, 0)


def test_by_author_others_stay(running: Running) -> None:
    report = running.engine.forget("u", BY_BOB)
    assert report.messages == COUNT // 2
    assert left(running) == [f"m{n}" for n in range(0, COUNT, 2)]


def test_what_is_edited_or_stored_while_it_searches_is_looked_at_again(running: Running) -> None:
    """m0 becomes Bob's behind the search's back, m1 becomes Ann's before it is removed."""
    search, removal = running.store.rows_to_forget, running.store.forget
    edits = iter(
        [
            lambda: running.add(draft("m0", "sentence number 0", author="Bob")),
            lambda: running.add(draft("m1", "sentence number 1", author="Ann")),
            lambda: running.add(draft("new", "a new one", author="Bob")),
        ]
    )

    def searched(*arguments: Any) -> Any:
        page = search(*arguments)
        edit = next(edits, None)
        if edit is not None:
            edit()
        return page

    def last(resource_id: str, target: ForgetTarget) -> Any:
        if target.condition is not None and "late" not in left(running):
            running.add(draft("late", "stored in between", author="Bob"))
        return removal(resource_id, target)

    running.store.rows_to_forget = searched  # type: ignore[method-assign]
    running.store.forget = last  # type: ignore[method-assign]
    running.engine.forget("u", BY_BOB)
    running.store.forget = removal  # type: ignore[method-assign]
    expected = {"m1", *(f"m{n}" for n in range(2, COUNT, 2))}
    # The last sweep is the last thing it does: what the test stored after it may be there.
    assert set(left(running)) - {"late"} == expected
    found = running.recall("a new one", top_k=50)
    assert {m.message.id for m in found.messages} - {"late"} == expected


def test_a_search_that_takes_too_long_removes_nothing_of_what_it_has_not_found(
    running: Running,
) -> None:
    with pytest.raises(DeadlineExceededError):
        running.engine.forget("u", BY_BOB, CallBudget(0.0))
    assert len(left(running)) == COUNT


def test_saved_snapshots_are_told_of_all_that_they_may_hold(running: Running) -> None:
    saved = Saved()
    running.engine.saving = saved  # type: ignore[assignment]
    seqs = [m.seq for m in running.engine.list_messages(ListQuery("u", None, 1000))]
    write(running, "UPDATE record SET snapshot_seq = 12")
    report = running.engine.forget("u", ForgetTarget(everything=True))
    assert saved.told == [seq for seq in sorted(seqs) if seq <= 12]
    assert report.snapshots_holding == ("one", "two")
    with running.store._readers.read() as connection:
        rows = connection.execute("SELECT seq, revision FROM forgotten ORDER BY seq").fetchall()
        last = connection.execute("SELECT forgotten_revision FROM record").get
    assert [seq for seq, _ in rows] == saved.told
    assert 0 < min(r for _, r in rows) <= max(r for _, r in rows) <= last


def test_what_lies_beside_the_snapshots_may_hold_it(running: Running) -> None:
    saved = Saved()
    running.engine.saving = saved  # type: ignore[assignment]
    saved.unread = ("before-upgrade",)
    write(running, "UPDATE record SET snapshot_seq = 1000")
    target = ForgetTarget(message_ids=("m1",))
    report = running.engine.forget("u", target, purge=True)
    assert not report.purged
    assert report.snapshots_holding == ("before-upgrade", "one", "two")
    assert running.engine.purge_stats().pending
    saved.unread = ()
    report = running.engine.forget("u", target, purge=True)
    assert report.purged
    assert report.snapshots_holding == ()


def test_what_no_snapshot_has_shows_nothing_of_what_others_forgot(running: Running) -> None:
    running.engine.saving = Saved()  # type: ignore[assignment]
    last = max(m.seq for m in running.engine.list_messages(ListQuery("u", None, 1000)))
    write(running, f"UPDATE record SET snapshot_seq = {last}")
    running.add(draft("later", "of another"), resource="v")
    others = running.engine.forget("u", ForgetTarget(everything=True))
    assert others.snapshots_holding == ("one", "two")
    report = running.engine.forget("v", ForgetTarget(everything=True))
    assert (report.messages, report.snapshots_holding) == (1, ())


def test_who_repeats_a_forget_is_answered_when_the_ledger_knows(running: Running) -> None:
    # The process that removed them ended before the ledger was told, and this one could not
    # complete it at its start.
    target = ForgetTarget(message_ids=("m1",))
    running.engine.forget("u", target)
    saved = Saved()
    running.engine.saving = saved  # type: ignore[assignment]
    saved.error = UnavailableError("the disk failed")
    with pytest.raises(UnavailableError):
        running.engine.forget("u", target)
    saved.error = None
    assert running.engine.forget("u", target).messages == 0


def test_a_ledger_that_cannot_be_written_is_told_and_the_record_knows(running: Running) -> None:
    saved = Saved()
    running.engine.saving = saved  # type: ignore[assignment]
    write(running, "UPDATE record SET snapshot_seq = 1000")
    saved.error = UnavailableError("the disk failed")
    with pytest.raises(UnavailableError):
        running.engine.forget("u", ForgetTarget(message_ids=("m1",)))
    assert "m1" not in left(running)
    assert running.recall("sentence number 1").info.cache_hit is False
    with pytest.raises(UnavailableError):
        running.engine.purge(CallBudget.of_seconds(30))
    assert running.engine.purge_stats().pending
    saved.error = None
    running.engine.purge(CallBudget.of_seconds(30))
    assert len(saved.told) == 1, "before its snapshots are rewritten"
    assert not running.engine.purge_stats().pending
    with running.store._readers.read() as connection:
        assert connection.execute("SELECT count(*) FROM forgotten").get == 1


def write(running: Running, statement: str) -> None:
    def operation(connection: Any, _revision: int) -> Change[None]:
        connection.execute(statement)
        return Change(None)

    running.store._writer.submit(operation)
