"""Histograms of several series that are counted together.

A recall has seven stages. Counted one by one in histograms of `prometheus_client`, which takes a
lock for each sum and each bucket, they take as long as a search of a few thousand rows.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class HistogramRow(Collector):
    """One histogram for each value of a label, with the same buckets. Thread-safe.

    It is shown as `prometheus_client.Histogram` would show it.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        label: str,
        values: Sequence[str],
        bounds: Sequence[float],
    ) -> None:
        """Make it with every series at 0.

        Args:
            name, documentation: of the metric.
            label, values: the label that tells the series apart, and its values.
            bounds: upper bounds of the buckets, ascending; that without a bound is added.
        """
        self._name = name
        self._documentation = documentation
        self._label = label
        self._values = tuple(values)
        self._bounds = tuple(float(bound) for bound in bounds)
        self._lock = threading.Lock()
        self._sums = [0.0] * len(values)
        self._counts = [[0] * (len(bounds) + 1) for _ in values]

    def observe_all(self, amounts: Iterable[float]) -> None:
        """Count one amount in each series, in their order."""
        bounds, sums = self._bounds, self._sums
        with self._lock:
            for place, (amount, counts) in enumerate(zip(amounts, self._counts, strict=True)):
                sums[place] += amount
                counts[bisect_left(bounds, amount)] += 1

    def observe_last(self, amount: float) -> None:
        """Count an amount in the last series alone."""
        with self._lock:
            self._sums[-1] += amount
            self._counts[-1][bisect_left(self._bounds, amount)] += 1

    def describe(self) -> list[Metric]:
        """Its name, for a registry that takes each only once."""
        return [self._family()]

    def collect(self) -> list[Metric]:
        """All series as they are now."""
        with self._lock:
            sums, counts = list(self._sums), [list(series) for series in self._counts]
        names = [*map(floatToGoString, (*self._bounds, float("inf")))]
        family = self._family()
        for value, total, series in zip(self._values, sums, counts, strict=True):
            buckets: list[tuple[str, float]] = []
            so_far = 0.0
            for name, count in zip(names, series, strict=True):
                so_far += count
                buckets.append((name, so_far))
            family.add_metric([value], buckets, total)
        return [family]

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
