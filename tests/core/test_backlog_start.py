"""A start takes up what is pending page by page, beside the calls, and forgets nobody who waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from semanticrecall_core.engine import backlog as module
from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.values import PendingRow
from support.fake_embedder import FakeEmbedder
from support.message_stores import append, draft
from support.stored_messages import open_store

WAIT_S = 30
LATER_S = 0.05


class Starting:
    """A backlog over five pending rows, of which the first page has two; the rest is held up."""

    def __init__(self, directory: Path) -> None:
        self.embedder = FakeEmbedder()
        self.store: SqliteMessageStore = open_store(directory, generation=self.embedder.generation)
        self.rows = append(self.store, *(draft(f"m{n}", text=f"text {n}") for n in range(4)))
        self.rows += append(self.store, draft("theirs", text="text"), resource="v")
        self.go_on = threading.Event()
        self.faults: list[Exception] = []
        self._read = self.store.pending
        self.store.pending = self.pending  # type: ignore[method-assign]
        self.backlog = EmbeddingBacklog(self.store, self.embedder, threads=1, rows_max=1000)
        self.backlog.start()

    def pending(self, after_seq: int, limit: int) -> list[PendingRow]:
        if after_seq >= self.rows[1].seq and limit > 1:
            assert self.go_on.wait(WAIT_S)
            if self.faults:
                raise self.faults.pop()
        return self._read(after_seq, limit)

    def wait(self, resource: str = "u") -> Future[None]:
        return self.backlog.when_embedded(resource, self.rows[-1].revision)


@pytest.fixture
def starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starting]:
    monkeypatch.setattr(module, "START_PAGE_ROWS", 2)
    made = Starting(tmp_path / "data")
    yield made
    made.go_on.set()
    made.embedder.heal()
    made.backlog.stop()
    made.store.close()


def test_the_start_does_not_wait_for_all_pages(starting: Starting) -> None:
    assert starting.backlog.total() <= 2
    starting.go_on.set()
    starting.wait("u").result(WAIT_S)
    starting.wait("v").result(WAIT_S)
    assert starting.store.stats(None).pending == 0
    assert starting.store.stats(None).vectors == 5


@pytest.mark.parametrize("resource", ["u", "v", "nobody"])
def test_who_waits_waits_for_rows_that_are_not_read_yet(starting: Starting, resource: str) -> None:
    waiting = starting.wait(resource)
    with pytest.raises(TimeoutError):
        waiting.result(LATER_S)
    starting.go_on.set()
    waiting.result(WAIT_S)
    assert starting.store.stats(resource).pending == 0


def test_who_waits_waits_until_they_are_embedded(starting: Starting) -> None:
    gate = starting.embedder.block_on("text 3")
    waiting = starting.wait()
    starting.go_on.set()
    assert gate.entered.wait(WAIT_S)
    starting.wait("nobody").result(WAIT_S)
    with pytest.raises(TimeoutError):
        waiting.result(LATER_S)
    gate.release.set()
    waiting.result(WAIT_S)


def test_rows_that_are_replaced_before_they_are_read_are_waited_for(starting: Starting) -> None:
    waiting = starting.wait()
    (new,) = append(starting.store, draft("m3", text="else"))
    starting.backlog.add([PendingRow("u", new.seq, new.revision, "else")])
    starting.go_on.set()
    waiting.result(WAIT_S)
    starting.backlog.when_embedded("u", new.revision).result(WAIT_S)
    assert starting.store.stats("u").pending == 0


def test_a_page_that_cannot_be_read_is_read_again(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_FIRST_SECONDS", 0.01)
    starting.faults.append(UnavailableError("the disk", reason="DISK"))
    waiting = starting.wait()
    with capture_logs() as logs:
        starting.go_on.set()
        waiting.result(WAIT_S)
    assert [(e["event"], e["reason"]) for e in logs if e["log_level"] == "error"] == [
        ("backlog_not_read", "DISK")
    ]
    assert starting.store.stats("u").pending == 0


def test_a_stop_lets_go_of_everybody_who_waits(starting: Starting) -> None:
    waiting = starting.wait("nobody")
    stopped = threading.Thread(target=starting.backlog.stop)
    stopped.start()
    waiting.result(WAIT_S)
    starting.go_on.set()
    stopped.join(WAIT_S)
    assert not stopped.is_alive()


def test_a_row_that_is_pending_again_does_not_end_a_wait_twice(starting: Starting) -> None:
    """Who waited while the record was read waited for every row of an older revision."""
    waiting = starting.wait("nobody")
    starting.go_on.set()
    waiting.result(WAIT_S)
    starting.wait("u").result(WAIT_S)
    gate = starting.embedder.block_on("again")
    # As when another model has begun to serve.
    starting.backlog.add([PendingRow("nobody", 1_000, starting.rows[0].revision, "again")])
    with capture_logs() as logs:
        assert gate.entered.wait(WAIT_S)
        gate.release.set()
        starting.backlog.stop()
    assert logs == []
