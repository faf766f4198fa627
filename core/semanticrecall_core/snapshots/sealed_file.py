"""A finished snapshot file: read only after what is read was verified.

Blocks are verified through `pread`, also those that are mapped afterwards: a bad sector or a file
cut short is then an error that can be handled, where touching the map would end the process.

Nothing changes but a block that is erased, and that only while nobody looks at it: a reader makes
its view of a block before it verifies the block, and `take_out` gives none away of which there is a
view. Who reads an erased block into memory meanwhile finds that it does not match its checksum.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

from ..encryption.segments import FileCipher
from ..types.errors import CorruptDataError
from . import layout
from .layout import BlockArrays, Entry
from .sealing import OpenedBlock, opened_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from ..types.values import FloatRows, IntColumn, PartitionImage

COPIED_BYTES_AT_ONCE = 1 << 20
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # never waits for a FIFO


class ForeignFileError(Exception):
    """Raised when a file belongs to another store."""


class UnreadableFileError(Exception):
    """Raised when a file cannot be used.

    Attributes:
        why: "version", "damaged" or "not_readable".
        ours: the file says that it is this store's.
    """

    def __init__(self, why: str, *, ours: bool) -> None:
        super().__init__(why)
        self.why = why
        self.ours = ours


class ErasableBlocks(NamedTuple):
    """Blocks that nobody reads any more.

    Attributes:
        blocks, names: where they start and stop in the file; at least one byte each.
    """

    blocks: list[tuple[int, int]]
    names: list[tuple[int, int]]


class SealedFile:
    """One verified file. Thread-safe; its descriptor is open as long as anybody uses it.

    Attributes:
        path, bytes: where it is and how large.
        block_bytes: length of all its blocks, the erased ones too.
        index: resource id to the position of its last block in the file.
    """

    __slots__ = (
        "__weakref__",
        "_cipher",
        "_earlier",
        "_fd",
        "_lengths",
        "_lock",
        "_map",
        "_names_offset",
        "_rows",
        "_table",
        "_views",
        "block_bytes",
        "bytes",
        "index",
        "path",
    )

    def __init__(self, path: Path, owner: bytes, key: bytes | None = None) -> None:
        """Open a file and verify its footer.

        Args:
            path: where it is.
            owner: see `layout.owner_of`.
            key: of all encrypted files of the directory; None: they are plain.

        Raises:
            ForeignFileError: it is another store's.
            UnreadableFileError: of another version, damaged, or not readable.
        """
        self.path = path
        self._cipher: FileCipher | None = None
        self._map: mmap.mmap | None = None
        self._lock = threading.Lock()
        self._views: dict[int, list[weakref.ref[NDArray[np.uint8]]]] = {}  # given of each block
        try:
            self._fd = os.open(path, _OPEN_FLAGS)
        except OSError:
            raise UnreadableFileError("not_readable", ours=False) from None
        weakref.finalize(self, os.close, self._fd)
        try:
            status = os.fstat(self._fd)
            self.bytes = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableFileError("not_readable", ours=False)
            self._table, ids = self._verified_footer(owner, key)
        except OSError:
            raise UnreadableFileError("not_readable", ours=False) from None
        self._lengths = self._table["length"]
        self._rows = self._table["rows"]
        self.block_bytes = int(self._lengths.sum())
        self.index: dict[str, int] = {}
        self._earlier: dict[str, list[int]] = {}  # other blocks of a resource; nearly always none
        for position, name in enumerate(ids):
            if name is None:
                continue
            if name in self.index:
                self._earlier.setdefault(name, []).append(self.index[name])
            self.index[name] = position

    def entry(self, position: int) -> Entry:
        """What the footer says of one block."""
        return Entry(*self._table[position].item())

    def length_of(self, resource_id: str) -> int:
        """Bytes of a resource's last block."""
        return int(self._lengths[self.index[resource_id]])

    def rows_of(self, resource_id: str) -> int:
        """Rows of a resource's last block."""
        return int(self._rows[self.index[resource_id]])

    def all_entries(self) -> Iterator[Entry]:
        """Every block, in the order of the file."""
        return layout.entries_of(self._table)

    def encoded_entries(self) -> bytes:
        """All of them as they stand in the footer."""
        return self._table.tobytes()

    def read(self, resource_id: str, *, mapped: bool) -> PartitionImage:
        """A resource's block, verified.

        Args:
            resource_id: one of `index`.
            mapped: the vectors, times, checksums, errors and roles are read-only views of the file
                and cost no memory of their own.

        Raises:
            CorruptDataError: it does not match its checksum, is another's, or was erased.
            OSError: it cannot be read.
        """
        with self._lock:
            position = self.index.get(resource_id)
            if position is None:
                raise CorruptDataError("the block was erased")
            entry = self.entry(position)
            block = self._view_of(position, entry) if mapped else None
        if self._cipher is not None:
            return _decrypted(self._opened(entry), entry, resource_id)
        arrays = BlockArrays.of(entry)
        digest = xxhash.xxh3_64()
        offset = entry.offset
        for section in arrays.sections():
            offset = self._fill(section, offset, digest)
        shape = (entry.rows, entry.dimensions)
        if block is None:
            vectors: FloatRows = np.empty(shape, "<f4")
            offset = self._fill(vectors, offset, digest)
        else:
            start = entry.vector_offset - entry.offset
            vectors = block[start : start + entry.vector_bytes].view("<f4").reshape(shape)
        for chunk in self._chunks(offset, entry.offset + entry.length):
            digest.update(chunk)
        if digest.intdigest() != entry.checksum:
            raise CorruptDataError("a block of the snapshot file does not match its checksum")
        if block is not None:
            arrays = arrays.over(block)
        return arrays.image(entry, resource_id, vectors)

    def seqs_of(self, resource_id: str) -> list[IntColumn]:
        """The seqs of each of a resource's blocks, not verified.

        Raises:
            CorruptDataError: the file ends before they do.
            OSError: they cannot be read.
        """
        with self._lock:
            entries = [self.entry(position) for position in self._positions(resource_id)]
        if self._cipher is not None:
            return self._sound_seqs(entries)
        return [
            np.frombuffer(self._bytes_at(entry.seqs_offset, entry.rows * 8), "<i8")
            for entry in entries
        ]

    def _sound_seqs(self, entries: Sequence[Entry]) -> list[IntColumn]:
        """Those of encrypted blocks; one that cannot be decrypted keeps the others from nobody."""
        found: list[IntColumn] = []
        for entry in entries:
            with suppress(CorruptDataError):
                found.append(_decrypted_seqs(self._opened(entry), entry))
        return found

    def is_erased(self, resource_id: str) -> bool:
        """Whether a resource's last block is an erased one.

        Raises:
            CorruptDataError: the file ends before the block does.
            OSError: it cannot be read.
        """
        offset = self.entry(self.index[resource_id]).offset
        return self._bytes_at(offset, len(layout.ERASED_MAGIC)) == layout.ERASED_MAGIC

    def is_viewed(self, resource_id: str) -> bool:
        """Whether somebody has mapped arrays of a block of this resource."""
        with self._lock:
            return any(map(self._viewed, self._positions(resource_id)))

    def take_out(self, resource_ids: Iterable[str]) -> ErasableBlocks | None:
        """All blocks of these resources, which must be in `index` and are not from here on.

        None, and nothing changes, where somebody has mapped arrays of one.
        """
        ids = list(resource_ids)
        with self._lock:
            positions = [at for resource_id in ids for at in self._positions(resource_id)]
            if any(map(self._viewed, positions)):
                return None
            for resource_id in ids:
                del self.index[resource_id]
                self._earlier.pop(resource_id, None)
        # Where each name starts and, one further, where it ends.
        stops = layout.name_stops(self._table, sealed=self._cipher is not None)
        cuts = np.append(0, stops) + self._names_offset
        entries = [self.entry(position) for position in positions]
        return ErasableBlocks(
            blocks=[(entry.offset, entry.offset + entry.length) for entry in entries],
            names=[(int(cuts[at]), int(cuts[at + 1])) for at in positions],
        )

    def block_chunks(self, entry: Entry) -> Iterator[memoryview]:
        """A block's bytes, to be hashed and compared with its checksum by whoever takes them.

        Each chunk is gone with the next one.

        Raises:
            CorruptDataError: the file ends before the block does.
            OSError: it cannot be read.
        """
        return self._chunks(entry.offset, entry.offset + entry.length)

    def plain_block(self, entry: Entry) -> Iterator[bytes]:
        """A block of an encrypted file, decrypted and verified a segment at a time.

        Raises:
            CorruptDataError: it does not match its tags.
            OSError: it cannot be read.
        """
        return self._opened(entry).segments()

    def _opened(self, entry: Entry) -> OpenedBlock:
        assert self._cipher is not None
        return OpenedBlock(self._cipher, entry, self._bytes_at)

    def _chunks(self, start: int, stop: int) -> Iterator[memoryview]:
        scratch = memoryview(bytearray(min(COPIED_BYTES_AT_ONCE, stop - start)))
        while start < stop:
            got = os.preadv(self._fd, [scratch[: stop - start]], start)
            if got <= 0:
                raise CorruptDataError("the snapshot file is shorter than it was")
            yield scratch[:got]
            start += got

    def _fill(self, array: NDArray[np.generic], offset: int, digest: xxhash.xxh3_64) -> int:
        """Read an array from the file; returns the offset behind it."""
        view = array.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            got = os.preadv(self._fd, [view[done:]], offset + done)
            if got <= 0:
                raise CorruptDataError("the snapshot file is shorter than it was")
            done += got
        digest.update(view)
        return offset + done

    def _view_of(self, position: int, entry: Entry) -> NDArray[np.uint8]:
        """A block, read-only. Arrays over it keep the view; the view keeps the map and the file."""
        if self._map is None:
            try:
                self._map = mmap.mmap(self._fd, self.bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            except ValueError:
                raise CorruptDataError("the snapshot file is shorter than it was") from None
        view = np.frombuffer(self._map, np.uint8, entry.length, entry.offset)
        others = [ref for ref in self._views.get(position, ()) if ref() is not None]
        self._views[position] = [*others, weakref.ref(view)]
        return view

    def _positions(self, resource_id: str) -> list[int]:
        """All its blocks; the lock is held."""
        last = self.index.get(resource_id)
        return [] if last is None else [*self._earlier.get(resource_id, ()), last]

    def _viewed(self, position: int) -> bool:
        return any(ref() is not None for ref in self._views.get(position, ()))

    def _bytes_at(self, offset: int, length: int) -> bytes:
        return b"".join(self._chunks(offset, offset + length))

    def _verified_footer(
        self, owner: bytes, key: bytes | None
    ) -> tuple[NDArray[np.void], list[str | None]]:
        """Entries and ids, after head and footer were verified and are this store's.

        The head stands at both ends, so that a damaged one still tells whose the file is.
        """
        first = layout.parse_head(self._try_bytes(0, layout.HEAD_BYTES))
        if first is not None and first.owner != owner:
            raise ForeignFileError
        version = layout.VERSION if key is None else layout.SEALED_VERSION
        if first is not None and first.version != version:
            raise UnreadableFileError("version", ours=True)
        open_name = None
        if key is not None and first is not None:
            self._cipher = FileCipher(key, layout.encode_head(owner, version, first.salt))
            open_name = partial(opened_name, self._cipher)
        try:
            end = self.bytes - layout.TRAILER_BYTES
            trailer = layout.parse_trailer(self._try_bytes(end, layout.TRAILER_BYTES), self.bytes)
            footer = self._bytes_at(trailer.footer_offset, trailer.footer_bytes)
            parsed = layout.parse_footer(footer, trailer, open_name)
            self._names_offset = trailer.footer_offset + layout.HEAD_BYTES + parsed[0].nbytes
        except CorruptDataError:
            raise UnreadableFileError("damaged", ours=first is not None) from None
        second = layout.parse_head(footer[: layout.HEAD_BYTES])
        if first is None or second != first:
            raise UnreadableFileError("damaged", ours=second is not None and second.owner == owner)
        return parsed

    def _try_bytes(self, offset: int, length: int) -> bytes:
        """Those bytes, or none where the file does not have them."""
        if offset < 0 or offset + length > self.bytes:
            return b""
        return self._bytes_at(offset, length)


def _decrypted(block: OpenedBlock, entry: Entry, resource_id: str) -> PartitionImage:
    arrays = BlockArrays.of(entry)
    vectors: FloatRows = np.empty((entry.rows, entry.dimensions), "<f4")
    padding = np.empty(layout.aligned(entry.vector_bytes) - entry.vector_bytes, np.uint8)
    for section in (*arrays.sections(), vectors, padding):
        block.fill(section)
    return arrays.image(entry, resource_id, vectors)


def _decrypted_seqs(block: OpenedBlock, entry: Entry) -> IntColumn:
    seqs: IntColumn = np.empty(entry.rows, "<i8")
    for section in (np.empty(entry.seqs_offset - entry.offset, np.uint8), seqs):
        block.fill(section)
    return seqs
