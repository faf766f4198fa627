"""The phases of `side_by_side`: loading, restarting, asking in turns, indexing in turns.

A system that fails in one of them is left out of what comes after it, and the others go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Latency
from benchmarks.side_by_side_data import Data, Exact, WrongAnswerError
from benchmarks.system_process import LOAD_SECONDS_MAX, SystemFailedError, SystemProcess

OURS = "ours"
TURN_KINDS = ("text", "vector", "durable")
FOUND_SECONDS_MAX = 5.0
NOT_INSTALLED, FAILED = "not installed", "failed"
MEGABYTE = 1_000_000
DISK_BLOCK_BYTES = 512


@dataclass(slots=True)
class Contender:
    """A system under measurement.

    Attributes:
        setup: the fields of its `Setup`, once it has been opened.
        problem: why it is measured no further; empty as long as it is.
        model_in_it: the model is in the process whose memory counts.
        checked: what it answered before it was closed, by size.
    """

    module: str
    setup: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    process: SystemProcess | None = None
    load_messages_per_s: float = 0.0
    disk_bytes: int = 0
    resident_bytes: int = 0
    anonymous_bytes: int = 0
    model_in_it: bool = True
    restart_s: float = 0.0
    checked: dict[int, list[list[str]]] = field(default_factory=dict)
    same_after_restart: float = 0.0

    @property
    def name(self) -> str:
        """As its users know it."""
        return str(self.setup.get("name", self.module))

    def ask(self, do: str, **arguments: Any) -> Any:
        """One call of its running process; see `system_process`."""
        if self.process is None:
            raise SystemFailedError("it does not run")
        return self.process.ask(do, **arguments)

    @contextmanager
    def measured(self) -> Generator[None]:
        """What fails within becomes its `problem`."""
        try:
            yield
        except (SystemFailedError, WrongAnswerError) as error:
            missing = isinstance(error, SystemFailedError) and error.missing
            self.problem = f"{NOT_INSTALLED if missing else FAILED}: {error}"
            print(f"{self.name}: {self.problem}", flush=True)
            self.end()

    def end(self) -> None:
        """End its process, if one runs."""
        if self.process is not None:
            self.process.end()


@dataclass(slots=True)
class Series:
    """One row of the table of recalls.

    Attributes:
        neighbours: fetched around each hit.
        seconds, shares: of every question, in order.
    """

    contender: Contender
    size: int
    kind: str
    neighbours: int = 0
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    ids: list[list[str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The system's, and what is more than the others do."""
        return self.contender.name + (", with neighbours" if self.neighbours else "")

    @property
    def p50_ms(self) -> float:
        """Median."""
        return Latency.of_seconds(self.seconds).p50_ms


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run works with.

    Attributes:
        exact: the right answers, by size.
        contenders: ours first.
        seconds_max: of calls of one series, after which it ends early.
    """

    data: Data
    exact: dict[int, Exact]
    contenders: list[Contender]
    top_k: int
    seconds_max: float

    def alive(self) -> list[Contender]:
        """Those without a problem."""
        return [contender for contender in self.contenders if not contender.problem]

    def question(
        self, ask: Callable[..., Any], size: int, number: int, kind: str, neighbours: int = 0
    ) -> dict[str, Any]:
        """One question to a system; its seconds and ids."""
        answer: dict[str, Any] = ask(
            "question",
            user=f"user-{size}",
            number=number,
            kind=kind,
            top_k=self.top_k,
            neighbours=neighbours,
        )
        return answer

    def checked(self, contender: Contender, ask: Callable[..., Any], size: int) -> list[list[str]]:
        """Answers to the questions that are asked again after a restart."""
        numbers = self.data.plan.question_numbers(size, "checked")
        return [self.question(ask, size, number, "vector")["ids"] for number in numbers]


def load(run: Run, contender: Contender, directory: Path) -> None:
    """Fill a system's directory, and close it."""
    directory.mkdir()
    with SystemProcess(contender.module, directory, run.data) as process:
        contender.setup = process.open()
        loaded = process.ask("load", timeout_s=LOAD_SECONDS_MAX)
        contender.load_messages_per_s = loaded["messages"] / loaded["seconds"]
        for size in run.exact:
            contender.checked[size] = run.checked(contender, process.ask, size)
        process.ask("close")
    files = [path.stat() for path in directory.rglob("*") if path.is_file()]
    contender.disk_bytes = sum(file.st_blocks * DISK_BLOCK_BYTES for file in files)
    print(
        f"{contender.name}: {loaded['messages']} messages in {loaded['seconds']:.1f} s, "
        f"{contender.disk_bytes / MEGABYTE:.0f} MB on disk",
        flush=True,
    )


