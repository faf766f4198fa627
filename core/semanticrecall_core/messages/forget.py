"""Removing messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import apsw
import numpy as np

from ..types.errors import CorruptDataError
from ..types.lexical import LexicalListener
from ..types.ports import CommitListener
from ..types.stored_message import DecodeMessage
from ..types.values import ForgetCondition, ForgetOutcome, ForgetTarget, RowsToForget
from . import keys
from .commit import Change, LexicalNotice, Notice
from .put_analyses import delete_analyses, tell_texts_removed
from .put_vectors import delete_vectors

FORGET_ROWS_MAX = 250
"""Removed in one transaction: some tens of milliseconds of the writer's time."""

FORGET_TEXTS_MAX = 10_000
FORGET_TEXT_BYTES_MAX = 16 << 20
SEARCHED_ROWS = 5_000
"""Rows that one page of a search looks at: some tens of milliseconds of a reader's time."""

# What was never embedded is not in the cache, and its payload need not be read.
_COLUMNS = "SELECT seq, thread_key, CASE WHEN embeddable THEN encoded END FROM messages"
_COLUMNS_WITH_AUTHOR = _COLUMNS.replace(" FROM", ", encoded FROM")
_NOTHING = ForgetOutcome(seqs=(), vectors=0, threads=0)
_Row = tuple[int, int, bytes | None]


@dataclass(frozen=True, slots=True)
class ForgetSearch:
    """One page of a search.

    Attributes:
        after: (create_time_ns, seq) that the page starts behind.
        changed_after: only messages that changed after this revision.
    """

    resource_id: str
    condition: ForgetCondition
    after: tuple[int, int] | None = None
    changed_after: int = 0


class Forget:
    """One call of `MessageStore.forget`: an operation for the writer thread.

    The texts it returns are capped in number and size; it says whether there were others.
    """

    def __init__(self, resource_id: str, target: ForgetTarget, decode: DecodeMessage) -> None:
        """Exactly one attribute of the target is set."""
        self._decode = decode
        self._resource_id = resource_id
        self._target = target

    def __call__(self, connection: apsw.Connection, revision: int) -> Change[ForgetOutcome]:
        """See commit.Operation."""
        resource = keys.resource_key(connection, self._resource_id)
        if resource is None:
            return Change(_NOTHING, changed=False)
        rows = list(islice(self._rows(connection, resource), FORGET_ROWS_MAX + 1))
        if not rows:
            return Change(_NOTHING, changed=False)
        more = len(rows) > FORGET_ROWS_MAX
        del rows[FORGET_ROWS_MAX:]
        texts, left_out = ((), True) if self._target.everything else self._texts(rows)
        seqs = sorted(seq for seq, _, _ in rows)
        vectors = delete_vectors(connection, resource, seqs)
        delete_analyses(connection, resource, seqs)
        for table in ("pending", "messages"):
            connection.execute(
                f"DELETE FROM {table} WHERE seq IN (SELECT value FROM carray(?))",
                (keys.seq_array(seqs),),
            )
        emptied = keys.drop_empty_threads(connection, sorted({thread for _, thread, _ in rows}))
        keys.drop_empty_resource(connection, resource)
        in_snapshots = _remembered(connection, seqs, revision)
        outcome = ForgetOutcome(
            tuple(seqs), vectors, emptied, texts, left_out, more, revision, in_snapshots
        )
        whole = self._target.everything and not more
        return Change(
            outcome,
            notices=(self._notice(seqs, whole),),
            lexical_notices=(self._lexical_notice(seqs, whole),),
            resources=(self._resource_id,),
        )

    def _texts(self, rows: Sequence[_Row]) -> tuple[tuple[str, ...], bool]:
        """The texts of what was embedded, and whether there are others."""
        texts: list[str] = []
        room = FORGET_TEXT_BYTES_MAX
        left_out = False
        for _, _, encoded in rows:
            if encoded is None:
                continue
            text = self._text(encoded) if len(texts) < FORGET_TEXTS_MAX else None
            size = 0 if text is None else len(text.encode())
            if text is None or size > room:
                left_out = True
            else:
                texts.append(text)
                room -= size
        return tuple(texts), left_out

    def _text(self, encoded: bytes) -> str | None:
        """The text of a message; None where it is damaged, which must be forgettable too."""
        try:
            return self._decode(encoded).text
        except CorruptDataError:
            return None

    def _rows(self, connection: apsw.Connection, resource: int) -> Iterator[_Row]:
        match self._target:
            case ForgetTarget(message_ids=tuple() as ids):
                for message_id in dict.fromkeys(ids):
                    yield from connection.execute(
                        f"{_COLUMNS} WHERE resource_key = ? AND id = ?", (resource, message_id)
                    )
            case ForgetTarget(rows=tuple() as rows):
                for seq, row_revision in rows:
                    yield from connection.execute(
                        f"{_COLUMNS} WHERE seq = ? AND resource_key = ? AND revision = ?",
                        (seq, resource, row_revision),
                    )
            case ForgetTarget(thread_id=str() as thread_id):
                yield from self._meeting(connection, resource, ForgetCondition(thread_id))
            case ForgetTarget(create_time_before_ns=int() as before):
                yield from self._meeting(connection, resource, ForgetCondition(time_to_ns=before))
            case ForgetTarget(everything=True):
                yield from self._meeting(connection, resource, ForgetCondition())
            case ForgetTarget(condition=ForgetCondition() as condition):
                yield from self._meeting(connection, resource, condition)
            case _:
                raise ValueError("a forget target names nothing")

    def _meeting(
        self, connection: apsw.Connection, resource: int, condition: ForgetCondition
    ) -> Iterator[_Row]:
        """Rows that meet a condition and changed after the target's revision."""
        where, bindings = _where(connection, resource, condition)
        if self._target.changed_after:
            where += " AND revision > ?"
            bindings.append(self._target.changed_after)
        columns = _COLUMNS if not condition.authors else _COLUMNS_WITH_AUTHOR
        for row in connection.execute(f"{columns} WHERE {where}", bindings):
            if not condition.authors:
                yield row
            elif author_of(row[3], self._decode) in condition.authors:
                yield row[:3]

    def _notice(self, seqs: list[int], whole: bool) -> Notice:
        if whole:
            return partial(_tell_dropped, self._resource_id)
        return partial(_tell_removed, self._resource_id, seqs)

    def _lexical_notice(self, seqs: list[int], whole: bool) -> LexicalNotice:
        if whole:
            return partial(_tell_dropped, self._resource_id)
        return partial(tell_texts_removed, self._resource_id, seqs)


