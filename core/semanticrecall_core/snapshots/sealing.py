"""Blocks and names of an encrypted snapshot file; how they lie in it is in `layout`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..encryption.segments import TAG_BYTES, FileCipher
from ..types.errors import CorruptDataError
from .layout import SEGMENT_BYTES, Entry, aligned

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK, _NAME = 1, 2  # purposes
_CONTEXT = struct.Struct("<QQIHHI")


def sealed_name(cipher: FileCipher, name: bytes, block_offset: int) -> bytes:
    """A resource id as it stands in the footer of an encrypted file, without its first byte."""
    return cipher.sealed(name, (block_offset, _NAME), b"")


def opened_name(cipher: FileCipher, sealed: bytes, block_offset: int) -> bytes:
    """The resource id. Raises CorruptDataError for one of another block."""
    return cipher.opened(sealed, (block_offset, _NAME), b"")


def sealed_block(
    cipher: FileCipher, entry: Entry, pieces: Iterable[bytes | memoryview]
) -> Iterator[bytes]:
    """A block as it stands in an encrypted file, to be written from `entry.offset` on.

    Args:
        cipher: of the file.
        entry: sizes and offset; its length and checksums are not looked at.
        pieces: of the plain block.
    """
    tags: list[bytes] = []
    for number, segment in enumerate(_segments(pieces)):
        at = entry.offset + number * SEGMENT_BYTES
        sealed = cipher.sealed(segment, (at, _BLOCK), _context(entry, number))
        tags.append(sealed[-TAG_BYTES:])
        yield sealed[:-TAG_BYTES]
    joined = b"".join(tags)
    yield joined.ljust(aligned(len(joined)), b"\0")


def _segments(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    waiting = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), SEGMENT_BYTES):
            waiting += view[start : start + SEGMENT_BYTES]
            if len(waiting) >= SEGMENT_BYTES:
                yield bytes(waiting[:SEGMENT_BYTES])
                del waiting[:SEGMENT_BYTES]
    if waiting:
        yield bytes(waiting)


def _context(entry: Entry, number: int) -> bytes:
    """What a segment is of: a directory that says anything else does not open it."""
    sizes = (entry.rows, entry.dimensions, entry.id_bytes, entry.generation_bytes)
    return _CONTEXT.pack(entry.plain_bytes, *sizes, number)


class OpenedBlock:
    """A block of an encrypted file, read from its start to its end."""

    def __init__(self, cipher: FileCipher, entry: Entry, read: Callable[[int, int], bytes]) -> None:
        """Start at the block's first byte.

        Args:
            cipher: of the file.
            entry: of the block.
            read: bytes of the file at (offset, length); raises CorruptDataError, OSError.
        """
        self._cipher = cipher
        self._entry = entry
        self._read = read
        self._segments = self.segments()
        self._rest = memoryview(b"")

    def segments(self) -> Iterator[bytes]:
        """The plain block, a segment at a time.

        Raises:
            CorruptDataError: it does not match its tags, or the padding is not zeros.
            OSError: it cannot be read.
        """
        entry = self._entry
        tags_at = entry.offset + entry.plain_bytes
        tags = self._read(tags_at, entry.offset + entry.length - tags_at)
        count = -(-entry.plain_bytes // SEGMENT_BYTES)
        if any(tags[count * TAG_BYTES :]):
            raise CorruptDataError("a block of the snapshot file is not padded by zeros")
        for number in range(count):
            at = entry.offset + number * SEGMENT_BYTES
            content = self._read(at, min(SEGMENT_BYTES, tags_at - at))
            tag = tags[number * TAG_BYTES : (number + 1) * TAG_BYTES]
            yield self._cipher.opened(content + tag, (at, _BLOCK), _context(entry, number))

    def fill(self, array: NDArray[np.generic]) -> None:
        """Read the next bytes into an array. Raises as `segments`."""
        target = array.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(target):
            if not self._rest:
                self._rest = memoryview(next(self._segments))
            taken = self._rest[: len(target) - done]
            target[done : done + len(taken)] = taken
            self._rest = self._rest[len(taken) :]
            done += len(taken)
