"""Collections as part of an engine: Forget, purge, Verify, the end."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from semanticrecall_core.collections.file_format import CollectionsFile
from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.engine import Engine, EngineLimits, PurgePlan
from semanticrecall_core.types.collections import Metric
from semanticrecall_core.types.errors import CorruptDataError, UnavailableError
from semanticrecall_core.types.values import CallBudget, Finding, ForgetTarget, Wait
from semanticrecall_core.vectors import FaissVectorIndex
from support.collection_model import ANY_TIME, by_filter, entry, opened, put
from support.fake_embedder import FakeEmbedder
from support.running_engine import draft
from support.stored_messages import open_store

WORD = b"word-that-nothing-else-has"
EVERYTHING = ForgetTarget(everything=True)


@dataclass
class World:
    home: Path
    engine: Engine
    collections: SqliteVectorCollections

    def fill(self, resource: str = "u") -> None:
        self.engine.index(resource, [draft("m", "a text")], Wait.SEARCHABLE, ANY_TIME)
        self.collections.create(resource, "c", 2, Metric.COSINE)
        entries = [entry(f"v{n}", [1, n], word=WORD.decode() + str(n), n=n) for n in range(3)]
        self.collections.upsert(resource, "c", entries, None, ANY_TIME)

    def has_word(self) -> bool:
        return any(WORD in path.read_bytes() for path in self.home.glob("collections.db*"))


def started(home: Path, **limits: object) -> World:
    embedder = FakeEmbedder()
    store = open_store(home, generation=embedder.generation)
    index = FaissVectorIndex(embedder.dimensions, store.load_partition)
    engine = Engine(store, embedder, index, EngineLimits(**limits))  # type: ignore[arg-type]
    collections = opened(home)
    engine.collections = collections
    engine.start()
    return World(home, engine, collections)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = started(tmp_path / "data")
    yield found
    found.engine.stop()


def test_forgetting_everything_takes_the_collections_along(world: World) -> None:
    world.fill("u")
    world.fill("w")
    report = world.engine.forget("u", EVERYTHING)
    assert (report.messages, report.vectors, report.purged) == (1, 1 + 3, False)
    assert world.collections.list("u") == []
    assert [one.vectors for one in world.collections.list("w")] == [3]
    report = world.engine.forget("u", EVERYTHING)
    assert (report.messages, report.vectors) == (0, 0)


def test_forgetting_less_leaves_them(world: World) -> None:
    world.fill()
    for target in (ForgetTarget(message_ids=("m",)), ForgetTarget(thread_id="t")):
        world.engine.forget("u", target, ANY_TIME, purge=True)
    assert [one.vectors for one in world.collections.list("u")] == [3]
    assert world.has_word()


def test_a_forget_that_found_collections_alone_says_that_they_are_not_purged(world: World) -> None:
    world.fill()
    world.engine.forget("u", ForgetTarget(message_ids=("m",)), ANY_TIME, purge=True)
    report = world.engine.forget("u", EVERYTHING)
    assert (report.messages, report.vectors, report.purged) == (0, 3, False)
    world.fill("w")
    report = world.engine.forget("w", EVERYTHING, ANY_TIME, purge=True)
    assert (report.vectors, report.purged) == (4, True)
    assert not world.has_word()


def test_a_purge_takes_what_was_removed(world: World) -> None:
    world.fill()
    world.collections.delete_vectors("u", "c", by_filter(n={"$lt": 3}), ANY_TIME)
    assert world.engine.purge_stats().pending
    assert world.has_word()
    world.engine.purge(ANY_TIME)
    assert not world.engine.purge_stats().pending
    assert not world.has_word()


def test_what_is_removed_is_purged_by_itself(tmp_path: Path) -> None:
    world = started(tmp_path / "data", purging=PurgePlan(interval_s=0.2))
    purged = threading.Event()
    purge = world.collections.purge

    def noted(budget: CallBudget) -> None:
        purge(budget)
        purged.set()

    world.collections.purge = noted  # type: ignore[method-assign]
    world.fill()
    world.collections.delete("u", "c")
    report = world.engine.forget("u", EVERYTHING)
    assert report.purge_due_time_ns is not None
    assert purged.wait(30)
    world.engine.stop()
    assert not world.has_word()


def test_what_a_former_process_removed_is_purged_after_the_start(tmp_path: Path) -> None:
    first = started(tmp_path / "data")
    first.fill()
    first.collections.delete_vectors("u", "c", by_filter(n=1), ANY_TIME)
    first.engine.stop()
    second = started(tmp_path / "data", purging=PurgePlan(interval_s=3_600.0))
    waits = threading.Event()
    for _ in range(3_000):
        if not second.engine.purge_stats().pending:
            break
        waits.wait(0.01)
    assert not second.engine.purge_stats().pending
    second.engine.stop()


def test_verify_reads_them(world: World) -> None:
    world.fill()
    findings = [one for one in world.engine.verify(None) if isinstance(one, Finding)]
    assert findings == []
    connection = CollectionsFile(world.home / "collections.db").open_writer()
    connection.execute("UPDATE vectors SET metadata = CAST('{}' AS BLOB) WHERE id = 'v1'")
    connection.close()
    for resource, kinds in (
        (None, ["VECTOR_ROW_DAMAGED"]),
        ("u", ["VECTOR_ROW_DAMAGED"]),
        ("w", []),
    ):
        found = [one for one in world.engine.verify(resource) if isinstance(one, Finding)]
        assert [one.kind for one in found] == kinds
        assert not any(one.repaired for one in found)
    put(world.collections, entry("x", [1, 1]))
    with pytest.raises(CorruptDataError):
        world.collections.delete_vectors("u", "c", by_filter(n=1), ANY_TIME)
    assert world.engine.damaged()["collection"] == 1


def test_damage_there_is_told_by_a_forget_and_a_purge_and_stops_no_other(tmp_path: Path) -> None:
    home = tmp_path / "data"
    first = started(home)
    first.fill()
    first.engine.stop()
    (home / "collections.db").write_bytes(b"x" * 20_000)
    world = started(home)
    assert [one.id for one in world.engine.get_messages("u", ["m"])] == ["m"]
    assert world.engine.purge_stats().pending is False
    assert world.engine.damaged()["collection"] == 1
    with pytest.raises(CorruptDataError):
        world.engine.forget("u", EVERYTHING)
    with pytest.raises(CorruptDataError):
        world.engine.purge(CallBudget(math.inf))
    assert world.engine.stats("u").messages == 0
    found = [one for one in world.engine.verify(None) if isinstance(one, Finding)]
    assert [one.kind for one in found] == ["PAGE_DAMAGED"]
    world.engine.stop()


def test_they_end_with_the_engine(tmp_path: Path) -> None:
    world = started(tmp_path / "data")
    world.fill()
    world.engine.stop()
    with pytest.raises(UnavailableError):
        world.collections.list("u")
    again = started(tmp_path / "data")
    assert [one.vectors for one in again.collections.list("u")] == [3]
    again.engine.stop()


def test_an_engine_without_them_does_without(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    store = open_store(tmp_path / "data", generation=embedder.generation)
    engine = Engine(
        store,
        embedder,
        FaissVectorIndex(embedder.dimensions, store.load_partition),
        EngineLimits(),
    )
    engine.start()
    assert engine.forget("u", EVERYTHING).vectors == 0
    engine.purge(ANY_TIME)
    assert "collection" not in engine.damaged()
    engine.stop()
