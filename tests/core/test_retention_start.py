"""The start of the retention: the rule is said first, and nothing is forgotten at once."""

from __future__ import annotations

import threading
import time

import pytest
from structlog.testing import capture_logs

from semanticrecall_core.engine.retention import Retention, RetentionPlan
from support.message_stores import append, draft, ticking_clock
from support.model_store import ModelStore

DAY_NS = 86_400 * 10**9
WAIT_S = 60.0


class Forgetting:
    """Is told the rows, and when."""

    def __init__(self) -> None:
        self.told_at = 0.0
        self.told = threading.Event()

    def __call__(self, resource_id: str, rows: tuple[tuple[int, int], ...]) -> int:
        self.told_at = time.monotonic()
        self.told.set()
        return len(rows)


@pytest.mark.parametrize(
    ("interval_s", "first_look_s"), [(1.0, 1.0), (60.0, 60.0), (61.0, 60.0), (86_400.0, 60.0)]
)
def test_the_first_look_is_an_interval_after_the_start_and_a_minute_at_most(
    interval_s: float, first_look_s: float
) -> None:
    assert RetentionPlan(interval_s=interval_s).first_look_s == first_look_s


def test_the_rule_is_said_and_nothing_is_forgotten_before_the_first_look() -> None:
    store = ModelStore(generation="g", clock=ticking_clock())
    append(store, draft("m1"), draft("m2"), draft("m3"))
    plan = RetentionPlan(age_ns=DAY_NS * 3 // 2, messages_max=1, interval_s=0.3)
    forgetting = Forgetting()
    retention = Retention(store, forgetting, plan)
    with capture_logs() as lines:
        started_at = time.monotonic()
        retention.start()
        assert [line for line in lines if line["event"] == "retention_on"] == [
            {
                "event": "retention_on",
                "log_level": "info",
                "age_days_max": 1.5,
                "messages_max": 1,
                "interval_ms": 300,
                "first_look_ms": 300,
            }
        ]
        assert forgetting.told.wait(WAIT_S)
        retention.stop()
    assert forgetting.told_at - started_at >= plan.first_look_s


def test_nothing_is_said_where_nothing_expires() -> None:
    retention = Retention(
        ModelStore(generation="g", clock=ticking_clock()), Forgetting(), RetentionPlan()
    )
    with capture_logs() as lines:
        retention.start()
        retention.stop()
    assert lines == []
