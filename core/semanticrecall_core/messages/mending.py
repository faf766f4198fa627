"""Mending what `verifying` finds, row by row, on the writer thread.

What is derived is deleted and made anew: vectors are embedded again, words analysed again. A
message that does not match its checksum is lost: it leaves the record with all that was made from
it, so that the others are served again, and this is told. It is not taken for forgotten: a saved
snapshot that has it whole still gives it back.

Each row is judged once more in the transaction that mends it. A row that is sound by then, or gone,
is left alone, so that mending twice changes nothing the second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import apsw

from ..types.errors import CorruptDataError
from ..types.lexical import LexicalListener
from ..types.ports import CommitListener
from ..types.stored_message import DecodeMessage
from ..types.values import PendingRow
from ..types.verifying import LostMessage, MendReport, RecordDamage
from . import keys
from .commit import Change
from .damage_log import DamageLog
from .put_vectors import delete_vectors, requeue
from .rows import (
    MESSAGE_COLUMNS,
    MESSAGE_ENCODED,
    MESSAGES,
    content_hash,
    draft_of,
    message_checksum,
    shown,
    stored_message,
    text_hash,
)
from .verifying import CheckedTable, Key

_TABLE_OF = {
    "ROW": "messages",
    "VECTOR": "vectors",
    "ANALYSIS": "analyses",
    "PENDING": "pending",
    "THREAD": "threads",
    "RESOURCE": "resources",
}


class Mend:
    """An operation for the writer thread."""

    def __init__(
        self,
        damages: Sequence[RecordDamage],
        tables: dict[str, CheckedTable],
        decode: DecodeMessage,
        log: DamageLog,
    ) -> None:
        """Damage of rows; that of the file is mended elsewhere."""
        self._log = log
        self._damages = damages
        self._tables = tables
        self._decode = decode

    def __call__(self, connection: apsw.Connection, _revision: int) -> Change[MendReport]:
        """See commit.Operation."""
        mended = MendReport()
        changed: set[str] = set()
        before = connection.total_changes()
        for damage in self._damages:
            kind = damage.finding.kind
            table = self._table(kind)
            key = _key_of(table, damage)
            if any(one.finding.kind == kind for one in table.damage(connection, key)):
                changed.add(damage.finding.resource_id)
                self._mend(connection, damage, mended)
                left = table.damage(connection, key)
                mended.repaired.append(all(one.finding.kind != kind for one in left))
            else:
                mended.repaired.append(True)
        changed.discard("")
        resources = sorted(changed)
        return Change(
            mended,
            changed=connection.total_changes() != before,
            notices=tuple(partial(_tell_dropped, name) for name in resources),
            lexical_notices=tuple(partial(_tell_dropped, name) for name in resources),
            resources=tuple(resources),
            committed=partial(self._log.requeued, mended.requeued),
        )

    def _table(self, kind: str) -> CheckedTable:
        name = "messages" if kind == "VECTOR_MISSING" else _TABLE_OF[kind.partition("_")[0]]
        return self._tables[name]

    def _mend(self, connection: apsw.Connection, damage: RecordDamage, mended: MendReport) -> None:
        match damage.finding.kind:
            case "ROW_CORRUPT":
                self._mend_message(connection, damage, mended)
            case "VECTOR_ORPHAN":
                _delete(connection, "vectors", "vector_key", damage.row_key)
            case "ANALYSIS_CORRUPT" | "ANALYSIS_ORPHAN" | "ANALYSIS_STALE" | "ANALYSIS_DIFFERS":
                connection.execute(
                    "DELETE FROM analyses WHERE resource_key = ? AND seq = ?",
                    (damage.resource_key, damage.seq),
                )
            case "PENDING_WRONG":
                _mend_pending(connection, damage.row_key)
            case "THREAD_WRONG":
                _mend_thread(connection, damage.row_key)
            case "RESOURCE_ORPHAN":
                _delete(connection, "resources", "resource_key", damage.row_key)
            case _:  # vectors: whatever is wrong with them, they are made anew
                _delete(connection, "vectors", "vector_key", damage.row_key)
                requeue(connection, damage.resource_key, [damage.seq])
                mended.requeued += pending_of(connection, damage.seq)

    def _mend_message(
        self, connection: apsw.Connection, damage: RecordDamage, mended: MendReport
    ) -> None:
        row = connection.execute(
            f"SELECT {MESSAGE_COLUMNS}, CAST(r.resource_id AS BLOB) FROM {MESSAGES}"
            " LEFT JOIN resources r ON r.resource_key = m.resource_key WHERE m.seq = ?",
            (damage.seq,),
        ).fetchone()
        if row is None:
            return
        try:
            whole = stored_message(row, shown(row[-1]), self._decode)
        except CorruptDataError:
            if not self._names_mended(connection, row):
                _remove(connection, damage.seq)
                found = damage.finding
                mended.lost.append(LostMessage(damage.seq, found.resource_id, found.message_id))
            return
        draft = draft_of(whole)  # the message is whole: what was made from it is not
        connection.execute(
            "UPDATE messages SET content_hash = ?, text_hash = ? WHERE seq = ?",
            (content_hash(draft), text_hash(draft.text), damage.seq),
        )

    def _names_mended(self, connection: apsw.Connection, row: tuple[Any, ...]) -> bool:
        """Whether the message is whole and only the name of its resource or thread was not.

        The encoded message has both names; its checksum tells whether they are the right ones.
        """
        try:
            body = self._decode(row[MESSAGE_ENCODED])
            names = (body.resource_id.encode(), body.thread_id.encode(), *row[8:11])
            if message_checksum(row[:7], names, row[MESSAGE_ENCODED]) != row[12]:
                return False
            connection.execute(
                "INSERT INTO resources VALUES (?, ?)"
                " ON CONFLICT (resource_key) DO UPDATE SET resource_id = excluded.resource_id",
                (row[1], body.resource_id),
            )
            connection.execute(
                "INSERT INTO threads VALUES (?, ?, ?) ON CONFLICT (thread_key) DO UPDATE"
                " SET resource_key = excluded.resource_key, thread_id = excluded.thread_id",
                (row[2], row[1], body.thread_id),
            )
        except (CorruptDataError, apsw.ConstraintError, ArithmeticError, TypeError, ValueError):
            return False
        return True


def _remove(connection: apsw.Connection, seq: int) -> None:
    """Remove a message and all that was made from it; whatever of it can be believed."""
    row = connection.execute(
        "SELECT resource_key, thread_key FROM messages WHERE seq = ?", (seq,)
    ).fetchone()
    if row is None:
        return
    resource_key, thread_key = int(row[0] or 0), int(row[1] or 0)
    delete_vectors(connection, resource_key, [seq])
    connection.execute(
        "DELETE FROM analyses WHERE resource_key = ? AND seq = ?", (resource_key, seq)
    )
    _delete(connection, "pending", "seq", seq)
    _delete(connection, "messages", "seq", seq)
    keys.drop_empty_threads(connection, [thread_key])
    keys.drop_empty_resource(connection, resource_key)


def pending_of(connection: apsw.Connection, seq: int) -> list[PendingRow]:
    """The message, if it waits to be embedded; without its text."""
    found = connection.execute(
        "SELECT CAST(r.resource_id AS BLOB), m.seq, m.revision FROM pending p"
        " JOIN messages m ON m.seq = p.seq JOIN resources r ON r.resource_key = m.resource_key"
        " WHERE p.seq = ?",
        (seq,),
    ).fetchall()
    rows = cast("list[tuple[bytes, int, int]]", found)
    return [PendingRow(shown(name), at, revision, None) for name, at, revision in rows]


def drop_resource(resource_id: str, _connection: apsw.Connection, _revision: int) -> Change[None]:
    """An operation that changes nothing: what is in memory of a resource is read anew."""
    tell = partial(_tell_dropped, resource_id)
    return Change(
        None,
        changed=False,
        notices=(tell,),
        lexical_notices=(tell,),
        resources=(resource_id,),
    )


def _key_of(table: CheckedTable, damage: RecordDamage) -> Key:
    if table.name == "messages":
        return (damage.seq,)
    if table.name == "analyses":
        return (damage.resource_key, damage.seq)
    return (damage.row_key,)


def _delete(connection: apsw.Connection, table: str, column: str, key: int) -> None:
    connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))


def _mend_pending(connection: apsw.Connection, seq: int) -> None:
    _delete(connection, "pending", "seq", seq)
    connection.execute(
        "INSERT INTO pending SELECT m.seq, m.resource_key FROM messages m WHERE m.seq = ?"
        " AND m.embeddable = 1 AND NOT EXISTS (SELECT 1 FROM vectors v"
        "  WHERE v.resource_key = m.resource_key AND v.seq = m.seq"
        "  AND v.generation_key = (SELECT generation_key FROM record))",
        (seq,),
    )


def _mend_thread(connection: apsw.Connection, thread_key: int) -> None:
    """Its messages say whose it is; without any it goes."""
    connection.execute(
        "UPDATE OR IGNORE threads SET resource_key = coalesce((SELECT m.resource_key"
        " FROM messages m WHERE m.thread_key = threads.thread_key LIMIT 1), resource_key)"
        " WHERE thread_key = ?",
        (thread_key,),
    )
    keys.drop_empty_threads(connection, [thread_key])


def _tell_dropped(resource_id: str, listener: CommitListener | LexicalListener) -> None:
    listener.resource_dropped(resource_id)
