"""A collection in memory: every vector, its id and its metadata, and how it follows changes.

Rows are only ever added. Who replaces or removes a vector marks its row as gone, and what is
searched is a moment: how many rows there are, and which of them live. So a search never waits for a
change, nor a change for a search; it sees all of a change or nothing of it. When too many rows are
gone the living ones are copied to a collection without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson

from ..types.collections import CollectionInfo, Metric, VectorMatch, VectorQuery
from ..types.values import CallBudget
from .columns import Columns
from .filters import Filter
from .searching import Searched, lengths_of, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .columns import Mask

    Rows32 = NDArray[np.float32]
    _Found = tuple[float, str, int]  # the score's negative, the id, the row

GONE_ROWS_MIN: Final = 1_024
"""Fewer rows that are gone are no reason to copy the others."""

GONE_SHARE_MAX: Final = 0.25
_ROOM: Final = 1.25
_SORTED_AT_ONCE: Final = 20_000
_NUMBERS_BYTES: Final = 9  # of a row's length, and of whether it lives
_ROW_BYTES: Final = (
    300  # of Python's objects for an id and its metadata, and the dictionary's entry
)


def bytes_when_read(vectors: int, dimensions: int, text_bytes: int) -> int:
    """Of memory that a collection takes when it was read from its file.

    Args:
        vectors, dimensions: of the collection.
        text_bytes: of its ids and metadata.
    """
    return vectors * (4 * dimensions + _NUMBERS_BYTES + _ROW_BYTES) + text_bytes


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A vector as the file has it.

    Attributes:
        values: shape (dimensions,).
        metadata: a JSON object in UTF-8.
    """

    id: str
    values: NDArray[np.float32]
    metadata: bytes


@dataclass(frozen=True, slots=True)
class _Moment:
    """What is searched: rows up to `len(alive)`; arrays and lists may have more."""

    values: Rows32
    lengths: NDArray[np.float64]
    alive: Mask
    ids: list[str]
    metadata: list[bytes]
    columns: Columns


