"""The bytes of snapshot files, built by hand from the format's description; what a start does."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from semanticrecall_core.snapshots.compaction import (
    FILES_MAX,
    LARGE_BYTES,
    FileLoad,
    files_to_rewrite,
)
from semanticrecall_core.types.errors import InvalidArgumentError, UnavailableError
from semanticrecall_core.types.values import PartitionImage, PartitionRows
from support.model_snapshots import image, same
from support.snapshot_bytes import (
    BLOCK_BY_HAND,
    BY_HAND,
    FILE_BY_HAND,
    head,
    names,
    opened,
    whole_file,
)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_built_by_hand_is_read(tmp_path: Path, mapped: bool) -> None:
    (tmp_path / "0000000000000007.snapshot").write_bytes(FILE_BY_HAND)
    snapshots = opened(tmp_path, mapped=mapped)
    given, stats = snapshots.read("ü1"), snapshots.stats()
    assert given is not None
    assert same(given, BY_HAND)
    assert given.rows.vectors.flags.owndata is not mapped
    assert (stats.files, stats.bytes, stats.damaged) == (1, len(FILE_BY_HAND), 0)


def test_what_is_written_is_what_one_builds_by_hand(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([BY_HAND])
    assert names(tmp_path) == ["0000000000000001.snapshot"]
    assert (tmp_path / "0000000000000001.snapshot").read_bytes() == FILE_BY_HAND


def test_mapped_vectors_are_read_only_views_of_the_file_and_aligned(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image(f"r{at}", at, dimensions=at) for at in range(9)])
    for at in range(1, 9):
        given = snapshots.read(f"r{at}")
        assert given is not None
        assert not given.rows.vectors.flags.owndata
        assert not given.rows.vectors.flags.writeable
        assert given.rows.vectors.ctypes.data % 64 == 0
        assert given.codes.base is None
        assert given.rows.seqs.base is None


def test_files_and_directory_are_the_owners_alone(tmp_path: Path) -> None:
    snapshots = opened(tmp_path / "a" / "snapshots")
    snapshots.write([image("u")])
    assert (tmp_path / "a" / "snapshots").stat().st_mode & 0o777 == 0o700
    file = tmp_path / "a" / "snapshots" / "0000000000000001.snapshot"
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_file_with_the_highest_number_counts_after_a_restart(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write([image("u", 9, seed=1), image("v")])
    first.write([image("u", 4, seed=2)])
    second = opened(tmp_path)
    assert same(second.read("u"), image("u", 4, seed=2))
    assert same(second.read("v"), image("v"))
    assert second.resources() == {"u": 4, "v": 3}
    assert second.stats() == first.stats()


def test_leftovers_of_a_crash_are_removed_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("0000000000000003.tmp", "notes.tmp", "1.snapshot", "README"):
        (tmp_path / name).write_bytes(b"something")
    (tmp_path / "0000000000000009.tmp").mkdir()
    snapshots = opened(tmp_path)
    assert names(tmp_path) == ["0000000000000009.tmp", "1.snapshot", "README", "notes.tmp"]
    snapshots.write([image("u")])
    assert "0000000000000010.snapshot" in names(tmp_path)
    snapshots.forget(["u"])
    assert names(tmp_path) == ["0000000000000009.tmp", "1.snapshot", "README", "notes.tmp"]


def test_another_stores_file_is_kept_and_never_read(tmp_path: Path) -> None:
    opened(tmp_path, store_id="other").write([image("u")])
    snapshots = opened(tmp_path)
    assert snapshots.read("u") is None
    assert (snapshots.stats().files, snapshots.stats().damaged) == (0, 0)
    snapshots.write([image("u", seed=1)])
    snapshots.forget(["u"])
    assert names(tmp_path) == ["0000000000000001.snapshot"]
    assert same(opened(tmp_path, store_id="other").read("u"), image("u"))


@pytest.mark.parametrize(
    "content",
    [
        whole_file([(BLOCK_BY_HAND, b"\xc3\xbc1", 3, 2, 3)], head(version=3)),
        head(version=3) + b"a form nobody knows",
        FILE_BY_HAND[:-1],
        b"\0" * 64 + FILE_BY_HAND[64:],
        head(),
    ],
    ids=["version", "version, other form", "cut", "without its first head", "head alone"],
)
def test_our_own_file_that_cannot_be_used_is_counted_and_removed(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "0000000000000001.snapshot").write_bytes(content)
    snapshots = opened(tmp_path)
    assert snapshots.stats().damaged == 1
    assert snapshots.resources() == {}
    assert names(tmp_path) == []


FOREIGN_END = head() + whole_file([(BLOCK_BY_HAND, b"\xc3\xbc1", 3, 2, 3)], head("other"))[64:]


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 64, b"x" * 5000, FILE_BY_HAND[64:-1], FOREIGN_END]
)
def test_a_file_of_nobody_is_kept_until_something_is_forgotten(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "0000000000000001.snapshot").write_bytes(content)
    snapshots = opened(tmp_path)
    assert snapshots.stats().damaged == 1
    snapshots.write([image("u")])
    assert names(tmp_path) == ["0000000000000001.snapshot", "0000000000000002.snapshot"]
    snapshots.forget(["somebody"])
    assert names(tmp_path) == ["0000000000000002.snapshot"]


@pytest.mark.parametrize("change", ["another's id", "rows", "dimensions", "magic", "generation"])
def test_a_block_that_is_not_what_the_directory_says_is_not_given(
    tmp_path: Path, change: str
) -> None:
    """Every checksum is right here: the file was made so, and not damaged."""
    block = {
        "another's id": BLOCK_BY_HAND.replace(b"\xc3\xbc1", b"abc"),
        "rows": BLOCK_BY_HAND[:8] + struct.pack("<Q", 3) + BLOCK_BY_HAND[16:],
        "dimensions": BLOCK_BY_HAND[:16] + struct.pack("<I", 2) + BLOCK_BY_HAND[20:],
        "magic": b"SRPARTIS" + BLOCK_BY_HAND[8:],
        "generation": BLOCK_BY_HAND.replace(b"gen", b"g\xff\xff"),
    }[change]
    assert block != BLOCK_BY_HAND
    content = whole_file([(block, b"\xc3\xbc1", 3, 2, 3)], head())
    (tmp_path / "0000000000000001.snapshot").write_bytes(content)
    snapshots = opened(tmp_path)
    assert snapshots.resources() == {"ü1": 2}
    assert snapshots.read("ü1") is None
    assert snapshots.resources() == {}
    assert snapshots.stats().damaged == 1
    assert snapshots.read("ü1") is None
    assert snapshots.stats().damaged == 1


@pytest.mark.parametrize(
    "entry",
    [
        (b"\xc3\xbc1", 3, 3, 3),
        (b"\xc3\xbc1", 3, 2, 200),
        (b"\xc3\xbc1" * 30, 3, 2, 3),
        (b"\xff\xff\xff", 3, 2, 3),
        (b"\xc3\xbc1", 3, 2**40, 2**30),
    ],
)
def test_a_directory_that_contradicts_itself_is_damage(
    tmp_path: Path, entry: tuple[bytes, int, int, int]
) -> None:
    (tmp_path / "0000000000000001.snapshot").write_bytes(
        whole_file([(BLOCK_BY_HAND, *entry)], head())
    )
    snapshots = opened(tmp_path)
    assert snapshots.resources() == {}
    assert snapshots.stats().damaged == 1


def fits_not(**changes: object) -> PartitionImage:
    given = image("u", 3, dimensions=4)
    rows = {name: getattr(given.rows, name) for name in PartitionRows.__slots__}
    own = {
        "resource_id": "u",
        "generation": "g",
        "codes": given.codes,
        "errors": given.errors,
        "scale_clip": 0.3,
    }
    for name, value in changes.items():
        (rows if name in rows else own)[name] = value
    return PartitionImage(rows=PartitionRows(**rows), **own)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"seqs": np.zeros(2, np.int64)},
        {"seqs": np.zeros(3, np.int32)},
        {"roles": np.zeros(3, np.int64)},
        {"errors": np.zeros(4, np.float32)},
        {"errors": np.zeros(3, np.float64)},
        {"codes": np.zeros((3, 5), np.uint8)},
        {"codes": np.zeros(12, np.uint8)},
        {"vectors": np.zeros((3, 4), np.float64)},
        {"vectors": np.zeros(12, np.float32)},
        {"resource_id": "\ud800"},
        {"resource_id": "a" * 65_536},
        {"generation": "\ud800"},
    ],
)
def test_an_image_that_does_not_fit_itself_is_refused(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u")])
    with pytest.raises(InvalidArgumentError):
        snapshots.write([image("v"), fits_not(**changes)])
    assert snapshots.resources() == {"u": 3}
    assert names(tmp_path) == ["0000000000000001.snapshot"]


def test_files_stay_few_and_dead_bytes_fewer_than_live_ones(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    for turn in range(60):
        snapshots.write([image(f"r{turn % 7}", 20, seed=turn, dimensions=64)])
        stats = snapshots.stats()
        assert stats.files == len(names(tmp_path)) <= FILES_MAX
        blocks = stats.bytes - stats.files * (64 + 64 + 40)
        live = min(turn + 1, 7) * BLOCK_BYTES
        assert live <= blocks <= 2 * live + 42 * 2 * 7
    assert opened(tmp_path).resources() == {f"r{at}": 20 for at in range(7)}


# Resource id of 2 bytes, generation of 1, 20 rows of 64 dimensions.
BLOCK_BYTES = (32 + 2 + 1 + 20 * (6 * 8 + 4 + 1 + 64) + 57) + 20 * 64 * 4


def test_one_resource_written_again_and_again_does_not_grow(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u", 100)])
    one = snapshots.stats().bytes
    for turn in range(30):
        snapshots.write([image("u", 100, seed=turn)])
        assert snapshots.stats().bytes == one
        assert len(names(tmp_path)) == 1


def mb(*sizes: int) -> list[FileLoad]:
    return [FileLoad(live_bytes=size, dead_bytes=0) for size in sizes]


@pytest.mark.parametrize(
    ("loads", "new", "right"),
    [
        ([], 5, set()),
        (mb(9, 9, 9), 1, set()),
        (mb(*[1] * 7), 1, set()),
        (mb(900, *[1] * 7), 1, {1, 2, 3, 4, 5, 6, 7}),
        (mb(900, 90, 80, 70, 60, 50, 40, 30), 1, {7}),
        (mb(900, 90, 80, 70, 60, 50, 40, 2), 60, {1, 2, 3, 4, 5, 6, 7}),
        (mb(*[900] * 8), 900, {0, 1, 2, 3, 4, 5, 6, 7}),
        ([FileLoad(5, 5), FileLoad(5, 6), FileLoad(0, 1)], 1, {1, 2}),
        (mb(*[LARGE_BYTES] * 20, 1), 1, set()),
        (mb(LARGE_BYTES, *[LARGE_BYTES - 1] * 8), LARGE_BYTES, {1}),
        ([FileLoad(LARGE_BYTES, LARGE_BYTES + 1)], 1, {0}),
    ],
)
def test_which_files_are_rewritten(loads: list[FileLoad], new: int, right: set[int]) -> None:
    assert set(files_to_rewrite(loads, new)) == right


def test_no_file_stays_open(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(20):
        snapshots.write([image("u", seed=turn)])
        assert snapshots.read("u") is not None
    snapshots.forget(["u"])
    assert len(os.listdir("/proc/self/fd")) == before
    snapshots.close()


def test_a_directory_that_cannot_be_made_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    snapshots = opened(tmp_path / "file" / "snapshots")
    assert snapshots.read("u") is None
    with pytest.raises(UnavailableError):
        snapshots.write([image("u")])
    snapshots.forget(["u"])


def test_a_directory_that_vanished_is_made_again(tmp_path: Path) -> None:
    snapshots = opened(tmp_path / "snapshots")
    (tmp_path / "snapshots").rmdir()
    assert snapshots.write([image("u")]) == 1
    assert same(opened(tmp_path / "snapshots").read("u"), image("u"))


def test_readers_see_whole_images_while_files_come_and_go(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u", 30, seed=0)])
    right = [image("u", 30, seed=seed) for seed in range(40)]
    done = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not done.is_set():
            given = snapshots.read("u")
            if not any(same(given, one) for one in right):
                wrong.append("torn" if given is not None else "missing")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for one in right:
        snapshots.write([one])
    done.set()
    for reader in readers:
        reader.join(30)
    assert not wrong
