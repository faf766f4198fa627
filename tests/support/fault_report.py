"""What a fault test says of itself: its seed when it fails, and its counts at the end of a run.

    with seeded("F1", tmp_path / "data", kills=50) as run:
        for cycle in run.cycles(50):
            delay_s = run.random.uniform(0, 0.1)
            ...
            run.count("kills")

A failure inside names seed, commit and options, and where the data directory was copied to:
FAULTS_KEEP, or a folder of the system's temporary one. FAULTS_SEED replays a seed. The counts of
all runs are printed at the end, and written as JSON to the file that FAULTS_REPORT names.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class FaultRun:
    """One seeded run.

    Attributes:
        seed: what replays it.
        random: the only source of chance.
        counts: what was done, in words.
    """

    def __init__(self, fault: str, seed: int, directory: Path | None, ends_at: float) -> None:
        self.fault = fault
        self.seed = seed
        self.random = random.Random(seed)
        self.directory = directory
        self.counts: Counter[str] = Counter()
        self._ends_at = ends_at

    def count(self, what: str, number: int = 1) -> None:
        """Add to the counts of the report."""
        self.counts[what] += number

    def cycles(self, number: int) -> Iterator[int]:
        """0, 1, ... number - 1, or fewer where the time of this test is over before."""
        for cycle in range(number):
            if time.monotonic() > self._ends_at:
                self.count("cycles left out for want of time", number - cycle)
                return
            yield cycle


class FaultReport:
    """The counts of all runs of this process, and the time that each test has."""

    def __init__(self) -> None:
        self.runs: list[dict[str, object]] = []
        self.test_ends_at = float("inf")

    def add(self, run: FaultRun, options: dict[str, object], seconds: float, outcome: str) -> None:
        """Keep what a run did."""
        self.runs.append(
            {
                "fault": run.fault,
                "outcome": outcome,
                "seed": run.seed,
                "options": {name: str(value) for name, value in options.items()},
                "counts": dict(run.counts),
                "seconds": round(seconds, 1),
            }
        )

    def lines(self) -> list[str]:
        """One line a run."""
        found = []
        for run in self.runs:
            counts = run["counts"]
            assert isinstance(counts, dict)
            said = ", ".join(f"{number:,} {what}" for what, number in counts.items())
            found.append(
                f"{run['fault']}: {run['outcome']}: {said or 'nothing counted'}"
                f" ({run['seconds']} s, seed {run['seed']})"
            )
        return found

    def write(self, path: Path) -> None:
        """All of it as JSON."""
        content = {"commit": commit(), "runs": self.runs}
        path.write_text(json.dumps(content, indent=1) + "\n")


REPORT = FaultReport()
_OUTCOMES = {"Skipped": "skipped", "KeyboardInterrupt": "cut off"}


@contextlib.contextmanager
def seeded(
    fault: str, directory: Path | None = None, *, seed: int | None = None, **options: object
) -> Iterator[FaultRun]:
    """A run whose failure can be replayed.

    Args:
        fault: its name in the plan, e.g. "F1", or with more behind it.
        directory: kept when it fails.
        seed: None is FAULTS_SEED, or one by chance.
        options: whatever else the run depends on.
    """
    if seed is None:
        given = os.environ.get("FAULTS_SEED")
        seed = int(given) if given else random.SystemRandom().randrange(2**32)
    run = FaultRun(fault, seed, directory, REPORT.test_ends_at)
    began, outcome = time.monotonic(), "passed"
    try:
        yield run
    except BaseException as error:
        outcome = _OUTCOMES.get(type(error).__name__, "FAILED")
        if outcome == "FAILED":
            error.add_note(_note(run, options))
        raise
    finally:
        REPORT.add(run, options, time.monotonic() - began, outcome)


def _note(run: FaultRun, options: dict[str, object]) -> str:
    said = " ".join(f"{name}={value}" for name, value in options.items()) or "none"
    lines = [
        f"{run.fault} failed; replay it with FAULTS_SEED={run.seed}",
        f"  commit {commit()}, options: {said}, done: {dict(run.counts)}",
    ]
    if run.directory is not None:
        lines.append(f"  its data: {kept(run.directory, f'{run.fault}-{run.seed}')}")
    return "\n".join(lines)


def kept(directory: Path, name: str) -> Path | str:
    """Copy a directory to where it stays; returns its place, or why it was not copied."""
    default = Path(tempfile.gettempdir()) / "semanticrecall-faults"
    place = Path(os.environ.get("FAULTS_KEEP", default)) / name.replace("/", "-").replace(" ", "-")
    try:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(directory, place, symlinks=True, ignore=_sockets)
    except (OSError, shutil.Error) as error:
        return f"{directory} (not copied: {type(error).__name__})"
    return place


def _sockets(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(directory) / name).is_socket()]


@cache
def commit() -> str:
    """The commit of this checkout, with a plus where files differ from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()
