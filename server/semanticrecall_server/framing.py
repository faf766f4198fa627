"""Pieces of protobuf messages put together as bytes: what is encoded already is not read again.

Wire format: https://protobuf.dev/programming-guides/encoding/. A field whose value is a message, a
string or bytes is its tag, the length of the value, the value. Fields may come in any order and
each singular one is written once: some readers replace where others merge.
"""

from __future__ import annotations

import struct

_VARINT = 0
_LENGTH_DELIMITED = 2
_FOUR_BYTES = 5

float_bytes = struct.Struct("<f").pack
"""A number as a field of type float has it."""


def field_tag(number: int) -> bytes:
    """The tag of a field whose value is a message, a string or bytes."""
    return varint(number << 3 | _LENGTH_DELIMITED)


def number_tag(number: int) -> bytes:
    """The tag of a field whose value is a whole number that is not negative, a bool or an enum."""
    return varint(number << 3 | _VARINT)


def float_tag(number: int) -> bytes:
    """The tag of a field whose value is a float."""
    return varint(number << 3 | _FOUR_BYTES)


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits a byte, lowest first."""
    if value < 0x4000:  # the length of most messages
        return bytes((value & 0x7F | 0x80, value >> 7) if value > 0x7F else (value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
