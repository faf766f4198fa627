"""Filters made smaller without changing their meaning, so that a list is opened once a path.

Every comparison with a list holds where it holds for one element. From that follow, on one path:
  a = x or a = y            a in (x, y)
  not a = x and not a = y   not a in (x, y)
  a > x or a > y            a > min(x, y)         the other way round for < and <=
  a > x and a > y           a > max(x, y)
Bounds are merged with bounds of their own type only (number or string).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..types.filters import All, Any, Comparison, Condition, Filter, Not

_GREATER = (Comparison.GT, Comparison.GTE)
_LESS = (Comparison.LT, Comparison.LTE)


def folded(condition: Filter) -> Filter:
    """An equal filter with fewer conditions, or as many."""
    match condition:
        case Condition():
            return condition
        case Not(part=part):
            inner = folded(part)
            return inner.part if isinstance(inner, Not) else Not(inner)
        case All(parts=parts):
            return _all(_flat(parts, All))
        case Any(parts=parts):
            return _any(_flat(parts, Any))


def _flat(parts: Iterable[Filter], kind: type[All] | type[Any]) -> list[Filter]:
    """The parts, folded; an AND inside an AND, or an OR inside an OR, gives its own."""
    flat: list[Filter] = []
    for part in map(folded, parts):
        if isinstance(part, (All, Any)) and isinstance(part, kind):
            flat += part.parts
        else:
            flat.append(part)
    return flat


def _any(parts: Sequence[Filter]) -> Filter:
    merged = _merged(parts, of_any=True)
    return merged[0] if len(merged) == 1 else Any(tuple(merged))


def _all(parts: Sequence[Filter]) -> Filter:
    kept = [part for part in parts if not isinstance(part, Not)]
    refused = [part.part for part in parts if isinstance(part, Not)]
    merged = _merged(kept, of_any=False)
    if refused:
        merged.append(Not(_any(_flat(refused, Any))))
    return merged[0] if len(merged) == 1 else All(tuple(merged))


def _merged(parts: Sequence[Filter], *, of_any: bool) -> list[Filter]:
    """The parts with those conditions made one that can be, each where the first stood."""
    merged: dict[object, Filter] = {}
    for position, part in enumerate(parts):
        key = _key(part, of_any=of_any)
        other = merged.get(key)
        if isinstance(part, Condition) and isinstance(other, Condition):
            merged[key] = _joined(other, part, of_any=of_any)
        else:
            merged[position if key is None else key] = part
    return list(merged.values())


def _key(part: Filter, *, of_any: bool) -> object:
    """What conditions share that can be made one; None for what stays alone."""
    if not isinstance(part, Condition) or part.comparison is Comparison.EXISTS:
        return None
    if part.comparison in _GREATER or part.comparison in _LESS:
        return (part.path, part.comparison, type(part.values[0]))
    return (part.path, Comparison.IN) if of_any else None


def _joined(one: Condition, other: Condition, *, of_any: bool) -> Condition:
    if one.comparison in _GREATER or one.comparison in _LESS:
        widest = min if (one.comparison in _GREATER) == of_any else max
        return replace(one, values=(widest(one.values[0], other.values[0]),))  # type: ignore[type-var]
    return Condition(one.path, Comparison.IN, one.values + other.values)