class LoadedCollection:
    """One collection. Searched by any thread, changed by one at a time.

    Attributes:
        key: of the collection in the file.
    """

    def __init__(self, key: int, name: str, dimensions: int, metric: Metric, room: int) -> None:
        """Nothing is in it.

        Args:
            key, name, dimensions, metric: of the collection.
            room: for so many vectors; it grows by itself.
        """
        self.key = key
        self._name = name
        self._dimensions = dimensions
        self._metric = metric
        self._row_of: dict[str, int] = {}
        self._text_bytes = 0
        self._moment = self._empty(room)

    def _empty(self, room: int) -> _Moment:
        return _Moment(
            np.empty((room, self._dimensions), np.float32),
            np.empty(room, np.float64),
            np.empty(0, bool),
            [],
            [],
            Columns(),
        )

    @property
    def info(self) -> CollectionInfo:
        """What it is now."""
        return CollectionInfo(self._name, self._dimensions, self._metric, len(self._row_of))

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        return self._dimensions

    @property
    def metric(self) -> Metric:
        """How they are compared."""
        return self._metric

    @property
    def memory_bytes(self) -> int:
        """Roughly."""
        moment = self._moment
        arrays = moment.values.nbytes + moment.lengths.nbytes + moment.alive.nbytes
        objects = self._text_bytes + _ROW_BYTES * len(moment.ids)
        return int(arrays + objects + moment.columns.memory_bytes)

    # ---- looking ----

    def search(
        self,
        query: VectorQuery,
        values: Rows32 | None,
        condition: Filter | None,
        budget: CallBudget,
    ) -> list[VectorMatch]:
        """See `VectorCollections.query`.

        Args:
            query: what is asked for.
            values: its vector, shape (dimensions,); None compares nothing.
            condition: its filter.
            budget: raises DeadlineExceededError or CancelledError soon after it is over.
        """
        moment = self._moment
        chosen = _matching(moment, condition, budget)
        if values is None:
            found: Iterator[_Found] = (
                (0.0, moment.ids[row], row) for row in np.flatnonzero(chosen).tolist()
            )
        else:
            count = len(chosen)
            searched = Searched(moment.values[:count], moment.lengths[:count], self._metric)
            rows, scores = nearest(searched, chosen, values, query.top_k, budget)
            found = (
                (-score, moment.ids[row], row)
                for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
            )
        if query.score_min is not None:
            least = float(np.float32(query.score_min))
            found = (one for one in found if -one[0] >= least)
        return [
            VectorMatch(
                id,
                -negative or 0.0,
                orjson.loads(moment.metadata[row]),
                moment.values[row].copy() if query.include_values else None,
            )
            for negative, id, row in _first(found, query.top_k, budget)
        ]

    def ids_matching(self, condition: Filter, budget: CallBudget) -> list[str]:
        """Ids of the vectors whose metadata match."""
        moment = self._moment
        chosen = _matching(moment, condition, budget)
        return [moment.ids[row] for row in np.flatnonzero(chosen).tolist()]

    def stored(self, id: str) -> StoredVector | None:
        """One vector; asked by whoever changes the collection."""
        row = self._row_of.get(id)
        if row is None:
            return None
        return StoredVector(id, self._moment.values[row], self._moment.metadata[row])

    # ---- changing ----

    def apply(self, removed: Iterable[str], put: Sequence[StoredVector]) -> None:
        """Follow a change that is on disk; the moment after it is searched from then on.

        Args:
            removed: ids that are gone; unknown ones are none.
            put: what came or was replaced afterwards, each id once.
        """
        before = self._moment
        gone = [row for id in removed if (row := self._row_of.pop(id, None)) is not None]
        gone += [row for one in put if (row := self._row_of.get(one.id)) is not None]
        count = len(before.ids)
        values, lengths = self._with_room(before, count + len(put))
        if put:
            values[count : count + len(put)] = np.stack([one.values for one in put])
            lengths[count : count + len(put)] = lengths_of(values[count : count + len(put)])
        for row, one in enumerate(put, count):
            before.ids.append(one.id)
            before.metadata.append(one.metadata)
            self._row_of[one.id] = row
            self._text_bytes += len(one.metadata) + len(one.id)
        alive = np.ones(count + len(put), bool)
        alive[:count] = before.alive
        alive[gone] = False
        moment = _Moment(values, lengths, alive, before.ids, before.metadata, before.columns)
        if len(alive) - len(self._row_of) > max(GONE_ROWS_MIN, GONE_SHARE_MAX * len(alive)):
            moment = self._without_gone(moment)
        self._moment = moment

    def _with_room(self, moment: _Moment, rows: int) -> tuple[Rows32, NDArray[np.float64]]:
        """Arrays for so many rows, with those that there are."""
        if rows <= len(moment.values):
            return moment.values, moment.lengths
        count = len(moment.ids)
        grown = self._empty(int(rows * _ROOM) + 1)
        grown.values[:count] = moment.values[:count]
        grown.lengths[:count] = moment.lengths[:count]
        return grown.values, grown.lengths

    def _without_gone(self, moment: _Moment) -> _Moment:
        kept = np.flatnonzero(moment.alive)
        copy = self._empty(int(len(kept) * _ROOM) + 1)
        copy.values[: len(kept)] = moment.values[kept]
        copy.lengths[: len(kept)] = moment.lengths[kept]
        copy.ids.extend(moment.ids[row] for row in kept.tolist())
        copy.metadata.extend(moment.metadata[row] for row in kept.tolist())
        self._row_of = {id: row for row, id in enumerate(copy.ids)}
        self._text_bytes = sum(map(len, copy.ids)) + sum(map(len, copy.metadata))
        alive = np.ones(len(kept), bool)
        return _Moment(copy.values, copy.lengths, alive, copy.ids, copy.metadata, copy.columns)


def _first(found: Iterator[_Found], count: int, budget: CallBudget) -> list[_Found]:
    """The lowest ones in order."""
    first: list[_Found] = []
    while some := list(islice(found, _SORTED_AT_ONCE)):
        budget.check()
        first = sorted(first + some)[:count]
    return first


def _matching(moment: _Moment, condition: Filter | None, budget: CallBudget) -> Mask:
    if condition is None:
        return moment.alive
    return moment.columns.matching(condition, moment.metadata, moment.alive, budget)
