"""How a load goes while it goes, on stderr: in place on a terminal, else a line now and then.

Rates, times and errors are those of the last second that all processes have told of. Nothing of a
text, a query, a resource or a token is shown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .adding_up import second_of
from .measured import WorkerSecond
from .result import Second
from .run import Observer

PLAIN_LINE_SECONDS = 5.0
REFRESHES_PER_SECOND = 4
BAR_CELLS = 30
CODES_SHOWN_MAX = 4


class LatestSecond:
    """The last second of which all processes have told, added up."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._parts: dict[int, dict[int, WorkerSecond]] = {}
        self.value: Second | None = None

    def add(self, worker: int, part: WorkerSecond) -> bool:
        """Take what a process tells; whether there is a new last second now."""
        parts = self._parts.setdefault(part.second, {})
        parts[worker] = part
        if len(parts) < self._processes or (self.value and part.second <= self.value.second):
            return False
        self.value = second_of(part.second, list(parts.values()))
        # Whoever has not told of an earlier second has nothing to tell of it.
        self._parts = {n: kept for n, kept in self._parts.items() if n > part.second}
        return True


class LiveObserver(Observer):
    """Shows a load on a console. A context manager: it draws inside, and leaves nothing behind.

    Where the console can no more be written (a pipe that nobody reads, a closed terminal), it is
    silent from then on: the load goes on, and what it wrote is forgotten at its end.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._name = ""
        self._seconds = 0.0
        self._processes = 0
        self._began = self._said = time.monotonic()
        self._latest = LatestSecond(0)
        self._errors: Counter[str] = Counter()
        self._done, self._total = 0, 0
        self._is_silent = False
        self._live = Live(
            console=console,
            get_renderable=self.drawn,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            with self._silent_after_failure():
                self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._silent_after_failure():
            self._live.stop()

    def phase(self, name: str, *, seconds: float = 0.0, processes: int = 0) -> None:
        """Another part of the load begins."""
        self._name, self._seconds, self._processes = name, seconds, processes
        self._began = time.monotonic()
        self._latest = LatestSecond(processes)
        self._errors.clear()
        self._done, self._total = 0, 0
        self._say(self._headline())

    def progress(self, done: int, total: int) -> None:
        """How far a phase without seconds is."""
        self._done, self._total = done, total
        self._say_now_and_then()

    def second(self, worker: int, second: WorkerSecond) -> None:
        """What a process measured in a second."""
        self._errors.update(second.errors)
        if self._latest.add(worker, second):
            self._say_now_and_then()

    def note(self, text: str) -> None:
        """Something worth to know: a line that stays."""
        self._print(text)

    def _print(self, line: str) -> None:
        if self._is_silent:
            return
        with self._silent_after_failure():
            if self._console.is_terminal:
                self._console.print(line, markup=False, soft_wrap=True)
            else:
                # Not by `print`: where a pipe is broken, it gives up stdout too, and the program.
                self._console.file.write(f"{line}\n")
                self._console.file.flush()

    @contextmanager
    def _silent_after_failure(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError:
            self._is_silent = True

    # --- lines, where nothing can be drawn --------------------------------------------------------

    def _say_now_and_then(self) -> None:
        if time.monotonic() - self._said >= PLAIN_LINE_SECONDS:
            self._say(", ".join([self._headline(), *self._facts()]))

    def _say(self, line: str) -> None:
        if not self._console.is_terminal:
            self._said = time.monotonic()
            self._print(line)

    # --- and in place, where it can ---------------------------------------------------------------

    def drawn(self) -> RenderableType:
        """How it goes now."""
        if not self._name:
            return Text("connecting")
        head = Table.grid(padding=(0, 2, 0, 0))
        total = self._seconds or self._total
        done = self._elapsed() if self._seconds else self._done
        bar = ProgressBar(total=total or None, completed=done, width=BAR_CELLS, pulse=not total)
        head.add_row(Text(self._headline(), style="bold"), bar)
        return Group(head, *(Text(fact, overflow="ellipsis") for fact in self._facts()))

    def _headline(self) -> str:
        if self._seconds:
            return f"{self._name}: {min(self._elapsed(), self._seconds):.0f} of {self._seconds:g} s"
        if self._total:
            rate = self._done / max(self._elapsed(), 1e-3)
            return f"{self._name}: {self._done:,} of {self._total:,} messages, {rate:,.0f} a second"
        return f"{self._name}: {self._done:,} resources" if self._done else self._name

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _facts(self) -> list[str]:
        facts: list[str] = []
        second = self._latest.value
        if second is not None:
            facts += second_told(second)
        if self._errors:
            listed = self._errors.most_common(CODES_SHOWN_MAX)
            facts.append("failed " + ", ".join(f"{code} {count:,}" for code, count in listed))
        return facts


def second_told(second: Second) -> list[str]:
    """A second in words: rates, calls under way, times by operation."""
    facts = [
        f"{second.started_per_s:,.0f} calls/s started, {second.finished_per_s:,.0f} ended, "
        f"{second.in_flight:,} under way"
    ]
    return facts + _times_told(second.p50_ms, second.p99_ms)


def _times_told(p50_ms: Mapping[str, float], p99_ms: Mapping[str, float]) -> list[str]:
    return [f"{name} p50 {p50_ms[name]:.2f} ms p99 {p99_ms[name]:.2f} ms" for name in p50_ms]
