"""Reading everything and saying what does not agree. Changes nothing.

Kinds of findings:
  ROW_CORRUPT        a message does not match its checksum or its hashes.
  VECTOR_CORRUPT     a vector does not match its checksum.
  VECTOR_NOT_FINITE  a vector holds a NaN or an infinity.
  VECTOR_DIMENSIONS  a vector of the serving generation has another size.
  VECTOR_NOT_UNIT    a vector of the serving generation is not of unit length.
  VECTOR_ORPHAN      a vector of no message.
  VECTOR_STALE       a vector made from another text, or with another revision, thread, time or
                     role than its message.
  VECTOR_MISSING     an embeddable message has no current vector, or not of every chunk, and is not
                     waiting for one.
  PENDING_WRONG      something waits to be embedded that is no message, or has nothing to embed, or
                     has its vectors.
  ANALYSIS_CORRUPT   an analysis does not match its checksum.
  ANALYSIS_ORPHAN    an analysis of no message, or of one that has nothing to embed.
  ANALYSIS_STALE     an analysis with another revision, thread, time or role than its message.
  ANALYSIS_DIFFERS   an analysis is not what the text gives today.
  THREAD_WRONG       a thread of no message, or of another resource than its messages.
  RESOURCE_ORPHAN    a resource of no message (whole store only).
  DATABASE_CORRUPT   SQLite's own check found damage (whole store only), or rows cannot be read.
  PAGE_DAMAGED       a page of the file does not match its checksum.

A message without an analysis, or with one of an older analyser, is not a finding: it is analysed
anew when its resource is next read, as all are after an upgrade.

Every batch of rows is one read transaction, and what is compared is read in it: a change that comes
between is never taken for damage. Rows that cannot be read are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import apsw
import numpy as np

from ..types.errors import CorruptDataError
from ..types.lexical import TextAnalyser
from ..types.stored_message import DecodeMessage
from ..types.values import Finding
from ..types.verifying import RecordDamage, VerifyProgress
from .analysis_rows import ANALYSIS_COLUMNS, ANALYSIS_COLUMNS_COUNT, AnalysisColumns
from .rows import (
    MESSAGE_COLUMNS,
    MESSAGE_COLUMNS_COUNT,
    MESSAGE_EMBEDDABLE,
    MESSAGE_ID,
    MESSAGES,
    content_hash,
    draft_of,
    shown,
    stored_message,
    text_hash,
)
from .vector_rows import VECTOR_COLUMNS, VectorColumns

BATCH_ROWS = 256
UNIT_TOLERANCE = 1e-3
"""How far a stored vector's length may be from 1."""
PAGE_DAMAGED = "PAGE_DAMAGED"
DATABASE_CORRUPT = "DATABASE_CORRUPT"
_SQLITE_FINDINGS_MAX = 100
_SQLITE_FINDINGS_TOLD_MAX = 3
_ROWS_OF = {
    "messages": "messages",
    "pending": "what waits to be embedded",
    "threads": "threads",
    "resources": "resources",
    "vectors": "vectors",
    "analyses": "analysed words",
}
_KEY_MAX = (1 << 62) - 1

ReadTransaction = Callable[[], AbstractContextManager[apsw.Connection]]
Key = tuple[int, ...]
Row = tuple[Any, ...]

