"""Callers that want the same thing at the same time share one computation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ..types.errors import EmbeddingFailedError
from ..types.values import CallBudget

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

CANCEL_POLL_SECONDS = 0.02
"""How soon a waiting caller notices that it was cancelled. A result wakes it at once."""


class _Flight(Generic[V]):
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.values: list[V] = []
        self.error: EmbeddingFailedError | None = None


class SingleFlight(Generic[K, V]):
    """Thread-safe. The first caller of a key computes, the others wait for it.

    The text's own failure (EmbeddingFailedError) is everybody's. If the first caller stops for a
    reason of its own, one of the others computes in its place. A caller whose budget ends leaves
    alone, whoever computes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[K, _Flight[V]] = {}

    def run(self, key: K, compute: Callable[[], V], budget: CallBudget) -> tuple[V, bool]:
        """The value for `key`, and whether this caller computed it."""
        while True:
            budget.check()
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    own = self._flights[key] = _Flight[V]()
                    break
            while not flight.ended.wait(min(CANCEL_POLL_SECONDS, budget.remaining())):
                budget.check()
            if flight.error is not None:
                raise EmbeddingFailedError(flight.error.message, reason=flight.error.reason)
            if flight.values:
                return flight.values[0], False
        try:
            value = compute()
            own.values.append(value)
            return value, True
        except EmbeddingFailedError as error:
            own.error = error
            raise
        finally:
            with self._lock:
                del self._flights[key]
            own.ended.set()
