"""Rows of `analyses`: their checksum, and the way to and from arrays.

`analysed` is what the analyser gave for the text and author of the message, opaque here; the rest
is the message's place, so that a resource is loaded without its messages.

The checksum (part of format 3, schema.py) is taken over whole columns at once. A row is the words
  seq, resource_key, thread_key, create_time_ns, role, revision, crc32 of analysed
as 64-bit numbers; the checksum is the sum of word i times multiplier i, modulo 2^64. Multipliers
are odd numbers, drawn as those of vector_rows.py are, from `shake-256(_SEED)`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np

from ..types.lexical import LexicalRows
from .vector_rows import IMPOSSIBLE, possible_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEED = b"semanticrecall analysis row 1"
_WORDS = 7
_MULTIPLIERS = np.frombuffer(hashlib.shake_256(_SEED).digest(8 * _WORDS), "<u8") | np.uint64(1)
_MULTIPLIERS_AS_INTS: tuple[int, ...] = tuple(_MULTIPLIERS.tolist())
_WORD_MASK = 2**64 - 1

SEQ, RESOURCE, THREAD, TIME, ROLE, REVISION = range(6)
"""Positions among the numbers of a row."""

# What every statement that reads these rows selects, in the order `AnalysisColumns.of` wants.
ANALYSIS_COLUMNS = (
    "a.seq, a.resource_key, a.thread_key, a.create_time_ns, a.role, a.revision, a.checksum,"
    " a.analysed"
)
ANALYSIS_COLUMNS_COUNT = 8


@dataclass(frozen=True, slots=True)
class AnalysisColumns:
    """Rows as columns; those whose checksum does not match are told apart, not included.

    Attributes:
        numbers: shape (n, 6), int64, in the order of the positions above.
        analysed: n times what the analyser gave.
        corrupt_seqs: messages with a damaged row, in the order of the rows.
    """

    numbers: NDArray[np.int64]
    analysed: tuple[bytes, ...]
    corrupt_seqs: tuple[int, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> AnalysisColumns:
        """Check and convert rows of ANALYSIS_COLUMNS."""
        if not rows:
            return cls(np.empty((0, _WORDS - 1), np.int64), ())
        try:
            return cls._judged(rows, np.ones(len(rows), np.bool_))
        except IMPOSSIBLE:
            return cls._judged(*possible_rows(rows))

    @classmethod
    def _judged(
        cls, rows: Sequence[tuple[Any, ...]], is_possible: NDArray[np.bool_]
    ) -> AnalysisColumns:
        *columns, sums, analysed = zip(*rows, strict=True)
        numbers = np.array(columns, np.int64).T
        sound = analysis_checksums(numbers, analysed) == np.array(sums, np.int64)
        sound &= is_possible
        whole = cls(numbers, analysed)
        if sound.all():
            return whole
        return whole.only(sound, tuple(numbers[~sound, SEQ].tolist()))

    def only(
        self, chosen: NDArray[np.bool_], corrupt_seqs: tuple[int, ...] = ()
    ) -> AnalysisColumns:
        """The chosen rows."""
        places = np.flatnonzero(chosen).tolist()
        analysed = tuple(self.analysed[place] for place in places)
        return AnalysisColumns(self.numbers[chosen], analysed, corrupt_seqs)

    def by_seq(self, more: AnalysisColumns) -> AnalysisColumns:
        """These rows and others, by seq."""
        numbers = np.concatenate([self.numbers, more.numbers])
        analysed = self.analysed + more.analysed
        order = np.argsort(numbers[:, SEQ], kind="stable")
        return AnalysisColumns(numbers[order], tuple(analysed[place] for place in order.tolist()))

    def lexical_rows(self) -> LexicalRows:
        """The rows as the lexical index takes them."""
        numbers = self.numbers
        return LexicalRows(
            seqs=np.ascontiguousarray(numbers[:, SEQ]),
            thread_keys=np.ascontiguousarray(numbers[:, THREAD]),
            times_ns=np.ascontiguousarray(numbers[:, TIME]),
            revisions=np.ascontiguousarray(numbers[:, REVISION]),
            roles=numbers[:, ROLE].astype(np.uint8),
            analysed=self.analysed,
        )


def analysis_checksum(numbers: Sequence[int], analysed: bytes) -> int:
    """The checksum of one row; of a few, this is quicker than `analysis_checksums`."""
    words = (*numbers, zlib.crc32(analysed))
    total: int = sum(map(mul, words, _MULTIPLIERS_AS_INTS)) & _WORD_MASK
    return total - (_WORD_MASK + 1) if total >> 63 else total


def analysis_checksums(numbers: NDArray[np.int64], analysed: Sequence[bytes]) -> NDArray[np.int64]:
    """Checksums of rows, shape (n,); `numbers` is (n, 6), in the order of the positions above."""
    blobs = np.fromiter(map(zlib.crc32, analysed), np.uint64, len(analysed))
    words = np.ascontiguousarray(numbers).view(np.uint64)
    sums: NDArray[np.uint64] = words @ _MULTIPLIERS[: _WORDS - 1] + blobs * _MULTIPLIERS[_WORDS - 1]
    return sums.view(np.int64)
