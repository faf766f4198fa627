"""A system of `side_by_side` in a process of its own, with its own imports, threads and memory.

`SystemProcess` runs it. It takes requests, one at a time, as lines of JSON on its standard input;
each is answered by a line on its standard output. What libraries print goes to the standard error.
Calls are timed in here, so that what the pipe costs is in no figure.

  request   {"do": the name of a call of _Calls, **its arguments}
  answer    {"answer": what it returned}, or {"error": text, "missing": whether a package is not
            installed}

The process ends when its input ends. A question to a system that does not embed texts is embedded
here, within the time that is measured; so are the texts of a turn, on as many cores as the sidecar
embeds them.

It is the first of a process group of its own: Ctrl-C reaches the one who asks alone, who ends it in
order, and what it started (our sidecar, a server) ends with it, even where it was killed.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

import numpy as np

from benchmarks.competitors.port import EmbedsTexts, Found, InOwnProcess, Rows, System
from benchmarks.measure import Resident, timed
from benchmarks.side_by_side_data import QUESTIONS, Data, Embed
from semanticrecall_core.embedding.threads import worker_threads

ROOT = Path(__file__).parents[1]
LOAD_SECONDS_MAX = 1_800.0
CALL_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
ERROR_CHARACTERS_MAX = 300
OUR_PACKAGES = ("benchmarks", "semanticrecall", "semanticrecall_core", "semanticrecall_server")
THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Not handed on: our engine sets it for itself, and every other library keeps its own default."""


class SystemFailedError(Exception):
    """A system did not do what it was asked.

    Attributes:
        missing: a package that it needs is not installed.
    """

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


class SystemProcess:
    """The process of one system, as the one who asks it sees it.

    Args:
        module: of `benchmarks.competitors`.
        directory: of the system's files; it must exist.
        data: what it is given.
    """

    def __init__(self, module: str, directory: Path, data: Data) -> None:
        self.started = time.perf_counter()
        environment = {k: v for k, v in os.environ.items() if k != THREADS_VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.system_process"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._opening: dict[str, Any] = {
            "module": module,
            "directory": str(directory),
            "data": data.as_json(),
        }

    def __enter__(self) -> Self:
        """The process itself; nothing is opened yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.end()

    def open(self) -> dict[str, Any]:
        """Open the system; returns its `Setup` as a dictionary.

        Raises:
            SystemFailedError: it does not open.
        """
        setup: dict[str, Any] = self.ask("open", **self._opening)
        return setup

    def ask(self, do: str, *, timeout_s: float = CALL_SECONDS_MAX, **arguments: Any) -> Any:
        """One call of _Calls.

        Raises:
            SystemFailedError: it failed, or took longer than `timeout_s`, or the process is gone.
        """
        sent, answers = self._process.stdin, self._process.stdout
        assert sent is not None
        assert answers is not None
        if sent.closed:
            raise SystemFailedError("its process was ended")
        try:
            sent.write(json.dumps({"do": do, **arguments}) + "\n")
            sent.flush()
        except BrokenPipeError:
            raise SystemFailedError("its process ended") from None
        if not select.select([answers], [], [], timeout_s)[0]:
            raise SystemFailedError(f"`{do}` took longer than {timeout_s:g} seconds")
        line = answers.readline()
        if not line.endswith("\n"):  # none, or half of one
            raise SystemFailedError(f"its process ended in `{do}`")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemFailedError(answer["error"], missing=answer["missing"])
        return answer["answer"]

    def end(self) -> None:
        """Close the system and end its process, whatever state it is in."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError):  # it has ended by itself
                self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS_MAX)
            finally:
                self._process.kill()  # nothing where it has ended
        finally:
            with suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.close()


