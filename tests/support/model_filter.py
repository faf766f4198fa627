"""Metadata filters evaluated in plain Python, from the meaning at the top of types/filters.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from semanticrecall_core.types import filters
from semanticrecall_core.types.filters import Comparison, Condition, Filter, Scalar

_MISSING = object()


def holds(condition: Filter, metadata_json: str) -> bool:
    """Whether a message with this metadata ("" for none) matches."""
    return _holds(condition, _parsed(metadata_json))


def has_key(metadata_json: str, dotted_key: str) -> bool:
    """Whether there is a value, null included, under the key."""
    return _value(_parsed(metadata_json), dotted_key.split(".")) is not _MISSING


def _parsed(metadata_json: str) -> Any:
    return json.loads(metadata_json) if metadata_json else {}


def _holds(condition: Filter, document: Any) -> bool:
    match condition:
        case filters.Not(part=part):
            return not _holds(part, document)
        case filters.All(parts=parts):
            return all(_holds(part, document) for part in parts)
        case filters.Any(parts=parts):
            return any(_holds(part, document) for part in parts)
        case Condition():
            return _condition(condition, _value(document, condition.path))


def _value(document: Any, path: Sequence[str]) -> Any:
    for step in path:
        if not isinstance(document, dict) or step not in document:
            return _MISSING
        document = document[step]
    return document


def _condition(condition: Condition, value: Any) -> bool:
    if condition.comparison is Comparison.EXISTS:
        return (value is not _MISSING) == condition.values[0]
    candidates = value if isinstance(value, list) else [value]
    return any(
        _compares(condition.comparison, candidate, wanted)
        for candidate in candidates
        for wanted in condition.values
    )


def _compares(comparison: Comparison, value: Any, wanted: Scalar) -> bool:
    if comparison in (Comparison.EQ, Comparison.IN):
        if wanted is None:
            return value is None or value is _MISSING
        return _kind(value) == _kind(wanted) and _comparable(value) == _comparable(wanted)
    if _kind(value) != _kind(wanted) or _kind(value) not in ("number", "string"):
        return False
    left, right = _comparable(value), _comparable(wanted)
    match comparison:
        case Comparison.GT:
            return left > right
        case Comparison.GTE:
            return left >= right
        case Comparison.LT:
            return left < right
        case _:
            return left <= right


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case _:
            return "other"


def _comparable(value: Any) -> Any:
    """Numbers as doubles, strings as their code points."""
    if _kind(value) == "number":
        return float(value)
    return [ord(c) for c in value] if isinstance(value, str) else value
