"""An engine that knows words too: the record, the vectors and words by brute force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.types.lexical import LexicalListener
from semanticrecall_core.vectors import FaissVectorIndex
from support.brute_force_lexical import BruteForceLexicalIndex
from support.fake_embedder import FakeEmbedder
from support.running_engine import Interrupted, Running
from support.stored_messages import open_store


class _Store(Interrupted):
    """Tells nobody of words: brute force reads the record."""

    def subscribe_lexical(self, listener: LexicalListener) -> None:
        pass


class HybridRunning(Running):
    """As `Running`, with words."""

    def __init__(self, directory: Path, **limits: object) -> None:
        self.embedder = FakeEmbedder()
        self.store = _Store(open_store(directory, generation=self.embedder.generation))
        self.index = FaissVectorIndex(self.embedder.dimensions, self.store.load_partition)
        self.lexical = BruteForceLexicalIndex(self.store)
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