class _Calls:
    """What can be asked. Every time is that of the system's own call, in seconds."""

    def __init__(self) -> None:
        self._system: System | None = None
        self._data: Data | None = None
        self._embed: Embed | None = None
        self._threads = ThreadPoolExecutor(worker_threads())
        self._questions: list[str] = []

    def open(self, *, module: str, directory: str, data: dict[str, Any]) -> dict[str, Any]:
        """Import a system and open it; returns its setup."""
        self._data = Data.of_json(data)
        self._questions = self._data.plan.question_texts()
        offers = importlib.import_module(f"benchmarks.competitors.{module}")
        system: System = offers.open_system(Path(directory), self._data.dimensions)
        self._system = system
        return asdict(system.setup)

    def load(self) -> dict[str, Any]:
        """Add all messages, a batch at a time, and let the system do what it does then."""
        system, data = self._opened()
        seconds, messages = 0.0, 0
        for rows in data.batches():
            took, _ = timed(partial(system.add, rows))
            seconds += took
            messages += len(rows.ids)
        took, _ = timed(system.loaded)
        return {"seconds": seconds + took, "messages": messages}

    def question(
        self, *, user: str, number: int, kind: str, top_k: int, neighbours: int = 0
    ) -> dict[str, Any]:
        """One recall; `kind` is "text" or "vector"."""
        system, data = self._opened()
        question = (
            self._questions[number] if kind == "text" else np.array(data.vectors(QUESTIONS)[number])
        )

        def recall() -> list[Found]:
            if isinstance(system, EmbedsTexts):
                return system.recall(user, question, top_k, neighbours=neighbours)
            vector = self._model()(question) if isinstance(question, str) else question
            return system.search(user, vector, top_k)

        seconds, found = timed(recall)
        return {"seconds": seconds, "ids": [one.id for one in found]}

    def turn(self, *, number: int, kind: str) -> float:
        """Keep a turn of two messages. `kind` is "text", "vector" or "durable".

        "text" embeds it and ends when it is found; "durable" ends when it is on disk, and
        "vector" brings the vectors.
        """
        system, data = self._opened()
        rows = data.turn(number)

        def add() -> None:
            if isinstance(system, EmbedsTexts):
                texts = dict(zip(rows.ids, rows.texts, strict=True))
                found = kind == "text"
                system.add_texts(rows.resource_id, rows.thread_ids[0], texts, found=found)
            else:
                system.add(self._with_own_vectors(rows) if kind == "text" else rows)

        return timed(add)[0]

    def finds_turn(self, *, number: int, seconds_max: float) -> bool:
        """Whether what was answered in a turn is the nearest to its own vector.

        Args:
            seconds_max: look again for so long where it is not; at 0 it is looked for once.
        """
        system, data = self._opened()
        rows = data.turn(number)
        deadline = time.monotonic() + seconds_max
        while True:
            found = system.search(rows.resource_id, rows.vectors[1], 1)
            if [one.id for one in found] == [rows.ids[1]]:
                return True
            if time.monotonic() >= deadline:
                return False

    def memory(self) -> dict[str, Any]:
        """The fields of `Resident`, now, of the process in which the system works.

        `model_in_it` is whether the model works in that process, too.
        """
        system, _ = self._opened()
        process_id, model_in_it = os.getpid(), True
        if isinstance(system, InOwnProcess):
            process_id, model_in_it = system.process_id, isinstance(system, EmbedsTexts)
        return {**asdict(Resident.of(process_id)), "model_in_it": model_in_it}

    def close(self) -> float:
        """Close the system, if it is open; returns how long that took."""
        system, self._system = self._system, None
        return timed(system.close)[0] if system is not None else 0.0

    def _opened(self) -> tuple[System, Data]:
        if self._system is None or self._data is None:
            raise RuntimeError("no system is open")
        return self._system, self._data

    def _with_own_vectors(self, rows: Rows) -> Rows:
        return replace(rows, vectors=np.stack(list(self._threads.map(self._model(), rows.texts))))

    def _model(self) -> Embed:
        if self._embed is None:
            # Not before: it sets OMP_NUM_THREADS, which the system's libraries must not see.
            from benchmarks.raw_parts import RawEmbed

            self._embed = RawEmbed()
        return self._embed


def _answer(calls: _Calls, line: str) -> dict[str, Any]:
    request = json.loads(line)
    try:
        return {"answer": getattr(calls, request.pop("do"))(**request)}
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        missing = name is not None and name.partition(".")[0] not in OUR_PACKAGES
        reason = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
        return {"error": reason, "missing": missing}


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _own_standard_output() -> TextIO:
    """The pipe to the one who asks; whatever else is printed goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def main() -> None:
    """Answer until there are no more requests."""
    signal.signal(signal.SIGTERM, _terminated)
    answers = _own_standard_output()
    calls = _Calls()
    try:
        for line in sys.stdin:
            print(json.dumps(_answer(calls, line)), file=answers, flush=True)
    finally:
        calls.close()


if __name__ == "__main__":
    main()
