"""Encrypted images: nothing to be read in them, and no block that can be put in another's place."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash

from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.values import PartitionImage
from support.model_snapshots import image, same

KEY = bytes(range(32))
FLIPS = 150
HEAD_BYTES, ENTRY_BYTES, TRAILER_BYTES = 64, 48, 40
ROWS, DIMENSIONS = 900, 384  # more than one segment


def opened(folder: Path, key: bytes | None = KEY) -> FileSnapshotStore:
    return FileSnapshotStore(folder, store_id="s", mapped=False, key=key)


def written(folder: Path, *images: PartitionImage, key: bytes | None = KEY) -> Path:
    """One file of these images; its path."""
    store = opened(folder, key)
    before = set(folder.iterdir())
    store.write(images)
    store.close()
    (path,) = set(folder.iterdir()) - before
    return path


def block(content: bytes, position: int) -> tuple[int, int]:
    """Offset and length of a block, from the footer."""
    footer = struct.unpack_from("<Q", content, len(content) - TRAILER_BYTES)[0]
    entry = footer + HEAD_BYTES + position * ENTRY_BYTES
    offset, length = struct.unpack_from("<QQ", content, entry)
    return offset, length


def with_blocks(content: bytes, blocks: list[bytes]) -> bytes:
    """The file with these bytes as its blocks, and every checksum right again."""
    changed = bytearray(content)
    footer, _, entries = struct.unpack_from("<QQQ", content, len(content) - TRAILER_BYTES)
    for position, data in enumerate(blocks):
        offset, length = block(content, position)
        assert len(data) == length
        changed[offset : offset + length] = data
        at = footer + HEAD_BYTES + position * ENTRY_BYTES + 16
        struct.pack_into("<Q", changed, at, xxhash.xxh3_64_intdigest(data))
    digest = xxhash.xxh3_64(bytes(changed[footer : footer + HEAD_BYTES + entries * ENTRY_BYTES]))
    digest.update(bytes(changed[-TRAILER_BYTES:-16]))
    struct.pack_into("<Q", changed, len(changed) - 16, digest.intdigest())
    return bytes(changed)


def blocks_of(content: bytes, count: int) -> list[bytes]:
    found = []
    for position in range(count):
        offset, length = block(content, position)
        found.append(content[offset : offset + length])
    return found


def test_nothing_of_an_image_is_in_its_file(tmp_path: Path) -> None:
    given = image("a resource of somebody", ROWS, dimensions=DIMENSIONS, generation="model@1")
    plain = written(tmp_path / "plain", given, key=None).read_bytes()
    sealed = written(tmp_path / "sealed", given).read_bytes()
    traces = [b"a resource of somebody", b"model@1"]
    traces += [np.ascontiguousarray(row).tobytes() for row in given.rows.vectors]
    traces += [np.ascontiguousarray(row).tobytes() for row in given.codes]
    traces.append(given.rows.seqs.tobytes())
    assert all(trace in plain for trace in traces)
    assert not any(trace in sealed for trace in traces)
    assert len(sealed) - len(plain) < 200
    again = opened(tmp_path / "sealed")
    assert same(again.read("a resource of somebody"), given)
    assert again.seqs_of("a resource of somebody").tolist() == sorted(given.rows.seqs.tolist())


def test_two_files_of_the_same_image_have_nothing_in_common(tmp_path: Path) -> None:
    given = image("u", 50, dimensions=64)
    first, second = (written(tmp_path / name, given).read_bytes() for name in "ab")
    (one,), (other,) = blocks_of(first, 1), blocks_of(second, 1)
    equal = sum(a == b for a, b in zip(one, other, strict=True))
    assert equal < len(one) / 20


def test_the_checksums_of_these_tests_are_those_of_the_format(tmp_path: Path) -> None:
    path = written(tmp_path, image("u", 20, dimensions=8), image("v", 20, dimensions=8))
    content = path.read_bytes()
    assert with_blocks(content, blocks_of(content, 2)) == content


def test_no_block_can_be_put_in_the_place_of_another(tmp_path: Path) -> None:
    """Not of another resource, nor an earlier one of the same: every checksum is right."""
    u, v, old = (image(name, 20, dimensions=8) for name in ("u", "v", "u"))
    earlier = written(tmp_path / "old", old, v).read_bytes()
    path = written(tmp_path / "new", u, v)
    content = path.read_bytes()
    own, others = blocks_of(content, 2), blocks_of(earlier, 2)
    for blocks in ([own[1], own[0]], [others[0], own[1]], [own[0], own[0]]):
        path.write_bytes(with_blocks(content, blocks))
        store = opened(tmp_path / "new")
        given = [store.read(name) for name in ("u", "v")]
        for found, expected, data, there in zip(given, (u, v), own, blocks, strict=True):
            assert (found is not None) == (data == there)
            assert found is None or same(found, expected)
        store.close()


def test_a_changed_bit_never_gives_another_image(tmp_path: Path) -> None:
    given = {name: image(name, 40, dimensions=16) for name in ("u", "v")}
    path = written(tmp_path, *given.values())
    content = path.read_bytes()
    chance = random.Random(29)
    lost = 0
    for _ in range(FLIPS):
        hurt = bytearray(content)
        hurt[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(hurt)
        store = opened(tmp_path)
        for name, expected in given.items():
            found = store.read(name)
            assert found is None or same(found, expected)
            lost += found is None
        store.close()
        path.write_bytes(content)
    assert lost >= FLIPS


@pytest.mark.parametrize("hit", [0, 1])
def test_a_damaged_block_hides_no_seqs_of_a_sound_one(tmp_path: Path, hit: int) -> None:
    """A Forget of these would otherwise leave the image that holds them as it is."""
    both = [image("u", rows, seed=rows) for rows in (5, 7)]
    path = written(tmp_path, *both)
    content = bytearray(path.read_bytes())
    offset, length = block(content, hit)
    content[offset + length // 2] ^= 1
    path.write_bytes(content)
    store = opened(tmp_path)
    assert list(store.seqs_of("u")) == sorted(set(both[1 - hit].rows.seqs))
    store.close()


@pytest.mark.parametrize(("before", "now"), [(KEY, None), (None, KEY), (KEY, bytes(32))])
def test_files_of_another_key_are_not_used(
    before: bytes | None, now: bytes | None, tmp_path: Path
) -> None:
    written(tmp_path, image("u", 5), key=before)
    store = opened(tmp_path, now)
    assert store.read("u") is None
    store.write([image("u", 6)])
    store.close()
    again = opened(tmp_path, now)
    found = again.read("u")
    assert found is not None
    assert found.rows.seqs.size == 6
    again.close()


def test_encrypted_files_cannot_be_mapped(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be mapped"):
        FileSnapshotStore(tmp_path, store_id="s", mapped=True, key=KEY)
