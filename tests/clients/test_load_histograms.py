"""Histograms of the load tool against the library's own recording and against sorted lists."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from semanticrecall.load.histograms import Histogram
from semanticrecall.load.measured import HISTOGRAM_US_MAX
from semanticrecall.load.result import Percentiles

TIMES_US = st.integers(min_value=1, max_value=HISTOGRAM_US_MAX)
NEAR_POWERS_OF_TWO = [
    us
    for power in range(33)
    for us in (2**power - 1, 2**power, 2**power + 1)
    if 1 <= us <= HISTOGRAM_US_MAX
]


def of(times_us: list[int]) -> Histogram:
    histogram = Histogram()
    for us in times_us:
        histogram.add_us(us)
    return histogram


def library_of(times_us: list[int]) -> HdrHistogram:
    histogram = HdrHistogram(1, HISTOGRAM_US_MAX, 3)
    for us in times_us:
        assert histogram.record_value(us)
    return histogram


def lognormal_us(seed: int, count: int) -> list[int]:
    draws = random.Random(seed)
    return [max(1, round(draws.lognormvariate(7, 1.5))) for _ in range(count)]


@given(st.lists(TIMES_US, max_size=50))
def test_what_is_counted_here_is_what_the_library_counts(times_us: list[int]) -> None:
    assert of(times_us).encode() == library_of(times_us).encode()


def test_every_border_of_the_format_is_where_the_library_has_it() -> None:
    assert of(NEAR_POWERS_OF_TWO).encode() == library_of(NEAR_POWERS_OF_TWO).encode()


@given(st.lists(TIMES_US, max_size=20), st.lists(TIMES_US, max_size=20))
def test_two_added_up_are_one_of_all(first: list[int], second: list[int]) -> None:
    added = of(first)
    added.add(of(second))
    decoded = Histogram.decode(of(first).encode())
    decoded.decode_and_add(of(second).encode())
    whole = library_of(first + second)
    for histogram in (added, decoded):
        assert len(histogram) == len(first + second)
        assert histogram.encode() == whole.encode()
    for percentile in (0.0, 10.0, 50.0, 99.0, 100.0):
        expected = whole.get_value_at_percentile(percentile) / 1e3 if first + second else 0.0
        assert added.percentile_ms(percentile) == decoded.percentile_ms(percentile) == expected


def test_percentiles_are_those_of_the_sorted_times_to_three_digits() -> None:
    times_us = lognormal_us(seed=3, count=50_000)
    found = of(times_us).percentiles()
    ordered = sorted(times_us)

    def exact_ms(percentile: float) -> float:
        return ordered[max(int(percentile * len(ordered) / 100 + 0.5), 1) - 1] / 1e3

    assert found.count == 50_000
    assert found.mean == pytest.approx(sum(ordered) / len(ordered) / 1e3, rel=1e-3)
    assert found.min == pytest.approx(ordered[0] / 1e3, rel=1e-3)
    assert found.max == pytest.approx(ordered[-1] / 1e3, rel=1e-3)
    named = {
        50: found.p50,
        75: found.p75,
        90: found.p90,
        95: found.p95,
        99: found.p99,
        99.9: found.p99_9,
        99.99: found.p99_99,
    }
    for percentile, value in [*named.items(), *found.curve]:
        assert value == pytest.approx(exact_ms(percentile), rel=1e-3)


def test_the_curve_rises_from_0_to_100_and_is_closer_together_towards_the_end() -> None:
    curve = of(lognormal_us(seed=4, count=100_000)).percentiles().curve
    percentiles = [percentile for percentile, _ in curve]
    values = [value for _, value in curve]
    assert percentiles[0] == 0
    assert percentiles[-1] == 100
    assert percentiles == sorted(set(percentiles))
    assert values == sorted(values)
    assert 80 <= len(curve) <= 102
    steps = [after - before for before, after in pairwise(percentiles[:-1])]
    assert steps == sorted(steps, reverse=True)


def test_a_short_series_has_a_short_curve_and_none_where_none_is_wanted() -> None:
    histogram = of([1_000, 2_000])
    assert len(histogram.percentiles().curve) < 20
    assert histogram.percentiles(curve=False).curve == ()
    assert histogram.percentiles(curve=False).p50 == 1.0


def test_nothing_counted_is_all_zero() -> None:
    assert Histogram().percentiles() == Percentiles()
    assert Histogram.decode(Histogram().encode()).percentiles() == Percentiles()
    assert Histogram().percentile_ms(99) == 0.0


def test_times_beyond_the_ends_count_as_the_ends() -> None:
    histogram = Histogram()
    for seconds in (-1.0, 0.0, 1e-9, 7_200.0):
        histogram.add_seconds(seconds)
    assert histogram.encode() == library_of([1, 1, 1, HISTOGRAM_US_MAX]).encode()


def test_seconds_are_rounded_to_microseconds() -> None:
    histogram = Histogram()
    histogram.add_seconds(0.0012346)
    assert histogram.encode() == library_of([1_235]).encode()


def test_after_clear_it_counts_from_nothing() -> None:
    histogram = of([5, 5_000_000])
    histogram.clear()
    assert len(histogram) == 0
    assert histogram.encode() == Histogram().encode()
    histogram.add_us(77)
    assert histogram.encode() == library_of([77]).encode()
    assert histogram.percentiles().max == 0.077


def test_what_was_encoded_goes_on_counting() -> None:
    histogram = of([10])
    histogram.encode()
    histogram.add_us(20_000)
    assert histogram.encode() == library_of([10, 20_000]).encode()
