"""A second reader of analysed messages, written from the format and not from the code."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True)
class Blob:
    version: int
    language: int
    asks: bool
    length: int
    authors: set[int]
    counts: dict[int, int]


def read_blob(blob: bytes) -> Blob:
    version, language, flags, a, checksum, length, n = struct.unpack_from("<BBBBIII", blob)
    assert checksum == crc32(blob[:4] + blob[8:])
    authors = struct.unpack_from(f"<{a}I", blob, 16)
    terms = struct.unpack_from(f"<{n}I", blob, 16 + 4 * a)
    counts = struct.unpack_from(f"<{n}H", blob, 16 + 4 * a + 4 * n)
    assert len(blob) == 16 + 4 * a + 4 * n + 2 * n + 2 * (n % 2)
    assert list(terms) == sorted(set(terms))
    assert list(authors) == sorted(set(authors))
    assert flags in (0, 1)
    return Blob(
        version=version,
        language=language,
        asks=flags == 1,
        length=length,
        authors=set(authors),
        counts=dict(zip(terms, counts, strict=True)),
    )


def terms(*words: str) -> set[int]:
    """The numbers of terms that are spelled so."""
    return {crc32(word.encode()) for word in words}