_SERVING = "(SELECT generation_key FROM record)"
_OWNER = "(?{n} IS NULL OR r.resource_id = ?{n})"
_MESSAGES = (
    f"SELECT {MESSAGE_COLUMNS}, CAST(r.resource_id AS BLOB), m.content_hash, m.text_hash,"
    " EXISTS (SELECT 1 FROM pending p WHERE p.seq = m.seq),"
    " (SELECT count(*) || ' ' || coalesce(max(v.chunk) + 1, 0) FROM vectors v"
    f"  WHERE v.resource_key = m.resource_key AND v.seq = m.seq AND v.generation_key = {_SERVING}),"
    f" m.seq FROM {MESSAGES} LEFT JOIN resources r ON r.resource_key = m.resource_key"
    f" WHERE m.seq > ?1 AND {_OWNER.format(n=2)} ORDER BY m.seq LIMIT ?3"
)
_VECTORS = (
    f"SELECT {VECTOR_COLUMNS}, CAST(m.id AS BLOB), m.revision, m.thread_key, m.create_time_ns,"
    f" m.role, m.text_hash = v.text_hash, CAST(r.resource_id AS BLOB), {_SERVING}, v.vector_key"
    " FROM vectors v LEFT JOIN messages m ON m.seq = v.seq AND m.resource_key = v.resource_key"
    " LEFT JOIN resources r ON r.resource_key = v.resource_key"
    f" WHERE v.vector_key > ?1 AND {_OWNER.format(n=2)} ORDER BY v.vector_key LIMIT ?3"
)
_ANALYSES = (
    f"SELECT {ANALYSIS_COLUMNS}, {MESSAGE_COLUMNS}, CAST(r.resource_id AS BLOB),"
    " a.resource_key, a.seq FROM analyses a"
    " LEFT JOIN messages m ON m.seq = a.seq AND m.resource_key = a.resource_key"
    " LEFT JOIN threads t ON t.thread_key = m.thread_key"
    " LEFT JOIN resources r ON r.resource_key = a.resource_key"
    f" WHERE (a.resource_key, a.seq) > (?1, ?2) AND {_OWNER.format(n=3)}"
    " ORDER BY a.resource_key, a.seq LIMIT ?4"
)
_PENDING = (
    "SELECT m.seq IS NULL OR m.embeddable = 0 OR m.resource_key <> p.resource_key"
    " OR EXISTS (SELECT 1 FROM vectors v WHERE v.resource_key = p.resource_key"
    f"  AND v.seq = p.seq AND v.generation_key = {_SERVING}),"
    " p.resource_key, CAST(r.resource_id AS BLOB), CAST(m.id AS BLOB), p.seq"
    " FROM pending p LEFT JOIN messages m ON m.seq = p.seq"
    " LEFT JOIN resources r ON r.resource_key = p.resource_key"
    f" WHERE p.seq > ?1 AND {_OWNER.format(n=2)} ORDER BY p.seq LIMIT ?3"
)
_THREADS = (
    "SELECT NOT EXISTS (SELECT 1 FROM messages m WHERE m.thread_key = t.thread_key"
    " AND m.resource_key = t.resource_key), t.resource_key, CAST(r.resource_id AS BLOB),"
    " NULL, t.thread_key FROM threads t LEFT JOIN resources r ON r.resource_key = t.resource_key"
    f" WHERE t.thread_key > ?1 AND {_OWNER.format(n=2)} ORDER BY t.thread_key LIMIT ?3"
)
_RESOURCES = (
    "SELECT NOT EXISTS (SELECT 1 FROM messages m WHERE m.resource_key = r.resource_key),"
    " r.resource_key, CAST(r.resource_id AS BLOB), NULL, r.resource_key FROM resources r"
    f" WHERE r.resource_key > ?1 AND {_OWNER.format(n=2)} ORDER BY r.resource_key LIMIT ?3"
)
_BEFORE_ANALYSES = (-(1 << 63), 0)


