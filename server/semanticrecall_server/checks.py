"""Checks of single fields, collected so that one answer names every field at fault.

Control characters, refused in ids and names: all of Unicode's category Cc (C0, DEL and C1, which
holds U+0085) and the separators U+2028 and U+2029, since each of them ends a line somewhere.
"""

from __future__ import annotations

import functools
import math
import re
import zoneinfo
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from semanticrecall_core.types.errors import FieldViolation, InvalidArgumentError

from .settings_faults import ID_BYTES_MAX

EnumT = TypeVar("EnumT", bound=IntEnum)

VIOLATIONS_MAX = 64
"""More faults of one request are not collected."""

NAME_BYTES_MAX = 512
READ_TOKEN_BYTES_MAX = 512
PAGE_TOKEN_BYTES_MAX = 512
TIME_ZONE_BYTES_MAX = 64
ROLES_MAX = 16
TIME_SECONDS_MIN = -9_214_560_000
"""1678-01-01T00:00:00Z"""
TIME_SECONDS_END = 9_214_646_400
"""2262-01-01T00:00:00Z; times are before it."""
NANOS_PER_SECOND = 1_000_000_000

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Violations:
    """Collects faults; every check returns a usable value or None and goes on."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._found: list[FieldViolation] = []

    @property
    def found(self) -> bool:
        """At least one field is at fault."""
        return bool(self._found)

    def add(self, field: str, description: str) -> None:
        """Note a fault."""
        if len(self._found) < VIOLATIONS_MAX:
            self._found.append(FieldViolation(self._prefix + field, description))

    def extend(self, error: InvalidArgumentError) -> None:
        """Note the faults of an error that already names whole paths."""
        room = VIOLATIONS_MAX - len(self._found)
        self._found.extend(error.violations[:room])

    def error(self) -> InvalidArgumentError:
        """All of them as one error."""
        return InvalidArgumentError(self._found)

    def raise_if_found(self) -> None:
        """Raise InvalidArgumentError if a field is at fault."""
        if self._found:
            raise self.error()

    def path(self, field: str) -> str:
        """The whole path of a field."""
        return self._prefix + field

    def identifier(self, field: str, value: str) -> None:
        """A required id."""
        if not value:
            self.add(field, "is required")
        else:
            self.optional_identifier(field, value)

    def optional_identifier(self, field: str, value: str) -> None:
        """An id or nothing."""
        self.name(field, value, ID_BYTES_MAX)

    def name(self, field: str, value: str, bytes_max: int = NAME_BYTES_MAX) -> None:
        """A short line without control characters, or nothing."""
        # Most are short and plain: they need no look for what they must not hold. What is printable
        # has no control character; a character has at most four bytes.
        if len(value) * 4 <= bytes_max and value.isprintable():
            return
        if not self.size(field, value, bytes_max):
            return
        if _CONTROL.search(value):
            self.add(field, "must not hold control characters")

    def size(self, field: str, value: str | bytes, bytes_max: int) -> bool:
        """At most so many bytes. Returns whether that holds."""
        length = len(value)
        # A character has at most four bytes: most texts need no encoding to be measured.
        if isinstance(value, str) and not value.isascii() and length * 4 > bytes_max:
            length = len(value.encode())
        if length > bytes_max:
            self.add(field, f"must be at most {bytes_max} bytes; has {length}")
            return False
        return True

    def count(self, field: str, value: int, least: int, most: int) -> None:
        """A whole number between two bounds."""
        if not least <= value <= most:
            self.add(field, f"must be {least} to {most}; is {value}")

    def number(self, field: str, value: float, least: float, most: float) -> None:
        """A finite number between two bounds."""
        if not math.isfinite(value):
            self.add(field, "must be a finite number")
        elif not least <= value <= most:
            self.add(field, f"must be {least:g} to {most:g}; is {value:g}")

    def choice(self, field: str, value: int, kind: type[EnumT], default: EnumT) -> EnumT:
        """A value of an enum; zero is the default."""
        if value == 0:
            return default
        try:
            return kind(value)
        except ValueError:
            self.add(field, f"{value} is no value of this enum")
            return default

    def roles(self, field: str, values: Sequence[int], kind: type[EnumT]) -> frozenset[EnumT]:
        """A short list of enum values, none of them unspecified."""
        if len(values) > ROLES_MAX:
            self.add(field, f"must be at most {ROLES_MAX} entries; has {len(values)}")
            return frozenset()
        chosen: set[EnumT] = set()
        for position, value in enumerate(values):
            try:
                chosen.add(kind(value))
            except ValueError:
                self.add(f"{field}[{position}]", f"{value} is no role")
        return frozenset(chosen)

    def identifiers(self, field: str, values: Sequence[str], least: int, most: int) -> None:
        """A list of ids."""
        if not least <= len(values) <= most:
            self.add(field, f"must be {least} to {most} ids; has {len(values)}")
            return
        for position, value in enumerate(values):
            if not value or len(value) > ID_BYTES_MAX // 4 or not value.isprintable():
                self.identifier(f"{field}[{position}]", value)

    def time_ns(self, field: str, value: Timestamp) -> int | None:
        """A time in nanoseconds since 1970."""
        if not TIME_SECONDS_MIN <= value.seconds < TIME_SECONDS_END:
            self.add(field, "must be in the years 1678 to 2261")
            return None
        if not 0 <= value.nanos < NANOS_PER_SECOND:
            self.add(field, "its nanos must be 0 to 999999999")
            return None
        return value.seconds * NANOS_PER_SECOND + value.nanos

    def time_zone(self, field: str, value: str) -> str:
        """An IANA zone name; empty is UTC."""
        if not value:
            return "UTC"
        if len(value) > TIME_ZONE_BYTES_MAX or value not in time_zones():
            self.add(field, 'is no IANA time zone; write e.g. "Europe/Berlin" or leave it empty')
        return value


@functools.cache
def time_zones() -> frozenset[str]:
    """All zone names; read from the system and the tzdata package once."""
    return frozenset(zoneinfo.available_timezones())
