"""The metadata filter: its grammar, its meaning and its parsed form.

Meaning (the one place it is written down; every store must agree with it):
  - A condition looks at the value under a dotted key. Where that value is a list, the condition
    holds if it holds for one of the elements, or for the list's absence as below.
  - `$eq`: same JSON type and value; numbers compare as doubles, strings by code point, true and
    false are no numbers. `$eq: null` holds for null and for a missing key. `$ne` is its negation.
  - `$gt $gte $lt $lte`: number with number or string with string; anything else does not hold.
  - `$in`: `$eq` of one of the values. `$nin` is its negation.
  - `$exists`: true holds where the key is there (null counts as there).
  - `$not`: negation of the conditions inside. `$and`, `$or`: of whole objects.
  - Keys inside one object are AND-ed. An object value (not a list of operators) matches nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from .errors import InvalidArgumentError

FILTER_CONDITIONS_MAX = 256
FILTER_DEPTH_MAX = 16
FILTER_KEY_BYTES_MAX = 512

Scalar = str | float | bool | None


class Comparison(StrEnum):
    """What a condition compares with."""

    EQ = "$eq"
    GT = "$gt"
    GTE = "$gte"
    LT = "$lt"
    LTE = "$lte"
    IN = "$in"
    EXISTS = "$exists"


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of the value under `path`.

    `values` holds one value, or any number for IN; for EXISTS one bool.
    """

    path: tuple[str, ...]
    comparison: Comparison
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Holds where `part` does not."""

    part: Filter


@dataclass(frozen=True, slots=True)
class All:
    """Holds where every part does."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """Holds where at least one part does."""

    parts: tuple[Filter, ...]


Filter = Condition | Not | All | Any


class _Parser:
    """Reads one filter; counts its conditions."""

    def __init__(self, field: str, keys_allowed: frozenset[str]) -> None:
        self._field = field
        self._keys_allowed = keys_allowed
        self._conditions = 0

    def conditions(self, value: object, where: str, depth: int) -> Filter:
        if depth > FILTER_DEPTH_MAX:
            raise self._error(where, f"nested deeper than {FILTER_DEPTH_MAX} levels")
        if not isinstance(value, Mapping):
            raise self._error(where, "must be an object of conditions")
        if not value:
            raise self._error(where, "is empty; name at least one condition")
        parts: list[Filter] = []
        for key, operand in value.items():
            if key in ("$and", "$or"):
                parts.append(self._branches(key, operand, where, depth))
            elif key == "$not":
                parts.append(Not(self.conditions(operand, f"{where}.$not", depth + 1)))
            elif key.startswith("$"):
                raise self._error(where, f"unknown operator {_shown(key)}")
            else:
                parts.append(self._key(key, operand, where, depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _branches(self, key: str, operand: object, where: str, depth: int) -> Filter:
        if not _is_list(operand) or not operand:
            raise self._error(where, f"{key} takes a list of at least one object")
        parts = tuple(
            self.conditions(branch, f"{where}.{key}[{i}]", depth + 1)
            for i, branch in enumerate(operand)
        )
        return All(parts) if key == "$and" else Any(parts)

    def _key(self, key: str, operand: object, where: str, depth: int) -> Filter:
        path = tuple(key.split("."))
        if not all(path) or len(key.encode()) > FILTER_KEY_BYTES_MAX:
            raise self._error(where, f"key {_shown(key)} is too long or has an empty step")
        if '"' in key or any(ord(c) < 32 for c in key):
            raise self._error(where, "a key must not hold quotes or control characters")
        if self._keys_allowed and key not in self._keys_allowed:
            known = ", ".join(sorted(self._keys_allowed))
            raise self._error(where, f"unknown key {_shown(key)}; known keys: {known}")
        if isinstance(operand, Mapping):
            return self._operators(path, operand, f"{where}.{_shown(key)}", depth + 1)
        if _is_list(operand):
            return self._condition(path, Comparison.IN, self._list(operand, where), where)
        return self._condition(path, Comparison.EQ, (self._scalar(operand, where),), where)

    def _operators(
        self, path: tuple[str, ...], operators: Mapping[str, object], where: str, depth: int
    ) -> Filter:
        if depth > FILTER_DEPTH_MAX:
            raise self._error(where, f"nested deeper than {FILTER_DEPTH_MAX} levels")
        if not operators:
            raise self._error(where, "is empty; name an operator such as $eq")
        parts = tuple(
            self._operator(path, name, operand, where, depth) for name, operand in operators.items()
        )
        return parts[0] if len(parts) == 1 else All(parts)

    def _operator(
        self, path: tuple[str, ...], name: str, operand: object, where: str, depth: int
    ) -> Filter:
        if name == "$not":
            if not isinstance(operand, Mapping):
                raise self._error(where, "$not takes an object of operators")
            return Not(self._operators(path, operand, f"{where}.$not", depth + 1))
        if name in ("$in", "$nin"):
            if not _is_list(operand):
                raise self._error(where, f"{name} takes a list")
            found = self._condition(path, Comparison.IN, self._list(operand, where), where)
            return found if name == "$in" else Not(found)
        if name == "$exists":
            if not isinstance(operand, bool):
                raise self._error(where, "$exists takes true or false")
            return self._condition(path, Comparison.EXISTS, (operand,), where)
        if name in ("$eq", "$ne"):
            found = self._condition(path, Comparison.EQ, (self._scalar(operand, where),), where)
            return found if name == "$eq" else Not(found)
        if name in ("$gt", "$gte", "$lt", "$lte"):
            value = self._scalar(operand, where)
            if isinstance(value, bool) or value is None:
                raise self._error(where, f"{name} takes a number or a string")
            return self._condition(path, Comparison(name), (value,), where)
        raise self._error(where, f"unknown operator {_shown(name)}")

    def _condition(
        self, path: tuple[str, ...], comparison: Comparison, values: tuple[Scalar, ...], where: str
    ) -> Condition:
        self._conditions += max(1, len(values))
        if self._conditions > FILTER_CONDITIONS_MAX:
            raise self._error(where, f"more than {FILTER_CONDITIONS_MAX} conditions and values")
        return Condition(path, comparison, values)

    def _list(self, operand: Sequence[object], where: str) -> tuple[Scalar, ...]:
        return tuple(self._scalar(value, where) for value in operand)

    def _scalar(self, value: object, where: str) -> Scalar:
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (int, float)):
            if not math.isfinite(value):
                raise self._error(where, "numbers must be finite")
            return float(value)
        raise self._error(where, "values must be strings, numbers, booleans or null")

    def _error(self, where: str, description: str) -> InvalidArgumentError:
        return InvalidArgumentError.of(f"{self._field}{where}", description)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _shown(key: str) -> str:
    """A key as an error may show it: short, printable."""
    shown = "".join(c if c.isprintable() else "?" for c in key[:64])
    return f"{shown!r}"


def parse_filter(
    value: Mapping[str, object],
    *,
    field: str = "filter",
    keys_allowed: frozenset[str] = frozenset(),
) -> Filter | None:
    """Parse a filter object; `{}` is no filter.

    Args:
        value: JSON-like object (str, float, bool, None, list, mapping).
        field: how errors name the field.
        keys_allowed: if not empty, the only keys a filter may name.

    Raises:
        InvalidArgumentError: anything that is not in the grammar; nothing is ignored.
    """
    if not value:
        return None
    return _Parser(field, keys_allowed).conditions(value, "", 1)


def filter_keys(condition: Filter, *, with_exists: bool = True) -> frozenset[str]:
    """The dotted keys that a filter names; `with_exists=False` leaves out those of `$exists`."""
    match condition:
        case Condition(path=path, comparison=comparison):
            if comparison is Comparison.EXISTS and not with_exists:
                return frozenset()
            return frozenset((".".join(path),))
        case Not(part=part):
            return filter_keys(part, with_exists=with_exists)
        case All(parts=parts) | Any(parts=parts):
            return frozenset().union(*(filter_keys(p, with_exists=with_exists) for p in parts))
