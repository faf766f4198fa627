"""Writes a snapshot file: complete and verified under its name, or not there at all.

Temporary file in the same directory, write, fsync, read back and compare, rename, fsync of the
directory. Afterwards only `erase` changes it, in place. Every call that changes the disk is made in
this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import xxhash

from ..encryption.segments import SALT_BYTES, FileCipher
from ..types.errors import (
    CorruptDataError,
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
)
from . import layout
from .layout import Entry
from .sealed_file import ErasableBlocks, ForeignFileError, SealedFile, UnreadableFileError
from .sealing import sealed_block, sealed_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ..types.values import PartitionImage

ERASED_BYTES_AT_ONCE = 1 << 20
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def error_of(problem: OSError) -> SemanticRecallError:
    """What the port promises to raise for a system error while writing."""
    if problem.errno in _DISK_FULL:
        return ResourceExhaustedError(
            "the disk has no room for a snapshot; the older ones stay", reason="DISK_FULL"
        )
    return UnavailableError(
        "a snapshot could not be written; the older ones stay", reason="SNAPSHOT_NOT_WRITTEN"
    )


def sync_directory(directory: Path) -> None:
    """Make names that came or went survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove those that are there and are files; raises OSError after it tried them all."""
    failed: OSError | None = None
    for path in paths:
        try:
            os.unlink(path)
        except (FileNotFoundError, IsADirectoryError):
            continue
        except OSError as problem:
            failed = problem
    if failed is not None:
        raise failed


def erase(path: Path, file_bytes: int, blocks: ErasableBlocks) -> None:
    """Overwrite blocks of a finished file and then their names; on disk when it returns.

    A crash leaves each block as it was, erased, or not matching its checksum.

    Args:
        path: where the file is.
        file_bytes: how large it must be.
        blocks: nobody reads them any more.

    Raises:
        OSError: some of them may be overwritten.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_size != file_bytes:
            raise OSError(errno.EIO, "the snapshot file is not as long as it was")
        for start, stop in blocks.blocks:
            _overwrite(fd, start, stop, layout.ERASED_MAGIC)
        os.fsync(fd)  # who finds no name relies on it that the block is erased
        for start, stop in blocks.names:
            _overwrite(fd, start, stop, b"")
        os.fsync(fd)
    finally:
        os.close(fd)


