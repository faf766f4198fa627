"""The filter on the metadata of a collection's vectors: its meaning, and its parsed form.

It is richer than the filter on messages (types/filters.py), which runs inside SQLite, and agrees
with it where they have the same operators. Meaning (the one place it is written down):

  - A condition looks at the value under a dotted key; a dot steps into an object, and into nothing
    else. Where that value is a list, a condition holds if it holds for one of its elements.
  - `$eq`: same JSON type and value; numbers compare as doubles, strings by code point, true and
    false are no numbers. Lists and objects are equal as a whole (to the value, or to an element of
    it). `$eq: null` holds for null and for a missing key. `$ne` is its negation.
  - `$gt $gte $lt $lte`: number with number or string with string; anything else does not hold.
  - `$in`: `$eq` of one of the values. `$nin` is its negation. `$all`: `$eq` of each of the values.
    `$in: []` and `$all: []` hold for nothing.
  - `$exists`: true holds where the key is there (null counts as there).
  - `$regex`: a string in which the RE2 expression is found; `$options` of "i", "m", "s".
  - `$contains`: a list that has the value as an element; a string that has it as a part; an object
    that has all its fields. Of a list: each of its values is contained.
  - `$size`: a list of so many elements. `$elemMatch`: a list with one element for which all of the
    operators hold, or which is an object that matches the conditions.
  - A bare value is `$eq`, a bare list `$in`, an object without operators conditions on its fields.
  - `$not`: negation of what is inside. `$and $or $nor`: of whole objects, whose keys are AND-ed.
  - What is negated holds where the key is missing.

The grammar is in filter_parsing.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard


class _Missing:
    """What is under a key that is not there."""

    __slots__ = ()


MISSING: Final = _Missing()

ScalarKey = str | float | tuple[str, bool]
"""A scalar as a dictionary's key: unlike in Python, true is not 1."""

ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_NULL: Final[ScalarKey] = ("null", False)


def scalar_key(value: object) -> ScalarKey | None:
    """A scalar's key; None for lists, objects and what is missing."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, (int, float)):
        return float(value)
    return _NULL if value is None else None


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value is a list in the sense of JSON."""
    return isinstance(value, (list, tuple))


def is_equal(one: object, other: object) -> bool:
    """Whether two values are the same in the sense of JSON."""
    key = scalar_key(one)
    if key is not None:
        return key == scalar_key(other)
    if is_list(one):
        return is_list(other) and len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(is_equal(item, other[name]) for name, item in one.items())
        )
    return False


def value_under(metadata: object, path: Sequence[str]) -> object:
    """What is under a path, or MISSING."""
    for step in path:
        if not isinstance(metadata, Mapping) or step not in metadata:
            return MISSING
        metadata = metadata[step]
    return metadata


# ---- tests of the value under one key ----


@dataclass(frozen=True, slots=True)
class Equals:
    """Equal to a value; see the module."""

    operand: object

    def matches(self, value: object) -> bool:
        """Whether it holds for a value, or MISSING."""
        if value is MISSING:
            return self.operand is None
        if is_equal(value, self.operand):
            return True
        return is_list(value) and any(is_equal(element, self.operand) for element in value)


@dataclass(frozen=True, slots=True)
class Compares:
    """Greater or less than a number or a string."""

    order: str
    operand: float | str

    def matches(self, value: object) -> bool:
        """Whether it holds for a value, or MISSING."""
        values = value if is_list(value) else (value,)
        return any(self.holds_for(scalar_key(element)) for element in values)

    def holds_for(self, key: ScalarKey | None) -> bool:
        """Whether it holds for a scalar."""
        if isinstance(self.operand, str):
            return isinstance(key, str) and ORDERS[self.order](key, self.operand)
        return isinstance(key, float) and ORDERS[self.order](key, self.operand)


@dataclass(frozen=True, slots=True)
class Exists:
    """The key is there."""

    def matches(self, value: object) -> bool:
        """Whether it holds for a value, or MISSING."""
        return value is not MISSING


@dataclass(frozen=True, slots=True)
class Finds:
    """A string in which something is found."""

    is_found: Callable[[str], bool]

    def matches(self, value: object) -> bool:
        """Whether it holds for a value, or MISSING."""
        values = value if is_list(value) else (value,)
        return any(isinstance(element, str) and self.is_found(element) for element in values)


@dataclass(frozen=True, slots=True)
class Contains:
    """A list, string or object that contains a value that is no list."""

    operand: object

    def matches(self, value: object) -> bool:
        """Whether it holds for a value, or MISSING."""
        if is_list(value):
            return any(_has_fields(element, self.operand) for element in value)
        if isinstance(value, str) and isinstance(self.operand, str):
            return self.operand in value
        return value is not MISSING and _has_fields(value, self.operand)


@dataclass(frozen=True, slots=True)
class HasSize:
    """A list of so many elements."""

    size: int

    def matches(self, value: object) -> bool:
        """Whether it holds for a value, or MISSING."""
        return is_list(value) and len(value) == self.size


@dataclass(frozen=True, slots=True)
class HasElement:
    """A list with an element for which something holds; see the module."""

    part: Filter

    def matches(self, value: object) -> bool:
        """Whether it holds for a value, or MISSING."""
        return is_list(value) and any(matches(self.part, element) for element in value)


def _has_fields(value: object, operand: object) -> bool:
    if isinstance(operand, Mapping) and isinstance(value, Mapping):
        return all(
            name in value and _has_fields(value[name], item) for name, item in operand.items()
        )
    return is_equal(value, operand)


Test = Equals | Compares | Exists | Finds | Contains | HasSize | HasElement


# ---- the tree ----


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of the value under `path`; an empty path is the value itself."""

    path: tuple[str, ...]
    test: Test


@dataclass(frozen=True, slots=True)
class IsObject:
    """What is looked at is an object: of the elements that `$elemMatch` looks into."""


@dataclass(frozen=True, slots=True)
class Not:
    """Holds where `part` does not."""

    part: Filter


@dataclass(frozen=True, slots=True)
class Every:
    """Holds where all parts do."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """Holds where at least one part does."""

    parts: tuple[Filter, ...]


Filter = Condition | IsObject | Not | Every | Some


def matches(condition: Filter, value: object) -> bool:
    """Whether a filter holds for a value."""
    match condition:
        case Condition(path=path, test=test):
            return test.matches(value_under(value, path))
        case IsObject():
            return isinstance(value, Mapping)
        case Not(part=part):
            return not matches(part, value)
        case Every(parts=parts):
            return all(matches(part, value) for part in parts)
        case Some(parts=parts):
            return any(matches(part, value) for part in parts)
