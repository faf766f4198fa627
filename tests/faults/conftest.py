"""Fault tests may be slow on a busy machine; their counts are printed at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import fault_plugin

HERE = Path(__file__).parent
TIMEOUT_S = 600.0

pytest_configure = fault_plugin.pytest_configure


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those without a timeout of their own have a longer one here."""
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
