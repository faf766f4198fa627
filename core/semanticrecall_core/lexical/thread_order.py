"""The places of a partition's messages: thread by thread, in each by (time, seq).

Neighbours in a thread stand at neighbouring places, so that the words around every message are
counted by shifting whole arrays. Between two threads REACH places are free: what is shifted out of
one thread never comes into another. Each thread has some room to grow; when that is used up it
moves to the end with more, and when most places are unused all threads move together.

Only the writer has this. Readers have the places that each part of a view holds, which are
replaced, never changed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import IntColumn

    PlaceColumn = NDArray[np.int64]

REACH = 2
"""How far the words around a message are looked at, either way."""
DEAD_PLACE = REACH
"""The place of messages that are gone; never one of a living message."""
FIRST_PLACE = 2 * REACH + 1

_TURN_MESSAGES_MAX = 16
_THREAD_BYTES = 160
"""Of a thread in the dictionary and the columns, rounded up."""


class TimesAt(Protocol):
    """What stands at places: times and seqs."""

    def __call__(self, places: PlaceColumn) -> tuple[IntColumn, IntColumn]:
        """The times and the seqs of living messages at these places."""
        ...


@dataclass(slots=True)
class Placed:
    """Where messages go: `places` of the new ones; `moves` is None if nobody else moves.

    `moves` has for every place until now the one that its message has from now on.
    """

    places: PlaceColumn
    moves: PlaceColumn | None


class ThreadOrder:
    """Threads and their places. For one thread of execution at a time."""

    __slots__ = ("_counts", "_free", "_last_seqs", "_last_times", "_numbers", "_rooms", "_starts",
                 "_unused", "end")  # fmt: skip

    def __init__(self) -> None:
        """No threads."""
        self._numbers: dict[int, int] = {}
        self._starts, self._counts, self._rooms = array("q"), array("q"), array("q")
        self._last_times, self._last_seqs = array("q"), array("q")
        self._free: list[int] = []
        self._unused = 0
        self.end = FIRST_PLACE
        """Places in use or kept free, from 0; the last REACH of them are free."""

    def nbytes(self) -> int:
        """Bytes of memory, rounded up."""
        return _THREAD_BYTES * len(self._starts)

    def build(self, keys: IntColumn, times: IntColumn, seqs: IntColumn) -> PlaceColumn:
        """The places of a whole partition's messages. Only as long as there are none."""
        if not len(keys):
            return np.empty(0, np.int64)
        order = np.lexsort((seqs, times, keys))
        ordered = keys[order]
        firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        counts = np.diff(np.append(firsts, len(keys)))
        rooms = counts + _slack(counts)
        starts = FIRST_PLACE + np.cumsum(rooms + REACH) - (rooms + REACH)
        lasts = order[firsts + counts - 1]
        self._numbers = dict(zip(ordered[firsts].tolist(), range(len(firsts)), strict=True))
        self._starts = array("q", starts.astype(np.int64).tobytes())
        self._counts = array("q", counts.astype(np.int64).tobytes())
        self._rooms = array("q", rooms.astype(np.int64).tobytes())
        self._last_times = array("q", times[lasts].astype(np.int64).tobytes())
        self._last_seqs = array("q", seqs[lasts].astype(np.int64).tobytes())
        self.end = int(starts[-1] + rooms[-1]) + REACH
        places = np.empty(len(keys), np.int64)
        places[order] = np.repeat(starts - firsts, counts) + np.arange(len(keys))
        return places

    def change(
        self,
        gone: tuple[IntColumn, PlaceColumn],
        added: tuple[IntColumn, IntColumn, IntColumn],
        times_at: TimesAt,
    ) -> Placed:
        """Take messages out and put others in.

        Args:
            gone: thread keys and places of those that leave.
            added: thread keys, times and seqs of those that come.
            times_at: of the messages as they stand until now.
        """
        keys, times, seqs = added
        moves = _Moves(self.end)
        if len(keys) <= _TURN_MESSAGES_MAX and not len(gone[0]):
            appended = self._turn(keys.tolist(), times.tolist(), seqs.tolist(), moves)
            if appended is not None:
                return Placed(appended, moves.of)
        places = np.empty(len(keys), np.int64)
        leaving = _by_key(gone[0])
        order = np.lexsort((seqs, times, keys)) if len(keys) > 1 else np.arange(len(keys))
        coming = {key: order[group] for key, group in _by_key(keys[order]).items()}
        for key in leaving.keys() | coming.keys():
            rows = coming.get(key)
            if rows is not None and key not in leaving:
                at = self._appended(key, int(times[rows[0]]), int(seqs[rows[0]]), len(rows), moves)
                if at is not None:
                    places[rows] = np.arange(at, at + len(rows))
                    self._set_last(key, int(times[rows[-1]]), int(seqs[rows[-1]]))
                    continue
            out = gone[1][leaving[key]] if key in leaving else np.empty(0, np.int64)
            rows = rows if rows is not None else np.empty(0, np.intp)
            places[rows] = self._rearranged(key, out, (times[rows], seqs[rows]), times_at, moves)
        return Placed(places, moves.of)

    def _turn(
        self, keys: list[int], times: list[int], seqs: list[int], moves: _Moves
    ) -> PlaceColumn | None:
        """Where messages of one thread go that come in its order, after all others.

        None where it is otherwise. What a turn adds is nearly always so, and needs no sorting.
        """
        if not keys or keys.count(keys[0]) < len(keys):
            return None
        stamps = list(zip(times, seqs, strict=True))
        if stamps != sorted(stamps):
            return None
        start = self._appended(keys[0], *stamps[0], len(keys), moves)
        if start is None:
            return None
        self._set_last(keys[0], *stamps[-1])
        return np.arange(start, start + len(keys), dtype=np.int64)

    def is_wasteful(self) -> bool:
        """Whether more than half of the places are of no use."""
        return self._unused > 1024 and 2 * self._unused > self.end

    def compacted(self) -> PlaceColumn:
        """Move all threads together; for every place the one that its message has from now on."""
        moves = np.full(self.end, DEAD_PLACE, np.int64)
        numbers = np.fromiter(self._numbers.values(), np.int64, len(self._numbers))
        starts = np.frombuffer(self._starts, np.int64)[numbers]
        counts = np.frombuffer(self._counts, np.int64)[numbers]
        rooms = counts + _slack(counts)
        fresh = FIRST_PLACE + np.cumsum(rooms + REACH) - (rooms + REACH)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        moves[np.repeat(starts, counts) + within] = np.repeat(fresh, counts) + within
        for i, number in enumerate(numbers.tolist()):
            self._starts[number], self._rooms[number] = int(fresh[i]), int(rooms[i])
        self.end = FIRST_PLACE + int((rooms + REACH).sum())
        self._unused = 0
        return moves

    def _appended(self, key: int, time_ns: int, seq: int, count: int, moves: _Moves) -> int | None:
        """Where messages go that come after all others of their thread; None: they do not."""
        number = self._numbers.get(key)
        if number is None:
            number = self._new_thread(key, count)
            start = self._starts[number]
        elif (time_ns, seq) < (self._last_times[number], self._last_seqs[number]):
            return None
        else:
            start = self._starts[number] + self._counts[number]
            if self._counts[number] + count > self._rooms[number]:
                self._relocate(number, self._counts[number] + count, moves)
                start = self._starts[number] + self._counts[number]
        self._counts[number] += count
        return start

    def _rearranged(
        self,
        key: int,
        gone: PlaceColumn,
        added: tuple[IntColumn, IntColumn],
        times_at: TimesAt,
        moves: _Moves,
    ) -> NDArray[np.int64]:
        """The places of those that come, after some left and all are in order again."""
        number = self._numbers[key]
        old = self._starts[number]
        kept = np.ones(self._counts[number], np.bool_)
        kept[gone - old] = False
        staying = old + np.flatnonzero(kept)
        times, seqs = times_at(staying)
        all_times = np.concatenate([times, added[0]])
        all_seqs = np.concatenate([seqs, added[1]])
        order = np.lexsort((all_seqs, all_times))
        count = len(order)
        moves.whole()[old : old + len(kept)] = DEAD_PLACE
        if not count:
            self._end_thread(key, number)
            return np.empty(0, np.int64)
        if count > self._rooms[number]:
            self._move_to_end(number, count)
        self._counts[number] = count
        places = np.empty(count, np.int64)
        places[order] = np.arange(self._starts[number], self._starts[number] + count)
        moves.whole()[staying] = places[: len(staying)]
        self._set_last(key, int(all_times[order[-1]]), int(all_seqs[order[-1]]))
        return places[len(staying) :]

    def _relocate(self, number: int, count: int, moves: _Moves) -> None:
        """A thread with its messages to where `count` have room."""
        old, kept = self._starts[number], self._counts[number]
        self._move_to_end(number, count)
        new = self._starts[number]
        moves.whole()[old : old + kept] = np.arange(new, new + kept, dtype=np.int64)

    def _move_to_end(self, number: int, count: int) -> None:
        self._unused += self._rooms[number] + REACH
        self._starts[number] = self.end
        self._rooms[number] = 2 * count
        self.end += 2 * count + REACH

    def _new_thread(self, key: int, count: int) -> int:
        room = count + int(_slack(np.int64(count)))
        if self._free:
            number = self._free.pop()
            self._starts[number], self._counts[number], self._rooms[number] = self.end, 0, room
        else:
            number = len(self._starts)
            self._starts.append(self.end)
            self._counts.append(0)
            self._rooms.append(room)
            self._last_times.append(0)
            self._last_seqs.append(0)
        self._numbers[key] = number
        self.end += room + REACH
        return number

    def _end_thread(self, key: int, number: int) -> None:
        del self._numbers[key]
        self._free.append(number)
        self._unused += self._rooms[number] + REACH

    def _set_last(self, key: int, time_ns: int, seq: int) -> None:
        number = self._numbers[key]
        self._last_times[number], self._last_seqs[number] = time_ns, seq


class _Moves:
    """The moves of one change; made when there is a first one."""

    __slots__ = ("_end", "of")

    def __init__(self, end: int) -> None:
        self._end = end
        self.of: PlaceColumn | None = None

    def whole(self) -> PlaceColumn:
        if self.of is None:
            self.of = np.arange(self._end, dtype=np.int64)
        return self.of


def _slack(counts: NDArray[np.int64] | np.int64) -> NDArray[np.int64] | np.int64:
    """Room for more messages than a thread has, where it is placed the first time."""
    return 1 + counts // 4


def _by_key(keys: IntColumn) -> dict[int, NDArray[np.intp]]:
    """The positions of each key."""
    if not len(keys):
        return {}
    if len(keys) == 1:
        return {int(keys[0]): np.zeros(1, np.intp)}
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return {int(keys[group[0]]): group for group in np.split(order, cuts)}
