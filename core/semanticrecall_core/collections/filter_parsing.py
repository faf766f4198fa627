"""Reads filters (filters.py): what is not in the grammar is refused, and nothing is ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from ..types.errors import InvalidArgumentError
from ..types.filters import FILTER_CONDITIONS_MAX, FILTER_DEPTH_MAX, FILTER_KEY_BYTES_MAX
from .expressions import compiled
from .filters import (
    Compares,
    Condition,
    Contains,
    Equals,
    Every,
    Exists,
    Filter,
    Finds,
    HasElement,
    HasSize,
    IsObject,
    Not,
    Some,
    Test,
    is_list,
    scalar_key,
)

REGEX_BYTES_MAX: Final = 1_000

_OPTIONS: Final = "ims"


def parse_filter(value: Mapping[str, object] | None, field: str) -> Filter | None:
    """Parse a filter; None and `{}` are no filter.

    Args:
        value: an object of what JSON can say.
        field: how errors name it, e.g. "filter".

    Raises:
        InvalidArgumentError: anything that is not in the grammar, or above its limits.
    """
    return _Parser().conditions(value, field, 1) if value else None


class _Parser:
    """Reads one filter; counts its conditions."""

    def __init__(self) -> None:
        self._count = 0

    def conditions(
        self, value: object, where: str, depth: int, prefix: tuple[str, ...] = ()
    ) -> Filter:
        """An object of conditions; `prefix` is the path of what they look into."""
        if depth > FILTER_DEPTH_MAX:
            raise _error(where, f"nested deeper than {FILTER_DEPTH_MAX} levels")
        if not isinstance(value, Mapping):
            raise _error(where, "must be an object of conditions")
        if not value:
            raise _error(where, "is empty; name at least one condition")
        parts: list[Filter] = []
        for key, operand in value.items():
            inner = f"{where}.{_shown(key)}"
            if key in ("$and", "$or", "$nor") and not prefix:
                parts.append(self._branches(key, operand, inner, depth))
            elif key == "$not" and not prefix:
                parts.append(Not(self.conditions(operand, inner, depth + 1)))
            elif key.startswith("$"):
                raise _error(inner, "unknown operator, or not one that stands here")
            else:
                parts.append(self._field(prefix + _path(key, inner), operand, inner, depth))
        return _every(parts)

    def _branches(self, key: str, operand: object, where: str, depth: int) -> Filter:
        if not is_list(operand) or not operand:
            raise _error(where, "takes a list of at least one object")
        parts = tuple(
            self.conditions(branch, f"{where}[{i}]", depth + 1) for i, branch in enumerate(operand)
        )
        if key == "$and":
            return Every(parts)
        return Some(parts) if key == "$or" else Not(Some(parts))

    def _field(self, path: tuple[str, ...], operand: object, where: str, depth: int) -> Filter:
        if isinstance(operand, Mapping):
            if not operand:
                raise _error(where, "is empty; name an operator such as $eq, or a field")
            if any(name.startswith("$") for name in operand):
                return self._operators(path, operand, where, depth + 1)
            return self.conditions(operand, where, depth + 1, path)
        if is_list(operand):
            return self._any_of(path, operand, where)
        return self._condition(path, Equals(self._plain(operand, where)), where)

    def _operators(
        self, path: tuple[str, ...], operators: Mapping[str, object], where: str, depth: int
    ) -> Filter:
        if depth > FILTER_DEPTH_MAX:
            raise _error(where, f"nested deeper than {FILTER_DEPTH_MAX} levels")
        if not operators:
            raise _error(where, "is empty; name an operator such as $eq")
        if "$options" in operators and "$regex" not in operators:
            raise _error(where, "$options stands beside $regex only")
        return _every(
            [
                self._operator(path, name, operators, f"{where}.{_shown(name)}", depth)
                for name in operators
                if name != "$options"
            ]
        )

    def _operator(
        self,
        path: tuple[str, ...],
        name: str,
        operators: Mapping[str, object],
        where: str,
        depth: int,
    ) -> Filter:
        operand = operators[name]
        match name:
            case "$eq" | "$ne":
                equal = self._condition(path, Equals(self._plain(operand, where)), where)
                return equal if name == "$eq" else Not(equal)
            case "$in" | "$nin" | "$all":
                return self._listed(path, name, operand, where)
            case "$gt" | "$gte" | "$lt" | "$lte":
                return self._condition(path, Compares(name, _ordered(operand, where)), where)
            case "$exists":
                if not isinstance(operand, bool):
                    raise _error(where, "takes true or false")
                exists = self._condition(path, Exists(), where)
                return exists if operand else Not(exists)
            case "$regex":
                found = _expression(operand, operators.get("$options", ""), where)
                return self._condition(path, found, where)
            case "$contains":
                return self._contains(path, operand, where)
            case "$size":
                return self._condition(path, HasSize(_size(operand, where)), where)
            case "$elemMatch":
                part = self._element(operand, where, depth)
                return self._condition(path, HasElement(part), where)
            case "$not":
                if not isinstance(operand, Mapping):
                    raise _error(where, "takes an object of operators")
                return Not(self._operators(path, operand, where, depth + 1))
            case _:
                raise _error(where, "unknown operator, or not one that stands here")

    def _listed(self, path: tuple[str, ...], name: str, operand: object, where: str) -> Filter:
        if not is_list(operand):
            raise _error(where, "takes a list")
        if name == "$all":
            parts = self._equals(path, operand, where)
            return Every(parts) if parts else Some(())
        found = self._any_of(path, operand, where)
        return found if name == "$in" else Not(found)

    def _any_of(self, path: tuple[str, ...], operand: Sequence[object], where: str) -> Filter:
        return Some(self._equals(path, operand, where))

    def _equals(
        self, path: tuple[str, ...], operand: Sequence[object], where: str
    ) -> tuple[Filter, ...]:
        return tuple(
            self._condition(path, Equals(self._plain(value, where)), where) for value in operand
        )

    def _contains(self, path: tuple[str, ...], operand: object, where: str) -> Filter:
        values = operand if is_list(operand) else (operand,)
        if not values:
            raise _error(where, "takes a value, or a list of at least one")
        return _every(
            [self._condition(path, Contains(self._plain(value, where)), where) for value in values]
        )

    def _element(self, operand: object, where: str, depth: int) -> Filter:
        if not isinstance(operand, Mapping):
            raise _error(where, "takes an object of operators or of conditions")
        if _is_of_operators(operand):
            return self._operators((), operand, where, depth + 1)
        return Every((IsObject(), self.conditions(operand, where, depth + 1)))

    def _condition(self, path: tuple[str, ...], test: Test, where: str) -> Filter:
        self._count += 1
        if self._count > FILTER_CONDITIONS_MAX:
            raise _error(where, f"more than {FILTER_CONDITIONS_MAX} conditions and values")
        return Condition(path, test)

    def _plain(self, value: object, where: str, depth: int = 1) -> object:
        """A value that can be compared with; lists and objects within the limits too."""
        if depth > FILTER_DEPTH_MAX:
            raise _error(where, f"nested deeper than {FILTER_DEPTH_MAX} levels")
        if is_list(value) or isinstance(value, Mapping):
            items = value.values() if isinstance(value, Mapping) else value
            for item in items:
                self._count += 1
                if self._count > FILTER_CONDITIONS_MAX:
                    raise _error(where, f"more than {FILTER_CONDITIONS_MAX} conditions and values")
                self._plain(item, where, depth + 1)
        elif isinstance(value, float) and not math.isfinite(value):
            raise _error(where, "numbers must be finite")
        elif scalar_key(value) is None:
            raise _error(where, "is no value that JSON has")
        return value


def _is_of_operators(operand: object) -> bool:
    """Whether an object says something of a value itself, and not of the fields in it."""
    if not isinstance(operand, Mapping) or not operand:
        return False
    return all(
        _is_of_operators(inner)
        if name == "$not"
        else name.startswith("$") and name not in ("$and", "$or", "$nor")
        for name, inner in operand.items()
    )


def _every(parts: list[Filter]) -> Filter:
    return parts[0] if len(parts) == 1 else Every(tuple(parts))


def _path(key: str, where: str) -> tuple[str, ...]:
    path = tuple(key.split("."))
    if not all(path) or len(key.encode()) > FILTER_KEY_BYTES_MAX:
        raise _error(where, "the key is too long or has an empty step")
    return path


def _ordered(operand: object, where: str) -> float | str:
    key = scalar_key(operand)
    if not isinstance(key, (str, float)) or (isinstance(key, float) and not math.isfinite(key)):
        raise _error(where, "takes a finite number or a string")
    return key


def _size(operand: object, where: str) -> int:
    key = scalar_key(operand)
    if not isinstance(key, float) or not key.is_integer() or key < 0:
        raise _error(where, "takes a whole number, 0 or more")
    return int(key)


def _expression(pattern: object, options: object, where: str) -> Finds:
    if not isinstance(pattern, str) or len(pattern.encode()) > REGEX_BYTES_MAX:
        raise _error(where, f"takes a string of at most {REGEX_BYTES_MAX} bytes")
    if not isinstance(options, str) or not set(options) <= set(_OPTIONS):
        raise _error(where, '$options takes a string of "i", "m" and "s"')
    flags = f"(?{''.join(sorted(set(options)))})" if options else ""
    is_found = compiled(flags + pattern)
    if is_found is None:
        raise _error(where, "is not an expression in RE2 syntax, or too large a one")
    return Finds(is_found)


def _error(where: str, description: str) -> InvalidArgumentError:
    return InvalidArgumentError.of(where, description)


def _shown(key: str) -> str:
    """A key as an error may show it: short, printable."""
    return "".join(c if c.isprintable() else "?" for c in key[:64])
