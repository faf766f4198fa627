"""The bytes of a snapshot file. All numbers are little endian; all checksums are XXH3 (64 bits).

    <directory>/0000000000000042.snapshot    sixteen digits that only grow; once it is named, only
                                             erasing changes it
    <directory>/0000000000000043.tmp         being written; worth nothing after a crash

    file      head | block | ... | footer | trailer          (nothing before, between or after)

    head      64 bytes
              magic "SRSNAPSH" (8) | version (uint32) | zeros (4) | SHA-256 of the store id (32)
              | zeros (8) | checksum of these 56 bytes (8)
              The same in every version, so that any version tells whose a file is.

    block     one resource's partition; starts and ends at a multiple of 64
              magic "SRPARTIT" (8) | n, its rows (uint64) | d, its dimensions (uint32)
              | r, bytes of the resource id (uint16) | g, bytes of the generation (uint16)
              | scale_clip (float64)
              resource id (r) | generation (g), both UTF-8
              seqs, thread_keys, times_ns, chunks, revisions, checksums (n int64 each)
              | errors (n float32) | roles (n uint8)
              codes (n x d uint8)
              zeros up to a multiple of 64
              vectors (n x d float32), 64-byte aligned for whoever maps the file
              zeros up to a multiple of 64

    footer    the head once more, then an entry a block in the order of the blocks:
              offset (uint64) | length (uint64) | checksum of the block (uint64)
              | checksum of the name (uint64) | n (uint64) | d (uint32) | r (uint16) | g (uint16)
              then the names, one after another: "=" (1) | resource id (r)

    trailer   40 bytes
              offset of the footer (uint64) | its length (uint64) | entries (uint64)
              | checksum of the footer up to its names and of these 24 bytes (uint64)
              | magic "SRSNAPND" (8)

    erased    a block whose resource was forgotten: "SRERASED" (8) and zeros, as long as it was;
              its name: zeros. What the footer says of its length holds on, its checksums do not

encrypted  where the directory is: version 3. The same, but
          head    | 12 random bytes instead of the zeros: the file has a key of its own
          block   encrypted in segments of 1 MiB, the last one shorter; behind it the tag of each
                  (16), and zeros up to a multiple of 64
          names   "=" (1) | resource id, encrypted (r) | tag (16)
          Checksums are those of the bytes as they stand in the file. A segment opens at its place
          of its file only, for the sizes that its entry says (sealing.py, encryption/segments.py)

Every byte is under a checksum or compared with a constant. A footer is verified when its file is
opened, a block each time it is read. Which block of a resource counts: the last one of the file
with the highest number among those that have one.

A block is on disk as an erased one before its name is overwritten: whoever finds no name need not
look at the block. The first bytes of a block are overwritten last: one that was cut off in between
does not match its checksum. A block that is erased and still has its name is no damage.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from ..encryption.segments import TAG_BYTES
from ..types.errors import CorruptDataError, InvalidArgumentError
from ..types.values import PartitionImage, PartitionRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ..types.values import ByteColumn, FloatRows, IntColumn

    NameOpener = Callable[[bytes, int], bytes]

VERSION = 2
SEALED_VERSION = 3
SEGMENT_BYTES = 1 << 20
ERASED_MAGIC = b"SRERASED"
ALIGNMENT = 64
HEAD_BYTES = 64
TRAILER_BYTES = 40
FOOTER_BYTES_MAX = 1 << 30  # some millions of resources in one file
ROWS_MAX = 1 << 32
DIMENSIONS_MAX = 1 << 16
TEXT_BYTES_MAX = (1 << 16) - 1

_HEAD = struct.Struct("<8sI4s32s8s")
_CHECKSUM = struct.Struct("<Q")
_PRELUDE = struct.Struct("<8sQIHHd")
_PLACE = struct.Struct("<QQQ")
_END = struct.Struct("<Q8s")
_NO_SALT = bytes(12)
_FILE_MAGIC = b"SRSNAPSH"
_BLOCK_MAGIC = b"SRPARTIT"
_END_MAGIC = b"SRSNAPND"
_NAMED = b"="
_INT_COLUMNS = ("seqs", "thread_keys", "times_ns", "chunks", "revisions", "checksums")
_MAPPED_COLUMNS = ("times_ns", "checksums")
_COLUMN_BYTES = len(_INT_COLUMNS) * 8 + 4 + 1

_ENTRY = struct.Struct("<QQQQQIHH")
_ENTRY_COLUMNS = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u8"),
        ("checksum", "<u8"),
        ("name_checksum", "<u8"),
        ("rows", "<u8"),
        ("dimensions", "<u4"),
        ("id_bytes", "<u2"),
        ("generation_bytes", "<u2"),
    ]
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one block is, and what its file's footer says of it."""

    offset: int
    length: int
    checksum: int
    name_checksum: int
    rows: int
    dimensions: int
    id_bytes: int
    generation_bytes: int

    def encoded(self) -> bytes:
        """As it stands in a footer."""
        return _ENTRY.pack(
            self.offset,
            self.length,
            self.checksum,
            self.name_checksum,
            self.rows,
            self.dimensions,
            self.id_bytes,
            self.generation_bytes,
        )

    @property
    def plain_bytes(self) -> int:
        """Length of the block before it is encrypted."""
        names = self.id_bytes + self.generation_bytes
        front = _PRELUDE.size + names + self.rows * (_COLUMN_BYTES + self.dimensions)
        return aligned(front) + aligned(self.vector_bytes)

    @property
    def seqs_offset(self) -> int:
        """Where in the file the seqs begin."""
        return self.offset + _PRELUDE.size + self.id_bytes + self.generation_bytes

    @property
    def vector_bytes(self) -> int:
        """Length of the vectors alone."""
        return self.rows * self.dimensions * 4

    @property
    def vector_offset(self) -> int:
        """Where in the file the vectors begin."""
        return self.offset + self.length - aligned(self.vector_bytes)


