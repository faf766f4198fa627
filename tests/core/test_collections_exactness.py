"""The nearest vectors are the nearest in float64, however close others come."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.collections.searching import Searched, lengths_of, nearest
from semanticrecall_core.types.collections import Metric
from support.collection_model import ANY_TIME

ROWS, DIMENSIONS, TOP_K = 3_000, 96, 10
Rows = NDArray[np.float32]


def spread(chance: np.random.Generator) -> Rows:
    return chance.standard_normal((ROWS, DIMENSIONS)).astype(np.float32)


def close_together(chance: np.random.Generator) -> Rows:
    """All within the error of a float32 product."""
    centre = chance.standard_normal(DIMENSIONS)
    return (centre + 1e-6 * chance.standard_normal((ROWS, DIMENSIONS))).astype(np.float32)


def of_all_lengths(chance: np.random.Generator) -> Rows:
    lengths = 10.0 ** chance.uniform(-30, 18, (ROWS, 1))
    return (lengths * chance.standard_normal((ROWS, DIMENSIONS))).astype(np.float32)


def copies(chance: np.random.Generator) -> Rows:
    few = chance.standard_normal((7, DIMENSIONS)).astype(np.float32)
    return np.ascontiguousarray(few[chance.integers(0, 7, ROWS)])


def scores(values: Rows, query: Rows, metric: Metric) -> NDArray[np.float64]:
    """By the definition of the metric, in extended precision."""
    rows, asked = values.astype(np.longdouble), query.astype(np.longdouble)
    with np.errstate(under="ignore"):
        match metric:
            case Metric.COSINE:
                lengths = np.sqrt((rows * rows).sum(axis=1)) * np.sqrt((asked * asked).sum())
                found = (rows * asked).sum(axis=1) / lengths
            case Metric.EUCLIDEAN:
                found = 1 / (1 + np.sqrt(((rows - asked) ** 2).sum(axis=1)))
            case Metric.DOT_PRODUCT:
                found = (rows * asked).sum(axis=1)
    return found.astype(np.float64)


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("kind", [spread, close_together, of_all_lengths, copies])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [1.0, 0.05])
def test_no_row_left_out_is_nearer(kind, metric: Metric, seed: int, share: float) -> None:  # type: ignore[no-untyped-def]
    chance = np.random.default_rng(seed)
    values = kind(chance)
    query = values[chance.integers(ROWS)] + np.float32(1e-6) * values[chance.integers(ROWS)]
    chosen = chance.random(ROWS) < share
    wanted = scores(values, query, metric)
    searched = Searched(values, lengths_of(values), metric)
    rows, found = nearest(searched, chosen, query, TOP_K, ANY_TIME)
    assert len(rows) >= TOP_K
    assert chosen[rows].all()
    assert len(set(rows.tolist())) == len(rows)
    rounded = wanted.astype(np.float32)
    assert found == pytest.approx(rounded[rows], rel=1e-6, abs=1e-12)
    others = np.setdiff1d(np.flatnonzero(chosen), rows)
    slack = 2 * np.finfo(np.float32).eps * abs(float(found.min()))  # of the rounding of scores
    assert float(found.min()) >= wanted[others].max(initial=-np.inf) - slack
    # Rows that are the same have the same score, and all of them are given.
    for row, score in zip(rows.tolist(), found.tolist(), strict=True):
        same = np.flatnonzero((values == values[row]).all(axis=1) & chosen)
        if score == float(found.min()):
            assert set(same.tolist()) <= set(rows.tolist())


def test_equal_vectors_have_equal_scores_wherever_they_lie() -> None:
    chance = np.random.default_rng(5)
    for dimensions in (1, 3, 7, 64, 129, 1_000):
        values = chance.standard_normal((200, dimensions)).astype(np.float32)
        values[::3] = values[0]
        for metric in Metric:
            searched = Searched(values, lengths_of(values), metric)
            query = chance.standard_normal(dimensions).astype(np.float32)
            rows, found = nearest(searched, np.ones(200, bool), query, 200, ANY_TIME)
            assert len({score for row, score in zip(rows, found, strict=True) if row % 3 == 0}) == 1
