"""Resource and thread keys inside a write transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import apsw
import numpy as np


def seq_array(seqs: Sequence[int]) -> object:
    """Numbers as the table-valued function `carray(?)` takes them."""
    return apsw.carray(np.array(seqs, np.int64))


def id_array(ids: Iterable[str]) -> object:
    """Ids (at least one) as `carray(?)` takes them: as bytes, to be cast to text.

    As text they would end at their first NUL.
    """
    return apsw.carray(tuple(message_id.encode() for message_id in ids))


def resource_key(connection: apsw.Connection, resource_id: str) -> int | None:
    """The key of a resource, None where it has no messages."""
    row = connection.execute(
        "SELECT resource_key FROM resources WHERE resource_id = ?", (resource_id,)
    ).fetchone()
    return None if row is None else int(row[0])


def resource_key_made(connection: apsw.Connection, resource_id: str) -> int:
    """The key of a resource, made if need be."""
    key = resource_key(connection, resource_id)
    if key is None:
        connection.execute("INSERT INTO resources(resource_id) VALUES (?)", (resource_id,))
        key = connection.last_insert_rowid()
    return key


def thread_key(connection: apsw.Connection, resource: int, thread_id: str) -> int | None:
    """The key of a thread, None where it has no messages."""
    row = connection.execute(
        "SELECT thread_key FROM threads WHERE resource_key = ? AND thread_id = ?",
        (resource, thread_id),
    ).fetchone()
    return None if row is None else int(row[0])


def thread_name(connection: apsw.Connection, thread: int) -> bytes | None:
    """The id of a thread as it is on record; None where it is not there."""
    row = connection.execute(
        "SELECT CAST(thread_id AS BLOB) FROM threads WHERE thread_key = ?", (thread,)
    ).fetchone()
    return None if row is None else bytes(row[0])


def thread_key_made(connection: apsw.Connection, resource: int, thread_id: str) -> int:
    """The key of a thread, made if need be."""
    key = thread_key(connection, resource, thread_id)
    if key is None:
        connection.execute(
            "INSERT INTO threads(resource_key, thread_id) VALUES (?, ?)", (resource, thread_id)
        )
        key = connection.last_insert_rowid()
    return key


def drop_empty_threads(connection: apsw.Connection, thread_keys: Sequence[int]) -> int:
    """Remove those threads that have no messages; returns how many."""
    connection.execute(
        "DELETE FROM threads WHERE thread_key IN (SELECT value FROM carray(?)) AND NOT EXISTS"
        " (SELECT 1 FROM messages m WHERE m.thread_key = threads.thread_key)",
        (seq_array(thread_keys),),
    )
    return connection.changes()


def drop_empty_resource(connection: apsw.Connection, resource: int) -> None:
    """Remove a resource that has no messages."""
    connection.execute(
        "DELETE FROM resources WHERE resource_key = ?1"
        " AND NOT EXISTS (SELECT 1 FROM messages WHERE resource_key = ?1)",
        (resource,),
    )
