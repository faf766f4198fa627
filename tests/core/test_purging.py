"""When a purge is made, what it waits for, and what becomes of one that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semanticrecall_core.engine import PurgePlan
from semanticrecall_core.engine.forgetting import Traces
from semanticrecall_core.engine.purging import Purging
from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.types.errors import (
    DeadlineExceededError,
    ResourceExhaustedError,
    UnavailableError,
)
from semanticrecall_core.types.values import CallBudget, ForgetTarget
from support.fake_embedder import FakeEmbedder
from support.message_stores import append, draft
from support.stored_messages import open_store

SECRET = "marzipan" * 4
HOUR_S = 3_600.0
ALL = ForgetTarget(everything=True)


class Saved:
    """Saved snapshots that remember what they were told.

    Attributes:
        error: raised by the next rewrite.
        held: a rewrite waits until it is set.
        unread: what lies beside them.
    """

    def __init__(self) -> None:
        self.told: list[tuple[tuple[int, ...], int]] = []
        self.rewrites = 0
        self.unread: tuple[str, ...] = ()
        self.error: Exception | None = None
        self.entered = threading.Semaphore(0)
        self.held = threading.Event()
        self.held.set()

    def forgotten(self, seqs: Sequence[int], revision: int) -> None:
        self.told.append((tuple(seqs), revision))

    def complete(self) -> None:
        """Nothing lacks."""

    def holding(self) -> tuple[str, ...]:
        return ("one",)

    def left_out(self) -> tuple[str, ...]:
        return self.unread

    def rewrite(self, budget: CallBudget) -> tuple[str, ...]:
        self.entered.release()
        while not self.held.wait(0.01):
            budget.check()
        self.rewrites += 1
        error, self.error = self.error, None
        if error is not None:
            raise error
        return ("one",)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMessageStore]:
    opened = open_store(tmp_path, generation="g")
    append(opened, draft("a", text=SECRET), draft("b", text="something else"))
    yield opened
    opened.close()


@pytest.fixture
def saved() -> Saved:
    return Saved()


def purging(store: SqliteMessageStore, saved: Saved, interval_s: float = 0.0) -> Purging:
    made = Purging(store, lambda: Traces((FakeEmbedder(),), None, saved), PurgePlan(interval_s))
    made.start()
    return made


def forget(store: SqliteMessageStore, made: Purging, name: str = "a") -> int:
    outcome = store.forget("u", ForgetTarget(message_ids=(name,)))
    made.forgotten()
    return outcome.revision


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("recall.db*"))


def wait_until_purged(made: Purging) -> None:
    pause = threading.Event()
    give_up = time.monotonic() + 30
    while made.pending():
        assert time.monotonic() < give_up, "it was not purged"
        pause.wait(0.01)


def test_a_purge_frees_the_files_and_says_up_to_where(
    store: SqliteMessageStore, saved: Saved, tmp_path: Path
) -> None:
    made = purging(store, saved)
    revision = forget(store, made)
    assert made.pending()
    assert made.due_time_ns() is None, "it is never done by itself"
    report = made.purge(CallBudget.of_seconds(30))
    assert (report.revision, report.snapshots_rewritten) == (revision, ("one",))
    assert not made.pending()
    made.stop()
    assert made.stats().runs == 1
    data = files(tmp_path)
    assert SECRET.encode() not in data
    assert b"something else" in data


def test_it_is_not_done_while_something_beside_the_snapshots_may_hold_it(
    store: SqliteMessageStore, saved: Saved
) -> None:
    made = purging(store, saved)
    before = store.purge_state().erased_revision
    forget(store, made)
    saved.unread = ("before-upgrade",)
    report = made.purge(CallBudget.of_seconds(60))
    assert report.snapshots_holding == ("before-upgrade",)
    assert report.revision == before
    assert made.pending()
    saved.unread = ()
    report = made.purge(CallBudget.of_seconds(60))
    assert report.snapshots_holding == ()
    assert not made.pending()
    made.stop()


def test_it_is_made_by_itself_before_it_is_due(store: SqliteMessageStore, saved: Saved) -> None:
    made = purging(store, saved, interval_s=0.2)
    assert made.due_time_ns() is None
    forget(store, made)
    wait_until_purged(made)
    made.stop()
    assert saved.rewrites == 1


def test_it_is_due_an_interval_after_the_first_that_was_forgotten(
    store: SqliteMessageStore, saved: Saved
) -> None:
    made = purging(store, saved, interval_s=HOUR_S)
    forget(store, made)
    first = made.due_time_ns()
    assert first is not None
    assert abs(first / 1e9 - time.time() - HOUR_S) < 60
    forget(store, made, "b")
    second = made.due_time_ns()
    assert second is not None
    assert abs(second - first) < 60e9
    made.stop()
    assert saved.rewrites == 0


def test_when_it_is_due_shows_nothing_of_what_others_forgot_before(
    store: SqliteMessageStore, saved: Saved
) -> None:
    made = purging(store, saved, interval_s=HOUR_S)
    forget(store, made)
    assert made._due_at is not None
    made._due_at -= HOUR_S / 4  # that was a quarter of an hour ago
    before = time.time()
    forget(store, made, "b")
    due = made.due_time_ns()
    assert due is not None
    assert before + HOUR_S <= due / 1e9 <= time.time() + HOUR_S
    made.stop()


def test_what_another_process_left_is_taken_up(store: SqliteMessageStore, saved: Saved) -> None:
    store.forget("u", ALL)
    made = purging(store, saved, interval_s=HOUR_S)
    wait_until_purged(made)
    made.stop()
    nothing = purging(store, saved, interval_s=HOUR_S)
    nothing.stop()
    assert saved.rewrites == 1


def test_without_an_interval_what_another_process_left_waits_until_it_is_asked_for(
    store: SqliteMessageStore, saved: Saved
) -> None:
    """Whoever asked that one got no answer. That there is something left is told."""
    store.forget("u", ALL)
    made = purging(store, saved)
    assert made.stats().pending
    made.stop()
    assert saved.rewrites == 0
    again = purging(store, saved)
    again.purge(CallBudget.of_seconds(30))
    assert not again.stats().pending
    again.stop()
    assert saved.rewrites == 1


def test_one_that_failed_is_told_and_made_again(store: SqliteMessageStore, saved: Saved) -> None:
    made = purging(store, saved, interval_s=0.2)
    saved.error = ResourceExhaustedError("the disk is full", reason="DISK_FULL")
    store.forget("u", ALL)
    with pytest.raises(ResourceExhaustedError) as caught:
        made.purge(CallBudget.of_seconds(30))
    assert caught.value.reason == "DISK_FULL"
    wait_until_purged(made)
    made.stop()
    stats = made.stats()
    assert (stats.runs, stats.failures, stats.pending) == (1, 1, False)


def test_a_fault_of_ours_is_told_without_its_text(store: SqliteMessageStore, saved: Saved) -> None:
    made = purging(store, saved)
    saved.error = ValueError(SECRET)
    with pytest.raises(UnavailableError) as caught:
        made.purge(CallBudget.of_seconds(30))
    assert SECRET not in str(caught.value)
    made.stop()


def test_it_goes_on_when_the_caller_leaves(store: SqliteMessageStore, saved: Saved) -> None:
    made = purging(store, saved)
    saved.held.clear()
    forget(store, made)
    with pytest.raises(DeadlineExceededError):
        made.purge(CallBudget.of_seconds(0.2))
    saved.held.set()
    wait_until_purged(made)
    made.stop()


def test_what_is_forgotten_while_one_runs_needs_another(
    store: SqliteMessageStore, saved: Saved
) -> None:
    made = purging(store, saved)
    saved.held.clear()
    first = forget(store, made)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(made.purge, CallBudget.of_seconds(30))
        assert saved.entered.acquire(timeout=30)
        second = forget(store, made, "b")
        two = pool.submit(made.purge, CallBudget.of_seconds(30))
        saved.held.set()
        assert one.result(30).revision == first
        assert two.result(30).revision == second
    made.stop()


def test_what_is_still_being_forgotten_does_not_count_as_purged(
    store: SqliteMessageStore, saved: Saved
) -> None:
    """Its messages are gone from the record, and its cached vectors perhaps not yet."""
    made = purging(store, saved)
    first = forget(store, made)
    with made.forgetting():
        second = forget(store, made, "b")
        assert made.purge(CallBudget.of_seconds(30)).revision == first
        assert made.erased_revision() == first
    assert made.purge(CallBudget.of_seconds(30)).revision == second
    assert made.erased_revision() is None
    made.stop()


def test_a_stop_breaks_it_off(store: SqliteMessageStore, saved: Saved) -> None:
    made = purging(store, saved)
    saved.held.clear()
    forget(store, made)
    with ThreadPoolExecutor(1) as pool:
        one = pool.submit(made.purge, CallBudget.of_seconds(30))
        assert saved.entered.acquire(timeout=30)
        made.stop()
        assert one.exception(30) is not None
    assert made.pending(), "the next start takes it up"
    with pytest.raises(UnavailableError):
        made.purge(CallBudget.of_seconds(30))


def test_a_reader_in_the_way_is_waited_for_and_holds_up_nobody(
    store: SqliteMessageStore, tmp_path: Path
) -> None:
    store.forget("u", ForgetTarget(message_ids=("a",)))
    with store._readers.read() as reader:
        reader.execute("SELECT count(*) FROM messages").fetchall()
        append(store, draft("c"))
        with pytest.raises(DeadlineExceededError):
            store.erase(CallBudget.of_seconds(0.3))
        append(store, draft("d"))
        assert store.purge_state().pending
    assert store.erase(CallBudget.of_seconds(30)) == store.purge_state().forgotten_revision
    assert SECRET.encode() not in files(tmp_path)
    assert store.stats("u").messages == 3
