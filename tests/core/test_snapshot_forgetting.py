"""What a Forget leaves of snapshot files, and what it costs: no more than what is forgotten."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.snapshots import file_store, new_file
from semanticrecall_core.snapshots.sealed_file import SealedFile
from semanticrecall_core.types.values import PartitionImage
from support.faulty_os import FaultyOs
from support.model_snapshots import image, is_exactly, same
from support.snapshot_bytes import (
    BLOCK_BY_HAND,
    BY_HAND,
    head,
    held,
    names,
    opened,
    padded,
    whole_file,
)

OTHER = image("v", 2, dimensions=3)


def everything(directory: Path) -> bytes:
    return b"".join((directory / name).read_bytes() for name in names(directory))


def erased(block: bytes) -> bytes:
    return b"SRERASED" + bytes(len(block) - 8)


def by_hand(block: bytes) -> bytes:
    """A file of one block for the resource "ü1"."""
    return whole_file([(block, b"\xc3\xbc1", 3, 2, 3)], head())


@pytest.mark.parametrize("mapped", [True, False])
def test_forgotten_bytes_are_gone_from_every_file(tmp_path: Path, mapped: bool) -> None:
    snapshots = opened(tmp_path, mapped=mapped)
    older, newer = image("secret-person", 20, seed=1), image("secret-person", 20, seed=2)
    snapshots.write([older, image("v", 20)])
    snapshots.write([newer, image("w", 20)])
    snapshots.write([image("x")])
    paths = [tmp_path / name for name in names(tmp_path)]
    before = [path.stat() for path in paths]
    assert held(tmp_path, older)
    assert held(tmp_path, newer)
    snapshots.forget(["secret-person"])
    assert not held(tmp_path, older)
    assert not held(tmp_path, newer)
    assert b"secret-person" not in everything(tmp_path)
    others = {"v": image("v", 20), "w": image("w", 20), "x": image("x")}
    assert is_exactly(snapshots, others)
    assert is_exactly(opened(tmp_path), others)
    after = [path.stat() for path in paths]
    assert [stat.st_ino for stat in after] == [stat.st_ino for stat in before]
    assert after[2].st_mtime_ns == before[2].st_mtime_ns


def test_an_erased_block_is_what_one_writes_by_hand(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([OTHER, BY_HAND, image("w")])
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    snapshots.forget(["ü1"])
    assert before.count(BLOCK_BY_HAND) == before.count(b"=\xc3\xbc1") == 1
    right = before.replace(BLOCK_BY_HAND, erased(BLOCK_BY_HAND)).replace(b"=\xc3\xbc1", bytes(4))
    assert path.read_bytes() == right
    with capture_logs() as logs:
        again = opened(tmp_path)
        assert is_exactly(again, {"v": OTHER, "w": image("w")})
    assert again.stats().damaged == 0
    assert again.stats() == snapshots.stats()
    assert again.rows_of("ü1") is None
    assert logs == []


@pytest.mark.parametrize("merged", [True, False])
def test_a_forget_that_was_cut_off_before_the_name_is_no_damage(
    tmp_path: Path, merged: bool
) -> None:
    content = by_hand(erased(BLOCK_BY_HAND))
    (tmp_path / "0000000000000001.snapshot").write_bytes(content)
    with capture_logs() as logs:
        snapshots = opened(tmp_path)
        if merged:
            for turn in range(9):
                snapshots.write([image(f"r{turn}")])
            assert len(names(tmp_path)) < 9
        assert snapshots.read("ü1") is None
        assert "ü1" not in snapshots.resources()
    assert logs == []
    assert snapshots.stats().damaged == 0
    snapshots.forget(["ü1"])
    assert snapshots.rows_of("ü1") is None
    assert b"=\xc3\xbc1" not in everything(tmp_path)


def test_a_block_that_says_it_is_erased_and_a_name_that_does_not_match_are_told_apart(
    tmp_path: Path,
) -> None:
    """Half of a name is damage of the whole file: nobody knows whose the block is."""
    content = by_hand(erased(BLOCK_BY_HAND)).replace(b"=\xc3\xbc1", b"\0\0\xbc1")
    (tmp_path / "0000000000000001.snapshot").write_bytes(content)
    assert opened(tmp_path).stats().damaged == 1
    assert names(tmp_path) == []


def test_all_blocks_of_a_resource_in_one_file_are_erased(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    copies = [image("u", 5, seed=seed) for seed in range(3)]
    snapshots.write([copies[0], image("v", 90), *copies[1:]])
    again = opened(tmp_path)
    assert same(again.read("u"), copies[2])
    seqs = np.concatenate([one.rows.seqs for one in copies])
    assert again.seqs_of("u").tolist() == sorted(seqs.tolist())
    assert all(held(tmp_path, one) for one in copies)
    again.forget(["u"])
    assert not any(held(tmp_path, one) for one in copies)
    assert b"=u" not in everything(tmp_path)
    assert is_exactly(opened(tmp_path), {"v": image("v", 90)})


def test_rows_of_replaced_images_are_known_until_they_are_gone(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    older, newer = image("u", 3, seed=1), image("u", 2, seed=2)
    snapshots.write([older, image("v", 20)])
    snapshots.write([newer])
    seqs = np.concatenate((older.rows.seqs, newer.rows.seqs))
    assert opened(tmp_path).seqs_of("u").tolist() == sorted(seqs.tolist())
    snapshots.forget(["u"])
    assert opened(tmp_path).seqs_of("u").tolist() == []


class CountingOs(FaultyOs):
    """Counts the bytes that are written."""

    written = 0

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self.written += len(data)
        count: int = super().__getattr__("pwrite")(fd, data, offset)
        return count


@pytest.mark.parametrize("mapped", [True, False])
def test_a_forget_writes_no_more_than_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    snapshots = opened(tmp_path, mapped=mapped)
    images = {f"r{at}": image(f"r{at}", 2000, dimensions=64) for at in range(20)}
    snapshots.write(images.values())
    block = padded(bytes(32 + 2 + 1 + 2000 * (6 * 8 + 4 + 1 + 64))) + bytes(2000 * 64 * 4)
    assert snapshots.stats().bytes > 19 * len(block) > 10_000_000
    if mapped:  # the other partitions are looked at all the while
        others = [snapshots.read(name) for name in images if name != "r7"]
    monkeypatch.setattr(new_file, "os", counting := CountingOs())
    snapshots.forget(["r7"])
    assert counting.written == len(block) + len("=r7")
    assert not held(tmp_path, images.pop("r7"))
    assert is_exactly(snapshots, images)
    if mapped:
        assert all(same(*pair) for pair in zip(others, images.values(), strict=True))


def test_erased_blocks_are_dead_and_go_with_the_next_merge(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("a", 20), image("b", 20), image("c", 10)])
    (path,) = tmp_path.iterdir()
    whole = path.stat().st_size
    snapshots.forget(["a", "b"])
    assert (snapshots.stats().bytes, snapshots.stats().rows) == (whole, 10)
    assert is_exactly(snapshots, {"c": image("c", 10)})
    snapshots.write([image("d")])
    assert not path.exists()
    assert snapshots.stats().bytes < whole / 2
    assert b"SRERASED" not in everything(tmp_path)
    assert is_exactly(opened(tmp_path), {"c": image("c", 10), "d": image("d")})


def test_what_replaces_nothing_else_stays_where_it_is(tmp_path: Path) -> None:
    """Other blocks of the file, live and replaced, are left alone."""
    snapshots = opened(tmp_path)
    older = image("v", 20, seed=1)
    snapshots.write([image("u"), older, image("w", 90)])
    snapshots.write([image("v", 20, seed=2)])
    snapshots.forget(["u"])
    assert held(tmp_path, older)
    assert is_exactly(opened(tmp_path), {"v": image("v", 20, seed=2), "w": image("w", 90)})


# --- what is mapped and looked at ----------------------------------------------------------------


def test_a_block_that_is_looked_at_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_store, "VIEW_WAIT_SECONDS", 0.0)
    snapshots = opened(tmp_path)
    snapshots.write([image("u", 50), image("v", 50)])
    given = snapshots.read("u")
    assert given is not None
    (path,) = tmp_path.iterdir()
    vectors = given.rows.vectors[7:9, 1]  # any array that was made of it
    right = image("u", 50).rows.vectors[7:9, 1]
    del given
    snapshots.forget(["u"])
    assert not path.exists()
    assert not held(tmp_path, image("u", 50))
    assert vectors.tolist() == right.tolist()
    assert sorted(snapshots.take_moved()) == ["u", "v"]
    assert is_exactly(opened(tmp_path), {"v": image("v", 50)})


def test_a_forget_waits_a_moment_for_those_who_look_at_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u", 50), image("v", 50)])
    (path,) = tmp_path.iterdir()
    looking = [snapshots.read("u"), snapshots.read("u")]
    waits = 0

    def sleep(_: float) -> None:
        nonlocal waits
        waits += 1
        looking.pop()
        gc.collect()

    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep)
    monkeypatch.setattr(file_store, "time", clock)
    snapshots.forget(["u"])
    assert waits == 2
    assert path.exists()
    assert snapshots.take_moved() == []
    assert not held(tmp_path, image("u", 50))


@pytest.mark.parametrize("mapped", [True, False])
def test_who_has_begun_to_read_a_block_gets_it_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """It is forgotten between two pieces of a read."""
    monkeypatch.setattr(file_store, "VIEW_WAIT_SECONDS", 0.0)
    snapshots = opened(tmp_path, mapped=mapped)
    snapshots.write([image("u", 20), image("v")])
    fill, pieces = SealedFile._fill, 0

    def fill_and_forget(file: SealedFile, *more: Any) -> int:
        nonlocal pieces
        pieces += 1
        if pieces == 3:
            forgetter = threading.Thread(target=snapshots.forget, args=[["u"]])
            forgetter.start()
            forgetter.join(30)
            assert not forgetter.is_alive()
        return fill(file, *more)

    monkeypatch.setattr(SealedFile, "_fill", fill_and_forget)
    given = snapshots.read("u")
    assert pieces > 3
    assert same(given, image("u", 20)) if mapped else given is None
    assert snapshots.stats().damaged == 0
    assert not held(tmp_path, image("u", 20))
    assert is_exactly(snapshots, {"v": image("v")})


def test_forgetting_what_is_not_there_writes_nothing(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u")])
    paths = [tmp_path, *tmp_path.iterdir()]
    before = [path.stat().st_mtime_ns for path in paths]
    snapshots.forget(["v", "w"])
    snapshots.forget([])
    assert [path.stat().st_mtime_ns for path in paths] == before


def test_what_is_damaged_or_unknown_is_there_to_be_forgotten(tmp_path: Path) -> None:
    given = image("u", 20)
    opened(tmp_path).write([given, image("v")])
    path = tmp_path / "0000000000000001.snapshot"
    content = bytearray(path.read_bytes())
    content[64 + 40] ^= 1
    path.write_bytes(content)
    snapshots = opened(tmp_path)
    assert (snapshots.rows_of("u"), snapshots.rows_of("w")) == (20, None)
    assert snapshots.read("u") is None
    assert snapshots.rows_of("u") == 0
    snapshots.forget(["u"])
    assert not held(tmp_path, given)
    assert (snapshots.rows_of("u"), snapshots.rows_of("v")) == (None, 3)

    (tmp_path / "0000000000000099.snapshot").write_bytes(b"x" * 500)
    again = opened(tmp_path)
    assert (again.rows_of("u"), again.rows_of("v")) == (0, 3)
    again.forget(["u"])
    assert again.rows_of("u") is None


def test_forgetting_everything_leaves_no_file(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u"), image("v")])
    snapshots.write([image("u")])
    snapshots.forget(["u", "v"])
    assert names(tmp_path) == []
    assert snapshots.stats().bytes == 0


def test_forget_waits_for_the_write_that_runs_and_wins(tmp_path: Path) -> None:
    """Images are taken under the lock, so that a forget can never be overtaken by an older one."""
    snapshots = opened(tmp_path)
    started, forgetting = threading.Event(), threading.Event()

    def images() -> Iterator[PartitionImage]:
        yield image("u")
        started.set()
        assert forgetting.wait(30)
        yield image("v")

    writer = threading.Thread(target=snapshots.write, args=[images()])
    writer.start()
    assert started.wait(30)
    forgetter = threading.Thread(target=snapshots.forget, args=[["u"]])
    forgetter.start()
    forgetting.set()
    writer.join(30)
    forgetter.join(30)
    assert not writer.is_alive()
    assert not forgetter.is_alive()
    assert snapshots.resources() == {"v": 3}
