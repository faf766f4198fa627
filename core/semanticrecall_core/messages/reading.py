"""Reading: pages of history, filters, partitions, counts.

Each function runs inside one read transaction and has few, constant statement texts, so that
connections keep them prepared.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import apsw
import numpy as np

from ..types.filters import Filter
from ..types.stats import (
    StoreStats,
)
from ..types.stored_message import DecodeMessage
from ..types.values import (
    TIME_NS_MAX,
    TIME_NS_MIN,
    ListQuery,
    RowChecksums,
    StoredMessage,
    ThreadSummary,
)
from ..types.windows import MatchingRows
from . import keys
from .filter_sql import compile_filter, json_path
from .rows import MESSAGE_COLUMNS, MESSAGES, shown, sound_messages, stored_message
from .schema import read_record
from .vector_rows import VECTOR_COLUMNS, VectorColumns

if TYPE_CHECKING:
    from ..types.values import IntColumn

_RESOURCE = "(SELECT resource_key FROM resources WHERE resource_id = ?1)"
_THREAD = f"(SELECT thread_key FROM threads WHERE thread_id = ?2 AND resource_key = {_RESOURCE})"
_SERVED = "generation_key = (SELECT generation_key FROM record)"
_KEYS_ONE_BY_ONE = 4
_FourCounts = tuple[int, int, int, int]
_FiveCounts = tuple[int, int, int, int, int]
_CHECKSUM_ROW = np.dtype([("seq", ">i8"), ("chunk", ">i4"), ("checksum", ">i8")])
_MESSAGE = f"SELECT {MESSAGE_COLUMNS} FROM {MESSAGES}"


def thread_key(connection: apsw.Connection, resource_id: str, thread_id: str) -> int | None:
    """The key of a thread, None where there is none."""
    row = connection.execute(f"SELECT {_THREAD}", (resource_id, thread_id)).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def recent_resources(connection: apsw.Connection, limit: int) -> list[str]:
    """Resources by the time of their newest message, newest first: one index seek each."""
    rows = connection.execute(
        "SELECT CAST(resource_id AS BLOB), (SELECT create_time_ns FROM messages m"
        " WHERE m.resource_key = r.resource_key ORDER BY create_time_ns DESC LIMIT 1) AS newest"
        " FROM resources r WHERE newest IS NOT NULL ORDER BY newest DESC, resource_key LIMIT ?1",
        (limit,),
    )
    return [shown(cast("bytes", row[0])) for row in rows]


def messages_of_ids(
    connection: apsw.Connection,
    resource_id: str,
    message_ids: Sequence[str],
    decode: DecodeMessage,
) -> list[StoredMessage]:
    """Those that are there, in the order of the ids, each once."""
    if not message_ids:
        return []
    rows = connection.execute(
        f"SELECT {MESSAGE_COLUMNS} FROM carray(?2) c CROSS JOIN {MESSAGES}"
        f" WHERE m.resource_key = {_RESOURCE} AND m.id = CAST(c.value AS TEXT)",
        (resource_id, keys.id_array(dict.fromkeys(message_ids))),
    )
    return [stored_message(row, resource_id, decode) for row in rows]


def seqs_of_ids(
    connection: apsw.Connection, resource_id: str, message_ids: Sequence[str]
) -> IntColumn:
    """Sorted seqs of those that are there."""
    if not message_ids:
        return np.empty(0, np.int64)
    rows = connection.execute(
        "SELECT m.seq FROM carray(?2) c CROSS JOIN messages m"
        f" ON m.resource_key = {_RESOURCE} AND m.id = CAST(c.value AS TEXT)",
        (resource_id, keys.id_array(message_ids)),
    ).fetchall()
    return np.unique(np.array([row[0] for row in rows], np.int64))


def seqs_matching(connection: apsw.Connection, resource_id: str, condition: Filter) -> MatchingRows:
    """The messages whose metadata match."""
    where = compile_filter(condition, first_parameter=2)
    rows = connection.execute(
        f"SELECT m.seq FROM messages m WHERE m.resource_key = {_RESOURCE} AND {where.text}",
        (resource_id, *where.bindings),
    ).fetchall()
    seqs = np.sort(np.array([row[0] for row in rows], np.int64))
    return MatchingRows(seqs, read_record(connection).revision)


def unknown_metadata_keys(
    connection: apsw.Connection, resource_id: str, dotted_keys: frozenset[str]
) -> tuple[str, ...]:
    """Those that no message carries.

    A few keys are looked for one by one, each up to the first message that has it; for many, one
    pass that parses each message's metadata once.
    """
    names = sorted(dotted_keys)
    paths = [json_path(name.split(".")) for name in names]
    if len(names) <= _KEYS_ONE_BY_ONE:
        text = (
            f"SELECT EXISTS (SELECT 1 FROM messages m WHERE m.resource_key = {_RESOURCE}"
            " AND json_type(m.metadata, ?2) IS NOT NULL)"
        )
        found = [connection.execute(text, (resource_id, path)).get for path in paths]
    else:
        columns = (
            f"max(json_type(m.metadata, ?{n}) IS NOT NULL)" for n in range(2, len(names) + 2)
        )
        found = connection.execute(
            f"SELECT {', '.join(columns)} FROM messages m WHERE m.resource_key = {_RESOURCE}",
            (resource_id, *paths),
        ).get
    return tuple(name for name, there in zip(names, found, strict=True) if not there)


def list_messages(
    connection: apsw.Connection,
    query: ListQuery,
    decode: DecodeMessage,
    damaged: Callable[[int], None],
) -> list[StoredMessage]:
    """One page of history; bounds and position become one range of the index.

    Damaged messages are told and left out.
    """
    low = (TIME_NS_MIN if query.time_from_ns is None else query.time_from_ns, 0)
    high = (TIME_NS_MAX, TIME_NS_MAX) if query.time_to_ns is None else (query.time_to_ns, 0)
    if query.after is not None:
        if query.newest_first:
            high = min(high, query.after)
        else:
            low = max(low, query.after)
    roles = sum(1 << role for role in query.roles) if query.roles else -1
    whose = (
        f"?2 IS NULL AND m.resource_key = {_RESOURCE}"
        if query.thread_id is None
        else f"m.thread_key = {_THREAD}"
    )
    order = "DESC" if query.newest_first else "ASC"
    statement = (
        f"{_MESSAGE} WHERE {whose} AND (m.create_time_ns, m.seq) > (?3, ?4)"
        " AND (m.create_time_ns, m.seq) < (?5, ?6) AND (?7 = -1 OR (1 << m.role) & ?7)"
        f" ORDER BY m.create_time_ns {order}, m.seq {order} LIMIT ?8"
    )
    page: list[StoredMessage] = []
    while True:
        names = (query.resource_id, query.thread_id)
        limit = query.limit - len(page)
        rows = connection.execute(statement, (*names, *low, *high, roles, limit)).fetchall()
        page += sound_messages(rows, query.resource_id, decode, damaged)
        # A page with less than was asked for is the last one: what is left out is made up for.
        if len(rows) < limit or len(page) == query.limit:
            return page
        last = cast("tuple[int, int]", (rows[-1][3], rows[-1][0]))
        low, high = (low, last) if query.newest_first else (last, high)


def list_threads(
    connection: apsw.Connection, resource_id: str, limit: int, after: tuple[int, int] | None
) -> list[ThreadSummary]:
    """Threads by (last_create_time, last_seq) descending."""
    rows = connection.execute(
        "SELECT p.thread_id, (SELECT count(*) FROM messages c WHERE c.thread_key = p.thread_key),"
        " (SELECT min(f.create_time_ns) FROM messages f WHERE f.thread_key = p.thread_key),"
        " p.create_time_ns, p.seq"
        " FROM (SELECT t.thread_id, t.thread_key, l.create_time_ns, l.seq FROM threads t"
        "  JOIN messages l ON l.seq = (SELECT n.seq FROM messages n"
        "   WHERE n.thread_key = t.thread_key ORDER BY n.create_time_ns DESC, n.seq DESC LIMIT 1)"
        f" WHERE t.resource_key = {_RESOURCE} AND (l.create_time_ns, l.seq) < (?2, ?3)"
        "  ORDER BY l.create_time_ns DESC, l.seq DESC LIMIT ?4) p"
        " ORDER BY p.create_time_ns DESC, p.seq DESC",
        (resource_id, *(after or (TIME_NS_MAX, TIME_NS_MAX)), limit),
    ).fetchall()
    return [ThreadSummary(*cast("tuple[str, int, int, int, int]", row)) for row in rows]


def pending_rows(
    connection: apsw.Connection, after_seq: int, limit: int
) -> list[tuple[str, tuple[Any, ...]]]:
    """(resource id, row of MESSAGE_COLUMNS) of rows that wait to be embedded, by seq."""
    rows = connection.execute(
        f"SELECT {MESSAGE_COLUMNS}, CAST(r.resource_id AS BLOB) FROM pending p"
        f" CROSS JOIN {MESSAGES} JOIN resources r ON r.resource_key = m.resource_key"
        " WHERE m.seq = p.seq AND p.seq > ? ORDER BY p.seq LIMIT ?",
        (after_seq, limit),
    ).fetchall()
    return [(shown(cast("bytes", row[-1])), row[:-1]) for row in rows]


def partition_columns(
    connection: apsw.Connection, resource_id: str, generation_key: int
) -> tuple[int, VectorColumns]:
    """The resource's key (0 where it is unknown) and its current vectors by (seq, chunk)."""
    rows = connection.execute(
        f"SELECT {VECTOR_COLUMNS} FROM vectors v WHERE v.resource_key = {_RESOURCE}"
        " AND v.generation_key = ?2 ORDER BY v.seq, v.chunk",
        (resource_id, generation_key),
    ).fetchall()
    return (int(rows[0][2] or 0) if rows else 0), VectorColumns.of(rows)


