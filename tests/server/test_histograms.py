"""Histograms that are counted together are shown as prometheus_client shows its own."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from semanticrecall_server.histograms import HistogramRow

BOUNDS = (0.0005, 0.25, 1, 10)
AMOUNTS = (
    (0.0, 0.0005, 0.00050001),
    (0.25, 0.9, 1.0),
    (10.0, 10.1, 1e9),
    (1e-6, 1.4e-05, 0.3),
)


def test_the_text_is_that_of_separate_histograms() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    one_by_one, together = CollectorRegistry(), CollectorRegistry()
    expected = Histogram("x_seconds", "Time.", ("stage",), registry=one_by_one, buckets=BOUNDS)
    row = HistogramRow("x_seconds", "Time.", "stage", ("a", "b", "c"), BOUNDS)
    together.register(row)
    for stage in ("a", "b", "c"):
        expected.labels(stage)
    assert generate_latest(together) == generate_latest(one_by_one)
    for amounts in AMOUNTS:
        row.observe_all(amounts)
        for stage, amount in zip(("a", "b", "c"), amounts, strict=True):
            expected.labels(stage).observe(amount)
    row.observe_last(0.7)
    expected.labels("c").observe(0.7)
    assert generate_latest(together) == generate_latest(one_by_one)


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    registry.register(HistogramRow("x_seconds", "Time.", "stage", ("a",), BOUNDS))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(HistogramRow("x_seconds", "Time.", "stage", ("a",), BOUNDS))
