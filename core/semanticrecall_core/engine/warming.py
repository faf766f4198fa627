"""Reading partitions ahead after a start, the most recently written first.

Nothing waits for it longer than a moment: what is not in memory yet is read by its first recall.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog

from semanticrecall_core.engine.low_priority import lower_priority
from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.lexical import LexicalIndex, LexicalQuery
from semanticrecall_core.types.ports import MessageStore, VectorIndex
from semanticrecall_core.types.values import VectorQuery

PAUSE_SHARE = 4
"""Pauses, in times of the work: reading a small partition is mostly work of the interpreter."""

_ANY_WORD = LexicalQuery(("a",), top_k=1)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WarmingLimits:
    """How much is read ahead.

    Attributes:
        seconds_before_serving: how long `start` waits for it.
        resources_max: how many at most.
    """

    seconds_before_serving: float = 0.2
    resources_max: int = 10_000


class Warming:
    """A thread that searches the recent resources once each, and ends."""

    def __init__(
        self,
        store: MessageStore,
        index: VectorIndex,
        dimensions: int,
        limits: WarmingLimits,
        has_room: Callable[[], bool],
        lexical: LexicalIndex | None = None,
    ) -> None:
        """Prepare the thread.

        Args:
            store: names the recent resources.
            index, lexical: read them.
            dimensions: of a vector.
            limits: see there.
            has_room: whether another partition fits; reading on would evict better ones.
        """
        self._store = store
        self._index = index
        self._lexical = lexical
        self._query = VectorQuery(np.eye(1, dimensions, dtype=np.float32)[0], top_k=1)
        self._limits = limits
        self._has_room = has_room
        self._serving = threading.Event()
        self._ended = threading.Event()
        self._stopped = threading.Event()
        self._warmed = 0
        self._thread = threading.Thread(target=self._run, name="warming", daemon=True)

    def start(self) -> int:
        """Begin, and wait a moment; returns how many resources have been read."""
        self._thread.start()
        self._ended.wait(self._limits.seconds_before_serving)
        self._serving.set()
        return self._warmed

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            for resource_id in self._store.recent_resources(self._limits.resources_max):
                if self._stopped.is_set() or not self._has_room():
                    break
                started = time.monotonic()
                self._index.search(resource_id, self._query)
                if self._lexical is not None:
                    self._lexical.match(resource_id, _ANY_WORD)
                self._warmed += 1
                self._give_way(time.monotonic() - started)
        except SemanticRecallError as error:
            _log.warning("warming_ended", reason=error.reason)
        finally:
            self._ended.set()

    def _give_way(self, worked_s: float) -> None:
        """Once calls are served: the lowest priority, and a fifth of one core at most."""
        if not self._serving.is_set():
            return
        lower_priority()
        self._stopped.wait(PAUSE_SHARE * worked_s)
