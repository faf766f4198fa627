"""Rows of `messages`: hashes, checksum, and the way back to a StoredMessage.

Formats (part of formats 2 and 3, schema.py); integers little endian:
  content_hash  blake2b, 16 bytes, of what the writer gave: role (uint8), then thread id, author,
                text, metadata JSON, payload type, group id (UTF-8) and payload, each after its
                length in bytes (uint32). Lengths first: no two contents share an input.
  text_hash     blake2b, 16 bytes, of the text in UTF-8.
  encoded       the whole message as the record's codec writes it (`record.codec`).
  checksum      crc32 of seq, resource_key, thread_key, create_time_ns, revision (int64), role,
                embeddable (uint8), the lengths in bytes of the names (5 x uint32), then resource
                id, thread id, id, group_id, metadata (UTF-8), then `encoded`. It holds keys and
                names: a row that turns up under another resource, or a resource or thread whose
                name has changed, is seen.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..types.errors import CorruptDataError
from ..types.stored_message import DecodeMessage
from ..types.values import MessageDraft, Role, StoredMessage

_CONTENT = struct.Struct("<B7I")
_NUMBERS = struct.Struct("<5q2B5I")

_ROLES = {int(role): role for role in Role}  # an enum's own look-up costs a microsecond

Keys = tuple[int, int, int, int, int, int, int]
Names = tuple[bytes, bytes, bytes, bytes, bytes]

# What every statement that reads whole messages selects, in the order `stored_message` wants.
# Names come as bytes: they are decoded after the checksum has been compared, so that damage to a
# name tells its row instead of failing the statement.
MESSAGE_COLUMNS = (
    "m.seq, m.resource_key, m.thread_key, m.create_time_ns, m.revision, m.role, m.embeddable,"
    " CAST(t.thread_id AS BLOB), CAST(m.id AS BLOB), CAST(m.group_id AS BLOB),"
    " CAST(coalesce(m.metadata, '') AS BLOB), m.encoded, m.checksum"
)
MESSAGE_COLUMNS_COUNT = 13
# What it selects them from, after what `m` is joined to.
MESSAGES = "messages m LEFT JOIN threads t ON t.thread_key = m.thread_key"
# Positions.
MESSAGE_REVISION, MESSAGE_EMBEDDABLE, MESSAGE_ID, MESSAGE_ENCODED = 4, 6, 8, 11


def content_hash(draft: MessageDraft) -> bytes:
    """Identity of what the writer gave; create_time is compared apart."""
    parts = [
        draft.thread_id.encode(),
        draft.author.encode(),
        draft.text.encode(),
        draft.metadata_json.encode(),
        draft.payload_type.encode(),
        draft.group_id.encode(),
        draft.payload,
    ]
    header = _CONTENT.pack(draft.role, *map(len, parts))
    return hashlib.blake2b(header + b"".join(parts), digest_size=16).digest()


def text_hash(text: str) -> bytes:
    """Identity of the text that vectors are made from."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def message_checksum(keys: Keys, names: Names, encoded: bytes) -> int:
    """The row's checksum.

    Args:
        keys: seq, resource_key, thread_key, create_time_ns, revision, role, embeddable.
        names: resource id, thread id, id, group_id, metadata; UTF-8.
        encoded: the message.
    """
    header = _NUMBERS.pack(*keys, *map(len, names))
    return zlib.crc32(encoded, zlib.crc32(b"".join((header, *names))))


def stored_message(row: tuple[Any, ...], resource_id: str, decode: DecodeMessage) -> StoredMessage:
    """A row of MESSAGE_COLUMNS (and what else follows) as a message of this resource.

    Raises:
        CorruptDataError: the checksum does not match, or the thread's row is gone. Names the seq.
    """
    (
        seq,
        resource_key,
        thread_key,
        time_ns,
        revision,
        number,
        embeddable,
        thread,
        message_id,
        group,
        metadata,
        encoded,
        checksum,
    ) = row[:MESSAGE_COLUMNS_COUNT]
    owner = resource_id.encode()
    try:
        # `message_checksum` written out: this runs for every message of every answer.
        header = _NUMBERS.pack(
            seq,
            resource_key,
            thread_key,
            time_ns,
            revision,
            number,
            embeddable,
            len(owner),
            len(thread),
            len(message_id),
            len(group),
            len(metadata),
        )
        names = b"".join((header, owner, thread, message_id, group, metadata))
        is_sound = zlib.crc32(encoded, zlib.crc32(names)) == checksum
    except (struct.error, TypeError):  # a number that no row can hold, or no thread
        is_sound = False
    role = _ROLES.get(number)
    if role is None or not is_sound:
        raise CorruptDataError(
            f"message row {seq} does not match its checksum; `semanticrecall verify --repair` sets "
            "it aside, a snapshot may have it"
        )
    return StoredMessage(
        seq,
        resource_id,
        thread.decode(),
        message_id.decode(),
        role,
        time_ns,
        metadata.decode(),
        group.decode(),
        revision,
        encoded,
        decode,
    )


def sound_messages(
    rows: Iterable[tuple[Any, ...]],
    resource_id: str,
    decode: DecodeMessage,
    damaged: Callable[[int], None],
) -> Iterator[StoredMessage]:
    """Rows of MESSAGE_COLUMNS as messages; those that are damaged are told and left out."""
    for row in rows:
        try:
            yield stored_message(row, resource_id, decode)
        except CorruptDataError:
            damaged(row[0])


def draft_of(message: StoredMessage) -> MessageDraft:
    """The message as its writer gave it, its time left out.

    Raises:
        CorruptDataError: see `StoredMessage.body`.
    """
    return MessageDraft(
        id=message.id,
        thread_id=message.thread_id,
        role=message.role,
        author=message.author,
        text=message.text,
        metadata_json=message.metadata_json,
        payload=message.payload,
        payload_type=message.payload_type,
        group_id=message.group_id,
    )


def shown(name: bytes | None) -> str:
    """A stored name that may be damaged, for a finding."""
    return (name or b"").decode(errors="replace")
