"""Every bar in one table: runs all benchmarks, one after the other, each in a process of its own.

Usage: python -m benchmarks.bars [--quick] [--data-dir DIR] [--only NAME ...] [--json FILE]
                                 [--markdown FILE]

Full size takes about 25 minutes once the stores are built; with `--data-dir` they are built once,
in some minutes for 1,000,000 messages, and found again. `--quick` takes a few minutes on small
stores: it shows that everything runs and what is far off, not whether a bar is met. Nothing else
should run on the machine. A benchmark that fails has a row that says so; the others go on, and the
exit status is 1.

The JSON: {"size", "results": [the JSON of each benchmark, see report.py, or {"script", "error"}]}.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import end_in_order_when_told, run_to_end

NAMES = (
    "hot_path",
    "throughput",
    "growth",
    "start",
    "resident_memory",
    "import_speed",
    "group_commit",
    "recall_under_import",
)
"""The benchmarks in the order in which they run."""

KEEP_STORES = frozenset(("growth", "start", "resident_memory"))
"""Those that take `--data-dir`."""

SMOKE_RUN = "a smoke run: means nothing"
BENCHMARK_SECONDS_MAX = 3 * 3600


def run_benchmark(name: str, flags: Sequence[str]) -> dict[str, Any]:
    """One benchmark's result; what it prints is shown as it comes."""
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as directory:
        file = Path(directory, "result.json")
        print(f"\n== {name} {' '.join(flags)}", flush=True)
        arguments = ["-m", f"benchmarks.{name}", *flags, "--json", str(file)]
        status = run_to_end(arguments, BENCHMARK_SECONDS_MAX)
        if status != 0:
            return {"script": name, "error": f"exit status {status}"}
        result: dict[str, Any] = json.loads(file.read_text())
        return result


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """A table of bars: what, bar, measured, met."""
    lines = ["| benchmark | ratio | bar | measured | met |", "|---|---|---|---|---|"]
    for result in results:
        script = f"`{result['script']}`"
        if "error" in result:
            lines.append(f"| {script} | failed: {result['error']} | | | |")
            continue
        for bar in result["bars"]:
            met = "yes" if bar["met"] else "**no**"
            lines.append(
                f"| {script} | {bar['name']} | {bar['rule']} {bar['limit']:g} | "
                f"{bar['measured']:.2f} | {SMOKE_RUN if result['smoke'] else met} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small stores, a few minutes")
    parser.add_argument(
        "--data-dir", type=Path, help="where large stores are built and found again"
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    end_in_order_when_told()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as temporary:
        stores = (arguments.data_dir or Path(temporary)).resolve()
        for name in arguments.only:
            flags = ["--smoke"] if arguments.quick else []
            if name in KEEP_STORES:
                flags += ["--data-dir", str(stores)]
            results.append(run_benchmark(name, flags))
    table = markdown(results)
    print(f"\n{table}")
    if arguments.json:
        size = "quick" if arguments.quick else "full"
        arguments.json.write_text(json.dumps({"size": size, "results": results}, indent=2) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(table + "\n")
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
