"""Seeded faults: does the suite see them? `make mutations` runs this.

Copies the tree to a temporary directory, sees that the tests in question pass there, and then, one
mutation after the other: applies it, runs its test, which must fail by an assertion of its own,
and puts the file back. Nothing is written into the tree, unless `--write` asks for the list in
docs/mutations.md. Exits with 1 where a mutation survives.

With `--seconds-max` it tries as many as there is time for, in an order by chance.

    cd tests && python -m support.mutations [NAME ...] [--write] [--seconds-max=S] [--report=FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.mutation import Mutation
from support.serving_mutations import SERVING
from support.storage_mutations import STORAGE

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "mutations.md"
COPIED = ("core", "server", "clients", "tests", "benchmarks", "proto", "docs", ".ci")
TEST_SECONDS_MAX = 120
SECONDS_EACH = 8  # twice its test: before anything is broken, and broken
OLDEST = 1_000_000_000
PATHS = ("core", "server", "clients/python")
# What a broken import raises; a test that ends with it, or never ends, has not seen the fault.
NOT_SEEN = ("ImportError", "ModuleNotFoundError", "SyntaxError", "NameError", "IndentationError")

MUTATIONS: tuple[Mutation, ...] = (*STORAGE, *SERVING)

HEAD = """\
# Seeded faults

`make mutations` breaks the program in each of these ways, in a copy, one at a time, and runs the
test beside it, which must fail by an assertion of its own. This list is written by
`cd tests && python -m support.mutations --write`, after every one of them was caught.

