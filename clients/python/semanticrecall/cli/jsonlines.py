"""Messages as JSON Lines: what `export` writes and `import` reads.

One JSON object a line, UTF-8, with the fields of `Message` by their names; a field that is empty
may be left out, and is left out by `export`:

| field | value |
|---|---|
| id, thread_id, resource_id, author, text, payload_type, group_id | string |
| role | "user", "assistant", "system" or "tool"; the only one that is required |
| create_time | RFC 3339 with a zone, up to nanoseconds: "2024-05-01T14:00:00.123456789Z" |
| metadata | object |
| payload | base64 |
| vectors | object: index_identity, what made them, and float32, base64 of little-endian numbers |

`vectors` are those of the text, one or (of a long one) several after the other; `import` gives them
to a sidecar, which takes them where it has the same model and embeds the text where not.

An unknown field is an error: it would be lost. Reading what was written gives equal messages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from ..values import Message, MessageVectors, Role

_TEXT_FIELDS = (
    "id",
    "thread_id",
    "resource_id",
    "author",
    "text",
    "payload_type",
    "group_id",
)
_FIELDS = {*_TEXT_FIELDS, "role", "create_time", "metadata", "payload"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")
_ROLES = {role.name.lower(): role for role in Role if role}


class LineError(ValueError):
    """Raised when a line is not a message; says why, without its text."""


def message_to_json(message: Message) -> dict[str, Any]:
    """A message as the object of its line."""
    line: dict[str, Any] = {
        "id": message.id,
        "thread_id": message.thread_id,
        "resource_id": message.resource_id,
        "role": message.role.name.lower(),
        "author": message.author,
        "text": message.text,
        "create_time": _written_time(message),
        "metadata": _in_order(message.metadata),
        "payload": base64.b64encode(message.payload).decode(),
        "payload_type": message.payload_type,
        "group_id": message.group_id,
    }
    return {name: value for name, value in line.items() if value}


def vectors_to_json(vectors: MessageVectors) -> dict[str, str]:
    """The value of a line's field `vectors`."""
    return {
        "index_identity": vectors.index_identity,
        "float32": base64.b64encode(vectors.data).decode(),
    }


def vectors_from_json(value: object, message_id: str) -> MessageVectors:
    """The vectors of a line's field `vectors`.

    Raises:
        LineError: it is not such a value.
    """
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    identity = fields.get("index_identity")
    if fields.keys() != {"index_identity", "float32"} or not isinstance(identity, str):
        raise LineError("vectors must be an object of two strings: index_identity and float32")
    data = _read_base64(fields["float32"], "vectors.float32")
    if not data or len(data) % 4:
        raise LineError("vectors.float32 must be base64 of numbers of 4 bytes each")
    return MessageVectors(message_id, identity, data)


def _in_order(value: object) -> Any:
    """JSON with the names of its objects in order: the wire has them in any."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        return {name: _in_order(fields[name]) for name in sorted(fields)}
    if isinstance(value, list | tuple):
        return [_in_order(inner) for inner in cast("list[object]", value)]
    return value


def _written_time(message: Message) -> str:
    if message.create_time is None:
        return ""
    moment = message.create_time.astimezone(UTC)
    nanos = moment.microsecond * 1000 + message.extra_ns
    fraction = f".{nanos:09}".rstrip("0") if nanos else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def message_from_json(line: Mapping[str, Any]) -> Message:
    """The message of a line's object. Its id is empty where the line has none.

    Raises:
        LineError: a field is unknown, or its value is of the wrong kind.
    """
    for name in line:
        if name not in _FIELDS:
            raise LineError(f"unknown field {name[:40]!r}")
    texts: dict[str, str] = {}
    for name in _TEXT_FIELDS:
        value = line.get(name, "")
        if not isinstance(value, str):
            raise LineError(f"{name} must be a string")
        texts[name] = value
    role = line.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise LineError("role must be one of user, assistant, system, tool")
    metadata: object = line.get("metadata", {})
    if not isinstance(metadata, dict):
        raise LineError("metadata must be an object")
    moment, extra_ns = _read_time(line.get("create_time"))
    return Message(
        _ROLES[role],
        create_time=moment,
        extra_ns=extra_ns,
        metadata=cast("dict[str, Any]", metadata),
        payload=_read_base64(line.get("payload", ""), "payload"),
        **texts,
    )


def _read_time(value: object) -> tuple[datetime | None, int]:
    if value is None or value == "":
        return None, 0
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise LineError("create_time must look like 2024-05-01T14:00:00Z, with a zone")
    date, clock, fraction, zone = found.groups()
    nanos = int((fraction or "").ljust(9, "0"))
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{zone.upper()}")
    except ValueError:
        raise LineError("create_time names a day or an hour that does not exist") from None
    return moment.replace(microsecond=nanos // 1000).astimezone(UTC), nanos % 1000


def _read_base64(value: object, name: str) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise LineError(f"{name} must be base64")


def derived_id(thread_id: str, position: int, content: bytes) -> str:
    """An id for a message that has none: the same file gives the same ids again.

    Args:
        position: of the message in its thread, from 0: two equal messages stay two.
    """
    digest = hashlib.sha256()
    for part in (thread_id.encode("utf-8", "surrogatepass"), str(position).encode(), content):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:32]
