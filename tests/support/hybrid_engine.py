"""An engine that knows words too: the record, the vectors and the words as in the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder
from support.running_engine import Interrupted, Running
from support.stored_messages import open_store


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
        recall = self.engine._recall
        recall._limits = replace(recall._limits, now_ns=lambda: now_ns)