| what is broken | where | caught by |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended.

    Attributes:
        caught: a test failed by an assertion.
        told: the failed case, or why it does not count.
    """

    caught: bool
    told: str
    seconds: float


class Copy:
    """A copy of the tree in which tests can run."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        self._reports = directory / "reports"
        self._reports.mkdir()
        self._runs = 0
        self._versions = 0
        self.root.mkdir()
        for name in COPIED:
            shutil.copytree(ROOT / name, self.root / name, ignore=_ignored, symlinks=True)
        for path in ROOT.iterdir():
            if path.is_file() and path.name != ".git":
                shutil.copy2(path, self.root)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self.root / path) for path in PATHS),
            "PYTHONPYCACHEPREFIX": str(directory / "pyc"),
        }
        self._require_own_code()

    def _require_own_code(self) -> None:
        code = "import semanticrecall_core as c; print(c.__file__)"
        command = [sys.executable, "-c", code]
        shown = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=True
        ).stdout
        if not shown.startswith(str(self.root)):
            raise RuntimeError("tests of the copy would run the code of the tree")

    def run(self, tests: Iterable[str], *, seconds_max: float = TEST_SECONDS_MAX) -> Outcome:
        """Run tests; what matters is the first that fails."""
        self._runs += 1
        report = self._reports / f"{self._runs}.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "--timeout", "60", "-o", "junit_family=xunit1"]
        start = time.monotonic()
        try:
            ended = subprocess.run(
                [*command, *tests],
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds_max,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(False, "took too long", time.monotonic() - start)
        seconds = time.monotonic() - start
        if ended.returncode not in (0, 1):
            return Outcome(False, f"pytest ended with {ended.returncode}", seconds)
        return _judged(report, seconds)

    @contextmanager
    def broken(self, mutation: Mutation) -> Generator[None]:
        """The body sees the fault."""
        path = self.root / mutation.file
        original = path.read_text("utf-8")
        self._write(path, mutated(original, mutation))
        try:
            yield
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        # Every version of a file has a time of its own: Python's cache goes by it.
        self._versions += 1
        path.write_text(text, "utf-8")
        os.utime(path, (OLDEST + self._versions, OLDEST + self._versions))


def _ignored(_directory: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("__pycache__", "node_modules")}


def mutated(text: str, mutation: Mutation) -> str:
    """A file's text with the fault in it.

    Raises:
        ValueError: the old text is not there exactly once.
    """
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: the old text is there {text.count(mutation.old)} times")
    return text.replace(mutation.old, mutation.new)


def _judged(report: Path, seconds: float) -> Outcome:
    for case in ElementTree.parse(report).iter("testcase"):
        function = (case.get("name") or "").partition("[")[0]
        name = f"{case.get('file')}::{function}"
        failure = case.find("failure")
        if failure is not None:
            message = (failure.get("message") or "").strip()
            kind = message.partition(":")[0]
            seen = not (kind.endswith(NOT_SEEN) or "Timeout (>" in message)
            return Outcome(seen, name if seen else f"{name} ended with {kind}", seconds)
        error = case.find("error")
        if error is not None:
            return Outcome(False, f"{name} could not run: {error.get('message')}", seconds)
    return Outcome(False, "survived", seconds)


def baseline(copy: Copy, mutations: Sequence[Mutation]) -> bool:
    """Whether all tests pass as long as nothing is broken."""
    tests = sorted({mutation.test for mutation in mutations})
    outcome = copy.run(tests, seconds_max=60 + 15 * len(tests))
    if outcome.told == "survived":
        print(f"{len(tests)} tests pass in {outcome.seconds:.0f} s while nothing is broken")
        return True
    print(f"without any fault: {outcome.told}")
    return False


def run_all(mutations: Sequence[Mutation], *, ends_at: float = float("inf")) -> dict[str, Outcome]:
    """Apply each and run its test, until the time is over; prints a line for each."""
    with tempfile.TemporaryDirectory(prefix="semanticrecall-mutations-") as directory:
        copy = Copy(Path(directory))
        if not baseline(copy, mutations):
            return {}
        outcomes: dict[str, Outcome] = {}
        for mutation in mutations:
            if outcomes and time.monotonic() > ends_at:  # one is tried in any case
                break
            with copy.broken(mutation):
                outcomes[mutation.name] = outcome = copy.run([mutation.test])
            mark = "caught  " if outcome.caught else "SURVIVED"
            print(f"{mark} {outcome.seconds:5.1f} s  {mutation.name}: {outcome.told}", flush=True)
    return outcomes


def document(mutations: Sequence[Mutation]) -> str:
    """The list for people."""
    rows = (f"| {m.name} | `{m.file}` | `{m.test}` |\n" for m in mutations)
    return HEAD + "".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; the exit status."""
    parser = argparse.ArgumentParser(description="Does the suite see seeded faults?")
    parser.add_argument("names", nargs="*", help="only those whose name holds one of these")
    parser.add_argument("--write", action="store_true", help="write docs/mutations.md")
    parser.add_argument("--seconds-max", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--report", type=Path, help="write what was found as JSON")
    chosen = parser.parse_args(arguments)
    ends_at = time.monotonic() + chosen.seconds_max
    wanted = [
        m for m in MUTATIONS if not chosen.names or any(name in m.name for name in chosen.names)
    ]
    tried = wanted
    if chosen.seconds_max < float("inf"):
        number = min(len(wanted), max(1, int(chosen.seconds_max / SECONDS_EACH)))
        tried = random.Random(chosen.seed).sample(wanted, number)
    outcomes = run_all(tried, ends_at=ends_at)
    if chosen.report:
        found = [{"name": n, "caught": o.caught, "told": o.told} for n, o in outcomes.items()]
        content = {"seed": chosen.seed, "wanted": len(wanted), "outcomes": found}
        chosen.report.write_text(json.dumps(content), "utf-8")
    survived = [name for name, outcome in outcomes.items() if not outcome.caught]
    print(f"{len(outcomes) - len(survived)} caught of {len(outcomes)} tried, of {len(wanted)}")
    if not outcomes or survived:
        return 1
    if chosen.write and len(outcomes) == len(wanted):
        DOCUMENT.write_text(document(MUTATIONS), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
