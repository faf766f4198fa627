"""An engine that knows words too: the record, the vectors and the words as in the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery
from semanticrecall_core.types.recalling import ExcludedReason, Hit, Mode, RecallAnswer
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder, text_vector
from support.running_engine import Interrupted, Running, draft
from support.stored_messages import open_store

BARE = {"before": 0, "after": 0}
MODES = [Mode.DENSE, Mode.LEXICAL, Mode.HYBRID]
FACTS = {
    "tea": "green tea from the mountains of Uji",
    "boat": "the harbour of Oslo has a white boat",
    "cat": "a cat sleeps on the warm roof",
    "code": "the invoice says ZX-8841 was paid",
    "rain": "rain fell on the harbour all night",
    "cup": "tea is best in a thin cup",
}


class HookedLexicalIndex(InMemoryLexicalIndex):
    """Does something of the test's when it was asked.

    Attributes:
        after_match: what is done after its next calls, before they return; one a call.
        queries: what it was asked.
    """

    after_match: list[Callable[[], object]]
    queries: list[LexicalQuery]

    def match(self, resource_id: str, query: LexicalQuery) -> LexicalMatch:
        self.queries.append(query)
        match = super().match(resource_id, query)
        if self.after_match:
            self.after_match.pop(0)()
        return match


class HybridRunning(Running):
    """As `Running`, with words."""

    def __init__(self, directory: Path, **limits: object) -> None:
        self.embedder = FakeEmbedder()
        self.store = Interrupted(
            open_store(directory, generation=self.embedder.generation, analyser=Analyser())
        )
        self.index = FaissVectorIndex(self.embedder.dimensions, self.store.load_partition)
        self.lexical = HookedLexicalIndex(self.store.load_lexical)
        self.lexical.after_match, self.lexical.queries = [], []
        self.engine = Engine(
            self.store,
            self.embedder,
            self.index,
            EngineLimits(**limits),  # type: ignore[arg-type]
            lexical=self.lexical,
        )
        self.engine.start()

    def set_clock(self, now_ns: int) -> None:
        """Count ages from then."""
        recall = self.engine._serving._current.recall
        recall._limits = replace(recall._limits, now_ns=lambda: now_ns)


def add_facts(running: Running) -> None:
    """FACTS, one each in a thread of its own."""
    running.add(*(draft(id, text, thread_id=id) for id, text in FACTS.items()))


def hits(answer: RecallAnswer) -> list[Hit]:
    """By rank."""
    ranked = sorted((m for m in answer.messages if m.rank), key=lambda m: m.rank)
    assert [m.rank for m in ranked] == list(range(1, len(ranked) + 1))
    return [m.found for m in ranked if m.found is not None]


def cosine(query: str, text: str) -> float:
    return float(text_vector(query, 64).astype(np.float64) @ text_vector(text, 64))


def reasons(answer: RecallAnswer) -> dict[str, ExcludedReason]:
    return {e.message.id: e.reason for e in answer.excluded if e.message is not None}
