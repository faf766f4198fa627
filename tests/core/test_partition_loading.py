"""Partitions read from an image and the record: only what the record holds now, from either."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.types.values import (
    ForgetTarget,
    PartitionImage,
    PartitionRows,
    Role,
    VectorQuery,
    VectorRecord,
)
from semanticrecall_core.vectors import FaissVectorIndex, Tuning
from support.brute_force import answer, grouped
from support.message_stores import append, draft, ticking_clock
from support.model_snapshots import ModelSnapshots
from support.model_store import ModelStore

DIMENSIONS = 8
CLIP = 0.9
TINY = Tuning(tail_rows_max=6, coded_rows_min=5, segment_rows_max=16)


class CountedStore(ModelStore):
    """Counts how many rows were read from it."""

    def __init__(self) -> None:
        super().__init__(generation="g", clock=ticking_clock())
        self.rows_read = 0

    def load_partition(self, resource_id: str) -> PartitionRows:
        rows = super().load_partition(resource_id)
        self.rows_read += len(rows.seqs)
        return rows

    def row_checksums(self, resource_id: str):  # type: ignore[no-untyped-def]
        before = self.rows_read
        found = super().row_checksums(resource_id)
        self.rows_read = before
        return found

    def load_rows(self, resource_id: str, seqs: NDArray[np.int64]) -> PartitionRows:
        before = self.rows_read
        rows = super().load_rows(resource_id, seqs)
        self.rows_read = before + len(rows.seqs)
        return rows


class World:
    """A store, an index that reads it through snapshots, and random vectors."""

    def __init__(self, *, mapped: bool = False) -> None:
        self.store = CountedStore()
        self.snapshots = ModelSnapshots()
        self.rng = np.random.default_rng(5)
        self.form = ImageForm("g", DIMENSIONS, CLIP, mapped)
        self.told: list[tuple[str, int]] = []
        self.index = self.new_index()

    def new_index(self) -> FaissVectorIndex:
        loader = PartitionLoader(self.store, self.snapshots, self.form)
        loader.tell_rows_read(lambda *told: self.told.append(told))
        index = FaissVectorIndex(DIMENSIONS, loader, scale_clip=CLIP, tuning=TINY)
        self.store.subscribe(index)
        return index

    def add(self, *message_ids: str, chunks: int = 1, **fields: object) -> None:
        outcomes = append(
            self.store, *(draft(i, text=f"{i}{fields}", **fields) for i in message_ids)
        )
        for outcome in outcomes:
            vectors = self.units(chunks)
            record = VectorRecord("u", outcome.seq, outcome.revision, vectors)
            assert self.store.put_vectors([record]) == [True]

    def units(self, count: int) -> NDArray[np.float32]:
        rows = self.rng.normal(size=(count, DIMENSIONS))
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def image(self) -> PartitionImage:
        rows = self.store.load_partition("u")
        image = self.index.image_of("u", "g", rows)
        self.snapshots.write([image])
        self.store.rows_read = 0
        return image

    def expect_exact(self, index: FaissVectorIndex) -> None:
        before = self.store.rows_read
        messages = grouped(self.store.load_partition("u"))
        self.store.rows_read = before
        for vector in self.units(3):
            query = VectorQuery(vector, 7)
            assert index.search("u", query) == answer(messages.values(), query)
        told = index.partition_rows("u")
        right = ModelStore.load_partition(self.store, "u")
        for field in fields(told):
            assert getattr(told, field.name).tolist() == getattr(right, field.name).tolist()


def many(count: int, name: str = "m") -> list[str]:
    return [f"{name}{number}" for number in range(count)]


@pytest.fixture(params=["in memory", "mapped"])
def world(request: pytest.FixtureRequest) -> World:
    return World(mapped=request.param == "mapped")


def test_without_an_image_everything_is_read_from_the_record(world: World) -> None:
    world.add(*many(20))
    index = world.new_index()
    world.expect_exact(index)
    assert world.told == [("u", 20)]


def test_a_current_image_needs_no_row_of_the_record(world: World) -> None:
    world.add(*many(12))
    world.add(*many(12, "long"), chunks=3)
    world.image()
    index = world.new_index()
    world.expect_exact(index)
    assert world.store.rows_read == 0
    assert world.told == []


def test_codes_of_an_image_are_not_made_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(*many(40))
    world.image()
    index = world.new_index()

    def encode(*_: object) -> None:
        raise AssertionError("vectors were coded")

    monkeypatch.setattr("semanticrecall_core.vectors.codes.Coder.encode", encode)
    world.expect_exact(index)


@pytest.mark.parametrize(
    ("change", "rows_read"),
    [
        (lambda w: w.add("new"), 1),
        (lambda w: w.add("new", chunks=4), 4),
        (lambda w: w.add("m3", role=Role.TOOL), 1),
        (lambda w: w.add("m0", chunks=2), 2),
        (lambda w: w.add("long1", chunks=3), 3),
        (lambda w: w.add("long1", chunks=2), 2),
        (lambda w: w.add("long1", chunks=4), 4),
        (lambda w: w.store.forget("u", ForgetTarget(message_ids=("m1", "m19", "long0"))), 0),
        (lambda w: w.store.forget("u", ForgetTarget(thread_id="t2")), 0),
        (lambda w: append(w.store, draft("m2", text="waits")), 0),
        (lambda w: append(w.store, draft("new", text="waits")), 0),
        (lambda w: w.store.transfer_thread("u", "t2", "v"), 0),
        (lambda w: append(w.store, draft("long1", text="long1{}", create_time_ns=3)), 3),
    ],
)
def test_what_an_image_has_missed_comes_from_the_record(
    world: World, change: object, rows_read: int
) -> None:
    world.add(*many(20))
    world.add(*many(4, "long"), chunks=3)
    world.add("other", thread="t2", chunks=2)
    world.image()
    change(world)  # type: ignore[operator]
    index = world.new_index()
    world.store.rows_read = 0
    world.expect_exact(index)
    assert world.store.rows_read == rows_read
    assert world.told == ([("u", rows_read)] if rows_read else [])


def test_an_image_that_has_missed_much_is_not_used() -> None:
    world = World()
    world.add(*many(10))
    world.image()
    world.add(*many(5, "new"))
    index = world.new_index()
    world.store.rows_read = 0
    world.expect_exact(index)
    assert world.store.rows_read == 15


def test_mapped_rows_are_used_however_much_an_image_has_missed() -> None:
    world = World(mapped=True)
    world.add(*many(10))
    world.image()
    world.add(*many(30, "new"))
    index = world.new_index()
    world.store.rows_read = 0
    world.expect_exact(index)
    assert world.store.rows_read == 30


def test_an_image_of_a_forgotten_resource_gives_nothing(world: World) -> None:
    world.add(*many(10))
    world.image()
    world.store.forget("u", ForgetTarget(everything=True))
    index = world.new_index()
    world.expect_exact(index)
    assert index.partitions_loaded() == 0
    world.add(*many(3))
    world.expect_exact(index)


@pytest.mark.parametrize(
    "other",
    [{"generation": "another"}, {"scale_clip": CLIP / 2}],
)
def test_an_image_of_another_model_or_coder_is_not_used(
    world: World, other: dict[str, object]
) -> None:
    world.add(*many(10))
    world.snapshots.write([replace(world.image(), **other)])  # type: ignore[arg-type]
    index = world.new_index()
    with capture_logs() as logs:
        world.expect_exact(index)
    assert world.store.rows_read == 10
    assert logs == []


@pytest.mark.parametrize("fault", ["order", "twice", "codes", "dimensions", "errors", "whose"])
def test_an_image_that_cannot_be_right_is_not_used_and_said(world: World, fault: str) -> None:
    world.add(*many(10))
    image = world.image()
    order = np.arange(10)[::-1] if fault == "order" else np.r_[0, 0:9]
    faulty = {
        "order": lambda: replace(image, rows=_placed(image.rows, order)),
        "twice": lambda: replace(image, rows=_placed(image.rows, order)),
        "codes": lambda: replace(image, codes=image.codes[:-1]),
        "dimensions": lambda: replace(
            image, rows=replace(image.rows, vectors=image.rows.vectors[:, 1:])
        ),
        "errors": lambda: replace(image, errors=image.errors[:-1]),
        "whose": lambda: replace(image, resource_id="v"),
    }[fault]()
    world.snapshots.images["u"] = faulty
    index = world.new_index()
    with capture_logs() as logs:
        world.expect_exact(index)
    assert world.store.rows_read == 10
    assert [entry["event"] for entry in logs] == ["snapshot_image_not_used"]


def _placed(rows: PartitionRows, order: NDArray[np.int64]) -> PartitionRows:
    return PartitionRows(**{f.name: getattr(rows, f.name)[order] for f in fields(rows)})


def test_what_is_committed_while_an_image_is_read_is_not_lost(world: World) -> None:
    world.add(*many(20))
    world.image()
    index = world.new_index()
    reads = world.snapshots.read

    def read(resource_id: str) -> PartitionImage | None:
        image = reads(resource_id)
        world.snapshots.read = reads  # type: ignore[method-assign]
        world.store.forget("u", ForgetTarget(message_ids=("m1",)))
        world.add("m2", role=Role.TOOL)
        world.add("late")
        return image

    checksums = world.store.row_checksums

    def row_checksums(resource_id: str):  # type: ignore[no-untyped-def]
        found = checksums(resource_id)
        world.store.row_checksums = checksums  # type: ignore[method-assign]
        world.store.forget("u", ForgetTarget(message_ids=("m4",)))
        world.add("m5", role=Role.TOOL)
        world.add("later")
        return found

    world.snapshots.read = read  # type: ignore[method-assign]
    world.store.row_checksums = row_checksums  # type: ignore[method-assign]
    index.search("u", VectorQuery(world.units(1)[0], 1))
    assert (world.snapshots.read, world.store.row_checksums) == (reads, checksums)  # both met
    world.expect_exact(index)


def test_a_partition_read_anew_takes_the_place_of_the_other(world: World) -> None:
    world.add(*many(20))
    world.expect_exact(world.index)
    in_memory = world.index.memory_bytes()
    image = world.index.partition_image("u", "g")
    assert image is not None
    world.snapshots.write([image])
    world.add("after the image")
    assert world.index.reload("u")
    world.expect_exact(world.index)
    if world.form.mapped:
        assert world.index.memory_bytes() < in_memory - 20 * DIMENSIONS * 2
    world.add("m3", role=Role.TOOL)
    world.store.forget("u", ForgetTarget(message_ids=("m4",)))
    world.expect_exact(world.index)


def test_changes_while_a_partition_is_read_anew_reach_both(world: World) -> None:
    world.add(*many(20))
    world.image()
    world.expect_exact(world.index)
    reads = world.snapshots.read

    def read(resource_id: str) -> PartitionImage | None:
        image = reads(resource_id)
        world.store.forget("u", ForgetTarget(message_ids=("m1",)))
        world.add("m2", role=Role.TOOL)
        world.expect_exact(world.index)
        return image

    world.snapshots.read = read  # type: ignore[method-assign]
    assert world.index.reload("u")
    world.expect_exact(world.index)


@pytest.mark.parametrize("event", ["dropped", "evicted", "too many"])
def test_a_partition_that_goes_while_it_is_read_anew_stays_gone(
    event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semanticrecall_core.partitions.resident.QUEUED_CHANGES_MAX", 2)
    world = World()
    world.add(*many(20))
    world.image()
    world.expect_exact(world.index)
    reads = world.snapshots.read

    def read(resource_id: str) -> PartitionImage | None:
        image = reads(resource_id)
        world.snapshots.read = reads  # type: ignore[method-assign]
        if event == "dropped":
            world.index.resource_dropped("u")
        elif event == "evicted":
            world.index._partitions._bytes_max = 1
            (other,) = append(world.store, draft("y"), resource="v")
            world.store.put_vectors([VectorRecord("v", other.seq, other.revision, world.units(1))])
            world.index.search("v", VectorQuery(world.units(1)[0], 1))
        else:
            world.add(*many(5, "x"))
        return image

    world.snapshots.read = read  # type: ignore[method-assign]
    assert not world.index.reload("u")
    world.expect_exact(world.index)
    world.add("z")
    world.expect_exact(world.index)


def test_nothing_is_read_anew_that_is_not_in_memory(world: World) -> None:
    world.add("m")
    assert not world.index.reload("u")
    assert world.index.partition_image("u", "g") is None
    assert world.store.rows_read == 0


def test_mapped_rows_stay_where_they_are_as_the_partition_grows() -> None:
    world = World(mapped=True)
    world.add(*many(40))
    image = world.image()
    index = world.new_index()
    world.expect_exact(index)
    for turn in range(30):
        world.add(*many(4, f"turn{turn}-"))
        world.store.forget("u", ForgetTarget(message_ids=(f"m{turn}",)))
    world.expect_exact(index)
    parts = index._partitions.loaded("u").view.parts  # type: ignore[union-attr]
    mapped = [part for part in parts if part.mapped]
    assert sum(part.rows for part in mapped) == 10
    assert all(np.shares_memory(part.block.vectors, image.rows.vectors) for part in mapped)