@dataclass(frozen=True, slots=True)
class RecordChecks:
    """What each kind of row must be like; each method judges rows that one transaction gave.

    Attributes:
        decode: the codec's.
        analyser: None compares no words.
        dimensions: of the vectors of the serving generation; None: not known here.
    """

    decode: DecodeMessage
    analyser: TextAnalyser | None
    dimensions: int | None

    def messages(self, rows: Sequence[Row]) -> Iterator[RecordDamage]:
        """Rows of `messages`."""
        for row in rows:
            yield from self._message(row)

    def _message(self, row: Row) -> Iterator[RecordDamage]:
        seq, resource_key, embeddable = row[0], row[1], row[MESSAGE_EMBEDDABLE]
        resource_id, content, text, is_pending, vectors = row[MESSAGE_COLUMNS_COUNT:][:5]
        where = (shown(resource_id), shown(row[MESSAGE_ID]))

        def found(kind: str, what: str) -> RecordDamage:
            return RecordDamage(Finding(kind, *where, f"row {seq} {what}"), seq, resource_key)

        try:
            draft = draft_of(stored_message(row, where[0], self.decode))
        except CorruptDataError:
            yield found("ROW_CORRUPT", "does not match its checksum")
            return
        if content_hash(draft) != content or text_hash(draft.text) != text:
            yield found("ROW_CORRUPT", "does not match its hashes")
        count, chunks = str(vectors).split()
        if embeddable and not is_pending and (count == "0" or count != chunks):
            yield found("VECTOR_MISSING", "lacks vectors and waits for none")

    def vectors(self, rows: Sequence[Row]) -> Iterator[RecordDamage]:
        """Rows of `vectors`."""
        damaged = set(VectorColumns.of([row[:10] for row in rows]).corrupt_seqs)
        for row in rows:
            yield from self._vector(row, maybe_corrupt=row[0] in damaged)

    def _vector(self, row: Row, *, maybe_corrupt: bool) -> Iterator[RecordDamage]:
        seq, chunk, resource_key, thread, time_ns, role, revision, generation = row[:8]
        message_id, m_revision, m_thread, m_time_ns, m_role, same_text = row[10:16]
        resource_id, serving, vector_key = row[16:19]
        where = (shown(resource_id), shown(message_id))

        def found(kind: str, what: str) -> RecordDamage:
            finding = Finding(kind, *where, f"chunk {chunk} of row {seq} {what}")
            return RecordDamage(finding, seq, resource_key, vector_key)

        # Among others also a row of another size than the first one is told apart.
        if maybe_corrupt and VectorColumns.of([row[:10]]).corrupt_seqs:
            yield found("VECTOR_CORRUPT", "does not match its checksum")
            return
        vector = np.frombuffer(row[9], "<f4")
        if not np.isfinite(vector).all():
            yield found("VECTOR_NOT_FINITE", "holds no finite numbers")
        elif generation == serving and self.dimensions is not None:
            if len(vector) != self.dimensions:
                yield found("VECTOR_DIMENSIONS", f"has {len(vector)} numbers")
            elif abs(float(np.linalg.norm(vector.astype(np.float64))) - 1.0) > UNIT_TOLERANCE:
                yield found("VECTOR_NOT_UNIT", "is not of unit length")
        if message_id is None:
            yield found("VECTOR_ORPHAN", "has no message")
        elif not same_text or (revision, thread, time_ns, role) != (
            m_revision,
            m_thread,
            m_time_ns,
            m_role,
        ):
            yield found("VECTOR_STALE", "is not of its message as it is now")

    def analyses(self, rows: Sequence[Row]) -> Iterator[RecordDamage]:
        """Rows of `analyses`."""
        for row in rows:
            yield from self._analysis(row)

    def _analysis(self, row: Row) -> Iterator[RecordDamage]:
        seq, resource_key, thread, time_ns, role, revision = row[:6]
        message = row[ANALYSIS_COLUMNS_COUNT : ANALYSIS_COLUMNS_COUNT + MESSAGE_COLUMNS_COUNT]
        resource_id = row[ANALYSIS_COLUMNS_COUNT + MESSAGE_COLUMNS_COUNT]
        where = (shown(resource_id), shown(message[MESSAGE_ID]))

        def found(kind: str, what: str) -> RecordDamage:
            finding = Finding(kind, *where, f"the analysis of row {seq} {what}")
            return RecordDamage(finding, seq, resource_key)

        now = (message[2], message[3], message[5], message[4])
        if AnalysisColumns.of([row[:ANALYSIS_COLUMNS_COUNT]]).corrupt_seqs:
            yield found("ANALYSIS_CORRUPT", "does not match its checksum")
        elif not message[MESSAGE_EMBEDDABLE]:
            yield found("ANALYSIS_ORPHAN", "has no message to embed")
        elif (thread, time_ns, role, revision) != now:
            yield found("ANALYSIS_STALE", "is not of its message as it is now")
        elif not self._is_what_the_text_gives(message, where[0], row[7]):
            yield found("ANALYSIS_DIFFERS", "is not what its text gives")

    def _is_what_the_text_gives(self, message: Row, resource_id: str, analysed: bytes) -> bool:
        if self.analyser is None or not self.analyser.is_current(analysed):
            return True  # one of another version is made anew by whoever reads it
        try:
            whole = stored_message(message, resource_id, self.decode)
            return self.analyser.analyse(whole.text, whole.author) == analysed
        except CorruptDataError:
            return True  # the message itself is a finding

    def pending(self, rows: Sequence[Row]) -> Iterator[RecordDamage]:
        """Rows of `pending`."""
        yield from _wrong(rows, "PENDING_WRONG", "waits to be embedded and should not")

    def threads(self, rows: Sequence[Row]) -> Iterator[RecordDamage]:
        """Rows of `threads`."""
        yield from _wrong(rows, "THREAD_WRONG", "is a thread of no message of its resource")

    def resources(self, rows: Sequence[Row]) -> Iterator[RecordDamage]:
        """Rows of `resources`."""
        yield from _wrong(rows, "RESOURCE_ORPHAN", "is a resource of no message")


