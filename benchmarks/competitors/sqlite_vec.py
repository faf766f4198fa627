"""sqlite-vec: a virtual table in one SQLite file, its vectors split by user.

Its documentation advises a partition key for exactly this case, "each document belongs to a user,
and users can only search their own documents", and an auxiliary column for texts that an answer
carries. A search reads every vector of the user: it is exact, and runs on the calling thread.
Vectors are of length 1, so that L2, its default distance, orders them as cosine does, in less time.

The extension is loaded into apsw's SQLite, because not every Python's `sqlite3` can load one.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import apsw
import numpy as np
import sqlite_vec  # type: ignore[import-untyped]
from numpy.typing import NDArray

from benchmarks.competitors.port import Found, Rows, Setup, System

_FILE = "messages.sqlite3"
# Vectors of a user lie in blobs of so many rows, which are allocated and read whole: with the
# default of 1,024 a user of 200 messages takes, and is searched like, one of 1,024. Smaller ones
# cost a large user nothing that could be measured.
_CHUNK_ROWS = 256
# The whole file in these tests: pages come from the page cache without a copy.
_MMAP_BYTES = 2**31 - 2**16

_CREATE = """
create virtual table if not exists messages using vec0(
  user text partition key,
  embedding float[{dimensions}] distance_metric=l2,
  +message_id text,
  +thread_id text,
  +contents text,
  chunk_size={chunk_rows}
)
"""
_INSERT = (
    "insert into messages(user, embedding, message_id, thread_id, contents) values (?, ?, ?, ?, ?)"
)
_SEARCH = (
    "select message_id, contents from messages"
    " where user = ? and embedding match ? and k = ? order by distance"
)


class SqliteVec:
    """One database file. Not for several threads at a time."""

    def __init__(self, directory: Path, dimensions: int) -> None:
        self._connection = apsw.Connection(str(directory / _FILE))
        self._connection.enable_load_extension(True)
        self._connection.load_extension(sqlite_vec.loadable_path())
        self._connection.enable_load_extension(False)
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "full")
        self._connection.pragma("mmap_size", _MMAP_BYTES)
        self._connection.execute(_CREATE.format(dimensions=dimensions, chunk_rows=_CHUNK_ROWS))

    @property
    def setup(self) -> Setup:
        """How it was set up."""
        return Setup(
            name="sqlite-vec",
            versions={
                "sqlite-vec": version("sqlite-vec"),
                "sqlite": apsw.sqlite_lib_version(),
                "apsw-sqlite3mc": version("apsw-sqlite3mc"),
            },
            tenants="one vec0 table, `user text partition key`, asked with `user = ?`",
            index=(
                f"exact: scan of the user's vectors, float32, L2 (the order of cosine, as vectors "
                f"are of length 1), chunk_size {_CHUNK_ROWS}, memory-mapped, one thread"
            ),
            durability="committed and synced to disk (WAL, synchronous=FULL), one commit per add",
            advice="https://alexgarcia.xyz/sqlite-vec/features/vec0.html#partition-keys",
        )

    def add(self, rows: Rows) -> None:
        """Insert, in one transaction."""
        vectors = np.ascontiguousarray(rows.vectors, dtype=np.float32)
        values = zip(rows.ids, rows.thread_ids, rows.texts, strict=True)
        with self._connection:
            self._connection.executemany(
                _INSERT,
                (
                    (rows.resource_id, vector.tobytes(), message_id, thread_id, text)
                    for vector, (message_id, thread_id, text) in zip(vectors, values, strict=True)
                ),
            )

    def loaded(self) -> None:
        """Nothing is advised here; the log goes into the file, so that a search reads one file."""
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def search(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> list[Found]:
        """The nearest, best first."""
        query = np.ascontiguousarray(vector, dtype=np.float32).tobytes()
        return [
            Found(id=message_id, text=text)
            for message_id, text in self._connection.execute(_SEARCH, (resource_id, query, top_k))
        ]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def open_system(directory: Path, dimensions: int) -> System:
    """Open the database in `directory`, or create it."""
    return SqliteVec(directory, dimensions)
