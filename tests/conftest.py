"""What all tests share: hypothesis profiles and a seed that every run prints."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings

# deadline=None: a busy machine is not a failure. print_blob: a failure prints what replays it.
settings.register_profile("default", max_examples=50, deadline=None, print_blob=True)
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the run's seed, unless `--hypothesis-seed` gives one."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = random.SystemRandom().randrange(2**32)


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed: the same one gives the same examples."""
    return f"replay with --hypothesis-seed={config.option.hypothesis_seed}"
