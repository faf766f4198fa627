"""Partitions over mapped files: what they hold in memory, and that pages are given back."""

from __future__ import annotations

import mmap
import threading
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.values import ForgetTarget, Role, VectorQuery, VectorRecord
from semanticrecall_core.vectors import FaissVectorIndex
from semanticrecall_core.vectors.mapped_pages import MappedPages
from support.brute_force import answer, cosine_rows, grouped, moments, vectors_of
from support.message_stores import append, draft, ticking_clock
from support.model_store import ModelStore

DIMENSIONS = 384
CLIP = 0.3
ROWS = 400


def resident_bytes(path: Path) -> int:
    """Bytes of a file that are mapped and resident in this process."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            counts = line.endswith(str(path))
        elif words[0] == "Rss:" and counts:
            total += int(words[1]) * 1024
    return total


class Mapped:
    """A store of one resource whose vectors are mapped from a file."""

    def __init__(self, directory: Path) -> None:
        rng = np.random.default_rng(2)
        rows = rng.normal(size=(ROWS, DIMENSIONS))
        self.vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        self.store = ModelStore(generation="g", clock=ticking_clock())
        outcomes = append(self.store, *(draft(f"m{n}", text=f"m{n}") for n in range(ROWS)))
        self.store.put_vectors(
            [
                VectorRecord("u", outcome.seq, outcome.revision, vector.reshape(1, -1))
                for outcome, vector in zip(outcomes, self.vectors, strict=True)
            ]
        )
        self.snapshots = FileSnapshotStore(directory, store_id="s", mapped=True)
        form = ImageForm("g", DIMENSIONS, CLIP, mapped=True)
        loader = PartitionLoader(self.store, self.snapshots, form)
        self.index = FaissVectorIndex(DIMENSIONS, loader, scale_clip=CLIP)
        self.store.subscribe(self.index)
        image = self.index.image_of("u", "g", self.store.load_partition("u"))
        self.snapshots.write([image])
        (self.file,) = directory.iterdir()

    def expect_exact(self) -> None:
        query = VectorQuery(self.vectors[7], 5, roles=frozenset((Role.USER,)))
        right = answer(grouped(self.store.load_partition("u")).values(), query)
        assert self.index.search("u", query) == right


def nameless_maps(directory: Path) -> list[str]:
    """Maps of files in a directory that have no name any more."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(directory) in line and line.endswith("(deleted)")]


@pytest.fixture
def mapped(tmp_path: Path) -> Mapped:
    return Mapped(tmp_path)


def test_a_mapped_partition_takes_its_codes_and_little_more(mapped: Mapped) -> None:
    mapped.expect_exact()
    codes, three_short_columns, overhead = DIMENSIONS, 3 * 4, 4096
    assert ROWS * (codes + three_short_columns) <= mapped.index.memory_bytes()
    assert mapped.index.memory_bytes() <= ROWS * (codes + three_short_columns) + overhead + 64


def test_no_page_of_the_file_stays_resident_after_a_search(mapped: Mapped) -> None:
    query = VectorQuery(mapped.vectors[7], 5)
    for _ in range(3):
        mapped.index.search("u", query)
        assert resident_bytes(mapped.file) == 0
    assert mapped.index.partition_rows("u").vectors.sum() != 0
    assert resident_bytes(mapped.file) > ROWS * DIMENSIONS  # or the test could not tell
    mapped.index.search("u", query)
    assert resident_bytes(mapped.file) == 0


def test_named_messages_and_moments_leave_no_page_resident(mapped: Mapped) -> None:
    messages = grouped(mapped.store.load_partition("u"))
    seqs = np.array(sorted(messages)[::3], np.int64)
    queries, zeros = mapped.vectors[7:9], np.zeros(len(seqs), np.int64)
    found = mapped.index.cosines("u", seqs, queries)
    assert resident_bytes(mapped.file) == 0
    right = cosine_rows(messages, seqs, queries)
    assert found.cosines.tolist() == right.cosines.tolist()
    assert found.revisions.tolist() == right.revisions.tolist()
    vectors = mapped.index.vectors_of("u", seqs, zeros)
    assert resident_bytes(mapped.file) == 0
    assert np.array_equal(vectors, vectors_of(messages, seqs, zeros, DIMENSIONS))
    told = mapped.index.moments("u", mapped.vectors[:3])
    assert resident_bytes(mapped.file) == 0
    np.testing.assert_allclose(told, moments(messages.values(), mapped.vectors[:3]), atol=1e-6)