def _wrong(rows: Sequence[Row], kind: str, what: str) -> Iterator[RecordDamage]:
    for is_wrong, resource_key, resource_id, message_id, key in rows:
        if is_wrong:
            finding = Finding(kind, shown(resource_id), shown(message_id), f"row {key} {what}")
            yield RecordDamage(finding, key, resource_key or 0, key)


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """One table: its rows in the order of a key, and the check of each.

    Attributes:
        stage: what it counts for.
        text: arguments: the key that was seen last, the resource or NULL, how many rows. The key
            is the last columns of a row.
        first: the key before all.
        counted: the statement that counts the rows of a resource, or of all (?1 NULL).
    """

    stage: str
    name: str
    text: str
    check: Callable[[Sequence[Row]], Iterator[RecordDamage]]
    first: Key = (0,)
    counted: str = ""

    def rows(
        self, connection: apsw.Connection, after: Key, resource_id: str | None, limit: int
    ) -> list[Row]:
        """The next rows."""
        return connection.execute(self.text, (*after, resource_id, limit)).fetchall()

    def damage(self, connection: apsw.Connection, key: Key) -> list[RecordDamage]:
        """What is wrong with the row of this key now; nothing where it is not there."""
        before = (*key[:-1], key[-1] - 1)
        rows = self.rows(connection, before, None, 1)
        if not rows or self.key_of(rows[0]) != key:
            return []
        return list(self.check(rows))

    def key_of(self, row: Row) -> Key:
        """The key of a row."""
        return tuple(int(part or 0) for part in row[-len(self.first) :])


def _count(table: str) -> str:
    return (
        f"SELECT count(*) FROM {table} WHERE ?1 IS NULL OR resource_key ="
        " (SELECT resource_key FROM resources WHERE resource_id = ?1)"
    )


def checked_tables(checks: RecordChecks) -> dict[str, CheckedTable]:
    """The tables by name, in the order in which they are read."""
    tables = (
        CheckedTable("messages", "messages", _MESSAGES, checks.messages, (0,), _count("messages")),
        CheckedTable("messages", "pending", _PENDING, checks.pending),
        CheckedTable("messages", "threads", _THREADS, checks.threads),
        CheckedTable("messages", "resources", _RESOURCES, checks.resources),
        CheckedTable("vectors", "vectors", _VECTORS, checks.vectors, (0,), _count("vectors")),
        CheckedTable(
            "words", "analyses", _ANALYSES, checks.analyses, _BEFORE_ANALYSES, _count("analyses")
        ),
    )
    return {table.name: table for table in tables}


def examine(
    read: ReadTransaction, resource_id: str | None, checks: RecordChecks
) -> Iterator[RecordDamage | VerifyProgress]:
    """Damage as it is met, and after each batch how far it is."""
    if resource_id is None:
        yield from _database(read)
    for table in checked_tables(checks).values():
        yield from _table(read, table, resource_id)


