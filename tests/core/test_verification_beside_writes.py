"""Verify while things change: a change that is on its way to the indexes is never taken for damage.

The writer thread is held between a commit and what it tells the indexes, until Verify waits for it
or has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.engine.warming import WarmingLimits
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.types.lexical import LexicalRows
from semanticrecall_core.types.recalling import Mode, RecallQuery
from semanticrecall_core.types.values import (
    CallBudget,
    Finding,
    ForgetTarget,
    PartitionRows,
    Wait,
)
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder
from support.running_engine import draft
from support.stored_messages import open_store

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn

WAIT_S = 30.0
POLL_S = 0.002


class Slow:
    """A listener that is told first, and once keeps the others waiting.

    Attributes:
        passes: how many calls pass before that; negative: all do.
    """

    def __init__(self) -> None:
        self.passes = -1
        self.held = threading.Event()
        self.may_go: Callable[[], bool] = lambda: True

    def _hold(self) -> None:
        self.passes -= 1
        if self.passes != -1:
            return
        self.held.set()
        waited = threading.Event()
        while not self.may_go():
            waited.wait(POLL_S)

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        self._hold()

    def vectors_removed(self, resource_id: str, seqs: IntColumn) -> None:
        self._hold()

    def resource_dropped(self, resource_id: str) -> None:
        self._hold()

    def resource_changed(self, resource_id: str) -> None:
        pass

    def texts_put(self, resource_id: str, rows: LexicalRows) -> None:
        self._hold()

    def texts_removed(self, resource_id: str, seqs: IntColumn) -> None:
        self._hold()


class World:
    """An engine whose writer can be held."""

    def __init__(self, directory: Path) -> None:
        embedder = FakeEmbedder()
        self.slow = Slow()
        self.store = open_store(directory, generation=embedder.generation, analyser=Analyser())
        self.store.subscribe(self.slow)
        self.store.subscribe_lexical(self.slow)
        self.index = FaissVectorIndex(embedder.dimensions, self.store.load_partition)
        lexical = InMemoryLexicalIndex(self.store.load_lexical)
        limits = EngineLimits(warming=WarmingLimits(0.0, 0))
        self.engine = Engine(self.store, embedder, self.index, limits, None, lexical)
        self.engine.start()

    def add(self, name: str, text: str) -> None:
        budget = CallBudget.of_seconds(WAIT_S)
        self.engine.index("u", [draft(name, text)], Wait.SEARCHABLE, budget)

    def found(self, *, repair: bool = False) -> list[Finding]:
        events = self.engine.verify("u", CallBudget.of_seconds(WAIT_S), repair=repair)
        return [event for event in events if isinstance(event, Finding)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    for n in range(5):
        made.add(f"m{n}", f"message {n} about thing {n * 7919 % 100}")
    query = RecallQuery("u", "thing", mode=Mode.HYBRID)
    made.engine.recall(query, CallBudget.of_seconds(WAIT_S))  # reads the partitions
    assert made.found() == []
    yield made
    made.engine.stop()


def beside(
    world: World, change: Callable[[], object], *, passes: int = 0, repair: bool = False
) -> list[Finding]:
    """What a Verify finds that begins between the commit of a change and its listeners."""
    ended = threading.Event()
    queue = world.store._writer._queue
    world.slow.may_go = lambda: ended.is_set() or bool(queue)
    world.slow.held.clear()
    world.slow.passes = passes
    changing = threading.Thread(target=change)
    changing.start()
    assert world.slow.held.wait(WAIT_S)
    try:
        return world.found(repair=repair)
    finally:
        ended.set()
        changing.join(WAIT_S)
        assert not changing.is_alive()


CHANGES: dict[str, tuple[int, Callable[[World], object]]] = {
    "the words of a new one": (0, lambda world: world.add("new", "a new one")),
    "the vectors of a new one": (1, lambda world: world.add("new", "a new one")),
    "the old vectors of an edited one": (0, lambda world: world.add("m1", "another text")),
    "the words of an edited one": (1, lambda world: world.add("m1", "another text")),
    "the vectors of an edited one": (2, lambda world: world.add("m1", "another text")),
    "a thread": (0, lambda world: world.engine.transfer_thread("u", "t", "v")),
    "all": (0, lambda world: world.engine.forget("u", ForgetTarget(everything=True))),
}


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_on_its_way_is_no_damage(world: World, change: str, repair: bool) -> None:
    passes, make = CHANGES[change]
    assert beside(world, lambda: make(world), passes=passes, repair=repair) == []


def test_a_partition_that_differs_is_still_found(world: World) -> None:
    """Beside a change of another message, and after it."""
    seq = int(world.index.partition_rows("u").seqs[0])
    world.index.vectors_removed("u", world.index.partition_rows("u").seqs[:1])
    found = beside(world, lambda: world.add("m4", "another text"))
    assert [(f.kind, f.detail) for f in found] == [("PARTITION_DIFFERS", f"row {seq}")]
    assert [f.kind for f in world.found(repair=True)] == ["PARTITION_DIFFERS"]
    assert world.found() == []


def test_a_store_that_takes_no_more_writes_is_compared_all_the_same(world: World) -> None:
    world.index.vectors_removed("u", world.index.partition_rows("u").seqs[:1])
    world.store._writer.close()
    assert [f.kind for f in world.found()] == ["PARTITION_DIFFERS"]
