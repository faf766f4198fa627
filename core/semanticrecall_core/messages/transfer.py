"""Giving a thread to another resource."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import apsw
import numpy as np

from ..types.errors import AlreadyExistsError, NotFoundError
from ..types.lexical import LexicalListener
from ..types.ports import CommitListener, MessageCodec
from . import keys
from .commit import Change
from .put_analyses import move_analysis, tell_texts_removed
from .put_vectors import carry_vectors, delete_vectors
from .rows import MESSAGE_COLUMNS, MESSAGES, draft_of, message_checksum, stored_message

_BATCH_ROWS = 256


class TransferThread:
    """One call of `MessageStore.transfer_thread`: an operation for the writer thread."""

    def __init__(
        self, resource_id: str, thread_id: str, to_resource_id: str, codec: MessageCodec
    ) -> None:
        """Whose thread, which, and who gets it."""
        self._codec = codec
        self._resource_id = resource_id
        self._thread_id = thread_id
        self._to_resource_id = to_resource_id

    def __call__(self, connection: apsw.Connection, revision: int) -> Change[int]:
        """See commit.Operation."""
        source = keys.resource_key(connection, self._resource_id)
        thread = None if source is None else keys.thread_key(connection, source, self._thread_id)
        if source is None or thread is None:
            raise NotFoundError("no such thread")
        target = keys.resource_key_made(connection, self._to_resource_id)
        if keys.thread_key(connection, target, self._thread_id) is not None:
            raise AlreadyExistsError("the other resource has a thread of this id")
        if self._ids_taken(connection, thread, target):
            raise AlreadyExistsError("the other resource has a message of the same id")
        new_thread = keys.thread_key_made(connection, target, self._thread_id)
        seqs: list[int] = []
        for row in self._rows(connection, thread):
            self._move(connection, row, (target, new_thread, revision))
            seqs.append(row[0])
        keys.drop_empty_threads(connection, [thread])
        keys.drop_empty_resource(connection, source)
        return Change(
            len(seqs),
            notices=(partial(self._tell, sorted(seqs)),),
            lexical_notices=(partial(self._tell_lexical, sorted(seqs)),),
            resources=(self._resource_id, self._to_resource_id),
        )

    def _rows(self, connection: apsw.Connection, thread: int) -> Iterator[tuple[Any, ...]]:
        """The thread's rows, a batch in memory at a time; moved ones are not met again."""
        while True:
            rows = connection.execute(
                f"SELECT {MESSAGE_COLUMNS} FROM {MESSAGES} WHERE m.thread_key = ? LIMIT ?",
                (thread, _BATCH_ROWS),
            ).fetchall()
            if not rows:
                return
            yield from rows

    def _move(
        self, connection: apsw.Connection, row: tuple[Any, ...], to: tuple[int, int, int]
    ) -> None:
        target, new_thread, revision = to
        # A damaged row is not given a fresh checksum.
        message = stored_message(row, self._resource_id, self._codec.decode)
        seq, source, _, time_ns, _, role, embeddable = row[:7]
        encoded = self._codec.encode(self._to_resource_id, draft_of(message), time_ns)
        checksum = message_checksum(
            (seq, target, new_thread, time_ns, revision, role, embeddable),
            (self._to_resource_id.encode(), *row[7:11]),
            encoded,
        )
        connection.execute(
            "UPDATE messages SET resource_key = ?, thread_key = ?, revision = ?, checksum = ?,"
            " encoded = ? WHERE seq = ?",
            (target, new_thread, revision, checksum, encoded, seq),
        )
        connection.execute("UPDATE pending SET resource_key = ? WHERE seq = ?", (target, seq))
        move_analysis(connection, (source, seq), (target, new_thread, revision))
        moved = carry_vectors(
            connection, source, seq, (new_thread, time_ns, role, revision), target
        )
        if moved is None:
            delete_vectors(connection, source, [seq])
            connection.execute(
                "INSERT INTO pending VALUES (?, ?) ON CONFLICT DO NOTHING", (seq, target)
            )

    def _ids_taken(self, connection: apsw.Connection, thread: int, target: int) -> bool:
        return bool(
            connection.execute(
                "SELECT EXISTS (SELECT 1 FROM messages m JOIN messages o ON o.resource_key = ?"
                " AND o.id = m.id WHERE m.thread_key = ?)",
                (target, thread),
            ).get
        )

    def _tell(self, seqs: list[int], listener: CommitListener) -> None:
        listener.vectors_removed(self._resource_id, np.array(seqs, np.int64))
        listener.resource_dropped(self._to_resource_id)

    def _tell_lexical(self, seqs: list[int], listener: LexicalListener) -> None:
        tell_texts_removed(self._resource_id, seqs, listener)
        listener.resource_dropped(self._to_resource_id)
