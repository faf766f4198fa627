"""What a message was analysed into: a small blob, and many of them as columns.

One blob belongs to one message. All numbers are little-endian. In this order:

  offset  size  what
  0       1     VERSION of the analysis: of this form, and of how texts become terms
  1       1     the language its words in Latin script were stemmed in: a `Language`
  2       1     flags; bit 0: the message asks something; the others 0
  3       1     a: number of author terms, AUTHOR_TERMS_MAX at most
  4       4     CRC-32 of the blob without these four bytes
  8       4     length: how many words the message has; a word counts once, whatever its parts
  12      4     n: number of distinct terms, TERMS_MAX at most
  16      4 a   terms of the author's name, ascending, each once
  ..      4 n   terms, ascending, each once
  ..      2 n   how often each is in the message, 1 to 65,535 (more is 65,535)
  ..      0, 2  zeros, to a multiple of 4 bytes

A term is the CRC-32 of its UTF-8 bytes: the same in every process and on every machine (Python's
`hash` is not), in the standard library, and the quickest of those; among 100,000 different terms
about one pair shares a number, and then two words of one partition are taken for each other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# To be raised with every change of what a text becomes, a new release of the stemmers included:
# messages of an older version are analysed anew when they are read.
VERSION = 1
TERMS_MAX = 131_072
AUTHOR_TERMS_MAX = 16
COUNT_MAX = 65_535
LENGTH_MAX = 0xFFFFFFFF

_HEADER = struct.Struct("<BBBBIII")
_HEADER_WORDS = _HEADER.size // 4
_ASKS = 1


def term_of(word: str) -> int:
    """The number of a term: 32 bits, equal for equal words."""
    return crc32(word.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class AnalysedColumns:
    """Analysed messages side by side; message i has the terms from start i to start i + 1.

    Attributes:
        lengths: shape (n,), uint32. Words of each message.
        languages: shape (n,), uint8. The `Language` of each.
        asks: shape (n,), bool. Whether it has a question in it.
        term_starts: shape (n + 1,), int64.
        terms, counts: shape (all terms,), uint32 and uint16; ascending terms inside a message.
        author_starts: shape (n + 1,), int64.
        author_terms: shape (all author terms,), uint32.
    """

    lengths: NDArray[np.uint32]
    languages: NDArray[np.uint8]
    asks: NDArray[np.bool_]
    term_starts: NDArray[np.int64]
    terms: NDArray[np.uint32]
    counts: NDArray[np.uint16]
    author_starts: NDArray[np.int64]
    author_terms: NDArray[np.uint32]


def pack(
    counts: Mapping[int, int],
    length: int,
    author_terms: Sequence[int],
    *,
    language: int,
    asks: bool,
) -> bytes:
    """One blob.

    Of more than TERMS_MAX terms those with the smallest numbers are kept: no part of the text is
    left out more than another.

    Args:
        counts: how often each term is in the message, 1 or more.
    """
    terms = sorted(counts)[:TERMS_MAX]
    authors = sorted(set(author_terms))[:AUTHOR_TERMS_MAX]
    n, a = len(terms), len(authors)
    values = [counts[term] if counts[term] < COUNT_MAX else COUNT_MAX for term in terms]
    if n & 1:
        values.append(0)
    body = struct.pack(f"<{a + n}I{len(values)}H", *authors, *terms, *values)
    flags = _ASKS if asks else 0
    length = min(length, LENGTH_MAX)
    checksum = crc32(body, crc32(struct.pack("<BBBBII", VERSION, language, flags, a, length, n)))
    return _HEADER.pack(VERSION, language, flags, a, checksum, length, n) + body


def is_current(analysed: bytes) -> bool:
    """Whether a blob is whole, undamaged and of this version."""
    if len(analysed) < _HEADER.size or analysed[0] != VERSION:
        return False
    _, _, _, a, checksum, _, n = _HEADER.unpack_from(analysed)
    if len(analysed) != _HEADER.size + 4 * (a + n) + 4 * ((n + 1) // 2):
        return False
    return bool(checksum == crc32(analysed[8:], crc32(analysed[:4])))


def unpack(analysed: Sequence[bytes]) -> AnalysedColumns:
    """Blobs as columns, in their order. Each must be current (`is_current`)."""
    joined = np.frombuffer(b"".join(analysed), dtype="<u4")
    sizes = np.fromiter(map(len, analysed), dtype=np.int64, count=len(analysed)) // 4
    starts = np.cumsum(sizes) - sizes
    first = joined[starts]
    authors = (first >> 24).astype(np.int64)
    terms = joined[starts + 3].astype(np.int64)
    of_terms = starts + _HEADER_WORDS + authors
    # Counts are 16 bits wide: their places are in halves of words.
    of_counts = 2 * (of_terms + terms)
    return AnalysedColumns(
        lengths=joined[starts + 2].astype(np.uint32),
        languages=((first >> 8) & 0xFF).astype(np.uint8),
        asks=((first >> 16) & _ASKS).astype(np.bool_),
        term_starts=_with_end(terms),
        terms=joined[_ranges(of_terms, terms)].astype(np.uint32),
        counts=joined.view("<u2")[_ranges(of_counts, terms)].astype(np.uint16),
        author_starts=_with_end(authors),
        author_terms=joined[_ranges(starts + _HEADER_WORDS, authors)].astype(np.uint32),
    )


class AnalysedMessage(NamedTuple):
    """One analysed message: `terms[i]` is in it `counts[i]` times; see `AnalysedColumns`."""

    length: int
    language: int
    asks: bool
    terms: tuple[int, ...]
    counts: tuple[int, ...]
    author_terms: tuple[int, ...]


def unpack_one(analysed: bytes) -> AnalysedMessage:
    """One blob, which must be current: of a few, this is quicker than columns."""
    _, language, flags, a, _, length, n = _HEADER.unpack_from(analysed)
    numbers = struct.unpack_from(f"<{a + n}I{n}H", analysed, _HEADER.size)
    return AnalysedMessage(
        length, language, bool(flags & _ASKS), numbers[a : a + n], numbers[a + n :], numbers[:a]
    )


def _with_end(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each range starts when they lie end to end, and where the last one ends."""
    out = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every position of ranges that start at `starts`, end to end."""
    ends = np.cumsum(lengths)
    positions = np.repeat(starts - (ends - lengths), lengths)
    positions += np.arange(len(positions), dtype=np.int64)
    return positions
