"""The sums of cksumvfs, for files that SQLite wrote without them.

The target of VACUUM INTO gets them only from the moment at which its first page is written. Once
the copy is larger than the cache, pages are written before that, and have none. So they are
written afterwards, while nobody has the file open.

The sum of a page is two 32-bit numbers over the pairs (a, b) of its little-endian words, but the
last pair, which holds it: s1 += a + s2; s2 += b + s1 (https://sqlite.org/cksumvfs.html).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC: Final = b"SQLite format 3\x00"
_PAGE_SIZE_AT, _RESERVED_AT, _HEADER_BYTES = 16, 20, 100
_RESERVED = 8
_BYTES_AT_ONCE = 16 << 20


def complete(path: Path) -> int:
    """Write the sums that lack into a plain database that nobody has open; returns how many.

    One that is there and does not match stays, and is found when the page is read. A file whose
    pages keep none, or that is encrypted, stays as it is. The caller syncs it. Raises OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        header = os.pread(fd, _HEADER_BYTES, 0)
        if not header.startswith(_MAGIC) or header[_RESERVED_AT] != _RESERVED:
            return 0
        page_bytes = int.from_bytes(header[_PAGE_SIZE_AT : _PAGE_SIZE_AT + 2], "big")
        at_once = _BYTES_AT_ONCE // page_bytes * page_bytes
        written = 0
        for offset in range(0, os.fstat(fd).st_size, at_once):
            pages = np.frombuffer(bytearray(os.pread(fd, at_once, offset)), "<u4")
            pages = pages.reshape(-1, page_bytes // 4)
            sums = _sums(pages)
            lacking = np.flatnonzero(
                (pages[:, -2:] == 0).all(axis=1) & (pages[:, -2:] != sums).any(axis=1)
            )
            for page in lacking.tolist():
                place = offset + (page + 1) * page_bytes - _RESERVED
                os.pwrite(fd, sums[page].tobytes(), place)
            written += len(lacking)
        return written
    finally:
        os.close(fd)


def _sums(pages: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The sum of each page: shape (pages, 2)."""
    first = np.zeros(len(pages), "<u4")
    second = np.zeros(len(pages), "<u4")
    columns = np.ascontiguousarray(pages.T)
    for pair in range(len(columns) // 2 - 1):
        first += columns[2 * pair] + second
        second += columns[2 * pair + 1] + first
    return np.stack([first, second], axis=1)
