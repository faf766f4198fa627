"""Removing messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import apsw
import numpy as np

from ..types.errors import CorruptDataError
from ..types.lexical import LexicalListener
from ..types.ports import CommitListener
from ..types.stored_message import DecodeMessage
from ..types.values import ForgetOutcome, ForgetTarget
from . import keys
from .commit import Change, LexicalNotice, Notice
from .put_analyses import delete_analyses, tell_texts_removed
from .put_vectors import delete_vectors

FORGET_TEXTS_MAX = 10_000
FORGET_TEXT_BYTES_MAX = 16 << 20
# What was never embedded is not in the cache, and its payload need not be read.
_COLUMNS = (
    "SELECT seq, thread_key, CASE WHEN embeddable THEN encoded END"
    " FROM messages WHERE resource_key = ?"
)
_NOTHING = ForgetOutcome(seqs=(), vectors=0, threads=0)


class Forget:
    """One call of `MessageStore.forget`: an operation for the writer thread.

    The texts it returns are capped in number and size; it says whether there were others.
    """

    def __init__(self, resource_id: str, target: ForgetTarget, decode: DecodeMessage) -> None:
        """Exactly one attribute of the target is set."""
        self._decode = decode
        self._resource_id = resource_id
        self._target = target

    def __call__(self, connection: apsw.Connection, _revision: int) -> Change[ForgetOutcome]:
        """See commit.Operation."""
        resource = keys.resource_key(connection, self._resource_id)
        if resource is None:
            return Change(_NOTHING, changed=False)
        seqs: list[int] = []
        threads: set[int] = set()
        texts: list[str] = []
        room = FORGET_TEXT_BYTES_MAX
        left_out = False
        for seq, thread, encoded in self._rows(connection, resource):
            seqs.append(seq)
            threads.add(thread)
            if encoded is None:
                continue
            text = self._text(encoded) if len(texts) < FORGET_TEXTS_MAX else None
            size = 0 if text is None else len(text.encode())
            if text is None or size > room:
                left_out = True
            else:
                texts.append(text)
                room -= size
        if not seqs:
            return Change(_NOTHING, changed=False)
        seqs.sort()
        vectors = delete_vectors(connection, resource, seqs)
        delete_analyses(connection, resource, seqs)
        for table in ("pending", "messages"):
            connection.execute(
                f"DELETE FROM {table} WHERE seq IN (SELECT value FROM carray(?))",
                (keys.seq_array(seqs),),
            )
        emptied = keys.drop_empty_threads(connection, sorted(threads))
        keys.drop_empty_resource(connection, resource)
        outcome = ForgetOutcome(tuple(seqs), vectors, emptied, tuple(texts), left_out)
        return Change(
            outcome,
            notices=(self._notice(seqs),),
            lexical_notices=(self._lexical_notice(seqs),),
            resources=(self._resource_id,),
        )

    def _text(self, encoded: bytes) -> str | None:
        """The text of a message; None where it is damaged, which must be forgettable too."""
        try:
            return self._decode(encoded).text
        except CorruptDataError:
            return None

    def _rows(
        self, connection: apsw.Connection, resource: int
    ) -> Iterable[tuple[int, int, bytes | None]]:
        match self._target:
            case ForgetTarget(message_ids=tuple() as ids):
                for message_id in dict.fromkeys(ids):
                    yield from connection.execute(f"{_COLUMNS} AND id = ?", (resource, message_id))
            case ForgetTarget(thread_id=str() as thread_id):
                thread = keys.thread_key(connection, resource, thread_id)
                yield from connection.execute(f"{_COLUMNS} AND thread_key = ?", (resource, thread))
            case ForgetTarget(create_time_before_ns=int() as before):
                yield from connection.execute(
                    f"{_COLUMNS} AND create_time_ns < ?", (resource, before)
                )
            case ForgetTarget(everything=True):
                yield from connection.execute(_COLUMNS, (resource,))
            case _:
                raise ValueError("a forget target names nothing")

    def _notice(self, seqs: list[int]) -> Notice:
        if self._target.everything:
            return partial(_tell_dropped, self._resource_id)
        return partial(_tell_removed, self._resource_id, seqs)

    def _lexical_notice(self, seqs: list[int]) -> LexicalNotice:
        if self._target.everything:
            return partial(_tell_dropped, self._resource_id)
        return partial(tell_texts_removed, self._resource_id, seqs)


def _tell_dropped(resource_id: str, listener: CommitListener | LexicalListener) -> None:
    listener.resource_dropped(resource_id)


def _tell_removed(resource_id: str, seqs: list[int], listener: CommitListener) -> None:
    listener.vectors_removed(resource_id, np.array(seqs, np.int64))
