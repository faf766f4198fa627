"""Windows around hits, and groups: one statement, and no more bytes than asked for.

All hits and all neighbours come from one statement that yields them in the order in
which they are taken: the hits, best first, then hit by hit the earlier and the later neighbours,
nearest first. SQLite makes each row when it is asked for the next, so that what is not wanted is
not read. Bodies are read until they fill the bytes. From there on only places are read, to tell
how much was left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, cast

import apsw

from ..types.errors import CorruptDataError
from ..types.stored_message import DecodeMessage, StoredMessage
from ..types.windows import GroupQuery, GroupRows, WindowQuery, WindowRows
from .reading import seqs_of_ids
from .rows import (
    MESSAGE_COLUMNS,
    MESSAGE_REVISION,
    MESSAGES,
    sound_messages,
    stored_message,
)

_RESOURCE = "(SELECT resource_key FROM resources WHERE resource_id = ?1)"
_THREAD = f"(SELECT thread_key FROM threads WHERE thread_id = ?2 AND resource_key = {_RESOURCE})"
_PLACE = attrgetter("create_time_ns", "seq")
_GROUP = f"m.thread_key = {_THREAD} AND m.group_id = ?3 AND m.group_id <> ''"
_WALKS = ("earlier", "later")
_PLACE_COLUMNS = "m.seq, NULL, NULL, NULL, m.revision"


def _next(direction: str, order: str, excluding: str) -> str:
    """The seq of the neighbour of `p` on one side, by (create_time_ns, seq).

    Two seeks. One comparison of pairs would read every row of the same time, which are all that
    were given without a time in one call.
    """
    row = f"SELECT b.seq FROM messages b WHERE b.thread_key = p.thread_key{excluding}"
    return (
        f"coalesce(({row} AND b.create_time_ns = p.create_time_ns AND b.seq {direction} p.seq"
        f" ORDER BY b.seq {order} LIMIT 1),"
        f" ({row} AND b.create_time_ns {direction} p.create_time_ns"
        f" ORDER BY b.create_time_ns {order}, b.seq {order} LIMIT 1))"
    )


def _neighbour(start: str, excluding: str) -> str:
    """The seq of the neighbour of `p` on the walk `start`: the odd ones go back."""
    earlier, later = _next("<", "DESC", excluding), _next(">", "ASC", excluding)
    return f"CASE WHEN {start} & 1 THEN {earlier} ELSE {later} END"


def _walks(columns: str, source: str, excluding: str) -> str:
    """Columns of every hit and neighbour; then whether it is a neighbour, and its hit's position.

    Two walks start at each hit, so ?2 names each twice: the odd one goes back, the even one on. The
    ORDER BY of a recursive statement says which row is walked from next, and so in which order
    rows come. Positions are from 0.
    """
    return (
        "WITH RECURSIVE walk(is_neighbour, start, steps, seq, thread_key, create_time_ns) AS ("
        "SELECT 0, c.rowid, 0, m.seq, m.thread_key, m.create_time_ns FROM carray(?2) c"
        f" CROSS JOIN messages m ON m.seq = c.value AND m.resource_key = {_RESOURCE}"
        " UNION ALL "
        "SELECT 1, p.start, p.steps + 1, n.seq, n.thread_key, n.create_time_ns FROM walk p"
        f" CROSS JOIN messages n ON n.seq = {_neighbour('p.start', excluding)}"
        " WHERE p.steps < CASE WHEN p.start & 1 THEN ?3 ELSE ?4 END"
        " ORDER BY 1, 2, 3)"
        f" SELECT {columns}, p.is_neighbour, (p.start - 1) / 2"
        f" FROM walk p CROSS JOIN {source} WHERE m.seq = p.seq AND (p.is_neighbour OR p.start & 1)"
    )


def _single_steps(columns: str, source: str, excluding: str) -> str:
    """The same where no walk is longer than one step, as by default: a third quicker."""
    return (
        f"SELECT {columns}, p.is_neighbour, (p.start - 1) / 2 FROM ("
        "SELECT 0 AS is_neighbour, c.rowid AS start, c.value AS seq FROM carray(?2) c"
        " WHERE c.rowid & 1"
        " UNION ALL "
        f"SELECT 1, c.rowid, {_neighbour('c.rowid', excluding)} FROM carray(?2) c"
        f" CROSS JOIN messages p ON p.seq = c.value AND p.resource_key = {_RESOURCE}"
        " WHERE CASE WHEN c.rowid & 1 THEN ?3 ELSE ?4 END"
        f") p CROSS JOIN {source} WHERE m.seq = p.seq AND m.resource_key = {_RESOURCE}"
    )


@dataclass(frozen=True, slots=True)
class _Statements:
    """What a recall asks: whole messages, or their places alone."""

    bodies: str
    places: str

    @classmethod
    def of(cls, form: Callable[[str, str, str], str], excluding: str) -> _Statements:
        return cls(
            form(MESSAGE_COLUMNS, MESSAGES, excluding),
            form(_PLACE_COLUMNS, "messages m", excluding),
        )


_EXCLUDING = " AND b.seq NOT IN (SELECT value FROM carray(?5))"
STATEMENTS = {
    (is_single, is_excluding): _Statements.of(
        _single_steps if is_single else _walks, _EXCLUDING if is_excluding else ""
    )
    for is_single in (True, False)
    for is_excluding in (True, False)
}
"""By whether one step is enough, and whether there are exclusions."""


def windows(
    connection: apsw.Connection,
    query: WindowQuery,
    decode: DecodeMessage,
    damaged: Callable[[int], None],
) -> WindowRows:
    """Hits and neighbours, each once; see the port. Damaged ones are told and left out."""
    hits = list(dict.fromkeys(query.hits))
    if not hits:
        return WindowRows((), ())
    bindings: tuple[object, ...] = (
        query.resource_id,
        apsw.carray(array("q", [seq for seq, _ in hits for _ in _WALKS])),
        query.before,
        query.after,
    )
    is_excluding = False
    if query.excluded_ids:
        excluded = seqs_of_ids(connection, query.resource_id, query.excluded_ids)
        is_excluding = excluded.size > 0
        if is_excluding:
            bindings = (*bindings, apsw.carray(excluded))
    asked = STATEMENTS[max(query.before, query.after) <= 1, is_excluding]
    reading = _WindowReading(query, hits, decode, damaged)
    if not reading.take(connection.execute(asked.bodies, bindings), whole=True):
        reading.take(connection.execute(asked.places, bindings), whole=False)
    return reading.rows()


def group(
    connection: apsw.Connection,
    query: GroupQuery,
    decode: DecodeMessage,
    damaged: Callable[[int], None],
) -> GroupRows:
    """A group in order, or nothing of it where it is too large. Lengths are read first.

    Nothing either where a member is damaged, which is told.
    """
    names = (query.resource_id, query.thread_id, query.group_id)
    lengths = connection.execute(
        f"SELECT m.seq, length(m.encoded) FROM messages m WHERE {_GROUP} LIMIT ?4",
        (*names, query.messages_max + 1),
    )
    sizes = dict(cast("Iterator[tuple[int, int]]", lengths))
    if len(sizes) > query.messages_max:
        return GroupRows(None)
    if sum(sizes.values()) > query.bytes_max:
        return GroupRows(None, tuple(sorted(sizes)))
    rows = connection.execute(
        f"SELECT {MESSAGE_COLUMNS} FROM {MESSAGES} WHERE {_GROUP} ORDER BY m.create_time_ns, m.seq",
        names,
    ).fetchall()
    members = tuple(sound_messages(rows, query.resource_id, decode, damaged))
    return GroupRows(members if len(members) == len(rows) else None)


class _WindowReading:
    """The messages taken so far, the room that is left, and what did not fit."""

    def __init__(
        self,
        query: WindowQuery,
        hits: list[tuple[int, int]],
        decode: DecodeMessage,
        damaged: Callable[[int], None],
    ) -> None:
        self._query = query
        self._tell_damaged = damaged
        self._hits = hits
        self._decode = decode
        self._there: set[int] = set()
        self._taken: dict[int, StoredMessage] = {}
        self._dropped: set[int] = set()
        self._damaged: set[int] = set()

    def take(self, rows: Iterator[tuple[Any, ...]], *, whole: bool) -> bool:
        """Take rows as they come, whole messages until one does not fit, or count their places.

        Returns:
            Whether all fitted.
        """
        taken, there, hits, damaged = self._taken, self._there, self._hits, self._damaged
        resource_id, decode, matching = self._query.resource_id, self._decode, self._query.matching
        room = self._query.bytes_max
        for row in rows:
            seq, revision, is_neighbour, hit = row[0], row[MESSAGE_REVISION], row[-2], row[-1]
            if seq in taken or seq in damaged or (is_neighbour and hit not in there):
                continue
            message: StoredMessage | None = None
            if whole:
                try:
                    message = stored_message(row, resource_id, decode)
                except CorruptDataError:  # told, not taken for an edit
                    damaged.add(seq)
                    self._tell_damaged(seq)
                    continue
            if not is_neighbour and (seq, revision) != hits[hit]:
                continue
            if matching is not None and not matching.allow(seq, revision):
                continue
            if not is_neighbour:
                there.add(hit)
            if message is None:
                self._dropped.add(seq)
                continue
            room -= len(message.encoded)
            if room < 0 and taken:
                return False
            taken[seq] = message
        return True

    def rows(self) -> WindowRows:
        """What was taken, in answer order."""
        threads: dict[str, list[StoredMessage]] = {}  # by their first message here
        for message in sorted(self._taken.values(), key=_PLACE):
            thread = threads.get(message.thread_id)
            if thread is None:
                threads[message.thread_id] = [message]
            else:
                thread.append(message)
        return WindowRows(
            tuple(chain.from_iterable(threads.values())),
            tuple(sorted(self._dropped)),
            tuple(sorted(self._damaged)),
        )
