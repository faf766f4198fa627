"""The command behind docs/decisions/0019 runs, and what it prints agrees with itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = 6
ROWS = (150, 700)
TOP_K = 20
METHODS = {"ours", "fts5", "fts5, prefixed"} | {
    package for package in ("bm25s", "tantivy") if importlib.util.find_spec(package)
}


def test_lexical_latency_is_measured_and_printed(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    sizes = ["--rows", ",".join(map(str, ROWS)), "--calls", str(CALLS), "--top-k", str(TOP_K)]
    command = [sys.executable, "-m", "benchmarks.lexical_latency", "--smoke", *sizes]
    printed = subprocess.run(
        [*command, "--json", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert printed.returncode == 0, printed.stderr
    result = json.loads(file.read_text())
    series = METHODS | {"ours, put", "ours, changed"}
    assert {name: latency["count"] for name, latency in result["latencies_ms"].items()} == {
        f"{rows} {name}": CALLS for rows in ROWS for name in series
    }
    # Every query has four of the most common words: each method finds as many as it is asked for.
    found = {f"{rows} {name} found" for rows in ROWS for name in METHODS}
    assert {result["figures"][name] for name in found} == {CALLS * TOP_K}
    assert result["bars"] == []
    assert "700 ours, changed" in printed.stdout
