"""The engine with snapshots on disk: what it starts from, and what Forget and moves leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetTarget,
)
from semanticrecall_core.vectors import FaissVectorIndex
from support.engine_with_snapshots import WAIT_S, WithSnapshots
from support.fake_embedder import FakeEmbedder
from support.stored_messages import open_store


@pytest.fixture
def running(tmp_path: Path) -> Iterator[WithSnapshots]:
    made = WithSnapshots(tmp_path).start()
    yield made
    made.engine.stop()


def test_a_stop_writes_and_a_start_reads_the_snapshot(tmp_path: Path) -> None:
    first = WithSnapshots(tmp_path).start()
    first.add()
    first.engine.stop()
    second = WithSnapshots(tmp_path).start()
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


@pytest.mark.parametrize("mapped", [True, False])
def test_a_forget_overwrites_what_it_forgets_and_rewrites_no_file(
    tmp_path: Path, mapped: bool
) -> None:
    running = WithSnapshots(tmp_path, mapped=mapped).start()
    running.add("u")
    running.add("v", {"n1": "an allergy to nuts", "n2": "her sister lives in Oslo"})
    running.snapshot()
    for _ in range(2):  # both are in memory, or mapped
        assert running.recall("what is the dog called") == ["m1"]
        assert running.recall("her sister", "v") == ["n2"]
    files = [(path, path.stat().st_ino) for path in running.folder.iterdir()]
    gone, kept = running.image("u"), running.image("v")
    assert running.on_disk(gone)
    running.engine.forget("u", ForgetTarget(message_ids=("m1",)))
    assert not running.on_disk(gone)
    assert running.on_disk(kept)
    assert [(path, path.stat().st_ino) for path in running.folder.iterdir()] == files
    assert running.recall("what is the dog called") != ["m1"]
    assert running.recall("a train to Lisbon") == ["m3"]
    assert running.recall("her sister", "v") == ["n2"]
    running.engine.stop()


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


# --- what a process left that ended between the record's Forget and the snapshots' ---------------


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.forget("u", ForgetTarget(message_ids=("m1",))),
        lambda store: store.forget("u", ForgetTarget(everything=True)),
        lambda store: store.transfer_thread("u", "t", "w"),
    ],
    ids=["a message", "everything", "a move"],
)
def test_images_that_have_what_the_record_has_not_are_forgotten_after_a_start(
    tmp_path: Path, change: Callable[[MessageStore], object], mapped: bool
) -> None:
    first = WithSnapshots(tmp_path, mapped=mapped).start()
    first.add("u")
    first.add("v", {"n1": "an allergy to nuts", "n2": "her sister lives in Oslo"})
    first.snapshot()
    gone, kept = first.image("u"), first.image("v")
    first.snapshotting.stop()  # it would write anew what the change left
    change(first.store)
    first.engine.stop()
    assert first.on_disk(gone)

    second = WithSnapshots(tmp_path, mapped=mapped)
    forgotten = second.forgotten()
    second.start()
    assert forgotten.acquire(timeout=WAIT_S)
    assert second.recall("her sister", "v") == ["n2"]
    second.engine.stop()
    assert not second.on_disk(gone)
    assert second.on_disk(kept)
    assert not forgotten.acquire(blocking=False)  # nothing else was


def test_images_that_only_lack_something_are_kept_at_a_start(tmp_path: Path) -> None:
    first = WithSnapshots(tmp_path).start()
    first.add("u")
    first.snapshot()
    first.snapshotting.stop()
    first.add("u", {"m4": "a cat called Pixel"})
    first.engine.stop()
    second = WithSnapshots(tmp_path)
    forgotten = second.forgotten()
    second.snapshotting._forget_unrecorded()
    assert second.snapshots.resources() == {"u": 3}
    assert not forgotten.acquire(blocking=False)
    assert second.start().recall("a cat called Pixel") == ["m4"]
    second.engine.stop()
