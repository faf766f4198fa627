"""The command that the README's table comes from runs, and its figures agree with one another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLS = 5
SERIES = {"raw_embed", "raw_scan", "echo", "recall_cold", "recall_warm", "index_turn"}


def test_the_first_table_is_measured_and_printed(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    arguments = ["--messages", "120", "--calls", str(CALLS), "--json", str(file)]
    printed = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_table", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert printed.returncode == 0, printed.stderr
    result = json.loads(file.read_text())
    assert result["config"]["messages"] == 120
    for name in ("in_turns", "in_loops"):
        latencies = result[name]["latencies_ms"]
        assert set(latencies) == SERIES
        assert {latency["count"] for latency in latencies.values()} == {CALLS}
        floor = sum(latencies[part]["p50_ms"] for part in ("raw_embed", "raw_scan", "echo"))
        assert result[name]["cold_floor_p50_ms"] == pytest.approx(floor)
        ratio = latencies["recall_cold"]["p50_ms"] / floor
        assert result[name]["cold_ratio_p50"] == pytest.approx(ratio)
        row = f"| {ratio:.2f} " if name == "in_turns" else f"({ratio:.2f}) |"
        assert row in printed.stdout