def rows_to_forget(
    connection: apsw.Connection, search: ForgetSearch, decode: DecodeMessage
) -> RowsToForget:
    """One page of what a condition names, on a reader; see `MessageStore.rows_to_forget`."""
    revision = int(connection.execute("SELECT revision FROM record").get)
    resource = keys.resource_key(connection, search.resource_id)
    if resource is None:
        return RowsToForget((), revision, None)
    condition = search.condition
    where, bindings = _where(connection, resource, condition)
    if search.after is not None:
        where += " AND (create_time_ns, seq) > (?, ?)"
        bindings += search.after
    encoded = "encoded" if condition.authors else "NULL"
    found: list[tuple[int, int]] = []
    looked_at = 0
    last: tuple[int, int] | None = None
    for time_ns, seq, changed, message in connection.execute(
        f"SELECT create_time_ns, seq, revision, CASE WHEN revision > ? THEN {encoded} END"
        f" FROM messages WHERE {where} ORDER BY create_time_ns, seq LIMIT ?",
        (search.changed_after, *bindings, SEARCHED_ROWS),
    ):
        looked_at += 1
        last = (time_ns, seq)
        if changed <= search.changed_after:
            continue
        if not condition.authors or author_of(message, decode) in condition.authors:
            found.append((seq, changed))
    return RowsToForget(tuple(found), revision, last if looked_at == SEARCHED_ROWS else None)


def author_of(encoded: bytes, decode: DecodeMessage) -> str | None:
    """Who wrote a message; None where it is damaged."""
    try:
        return decode(encoded).author
    except CorruptDataError:
        return None


def _where(
    connection: apsw.Connection, resource: int, condition: ForgetCondition
) -> tuple[str, list[int]]:
    """What the columns of `messages` can say of a condition, and what is bound to it."""
    where, bindings = "resource_key = ?", [resource]
    if condition.thread_id is not None:
        where = "thread_key = ?"  # of this resource alone
        bindings = [keys.thread_key(connection, resource, condition.thread_id) or 0]
    if condition.time_from_ns is not None:
        where += " AND create_time_ns >= ?"
        bindings.append(condition.time_from_ns)
    if condition.time_to_ns is not None:
        where += " AND create_time_ns < ?"
        bindings.append(condition.time_to_ns)
    if condition.roles:
        where += f" AND role IN ({','.join('?' * len(condition.roles))})"
        bindings += sorted(int(role) for role in condition.roles)
    return where, bindings


def _remembered(connection: apsw.Connection, seqs: list[int], revision: int) -> tuple[int, ...]:
    """Note that messages are gone; those that saved snapshots may hold."""
    connection.execute("UPDATE record SET forgotten_revision = ?", (revision,))
    last = int(connection.execute("SELECT snapshot_seq FROM record").get)
    in_snapshots = tuple(seq for seq in seqs if seq <= last)
    connection.executemany(
        "INSERT INTO forgotten(seq, revision) VALUES (?, ?)",
        ((seq, revision) for seq in in_snapshots),
    )
    return in_snapshots


def _tell_dropped(resource_id: str, listener: CommitListener | LexicalListener) -> None:
    listener.resource_dropped(resource_id)


def _tell_removed(resource_id: str, seqs: list[int], listener: CommitListener) -> None:
    listener.vectors_removed(resource_id, np.array(seqs, np.int64))
