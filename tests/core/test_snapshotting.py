"""When images of partitions are written, how much that is, and that they go with a Forget."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.engine import snapshotting as module
from semanticrecall_core.types.errors import (
    DeadlineExceededError,
    ResourceExhaustedError,
    UnavailableError,
)
from semanticrecall_core.types.values import CallBudget, ForgetTarget, PartitionImage
from support.message_stores import append, draft
from support.snapshotting_world import CLIP, PLAN, WAIT_S, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_image_has_all_rows_and_fits_the_loader(world: World, in_memory: bool) -> None:
    world.add(12)
    if in_memory:
        world.load()
    assert world.work() == [["u"]]
    assert world.imaged() == world.recorded()
    image = world.snapshots.images["u"]
    rows = world.store.load_partition("u")
    assert image.rows.checksums.tolist() == rows.checksums.tolist()
    assert image.rows.vectors.tolist() == rows.vectors.tolist()
    assert (image.generation, image.scale_clip) == ("g", CLIP)
    world.index.resource_dropped("u")
    assert len(world.loader("u").rows.seqs) == 0
    assert world.load() == 12


def test_few_changes_are_not_written(world: World) -> None:
    world.add(9)
    assert world.work() == []
    world.add(1)
    assert world.work() == [["u"]]
    assert world.work() == []


def test_a_large_share_must_have_changed(world: World) -> None:
    world.add(40)
    world.work()
    world.add(19)
    assert world.work() == []
    world.add(1)
    assert world.work() == [["u"]]


def test_a_resource_left_alone_is_written_sooner(world: World) -> None:
    world.add(40)
    world.work()
    world.add(8)
    assert world.work() == []
    world.now += 99
    assert world.work() == []
    world.now += 1
    assert world.work() == [["u"]]
    world.add(9)
    world.now += 100
    assert world.work() == []  # below a fifth of 48


def test_a_small_resource_has_no_image(world: World) -> None:
    world.add(3)
    world.now += 100
    assert world.work() == [[]]
    assert world.work() == []  # not looked at again before it changes
    world.add(1)
    world.now += 100
    assert world.work() == [["u"]]


def test_removals_edits_and_moves_are_changes(world: World) -> None:
    world.add(20)
    world.add(20, "v")
    world.work()
    gone = tuple(f"m{number}" for number in range(1, 11))
    world.store.forget("u", ForgetTarget(message_ids=gone))
    append(world.store, *(draft(f"m{n}", text="else") for n in range(21, 31)), resource="v")
    assert sorted(world.written()) == ["u", "v"]
    assert (len(world.imaged("u")), len(world.imaged("v"))) == (10, 10)
    world.add(20, "w")
    world.work()
    world.store.transfer_thread("w", "t", "x")
    assert world.written() == ["x"]
    assert world.imaged("x") == world.recorded("x")


def test_an_import_is_not_written_again_and_again() -> None:
    world = World(replace(PLAN, changed_share_min=0.1, changed_rows_min=10, rows_min=1))
    written = 0
    for _ in range(200):
        world.add(5)
        for resources in world.work():
            written += len(world.imaged()) * len(resources)
        world.now += 60
    assert len(world.recorded()) == 1000
    assert len(world.imaged()) >= 900
    assert written <= 11 * 1000


def test_many_resources_imported_together_are_written_once() -> None:
    world = World()
    for _ in range(5):
        for number in range(30):
            world.add(1, f"u{number}")
        assert world.work() == []
        world.now += 60
    world.now += 100
    assert len(world.written()) == 30


def test_rows_that_no_image_had_count_as_changed(world: World) -> None:
    world.add(20)
    world.work()
    world.snapshots.images.clear()
    world.index.resource_dropped("u")
    world.snapshotting._changed.clear()  # as after a start
    assert world.work() == []
    world.load()
    assert world.work() == [["u"]]


def test_a_small_partition_that_is_loaded_is_not_looked_at_again(world: World) -> None:
    world.add(3)
    world.now += 100
    world.work()
    world.load()
    world.now += 100
    assert world.work() == []


def test_the_files_are_cut_by_rows(world: World) -> None:
    world = World(replace(PLAN, rows_at_once=25))
    for number in range(5):
        world.add(10 + number, f"u{number}")
    assert [len(resources) for resources in world.work()] == [2, 3]


def test_images_of_the_most_changed_are_written_first(world: World) -> None:
    for number in (2, 5, 3):
        world.add(10 * number, f"u{number}")
    assert world.work() == [["u5", "u3", "u2"]]


def test_a_large_partition_is_read_from_the_record_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MESSAGES_AT_ONCE", 7)
    asked: list[int] = []
    load_rows = world.store.load_rows

    def counted(resource_id: str, seqs: np.ndarray):  # type: ignore[no-untyped-def]
        asked.append(len(seqs))
        return load_rows(resource_id, seqs)

    monkeypatch.setattr(world.store, "load_rows", counted)
    world.add(20)
    world.work()
    assert asked == [7, 7, 6]
    assert world.imaged() == world.recorded()


def test_changes_are_counted_up_to_a_number_of_resources(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESOURCES_TRACKED_MAX", 3)
    for number in range(5):
        world.add(10, f"u{number}")
    assert len(world.written()) == 3
    world.load("u4")
    assert world.written() == ["u4"]


# -- forgetting -------------------------------------------------------------------------------


def test_an_image_goes_with_a_forget_and_comes_back_without_it(world: World) -> None:
    world.add(20)
    world.work()
    world.store.forget("u", ForgetTarget(message_ids=("m1",)))
    world.snapshotting.forget("u")
    assert world.imaged() == []
    world.add(20)
    world.work()
    assert world.imaged() == world.recorded()


def test_a_forget_beside_a_write_leaves_nothing_behind(world: World) -> None:
    """The message is forgotten after its image was taken and before the file is complete."""
    world.add(20)
    world.add(15, "v")
    forgotten = threading.Event()

    forgets = world.snapshots.forget
    complete = threading.Event()

    def blocked(resource_ids: Sequence[str]) -> None:
        assert complete.wait(WAIT_S)
        forgets(resource_ids)

    world.snapshots.forget = blocked  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: (world.snapshotting.forget("u"), forgotten.set()))

    def at_image(resource_id: str) -> None:
        if resource_id == "u":
            world.store.forget("u", ForgetTarget(message_ids=("m1",)))
            thread.start()
            while not world.snapshotting._to_forget:
                assert not forgotten.wait(0.001)

    world.snapshots.at_image = at_image
    write = world.snapshots.write

    def completed(images: Iterable[PartitionImage]) -> int:
        count = write(images)
        complete.set()
        return count

    world.snapshots.write = completed  # type: ignore[method-assign]
    world.snapshotting.work()
    assert forgotten.wait(WAIT_S)
    thread.join()
    assert world.snapshots.writes[0] == ["u"]  # cut short, since somebody waits
    assert world.imaged("u") == []
    assert world.imaged("v") == world.recorded("v")


def test_forgetting_what_has_no_image_asks_for_nothing(world: World) -> None:
    world.add(20)
    world.snapshots.error = UnavailableError("must not be met")
    world.snapshotting.forget("u")
    assert world.snapshotting.failures() == 0


def test_what_cannot_be_forgotten_is_said_and_tried_again(world: World) -> None:
    world.add(20)
    world.work()
    world.snapshots.error = UnavailableError("the disk", reason="DISK")
    with capture_logs() as logs:
        world.snapshotting.forget("u")
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("snapshot_not_forgotten", "DISK")
    ]
    assert world.imaged() != []
    assert world.snapshotting.failures() == 1
    world.snapshots.error = None
    world.add(20)
    assert world.work() == [["u"]]  # after the old one was removed
    assert world.imaged() == world.recorded()


# -- failures and requests --------------------------------------------------------------------


def test_what_could_not_be_written_is_written_later(world: World) -> None:
    world.add(20)
    world.snapshots.error = ResourceExhaustedError("full", reason="DISK_FULL")
    with capture_logs() as logs:
        assert world.work() == []
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("snapshot_not_written", "DISK_FULL")
    ]
    world.snapshots.error = None
    assert world.work() == [["u"]]


def test_one_resource_that_cannot_be_read_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(30, "broken")
    world.add(20)
    checksums = world.store.row_checksums

    def failing(resource_id: str):  # type: ignore[no-untyped-def]
        if resource_id == "broken":
            raise UnavailableError("the disk", reason="DISK")
        return checksums(resource_id)

    monkeypatch.setattr(world.store, "row_checksums", failing)
    with capture_logs() as logs:
        assert world.work() == [["u"]]
    warnings = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
    assert warnings == ["snapshot_not_read"]


def test_everything_is_written_on_request(world: World) -> None:
    world.add(1, "small")
    world.add(20)
    world.work()
    world.add(1)
    world.snapshotting.start()
    stats = world.snapshotting.create(CallBudget.of_seconds(WAIT_S))
    assert (stats.partitions, stats.rows) == (2, 22)
    world.snapshots.writes.clear()
    assert world.snapshotting.create(CallBudget.of_seconds(WAIT_S)).rows == 22
    assert world.snapshots.writes == []
    world.snapshotting.stop()
    with pytest.raises(UnavailableError):
        world.snapshotting.create(CallBudget.of_seconds(WAIT_S))


def test_a_request_ends_with_its_budget_and_with_its_error(world: World) -> None:
    world.add(20)
    with pytest.raises(DeadlineExceededError):  # nobody works
        world.snapshotting.create(CallBudget.of_seconds(0.01))
    world.snapshots.error = ResourceExhaustedError("full", reason="DISK_FULL")
    world.snapshotting.start()
    with pytest.raises(ResourceExhaustedError):
        world.snapshotting.create(CallBudget.of_seconds(WAIT_S))
    world.snapshotting.stop()


# -- life -------------------------------------------------------------------------------------


def test_a_stop_writes_what_has_changed_and_closes(world: World) -> None:
    world.add(8)
    world.snapshotting.start()
    world.snapshotting.stop()
    assert world.snapshots.writes == [["u"]]
    assert world.snapshots.closed


def test_a_stop_ends_when_its_time_is_over() -> None:
    world = World(replace(PLAN, stop_seconds=0.0))
    world.add(20)
    world.snapshotting.start()
    world.snapshotting.stop()
    assert world.snapshots.writes == []
    assert world.snapshots.closed


def test_without_an_interval_nothing_is_written_but_what_is_asked_for() -> None:
    world = World(replace(PLAN, interval_s=0.0))
    world.add(20)
    world.snapshotting.start()
    assert world.snapshotting.create(CallBudget.of_seconds(WAIT_S)).partitions == 1
    world.add(20)
    world.snapshotting.stop()
    assert world.snapshots.writes == [["u"]]


def test_a_write_takes_the_place_of_rows_in_memory_where_they_are_mapped() -> None:
    world = World(replace(PLAN, mapped=True))
    world.add(1)
    world.load()
    world.add(19)
    assert world.work() == [["u"]]
    parts = world.index._partitions.loaded("u").view.parts  # type: ignore[union-attr]
    assert [(part.mapped, part.rows) for part in parts] == [(True, 20)]
    assert world.load() == 20
    world.store.forget("u", ForgetTarget(message_ids=("m1",)))
    world.snapshotting.forget("u")
    parts = world.index._partitions.loaded("u").view.parts  # type: ignore[union-attr]
    assert [(part.mapped, part.rows) for part in parts] == [(False, 19)]
