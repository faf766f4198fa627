"""What age adds to relevance or takes away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import IntColumn

    WideRows = NDArray[np.float64]


def recency(times_ns: IntColumn, now_ns: int, half_life_s: float) -> WideRows:
    """From 1 for now towards 0: it halves with every half-life of age; the future has age 0.

    Args:
        times_ns: shape (n,).
        now_ns: what age is counted from.
        half_life_s: above 0.
    """
    # In floats: the difference of the first and the last time there is does not fit int64.
    age_s = np.maximum(0.0, (float(now_ns) - times_ns.astype(np.float64)) / 1e9)
    return np.exp2(-age_s / half_life_s)


def span_of(relevance: WideRows) -> tuple[float, float]:
    """The worst relevance, and how far above it the best is; 1.0 where all are alike."""
    if not len(relevance):
        return 0.0, 1.0
    worst = float(relevance.min())
    return worst, (float(relevance.max()) - worst) or 1.0


def recency_parts(
    relevance: WideRows, recency: WideRows, weight: float, span: tuple[float, float]
) -> WideRows:
    """What is added, so that the sum orders by (1 - weight) x relevance + weight x recency.

    In that formula relevance is from 0 to 1, as `span` says; here both stay on its own scale.

    Args:
        relevance, recency: shape (n,).
        weight: 0 to 1.
        span: of the candidates' relevance (`span_of`).
    """
    worst, width = span
    return weight * (worst + width * recency - relevance)
