"""Writing what of a damaged database can be believed into a new one.

Pages that do not match their checksum are read nevertheless where that is possible (it is not where
they are encrypted), and rows in them are judged by their own checksums; what cannot be read is
passed over. A message without a sound row is lost. Vectors and analyses are taken where they
are of their message as it is, and made anew where they lack. What has no checksum of its own:

  names of resources and threads   are confirmed by the checksum of each message that has them, and
                                   taken from its encoded form where they are not.
  record                           identity and revision are known to whoever calls this; of the
                                   rest the cautious value is taken where it cannot be read.
  forgotten, origins               are taken as they are read.

The new database has fresh indexes and no page of the old one. Nothing is written to the old one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import apsw
import numpy as np

from ..encryption import checksum_layer
from ..types.errors import CorruptDataError
from ..types.stored_message import DecodeMessage
from ..types.verifying import LostMessage
from . import keys, page_checksums
from .analysis_rows import ANALYSIS_COLUMNS, SEQ, AnalysisColumns
from .connection import DatabaseFile
from .put_analyses import put_analyses
from .rows import message_checksum, shown
from .schema import ensure_schema
from .vector_rows import VECTOR_COLUMNS, VectorColumns

SUFFIX = ".salvaged"
_BATCH_ROWS = 512
_KEY_MAX = (1 << 62) - 1
_SEQ_MAX = (1 << 63) - 1
_BEFORE_ANALYSES = (-(1 << 63), 0)
_MESSAGES = (
    "SELECT seq, resource_key, thread_key, create_time_ns, revision, role, embeddable, checksum,"
    " content_hash, text_hash, CAST(id AS BLOB), CAST(group_id AS BLOB), CAST(metadata AS BLOB),"
    " encoded, seq FROM messages WHERE seq > ? ORDER BY seq"
)
_VECTORS = (
    f"SELECT {VECTOR_COLUMNS}, v.text_hash, v.vector_key FROM vectors v"
    " WHERE v.vector_key > ? ORDER BY v.vector_key"
)
_ANALYSES = (
    f"SELECT {ANALYSIS_COLUMNS}, a.resource_key, a.seq FROM analyses a"
    " WHERE (a.resource_key, a.seq) > (?, ?) ORDER BY a.resource_key, a.seq"
)
_INDEXES_OF_MESSAGES = (
    "SELECT seq, resource_key, NULL FROM messages INDEXED BY messages_by_time",
    "SELECT seq, resource_key, CAST(id AS BLOB) FROM messages"
    " INDEXED BY sqlite_autoindex_messages_1",
)
_LOST_KEYS_MAX = 10_000_000
_LAST_TAKEN = {
    "messages": "SELECT max(seq) FROM messages",
    "resources": "SELECT max(resource_key) FROM resources",
    "threads": "SELECT max(thread_key) FROM threads",
    "generations": "SELECT max(generation_key) FROM generations",
}

Row = tuple[Any, ...]
Key = tuple[int, ...]
_Damage = (apsw.CorruptError, apsw.IOError, apsw.NotADBError, apsw.SchemaChangeError)


@dataclass(frozen=True, slots=True)
class KnownState:
    """What is known of the record without reading it.

    Attributes:
        revision: of the new database.
        generation: key and text of the generation that is searched.
    """

    store_id: str
    revision: int
    generation: tuple[int, str]


SalvageOf = Callable[[apsw.Connection, apsw.Connection, str, int], "Salvaged"]
"""Fills a database from another, for a store of this id, as this revision."""


@dataclass(slots=True)
class Salvaged:
    """What became of the messages.

    Attributes:
        messages: taken.
        lost: those that are not, by seq, as far as an index or a row tells of them.
    """

    messages: int = 0
    lost: list[LostMessage] = field(default_factory=list)


class Salvage:
    """One salvage, from one connection to another."""

    def __init__(
        self,
        source: apsw.Connection,
        target: apsw.Connection,
        known: KnownState,
        decode: DecodeMessage,
    ) -> None:
        """Nothing is read yet.

        Args:
            source: it reads damaged pages too, if it can.
            target: an empty database of the same format.
            known: see there.
            decode: the codec's.
        """
        self._source = source
        self._target = target
        self._known = known
        self._decode = decode
        self._resources: dict[int, bytes] = {}
        self._threads: dict[int, bytes] = {}
        self._taken_resources: dict[int, bytes] = {}
        self._taken_threads: dict[int, tuple[int, bytes]] = {}
        self._lost: dict[int, LostMessage] = {}
        self._salvaged = Salvaged()

    def __call__(self) -> Salvaged:
        """Fill the target in one transaction.

        Raises:
            apsw.Error: it cannot be written, or the source not at all.
        """
        with self._target:
            self._names()
            self._messages()
            self._write_names()
            doubtful = self._vectors()
            doubtful |= self._missing_vectors()
            self._drop_vectors(sorted(doubtful))
            self._analyses()
            self._state()
        return self._salvaged

    # ---- messages ----

    def _names(self) -> None:
        for key, name, _ in self._rows(
            "SELECT resource_key, CAST(resource_id AS BLOB), resource_key FROM resources"
            " WHERE resource_key > ? ORDER BY resource_key"
        ):
            self._resources[key] = name
        for key, name, _ in self._rows(
            "SELECT thread_key, CAST(thread_id AS BLOB), thread_key FROM threads"
            " WHERE thread_key > ? ORDER BY thread_key"
        ):
            self._threads[key] = name

    def _messages(self) -> None:
        for batch in _batches(self._rows(_MESSAGES)):
            self._target.executemany(
                "INSERT OR IGNORE INTO messages(seq, resource_key, thread_key, create_time_ns,"
                " revision, role, embeddable, checksum, content_hash, text_hash, id, group_id,"
                " metadata, encoded) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT),"
                " CAST(? AS TEXT), CAST(? AS TEXT), ?)",
                [row[:-1] for row in batch if self._is_sound(row)],
            )
            self._note_lost([(row[0], row[1], row[10]) for row in batch])
        # What cannot be read at all is known by an index, if that can be.
        for index in _INDEXES_OF_MESSAGES:
            for batch in _batches(self._as_far_as_possible(index)):
                self._note_lost(batch)
        self._salvaged.messages = int(self._target.execute("SELECT count(*) FROM messages").get)
        self._salvaged.lost = [self._lost[seq] for seq in sorted(self._lost)]

    def _is_sound(self, row: Row) -> bool:
        resource_key, thread_key, encoded = row[1], row[2], row[13]
        columns = (row[10], row[11], row[12] or b"")
        names = (self._resources.get(resource_key), self._threads.get(thread_key))
        if not self._matches(row, names, columns):
            try:
                body = self._decode(encoded)
                names = (body.resource_id.encode(), body.thread_id.encode())
            except (CorruptDataError, TypeError):
                return False
            if not self._matches(row, names, columns):
                return False
        resource, thread = cast("tuple[bytes, bytes]", names)
        self._taken_resources[resource_key] = resource
        self._taken_threads[thread_key] = (resource_key, thread)
        return True

    def _matches(
        self, row: Row, names: tuple[bytes | None, bytes | None], columns: tuple[Any, ...]
    ) -> bool:
        if None in names:
            return False
        try:
            everything = cast("tuple[bytes, bytes, bytes, bytes, bytes]", (*names, *columns))
            numbers = cast("tuple[int, int, int, int, int, int, int]", row[:7])
            return bool(message_checksum(numbers, everything, row[13]) == row[7])
        except (struct.error, TypeError):  # what no row can hold
            return False

    def _note_lost(self, rows: Sequence[Row]) -> None:
        """Remember those of (seq, resource key, message id or None) that the target has not."""
        seqs = {seq: (resource, name) for seq, resource, name in rows if isinstance(seq, int)}
        there = self._target.execute(
            "SELECT m.seq FROM carray(?) c CROSS JOIN messages m ON m.seq = c.value",
            (keys.seq_array(sorted(seqs)),),
        )
        for (seq,) in there:
            del seqs[seq]
        for seq, (resource, name) in seqs.items():
            if name or seq not in self._lost:
                resource_id = shown(self._resources.get(resource, b""))
                self._lost[seq] = LostMessage(seq, resource_id, shown(name or b""))

    def _write_names(self) -> None:
        self._target.executemany(
            "INSERT OR IGNORE INTO resources VALUES (?, CAST(? AS TEXT))",
            self._taken_resources.items(),
        )
        self._target.executemany(
            "INSERT OR IGNORE INTO threads VALUES (?, ?, CAST(? AS TEXT))",
            [(key, resource, name) for key, (resource, name) in self._taken_threads.items()],
        )

    # ---- what was made of them ----

    def _vectors(self) -> set[int]:
        """Take the sound ones; returns messages of which one is not."""
        doubtful: set[int] = set()
        for batch in _batches(self._rows(_VECTORS)):
            sized: dict[int, list[Row]] = {}
            for row in batch:
                if isinstance(row[9], bytes) and all(isinstance(n, int) for n in row[:9]):
                    sized.setdefault(len(row[9]), []).append(row)
                elif isinstance(row[0], int):
                    doubtful.add(row[0])
            current = self._current([row[0] for row in batch])
            for rows in sized.values():
                corrupt = set(VectorColumns.of([row[:10] for row in rows]).corrupt_seqs)
                doubtful |= corrupt
                self._target.executemany(
                    "INSERT INTO vectors(vector_key, seq, chunk, resource_key, thread_key,"
                    " create_time_ns, role, revision, generation_key, checksum, vector, text_hash)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [
                        (row[11], *row[:11])
                        for row in rows
                        if row[0] not in corrupt and (*row[2:7], row[10]) == current.get(row[0])
                    ],
                )
        return doubtful

    def _current(self, seqs: Sequence[Any]) -> dict[int, Row]:
        """By seq, what a vector of the message must agree with."""
        rows: list[Row] = self._target.execute(
            "SELECT m.seq, m.resource_key, m.thread_key, m.create_time_ns, m.role, m.revision,"
            " m.text_hash FROM carray(?) c CROSS JOIN messages m ON m.seq = c.value",
            (keys.seq_array(sorted({seq for seq in seqs if isinstance(seq, int)})),),
        ).fetchall()
        return {row[0]: row[1:] for row in rows}

    def _missing_vectors(self) -> set[int]:
        """Messages of which the old index names a vector that was not taken."""
        missing: set[int] = set()
        index = (
            "SELECT resource_key, seq, chunk, generation_key FROM vectors"
            " INDEXED BY vectors_by_message"
        )
        for row in self._as_far_as_possible(index):
            found = self._target.execute(
                "SELECT 1 FROM vectors WHERE resource_key = ? AND seq = ? AND chunk = ?"
                " AND generation_key = ?",
                row,
            ).get
            if found is None and isinstance(row[1], int):
                missing.add(row[1])
        return missing

    def _drop_vectors(self, seqs: Sequence[int]) -> None:
        for batch in _batches(iter([(seq,) for seq in seqs])):
            self._target.execute(
                "DELETE FROM vectors WHERE seq IN (SELECT value FROM carray(?))",
                (keys.seq_array([seq for (seq,) in batch]),),
            )

    def _analyses(self) -> None:
        for batch in _batches(self._rows(_ANALYSES, _BEFORE_ANALYSES)):
            whole = [row[:8] for row in batch if isinstance(row[7], bytes)]
            columns = AnalysisColumns.of(whole)
            current = self._current(columns.numbers[:, SEQ].tolist())
            is_current = [
                (*numbers[1:5], numbers[5]) == current.get(numbers[0], ())[:5]
                for numbers in columns.numbers.tolist()
            ]
            put_analyses(self._target, columns.only(np.array(is_current, np.bool_)))

    # ---- the rest ----

    def _state(self) -> None:
        known, target = self._known, self._target
        key, generation = known.generation
        for row in self._as_far_as_possible(
            "SELECT generation_key, CAST(generation AS BLOB), CAST(identity AS BLOB)"
            " FROM generations"
        ):
            target.execute(
                "INSERT OR IGNORE INTO generations(generation_key, generation, identity)"
                " VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT))",
                row,
            )
        target.execute(
            "INSERT INTO generations(generation_key, generation) VALUES (?, ?)"
            " ON CONFLICT (generation_key) DO UPDATE SET generation = excluded.generation",
            (key, generation),
        )
        for table, columns in (("forgotten", 2), ("origins", 4)):
            for row in self._as_far_as_possible(f"SELECT * FROM {table}"):
                marks = ", ".join("?" * columns)
                target.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)
        target.execute(
            "INSERT INTO pending SELECT m.seq, m.resource_key FROM messages m"
            " WHERE m.embeddable = 1 AND NOT EXISTS (SELECT 1 FROM vectors v"
            "  WHERE v.resource_key = m.resource_key AND v.seq = m.seq AND v.generation_key = ?)",
            (key,),
        )
        self._record()
        self._sequences()

    def _record(self) -> None:
        # Where it cannot be read: every message may be in a snapshot, and nothing was erased yet.
        state: Row = (_SEQ_MAX, self._known.revision, 0, 0)
        for row in self._as_far_as_possible(
            "SELECT snapshot_seq, forgotten_revision, erased_revision, retention_time_ns"
            " FROM record"
        ):
            if all(isinstance(number, int) and number >= 0 for number in row):
                state = row
        self._target.execute(
            "UPDATE record SET store_id = ?, revision = ?, generation_key = ?, snapshot_seq = ?,"
            " forgotten_revision = ?, erased_revision = ?, retention_time_ns = ?",
            (self._known.store_id, self._known.revision, self._known.generation[0], *state),
        )

    def _sequences(self) -> None:
        """No key is given twice, also none that belonged to what is lost."""
        last = {"messages": 0, "resources": 0, "threads": 0, "generations": 0}
        for name, number in self._as_far_as_possible("SELECT name, seq FROM sqlite_sequence"):
            if name in last and isinstance(number, int):
                last[name] = number
        known = {
            "resources": list(self._resources),
            "threads": list(self._threads),
            "messages": list(self._lost),
        }
        for name, number in last.items():
            taken = self._target.execute(_LAST_TAKEN[name]).get or 0
            # A number that was read from a damaged page may be anything.
            believed = [n for n in (number, *known.get(name, ())) if n <= taken + _LOST_KEYS_MAX]
            number = max([taken, *believed])
            there = self._target.execute(
                "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ? RETURNING 1",
                (number, name),
            ).fetchall()
            if not there:
                self._target.execute(
                    "INSERT INTO sqlite_sequence(name, seq) VALUES (?, ?)", (name, number)
                )

    # ---- reading what is damaged ----

    def _as_far_as_possible(self, statement: str) -> Iterator[Row]:
        """Rows up to the first that cannot be read."""
        try:
            yield from cast("Iterator[Row]", self._source.execute(statement))
        except (*_Damage, UnicodeDecodeError) as error:
            _raise_unless_damage(error)

    def _rows(self, statement: str, first: Key = (0,)) -> Iterator[Row]:
        """Rows behind a key, their last columns; what cannot be read is passed over."""
        key: Key | None = first
        while key is not None:
            try:
                for row in cast("Iterator[Row]", self._source.execute(statement, key)):
                    key = row[-len(first) :]
                    yield row
                return
            except _Damage as error:
                _raise_unless_damage(error)
                key = self._behind_damage(statement, key)

    def _behind_damage(self, statement: str, key: Key) -> Key | None:
        """See verifying: a search by halves for where it can be read again."""
        for part in reversed(range(len(key))):
            head, tail = key[:part], tuple(0 for _ in key[part + 1 :])
            low, high = key[part], _KEY_MAX
            if not self._readable(statement, (*head, high, *tail)):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if self._readable(statement, (*head, middle, *tail)):
                    high = middle
                else:
                    low = middle
            return (*head, high, *tail)
        return None

    def _readable(self, statement: str, key: Key) -> bool:
        try:
            self._source.execute(f"{statement} LIMIT 1", key).fetchall()
        except _Damage as error:
            _raise_unless_damage(error)
            return False
        return True


def write_beside(
    file: DatabaseFile, salvage: SalvageOf, codec: str, store_id: str, revision: int
) -> tuple[Path, Salvaged]:
    """Write what can be believed of a database into a new one beside it, on disk when this returns.

    Raises:
        apsw.Error, OSError: it cannot be written; what there is of it is removed.
        CorruptDataError: what was written is not sound.
    """
    path = file.path.with_name(file.path.name + SUFFIX)
    remove_beside(file)
    try:
        with (
            closing(file.open_reader()) as source,
            closing(replace(file, path=path).open_writer()) as target,
        ):
            if file.key is None:
                source.pragma("checksum_verification", "OFF")
            # No transaction on the source: after a page that cannot be decrypted nothing more would
            # be read in it. Nobody writes meanwhile.
            ensure_schema(target, codec)
            salvaged = salvage(source, target, store_id, revision)
            if salvaged.lost and not salvaged.messages:
                raise CorruptDataError("no message of recall.db can be read; restore a snapshot")
            if target.execute("PRAGMA integrity_check(1)").get != "ok":
                raise CorruptDataError("the mended database is not sound")
            target.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        page_checksums.sync(path)
    except BaseException:
        remove_beside(file)
        raise
    return path, salvaged


def remove_beside(file: DatabaseFile) -> None:
    """Remove what a salvage that was broken off has left."""
    for end in ("", "-wal", "-shm"):
        file.path.with_name(f"{file.path.name}{SUFFIX}{end}").unlink(missing_ok=True)


def _raise_unless_damage(error: BaseException) -> None:
    if isinstance(error, apsw.IOError) and not checksum_layer.is_page_damage(error):
        raise error


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield batch
