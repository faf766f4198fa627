"""Damage and failures of the disk under snapshots: never other content than what was written.

Every byte of a file is used, so every flipped bit has to be found; what cannot be read is not there
and nothing more; what could not be written leaves all as it was.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semanticrecall_core.snapshots import FileSnapshotStore, compaction, new_file, sealed_file
from semanticrecall_core.types.errors import (
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
)
from semanticrecall_core.types.values import PartitionImage
from support.faulty_os import Crash, FaultyOs, crash_at, fail_at
from support.model_snapshots import image, is_exactly, same
from support.snapshot_bytes import faulty

Images = dict[str, PartitionImage]


def opened(directory: Path, *, mapped: bool = True) -> FileSnapshotStore:
    return FileSnapshotStore(directory, store_id="s", mapped=mapped)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Images]:
    """Three files without a dead block."""
    images = {f"r{at}": image(f"r{at}", at, dimensions=7) for at in range(6)}
    snapshots = opened(tmp_path / "sound")
    for part in (("r0", "r1", "r2"), ("r3",), ("r4", "r5")):
        snapshots.write([images[name] for name in part])
    return tmp_path / "sound", images


def check(directory: Path, right: Images, *, mapped: bool = True) -> tuple[int, int]:
    """How much was found damaged, and how many images are missing; nothing else may differ."""
    snapshots = opened(directory, mapped=mapped)
    missing = 0
    for name, one in right.items():
        given = snapshots.read(name)
        missing += given is None
        assert given is None or same(given, one)
    assert set(snapshots.resources()) <= set(right)
    return snapshots.stats().damaged, missing


def changed_copies(sound: Path, changes: dict[str, list[bytes]]) -> Iterator[Path]:
    """The directory once for each changed content of one of its files, one at a time."""
    copy = sound.parent / "changed"
    copy.mkdir()
    right = {name: (sound / name).read_bytes() for name in names(sound)}
    for name, contents in changes.items():
        for content in contents:
            for each, unchanged in right.items():
                (copy / each).write_bytes(content if each == name else unchanged)
            yield copy


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("mapped", [True, False])
def test_every_flipped_bit_is_found(written: tuple[Path, Images], mapped: bool) -> None:
    sound, images = written
    draw = random.Random(f"flips {mapped}")
    changes: dict[str, list[bytes]] = {}
    for name in names(sound):
        content = (sound / name).read_bytes()
        # All of the parts that steer the reading, and places all over the file.
        ends = [*range(64 * 8), *range(len(content) * 8 - 40 * 8, len(content) * 8)]
        bits = [*draw.sample(ends, 120), *draw.sample(range(len(content) * 8), 180)]
        changes[name] = [flipped(content, bit) for bit in bits]
    tried = found = 0
    for copy in changed_copies(sound, changes):
        damaged, missing = check(copy, images, mapped=mapped)
        tried += 1
        found += damaged == 1 and missing >= 1
    assert tried == 900
    assert found == tried


def test_every_length_of_a_cut_file_is_found(written: tuple[Path, Images]) -> None:
    sound, images = written
    content = (sound / names(sound)[0]).read_bytes()
    lengths = sorted({*range(0, len(content), 17), *range(len(content) - 48, len(content))})
    cuts = {names(sound)[0]: [content[:length] for length in lengths]}
    results = [check(copy, images) for copy in changed_copies(sound, cuts)]
    assert results == [(1, 3)] * len(lengths)


def test_bytes_behind_the_end_are_damage(written: tuple[Path, Images]) -> None:
    sound, images = written
    content = (sound / names(sound)[0]).read_bytes()
    longer = {names(sound)[0]: [content + b"\0", content + content, b"\0" + content]}
    assert [check(copy, images) for copy in changed_copies(sound, longer)] == [(1, 3)] * 3


def test_every_page_of_zeros_is_found(tmp_path: Path) -> None:
    images = {name: image(name, 40, dimensions=64) for name in "abc"}
    opened(tmp_path / "sound").write(images.values())
    (name,) = names(tmp_path / "sound")
    content = (tmp_path / "sound" / name).read_bytes()
    starts = range(0, len(content), 4096)
    zeroed = [
        content[:at] + bytes(len(content[at : at + 4096])) + content[at + 4096 :] for at in starts
    ]
    results = [check(copy, images) for copy in changed_copies(tmp_path / "sound", {name: zeroed})]
    assert len(results) > 10
    assert all(damaged >= 1 and missing >= 1 for damaged, missing in results)


def test_blocks_of_another_place_or_file_are_not_taken(written: tuple[Path, Images]) -> None:
    """A misdirected write: sound bytes, in the wrong place."""
    sound, images = written
    first, second, _ = ((sound / name).read_bytes() for name in names(sound))
    moved = first[:64] + first[128:192] + first[64:128] + first[192:]
    foreign = first[:64] + second[64:128] + first[128:]
    results = [
        check(copy, images)
        for copy in changed_copies(sound, {names(sound)[0]: [moved, foreign, second[:64]]})
    ]
    assert all(damaged >= 1 for damaged, _ in results)
    assert [missing >= 1 for _, missing in results] == [True] * 3


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_cut_while_it_is_open_ends_nobody(
    written: tuple[Path, Images], mapped: bool
) -> None:
    """Touching a map beyond the end of its file would end the process."""
    sound, images = written
    snapshots = opened(sound, mapped=mapped)
    os.truncate(sound / names(sound)[0], 100)
    given = [snapshots.read(name) for name in images]
    assert [one is None for one in given] == [True] * 3 + [False] * 3
    assert snapshots.stats().damaged == 3


def test_a_damaged_block_is_left_out_when_files_are_merged(
    written: tuple[Path, Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, images = written
    path = sound / names(sound)[0]
    path.write_bytes(flipped(path.read_bytes(), (64 + 40) * 8))  # in r0's block
    monkeypatch.setattr(compaction, "FILES_MAX", 1)
    snapshots = opened(sound)
    images["r2"] = image("r2", 90, seed=1)
    snapshots.write([images["r2"]])
    assert len(names(sound)) == 1
    assert snapshots.stats().damaged == 1
    del images["r0"]
    assert set(snapshots.resources()) == set(images)
    assert check(sound, images) == (0, 0)


def test_a_disk_that_cannot_be_read_for_a_while(
    written: tuple[Path, Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, images = written
    snapshots = opened(sound)
    with monkeypatch.context() as patched:
        patched.setattr(sealed_file, "os", UnreadableOs())
        assert snapshots.read("r5") is None
        assert opened(sound).resources() == {}
    assert same(snapshots.read("r5"), images["r5"])
    assert snapshots.stats().damaged == 0
    assert len(names(sound)) == 3


class UnreadableOs:
    """`os` over a disk on which nothing can be read."""

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def preadv(self, *_: object) -> int:
        raise OSError(errno.EIO, "cannot be read")


# --- failures while writing ---------------------------------------------------------------------

Step = tuple[str, Callable[[FileSnapshotStore], object], Callable[[Images], None]]


def write_step(*given: PartitionImage) -> Step:
    def model(images: Images) -> None:
        images.update({one.resource_id: one for one in given})

    return "write", lambda snapshots: snapshots.write(given), model


def forget_step(*resource_ids: str) -> Step:
    def model(images: Images) -> None:
        for resource_id in resource_ids:
            images.pop(resource_id, None)

    return "forget", lambda snapshots: snapshots.forget(resource_ids), model


STEPS = [
    write_step(image("a"), image("b", 9)),
    write_step(image("a", 2, seed=1)),
    write_step(image("c", 30)),
    write_step(image("b", 1, seed=1), image("d")),
    forget_step("a"),
    write_step(image("a", 4, seed=2)),
    forget_step("b", "c"),
    write_step(image("e")),
    forget_step("a", "d", "e"),
]


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging starts at the third file."""
    monkeypatch.setattr(compaction, "FILES_MAX", 2)


