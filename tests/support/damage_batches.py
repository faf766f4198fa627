"""Mutations by the hundred, read in a process of their own, and what became of them in numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support.damage_worker import Mutation
from support.damage_world import World

TESTS = Path(__file__).resolve().parents[1]
WORKER_SECONDS_MAX = 3_600


@dataclass(slots=True)
class Outcome:
    """What one mutation came to."""

    mutation: Mutation
    refused: str | None = None
    reports: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    crash: str = ""

    @property
    def is_reported(self) -> bool:
        return self.refused is not None or bool(self.reports or self.findings)

    @property
    def is_silent(self) -> bool:
        """Whoever read was given something else, or less, and was not told; Verify comes later."""
        return bool(self.differences) and self.refused is None and not self.reports


def outcomes(base: Path, sound: Path, world: World, mutations: list[Mutation]) -> list[Outcome]:
    """Run mutations of a directory; one that kills the process is a crash, and the rest go on."""
    found: list[Outcome] = []
    while len(found) < len(mutations):
        found += _one_process(base, sound, world, mutations[len(found) :])
    return found


def _one_process(base: Path, sound: Path, world: World, mutations: list[Mutation]) -> list[Outcome]:
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    (base / "sound").symlink_to(sound, target_is_directory=True)
    (base / "world.json").write_text(world.to_json())
    (base / "mutations.json").write_text(json.dumps(mutations))
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "support.damage_worker", str(base)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WORKER_SECONDS_MAX,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    lines = ran.stdout.splitlines()
    found = [
        Outcome(mutation, **json.loads(line))
        for mutation, line in zip(mutations, lines[1::2], strict=False)
    ]
    if len(found) < len(mutations):
        died = f"the process ended with {ran.returncode}: {ran.stderr[-2000:]}"
        found.append(Outcome(mutations[len(found)], crash=died))
    return found


def counts(found: list[Outcome]) -> Counter[str]:
    """How many were told, made no difference, were silent, or killed the process."""
    count: Counter[str] = Counter()
    for one in found:
        if one.crash:
            count["crashes"] += 1
        elif one.is_silent:
            count["silent"] += 1
        elif one.is_reported:
            count["refused" if one.refused else "told"] += 1
        else:
            count["without a trace"] += 1
    return count


def require_told(found: list[Outcome]) -> None:
    """No crash, and no difference that nobody was told of."""
    bad = [one for one in found if one.crash or one.is_silent]
    assert not bad, "\n".join(
        f"{one.mutation}: {one.crash or one.differences[:5]}" for one in bad[:5]
    )
