"""Whether a figure has changed since the baseline, or only looks so: bounds from measured spread.

What is compared is a ratio: a figure's time, divided by that of fixed work measured in the same
minute. A *round* gives one ratio; a *run* is some rounds, and stands for itself by the median of
their logarithms, which a few disturbed rounds do not move. A *baseline* is at least
`REPEATS_MIN` runs.

Method. Rounds of one run lie closer together than runs do: what a process happens to be given
(addresses, pages, threads on cores) and what the machine does in that quarter of an hour are the
same for all of them. So the scatter of the baseline's runs is the measure, not that of rounds. If
nothing changed, a new run is one more of their kind, and lies with probability 1 - a within

    mean(runs) +- t(1 - a/2, R - 1) * sqrt(s_now**2 + s**2 / R)

where R is the number of runs, s their standard deviation, t Student's quantile and `s_now` = s:
a prediction interval. Where the new run's own rounds scatter so that its median is less certain
than s (1.2533 * 1.4826 * MAD / sqrt(rounds), the standard error of a median of normal values), that
is `s_now` instead: a machine that is busier now than it was then widens the bounds.

False alarms. `FALSE_ALARM_SHARE` of the checks of an unchanged program may report a change in any
of their figures; it is divided by the number of figures (Bonferroni), so that a = 0.05 / 8 for
eight. It holds while runs scatter as normal values do and as they did for the baseline; it does not
cover a machine whose ratios drift over days, unless runs of several days are in the baseline
(`--add`). A change of less than `LEAST_CHANGE` is never reported.

Power. With 8 runs of 8 rounds a slowdown by 30 % is found in more than 9 of 10 checks while rounds
scatter by 6 % and runs by 3 % (standard deviations); with more noise the answer is "too noisy to
say", not "as before". `tests/bench/test_noise_bounds.py` tries false alarms and power on drawn
samples, with disturbed rounds among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, fmean, median, stdev

FALSE_ALARM_SHARE = 0.05
LEAST_CHANGE = 1.05
MUST_BE_SEEN = 1.30
"""A slowdown by this factor has to be ruled out before a figure is called as before."""
REPEATS_MIN = 5
MAD_TO_STDEV = 1.4826
MEDIAN_TO_MEAN_ERROR = 1.2533


class Verdict(StrEnum):
    """What can be said of a figure."""

    AS_BEFORE = "as before"
    SLOWER = "slower"
    QUICKER = "quicker"
    TOO_NOISY = "too noisy to say"


@dataclass(frozen=True, slots=True)
class Change:
    """A figure now / in the baseline.

    Attributes:
        ratio: above 1 is slower.
        low, high: the bounds around it.
        verdict: what it comes to.
    """

    ratio: float
    low: float
    high: float
    verdict: Verdict


def change(
    baseline: Sequence[Sequence[float]], now: Sequence[float], *, comparisons: int
) -> Change:
    """Compare a run with the runs of a baseline.

    Args:
        baseline: ratios of the rounds of each run; at least `REPEATS_MIN` runs.
        now: ratios of the new run's rounds; at least 3.
        comparisons: how many figures are compared in the same check.

    Raises:
        ValueError: too few runs or rounds.
    """
    if len(baseline) < REPEATS_MIN or len(now) < 3:
        raise ValueError(f"at least {REPEATS_MIN} runs and 3 rounds are needed")
    runs = [median(math.log(ratio) for ratio in rounds) for rounds in baseline]
    rounds_now = [math.log(ratio) for ratio in now]
    scatter = stdev(runs)
    scatter_now = max(scatter, _error_of_median(rounds_now))
    level = 1 - FALSE_ALARM_SHARE / comparisons / 2
    width = student_quantile(level, len(runs) - 1) * math.hypot(
        scatter_now, scatter / math.sqrt(len(runs))
    )
    shift = median(rounds_now) - fmean(runs)
    low, high = math.exp(shift - width), math.exp(shift + width)
    return Change(math.exp(shift), low, high, _verdict(math.exp(shift), low, high))


def student_quantile(probability: float, degrees: int) -> float:
    """Student's t, by the expansion of Abramowitz and Stegun, 26.7.5; to 1 % from 4 degrees on.

    Args:
        probability: 0.5 to 0.999.
        degrees: of freedom, at least 4.
    """
    z = NormalDist().inv_cdf(probability)
    terms: tuple[float, ...] = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(degrees) ** power for power, term in enumerate(terms))


def _error_of_median(values: Sequence[float]) -> float:
    """The standard error of their median."""
    middle = median(values)
    deviation = MAD_TO_STDEV * median(abs(value - middle) for value in values)
    return MEDIAN_TO_MEAN_ERROR * deviation / math.sqrt(len(values))


def _verdict(ratio: float, low: float, high: float) -> Verdict:
    if low > 1 and ratio >= LEAST_CHANGE:
        return Verdict.SLOWER
    if high < 1 and ratio <= 1 / LEAST_CHANGE:
        return Verdict.QUICKER
    return Verdict.TOO_NOISY if high > MUST_BE_SEEN else Verdict.AS_BEFORE
