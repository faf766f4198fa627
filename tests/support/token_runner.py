"""A stand-in for a model session: vectors of token ids by a known rule, and faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from semanticrecall_core.types.errors import EmbeddingFailedError
from semanticrecall_core.types.values import CallBudget

Ids = NDArray[np.int64]
FloatRows = NDArray[np.float32]

WAIT = 30.0
DIMENSIONS = 8


def text(first: int, length: int = 1) -> Ids:
    """Token ids: `first`, and then as many ones as the length wants."""
    ids = np.ones(length, dtype=np.int64)
    ids[0] = first
    return ids


def vector_of(ids: Ids) -> FloatRows:
    """What `TokenRunner` gives: it tells by its first two numbers which text it is of."""
    row = np.zeros(DIMENSIONS, dtype=np.float32)
    row[0], row[1] = ids[0], len(ids)
    return row


def budget() -> CallBudget:
    """More than any test needs."""
    return CallBudget.of_seconds(WAIT)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Look again and again, for as long as any test waits."""
    poll = threading.Event()
    for _ in range(int(WAIT * 200)):
        if is_so():
            return
        poll.wait(0.005)
    raise AssertionError("it did not come to that")


class Caller:
    """Whoever waits for a vector, and may go away."""

    def __init__(self, seconds: float = WAIT) -> None:
        self.gone = threading.Event()
        self.budget = CallBudget(CallBudget.of_seconds(seconds).deadline, self.gone.is_set)


class TokenRunner:
    """Runs texts and batches.

    Attributes:
        runs: first tokens of the texts of each run that began, in order.
        failing: first tokens whose runs fail.
        unusable: first tokens that have no vector in a batch, but have one alone.
        fatal: raised by every run, if set.
        at_once_max: most runs that were inside at a time.
    """

    def __init__(self, *, takes_padding: bool = True) -> None:
        self.takes_padding = takes_padding
        self.runs: list[list[int]] = []
        self.failing: set[int] = set()
        self.unusable: set[int] = set()
        self.fatal: BaseException | None = None
        self.at_once_max = 0
        self._at_once = 0
        self._changed = threading.Condition()
        self._open = True
        self._passes = 0

    def hold(self) -> None:
        """Keep runs that begin from now on inside."""
        with self._changed:
            self._open = False

    def let_one_go(self) -> None:
        """End one of the runs held."""
        with self._changed:
            self._passes += 1
            self._changed.notify_all()

    def release(self) -> None:
        """End all runs held, and hold no more."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def wait_for_runs(self, count: int) -> None:
        """Wait until so many runs have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.runs) >= count, WAIT), self.runs

    def run(self, ids: Ids) -> FloatRows:
        """One text."""
        self._enter([ids])
        return vector_of(ids)

    def run_batch(self, texts: Sequence[Ids]) -> list[FloatRows | EmbeddingFailedError]:
        """Several texts."""
        if not self.takes_padding:
            assert len({len(ids) for ids in texts}) == 1
        self._enter(texts)
        return [
            EmbeddingFailedError("not finite") if int(ids[0]) in self.unusable else vector_of(ids)
            for ids in texts
        ]

    def _enter(self, texts: Sequence[Ids]) -> None:
        firsts = [int(ids[0]) for ids in texts]
        with self._changed:
            self.runs.append(firsts)
            self._at_once += 1
            self.at_once_max = max(self.at_once_max, self._at_once)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open or self._passes > 0, WAIT)
            if not self._open:
                self._passes -= 1
            self._at_once -= 1
        if self.fatal is not None:
            raise self.fatal
        if self.failing & set(firsts):
            raise EmbeddingFailedError("the model failed")