def looked_through(directory: Path) -> FileSnapshotStore:
    """An erased block that still has its name is known when it is read."""
    snapshots = opened(directory)
    for name in snapshots.resources():
        snapshots.read(name)
    return snapshots


@pytest.mark.usefixtures("few_files")
def test_a_crash_at_any_call_leaves_the_state_before_or_after(tmp_path: Path) -> None:
    crashes = 0
    for target in range(1000):
        directory = tmp_path / str(target)
        before: Images = {}
        after: Images = {}
        try:
            with faulty(crash_at(target)):
                snapshots = opened(directory)
                for _, run, model in STEPS:
                    model(after)
                    run(snapshots)
                    model(before)
        except Crash:
            crashes += 1
        else:
            break
        again = looked_through(directory)
        state = after
        if not is_exactly(again, after):
            # As before; of a forget that nobody was told is done, some may be gone.
            state = {n: one for n, one in before.items() if n in again.resources() or n in after}
        assert is_exactly(again, state), target
        assert again.stats().damaged == 0
        assert not [name for name in names(directory) if name.endswith(".tmp")]
        again.write([image("z")])
        assert is_exactly(looked_through(directory), {**state, "z": image("z")})
        shutil.rmtree(directory)
    else:
        pytest.fail("the script never came to its end")
    assert crashes > 100


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize(
    ("code", "error", "sticky"),
    [
        (errno.EIO, UnavailableError, False),
        (errno.ENOSPC, ResourceExhaustedError, True),
    ],
    ids=["EIO once", "ENOSPC for good"],
)
def test_a_failure_at_any_call_changes_all_or_nothing(
    tmp_path: Path, code: int, error: type[SemanticRecallError], sticky: bool
) -> None:
    failures = 0
    for target in range(1000):
        directory = tmp_path / str(target)
        reached = run_steps_with_failure(directory, fail_at(target, code, sticky=sticky), error)
        if not reached:
            break
        failures += 1
        shutil.rmtree(directory)
    else:
        pytest.fail("the script never came to its end")
    assert failures > 100


