"""Callers that want the same thing at the same time share one computation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from ..types.errors import EmbeddingFailedError
from ..types.values import CallBudget

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

CANCEL_POLL_SECONDS = 0.02
"""How soon a waiting caller notices that it was cancelled. A result wakes it at once."""


class _Flight(Generic[V]):
    """A computation that goes on. `ended` is made by the first who waits: hardly anyone does."""

    __slots__ = ("ended", "error", "values")

    def __init__(self) -> None:
        self.ended: threading.Event | None = None
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

        def compute_one(_: Sequence[K]) -> list[V | EmbeddingFailedError]:
            try:
                return [compute()]
            except EmbeddingFailedError as error:
                return [error]

        (found,) = self.run_all([key], compute_one, budget)
        return found

    def run_all(
        self,
        keys: Sequence[K],
        compute: Callable[[Sequence[K]], Sequence[V | EmbeddingFailedError]],
        budget: CallBudget,
    ) -> list[tuple[V, bool]]:
        """The value of each key, and whether this caller computed it.

        What nobody computes yet is computed together, before this caller waits for others: so two
        never wait for each other.

        Args:
            keys: each once.
            compute: the value of each of the keys it is given, or why the text has none.
            budget: ends the wait.

        Raises EmbeddingFailedError, of the first key that has no value.
        """
        found: dict[K, tuple[V, bool]] = {}
        while len(found) < len(keys):
            budget.check()
            own: dict[K, _Flight[V]] = {}
            others: dict[K, tuple[_Flight[V], threading.Event]] = {}
            with self._lock:
                for key in keys:
                    if key in found:
                        continue
                    flight = self._flights.get(key)
                    if flight is None:
                        # Not `_Flight[V]()`, which costs as much as all the rest.
                        own[key] = self._flights[key] = _Flight()
                        continue
                    if flight.ended is None:
                        flight.ended = threading.Event()
                    others[key] = flight, flight.ended
            if own:
                self._fly(own, compute)
            for key, flight in own.items():
                if flight.error is not None:
                    raise flight.error
                found[key] = flight.values[0], True
            for key, (flight, ended) in others.items():
                while not ended.wait(min(CANCEL_POLL_SECONDS, budget.remaining())):
                    budget.check()
                if flight.error is not None:
                    raise EmbeddingFailedError(flight.error.message, reason=flight.error.reason)
                if flight.values:
                    found[key] = flight.values[0], False
        return [found[key] for key in keys]

    def _fly(
        self,
        own: dict[K, _Flight[V]],
        compute: Callable[[Sequence[K]], Sequence[V | EmbeddingFailedError]],
    ) -> None:
        """Compute what this caller leads, and let everyone have it."""
        try:
            for flight, value in zip(own.values(), compute(list(own)), strict=True):
                if isinstance(value, EmbeddingFailedError):
                    flight.error = value
                else:
                    flight.values.append(value)
        finally:
            with self._lock:
                for key in own:
                    del self._flights[key]
            # Nobody can begin to wait for them any more.
            for flight in own.values():
                if flight.ended is not None:
                    flight.ended.set()
