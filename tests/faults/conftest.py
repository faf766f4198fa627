"""The frame of the fault tests: the report at the end, and the time that a nightly run has."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from support.fault_report import REPORT

HOURS = float(os.environ.get("FAULTS_HOURS", "2"))
HERE = Path(__file__).parent
GRACE_S = 600.0
"""A test that is cut off by its timeout, and not by its own counting, hangs."""


class _Clock:
    """Shares the time of a run out among its nightly tests."""

    def __init__(self) -> None:
        self.ends_at = time.monotonic() + HOURS * 3600
        self.left = 0

    def begin(self) -> None:
        """The next test has an equal share of what is left."""
        now = time.monotonic()
        if now > self.ends_at:
            pytest.skip(f"the {HOURS:g} hours of this run are over (FAULTS_HOURS)")
        REPORT.test_ends_at = now + (self.ends_at - now) / max(1, self.left)
        self.left -= 1


_CLOCK = _Clock()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nightly tests end by their own counting; the others may be slow on a busy machine."""
    for item in items:
        if item.get_closest_marker("timeout"):
            continue
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.timeout(HOURS * 3600 + GRACE_S))
        elif item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(GRACE_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count those that share the time."""
    _CLOCK.left = sum(item.get_closest_marker("nightly") is not None for item in session.items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a nightly test its share of the time; others have what they need."""
    REPORT.test_ends_at = float("inf")
    if item.get_closest_marker("nightly"):
        _CLOCK.begin()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts of every fault, and write them where FAULTS_REPORT says."""
    if REPORT.runs:
        terminalreporter.section("faults")
        for line in REPORT.lines():
            terminalreporter.write_line(line)
    path = os.environ.get("FAULTS_REPORT")
    if path:
        REPORT.write(Path(path))
