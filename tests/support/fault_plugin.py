"""The frame of the fault tests: the time that a nightly run has, and the report at its end.

A pytest plugin: tests/faults/conftest.py registers it, `support.fault_suite` gives it by name.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator

import pytest

from support.fault_report import REPORT, table

GRACE_S = 240.0
"""A test that goes on for so long after its time hangs; it has its last check to make."""


class FaultPlugin:
    """Shares the time of a run out among its nightly tests; prints the counts of all."""

    def __init__(self, hours: float) -> None:
        self._hours = hours
        self._ends_at = time.monotonic() + hours * 3600
        self._weights: dict[str, float] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Those that share the time: the more variants a test has, the less has each of them."""
        names = [_function(item) for item in session.items if item.get_closest_marker("nightly")]
        variants = Counter(names)
        self._weights = {
            item.nodeid: variants[_function(item)] ** -0.5
            for item in session.items
            if item.get_closest_marker("nightly")
        }

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Give a nightly test its share of the time; others have what they need."""
        REPORT.test_ends_at = float("inf")
        if item.get_closest_marker("nightly"):
            now = time.monotonic()
            whole = sum(self._weights.values())
            share_s = max(0.0, self._ends_at - now) * self._weights.pop(item.nodeid, whole) / whole
            REPORT.test_ends_at = now + share_s
            item.add_marker(pytest.mark.timeout(share_s + GRACE_S), append=False)
        return (yield)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """None begins when the time is over."""
        if item.get_closest_marker("nightly") and time.monotonic() > self._ends_at:
            pytest.skip(f"the {self._hours:g} hours of this run are over (FAULTS_HOURS)")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what did not pass."""
        if report.failed:
            REPORT.tests[report.nodeid] = "FAILED" if report.when == "call" else "ERROR"
        elif report.skipped and isinstance(report.longrepr, tuple):
            REPORT.tests[report.nodeid] = (
                f"left out: {report.longrepr[2].removeprefix('Skipped: ')}"
            )

    def pytest_sessionfinish(self) -> None:
        """Write all of it where FAULTS_REPORT says."""
        REPORT.write_where_told()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it."""
        if REPORT.runs:
            terminalreporter.section("faults")
            for line in table({**REPORT.content(), "tests": {}}):
                terminalreporter.write_line(line)


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Register it, once."""
    if not config.pluginmanager.has_plugin("fault-tests"):
        hours = float(os.environ.get("FAULTS_HOURS", "2"))
        config.pluginmanager.register(FaultPlugin(hours), "fault-tests")