def row_columns(
    connection: apsw.Connection, resource_id: str, seqs: IntColumn, generation_key: int
) -> tuple[int, VectorColumns]:
    """`partition_columns` of the messages `seqs` (sorted, unique)."""
    if not len(seqs):
        return 0, VectorColumns.of([])
    rows = connection.execute(
        f"SELECT {VECTOR_COLUMNS} FROM vectors v WHERE v.resource_key = {_RESOURCE}"
        " AND v.generation_key = ?2 AND v.seq IN (SELECT value FROM carray(?3))"
        " ORDER BY v.seq, v.chunk",
        (resource_id, generation_key, apsw.carray(np.ascontiguousarray(seqs, np.int64))),
    ).fetchall()
    return (int(rows[0][2] or 0) if rows else 0), VectorColumns.of(rows)


def row_checksums(
    connection: apsw.Connection, resource_id: str, generation_key: int
) -> RowChecksums:
    """What `partition_columns` would give, told by the index alone.

    SQLite writes the rows as one text of hexadecimal digits, within one call that holds no lock of
    the interpreter: 10,000 rows cost no Python object each.
    """
    digits = connection.execute(
        "SELECT group_concat(format('%016x%08x%016x', seq, chunk, checksum), '') FROM"
        " (SELECT seq, chunk, checksum FROM vectors INDEXED BY vectors_by_message"
        f" WHERE resource_key = {_RESOURCE} AND generation_key = ?2 ORDER BY seq, chunk)",
        (resource_id, generation_key),
    ).get
    rows = np.frombuffer(binascii.unhexlify(digits or ""), _CHECKSUM_ROW)
    return RowChecksums(
        rows["seq"].astype(np.int64),
        rows["chunk"].astype(np.int64),
        rows["checksum"].astype(np.int64),
    )


def resource_stats(connection: apsw.Connection, resource_id: str) -> StoreStats:
    """Counts of one resource."""
    row = connection.execute(
        f"SELECT (SELECT count(*) FROM messages WHERE resource_key = {_RESOURCE}),"
        f" (SELECT count(*) FROM vectors WHERE resource_key = {_RESOURCE} AND {_SERVED}),"
        f" (SELECT count(*) FROM pending WHERE resource_key = {_RESOURCE}),"
        f" (SELECT count(*) FROM threads WHERE resource_key = {_RESOURCE})",
        (resource_id,),
    ).fetchone()
    return StoreStats(*cast("_FourCounts", row))


def store_stats(connection: apsw.Connection, disk_bytes: int) -> StoreStats:
    """Counts of the whole record."""
    row = connection.execute(
        f"SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM vectors WHERE {_SERVED}),"
        " (SELECT count(*) FROM pending), (SELECT count(*) FROM threads),"
        " (SELECT count(*) FROM resources)"
    ).fetchone()
    return StoreStats(*cast("_FiveCounts", row), disk_bytes)
