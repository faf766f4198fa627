"""The nearest rows to a vector, exactly.

A float32 product of all rows and the query says roughly how near each is, with a bound of its
error. Those that may be among the best, or have the same score, are compared once more in float64,
each by itself and always in the same order of summation: so equal vectors have equal scores
wherever they lie, and what is returned is what a comparison of all rows in float64 would return.

The bound of a float32 product of n numbers is n * 2^-24 times the product of the lengths (Higham,
Accuracy and Stability of Numerical Algorithms, 3.1), and 2^-149 a number for what underflows. What
is added to it is as much as scores may differ and still be the same float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ..types.collections import Metric
from ..types.values import CallBudget

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows32 = NDArray[np.float32]
    Column64 = NDArray[np.float64]
    RowNumbers = NDArray[np.int64]

_BLOCK_BYTES: Final = 4 << 20
_BLOCKS_BETWEEN_CHECKS: Final = 4
_DENSE_SHARE: Final = 0.25
_ROUNDING: Final = 2.0**-24
_UNDERFLOW: Final = 2.0**-149
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Searched:
    """The rows of a moment.

    Attributes:
        values: shape (rows, dimensions).
        lengths: of each row, in float64.
        metric: how they are compared.
    """

    values: Rows32
    lengths: Column64
    metric: Metric


def lengths_of(values: Rows32) -> Column64:
    """The Euclidean length of each row, computed in float64."""
    wide = values.astype(np.float64)
    found: Column64 = np.sqrt((wide * wide).sum(axis=1))
    return found


def nearest(
    searched: Searched, chosen: NDArray[np.bool_], query: Rows32, top_k: int, budget: CallBudget
) -> tuple[RowNumbers, Rows32]:
    """The rows that are nearest, and their scores, in no order.

    More than `top_k` where others have the same score as the last one.

    Args:
        searched: the rows.
        chosen: which of them count.
        query: shape (dimensions,); for COSINE not all zero.
        top_k: how many.
        budget: raises DeadlineExceededError or CancelledError soon after it is over.
    """
    rows = np.flatnonzero(chosen)
    if len(rows) > top_k:
        near, error = _roughly(searched, rows, chosen, query, budget)
        least = np.partition(near - error, len(rows) - top_k)[len(rows) - top_k]
        rows = rows[near + error >= least]
    scores = _exactly(searched, rows, query, budget)
    if len(rows) > top_k:
        least_score = np.partition(scores, len(rows) - top_k)[len(rows) - top_k]
        kept = scores >= least_score
        rows, scores = rows[kept], scores[kept]
    return rows, scores


def _roughly(
    searched: Searched,
    rows: RowNumbers,
    chosen: NDArray[np.bool_],
    query: Rows32,
    budget: CallBudget,
) -> tuple[Column64, Column64]:
    """How near rows are (a number that grows as the score does), and how wrong it may be."""
    wide = query.astype(np.float64)
    length = float(np.sqrt((wide * wide).sum()))
    dimensions = len(query)
    relative, absolute = (dimensions + 16) * _ROUNDING, dimensions * _UNDERFLOW
    lengths = searched.lengths[rows]
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        if searched.metric is Metric.COSINE:
            near = _products(searched.values, rows, chosen, (wide / length).astype("f4"), budget)
            near = near / lengths
            error = relative + absolute / lengths
        else:
            near = _products(searched.values, rows, chosen, query, budget)
            error = relative * lengths * length + absolute
            if searched.metric is Metric.EUCLIDEAN:
                near = 2 * near - lengths * lengths
                reach = lengths + length
                error = 2 * error + 4 * _ROUNDING * reach * (1 + reach)
    doubtful = ~np.isfinite(near)
    near[doubtful], error[doubtful] = 0.0, np.inf
    return near, error


def _products(
    values: Rows32,
    rows: RowNumbers,
    chosen: NDArray[np.bool_],
    query: Rows32,
    budget: CallBudget,
) -> Column64:
    """The product of each of the rows with the query, in float32."""
    found = np.empty(len(rows), np.float64)
    at_once = max(1, _BLOCK_BYTES // values[:1].nbytes)
    dense = len(rows) > _DENSE_SHARE * len(chosen)
    done = 0
    for number, start in enumerate(range(0, len(chosen) if dense else len(rows), at_once)):
        if number % _BLOCKS_BETWEEN_CHECKS == 0:
            budget.check()
        if dense:
            block = slice(start, min(start + at_once, len(chosen)))
            products = (values[block] @ query)[chosen[block]]
        else:
            products = values[rows[start : start + at_once]] @ query
        found[done : done + len(products)] = products
        done += len(products)
    return found


def _exactly(searched: Searched, rows: RowNumbers, query: Rows32, budget: CallBudget) -> Rows32:
    """The scores of rows."""
    wide = query.astype(np.float64)
    length = np.sqrt((wide * wide).sum())
    scores = np.empty(len(rows), np.float64)
    at_once = max(1, _BLOCK_BYTES // (2 * query.nbytes))
    for start in range(0, len(rows), at_once):
        budget.check()
        block = rows[start : start + at_once]
        values = searched.values[block].astype(np.float64)
        if searched.metric is Metric.EUCLIDEAN:
            values -= wide
            found = 1 / (1 + np.sqrt((values * values).sum(axis=1)))
        else:
            found = (values * wide).sum(axis=1)
            if searched.metric is Metric.COSINE:
                found = np.clip(found / (searched.lengths[block] * length), -1, 1)
        scores[start : start + len(block)] = found
    return np.clip(scores, -_FLOAT32_MAX, _FLOAT32_MAX).astype(np.float32)
