"""The bytes of snapshot files, made by hand from the format's description; faults beneath them."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xxhash

from semanticrecall_core.snapshots import FileSnapshotStore, new_file
from semanticrecall_core.types.values import PartitionImage, PartitionRows
from support.faulty_os import FaultyOs

STORE = "0123456789abcdef"


def opened(directory: Path, *, store_id: str = STORE, mapped: bool = True) -> FileSnapshotStore:
    return FileSnapshotStore(directory, store_id=store_id, mapped=mapped)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def checksum(data: bytes) -> bytes:
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 64)


def head(store_id: str = STORE, version: int = 2) -> bytes:
    body = b"SRSNAPSH" + struct.pack("<I", version) + b"\0" * 4
    body += hashlib.sha256(store_id.encode()).digest() + b"\0" * 8
    return body + checksum(body)


def whole_file(blocks: list[tuple[bytes, bytes, int, int, int]], first: bytes) -> bytes:
    """A file of blocks, each with its resource id, generation's length, rows and dimensions."""
    content, table, names = first, b"", b""
    for block, resource_id, generation_bytes, rows, dimensions in blocks:
        name = b"=" + resource_id
        table += struct.pack("<QQ", len(content), len(block)) + checksum(block) + checksum(name)
        table += struct.pack("<QIHH", rows, dimensions, len(resource_id), generation_bytes)
        names += name
        content += block
    footer = first + table + names
    place = struct.pack("<QQQ", len(content), len(footer), len(blocks))
    return content + footer + place + checksum(first + table + place) + b"SRSNAPND"


BY_HAND = PartitionImage(
    resource_id="ü1",
    generation="gen",
    rows=PartitionRows(
        seqs=np.array([1, 2], np.int64),
        thread_keys=np.array([3, 4], np.int64),
        times_ns=np.array([-5, 6], np.int64),
        roles=np.array([1, 2], np.uint8),
        chunks=np.array([0, 7], np.int64),
        revisions=np.array([8, 9], np.int64),
        vectors=np.array([[1.0, 0.0, -0.5], [0.25, 2.0, 0.0]], np.float32),
        checksums=np.array([-1, 2**62], np.int64),
    ),
    codes=np.array([[1, 2, 3], [4, 5, 255]], np.uint8),
    errors=np.array([0.5, 0.125], np.float32),
    scale_clip=0.3,
)
BLOCK_BY_HAND = padded(
    b"SRPARTIT"
    + struct.pack("<QIHHd", 2, 3, 3, 3, 0.3)
    + b"\xc3\xbc1gen"
    + struct.pack("<12q", 1, 2, 3, 4, -5, 6, 0, 7, 8, 9, -1, 2**62)
    + struct.pack("<2f", 0.5, 0.125)
    + bytes([1, 2])
    + bytes([1, 2, 3, 4, 5, 255])
) + padded(struct.pack("<6f", 1.0, 0.0, -0.5, 0.25, 2.0, 0.0))
FILE_BY_HAND = whole_file([(BLOCK_BY_HAND, b"\xc3\xbc1", 3, 2, 3)], head())


def canaries(given: PartitionImage) -> list[bytes]:
    """Bytes of every section that stand nowhere else."""
    columns = (given.rows.seqs, given.rows.times_ns, given.rows.checksums)
    sections = (*columns, given.codes, given.errors, given.rows.vectors)
    return [section.tobytes() for section in sections]


def held(directory: Path, given: PartitionImage) -> bool:
    content = b"".join((directory / name).read_bytes() for name in names(directory))
    return any(canary in content for canary in canaries(given))


@contextmanager
def faulty(fault: Callable[[int, str], None]) -> Iterator[FaultyOs]:
    with pytest.MonkeyPatch.context() as patched:
        stand_in = FaultyOs(fault)
        patched.setattr(new_file, "os", stand_in)
        yield stand_in
