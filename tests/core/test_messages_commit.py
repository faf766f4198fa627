"""The writer thread: shared commits, budgets, limits, and what happens when it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from semanticrecall_core.messages.commit import Change, GroupCommit, QueueLimits
from semanticrecall_core.messages.connection import DatabaseFile
from semanticrecall_core.messages.directory import DataDirectory
from semanticrecall_core.messages.journal import RecordJournal, open_journal
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from semanticrecall_core.types.generations import ModelIdentity
from semanticrecall_core.types.values import CallBudget
from support.recorded_commits import RecordedCommits

WAIT_S = 20.0


class Bench:
    """A group commit over a real database, whose thread can be held up inside an operation."""

    def __init__(self, path: Path, limits: QueueLimits) -> None:
        directory = DataDirectory(path)
        file = DatabaseFile(directory.database, directory.lock)
        self.journal = open_journal(
            directory, file, (ModelIdentity("g"), None), codec="c", accept_loss=False
        ).journal
        self.commits = 0
        self._count_commits(self.journal)
        self.group = GroupCommit(self.journal, limits)
        self.listener = RecordedCommits()
        self.group.subscribe(self.listener)
        self.pool = ThreadPoolExecutor(32)
        self._directory = directory
        self._held = threading.Event()
        self._release = threading.Event()

    def _count_commits(self, journal: RecordJournal) -> None:
        commit = journal.commit

        def counted(revision: int) -> None:
            self.commits += 1
            commit(revision)

        journal.commit = counted

    def hold(self) -> Future[None]:
        """Keep the thread inside an operation until `release`."""

        def operation(_connection: apsw.Connection, _revision: int) -> Change[None]:
            self._held.set()
            assert self._release.wait(WAIT_S)
            return Change(None, changed=False)

        future = self.pool.submit(self.group.submit, operation)
        assert self._held.wait(WAIT_S)
        return future

    def release(self) -> None:
        self._release.set()

    def submit(self, operation: Callable[..., Change[object]], **more: object) -> Future[object]:
        """Submit from another thread; returns when it stands in the queue."""
        before = self.waiting()
        future = self.pool.submit(self.group.submit, operation, **more)
        deadline = time.monotonic() + WAIT_S
        while self.waiting() == before and not future.done():
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)
        return future

    def waiting(self) -> int:
        return len(self.group._queue)

    def resources(self) -> list[str]:
        with self.reader() as connection:
            rows = connection.execute("SELECT resource_id FROM resources ORDER BY resource_key")
            return [str(row[0]) for row in rows]

    def reader(self) -> apsw.Connection:
        return DatabaseFile(self._directory.database, self._directory.lock).open_reader()

    def close(self) -> None:
        self.release()
        self.group.close()
        self.pool.shutdown()
        self._directory.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as undo:
        made = Bench(tmp_path / "data", QueueLimits(operations_max=20, bytes_max=1000))
        undo.callback(made.close)
        yield made


def adding(name: str) -> Callable[[apsw.Connection, int], Change[str]]:
    """An operation that leaves a trace and tells the listener."""

    def operation(connection: apsw.Connection, _revision: int) -> Change[str]:
        connection.execute("INSERT INTO resources(resource_id) VALUES (?)", (name,))
        return Change(name, notices=(lambda listener: listener.resource_dropped(name),))

    return operation


def test_those_who_wait_share_one_commit(bench: Bench) -> None:
    held = bench.hold()
    waiting = [bench.submit(adding(f"r{n}")) for n in range(10)]
    bench.release()
    assert [future.result(WAIT_S) for future in waiting] == [f"r{n}" for n in range(10)]
    held.result(WAIT_S)
    assert bench.commits == 1
    assert bench.resources() == [f"r{n}" for n in range(10)]
    assert bench.listener.calls == [("dropped", f"r{n}", ()) for n in range(10)]
    assert bench.journal.revision == 10


@pytest.mark.parametrize("error", [NotFoundError("x"), ValueError("x"), apsw.ConstraintError("x")])
def test_an_operation_that_fails_leaves_no_trace_and_harms_no_other(
    bench: Bench, error: Exception
) -> None:
    def failing(connection: apsw.Connection, _revision: int) -> Change[None]:
        connection.execute("INSERT INTO resources(resource_id) VALUES ('trace')")
        raise error

    held = bench.hold()
    first, bad, last = (bench.submit(op) for op in (adding("a"), failing, adding("b")))
    bench.release()
    assert (first.result(WAIT_S), last.result(WAIT_S)) == ("a", "b")
    expected = UnavailableError if isinstance(error, apsw.Error) else type(error)
    with pytest.raises(expected):
        bad.result(WAIT_S)
    held.result(WAIT_S)
    assert bench.resources() == ["a", "b"]
    assert bench.group.healthy


def test_a_deadline_that_passes_in_the_queue_is_answered_at_once(bench: Bench) -> None:
    held = bench.hold()
    late = bench.submit(adding("late"), budget=CallBudget.of_seconds(0.05))
    with pytest.raises(DeadlineExceededError):
        late.result(WAIT_S)  # the thread is still held
    assert bench.waiting() == 0
    bench.release()
    held.result(WAIT_S)
    assert bench.group.submit(adding("next")) == "next"
    assert bench.resources() == ["next"]


def test_a_caller_who_went_away_in_the_queue_leaves_no_trace(bench: Bench) -> None:
    gone = threading.Event()
    held = bench.hold()
    left = bench.submit(adding("left"), budget=CallBudget(time.monotonic() + 60, gone.is_set))
    stays = bench.submit(adding("stays"), budget=CallBudget.of_seconds(60))
    gone.set()
    bench.release()
    with pytest.raises(CancelledError):
        left.result(WAIT_S)
    assert stays.result(WAIT_S) == "stays"
    held.result(WAIT_S)
    assert bench.resources() == ["stays"]


def test_what_has_begun_is_waited_for_beyond_the_deadline(bench: Bench) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(connection: apsw.Connection, revision: int) -> Change[str]:
        begun.set()
        assert go_on.wait(WAIT_S)
        return adding("slow")(connection, revision)

    budget = CallBudget.of_seconds(0.2)
    future = bench.pool.submit(bench.group.submit, slow, budget)
    assert begun.wait(WAIT_S)
    while budget.remaining():
        threading.Event().wait(0.01)
    assert not future.done()
    go_on.set()
    assert future.result(WAIT_S) == "slow"
    assert bench.resources() == ["slow"]


@pytest.mark.parametrize(("operations", "size_bytes"), [(20, 0), (2, 500)])
def test_a_full_queue_refuses(bench: Bench, operations: int, size_bytes: int) -> None:
    held = bench.hold()
    waiting = [bench.submit(adding(f"r{n}"), size_bytes=size_bytes) for n in range(operations)]
    with pytest.raises(ResourceExhaustedError) as refused:
        bench.group.submit(adding("more"), size_bytes=size_bytes)
    assert refused.value.reason == "QUEUE_FULL"
    bench.release()
    for future in [*waiting, held]:
        future.result(WAIT_S)
    assert bench.group.submit(adding("more"), size_bytes=size_bytes) == "more"


def test_one_write_larger_than_the_queue_still_passes(bench: Bench) -> None:
    assert bench.group.submit(adding("large"), size_bytes=10**9) == "large"


@pytest.mark.parametrize("kind", ["notices", "lexical_notices"])
@pytest.mark.parametrize("fault", [RuntimeError("listener"), SystemExit(1), OSError(5, "x")])
def test_a_fault_in_the_listener_stops_the_store_and_nobody_waits_for_ever(
    bench: Bench, fault: BaseException, kind: str
) -> None:
    def bad_notice(_listener: object) -> None:
        raise fault

    def bad(_connection: apsw.Connection, _revision: int) -> Change[None]:
        return Change(None, **{kind: (bad_notice,)})

    bench.group.subscribe_lexical(bench.listener)

    held = bench.hold()
    futures = [bench.submit(op) for op in (adding("a"), bad, adding("b"))]
    bench.release()
    held.result(WAIT_S)
    for future in futures:
        with pytest.raises(UnavailableError) as stopped:
            future.result(WAIT_S)
        assert stopped.value.reason == "STORE_STOPPED"
    with pytest.raises(UnavailableError):
        bench.group.submit(adding("later"))
    assert not bench.group.healthy


def test_closing_finishes_what_was_accepted_and_refuses_more(bench: Bench) -> None:
    held = bench.hold()
    accepted = [bench.submit(adding(f"r{n}")) for n in range(5)]
    closing = bench.pool.submit(bench.group.close)
    bench.release()
    closing.result(WAIT_S)
    assert [future.result(WAIT_S) for future in accepted] == [f"r{n}" for n in range(5)]
    held.result(WAIT_S)
    with pytest.raises(UnavailableError):
        bench.group.submit(adding("later"))
    assert bench.resources() == [f"r{n}" for n in range(5)]


def test_an_operation_that_changed_nothing_costs_no_commit(bench: Bench) -> None:
    result = bench.group.submit(lambda _connection, _revision: Change("same", changed=False))
    assert result == "same"
    assert (bench.commits, bench.journal.revision) == (0, 0)


def test_a_next_operation_follows_those_that_wait_and_only_a_commit(bench: Bench) -> None:
    def and_then(name: str, more: str) -> Callable[[apsw.Connection, int], Change[str]]:
        def operation(connection: apsw.Connection, revision: int) -> Change[str]:
            change = adding(name)(connection, revision)
            return replace(change, next_operation=adding(more))

        return operation

    held = bench.hold()
    first = bench.submit(and_then("first", "next"))
    meanwhile = bench.submit(adding("meanwhile"))
    bench.release()
    for future in (first, meanwhile, held):
        future.result(WAIT_S)
    assert bench.group.submit(adding("later")) == "later"
    assert bench.resources() == ["first", "meanwhile", "next", "later"]

    def refused(_revision: int) -> None:
        raise apsw.IOError("sync failed")

    bench.journal.commit = refused
    with pytest.raises(UnavailableError):
        bench.group.submit(and_then("lost", "never"))
    del bench.journal.commit
    assert bench.group.submit(adding("last")) == "last"
    assert bench.resources() == ["first", "meanwhile", "next", "later", "last"]


@pytest.mark.parametrize("error", [OSError(5, "x"), apsw.IOError("x"), MemoryError()])
def test_work_of_its_own_that_fails_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(_path: object) -> None:
        raise error

    monkeypatch.setattr("semanticrecall_core.messages.journal.shutil.disk_usage", failing)
    with pytest.raises((UnavailableError, ResourceExhaustedError)):
        bench.group.write_anew()
    assert bench.group.submit(adding("after")) == "after"
    assert bench.group.healthy
    monkeypatch.undo()
    bench.group.write_anew()
    assert bench.resources() == ["after"]
