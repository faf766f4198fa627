"""Rows of `messages`: hashes, checksum, and the way back to a StoredMessage.

Formats (part of format 2, schema.py); integers little endian:
  content_hash  blake2b, 16 bytes, of what the writer gave: role (uint8), then thread id, author,
                text, metadata JSON, payload type, group id (UTF-8) and payload, each after its
                length in bytes (uint32). Lengths first: no two contents share an input.
  text_hash     blake2b, 16 bytes, of the text in UTF-8.
  checksum      crc32 of seq, resource_key, thread_key, create_time_ns, revision (int64), role,
                embeddable (uint8), the lengths in bytes of the names and texts (8 x uint32), then
                resource id, thread id, id, author, text, metadata, payload_type, group_id (UTF-8),
                then payload. It holds keys and names: a row that turns up under another resource,
                or a resource or thread whose name has changed, is seen.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Any, cast

from ..types.errors import CorruptDataError
from ..types.values import MessageDraft, Role, StoredMessage

_CONTENT = struct.Struct("<B7I")
_NUMBERS = struct.Struct("<5q2B8I")

_ROLES = {int(role): role for role in Role}  # an enum's own look-up costs a microsecond

Keys = tuple[int, int, int, int, int, int, int]
Texts = tuple[bytes, ...]

# What every statement that reads whole messages selects, in the order `stored_message` wants.
# Texts come as bytes: they are decoded after the checksum has been compared, so that damage to a
# text names its row instead of failing the statement.
MESSAGE_COLUMNS = (
    "m.seq, m.resource_key, m.thread_key, m.create_time_ns, m.revision, m.role, m.embeddable,"
    " CAST((SELECT t.thread_id FROM threads t WHERE t.thread_key = m.thread_key) AS BLOB),"
    " CAST(m.id AS BLOB), CAST(m.author AS BLOB), CAST(m.text AS BLOB),"
    " CAST(coalesce(m.metadata, '') AS BLOB), CAST(m.payload_type AS BLOB),"
    " CAST(m.group_id AS BLOB), m.payload, m.checksum"
)
MESSAGE_COLUMNS_COUNT = 16
# Their beginning alone, as far as the id.
MESSAGE_PLACE_COLUMNS = (
    "m.seq, m.resource_key, m.thread_key, m.create_time_ns, m.revision, m.role, m.embeddable,"
    " NULL, CAST(m.id AS BLOB)"
)
# Positions.
MESSAGE_REVISION, MESSAGE_ID, MESSAGE_TEXT, MESSAGE_METADATA, MESSAGE_PAYLOAD = 4, 8, 10, 11, 14


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
        texts: resource id, thread id, id, author, text, metadata, payload_type, group_id; UTF-8.
    """
    header = _NUMBERS.pack(*keys, *map(len, texts))
    return zlib.crc32(payload, zlib.crc32(b"".join(texts), zlib.crc32(header)))


def _sound(keys: Keys, texts: tuple[bytes | None, ...], payload: bytes, checksum: int) -> bool:
    try:
        return message_checksum(keys, cast("Texts", texts), payload) == checksum
    except (struct.error, TypeError):  # a number that no row can hold, or no thread
        return False


def stored_message(row: tuple[Any, ...], resource_id: str) -> StoredMessage:
    """A row of MESSAGE_COLUMNS as a message of this resource.

    Raises:
        CorruptDataError: the checksum does not match, or the thread's row is gone. Names the seq.
    """
    keys: Keys = row[0:7]
    texts: tuple[bytes | None, ...] = row[7:14]
    payload: bytes = row[14]
    role = _ROLES.get(keys[5])
    if role is None or not _sound(keys, (resource_id.encode(), *texts), payload, row[15]):
        raise CorruptDataError(f"message row {keys[0]} does not match its checksum")
    thread_id, message_id, author, text, metadata, payload_type, group_id = [
        str(stored, "utf-8") for stored in cast("Texts", texts)
    ]
    return StoredMessage(
        keys[0],
        resource_id,
        thread_id,
        message_id,
        role,
        author,
        text,
        keys[3],
        metadata,
        payload,
        payload_type,
        group_id,
        keys[4],
    )


def shown(name: bytes | None) -> str:
    """A stored name that may be damaged, for a finding."""
    return (name or b"").decode(errors="replace")
