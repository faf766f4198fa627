"""kill -9 at every step to the disk: a snapshot is whole or not there, and nothing comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.saving_kill import SCENARIOS

STEPS_MIN = {"create": 12, "rewrite": 12, "delete": 6, "restore": 6, "offline": 10}


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_a_process_may_be_killed_at_any_step(tmp_path: Path, scenario: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "support.saving_kill", scenario, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert ended.returncode == 0, ended.stderr.decode()[-4_000:]
    assert int(ended.stdout.split()[-1]) >= STEPS_MIN[scenario]
