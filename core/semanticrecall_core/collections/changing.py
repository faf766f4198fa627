"""What changes of collections do to the tables, each inside somebody's transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import apsw
import orjson

from ..types.collections import Metric
from ..types.errors import CorruptDataError
from .file_format import collection_checksum, vector_checksum
from .loaded import StoredVector

REMOVED_AT_ONCE: Final = 1_000


def note_removed(connection: apsw.Connection) -> None:
    """Something is removed, so that a purge has something to do."""
    connection.execute("UPDATE file SET removed = removed + 1")


def insert_collection(
    connection: apsw.Connection, resource_id: str, name: str, dimensions: int, metric: Metric
) -> int:
    """A new collection without vectors; returns its key."""
    connection.execute(
        "INSERT INTO collections(resource_id, name, dimensions, metric, vectors, checksum)"
        " VALUES(?, ?, ?, ?, 0, 0)",
        (resource_id, name, dimensions, int(metric)),
    )
    key = connection.last_insert_rowid()
    checksum = collection_checksum(
        (key, dimensions, int(metric), 0), resource_id.encode(), name.encode()
    )
    connection.execute(
        "UPDATE collections SET checksum = ? WHERE collection_key = ?", (checksum, key)
    )
    return key


def names_of(connection: apsw.Connection, resource_id: str) -> list[str]:
    """The names of a resource's collections, sound or not."""
    return [
        row[0]
        for row in connection.execute(
            "SELECT name FROM collections WHERE resource_id = ?", (resource_id,)
        )
    ]


def totals(connection: apsw.Connection) -> tuple[int, int]:
    """Collections and vectors of all resources."""
    row: tuple[int, int] = connection.execute(
        "SELECT count(*), coalesce(sum(vectors), 0) FROM collections"
    ).get
    return row


def drop_collection(
    connection: apsw.Connection, resource_id: str, name: str
) -> tuple[int, int] | None:
    """Make a collection unreachable; returns its key and how many vectors it had, None for none.

    Sound or not: only the names are looked at. The vectors of a sound one are not: a large one is
    gone as soon as a small one.
    """
    row = connection.execute(
        "SELECT collection_key, dimensions, metric, vectors, checksum"
        " FROM collections WHERE resource_id = ? AND name = ?",
        (resource_id, name),
    ).fetchone()
    if row is None:
        return None
    key, dimensions, metric, vectors, checksum = row
    numbers = (key, dimensions, metric, vectors)
    if checksum != collection_checksum(numbers, resource_id.encode(), name.encode()):
        vectors = connection.execute(
            "SELECT count(*) FROM vectors WHERE collection_key = ?", (key,)
        ).get
    connection.execute("INSERT INTO dropped VALUES(?)", (key,))
    connection.execute("DELETE FROM collections WHERE collection_key = ?", (key,))
    note_removed(connection)
    return key, vectors


def remove_dropped(connection: apsw.Connection) -> bool:
    """Remove some rows of a dropped collection; whether there may be more."""
    row = connection.execute("SELECT collection_key FROM dropped LIMIT 1").fetchone()
    if row is None:
        return False
    connection.execute(
        "DELETE FROM vectors WHERE row_key IN (SELECT row_key FROM vectors"
        " INDEXED BY vectors_by_collection WHERE collection_key = ? LIMIT ?)",
        (*row, REMOVED_AT_ONCE),
    )
    if connection.changes() < REMOVED_AT_ONCE:
        connection.execute("DELETE FROM dropped WHERE collection_key = ?", row)
    return True


def set_vectors(connection: apsw.Connection, key: int, vectors: int) -> None:
    """How many vectors a collection has now."""
    row: tuple[int, int, bytes, bytes] = connection.execute(
        "SELECT dimensions, metric, CAST(resource_id AS BLOB), CAST(name AS BLOB)"
        " FROM collections WHERE collection_key = ?",
        (key,),
    ).get
    dimensions, metric, resource, name = row
    connection.execute(
        "UPDATE collections SET vectors = ?, checksum = ? WHERE collection_key = ?",
        (vectors, collection_checksum((key, dimensions, metric, vectors), resource, name), key),
    )


def count_there(connection: apsw.Connection, key: int, ids: Sequence[str]) -> int:
    """How many of these ids are there; each is given once."""
    found: int = connection.execute(
        "SELECT count(*) FROM vectors WHERE collection_key = ?"
        " AND id IN (SELECT value FROM json_each(?))",
        (key, orjson.dumps(ids).decode()),
    ).get
    return found


def text_bytes_there(connection: apsw.Connection, key: int, ids: Sequence[str]) -> int:
    """Bytes of ids and metadata of those of these ids that are there; each is given once."""
    found: int = connection.execute(
        "SELECT coalesce(sum(octet_length(id) + octet_length(metadata)), 0) FROM vectors"
        " WHERE collection_key = ? AND id IN (SELECT value FROM json_each(?))",
        (key, orjson.dumps(ids).decode()),
    ).get
    return found


def text_bytes_of_all(connection: apsw.Connection, key: int) -> int:
    """Bytes of ids and metadata of a collection."""
    found: int = connection.execute(
        "SELECT coalesce(sum(octet_length(id) + octet_length(metadata)), 0) FROM vectors"
        " INDEXED BY vectors_by_collection WHERE collection_key = ?",
        (key,),
    ).get
    return found


def remove_vectors(connection: apsw.Connection, key: int, ids: Sequence[str]) -> int:
    """Remove vectors by id; returns how many were there."""
    connection.execute(
        "DELETE FROM vectors WHERE collection_key = ? AND id IN (SELECT value FROM json_each(?))",
        (key, orjson.dumps(ids).decode()),
    )
    return int(connection.changes())


def remove_known(connection: apsw.Connection, key: int, ids: Sequence[str]) -> int:
    """Remove vectors that memory says are there; raises CorruptDataError where they are not."""
    if not ids:
        return 0
    removed = remove_vectors(connection, key, ids)
    if removed != len(ids):
        raise CorruptDataError("a collection in memory is not as it is in its file")
    return removed


def text_bytes_going(
    connection: apsw.Connection, key: int, ids: Sequence[str], text_bytes: int | None
) -> int:
    """Bytes of ids and metadata that a change takes away; zero where `text_bytes` is unknown."""
    if text_bytes is None or not ids:
        return 0
    return text_bytes_there(connection, key, ids)


def put_vectors(connection: apsw.Connection, key: int, vectors: Sequence[StoredVector]) -> None:
    """Add vectors, or replace those of the same ids."""

    def rows() -> Iterator[tuple[int, str, int, bytes, bytes]]:
        # One after the other: an update may be of a whole collection.
        for one in vectors:
            value = one.values.astype("<f4").tobytes()
            checksum = vector_checksum(key, one.id.encode(), one.metadata, value)
            yield key, one.id, checksum, one.metadata, value

    connection.executemany(
        "INSERT INTO vectors(collection_key, id, checksum, metadata, value) VALUES(?, ?, ?, ?, ?)"
        " ON CONFLICT(collection_key, id) DO UPDATE SET"
        " checksum = excluded.checksum, metadata = excluded.metadata, value = excluded.value",
        rows(),
    )
