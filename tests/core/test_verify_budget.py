"""Verify stops when nobody waits for it any more, also where it finds nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from semanticrecall_core.engine import Engine, EngineLimits, VerifyReport
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    UnavailableError,
)
from semanticrecall_core.types.values import CallBudget, MessageDraft, Role, Wait
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder
from support.stored_messages import open_store

MESSAGES = 600


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    embedder = FakeEmbedder()
    store = open_store(tmp_path / "data", generation=embedder.generation)
    index = FaissVectorIndex(embedder.dimensions, store.load_partition)
    made = Engine(store, embedder, index, EngineLimits())
    made.start()
    drafts = [
        MessageDraft(id=f"m{i}", thread_id="t", role=Role.USER, text=f"text {i}")
        for i in range(MESSAGES)
    ]
    made.index("u", drafts, Wait.SEARCHABLE, CallBudget.of_seconds(60))
    yield made
    made.stop()


class Asked:
    """A caller who leaves when asked for the nth time whether it is there; 0 is never."""

    def __init__(self, leaves_at: int = 0) -> None:
        self.times = 0
        self._leaves_at = leaves_at

    def budget(self) -> CallBudget:
        return CallBudget(float("inf"), self._gone)

    def _gone(self) -> bool:
        self.times += 1
        return self.times == self._leaves_at


@pytest.mark.parametrize("resource_id", ["u", None])
def test_whenever_the_caller_leaves_verify_stops(engine: Engine, resource_id: str | None) -> None:
    stays = Asked()
    report = VerifyReport(MESSAGES, MESSAGES, 0)
    assert list(engine.verify(resource_id, stays.budget())) == [report]
    # At the least: once for each of the batches of 256 messages and of 256 vectors.
    assert stays.times >= 2 * (MESSAGES // 256 + 1)
    for n in range(1, stays.times + 1):
        leaves = Asked(n)
        with pytest.raises(CancelledError):
            list(engine.verify(resource_id, leaves.budget()))
        assert leaves.times == n


def test_a_deadline_ends_it_too(engine: Engine) -> None:
    with pytest.raises(DeadlineExceededError):
        list(engine.verify(None, CallBudget.of_seconds(-1)))


def test_a_repair_beside_another_is_refused_and_holds_no_thread(engine: Engine) -> None:
    # A repair that is told in batches needs a thread for each; whoever waits for its end on one
    # would keep it from ending.
    first = iter(engine.verify("u", repair=True))
    events = [next(first)]
    with pytest.raises(UnavailableError) as refused:
        next(iter(engine.verify("u", CallBudget.of_seconds(5), repair=True)))
    assert refused.value.reason == "REPAIR_RUNNING"
    report = VerifyReport(MESSAGES, MESSAGES, 0)
    assert list(engine.verify("u")) == [report], "what only looks goes on"
    last = [*events, *first][-1]
    assert isinstance(last, VerifyReport)
    assert last.self_test_failures == 0


@pytest.mark.parametrize("left", ["closed", "over"])
def test_after_a_repair_that_was_left_there_is_the_next(engine: Engine, left: str) -> None:
    first = engine.verify("u", CallBudget.of_seconds(60), repair=True)
    assert isinstance(first, Generator)
    next(first)
    if left == "closed":
        first.close()
    else:
        with pytest.raises(LookupError):
            first.throw(LookupError())
    last = list(engine.verify("u", repair=True))[-1]
    assert isinstance(last, VerifyReport)