def restart(run: Run, contender: Contender, directory: Path) -> None:
    """Open it again, in a process that stays; its answers must be those it gave before."""
    contender.process = SystemProcess(contender.module, directory, run.data)
    contender.process.open()
    size = min(run.exact)
    first = run.data.plan.question_numbers(size, "warm up")[0]
    run.question(contender.ask, size, first, "text")
    contender.restart_s = time.perf_counter() - contender.process.started
    same: list[float] = []
    for size, before in contender.checked.items():
        for old, new in zip(before, run.checked(contender, contender.ask, size), strict=True):
            same.append(len(set(old) & set(new)) / max(1, len(old)))
    contender.same_after_restart = float(np.mean(same))


def ask_in_turns(run: Run, size: int, kind: str, rng: random.Random) -> list[Series]:
    """All systems, the same questions, one after the other."""
    plan = run.data.plan
    series = [Series(contender, size, kind) for contender in run.alive()]
    series += [
        Series(one.contender, size, kind, neighbours=1)
        for one in series
        if one.contender.module == OURS
    ]
    for number in plan.question_numbers(size, "warm up"):
        for one in series:
            with one.contender.measured():
                run.question(one.contender.ask, size, number, kind, one.neighbours)
    for turn in range(plan.questions):
        rng.shuffle(series)
        for one in series:
            # Ours are the answers of the digest: as many in every run.
            in_time = one.contender.module == OURS or sum(one.seconds) <= run.seconds_max
            if one.contender.problem or not in_time:
                continue
            # The sidecar remembers what it has embedded and, of large histories, what it has
            # scanned for: the same question with neighbours would be no new one.
            purpose = f"{kind} with neighbours" if one.neighbours else kind
            number = plan.question_numbers(size, purpose)[turn]
            with one.contender.measured():
                answer = run.question(one.contender.ask, size, number, kind, one.neighbours)
                one.seconds.append(answer["seconds"])
                one.ids.append(answer["ids"])
                one.shares.append(run.exact[size].share(number, answer["ids"]))
    return sorted(
        (one for one in series if one.seconds and not one.contender.problem),
        key=lambda one: (run.contenders.index(one.contender), one.neighbours),
    )


def index_in_turns(run: Run, rng: random.Random) -> list[dict[str, Any]]:
    """Rows of the table of turns."""
    seconds: dict[tuple[str, str], list[float]] = {}
    found: dict[tuple[str, str], list[bool]] = {}
    for turn in range(run.data.plan.turns):
        contenders = run.alive()
        rng.shuffle(contenders)
        for contender in contenders:
            kinds = ("text", "durable") if contender.module == OURS else ("text", "vector")
            for place, kind in enumerate(kinds):
                number = turn + place * run.data.plan.turns
                key = contender.name, kind
                if sum(seconds.get(key, [])) > run.seconds_max:
                    continue
                with contender.measured():
                    taken = contender.ask("turn", number=number, kind=kind)
                    seconds.setdefault(key, []).append(taken)
                    # What is embedded after the answer must not fall on the next one's turn.
                    wait = FOUND_SECONDS_MAX if kind == "durable" else 0.0
                    is_found = contender.ask("finds_turn", number=number, seconds_max=wait)
                    found.setdefault(key, []).append(is_found)
    rows: list[dict[str, Any]] = []
    for contender in run.alive():
        for kind in TURN_KINDS:
            key = contender.name, kind
            if key in seconds:
                latency = Latency.of_seconds(seconds[key])
                rows.append(
                    {
                        "system": contender.name,
                        "kind": kind,
                        "calls": latency.count,
                        "p50_ms": latency.p50_ms,
                        "p99_ms": latency.p99_ms,
                        "found_share": float(np.mean(found[key])),
                    }
                )
    return rows
