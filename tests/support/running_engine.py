"""An engine over a real record and index, with an embedder that fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.recalling import RecallAnswer, RecallQuery
from semanticrecall_core.types.values import CallBudget, IndexAnswer, MessageDraft, Role, Wait
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder
from support.stored_messages import open_store

WAIT_SECONDS = 30.0


class Interrupted:
    """A store that does something of the test's just before the next call of a method.

    Attributes:
        before: per method, what is done before its next calls, one a call.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.before: dict[str, list[Callable[[], object]]] = {}

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if not self.before.get(name):
            return attribute
        self.before[name].pop(0)()
        return attribute


class Running:
    """An engine over one directory."""

    def __init__(self, directory: Path, **limits: object) -> None:
        self.embedder = FakeEmbedder()
        self.store = Interrupted(open_store(directory, generation=self.embedder.generation))
        self.index = FaissVectorIndex(self.embedder.dimensions, self.store.load_partition)
        self.engine = Engine(
            self.store,
            self.embedder,
            self.index,
            EngineLimits(**limits),  # type: ignore[arg-type]
        )
        self.engine.start()

    def add(
        self, *drafts: MessageDraft, wait: Wait = Wait.SEARCHABLE, resource: str = "u"
    ) -> IndexAnswer:
        return self.engine.index(resource, drafts, wait, CallBudget.of_seconds(WAIT_SECONDS))

    def recall(self, text: str, resource: str = "u", **fields: object) -> RecallAnswer:
        query = RecallQuery(resource, text, **fields)  # type: ignore[arg-type]
        return self.engine.recall(query, CallBudget.of_seconds(WAIT_SECONDS))


def draft(id: str, text: str, **fields: object) -> MessageDraft:
    values: dict[str, object] = {"thread_id": "t", "role": Role.USER, **fields}
    return MessageDraft(id=id, text=text, **values)  # type: ignore[arg-type]


def ids(answer: RecallAnswer) -> list[str]:
    return [m.message.id for m in answer.messages]


def hit_ids(answer: RecallAnswer) -> list[str]:
    hits = sorted((m for m in answer.messages if m.rank), key=lambda m: m.rank)
    return [m.message.id for m in hits]


def await_pending(running: Running, count: int) -> None:
    """Wait until the backlog holds `count` rows."""
    poll = threading.Event()
    for _ in range(int(WAIT_SECONDS * 100)):
        if running.engine.pending() == count:
            return
        poll.wait(0.01)
    raise AssertionError(f"{running.engine.pending()} rows are pending, not {count}")
