"""When the calls of an open loop are due: fixed before the first is sent, whatever the server does.

Times are seconds from the begin of a stage. The rate r(t) rises evenly from zero to `rate_per_s`
over `ramp_s` and stays there; R(t) is its integral, the calls due until t:

    R(t) = rate * t^2 / (2 * ramp)   for t <= ramp
    R(t) = rate * (t - ramp / 2)     after

Constant: the k-th call of all processes is due at R^-1(k), k = 0, 1, 2, ...; process w of n sends
those with k = w, w + n, w + 2n, ... Poisson: each process sends an independent Poisson process of
rate r(t) / n, whose sum is one of r(t); it is a unit-rate process (sums of exponential gaps) seen
through R^-1 (Cinlar, "Introduction to Stochastic Processes", 1975: inversion). Nothing is kept but
the last time, so that a stage of any length costs no memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from .plan import Arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """The calls of one stage, of all processes together.

    Attributes:
        rate_per_s: calls due each second after the ramp, above 0.
        duration_s: calls are due within [0, duration_s).
        ramp_s: how long the rate rises evenly from zero, at the stage's begin.
    """

    arrivals: Arrivals
    rate_per_s: float
    duration_s: float
    ramp_s: float = 0.0

    def expected_calls(self) -> float:
        """R(duration_s): how many calls are due (Poisson: on average)."""
        ramped = min(self.ramp_s, self.duration_s)
        rising = self.rate_per_s * ramped**2 / (2 * self.ramp_s) if self.ramp_s else 0.0
        return rising + self.rate_per_s * (self.duration_s - ramped)

    def due(self, worker: int, workers: int, seed: str) -> Iterator[float]:
        """The times of one process's calls, ascending, made as they are asked for.

        Args:
            worker: number of the process, from 0. workers: how many there are.
            seed: of a Poisson process; the same gives the same times. Processes with different
                numbers are independent of each other.
        """
        if self.arrivals is Arrivals.CONSTANT:
            positions: Iterator[float] = (float(k) for k in count(worker, workers))
        else:
            positions = _unit_poisson(f"{seed}/{worker}/{workers}", workers)
        for position in positions:
            at = self._at(position)
            if at >= self.duration_s:
                return
            yield at

    def _at(self, position: float) -> float:
        """R^-1."""
        if position * 2 < self.rate_per_s * self.ramp_s:
            return math.sqrt(2 * self.ramp_s * position / self.rate_per_s)
        return position / self.rate_per_s + self.ramp_s / 2


def _unit_poisson(seed: str, spacing: float) -> Iterator[float]:
    gap = random.Random(seed).expovariate
    rate = 1 / spacing
    at = 0.0
    while True:
        at += gap(rate)
        yield at


def share(total: int, worker: int, workers: int) -> int:
    """How many of `total` fall to one process, so that all together have all, none much more."""
    return total // workers + (worker < total % workers)
