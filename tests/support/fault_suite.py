"""`make faults`: the long fault tests, the seeded faults, and one table of both, in a given time.

    cd tests && python -m support.fault_suite [PYTEST_ARGUMENT ...]

FAULTS_HOURS (2) is all of its time: the tests have three quarters of it, the seeded faults of
`support.mutations` the rest, half an hour at most, whatever the tests came to. Whoever does not end
by itself is ended. FAULTS_REPORT is the JSON file that it writes. Exits with 1 where anything
failed, or where nothing was done.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.fault_plugin import GRACE_S
from support.fault_report import ROOT, table

TESTS = ROOT / "tests"
MUTATIONS_SHARE, MUTATIONS_S_MAX = 0.25, 1_800.0
END_S = 60.0
"""Between SIGINT, after which pytest prints what it has, and SIGKILL."""


def nightly_files() -> list[str]:
    """Files of tests that have a long column; others need not even be imported."""
    paths = sorted(TESTS.rglob("test_*.py"))
    said = ("mark.nightly", "fault_sizes import COLUMNS")
    return [
        str(path.relative_to(ROOT))
        for path in paths
        if any(word in path.read_text("utf-8") for word in said)
    ]


def run_tests(arguments: Sequence[str], seconds: float, report: Path) -> int:
    """The nightly tests; pytest's exit status, or that of a process that was ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "nightly", "-p", "support.fault_plugin"]
    environment = {
        **os.environ,
        "FAULTS_HOURS": f"{seconds / 3600:.6f}",
        "FAULTS_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    return ended([*command, *nightly_files(), *arguments], ROOT, environment, seconds + GRACE_S)


def run_mutations(seconds: float, report: Path) -> int:
    """As many of the seeded faults as there is time for; 0 where each was caught."""
    command = [sys.executable, "-m", "support.mutations", f"--seconds-max={seconds:.0f}"]
    command.append(f"--report={report}")
    return ended(command, TESTS, dict(os.environ), seconds + GRACE_S)


def ended(command: list[str], folder: Path, environment: dict[str, str], seconds: float) -> int:
    """The exit status of a process that has so much time; its children end with it."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        return 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(path: Path, otherwise: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return otherwise
    return found


def lines_of_mutations(content: dict[str, Any]) -> list[str]:
    """How many were tried of how many, and those that nobody saw."""
    outcomes = content["outcomes"]
    missed = [one for one in outcomes if not one["caught"]]
    tried = f"{len(outcomes)} of {content['wanted']} seeded faults tried"
    found = [f"{tried}, {len(outcomes) - len(missed)} caught (order: seed {content['seed']})"]
    return [*found, *(f"SURVIVED: {one['name']}: {one['told']}" for one in missed)]


def main(arguments: Sequence[str]) -> int:
    """Both, and the table."""
    began = time.monotonic()
    hours = float(os.environ.get("FAULTS_HOURS", "2"))
    mutations_s = min(hours * 3600 * MUTATIONS_SHARE, MUTATIONS_S_MAX)
    tests_s = hours * 3600 - mutations_s
    with tempfile.TemporaryDirectory(prefix="semanticrecall-faults-") as directory:
        reports = [Path(directory) / name for name in ("tests.json", "mutations.json")]
        statuses = {
            "tests": run_tests(arguments, tests_s, reports[0]),
            "mutations": run_mutations(mutations_s, reports[1]),
        }
        content = _read(reports[0], {"commit": "unknown", "runs": [], "tests": {}})
        content["mutations"] = _read(reports[1], {"outcomes": [], "wanted": 0, "seed": 0})
    content |= {"hours": hours, "seconds": round(time.monotonic() - began), "statuses": statuses}
    failed = [name for name, status in statuses.items() if status != 0]
    if not content["runs"]:
        failed.append("no test ran")
    lines = ["", *table(content), *lines_of_mutations(content["mutations"])]
    lines.append(f"{content['seconds']} s; {'failed: ' + ', '.join(failed) if failed else 'sound'}")
    sys.stdout.write("\n".join(lines) + "\n")
    path = os.environ.get("FAULTS_REPORT")
    if path:
        Path(path).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