def _database(read: ReadTransaction) -> Iterator[RecordDamage | VerifyProgress]:
    yield VerifyProgress("database", 0, 1)
    try:
        with read() as connection:
            check = f"PRAGMA integrity_check({_SQLITE_FINDINGS_MAX})"
            details = [str(row[0]) for row in connection.execute(check).fetchall()]
    except CorruptDataError as error:
        yield unreadable(error, "the check of the whole file was broken off")
    else:
        for kind, told in _told_by_sqlite(details):
            yield RecordDamage(Finding(kind, "", "", told))
    yield VerifyProgress("database", 1, 1)


def _told_by_sqlite(details: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(kind, detail) of what its check gave: the first of each kind, and how many more."""
    by_kind: dict[str, list[str]] = {PAGE_DAMAGED: [], DATABASE_CORRUPT: []}
    for detail in details:
        if detail != "ok":
            # A page that could not be read is told with SQLite's number of the error.
            by_kind[PAGE_DAMAGED if "error code" in detail else DATABASE_CORRUPT].append(detail)
    for kind, found in by_kind.items():
        yield from ((kind, detail) for detail in found[:_SQLITE_FINDINGS_TOLD_MAX])
        if len(found) > _SQLITE_FINDINGS_TOLD_MAX:
            more = len(found) - _SQLITE_FINDINGS_TOLD_MAX
            least = "at least " if len(details) >= _SQLITE_FINDINGS_MAX else ""
            yield kind, f"{least}{more} more of these were found in the file"


def unreadable(error: CorruptDataError, what: str) -> RecordDamage:
    """Damage below the rows."""
    kind = PAGE_DAMAGED if error.reason == PAGE_DAMAGED else DATABASE_CORRUPT
    return RecordDamage(Finding(kind, "", "", what))


def _table(
    read: ReadTransaction, table: CheckedTable, resource_id: str | None
) -> Iterator[RecordDamage | VerifyProgress]:
    done, total = 0, _total(read, table, resource_id)
    key: Key | None = table.first
    while key is not None:
        limit = BATCH_ROWS
        try:
            with read() as connection:
                rows = table.rows(connection, key, resource_id, limit)
        except CorruptDataError as error:
            limit = 1
            try:  # one by one up to what cannot be read
                with read() as connection:
                    rows = table.rows(connection, key, resource_id, limit)
            except CorruptDataError:
                behind = _behind_damage(read, table, key, resource_id)
                yield unreadable(error, _told_unread(table.name, key, behind))
                key = behind
                continue
        yield from table.check(rows)
        done += len(rows)
        if table.counted:
            yield VerifyProgress(table.stage, done, max(total, done))
        key = table.key_of(rows[-1]) if len(rows) == limit else None


def _told_unread(table: str, key: Key, behind: Key | None) -> str:
    """Which rows cannot be read: those after `key`, up to `behind` where there is an end."""
    rows = _ROWS_OF[table]
    if table == "analyses":  # its key says little to people
        return f"some of the {rows} cannot be read"
    first = key[0] + 1
    if behind is None:
        return f"{rows}: rows from {first} on cannot be read"
    return f"{rows}: rows {first} to {behind[0]} cannot be read"


def _total(read: ReadTransaction, table: CheckedTable, resource_id: str | None) -> int:
    if not table.counted:
        return 0
    try:
        with read() as connection:
            return int(connection.execute(table.counted, (resource_id,)).get)
    except CorruptDataError:
        return 0


def _behind_damage(
    read: ReadTransaction, table: CheckedTable, key: Key, resource_id: str | None
) -> Key | None:
    """The first key behind `key` from which rows can be read again; None where there is none.

    What cannot be read is a range of keys: a search by halves finds its end.
    """
    for part in reversed(range(len(key))):
        low, high = key[part], _KEY_MAX

        def at(value: int, part: int = part) -> Key:
            return (*key[:part], value, *(0 for _ in key[part + 1 :]))

        if not _readable(read, table, at(high), resource_id):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if _readable(read, table, at(middle), resource_id):
                high = middle
            else:
                low = middle
        return at(high)
    return None


def _readable(
    read: ReadTransaction, table: CheckedTable, key: Key, resource_id: str | None
) -> bool:
    try:
        with read() as connection:
            table.rows(connection, key, resource_id, 1)
    except CorruptDataError:
        return False
    return True