@dataclass(frozen=True, slots=True)
class Head:
    """What the first bytes of a file say.

    Attributes:
        owner: SHA-256 of the store's id.
        salt: 12 bytes, random in an encrypted file.
    """

    version: int
    owner: bytes
    salt: bytes


@dataclass(frozen=True, slots=True)
class Trailer:
    """Where the footer is, from the file's last bytes; worth what the footer's checksum says."""

    footer_offset: int
    footer_bytes: int
    entries: int
    checksum: int


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block that is not yet in a file.

    Attributes:
        pieces: to be written one after another, without copies of codes and vectors.
    """

    id_bytes: int
    generation_bytes: int
    rows: int
    dimensions: int
    pieces: tuple[bytes | memoryview, ...]


@dataclass(frozen=True, slots=True)
class BlockArrays:
    """What stands before the vectors of a block, each section an array of its own to be filled.

    Attributes:
        prelude: the fixed numbers, the resource id and the generation.
        padding: the zeros before the vectors.
    """

    prelude: ByteColumn
    ints: dict[str, IntColumn]
    errors: FloatRows
    roles: ByteColumn
    codes: ByteColumn
    padding: ByteColumn

    @classmethod
    def of(cls, entry: Entry) -> BlockArrays:
        """Arrays of the sizes that the block's sections have."""
        count = entry.rows
        prelude = np.empty(_PRELUDE.size + entry.id_bytes + entry.generation_bytes, np.uint8)
        before = prelude.nbytes + count * (_COLUMN_BYTES + entry.dimensions)
        return cls(
            prelude=prelude,
            ints={name: np.empty(count, "<i8") for name in _INT_COLUMNS},
            errors=np.empty(count, "<f4"),
            roles=np.empty(count, np.uint8),
            codes=np.empty((count, entry.dimensions), np.uint8),
            padding=np.empty(aligned(before) - before, np.uint8),
        )

    def sections(self) -> tuple[NDArray[np.generic], ...]:
        """In the order of the file."""
        return (
            self.prelude,
            *self.ints.values(),
            self.errors,
            self.roles,
            self.codes,
            self.padding,
        )

    def over(self, block: ByteColumn) -> BlockArrays:
        """The same with what is seldom read taken from the block's bytes, where they are.

        Those arrays need not be aligned: numpy reads them, a little slower.
        """
        ints = dict(self.ints)
        offset = self.prelude.nbytes
        for name, column in self.ints.items():
            if name in _MAPPED_COLUMNS:
                ints[name] = block[offset : offset + column.nbytes].view("<i8")
            offset += column.nbytes
        errors = block[offset : offset + self.errors.nbytes].view("<f4")
        offset += errors.nbytes
        return replace(
            self, ints=ints, errors=errors, roles=block[offset : offset + self.roles.nbytes]
        )

    def image(self, entry: Entry, resource_id: str, vectors: FloatRows) -> PartitionImage:
        """The image, once the sections are filled and verified.

        Raises:
            CorruptDataError: the block is another resource's, or not what its footer says.
        """
        prelude = self.prelude.tobytes()
        said = _PRELUDE.unpack_from(prelude)
        names = prelude[_PRELUDE.size :]
        sizes = (entry.rows, entry.dimensions, entry.id_bytes, entry.generation_bytes)
        if said[:5] != (_BLOCK_MAGIC, *sizes) or names[: entry.id_bytes] != resource_id.encode():
            raise CorruptDataError("a block of the snapshot file is not what its directory says")
        try:
            generation = names[entry.id_bytes :].decode()
        except UnicodeDecodeError:
            raise CorruptDataError("a block of the snapshot file names no generation") from None
        rows = PartitionRows(**self.ints, roles=self.roles, vectors=vectors)
        return PartitionImage(resource_id, generation, rows, self.codes, self.errors, said[5])


