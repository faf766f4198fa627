"""Ages, near duplicates and maximal marginal relevance, against the definitions in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from semanticrecall_core.ranking.diversity import diverse, near_duplicates
from semanticrecall_core.ranking.recency import recency, recency_parts, span_of
from semanticrecall_core.types.values import TIME_NS_MAX, TIME_NS_MIN

DAY_S = 86_400.0
NOW_NS = 1_700_000_000 * 10**9


def days_ago(days: float) -> int:
    return NOW_NS - int(days * DAY_S * 1e9)


def test_recency_halves_with_every_half_life() -> None:
    times = np.array([days_ago(age) for age in (0.0, 7.0, 14.0, 3.5)])
    assert recency(times, NOW_NS, 7 * DAY_S).tolist() == pytest.approx([1.0, 0.5, 0.25, 0.5**0.5])


def test_the_future_has_age_zero() -> None:
    """SCORE-6."""
    times = np.array([days_ago(-10.0), days_ago(0.0), TIME_NS_MAX])
    assert recency(times, NOW_NS, 7 * DAY_S).tolist() == [1.0, 1.0, 1.0]


def test_the_oldest_there_is_has_no_recency() -> None:
    assert recency(np.array([TIME_NS_MIN]), TIME_NS_MAX, 1.0).tolist() == [0.0]


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 1)), min_size=2, max_size=12),
    st.floats(0, 1),
)
def test_the_order_is_that_of_the_weighted_sum(
    rows: list[tuple[float, float]], weight: float
) -> None:
    relevance, recent = (np.array(column) for column in zip(*rows, strict=True))
    span = span_of(relevance)
    sums = relevance + recency_parts(relevance, recent, weight, span)
    worst, best = relevance.min(), relevance.max()
    scaled = (relevance - worst) / ((best - worst) or 1.0)
    right = (1 - weight) * scaled + weight * recent
    for i in range(len(rows)):
        for j in range(len(rows)):
            if right[i] > right[j] + 1e-9:
                assert sums[i] > sums[j] - 1e-9 * max(1.0, best - worst)
    assert sums == pytest.approx(worst + ((best - worst) or 1.0) * right, abs=1e-9)
    if best > worst:
        assert (sums >= worst - 1e-9).all()
        assert (sums <= best + 1e-9).all()


def test_recency_decides_among_equals() -> None:
    relevance = np.array([2.0, 2.0])
    parts = recency_parts(relevance, np.array([0.25, 1.0]), 0.5, span_of(relevance))
    assert parts.tolist() == [0.125, 0.5]


def test_nothing_has_a_span() -> None:
    assert span_of(np.array([])) == (0.0, 1.0)


def unit(*rows: tuple[float, ...]) -> NDArray[np.float32]:
    vectors = np.array(rows, np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths, lengths, 1.0)).astype(np.float32)


def test_the_better_of_two_near_duplicates_stays() -> None:
    vectors = unit((1, 0), (0, 1), (1, 0.01), (0.01, 1), (1, 1))
    instead, looked_at = near_duplicates(vectors, 0.98, kept_max=9)
    assert (instead.tolist(), looked_at) == ([-1, -1, 0, 1, -1], 5)


def test_who_is_left_out_leaves_out_nobody() -> None:
    """Each is 20 degrees from the one before: the second is like the first, the third is not."""
    angles = np.deg2rad([0.0, 20.0, 40.0, 60.0])
    vectors = unit(*zip(np.cos(angles), np.sin(angles), strict=True))
    instead, _ = near_duplicates(vectors, float(np.cos(np.deg2rad(25.0))), kept_max=9)
    assert instead.tolist() == [-1, 0, -1, 2]


def test_equal_vectors_are_near_duplicates_at_one() -> None:
    rng = np.random.default_rng(5)
    row = rng.standard_normal(384)
    instead, _ = near_duplicates(unit(tuple(row), tuple(row)), 1.0, kept_max=9)
    assert instead.tolist() == [-1, 0]


def test_messages_without_vectors_are_like_nothing() -> None:
    instead, _ = near_duplicates(unit((0, 0), (0, 0), (1, 0)), 0.1, kept_max=9)
    assert instead.tolist() == [-1, -1, -1]


def test_it_ends_when_enough_are_kept() -> None:
    vectors = unit((1, 0), (1, 0), (0, 1), (-1, 0))
    instead, looked_at = near_duplicates(vectors, 0.9, kept_max=2)
    assert (instead[:looked_at].tolist(), looked_at) == ([-1, 0, -1], 3)


def values_by_definition(
    relevance: list[float], vectors: NDArray[np.float32], diversity: float, taken: list[int]
) -> list[float]:
    """What each would be worth as the next one, from (1 - diversity) down; -inf for those taken."""
    worst, best = min(relevance), max(relevance)
    values = []
    for i, value in enumerate(relevance):
        scaled = (value - worst) / ((best - worst) or 1.0)
        cosines = [0.0, *(float(vectors[i] @ vectors[j]) for j in taken)]
        worth = (1 - diversity) * scaled - diversity * max(cosines)
        values.append(float("-inf") if i in taken else worth)
    return values


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    diversity=st.floats(0, 1),
    top_k=st.integers(1, 14),
)
def test_picks_are_those_of_the_definition(seed: int, n: int, diversity: float, top_k: int) -> None:
    rng = np.random.default_rng(seed)
    relevance = np.sort(rng.normal(3.0, 2.0, n))[::-1].copy()
    vectors = unit(*map(tuple, rng.standard_normal((n, 4))))
    taken, parts = diverse(relevance, vectors, diversity, span_of(relevance), top_k)
    assert len(set(taken.tolist())) == min(top_k, n)
    for place, pick in enumerate(taken.tolist()):
        values = values_by_definition(
            relevance.tolist(), vectors, diversity, taken[:place].tolist()
        )
        assert values[pick] == pytest.approx(max(values), abs=1e-6)
        worst, best = relevance[-1], relevance[0]
        on_its_scale = worst + ((best - worst) or 1.0) * values[pick]
        assert relevance[pick] + parts[place] == pytest.approx(on_its_scale, abs=1e-5)
    sums = relevance[taken] + parts
    assert (parts <= 1e-12).all()
    assert (np.diff(sums) <= 0.0).all()


def test_without_diversity_the_best_are_taken() -> None:
    relevance = np.array([3.0, 2.0, 1.0])
    taken, parts = diverse(relevance, unit((1, 0), (1, 0), (0, 1)), 0.0, span_of(relevance), 2)
    assert (taken.tolist(), parts.tolist()) == ([0, 1], [0.0, 0.0])


@given(relevance=st.lists(st.floats(-9, 9), min_size=1, max_size=60))
def test_where_nothing_but_difference_counts_the_best_is_first(relevance: list[float]) -> None:
    """What is subtracted from each is all it has, but for rounding: that chooses nobody."""
    ordered = np.sort(relevance)[::-1].copy()
    unlike = np.eye(len(ordered), dtype=np.float32)
    taken, parts = diverse(ordered, unlike, 1.0, span_of(ordered), len(ordered))
    assert taken.tolist() == list(range(len(ordered)))
    assert (np.diff(ordered + parts) <= 0.0).all()
    assert ordered + parts == pytest.approx(np.full(len(ordered), ordered[-1]), abs=1e-6)


def test_diversity_takes_what_is_new() -> None:
    relevance = np.array([3.0, 2.9, 1.0])
    taken, parts = diverse(relevance, unit((1, 0), (1, 0), (0, 1)), 0.5, span_of(relevance), 2)
    assert taken.tolist() == [0, 2]
    assert parts.tolist() == pytest.approx([-0.5 * 2.0, 0.0])
