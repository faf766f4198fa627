"""MARK: how far the record was acknowledged, kept outside the database.

SQLite cannot tell a damaged tail of its log from a torn one: it opens with a shorter history and
says nothing. The mark makes that loss visible.

Promise: the mark is never ahead of what is durable in the database. After the death of the process
(kill -9) it is exact. After a power cut it may be up to `SYNC_INTERVAL_S` of acknowledged commits
behind: it is written at every commit and synced when the writer is idle or that time has passed,
because a second sync at each commit would double the commit's cost.

Format: two slots of 4,096 bytes; slot = revision modulo 2. In each, 48 bytes, little endian:
  magic "SRMARK01" (8) | store_id (16, raw) | revision (uint64) | zeros (8) | checksum (8)
with checksum = blake2b-64 of the 40 bytes before it. The valid slot with the highest revision
counts. The file has its full size before the first commit, so that a full disk does not stop it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

SYNC_INTERVAL_S = 1.0
_SLOT_BYTES = 4096
_BODY = struct.Struct("<8s16sQ8x")
_MAGIC = b"SRMARK01"


@dataclass(frozen=True, slots=True)
class Mark:
    """The last acknowledged revision of one store."""

    store_id: str
    revision: int


class HighWaterMark:
    """The open MARK file. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; OSError where that fails."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._dirty = False

    @property
    def dirty(self) -> bool:
        """Whether something was written and not yet synced."""
        return self._dirty

    def read(self) -> Mark | None:
        """The mark, None where there is none that can be read."""
        marks = [_decoded(os.pread(self._fd, 48, slot * _SLOT_BYTES)) for slot in (0, 1)]
        return max((m for m in marks if m is not None), key=lambda m: m.revision, default=None)

    def damaged_slots(self) -> int:
        """How many of the two slots do not hold a mark, in a file that is not new."""
        if not os.fstat(self._fd).st_size:
            return 0
        slots = (os.pread(self._fd, 48, slot * _SLOT_BYTES) for slot in (0, 1))
        return sum(_decoded(slot) is None for slot in slots)

    def start(self, mark: Mark) -> None:
        """Lay out both slots in full and sync them with their directory entry."""
        os.posix_fallocate(self._fd, 0, 2 * _SLOT_BYTES)
        other = Mark(mark.store_id, max(0, mark.revision - 1))
        for value in (other, mark):
            self.write(value)
        os.fsync(self._fd)
        self._dirty = False

    def write(self, mark: Mark) -> None:
        """Set the mark; survives the process at once, a power cut after `sync`."""
        body = _BODY.pack(_MAGIC, bytes.fromhex(mark.store_id), mark.revision)
        os.pwrite(self._fd, body + _digest(body), (mark.revision % 2) * _SLOT_BYTES)
        self._dirty = True

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        os.fdatasync(self._fd)
        self._dirty = False

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def damaged_slots(path: Path) -> int:
    """The same of a file that may not be there, and is not made; 0 where it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(2 * _SLOT_BYTES)
    except OSError:
        return 0
    slots = (content[start : start + 48] for start in (0, _SLOT_BYTES))
    return sum(_decoded(slot) is None for slot in slots) if content else 0


def _decoded(slot: bytes) -> Mark | None:
    if len(slot) != 48 or slot[:8] != _MAGIC or _digest(slot[:40]) != slot[40:]:
        return None
    _, store_id, revision = _BODY.unpack(slot[:40])
    return Mark(store_id.hex(), revision)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).digest()
