"""Removing the rows of collections that are gone already, while nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from ..types.errors import SemanticRecallError

PAUSE_S: Final = 0.001
"""Between two transactions of one who has many to do, so that others come in between."""

_log = structlog.get_logger(__name__)


class Remover:
    """A thread that removes rows, a few at a time, and ends when none is left. Thread-safe."""

    def __init__(self, remove: Callable[[], bool]) -> None:
        """Nothing is removed before `start`.

        Args:
            remove: removes some rows; whether there may be more.
        """
        self._remove = remove
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked = False
        self._closing = threading.Event()

    def start(self) -> None:
        """There is something to remove."""
        with self._lock:
            self._asked = True
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._work, name="collections-removal", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while self._goes_on():
            try:
                while self._remove() and not self._closing.wait(PAUSE_S):
                    pass
            except SemanticRecallError as error:
                # A purge, the next removal or the next start goes on with it.
                _log.warning("collections_rows_left", reason=error.reason)

    def _goes_on(self) -> bool:
        with self._lock:
            goes_on = self._asked and not self._closing.is_set()
            self._asked = False
            if not goes_on:
                self._thread = None
            return goes_on

    def close(self) -> None:
        """Remove no more; what is left goes after the next start."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
