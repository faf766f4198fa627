"""The times of messages that come without one.

A conversation is read in the order of its times. So that a clock that is set back a little (a step
of a time service, a machine that wakes, an hour of summer time, a wrong day) does not put an answer
before its question, a time is never before the one given last by this process, unless by more than
a day: then what was given before was wrong, and the clock is followed at once. Messages of the same
time are in the order in which they came.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

HELD_NS_MAX = 25 * 3_600 * 1_000_000_000
"""A day, and the hour by which a day may be longer."""

_BEFORE_EVERYTHING = -(2**63)


class ArrivalClock:
    """A clock that does not go back by less than `HELD_NS_MAX`. Thread-safe."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """`clock`: nanoseconds since the epoch."""
        self._clock = clock
        self._lock = threading.Lock()
        self._last_ns = _BEFORE_EVERYTHING

    def __call__(self) -> int:
        """Nanoseconds since the epoch."""
        with self._lock:
            now_ns = self._clock()
            if now_ns > self._last_ns or self._last_ns - now_ns > HELD_NS_MAX:
                self._last_ns = now_ns
            return self._last_ns
