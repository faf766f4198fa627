"""Finding the rows that match a filter, without looking at each of them.

A column says which rows have which value under one path. It is made when a filter first asks for
that path, and from then on reads what rows came since, whenever it is asked. So equality costs what
it finds; ranges and expressions look once at each distinct value; only conditions on lists and
objects as a whole look at rows, and at those alone that have one there. Where few rows are left to
be looked at they are looked at one by one, and no column is made for it.

Rows are numbered by arrival and never change: who replaces one marks it as gone, elsewhere.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson

from ..types.values import CallBudget
from .filters import (
    MISSING,
    ORDERS,
    Compares,
    Condition,
    Contains,
    Equals,
    Every,
    Exists,
    Filter,
    Finds,
    IsObject,
    Not,
    ScalarKey,
    Some,
    is_list,
    matches,
    scalar_key,
    value_under,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

COLUMNS_MAX: Final = 32
"""Columns of one collection; the least recently used one makes room."""

ROWS_ONE_BY_ONE_MAX: Final = 1_000
KEYS_PER_ROW: Final = 4
"""So many values of a column are compared in the time that one row's metadata take."""

_ROWS_BETWEEN_CHECKS: Final = 1_000
_LOOKS_BETWEEN_CHECKS: Final = 50  # at rows under a condition that may be long itself
_KEY_BYTES: Final = 200  # of a dictionary's entry with its rows
_WAIT_S: Final = 0.1

Postings = dict[ScalarKey, "array[int]"]


class Column:
    """What rows have under one path.

    Attributes:
        rows: how many rows have been read.
        values: rows by the scalar that is there.
        elements: rows by each scalar that is in a list there.
        there: rows that have the path.
        structured: rows that have a list or an object there.
        memory_bytes: roughly.
    """

    def __init__(self, path: tuple[str, ...]) -> None:
        """No row has been read."""
        self._path = path
        self.rows = 0
        self.values: Postings = {}
        self.elements: Postings = {}
        self.there = array("i")
        self.structured = array("i")
        self.memory_bytes = 0

    @property
    def keys(self) -> int:
        """How many scalars there are, those in lists apart."""
        return len(self.values) + len(self.elements)

    def read_up_to(self, metadata: Sequence[bytes], rows: int, budget: CallBudget) -> None:
        """Read the rows that came since."""
        for row in range(self.rows, rows):
            if row % _ROWS_BETWEEN_CHECKS == 0:
                budget.check()
            self._read(row, value_under(orjson.loads(metadata[row]), self._path))
            self.rows = row + 1

    def _read(self, row: int, value: object) -> None:
        if value is MISSING:
            return
        self.there.append(row)
        key = scalar_key(value)
        if key is not None:
            self._post(self.values, key, row)
            return
        self.structured.append(row)
        if is_list(value):
            for element in {scalar_key(element) for element in value}:
                if element is not None:
                    self._post(self.elements, element, row)

    def _post(self, postings: Postings, key: ScalarKey, row: int) -> None:
        rows = postings.get(key)
        if rows is None:
            rows = postings[key] = array("i")
            self.memory_bytes += _KEY_BYTES + (len(key) if isinstance(key, str) else 0)
        rows.append(row)
        self.memory_bytes += rows.itemsize


