"""Rows of `vectors`: their checksum, and the way to and from arrays.

The checksum (part of formats 2 and 3, schema.py) is taken over whole columns at once. A row is the
words
  seq, chunk, resource_key, thread_key, create_time_ns, role, revision, generation_key
as 64-bit and the vector's float32 bits as 32-bit numbers; the checksum is the sum of word i times
multiplier i, modulo 2^64. Multipliers are the odd numbers `shake-256(_SEED)` gives, 8 bytes each,
little endian, lowest bit set. Odd multipliers make any change inside one word certain to be seen;
others pass with a chance of about 2^-64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..types.values import PartitionRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEED = b"semanticrecall vector row 1"
_NUMBERS = 8
_BLOCK_ROWS = 1024  # keeps the widened words in the processor's cache

# What every statement that reads vector rows selects, in the order `VectorColumns.of` wants.
VECTOR_COLUMNS = (
    "v.seq, v.chunk, v.resource_key, v.thread_key, v.create_time_ns, v.role, v.revision,"
    " v.generation_key, v.checksum, v.vector"
)


IMPOSSIBLE = (TypeError, ValueError, OverflowError)
"""What columns give rise to that hold something else than numbers and bytes."""


@dataclass(frozen=True, slots=True)
class VectorColumns:
    """Vector rows as columns; rows whose checksum does not match are told apart, not included.

    Attributes:
        numbers: shape (n, 8), int64, in the order of the module's comment.
        vectors: shape (n, dimensions), float32.
        checksums: shape (n,), int64.
        corrupt_seqs: messages with a damaged row, sorted.
    """

    numbers: NDArray[np.int64]
    vectors: NDArray[np.float32]
    checksums: NDArray[np.int64]
    corrupt_seqs: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> VectorColumns:
        """Check and convert rows of VECTOR_COLUMNS."""
        if not rows:
            numbers, none = np.empty((0, _NUMBERS), np.int64), np.empty(0, np.int64)
            return cls(numbers, np.empty((0, 0), np.float32), none, ())
        try:
            return cls._judged(rows, np.ones(len(rows), np.bool_))
        except IMPOSSIBLE:
            return cls._judged(*possible_rows(rows))

    @classmethod
    def _judged(
        cls, rows: Sequence[tuple[Any, ...]], is_possible: NDArray[np.bool_]
    ) -> VectorColumns:
        *columns, sums, stored = zip(*rows, strict=True)
        numbers = np.array(columns, np.int64).T
        blobs: Sequence[bytes] = stored
        bytes_each = max(len(blobs[0]) // 4 * 4, 4)
        fits = is_possible & np.array([len(blob) == bytes_each for blob in blobs])
        if not fits.all():
            blobs = [b if ok else bytes(bytes_each) for b, ok in zip(blobs, fits, strict=True)]
        vectors = np.frombuffer(b"".join(blobs), "<f4").reshape(len(rows), -1)
        checksums = np.array(sums, np.int64)
        sound = fits & (vector_checksums(numbers, vectors) == checksums)
        if sound.all():
            return cls(numbers, vectors, checksums, ())
        corrupt = tuple(sorted({int(seq) for seq in numbers[~sound, 0]}))
        whole = ~np.isin(numbers[:, 0], corrupt)
        return cls(numbers[whole], vectors[whole], checksums[whole], corrupt)

    def partition_rows(self) -> PartitionRows:
        """The rows as the vector index takes them."""
        numbers = self.numbers
        return PartitionRows(
            seqs=np.ascontiguousarray(numbers[:, 0]),
            thread_keys=np.ascontiguousarray(numbers[:, 3]),
            times_ns=np.ascontiguousarray(numbers[:, 4]),
            roles=numbers[:, 5].astype(np.uint8),
            chunks=np.ascontiguousarray(numbers[:, 1]),
            revisions=np.ascontiguousarray(numbers[:, 6]),
            vectors=self.vectors,
            checksums=self.checksums,
        )


def possible_rows(
    rows: Sequence[tuple[Any, ...]],
) -> tuple[Sequence[tuple[Any, ...]], NDArray[np.bool_]]:
    """Rows of numbers and one blob, and which of them are that.

    Damage below the checksums of pages can make anything of a column. Such a row is replaced by
    one of zeros that keeps its seq, if it has one.
    """
    is_possible = np.ones(len(rows), np.bool_)
    replaced: list[tuple[Any, ...]] | None = None
    for place, row in enumerate(rows):
        if type(row[-1]) is bytes and all(type(number) is int for number in row[:-1]):
            continue
        replaced = list(rows) if replaced is None else replaced
        seq = row[0] if type(row[0]) is int else 0
        replaced[place] = (seq, *(0 for _ in row[1:-1]), b"")
        is_possible[place] = False
    return rows if replaced is None else replaced, is_possible


def vector_checksums(numbers: NDArray[np.int64], vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Checksums of rows, shape (n,); `numbers` (n, 8) and `vectors` (n, dimensions)."""
    multipliers = _multipliers(_NUMBERS + vectors.shape[1])
    words = vectors.view("<u4")
    sums = np.ascontiguousarray(numbers).view(np.uint64) @ multipliers[:_NUMBERS]
    for start in range(0, len(words), _BLOCK_ROWS):
        block = words[start : start + _BLOCK_ROWS].astype(np.uint64)
        sums[start : start + _BLOCK_ROWS] += block @ multipliers[_NUMBERS:]
    return sums.view(np.int64)


@lru_cache(maxsize=8)
def _multipliers(count: int) -> NDArray[np.uint64]:
    stream = hashlib.shake_256(_SEED).digest(8 * count)
    return np.frombuffer(stream, "<u8") | np.uint64(1)
