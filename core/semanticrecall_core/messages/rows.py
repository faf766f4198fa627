"""Rows of `messages`: hashes, checksum, and the way back to a StoredMessage.

Formats (part of format 1, schema.py); integers little endian:
  content_hash  blake2b, 16 bytes, of what the writer gave: role (uint8), then thread id, author,
                text, metadata JSON, payload type, group id (UTF-8) and payload, each after its
                length in bytes (uint32). Lengths first: no two contents share an input.
  text_hash     blake2b, 16 bytes, of the text in UTF-8.
  checksum      crc32 of seq, resource_key, thread_key, create_time_ns, revision (int64), role,
                embeddable (uint8), the lengths in characters of the texts (6 x uint32), then id,
                author, text, metadata, payload_type, group_id joined (UTF-8), then payload.
                It holds the keys too: a row that turns up under another resource is seen.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Any

from ..types.errors import CorruptDataError
from ..types.values import MessageDraft, Role, StoredMessage

_CONTENT = struct.Struct("<B7I")
_NUMBERS = struct.Struct("<5q2B6I")

_ROLES = {int(role): role for role in Role}  # an enum's own look-up costs a microsecond

Keys = tuple[int, int, int, int, int, int, int]
Texts = tuple[str, str, str, str, str, str]

# What every statement that reads whole messages selects, in the order `stored_message` wants.
MESSAGE_COLUMNS = (
    "m.seq, m.resource_key, m.thread_key, m.create_time_ns, m.revision, m.role, m.embeddable,"
    " m.id, m.author, m.text, coalesce(m.metadata, ''), m.payload_type, m.group_id,"
    " m.payload, m.checksum,"
    " (SELECT t.thread_id FROM threads t WHERE t.thread_key = m.thread_key)"
)


def content_hash(draft: MessageDraft) -> bytes:
    """Identity of what the writer gave; create_time is compared apart."""
    parts = [
        part.encode()
        for part in (
            draft.thread_id,
            draft.author,
            draft.text,
            draft.metadata_json,
            draft.payload_type,
            draft.group_id,
        )
    ]
    parts.append(draft.payload)
    header = _CONTENT.pack(draft.role, *map(len, parts))
    return hashlib.blake2b(header + b"".join(parts), digest_size=16).digest()


def text_hash(text: str) -> bytes:
    """Identity of the text that vectors are made from."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def message_checksum(keys: Keys, texts: Texts, payload: bytes) -> int:
    """The row's checksum.

    Args:
        keys: seq, resource_key, thread_key, create_time_ns, revision, role, embeddable.
        texts: id, author, text, metadata, payload_type, group_id.
    """
    header = _NUMBERS.pack(*keys, *map(len, texts))
    return zlib.crc32(payload, zlib.crc32("".join(texts).encode(), zlib.crc32(header)))


def _sound(keys: Keys, texts: Texts, payload: bytes, checksum: int) -> bool:
    try:
        return message_checksum(keys, texts, payload) == checksum
    except struct.error:  # a number that no row can hold
        return False


def stored_message(row: tuple[Any, ...], resource_id: str) -> StoredMessage:
    """A row of MESSAGE_COLUMNS as a message.

    Raises:
        CorruptDataError: the checksum does not match, or the thread's row is gone. Names the seq.
    """
    keys: Keys = row[0:7]
    texts: Texts = row[7:13]
    payload: bytes = row[13]
    thread_id: str | None = row[15]
    role = _ROLES.get(keys[5])
    if role is None or thread_id is None or not _sound(keys, texts, payload, row[14]):
        raise CorruptDataError(f"message row {keys[0]} does not match its checksum")
    return StoredMessage(
        keys[0],
        resource_id,
        thread_id,
        texts[0],
        role,
        texts[1],
        texts[2],
        keys[3],
        texts[3],
        payload,
        texts[4],
        texts[5],
    )
