"""FORGOTTEN: which messages were forgotten after a snapshot of them was made.

It lies in the folder of the snapshots, is made with the first of them, and travels with them, so
that a restore leaves out what was forgotten although the store that knew of it may be gone. Records
are only ever added: a copy of an old snapshot can turn up at any time.

Format: records of 96 bytes from the start of the file on. A record is the same 48 bytes twice, so
that one damaged byte loses nothing; little endian:
  store_id (16, raw) | first seq (int64) | last seq (int64) | revision (int64) | checksum (8)
with checksum = blake2b-64 of the 40 bytes before it: all seqs from the first to the last were
removed by that revision of that store. What follows the last whole record was broken off by the
end of a process; it was never acknowledged, and the next record takes its place.

A record of which neither copy is sound is damage: what it named is not known. Until the ledger has
been replaced by a good copy, nothing is restored beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..types.errors import CorruptDataError
from ..types.saving import ForgottenMessage
from .files import sync_folder, translated_errors

LEDGER = "FORGOTTEN"
COPY_BYTES = 48
RECORD_BYTES = 2 * COPY_BYTES
_BODY = struct.Struct("<16sqqq")


class ForgottenRange(NamedTuple):
    """Messages of consecutive seqs that one change removed."""

    store_id: str
    first_seq: int
    last_seq: int
    revision: int


def ranges_of(messages: Iterable[ForgottenMessage]) -> list[ForgottenRange]:
    """The same messages, those of consecutive seqs together."""
    found: list[ForgottenRange] = []
    for store_id, seq, revision in sorted(messages, key=lambda m: (m.store_id, m.revision, m.seq)):
        last = found[-1] if found else None
        if last is not None and (last.store_id, last.revision) == (store_id, revision):
            if seq == last.last_seq:
                continue
            if seq == last.last_seq + 1:
                found[-1] = last._replace(last_seq=seq)
                continue
        found.append(ForgottenRange(store_id, seq, seq, revision))
    return found


class Ledger:
    """The file of one folder. Its reads and writes are short; used under the folder's lock."""

    def __init__(self, folder: Path) -> None:
        """The file need not be there: then nothing was forgotten."""
        self._path = folder / LEDGER

    def add(self, messages: Iterable[ForgottenMessage]) -> None:
        """Write these and sync them.

        Raises:
            ResourceExhaustedError: DISK_FULL.
            UnavailableError: the disk failed.
        """
        records = b"".join(2 * _encoded(each) for each in ranges_of(messages))
        if not records:
            return
        with translated_errors():
            is_new = not self._path.exists()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)  # two servers may share the folder
                end = os.fstat(fd).st_size // RECORD_BYTES * RECORD_BYTES
                _write_all(fd, records, end)
                os.fsync(fd)
            finally:
                os.close(fd)
            if is_new:
                sync_folder(self._path.parent)

    def is_missing(self) -> bool:
        """Whether there is no such file: what was forgotten is not known, unless nothing was."""
        return not os.path.lexists(self._path)

    def begin(self) -> None:
        """Make the file, empty, where it is missing; synced. Raises as `add`."""
        with translated_errors():
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o600)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            sync_folder(self._path.parent)

    def ranges(self, store_id: str) -> list[ForgottenRange]:
        """What was forgotten of a store.

        Raises:
            CorruptDataError: reason LEDGER_DAMAGED.
            UnavailableError: it cannot be read.
        """
        return [each for each in self._all() if each.store_id == store_id]

    def _all(self) -> Iterator[ForgottenRange]:
        with translated_errors():
            try:
                content = self._path.read_bytes()
            except FileNotFoundError:
                return
        for start in range(0, len(content) // RECORD_BYTES * RECORD_BYTES, RECORD_BYTES):
            record = content[start : start + RECORD_BYTES]
            copies = (record[:COPY_BYTES], record[COPY_BYTES:])
            sound = [found for found in map(_decoded, copies) if found is not None]
            if not sound:
                raise CorruptDataError(
                    f"record {start // RECORD_BYTES} of {LEDGER} in the folder of the snapshots is"
                    " damaged, so that it is not known what was forgotten; put a good copy of the"
                    " file there",
                    reason="LEDGER_DAMAGED",
                )
            yield sound[0]


def _write_all(fd: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(fd, content, offset)
        content, offset = content[written:], offset + written


def _encoded(forgotten: ForgottenRange) -> bytes:
    body = _BODY.pack(
        bytes.fromhex(forgotten.store_id),
        forgotten.first_seq,
        forgotten.last_seq,
        forgotten.revision,
    )
    return body + _checksum(body)


def _decoded(copy: bytes) -> ForgottenRange | None:
    body, checksum = copy[: _BODY.size], copy[_BODY.size :]
    if _checksum(body) != checksum:
        return None
    store_id, first, last, revision = _BODY.unpack(body)
    return ForgottenRange(store_id.hex(), first, last, revision)


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).digest()
