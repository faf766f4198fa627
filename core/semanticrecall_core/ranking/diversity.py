"""Hits that differ: near duplicates left out, and maximal marginal relevance.

Both compare true vectors; equal candidates give equal answers. A message without a vector is like
nothing else: its row is all zeros.

J. Carbonell, J. Goldstein: The use of MMR, diversity-based reranking (SIGIR 1998).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    WideRows = NDArray[np.float64]

COSINE_ROUNDING = 1e-6
"""The cosine of a vector with itself, in float32, may be so much below 1."""


def near_duplicates(vectors: FloatRows, cosine: float, kept_max: int) -> tuple[IntColumn, int]:
    """For each candidate the better one it says nearly the same as, -1 for none.

    Greedy by rank: who is left out leaves out nobody.

    Args:
        vectors: shape (n, dimensions), best candidate first.
        cosine: least cosine of near duplicates.
        kept_max: ends when so many are kept.

    Returns:
        Positions, shape (n,), and how many candidates were looked at, from the first.
    """
    instead = np.full(len(vectors), -1, dtype=np.int64)
    kept = 0
    for position in range(len(vectors)):
        if kept == kept_max:
            return instead, position
        if instead[position] >= 0:
            continue
        kept += 1
        later = instead[position + 1 :]
        alike = vectors[position + 1 :] @ vectors[position] >= cosine - COSINE_ROUNDING
        later[alike & (later < 0)] = position
    return instead, len(vectors)


def diverse(
    relevance: WideRows,
    vectors: FloatRows,
    diversity: float,
    span: tuple[float, float],
    top_k: int,
) -> tuple[IntColumn, WideRows]:
    """Which candidates to take, in which order, and what that takes away from their relevance.

    Each one taken has the largest (1 - diversity) x relevance - diversity x its largest cosine
    with one taken before; in that relevance is from 0 to 1, as `span` says, and a cosine not below
    0. The first of equals is taken.

    Args:
        relevance: shape (n,), best first.
        vectors: shape (n, dimensions).
        diversity: 0 to 1.
        span: the worst relevance and how far above it the best is (`recency.span_of`).
        top_k: how many.

    Returns:
        Positions in the order they are taken, and what is added to their relevance (0 or less):
        the sums descend.
    """
    worst, width = span
    nearest = np.zeros(len(vectors), dtype=np.float64)
    left = np.ones(len(vectors), dtype=bool)
    taken: list[int] = []
    parts: list[float] = []
    above = relevance - worst
    lowest = np.inf  # of the sums; rounding must not make one rise
    rounding = float(np.spacing(abs(worst) + 2.0 * width))  # of the largest number here
    for _ in range(min(top_k, len(vectors))):
        # Not the sum with what is lost: with a diversity of 1 its rounding would choose.
        worth = (1.0 - diversity) * above - diversity * width * nearest
        best = int(np.argmax(np.where(left, worth, -np.inf)))
        part = float(-diversity * (above[best] + width * nearest[best]))
        while relevance[best] + part > lowest:
            part -= rounding
        lowest = float(relevance[best]) + part
        taken.append(best)
        parts.append(part)
        left[best] = False
        np.maximum(nearest, vectors @ vectors[best], out=nearest)
    return np.array(taken, dtype=np.int64), np.array(parts, dtype=np.float64)
