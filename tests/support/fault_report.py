"""What a fault test says of itself: its seed when it fails, and its counts at the end of a run.

    with seeded("F1", tmp_path / "data", kills=50) as run:
        for cycle in run.cycles(50):
            delay_s = run.random.uniform(0, 0.1)
            ...
            run.count("kills")

A failure inside names seed, commit and options, and where the data directory was copied to:
FAULTS_KEEP, or a folder of the system's temporary one. FAULTS_SEED replays a seed. What all runs
did is printed as a table at the end, with how much of what was wanted, and written as JSON to the
file that FAULTS_REPORT names, anew after each run: it is there whatever ends the process.
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
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class FaultRun:
    """One seeded run.

    Attributes:
        seed: what replays it.
        random: the only source of chance.
        counts: what was done, in words.
        done: cycles, or what else was wanted.
        wanted: how many of them; None where only the end of the loop tells.
        is_cut: the time was over before that.
    """

    def __init__(self, fault: str, seed: int, directory: Path | None, ends_at: float) -> None:
        self.fault = fault
        self.seed = seed
        self.random = random.Random(seed)
        self.directory = directory
        self.counts: Counter[str] = Counter()
        self.done = 0
        self.wanted: int | None = 0
        self.is_cut = False
        self._ends_at = ends_at

    def count(self, what: str, number: int = 1) -> None:
        """Add to the counts of the report."""
        self.counts[what] += number

    @property
    def left_s(self) -> float:
        """Seconds that this test has; infinite but in `make faults`."""
        return max(0.0, self._ends_at - time.monotonic())

    def is_over(self) -> bool:
        """Whether the time of this test is over; then the report says that it was cut."""
        self.is_cut = self.is_cut or time.monotonic() > self._ends_at
        return self.is_cut

    def cycles(self, number: int, *, is_bound: bool = False) -> Iterator[int]:
        """0, 1, ... number - 1, or fewer where the time of this test is over before.

        Args:
            number: of cycles.
            is_bound: that many must never come: the caller leaves the loop before.
        """
        for cycle in self.batches(range(number), 1, is_bound=is_bound):
            yield cycle[0]

    def batches(
        self, items: Sequence[T], of: int, *, is_bound: bool = False
    ) -> Iterator[Sequence[T]]:
        """The items in parts, or fewer where the time of this test is over before.

        Args:
            items: all of them.
            of: items in a part.
            is_bound: see `cycles`.
        """
        if is_bound:
            self.wanted = None
        elif self.wanted is not None:
            self.wanted += len(items)
        for start in range(0, len(items), of):
            if start and self.is_over():  # one is done in any case
                return
            part = items[start : start + of]
            yield part
            self.done += len(part)

    def achieved(self, done: int, wanted: int) -> None:
        """What a loop did that counts something else than its cycles."""
        self.done, self.wanted = done, wanted

    def fitted(self, number: int, least: int, *, a_second: float) -> int:
        """What can be done in one go in the time of this test: the number, or less.

        Args:
            number: wanted.
            least: done in any case.
            a_second: how many a slow machine does.
        """
        fits = number if self.left_s == float("inf") else int(self.left_s * a_second)
        found = min(number, max(least, fits))
        assert self.wanted is not None
        self.wanted += number
        self.done += found
        self.is_cut = self.is_cut or found < number
        return found


class FaultReport:
    """The counts of all runs of this process, and the time that each test has."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.tests: dict[str, str] = {}
        self.test_ends_at = float("inf")

    def add(self, run: FaultRun, options: dict[str, object], seconds: float, outcome: str) -> None:
        """Keep what a run did."""
        self.runs.append(
            {
                "fault": run.fault,
                "outcome": outcome,
                "seed": run.seed,
                "options": {name: str(value) for name, value in options.items()},
                "done": run.done,
                "wanted": run.wanted,
                "cut": run.is_cut,
                "counts": dict(run.counts),
                "seconds": round(seconds, 1),
            }
        )

    def content(self) -> dict[str, Any]:
        """All of it, and the commit."""
        return {"commit": commit(), "runs": self.runs, "tests": self.tests}

    def write(self, path: Path) -> None:
        """All of it as JSON; whoever reads it finds the last one or this one."""
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(json.dumps(self.content(), indent=1) + "\n")
        partial.replace(path)

    def write_where_told(self) -> None:
        """To the file that FAULTS_REPORT names."""
        path = os.environ.get("FAULTS_REPORT")
        if path:
            self.write(Path(path))


def table(content: dict[str, Any]) -> list[str]:
    """What `FaultReport.content` says, in lines for people."""
    rows = [("fault", "outcome", "done of wanted", "s", "seed", "counts")]
    for run in content["runs"]:
        counts = ", ".join(f"{number:,} {what}" for what, number in run["counts"].items())
        begin = (run["fault"], run["outcome"], _share(run))
        rows.append((*begin, str(run["seconds"]), str(run["seed"]), counts))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    found = [f"commit {content['commit']}"]
    found += ["  ".join([*map(str.ljust, row[:5], widths), row[5]]).rstrip() for row in rows]
    outcomes = Counter(
        (outcome, name.partition("[")[0]) for name, outcome in content["tests"].items()
    )
    found += [f"{number} x {what}: {name}" for (what, name), number in outcomes.items()]
    return found


def _share(run: dict[str, Any]) -> str:
    if run["wanted"] is None:
        ended = run["outcome"] == "passed" and not run["cut"]
        return f"{run['done']:,} of {'as many' if ended else 'more'}"
    if not run["wanted"]:
        return "all" if run["outcome"] == "passed" else "-"
    return f"{run['done']:,} of {run['wanted']:,}"


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
        REPORT.write_where_told()


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
