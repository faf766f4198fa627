"""Failures of the disk while snapshot files forget: what was forgotten comes back from nowhere."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from semanticrecall_core.snapshots import new_file
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.values import PartitionImage
from support.faulty_os import Crash, crash_at
from support.model_snapshots import image, is_exactly, same
from support.snapshot_bytes import faulty, held, opened

Images = dict[str, PartitionImage]


def test_forget_works_on_a_full_disk(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u"), image("v")])
    snapshots.write([image("w")])

    def full(number: int, name: str) -> None:
        if name == "pwrite":
            raise OSError(errno.ENOSPC, "full")

    with faulty(full):
        snapshots.forget(["u"])
    assert not held(tmp_path, image("u"))
    assert is_exactly(snapshots, {"w": image("w")})
    assert is_exactly(opened(tmp_path), {"w": image("w")})


def test_a_name_is_overwritten_after_its_block_is_on_disk(tmp_path: Path) -> None:
    """Whoever finds no name relies on it that the block is erased."""
    snapshots = opened(tmp_path)
    snapshots.write([image("u"), image("v"), image("w")])
    calls: list[str] = []
    with faulty(lambda number, name: calls.append(name)):
        snapshots.forget(["u", "w"])
    assert calls == ["open", "pwrite", "pwrite", "fsync", "pwrite", "pwrite", "fsync"]


def test_a_crash_in_a_forget_brings_no_older_image_back(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u", seed=1), image("v", 90)])
    snapshots.write([image("u", seed=2), image("w", 90)])
    opens: list[int] = []

    def second_open(number: int, name: str) -> None:
        opens.extend([number] if name == "open" else [])
        if len(opens) == 2:
            raise Crash

    with faulty(second_open), pytest.raises(Crash):
        snapshots.forget(["u"])
    assert not held(tmp_path, image("u", seed=1))
    again = opened(tmp_path)
    assert is_exactly(again, {"u": image("u", seed=2), "v": image("v", 90), "w": image("w", 90)})


def test_where_one_file_cannot_be_overwritten_no_older_image_comes_back(tmp_path: Path) -> None:
    """The older file is rewritten: it must be gone before the newer one's block is."""
    snapshots = opened(tmp_path)
    snapshots.write([image("u", seed=1), image("v", 90)])
    snapshots.write([image("u", seed=2), image("w", 90)])
    others = {"v": image("v", 90), "w": image("w", 90)}
    for target in range(100):
        copy = tmp_path.parent / "copy"
        shutil.copytree(tmp_path, copy)
        again = opened(copy)

        def first_write_fails(number: int, name: str) -> None:
            if number == 1:
                raise OSError(errno.EIO, "cannot be written")
            if number >= target:  # noqa: B023
                raise Crash

        try:
            with faulty(first_write_fails):
                again.forget(["u"])
        except Crash:
            given = opened(copy).read("u")
            assert given is None or same(given, image("u", seed=2))
        else:
            assert is_exactly(opened(copy), others)
            break
        shutil.rmtree(copy)
    assert target > 10


def test_a_block_that_is_half_overwritten_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at every piece: what is read is the old image or none, and is forgotten for good."""
    monkeypatch.setattr(new_file, "ERASED_BYTES_AT_ONCE", 100)
    opened(tmp_path / "sound").write([image("u", 20), image("v", 20)])
    found = {"whole": 0, "half": 0, "erased": 0}
    for target in range(1000):
        copy = tmp_path / str(target)
        shutil.copytree(tmp_path / "sound", copy)
        try:
            with faulty(crash_at(target)):
                opened(copy).forget(["u"])
        except Crash:
            again = opened(copy)
            given = again.read("u")
            assert given is None or same(given, image("u", 20))
            damaged = again.stats().damaged
            found["whole" if given else "half" if damaged else "erased"] += 1
            assert not (given and damaged)
            again.forget(["u"])
        assert not held(copy, image("u", 20))
        assert b"=u" not in b"".join(path.read_bytes() for path in copy.iterdir())
        assert opened(copy).rows_of("u") is None
        assert is_exactly(opened(copy), {"v": image("v", 20)})
        if target == sum(found.values()):  # not cut off any more
            break
    assert found["whole"] == 2  # before it is opened, and before the first piece
    assert found["half"] > 10
    assert found["erased"] == 3  # before it is on disk, before its name, before that is on disk


def test_what_could_not_be_removed_is_removed_later(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u"), image("v")])

    def stuck(number: int, name: str) -> None:
        if number == 1 or name == "unlink":
            raise OSError(errno.EPERM, "may not be changed")

    with faulty(stuck), pytest.raises(UnavailableError):
        snapshots.forget(["u"])
    assert snapshots.read("u") is None
    assert held(tmp_path, image("u"))
    snapshots.forget(["u"])
    assert not held(tmp_path, image("u"))
    assert is_exactly(opened(tmp_path), {"v": image("v")})
