"""Messages, times and JSON to protobuf and back."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, TypeVar, cast

from google.protobuf import struct_pb2, timestamp_pb2

from . import arguments, values
from .errors import InvalidArgumentError, SemanticRecallError
from .v1 import types_pb2
from .values import JsonValue

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXACT_INTEGER_MAX = 2**53
JSON_LEVELS_MAX = 32

P = ParamSpec("P")
R = TypeVar("R")


def refusing(build: Callable[P, R]) -> Callable[P, R]:
    """Turn what protobuf refuses to hold into an InvalidArgumentError."""

    @functools.wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return build(*args, **kwargs)
        except SemanticRecallError:
            raise
        except UnicodeEncodeError:
            problem = "a text holds a lone surrogate, which UTF-8 cannot carry"
        except (ValueError, OverflowError):
            problem = "a number is outside the range of its field"
        raise InvalidArgumentError.of("request", problem)

    return checked


def timestamp(moment: object, extra_ns: int = 0, *, field: str = "time") -> timestamp_pb2.Timestamp:
    """A moment on the wire, exact to the nanosecond."""
    since = arguments.moment(moment, field) - EPOCH
    return timestamp_pb2.Timestamp(
        seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1000 + extra_ns
    )


def moment(stamp: timestamp_pb2.Timestamp) -> datetime:
    """A wire time, cut to the microsecond, in UTC."""
    return EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def struct(fields: object, name: str) -> struct_pb2.Struct:
    """A JSON object on the wire.

    Raises:
        InvalidArgumentError: something is not a JSON value, or would not come back as it went: the
            wire's numbers are doubles.
    """
    answer = struct_pb2.Struct()
    for key, value in arguments.mapping(fields, name).items():
        _set_value(answer.fields[key], value, f"{name}.{key}", 1)
    return answer


def _set_value(target: struct_pb2.Value, value: object, path: str, level: int) -> None:
    if level > JSON_LEVELS_MAX:
        raise InvalidArgumentError.of(path, f"is more than {JSON_LEVELS_MAX} levels deep")
    if value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, int | float):
        target.number_value = _number(value, path)
    elif isinstance(value, Mapping):
        target.struct_value.SetInParent()
        for key, inner in arguments.mapping(cast("object", value), path).items():
            _set_value(target.struct_value.fields[key], inner, f"{path}.{key}", level + 1)
    elif isinstance(value, list | tuple):
        target.list_value.SetInParent()
        for position, inner in enumerate(value):
            _set_value(target.list_value.values.add(), inner, f"{path}[{position}]", level + 1)
    else:
        raise InvalidArgumentError.of(path, "must be a JSON value")


def _number(value: int | float, path: str) -> float:
    if isinstance(value, int) and abs(value) > EXACT_INTEGER_MAX:
        raise InvalidArgumentError.of(path, "is beyond 2**53 and would be rounded; send a string")
    if not math.isfinite(value):
        raise InvalidArgumentError.of(path, "must be a finite number")
    return float(value)


def json_object(wire: struct_pb2.Struct) -> dict[str, JsonValue]:
    """A JSON object from the wire; whole numbers come back as `int`."""
    return {key: _json_value(value) for key, value in wire.fields.items()}


def _json_value(wire: struct_pb2.Value) -> JsonValue:
    kind = wire.WhichOneof("kind")
    if kind == "struct_value":
        return json_object(wire.struct_value)
    if kind == "list_value":
        return [_json_value(value) for value in wire.list_value.values]
    if kind == "number_value":
        number = wire.number_value
        whole = number.is_integer() and abs(number) <= EXACT_INTEGER_MAX
        # Minus zero is a float only.
        return int(number) if whole and (number or math.copysign(1, number) > 0) else number
    if kind == "string_value":
        return wire.string_value
    return wire.bool_value if kind == "bool_value" else None


@refusing
def message_to_wire(message: values.Message) -> types_pb2.Message:
    """A message as it is sent."""
    wire = types_pb2.Message(
        id=message.id,
        thread_id=message.thread_id,
        resource_id=message.resource_id,
        role=cast("types_pb2.Role", message.role),
        author=message.author,
        text=message.text,
        payload=message.payload,
        payload_type=message.payload_type,
        group_id=message.group_id,
    )
    if message.create_time is not None:
        wire.create_time.CopyFrom(timestamp(message.create_time, message.extra_ns))
    if message.metadata:
        wire.metadata.CopyFrom(struct(message.metadata, "metadata"))
    return wire


def message(wire: types_pb2.Message) -> values.Message:
    """A message as it was received."""
    timed = wire.HasField("create_time")
    return values.Message(
        role=values.Role(wire.role),
        text=wire.text,
        id=wire.id,
        author=wire.author,
        create_time=moment(wire.create_time) if timed else None,
        extra_ns=wire.create_time.nanos % 1000 if timed else 0,
        metadata=json_object(wire.metadata),
        payload=wire.payload,
        payload_type=wire.payload_type,
        group_id=wire.group_id,
        thread_id=wire.thread_id,
        resource_id=wire.resource_id,
    )


def vectors_to_wire(vectors: values.MessageVectors) -> types_pb2.MessageVectors:
    """A message's vectors as they are sent."""
    return types_pb2.MessageVectors(
        message_id=vectors.message_id,
        index_identity=vectors.index_identity,
        data=vectors.data,
    )


def message_vectors(wire: types_pb2.MessageVectors) -> values.MessageVectors:
    """A message's vectors as they were received."""
    return values.MessageVectors(wire.message_id, wire.index_identity, wire.data)