def test_changes_beside_mapped_rows_are_found(mapped: Mapped) -> None:
    mapped.expect_exact()
    mapped.store.forget("u", ForgetTarget(message_ids=("m7", "m8")))
    mapped.expect_exact()
    (outcome,) = append(mapped.store, draft("new"))
    record = VectorRecord("u", outcome.seq, outcome.revision, mapped.vectors[[7]])
    mapped.store.put_vectors([record])
    mapped.expect_exact()
    told, right = mapped.index.partition_rows("u"), mapped.store.load_partition("u")
    for field in fields(told):
        assert getattr(told, field.name).tolist() == getattr(right, field.name).tolist()


def test_mapped_rows_stay_valid_when_their_file_is_replaced_and_closed(mapped: Mapped) -> None:
    mapped.expect_exact()
    image = mapped.index.partition_image("u", "g")
    assert image is not None
    mapped.snapshots.write([image])
    mapped.snapshots.forget(["u"])
    mapped.snapshots.close()
    assert not mapped.file.exists()
    mapped.expect_exact()


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_forget_leaves_no_bytes_in_a_file_nor_in_one_without_a_name(
    mapped: Mapped, looked_at: bool
) -> None:
    (theirs,) = append(mapped.store, draft("theirs"), resource="v")
    mapped.store.put_vectors([VectorRecord("v", theirs.seq, theirs.revision, mapped.vectors[[3]])])
    plan = SnapshotPlan(rows_min=1, changed_rows_min=1, mapped=True)
    snapshotting = Snapshotting(mapped.store, mapped.snapshots, mapped.index, "g", plan)
    rows = [(name, mapped.store.load_partition(name)) for name in ("u", "v")]
    mapped.snapshots.write(mapped.index.image_of(name, "g", row) for name, row in rows)
    query = VectorQuery(mapped.vectors[7], 5)
    for name in ("u", "v"):
        mapped.index.reload(name)
        mapped.index.search(name, query)
    directory = mapped.file.parent
    (before,) = directory.iterdir()
    assert mapped.vectors[7].tobytes() in before.read_bytes()
    mapped.store.forget("u", ForgetTarget(message_ids=("m7",)))
    image = mapped.snapshots.read("u") if looked_at else None
    snapshotting.forget("u")
    assert before.exists() is not looked_at  # then it cannot be overwritten
    assert mapped.snapshots.resources() == {"v": 1}
    assert mapped.vectors[7].tobytes() not in b"".join(map(Path.read_bytes, directory.iterdir()))
    assert (nameless_maps(directory) != []) is looked_at  # so does the other resource
    del image
    snapshotting.work()
    assert nameless_maps(directory) == []
    mapped.expect_exact()
    assert mapped.index.search("v", query).searchable == 1


def test_no_search_scores_a_block_while_it_is_overwritten(mapped: Mapped) -> None:
    """The record stays as it is, so that every answer must be the same one."""
    plan = SnapshotPlan(rows_min=1, changed_rows_min=1, mapped=True)
    snapshotting = Snapshotting(mapped.store, mapped.snapshots, mapped.index, "g", plan)
    done = threading.Event()
    failed: list[BaseException] = []

    def search() -> None:
        try:
            while not done.is_set():
                mapped.expect_exact()
        except BaseException as error:
            failed.append(error)

    searching = [threading.Thread(target=search) for _ in range(2)]
    for thread in searching:
        thread.start()
    try:
        for _ in range(15):
            mapped.index.resource_dropped("u")  # whoever searches next maps the image
            snapshotting.forget("u")
            snapshotting.rows_changed("u", ROWS)
            snapshotting.work()
            assert mapped.snapshots.resources() == {"u": ROWS}
    finally:
        done.set()
        for thread in searching:
            thread.join(30)
    assert failed == []
    assert snapshotting.failures() == 0


def test_pages_are_those_of_all_arrays_and_of_no_other_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64 * 16)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    whole = np.frombuffer(mapped, np.uint8)
    first, last = whole[5000:5100].view(np.float32), whole[200_000:250_000].reshape(2, -1)
    pages = MappedPages.of((last, first))
    assert pages is not None
    sums = (float(first.view(np.uint8).sum()), int(last.sum()))
    assert resident_bytes(path) > 0
    pages.release()
    assert resident_bytes(path) == 0
    assert (float(first.view(np.uint8).sum()), int(last.sum())) == sums
    in_memory = np.ones(10, np.float32)
    assert MappedPages.of((in_memory,)) is None
    assert MappedPages.of((first, in_memory)) is None
    assert MappedPages.of((np.frombuffer(bytes(10), np.uint8),)) is None