def run_steps_with_failure(
    directory: Path, fault: Callable[[int, str], None], error: type[SemanticRecallError]
) -> bool:
    """Whether the fault was met. A step that raises is tried again on a sound disk."""
    images: Images = {}
    snapshots = opened(directory)
    with faulty(fault) as stand_in:
        for what, run, model in STEPS:
            after = dict(images)
            model(after)
            try:
                run(snapshots)
            except error:  # and no other
                stand_in.mend()
                if what == "write":
                    assert is_exactly(snapshots, images)
                run(snapshots)
            if what == "forget":
                # A file that could not be rewritten is dropped with all it held.
                gone = [one for name, one in images.items() if name not in after]
                assert not any(held(directory, one) for one in gone)
                after = {n: one for n, one in after.items() if n in snapshots.resources()}
            images = after
            assert is_exactly(snapshots, images)
            assert is_exactly(opened(directory), images)
    return stand_in.raised > 0


def held(directory: Path, given: PartitionImage) -> bool:
    content = b"".join((directory / name).read_bytes() for name in names(directory))
    return given.rows.vectors.tobytes() in content or given.codes.tobytes() in content


@pytest.mark.usefixtures("few_files")
def test_a_sound_disk_keeps_what_a_full_one_would_drop(tmp_path: Path) -> None:
    images: Images = {}
    snapshots = opened(tmp_path)
    for _, run, model in STEPS:
        model(images)
        run(snapshots)
        assert is_exactly(snapshots, images)
        assert is_exactly(opened(tmp_path), images)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_kind_of_full_disk_is_one(tmp_path: Path, code: int) -> None:
    snapshots = opened(tmp_path)
    with faulty(fail_at(2, code)), pytest.raises(ResourceExhaustedError) as caught:
        snapshots.write([image("u")])
    assert caught.value.reason == "DISK_FULL"
    assert names(tmp_path) == []


def test_nothing_is_removed_before_what_replaces_it_is_on_disk(tmp_path: Path) -> None:
    snapshots = opened(tmp_path)
    snapshots.write([image("u")])
    calls: list[str] = []
    with faulty(lambda number, name: calls.append(name)):
        snapshots.write([image("u", seed=1)])
    order = [name for name in calls if name != "pwrite"]
    named = ["open", "ftruncate", "fsync", "rename", "open", "fsync"]
    assert order == [*named, "unlink", "open", "fsync"]
    last_write = len(calls) - calls[::-1].index("pwrite") - 1
    assert last_write < calls.index("fsync")


@pytest.mark.parametrize("most", [1, 7, 64])
def test_a_disk_that_takes_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    class Sluggish(FaultyOs):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            return os.pwrite(fd, data[:most], offset)

    monkeypatch.setattr(new_file, "os", Sluggish())
    opened(tmp_path / "sluggish").write([image("u"), image("v", 9)])
    monkeypatch.undo()
    opened(tmp_path / "sound").write([image("u"), image("v", 9)])
    (name,) = names(tmp_path / "sound")
    assert (tmp_path / "sluggish" / name).read_bytes() == (tmp_path / "sound" / name).read_bytes()


def nothing(data: memoryview) -> bytes:
    return bytes(len(data))


def one_bit(data: memoryview) -> bytes:
    return flipped(bytes(data), len(data) * 4)


@pytest.mark.parametrize("damage", [nothing, one_bit], ids=["zeros", "one bit"])
def test_a_disk_that_lies_is_noticed_before_anything_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[memoryview], bytes]
) -> None:
    """Each piece of the file in turn is not what was given to be written."""
    snapshots = opened(tmp_path)
    snapshots.write([image("u")])
    noticed = 0
    for target in range(1000):

        class Lying(FaultyOs):
            writes = 0

            def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
                number, self.writes = self.writes, self.writes + 1
                changed = damage(data) if number == target and any(data) else data  # noqa: B023
                return os.pwrite(fd, changed, offset)

        stand_in = Lying()
        monkeypatch.setattr(new_file, "os", stand_in)
        try:
            snapshots.write([image("v", 9)])
        except UnavailableError:
            noticed += 1
        monkeypatch.undo()
        if stand_in.writes <= target:
            break
        if snapshots.read("v") is not None:  # the piece was zeros anyway
            assert same(snapshots.read("v"), image("v", 9))
        assert same(snapshots.read("u"), image("u"))
    assert noticed >= 5  # columns, codes, vectors, footer, head


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    """The kernel's own short write, then its error."""
    snapshots = opened(tmp_path)
    snapshots.write([image("u")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ResourceExhaustedError) as caught:
            snapshots.write([image("v", 100, dimensions=64)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.reason == "DISK_FULL"
    assert is_exactly(snapshots, {"u": image("u")})
    assert len(names(tmp_path)) == 1
