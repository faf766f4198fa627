"""Metadata filters as SQL conditions over `messages m`, with the meaning given in types/filters.py.

Only the filter's shape goes into the text: paths and values are bound, so that equal shapes share
a prepared statement and no value is ever read as SQL. Values are bound as one JSON list a
condition and type, which gives lists of any length one text. Numbers are compared as doubles.

Every condition yields 0 or 1, never NULL, so that NOT is the plain negation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..types.filters import All, Any, Comparison, Condition, Filter, Not, Scalar
from .filter_folding import folded

_OPERATORS = {
    Comparison.GT: ">",
    Comparison.GTE: ">=",
    Comparison.LT: "<",
    Comparison.LTE: "<=",
}


@dataclass(frozen=True, slots=True)
class SqlCondition:
    """An SQL expression over `messages m` and what its numbered parameters are bound to.

    The first parameters of the statement belong to others; see `compile_filter`.
    """

    text: str
    bindings: tuple[str | float, ...]


def compile_filter(condition: Filter, *, first_parameter: int) -> SqlCondition:
    """The SQL for a filter; its parameters are numbered from `first_parameter`."""
    compiler = _Compiler(first_parameter)
    text = compiler.expression(folded(condition))
    return SqlCondition(text, tuple(compiler.bindings))


def json_path(steps: Sequence[str]) -> str:
    """The SQLite JSON path through object keys; a label is a JSON string, so nothing in it counts.

    >>> json_path(("a", "b.c"))
    '$."a"."b.c"'
    """
    return "$" + "".join(f".{json.dumps(step, ensure_ascii=False)}" for step in steps)


class _Compiler:
    """Collects bindings while the expression is built."""

    def __init__(self, first_parameter: int) -> None:
        self.bindings: list[str | float] = []
        self._first = first_parameter

    def expression(self, condition: Filter) -> str:
        match condition:
            case Not(part=part):
                return f"(NOT {self.expression(part)})"
            case All(parts=parts):
                return "(" + " AND ".join(self.expression(part) for part in parts) + ")"
            case Any(parts=parts):
                return "(" + " OR ".join(self.expression(part) for part in parts) + ")"
            case Condition(comparison=Comparison.EXISTS):
                return self._exists(condition)
            case Condition(comparison=Comparison.EQ | Comparison.IN):
                return self._one_of(condition)
            case Condition():
                return self._ordered(condition)

    def _bind(self, value: str | float) -> str:
        self.bindings.append(value)
        return f"?{self._first + len(self.bindings) - 1}"

    def _exists(self, condition: Condition) -> str:
        path = self._bind(json_path(condition.path))
        wanted = "NOT NULL" if condition.values[0] is True else "NULL"
        return f"(json_type(m.metadata, {path}) IS {wanted})"

    def _one_of(self, condition: Condition) -> str:
        if not condition.values:
            return "0"
        path = self._bind(json_path(condition.path))
        # One test for a scalar's type, one for a list's element; both by JSON type first.
        scalar: list[tuple[str, str]] = []
        element: list[str] = []
        texts, numbers, words = _by_type(condition.values)
        if texts:
            known = f"(SELECT atom FROM json_each({self._bind(json.dumps(texts))}))"
            scalar.append(("'text'", f"json_extract(m.metadata, {path}) IN {known}"))
            element.append(f"(e.type = 'text' AND e.atom IN {known})")
        if numbers:
            values = self._bind(json.dumps(numbers))
            known = f"(SELECT CAST(atom AS REAL) FROM json_each({values}))"
            test = f"CAST(json_extract(m.metadata, {path}) AS REAL) IN {known}"
            scalar += [("'integer'", test), ("'real'", test)]
            element.append(f"(e.type IN ('integer', 'real') AND CAST(e.atom AS REAL) IN {known})")
        for word in words:
            scalar.append((f"'{word}'", "1"))
            element.append(f"e.type = '{word}'")
        if "null" in words:
            scalar.append(("'missing'", "1"))
        return self._by_case(path, scalar, element)

    def _ordered(self, condition: Condition) -> str:
        path = self._bind(json_path(condition.path))
        operator = _OPERATORS[condition.comparison]
        value = condition.values[0]
        if isinstance(value, str):
            bound = self._bind(value)
            test = f"json_extract(m.metadata, {path}) {operator} {bound}"
            scalar = [("'text'", test)]
            element = [f"(e.type = 'text' AND e.atom {operator} {bound})"]
        else:
            bound = self._bind(float(value or 0.0))
            test = f"CAST(json_extract(m.metadata, {path}) AS REAL) {operator} {bound}"
            scalar = [("'integer'", test), ("'real'", test)]
            element = [
                f"(e.type IN ('integer', 'real') AND CAST(e.atom AS REAL) {operator} {bound})"
            ]
        return self._by_case(path, scalar, element)

    def _by_case(self, path: str, scalar: Sequence[tuple[str, str]], element: Sequence[str]) -> str:
        """A CASE over the JSON type of the value under the path."""
        whens = " ".join(f"WHEN {kind} THEN {test}" for kind, test in scalar)
        anyone = " OR ".join(element)
        return (
            f"(CASE coalesce(json_type(m.metadata, {path}), 'missing') {whens} WHEN 'array' THEN"
            f" EXISTS (SELECT 1 FROM json_each(m.metadata, {path}) e WHERE {anyone}) ELSE 0 END)"
        )


def _by_type(values: Sequence[Scalar]) -> tuple[list[str], list[float], list[str]]:
    """Strings, numbers, and the JSON words true, false and null, each without repeats."""
    texts = sorted({v for v in values if isinstance(v, str)})
    numbers = sorted({float(v) for v in values if isinstance(v, float)})
    words = [
        word
        for word, value in (("true", True), ("false", False), ("null", None))
        if value in [v for v in values if v is None or isinstance(v, bool)]
    ]
    return texts, numbers, words