def _overwrite(fd: int, start: int, stop: int, marker: bytes) -> None:
    """Zeros behind a marker, the last bytes first."""
    for at in reversed(range(start, stop, ERASED_BYTES_AT_ONCE)):
        content = marker if at == start else b""
        _write_at(fd, content.ljust(min(stop - at, ERASED_BYTES_AT_ONCE), b"\0"), at)


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of it: the system may take less at a time than it is given."""
    view = memoryview(data)
    while view:
        taken = os.pwrite(fd, view, offset)
        if taken <= 0:
            raise OSError(errno.EIO, "nothing was written")
        offset += taken
        view = view[taken:]


class NewFile:
    """A snapshot file that is being written, on one thread. Close it whatever happened."""

    def __init__(self, temporary: Path, owner: bytes, key: bytes | None = None) -> None:
        """Start the file. Its head is written last.

        Args:
            temporary: where it is written.
            owner: see `layout.owner_of`.
            key: of all encrypted files of the directory; None: it is a plain one.

        Raises:
            OSError: as do all methods here; the file is worth nothing then.
        """
        self._path = temporary
        self._owner = owner
        self._key = key
        self._head = layout.encode_head(owner)
        self._cipher: FileCipher | None = None
        if key is not None:
            salt = secrets.token_bytes(SALT_BYTES)
            self._head = layout.encode_head(owner, layout.SEALED_VERSION, salt)
            self._cipher = FileCipher(key, self._head)
        self._names: list[bytes] = []
        self._entries = bytearray()
        self._ids: list[str] = []
        self._offset = layout.HEAD_BYTES
        self._sealed = False
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(temporary, flags, 0o600)

    @property
    def resource_ids(self) -> list[str]:
        """Whose blocks it has, in their order."""
        return self._ids

    @property
    def block_bytes(self) -> int:
        """Length of its blocks."""
        return self._offset - layout.HEAD_BYTES

    def add(self, image: PartitionImage) -> None:
        """Append an image.

        Raises:
            InvalidArgumentError: the image's arrays do not fit each other or the format.
        """
        block = layout.encode_block(image)
        entry = Entry(
            offset=self._offset,
            length=0,
            checksum=0,
            name_checksum=0,
            rows=block.rows,
            dimensions=block.dimensions,
            id_bytes=block.id_bytes,
            generation_bytes=block.generation_bytes,
        )
        self._add(entry, image.resource_id, block.pieces)

    def copy(self, source: SealedFile, resource_id: str) -> bool:
        """Append a block of another file as it is; False, and nothing, where that is damaged."""
        entry = source.entry(source.index[resource_id])
        if self._cipher is not None:
            return self._copy_sealed(source, entry, resource_id)
        start = self._offset
        digest = xxhash.xxh3_64()
        chunks = source.block_chunks(entry)
        while True:
            try:
                chunk = next(chunks, None)
            except (CorruptDataError, OSError):  # of the source; our own writes are not in here
                self._offset = start
                return False
            if chunk is None:
                break
            self._append(chunk)
            digest.update(chunk)
        if digest.intdigest() != entry.checksum:
            self._offset = start
            return False
        self._entries += replace(entry, offset=start).encoded()
        self._ids.append(resource_id)
        self._names.append(layout.encode_name(resource_id.encode()))
        return True

    def _copy_sealed(self, source: SealedFile, entry: Entry, resource_id: str) -> bool:
        """The same, encrypted for this file.

        What is written at a place is final, since a place is a nonce: so all of it is verified
        before, and read another time.
        """
        try:
            for _ in source.plain_block(entry):
                pass
        except (CorruptDataError, OSError):
            return False
        try:
            self._add(replace(entry, offset=self._offset), resource_id, source.plain_block(entry))
        except CorruptDataError:
            raise OSError(errno.EIO, "a block changed while it was copied") from None
        return True

    def _add(self, entry: Entry, resource_id: str, pieces: Iterable[bytes | memoryview]) -> None:
        name = resource_id.encode()
        if self._cipher is not None:
            pieces = sealed_block(self._cipher, entry, pieces)
            name = sealed_name(self._cipher, name, entry.offset)
        digest = xxhash.xxh3_64()
        for piece in pieces:
            self._append(piece)
            digest.update(piece)
        encoded_name = layout.encode_name(name)
        self._entries += replace(
            entry,
            length=self._offset - entry.offset,
            checksum=digest.intdigest(),
            name_checksum=layout.name_checksum(encoded_name),
        ).encoded()
        self._ids.append(resource_id)
        self._names.append(encoded_name)

    def seal(self, path: Path) -> SealedFile:
        """Give the file its name, after it is on disk and was read back and compared.

        Raises:
            UnavailableError: what was read back is not what was written.
        """
        footer = layout.encode_footer(self._head, self._offset, bytes(self._entries), self._names)
        if len(footer) > layout.FOOTER_BYTES_MAX:
            raise OSError(errno.EFBIG, "more resources than a snapshot file can name")
        self._append(footer)
        _write_at(self._fd, self._head, 0)
        os.ftruncate(self._fd, self._offset)  # a damaged block that was left out may lie behind
        os.fsync(self._fd)
        if hasattr(os, "posix_fadvise"):
            # What is compared comes from the disk then, and not from the memory it was put in.
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        sealed = self._read_back()
        os.rename(self._path, path)
        try:
            sync_directory(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        self._sealed = True
        sealed.path = path
        return sealed

    def close(self) -> None:
        """Let go of the file, and remove it if it was not sealed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not self._sealed:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _append(self, data: bytes | memoryview) -> None:
        _write_at(self._fd, data, self._offset)
        self._offset += len(data)

    def _read_back(self) -> SealedFile:
        """Read everything back: the directory as a start would, each block by its checksum."""
        try:
            written = SealedFile(self._path, self._owner, self._key)
            if written.encoded_entries() != bytes(self._entries) or list(written.index) != list(
                dict.fromkeys(self._ids)
            ):
                raise CorruptDataError("the directory read back is another one")
            for entry in written.all_entries():
                digest = xxhash.xxh3_64()
                for chunk in written.block_chunks(entry):
                    digest.update(chunk)
                if digest.intdigest() != entry.checksum:
                    raise CorruptDataError("a block read back is another one")
            return written
        except (CorruptDataError, ForeignFileError, UnreadableFileError):
            raise UnavailableError(
                "a snapshot read back from the disk is not what was written; the older ones stay",
                reason="SNAPSHOT_NOT_WRITTEN",
            ) from None
