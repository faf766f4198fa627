"""The engine with snapshots on disk: what it starts from, and what Forget and moves leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.engine.warming import WarmingLimits
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetTarget,
    RecallQuery,
    Wait,
)
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder
from support.running_engine import draft, hit_ids
from support.stored_messages import open_store

WAIT_S = 30.0
CLIP = 0.9
TEXTS = {"m1": "the dog is called Biscuit", "m2": "the boiler leaks", "m3": "a train to Lisbon"}


class WithSnapshots:
    """An engine over a directory, that reads nothing ahead."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "snapshots"
        embedder = FakeEmbedder()
        store = open_store(home / "data", generation=embedder.generation)
        self.rows_read: list[str] = []
        read = store.load_partition

        def load_partition(resource_id: str):  # type: ignore[no-untyped-def]
            self.rows_read.append(resource_id)
            return read(resource_id)

        store.load_partition = load_partition  # type: ignore[method-assign]
        snapshots = FileSnapshotStore(self.folder, store_id=store.store_id, mapped=False)
        form = ImageForm(embedder.generation, embedder.dimensions, CLIP, mapped=False)
        loader = PartitionLoader(store, snapshots, form)
        index = FaissVectorIndex(embedder.dimensions, loader, scale_clip=CLIP)
        plan = SnapshotPlan(interval_s=3600.0, rows_min=1)
        snapshotting = Snapshotting(store, snapshots, index, embedder.generation, plan)
        loader.tell_rows_read(snapshotting.rows_read)
        limits = EngineLimits(warming=WarmingLimits(0.0, 0))
        self.engine = Engine(store, embedder, index, limits, snapshotting)
        self.engine.start()

    def add(self, resource: str = "u", thread: str = "t") -> None:
        drafts = [draft(name, text, thread_id=thread) for name, text in TEXTS.items()]
        budget = CallBudget.of_seconds(WAIT_S)
        self.engine.index(resource, drafts, Wait.SEARCHABLE, budget)

    def imaged(self) -> int:
        stats = self.engine.snapshot_stats()
        assert stats is not None
        return stats.partitions

    def recall(self, text: str, resource: str = "u") -> list[str]:
        query = RecallQuery(resource, text, top_k=1, before=0, after=0)
        return hit_ids(self.engine.recall(query, CallBudget.of_seconds(WAIT_S)))

    def snapshot(self) -> None:
        self.engine.create_snapshot(CallBudget.of_seconds(WAIT_S))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[WithSnapshots]:
    made = WithSnapshots(tmp_path)
    yield made
    made.engine.stop()


def test_a_stop_writes_and_a_start_reads_the_snapshot(tmp_path: Path) -> None:
    first = WithSnapshots(tmp_path)
    first.add()
    first.engine.stop()
    second = WithSnapshots(tmp_path)
    assert second.imaged() == 1
    assert second.recall("what is the dog called") == ["m1"]
    assert second.rows_read == []
    second.engine.stop()


@pytest.mark.parametrize(
    "target",
    [
        ForgetTarget(message_ids=("m1",)),
        ForgetTarget(thread_id="t"),
        ForgetTarget(everything=True),
        ForgetTarget(create_time_before_ns=2**62),
        ForgetTarget(message_ids=("what an earlier call may have forgotten",)),
    ],
)
def test_a_forget_leaves_no_image_of_its_resource(
    running: WithSnapshots, target: ForgetTarget
) -> None:
    running.add()
    running.add("v")
    running.snapshot()
    assert running.imaged() == 2
    running.engine.forget("u", target)
    assert running.imaged() == 1
    assert running.recall("what is the dog called", "v") == ["m1"]
    running.snapshot()
    kept = target.message_ids is not None
    assert running.imaged() == 1 + kept


def test_a_move_leaves_no_image_of_the_resource_it_left(running: WithSnapshots) -> None:
    running.add()
    running.snapshot()
    assert running.engine.transfer_thread("u", "t", "v") == 3
    assert running.imaged() == 0
    assert running.recall("what is the dog called", "v") == ["m1"]


def test_an_engine_without_snapshots_says_so(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    store = open_store(tmp_path / "data", generation=embedder.generation)
    index = FaissVectorIndex(embedder.dimensions, store.load_partition)
    engine = Engine(store, embedder, index, EngineLimits())
    engine.start()
    assert engine.snapshot_stats() is None
    assert engine.snapshot_failures() == 0
    with pytest.raises(UnavailableError):
        engine.create_snapshot(CallBudget.of_seconds(WAIT_S))
    engine.stop()
