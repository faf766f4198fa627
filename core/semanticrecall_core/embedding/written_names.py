"""Which names may be in the cache's file, told without a look at it.

A new text is in no file: it should not wait for SQLite to say so. Each name that was written sets
one of many bits; a name whose bit is not set was never written. Names are parts of digests, so that
any four bytes of them are as good as a hash. What is erased leaves its bit: it costs one look.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .cache_format import KEY_BYTES, OWNER_BYTES

_BITS_PER_ENTRY = 16
"""One name in 17 or more that were never written is looked for in a full file."""

_BITS_MIN = 1 << 10
_PLACE_BYTES = 4

BEGINNINGS_OF_KEYS = (
    f"SELECT group_concat(hex(substr(key, 1, {_PLACE_BYTES})), '') FROM entries"
    " WHERE key BETWEEN ? AND ?"
)
"""What `add_beginnings` wants of the file, in hexadecimal digits; from the index alone."""

KEY_RANGES = tuple((bytes((first,)), bytes((first,)) + b"\xff" * KEY_BYTES) for first in range(256))
"""All keys. Each range is read in a moment, so that no reader is in the way of a checkpoint."""


class WrittenNames:
    """Names of entries, as bits. Changed by one thread at a time, read by all.

    Until it has been told all that the file holds, it knows nothing: each name may be there.

    Args:
        entries_max: of the file; 2 to 4 bytes are held for each.
    """

    def __init__(self, entries_max: int) -> None:
        bits = _BITS_MIN
        while bits < min(entries_max * _BITS_PER_ENTRY, 1 << (8 * _PLACE_BYTES)):
            bits *= 2
        self._mask = bits - 1
        self._bits = bytearray(bits // 8)
        self.knows_all = False

    def may_have(self, name: bytes) -> bool:
        """False only for what is not in the file."""
        if not self.knows_all:
            return True
        place = int.from_bytes(name[OWNER_BYTES : OWNER_BYTES + _PLACE_BYTES]) & self._mask
        return bool(self._bits[place >> 3] & 1 << (place & 7))

    def add(self, names: Iterable[bytes]) -> None:
        """These are about to be written."""
        self.add_beginnings(
            b"".join(name[OWNER_BYTES : OWNER_BYTES + _PLACE_BYTES] for name in names)
        )

    def add_beginnings(self, beginnings: bytes) -> None:
        """The same, given the first four bytes of each key, one after the other."""
        places = np.frombuffer(beginnings, ">u4").astype(np.int64) & self._mask
        held = np.frombuffer(self._bits, np.uint8)
        np.bitwise_or.at(held, places >> 3, (1 << (places & 7)).astype(np.uint8))

    def begin_anew(self, *, is_empty: bool) -> None:
        """The file is another one; an empty one holds nothing that is not known."""
        self._bits = bytearray(len(self._bits))
        self.knows_all = is_empty