class Columns:
    """The columns of one collection. Thread-safe."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._columns: OrderedDict[tuple[str, ...], Column] = OrderedDict()

    @property
    def memory_bytes(self) -> int:
        """Roughly."""
        return sum(column.memory_bytes for column in tuple(self._columns.values()))

    def matching(
        self, condition: Filter, metadata: Sequence[bytes], among: Mask, budget: CallBudget
    ) -> Mask:
        """Which rows match; true for rows of `among` only.

        Args:
            condition: the filter.
            metadata: of the rows, as JSON; at least as many as `among` has.
            among: the rows to look at.
            budget: raises DeadlineExceededError or CancelledError soon after it is over.
        """
        while not self._lock.acquire(timeout=min(_WAIT_S, budget.remaining())):
            budget.check()
        try:
            return _Evaluation(self._columns, metadata, budget).matching(condition, among)
        finally:
            self._lock.release()


class _Evaluation:
    """One filter over the rows of one moment."""

    def __init__(
        self,
        columns: OrderedDict[tuple[str, ...], Column],
        metadata: Sequence[bytes],
        budget: CallBudget,
    ) -> None:
        self._columns = columns
        self._metadata = metadata
        self._budget = budget

    def matching(self, condition: Filter, among: Mask) -> Mask:
        match condition:
            case Condition():
                return self._condition(condition, among)
            case Not(part=part):
                return among & ~self.matching(part, among)
            case Every(parts=parts):
                for part in sorted(parts, key=_cost):
                    if not among.any():
                        break
                    among = self.matching(part, among)
                return among
            case Some(parts=parts):
                found = np.zeros_like(among)
                for part in parts:
                    found |= self.matching(part, among & ~found)
                return found
            case IsObject():
                return among

    def _condition(self, condition: Condition, among: Mask) -> Mask:
        self._budget.check()
        column = self._columns.get(condition.path)
        is_ready = column is not None and column.rows >= len(among)
        if not is_ready or not isinstance(condition.test, (Equals, Exists)):
            looked_at = int(np.count_nonzero(among))
            keys = column.keys if column is not None and is_ready else len(among)
            if looked_at <= ROWS_ONE_BY_ONE_MAX and KEYS_PER_ROW * looked_at < keys:
                return self._one_by_one(condition, np.flatnonzero(among), len(among))
        if column is None:
            column = self._columns[condition.path] = Column(condition.path)
            while len(self._columns) > COLUMNS_MAX:
                self._columns.popitem(last=False)
        self._columns.move_to_end(condition.path)
        column.read_up_to(self._metadata, len(among), self._budget)
        found = self._in_column(condition, column, among)
        found &= among
        return found

    def _one_by_one(self, condition: Condition, rows: NDArray[np.int64], count: int) -> Mask:
        found = np.zeros(count, bool)
        for done, row in enumerate(rows.tolist()):
            if done % _LOOKS_BETWEEN_CHECKS == 0:
                self._budget.check()
            found[row] = matches(condition, orjson.loads(self._metadata[row]))
        return found

    def _in_column(self, condition: Condition, column: Column, among: Mask) -> Mask:
        count = len(among)
        test = condition.test
        match test:
            case Exists():
                return _mask([column.there], column, count)
            case Equals(operand=None):
                found = _mask(_of(column, scalar_key(None)), column, count)
                return found | ~_mask([column.there], column, count)
            case Equals(operand=operand) if (key := scalar_key(operand)) is not None:
                return _mask(_of(column, key), column, count)
            case Compares(operand=limit):
                kind, holds = type(limit), ORDERS[test.order]
                both = (column.values, column.elements)
                rows = self._keyed(both, lambda key: type(key) is kind and holds(key, limit))
                return _mask(rows, column, count)
            case Finds(is_found=is_found):
                both = (column.values, column.elements)
                rows = self._keyed(both, lambda key: isinstance(key, str) and is_found(key))
                return _mask(rows, column, count)
            case Contains(operand=str() as part):
                rows = self._keyed(
                    (column.values,), lambda key: isinstance(key, str) and part in key
                )
                return _mask([*rows, *_of_elements(column, part)], column, count)
            case Contains(operand=operand) if (key := scalar_key(operand)) is not None:
                return _mask(_of(column, key), column, count)
            case _:
                looked_at = _mask([column.structured], column, count) & among
                return self._one_by_one(condition, np.flatnonzero(looked_at), count)

    def _keyed(
        self, postings: Iterable[Postings], holds: Callable[[ScalarKey], bool]
    ) -> list[array[int]]:
        """The rows of the scalars for which something holds."""
        found: list[array[int]] = []
        for some in postings:
            for done, (key, rows) in enumerate(some.items()):
                if done % _ROWS_BETWEEN_CHECKS == 0:
                    self._budget.check()
                if holds(key):
                    found.append(rows)
        return found


def _of(column: Column, key: ScalarKey | None) -> list[array[int]]:
    """The rows that have a scalar, alone or in a list."""
    assert key is not None
    found = (column.values.get(key), column.elements.get(key))
    return [rows for rows in found if rows is not None]


def _of_elements(column: Column, key: ScalarKey) -> list[array[int]]:
    rows = column.elements.get(key)
    return [] if rows is None else [rows]


def _mask(postings: Iterable[array[int]], column: Column, count: int) -> Mask:
    """The first `count` rows, those of the postings true."""
    rows = array("i")
    for some in postings:
        rows.extend(some)
    mask = np.zeros(max(column.rows, count), bool)
    mask[np.frombuffer(rows, np.intc)] = True
    return mask[:count]


def _cost(condition: Filter) -> int:
    """What is done first of conditions that must all hold: what is cheap, and leaves few."""
    match condition:
        case Condition(test=Equals(operand=operand)):
            return 0 if scalar_key(operand) is not None and operand is not None else 2
        case Some(parts=parts) | Every(parts=parts):
            return max(map(_cost, parts), default=0)
        case Condition(test=Compares() | Exists()):
            return 1
        case _:
            return 2
