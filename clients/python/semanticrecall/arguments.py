"""What callers pass, checked in one place: each function names its argument and how to mend it.

Nothing here repeats a text of the caller: an error may end up in a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import IntEnum
from numbers import Integral, Real
from typing import TypeVar, cast

from .errors import InvalidArgumentError

UINT32_MAX = 2**32 - 1
ID_BYTES_MAX = 512
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

EnumT = TypeVar("EnumT", bound=IntEnum)


def _wrong(field: str, expected: str, value: object) -> InvalidArgumentError:
    return InvalidArgumentError.of(field, f"must be {expected}, not {type(value).__name__}")


def text(value: object, field: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _wrong(field, "a string", value)
    return value


def is_unicode(value: str) -> bool:
    """Whether the wire takes it: whether it holds no half of a surrogate pair.

    Python puts such halves in the place of bytes of a command line that are not UTF-8.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def id_fault(value: str) -> str:
    """What keeps a text from being an id in the contract; nothing where it is one."""
    if not value:
        return "must not be empty"
    if not is_unicode(value):
        return "must be UTF-8"
    if (size := len(value.encode())) > ID_BYTES_MAX:
        return f"must be at most {ID_BYTES_MAX} bytes; has {size}"
    return "must not hold control characters" if _CONTROL.search(value) else ""


def flag(value: object, field: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise _wrong(field, "True or False", value)
    return value


def octets(value: object, field: str) -> bytes:
    """Bytes."""
    if not isinstance(value, bytes):
        raise _wrong(field, "bytes", value)
    return value


def whole(value: object, field: str, *, least: int = 0) -> int:
    """A whole number that the wire holds."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _wrong(field, "a whole number", value)
    number = int(value)
    if number < least:
        raise InvalidArgumentError.of(field, f"must be {least} or more")
    if number > UINT32_MAX:
        raise InvalidArgumentError.of(field, f"must be at most {UINT32_MAX:,}")
    return number


def number(value: object, field: str) -> float:
    """A number; its range is the server's to say."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(field, "a number", value)
    return float(value)


def moment(value: object, field: str) -> datetime:
    """A time with a zone: without one it would mean another moment on another machine."""
    if not isinstance(value, datetime):
        raise _wrong(field, "a datetime, e.g. datetime(2024, 5, 1, tzinfo=UTC)", value)
    if value.tzinfo is None:
        raise InvalidArgumentError.of(field, "needs a time zone, e.g. datetime.now(UTC)")
    return value


def duration(value: object, field: str) -> timedelta:
    """A duration."""
    if not isinstance(value, timedelta):
        raise _wrong(field, "a timedelta, e.g. timedelta(days=7)", value)
    return value


def mapping(value: object, field: str) -> Mapping[str, object]:
    """An object with names for keys."""
    if not isinstance(value, Mapping):
        raise _wrong(field, 'a mapping, e.g. {"project": "A"}', value)
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise InvalidArgumentError.of(
                field, f"its keys must be strings, not {type(key).__name__}"
            )
    return cast("Mapping[str, object]", value)


def items(value: object, field: str, what: str) -> list[object]:
    """A list; one string is none, though Python lets it be read letter by letter.

    Args:
        what: the things in it, for the error: "ids", say.
    """
    if isinstance(value, str):
        raise InvalidArgumentError.of(field, f"must be a list of {what}, not one string")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(field, f"a list of {what}", value)
    return list(cast("Iterable[object]", value))


def texts(value: object, field: str, what: str) -> list[str]:
    """A list of strings."""
    listed = items(value, field, what)
    return [text(item, f"{field}[{position}]") for position, item in enumerate(listed)]


def numbers(value: object, field: str) -> list[float]:
    """A list of numbers."""
    listed = items(value, field, "numbers")
    return [number(item, f"{field}[{position}]") for position, item in enumerate(listed)]


def pair(value: object, field: str) -> tuple[int, int]:
    """Two whole numbers."""
    if not isinstance(value, tuple | list) or len(cast("list[object]", value)) != 2:
        raise InvalidArgumentError.of(field, "must be a pair (before, after), e.g. (1, 1)")
    first, second = cast("list[object]", value)
    return whole(first, f"{field}[0]"), whole(second, f"{field}[1]")


def member(kind: type[EnumT], value: object, field: str) -> EnumT:
    """One of an enum's values, or its name in any case."""
    if isinstance(value, kind):
        return value
    found = kind.__members__.get(value.upper()) if isinstance(value, str) else None
    if found is None or not found.value:
        known = [m for m in kind if m.value]
        names = ", ".join(repr(m.name.lower()) for m in known)
        example = f"{kind.__name__}.{known[0].name}"
        raise InvalidArgumentError.of(field, f"must be one of {names} (or {example} and the like)")
    return found


def members(kind: type[EnumT], value: object, field: str) -> list[EnumT]:
    """A list of an enum's values, or of their names."""
    listed = items(value, field, "names")
    return [member(kind, item, f"{field}[{position}]") for position, item in enumerate(listed)]
