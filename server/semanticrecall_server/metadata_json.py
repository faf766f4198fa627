"""google.protobuf.Struct to JSON and back, bounded in depth and size.

`json_format` is not used: it is slow, and has been brought down by nested input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from google.protobuf import struct_pb2

from semanticrecall_core.types.errors import InvalidArgumentError

METADATA_DEPTH_MAX = 16
_INTEGER_MAX = float(2**53)


def plain_object(value: struct_pb2.Struct, field: str, depth_max: int) -> dict[str, Any]:
    """A Struct as plain values (str, int, float, bool, None, list, dict).

    Whole numbers up to 2**53 become int, so that 3 is stored as `3`.

    Raises:
        InvalidArgumentError: nested deeper than `depth_max`, or a number that is not finite.
    """
    return _object(value, field, depth_max)


def _object(value: struct_pb2.Struct, field: str, depth_left: int) -> dict[str, Any]:
    if depth_left <= 0:
        raise InvalidArgumentError.of(field, "is nested too deep")
    return {key: _value(item, field, depth_left) for key, item in value.fields.items()}


def _value(value: struct_pb2.Value, field: str, depth_left: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        return _number(value.number_value, field)
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        return _object(value.struct_value, field, depth_left - 1)
    if kind == "list_value":
        if depth_left <= 1:
            raise InvalidArgumentError.of(field, "is nested too deep")
        return [_value(item, field, depth_left - 1) for item in value.list_value.values]
    return None


def _number(value: float, field: str) -> int | float:
    if not math.isfinite(value):
        raise InvalidArgumentError.of(field, "numbers must be finite")
    is_whole = value.is_integer() and abs(value) <= _INTEGER_MAX
    # Minus zero would lose its sign.
    return int(value) if is_whole and (value or math.copysign(1.0, value) > 0) else value


def json_of(value: Mapping[str, Any], field: str, bytes_max: int) -> str:
    """A plain object as compact JSON with sorted keys; "" for an empty one.

    Raises:
        InvalidArgumentError: longer than `bytes_max`.
    """
    if not value:
        return ""
    encoded = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if len(encoded) > bytes_max:
        raise InvalidArgumentError.of(
            field, f"must be at most {bytes_max} bytes as JSON; has {len(encoded)}"
        )
    return encoded.decode()


def fill_struct(target: struct_pb2.Struct, text: str) -> None:
    """Write stored JSON into a Struct."""
    fill_object(target, orjson.loads(text))


def fill_object(target: struct_pb2.Struct, value: Mapping[str, Any]) -> None:
    """Write a plain object into a Struct."""
    fields = target.fields
    for key, item in value.items():
        _fill_value(fields[key], item)


def _fill_value(target: struct_pb2.Value, value: Any) -> None:
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = value
    elif value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, dict):
        target.struct_value.SetInParent()
        fill_object(target.struct_value, value)
    else:
        target.list_value.SetInParent()
        values = target.list_value.values
        for item in value:
            _fill_value(values.add(), item)
