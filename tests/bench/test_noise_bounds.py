"""The bounds of the regression gate, on samples whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from benchmarks.noise_bounds import REPEATS_MIN, Change, Verdict, change, student_quantile

RUNS, ROUNDS, FIGURES = 8, 8, 8
TRIALS = 300
CHANGED = (Verdict.SLOWER, Verdict.QUICKER)


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the logarithms of rounds and of runs; every tenth round is disturbed.

    `disturbance` is the mean by which the logarithm of such a round is higher.
    """

    rounds: float
    runs: float
    disturbance: float = 0.33

    def run(self, rng: random.Random, factor: float = 1.0) -> list[float]:
        """Ratios of the rounds of a run."""
        shift = math.log(factor) + rng.gauss(0, self.runs)
        return [
            math.exp(
                shift
                + rng.gauss(0, self.rounds)
                + (rng.expovariate(1 / self.disturbance) if rng.random() < 0.1 else 0)
            )
            for _ in range(ROUNDS)
        ]

    def changes(self, rng: random.Random, factors: Sequence[float]) -> list[Change]:
        """A check: a figure for each factor, measured for a baseline and once more."""
        return [
            change([self.run(rng) for _ in range(RUNS)], self.run(rng, factor), comparisons=FIGURES)
            for factor in factors
        ]


QUIET, USUAL, LOUD, WILD = Noise(0.03, 0.01), Noise(0.06, 0.03), Noise(0.1, 0.04), Noise(0.3, 0.2)


@pytest.mark.parametrize("noise", [QUIET, USUAL, LOUD, WILD], ids=repr)
def test_no_change_is_rarely_reported_as_one(noise: Noise) -> None:
    rng = random.Random(11)
    checks = [noise.changes(rng, [1.0] * FIGURES) for _ in range(TRIALS)]
    wrong = sum(any(one.verdict in CHANGED for one in check) for check in checks)
    assert wrong / TRIALS <= 0.05


@pytest.mark.parametrize("noise", [QUIET, USUAL], ids=repr)
@pytest.mark.parametrize(("factor", "verdict"), [(1.3, Verdict.SLOWER), (1 / 1.3, Verdict.QUICKER)])
def test_a_change_by_a_third_is_found(noise: Noise, factor: float, verdict: Verdict) -> None:
    rng = random.Random(12)
    found = [noise.changes(rng, [factor])[0].verdict for _ in range(TRIALS)]
    assert found.count(verdict) / TRIALS >= 0.9
    assert all(one is not Verdict.AS_BEFORE for one in found if factor > 1)


@pytest.mark.parametrize("noise", [LOUD, WILD], ids=repr)
def test_a_slowdown_that_noise_hides_is_not_called_as_before(noise: Noise) -> None:
    rng = random.Random(13)
    found = [noise.changes(rng, [1.3])[0].verdict for _ in range(TRIALS)]
    assert found.count(Verdict.AS_BEFORE) / TRIALS <= 0.01
    assert found.count(Verdict.TOO_NOISY) > 0


def test_where_nothing_scatters_the_change_is_exact() -> None:
    baseline = [[2.0] * ROUNDS] * RUNS
    for factor, verdict in (
        (1.0, Verdict.AS_BEFORE),
        (1.04, Verdict.AS_BEFORE),
        (1.06, Verdict.SLOWER),
        (0.9, Verdict.QUICKER),
    ):
        found = change(baseline, [2.0 * factor] * ROUNDS, comparisons=FIGURES)
        assert found.ratio == pytest.approx(factor)
        assert [found.low, found.high] == pytest.approx([factor, factor])
        assert found.verdict is verdict


def test_the_bounds_are_those_of_a_prediction_interval() -> None:
    # Logarithms of the runs' medians: mean 0, standard deviation 0.1; t(0.975, 4) = 2.776.
    middles = [-0.1, -0.1, 0.0, 0.1, 0.1]
    baseline = [[math.exp(middle)] * 3 for middle in middles]
    found = change(baseline, [1.0] * 3, comparisons=1)
    width = 2.776 * math.sqrt(0.1**2 * (1 + 1 / 5))
    assert math.log(found.high) == pytest.approx(width, rel=2e-3)
    assert math.log(found.low) == pytest.approx(-width, rel=2e-3)


def test_a_busier_machine_widens_the_bounds() -> None:
    rng = random.Random(14)
    baseline = [QUIET.run(rng) for _ in range(RUNS)]
    calm = change(baseline, [0.98, 0.99, 1.0, 1.01, 1.02], comparisons=1)
    busy = change(baseline, [0.5, 0.7, 1.0, 1.4, 2.0], comparisons=1)
    assert calm.verdict is Verdict.AS_BEFORE
    assert busy.verdict is Verdict.TOO_NOISY
    assert busy.high > 1.3 > calm.high


@pytest.mark.parametrize(
    ("probability", "degrees", "table"),
    [(0.995, 4, 4.604), (0.995, 10, 3.169), (0.975, 4, 2.776), (0.999, 6, 5.208), (0.5, 7, 0.0)],
)
def test_quantiles_are_those_of_the_tables(probability: float, degrees: int, table: float) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(table, rel=0.01, abs=1e-9)


def test_too_few_runs_are_refused() -> None:
    enough = [[1.0] * 3] * REPEATS_MIN
    with pytest.raises(ValueError, match="at least"):
        change(enough[1:], [1.0] * 3, comparisons=1)
    with pytest.raises(ValueError, match="at least"):
        change(enough, [1.0] * 2, comparisons=1)
