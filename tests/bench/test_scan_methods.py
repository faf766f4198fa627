"""The command behind docs/decisions/0012 runs, and what it prints agrees with itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = 6
BLOCK_CALLS = 3
METHODS = {"search, 1 thread", "search, 2 threads", "int8, one index", "rabitq-2"}


def test_scan_methods_are_measured_and_printed(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    sizes = ["--rows", "300,1500", "--calls", str(CALLS), "--block-calls", str(BLOCK_CALLS)]
    few = ["--evict-mib", "0", "--bits", "2", "--candidates", "300", "--rerank-rows", "300"]
    printed = subprocess.run(
        [sys.executable, "-m", "benchmarks.scan_methods", *sizes, *few, "--json", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert printed.returncode == 0, printed.stderr
    result = json.loads(file.read_text())
    titles = {
        f"{kind} {rows} {method}"
        for kind in ("clustered", "random")
        for rows in (300, 1500)
        for method in METHODS
    }
    counts = {"cold": CALLS // BLOCK_CALLS, "loop": CALLS - CALLS // BLOCK_CALLS}
    assert {name: latency["count"] for name, latency in result["latencies_ms"].items()} == {
        f"{title} {state}": count for title in titles for state, count in counts.items()
    }
    found = {title: result["figures"][f"{title} found"] for title in titles}
    assert {share for title, share in found.items() if "search" in title} == {1.0}
    assert {share for title, share in found.items() if " 300 " in title} == {1.0}
    assert {bar["name"].partition(":")[0] for bar in result["bars"]} == {"clustered", "random"}
    assert all(bar["met"] and bar["measured"] == 1.0 for bar in result["bars"])
    assert "clustered 1500 rabitq-2 cold" in printed.stdout
