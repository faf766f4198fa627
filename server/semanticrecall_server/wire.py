"""Reading requests from bytes that may be anything.

gRPC's own deserializing answers INTERNAL to a malformed request. Here requests arrive as bytes,
and what cannot be read is INVALID_ARGUMENT that names the field where it can be told.
"""

from __future__ import annotations

from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from semanticrecall_core.types.errors import InvalidArgumentError

MessageT = TypeVar("MessageT", bound=Message)

ENTRIES_MAX = 200_000
"""Fields of a request, each entry of a list counted: more than all limits of lists together. An
empty message takes two bytes on the wire and 170 in memory, so that 8 MiB would become 670."""

_FIELDS_WALKED_MAX = 50_000
"""Bounds the look for the fault; a request with more fields gets an answer without its place."""

_DEPTH_MAX = 100
"""Protobuf's own limit of nesting."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _Fault(Exception):  # noqa: N818 - a result that unwinds the walk, no error
    """Where the bytes stop making sense."""

    def __init__(self, path: str, description: str) -> None:
        super().__init__()
        self.path = path
        self.description = description


def decode(raw: bytes, kind: type[MessageT]) -> MessageT:
    """Read a message of this kind.

    Raises:
        InvalidArgumentError: the bytes are not such a message, or have too many fields.
    """
    descriptor = cast(Descriptor, kind.DESCRIPTOR)
    if len(raw) > 2 * ENTRIES_MAX:  # else there cannot be as many
        _refuse_crowds(memoryview(raw), descriptor)
    try:
        return kind.FromString(raw)
    except DecodeError:
        path, description = _locate(raw, descriptor)
        raise InvalidArgumentError.of(path, description) from None


def _refuse_crowds(raw: memoryview, descriptor: Descriptor) -> None:
    """Count the fields of a large request before memory is taken for each."""
    at = tag = 0
    try:
        for _ in range(ENTRIES_MAX + 1):
            if at >= len(raw):
                return
            tag, at = _varint(raw, at, "")
            wire_type = tag & 7
            if wire_type == _BYTES:
                size, at = _varint(raw, at, "")
                at += size
            elif wire_type == _VARINT:
                at = _varint(raw, at, "")[1]
            else:
                at += 8 if wire_type == _FIXED64 else 4
    except _Fault:
        return  # parsing finds it too, and says where
    field = descriptor.fields_by_number.get(tag >> 3)
    name = descriptor.name if field is None else field.name
    raise InvalidArgumentError.of(name, f"makes more than {ENTRIES_MAX} fields of the request")


def _locate(raw: bytes, descriptor: Descriptor) -> tuple[str, str]:
    try:
        _Walk().message(memoryview(raw), descriptor, "", 1)
    except _Fault as fault:
        return fault.path or descriptor.name, fault.description
    return descriptor.name, "the bytes are not a message of this type"


class _Walk:
    """Reads the wire format field by field until something is wrong."""

    def __init__(self) -> None:
        self._fields_left = _FIELDS_WALKED_MAX

    def message(self, raw: memoryview, descriptor: Descriptor, path: str, depth: int) -> None:
        if depth > _DEPTH_MAX:
            raise _Fault(path, "is nested too deep")
        counts: dict[int, int] = {}
        at = 0
        while at < len(raw):
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _Fault("", "the bytes are not a message of this type")
            tag, at = _varint(raw, at, path)
            field = descriptor.fields_by_number.get(tag >> 3)
            here = path if field is None else _joined(path, field, counts)
            at = self._value(raw, at, tag & 7, field, (here, depth))

    def _value(
        self,
        raw: memoryview,
        at: int,
        wire_type: int,
        field: FieldDescriptor | None,
        place: tuple[str, int],
    ) -> int:
        """Check one value and return where the next field begins."""
        path, depth = place
        if wire_type == _VARINT:
            return _varint(raw, at, path)[1]
        if wire_type in (_FIXED64, _FIXED32):
            end = at + (8 if wire_type == _FIXED64 else 4)
        elif wire_type == _BYTES:
            size, at = _varint(raw, at, path)
            end = at + size
        else:
            raise _Fault(path, "is not encoded as protobuf")
        if end > len(raw):
            raise _Fault(path, "is cut off")
        if field is not None and wire_type == _BYTES:
            self._content(raw[at:end], field, path, depth)
        return end

    def _content(self, value: memoryview, field: FieldDescriptor, path: str, depth: int) -> None:
        if field.type == FieldDescriptor.TYPE_STRING:
            try:
                str(value, "utf-8")
            except UnicodeDecodeError:
                raise _Fault(path, "is not valid UTF-8") from None
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            self.message(value, field.message_type, path, depth + 1)


def _joined(path: str, field: FieldDescriptor, counts: dict[int, int]) -> str:
    owner = field.containing_type.full_name if field.containing_type is not None else ""
    # Inside a Struct the path stays at the field that holds it: keys are the caller's own data.
    if owner.startswith("google.protobuf.") and path:
        return path
    name = f"{path}.{field.name}" if path else field.name
    if not field.is_repeated:
        return name
    position = counts.get(field.number, 0)
    counts[field.number] = position + 1
    return f"{name}[{position}]"


def _varint(raw: memoryview, at: int, path: str) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(raw):
            raise _Fault(path, "is cut off")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _Fault(path, "is not encoded as protobuf")