def aligned(offset: int) -> int:
    """The next multiple of 64."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def owner_of(store_id: str) -> bytes:
    """How a file names the store that it belongs to."""
    return hashlib.sha256(store_id.encode()).digest()


def encode_head(owner: bytes, version: int = VERSION, salt: bytes = _NO_SALT) -> bytes:
    """The first 64 bytes of a file."""
    body = _HEAD.pack(_FILE_MAGIC, version, salt[:4], owner, salt[4:])
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def parse_head(data: bytes) -> Head | None:
    """What a head says; None where it is damaged or is none."""
    if len(data) != HEAD_BYTES:
        return None
    magic, version, first, owner, second = _HEAD.unpack_from(data)
    salt: bytes = first + second
    if magic != _FILE_MAGIC or encode_head(owner, version, salt) != data:
        return None
    return None if version < SEALED_VERSION and any(salt) else Head(version, owner, salt)


def encode_footer(head: bytes, footer_offset: int, entries: bytes, names: Sequence[bytes]) -> bytes:
    """Footer and trailer of a file whose blocks end at `footer_offset`; all parts are encoded."""
    fixed = head + entries
    footer = b"".join((fixed, *names))
    place = _PLACE.pack(footer_offset, len(footer), len(names))
    return footer + place + _END.pack(_footer_checksum(fixed, place), _END_MAGIC)


def encode_name(name: bytes) -> bytes:
    """A resource id, encrypted or not, as it stands in a footer; never all zeros."""
    return _NAMED + name


def name_checksum(encoded_name: bytes) -> int:
    """What an entry says of its name."""
    return xxhash.xxh3_64_intdigest(encoded_name)


def parse_trailer(data: bytes, file_bytes: int) -> Trailer:
    """Where the footer is.

    Raises:
        CorruptDataError: it is not a trailer, or does not fit a file of this size.
    """
    if len(data) != TRAILER_BYTES or data[-len(_END_MAGIC) :] != _END_MAGIC:
        raise CorruptDataError("the snapshot file has no end")
    footer_offset, footer_bytes, entries = _PLACE.unpack_from(data)
    checksum, _ = _END.unpack_from(data, _PLACE.size)
    trailer = Trailer(footer_offset, footer_bytes, entries, checksum)
    if (
        trailer.footer_offset + trailer.footer_bytes + TRAILER_BYTES != file_bytes
        or trailer.footer_offset < HEAD_BYTES
        or not HEAD_BYTES <= trailer.footer_bytes <= FOOTER_BYTES_MAX
        or trailer.entries * _ENTRY.size + HEAD_BYTES > trailer.footer_bytes
    ):
        raise CorruptDataError("the end of the snapshot file does not fit its size")
    return trailer


def parse_footer(
    footer: bytes, trailer: Trailer, open_name: NameOpener | None = None
) -> tuple[NDArray[np.void], list[str | None]]:
    """The entries and their resource ids, verified: blocks follow each other without gaps.

    The id of an erased block is None.

    Args:
        footer, trailer: as they stand in the file.
        open_name: of an encrypted file: the name at (its bytes, the offset of its block).

    Raises:
        CorruptDataError: anything else.
    """
    place = _PLACE.pack(trailer.footer_offset, trailer.footer_bytes, trailer.entries)
    names_at = HEAD_BYTES + trailer.entries * _ENTRY.size
    if (
        len(footer) != trailer.footer_bytes
        or _footer_checksum(footer[:names_at], place) != trailer.checksum
    ):
        raise CorruptDataError("the directory of the snapshot file does not match its checksum")
    table = np.frombuffer(footer, _ENTRY_COLUMNS, trailer.entries, HEAD_BYTES)
    ends = table["offset"] + table["length"]
    starts = np.concatenate(([np.uint64(HEAD_BYTES)], ends))
    if (
        not np.array_equal(table["offset"], starts[:-1])
        or int(starts[-1]) != trailer.footer_offset
        or np.any(table["rows"] > ROWS_MAX)
        or np.any(table["dimensions"] > DIMENSIONS_MAX)
        or not np.array_equal(table["length"], _lengths(table, sealed=open_name is not None))
    ):
        raise CorruptDataError("the directory of the snapshot file contradicts itself")
    return table, _resource_ids(footer[names_at:], table, open_name)


def name_stops(table: NDArray[np.void], *, sealed: bool) -> IntColumn:
    """Where each name ends, from the start of the first."""
    around = len(_NAMED) + (TAG_BYTES if sealed else 0)
    return np.cumsum(table["id_bytes"].astype(np.int64) + around)


def _resource_ids(
    names: bytes, table: NDArray[np.void], open_name: NameOpener | None
) -> list[str | None]:
    stops = name_stops(table, sealed=open_name is not None).tolist()
    if (stops[-1] if stops else 0) != len(names):
        raise CorruptDataError("the directory of the snapshot file contradicts itself")
    found: list[str | None] = []
    start = 0
    columns = (stops, table["name_checksum"].tolist(), table["offset"].tolist())
    for stop, checksum, offset in zip(*columns, strict=True):
        name = names[start:stop]
        start = stop
        if name.startswith(_NAMED) and xxhash.xxh3_64_intdigest(name) == checksum:
            held = name[len(_NAMED) :]
            try:
                found.append((held if open_name is None else open_name(held, offset)).decode())
            except UnicodeDecodeError:
                raise CorruptDataError("a snapshot file names a resource that is no text") from None
        elif any(name):
            raise CorruptDataError("a name in the snapshot file does not match its checksum")
        else:
            found.append(None)
    return found


def entries_of(table: NDArray[np.void]) -> Iterator[Entry]:
    """A footer's entries, made one at a time."""
    return itertools.starmap(Entry, _ENTRY.iter_unpack(table.view(np.uint8).data))


