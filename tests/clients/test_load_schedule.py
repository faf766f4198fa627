"""When calls are due: constant times exactly, Poisson times by what their counts must be."""

from __future__ import annotations

import tracemalloc
from collections import deque
from itertools import islice, pairwise

import pytest

from semanticrecall.load.plan import Arrivals
from semanticrecall.load.schedule import Timetable, share


def timetable(
    arrivals: Arrivals, rate_per_s: float, duration_s: float, ramp_s: float = 0.0
) -> Timetable:
    return Timetable(arrivals=arrivals, rate_per_s=rate_per_s, duration_s=duration_s, ramp_s=ramp_s)


def ramped_calls(rate_per_s: float, ramp_s: float, until: float, steps: int = 100_000) -> float:
    """The integral of the rate, by rectangles at the middle of each step."""
    width = until / steps
    middles = ((step + 0.5) * width for step in range(steps))
    return sum(rate_per_s * min(1.0, at / ramp_s) * width for at in middles)


def test_constant_calls_are_due_at_every_nth_of_a_second() -> None:
    due = list(timetable(Arrivals.CONSTANT, 200.0, 3.0).due(0, 1, "1"))
    assert due == [k / 200 for k in range(600)]


def test_a_rate_that_is_no_whole_number_keeps_its_pace() -> None:
    due = list(timetable(Arrivals.CONSTANT, 0.7, 10.0).due(0, 1, "1"))
    assert due == pytest.approx([k / 0.7 for k in range(7)])


@pytest.mark.parametrize("workers", [2, 3, 7])
@pytest.mark.parametrize("ramp_s", [0.0, 1.5])
def test_constant_calls_of_all_workers_are_those_of_one(workers: int, ramp_s: float) -> None:
    table = timetable(Arrivals.CONSTANT, 333.0, 4.0, ramp_s)
    parts = [list(table.due(worker, workers, "1")) for worker in range(workers)]
    assert sorted(at for part in parts for at in part) == list(table.due(0, 1, "1"))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_ramp_raises_the_rate_evenly() -> None:
    table = timetable(Arrivals.CONSTANT, 100.0, 3.0, ramp_s=2.0)
    due = list(table.due(0, 1, "1"))
    for k in (1, 10, 25, 100, 199):
        assert ramped_calls(100.0, 2.0, until=due[k]) == pytest.approx(k, rel=1e-4)
    assert table.expected_calls() == pytest.approx(ramped_calls(100.0, 2.0, until=3.0), rel=1e-4)
    assert len(due) == 200


def test_a_ramp_longer_than_the_stage_ends_with_it() -> None:
    table = timetable(Arrivals.CONSTANT, 100.0, 1.0, ramp_s=2.0)
    assert len(list(table.due(0, 1, "1"))) == 25
    assert table.expected_calls() == pytest.approx(ramped_calls(100.0, 2.0, until=1.0), rel=1e-4)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_poisson_calls_come_in_the_number_and_spread_of_their_rate(seed: str) -> None:
    due = list(timetable(Arrivals.POISSON, 500.0, 40.0).due(0, 1, seed))
    # Count: mean and variance 20,000; 5 standard deviations.
    assert abs(len(due) - 20_000) < 5 * 20_000**0.5
    assert due == sorted(due)
    assert due[0] >= 0
    assert due[-1] < 40.0
    # Gaps are exponential: a share of e^-1 is longer than the mean.
    gaps = [after - before for before, after in pairwise(due)]
    longer = sum(gap > 1 / 500 for gap in gaps)
    expected = len(gaps) * 0.36788
    assert abs(longer - expected) < 5 * (expected * (1 - 0.36788)) ** 0.5
    # Counts of even seconds: variance equal to the mean, unlike an even schedule's.
    counts = [sum(second <= at < second + 1 for at in due) for second in range(40)]
    mean = sum(counts) / 40
    variance = sum((count - mean) ** 2 for count in counts) / 39
    assert 0.4 < variance / mean < 2.0


def test_a_poisson_ramp_has_a_quarter_of_its_calls_in_its_first_half() -> None:
    due = list(timetable(Arrivals.POISSON, 2_000.0, 10.0, ramp_s=10.0).due(0, 1, "5"))
    assert abs(len(due) - 10_000) < 5 * 10_000**0.5
    first_half = sum(at < 5.0 for at in due)
    assert abs(first_half - len(due) / 4) < 5 * (len(due) * 3 / 16) ** 0.5


def test_poisson_workers_are_independent_and_add_up_to_the_rate() -> None:
    table = timetable(Arrivals.POISSON, 900.0, 20.0)
    parts = [list(table.due(worker, 3, "9")) for worker in range(3)]
    for part in parts:
        assert abs(len(part) - 6_000) < 5 * 6_000**0.5
    assert len(set(parts[0]) & set(parts[1])) == 0
    assert abs(sum(map(len, parts)) - 18_000) < 5 * 18_000**0.5


def test_equal_seeds_give_equal_times_and_others_do_not() -> None:
    table = timetable(Arrivals.POISSON, 100.0, 5.0)
    assert list(table.due(1, 4, "7")) == list(table.due(1, 4, "7"))
    assert list(table.due(1, 4, "7")) != list(table.due(1, 4, "8"))


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_a_schedule_of_a_hundred_million_calls_costs_no_memory(arrivals: Arrivals) -> None:
    due = timetable(arrivals, 100_000.0, 1_000.0).due(0, 1, "1")
    next(due)
    tracemalloc.start()
    try:
        deque(islice(due, 100_000), maxlen=0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20_000


@pytest.mark.parametrize(("total", "workers"), [(10, 3), (2, 5), (64, 64), (1_000, 7)])
def test_shares_add_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = [share(total, worker, workers) for worker in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1