def encode_block(image: PartitionImage) -> EncodedBlock:
    """A resource's partition as it is written.

    Raises:
        InvalidArgumentError: the image's arrays do not fit each other or the format.
    """
    rows = image.rows
    count, dimensions = rows.vectors.shape if rows.vectors.ndim == 2 else (-1, -1)
    columns = [getattr(rows, name) for name in _INT_COLUMNS]
    resource_id, generation = _utf8(image.resource_id), _utf8(image.generation)
    if (
        count < 0
        or any(column.shape != (count,) for column in (*columns, rows.roles, image.errors))
        or any(column.dtype != np.int64 for column in columns)
        or any(column.dtype != np.uint8 for column in (rows.roles, image.codes))
        or any(column.dtype != np.float32 for column in (rows.vectors, image.errors))
        or image.codes.shape != (count, dimensions)
        or count > ROWS_MAX
        or dimensions > DIMENSIONS_MAX
        or resource_id is None
        or generation is None
    ):
        raise InvalidArgumentError.of("images", "arrays or names that no block can hold")
    prelude = _PRELUDE.pack(
        _BLOCK_MAGIC, count, dimensions, len(resource_id), len(generation), image.scale_clip
    )
    little = [np.ascontiguousarray(column, "<i8").data for column in columns]
    errors = np.ascontiguousarray(image.errors, "<f4").data
    roles = np.ascontiguousarray(rows.roles).data
    front = b"".join((prelude, resource_id, generation, *little, errors, roles))
    # One dimension: a view of bytes can be made of it, also when it is empty.
    codes = np.ascontiguousarray(image.codes).reshape(-1)
    vectors = np.ascontiguousarray(rows.vectors, "<f4").reshape(-1).view(np.uint8)
    before = len(front) + codes.nbytes
    gap, rest = aligned(before) - before, -vectors.nbytes % ALIGNMENT
    pieces = (front, codes.data, bytes(gap), vectors.data, bytes(rest))
    return EncodedBlock(len(resource_id), len(generation), count, dimensions, pieces)


def _footer_checksum(fixed: bytes, place: bytes) -> int:
    digest = xxhash.xxh3_64(fixed)
    digest.update(place)
    return digest.intdigest()


def _lengths(table: NDArray[np.void], *, sealed: bool) -> NDArray[np.uint64]:
    """How long the blocks of a footer must be, given their sizes."""
    rows, dimensions = table["rows"], table["dimensions"].astype(np.uint64)
    names = table["id_bytes"].astype(np.uint64) + table["generation_bytes"]
    front = np.uint64(_PRELUDE.size) + names + rows * (np.uint64(_COLUMN_BYTES) + dimensions)
    unit = np.uint64(ALIGNMENT)
    vectors = rows * dimensions * np.uint64(4)
    units: NDArray[np.uint64] = (front + unit - 1) // unit + (vectors + unit - 1) // unit
    if sealed:
        segment = np.uint64(SEGMENT_BYTES)
        tags = (units * unit + segment - 1) // segment * np.uint64(TAG_BYTES)
        units += (tags + unit - 1) // unit
    return units * unit


def _utf8(text: str) -> bytes | None:
    """None for what is no Unicode text, or too long for a block."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return None
    return data if len(data) <= TEXT_BYTES_MAX else None
