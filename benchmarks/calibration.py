"""What the machine is worth in the minute of a measurement: fixed work with no code of ours in it.

A figure is compared with the parts that cost it most, measured between its own calls, so that a
minute in which the machine is slow slows both. Parts, each the seconds of one:

  embed       one text through tokenizers and onnxruntime (`RawEmbed`)
  scan        the 20 nearest of the resource's number of int8 codes, one FAISS call (`RawScan`)
  echo        one call of a gRPC server that answers with the bytes of a usual recall
  fsync       4 kB appended to a file and synced with it
  embed all   one of many texts embedded on all cores at once
  echo many   one of many echoes with `IN_FLIGHT` calls under way
  process     a new interpreter that imports the libraries and loads the model's graph

What the model's graph and the answer's bytes are comes from the product; both are data.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks import echo_server, processes
from benchmarks.measure import timed
from benchmarks.raw_parts import RawEmbed, RawScan
from semanticrecall_core.embedding.provision import find_model
from semanticrecall_core.embedding.threads import worker_threads

EMBED, SCAN, ECHO, FSYNC = "embed", "scan", "echo", "fsync"
EMBED_ALL, ECHO_MANY, PROCESS = "embed all", "echo many", "process"
PARTS = (EMBED, SCAN, ECHO, FSYNC, EMBED_ALL, ECHO_MANY, PROCESS)

SYNCED_BYTES = 4096
IN_FLIGHT = 8
DEADLINE_S = 60.0
PROCESS_SECONDS_MAX = 120
_LOAD_LIBRARIES = (
    "import sys, apsw, faiss, grpc.aio, numpy, onnxruntime, orjson, pydantic, tokenizers;"
    " onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
)
T = TypeVar("T")


class Times:
    """Seconds of every call, by figure or part."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        """One more."""
        self._seconds.setdefault(name, []).append(seconds)

    def time(self, name: str, call: Callable[[], T]) -> T:
        """Time a call; returns what it gave."""
        seconds, answer = timed(call)
        self.add(name, seconds)
        return answer

    def medians(self) -> dict[str, float]:
        """Seconds, by name."""
        return {name: median(seconds) for name, seconds in self._seconds.items()}

    def ratio(self, name: str, parts: Sequence[str]) -> float:
        """A figure / the sum of its parts: the median over calls and the parts beside them.

        Where a part was not called as often as the figure, the medians are divided.
        """
        calls = [self._seconds[one] for one in (name, *parts)]
        if len({len(one) for one in calls}) > 1:
            calls = [[median(one)] for one in calls]
        turns: list[tuple[float, ...]] = list(zip(*calls, strict=True))
        return median(turn[0] / math.fsum(turn[1:]) for turn in turns)


@dataclass(frozen=True, slots=True)
class Libraries:
    """What is loaded once and used in every round."""

    embed: RawEmbed
    scan: RawScan
    graph: Path

    @classmethod
    def load(cls, rows: int, *, seed: int) -> Libraries:
        """For a scan of so many rows."""
        return cls(RawEmbed(), RawScan(rows, seed=seed), find_model().onnx_path)


class Calibration:
    """The parts; each call adds its time."""

    def __init__(self, libraries: Libraries, times: Times, echo: Any, file: Path) -> None:
        self._libraries = libraries
        self._times = times
        self._echo = echo
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._block = b"\xa5" * SYNCED_BYTES
        self._pool = ThreadPoolExecutor(worker_threads())

    def embed(self, text: str) -> NDArray[np.float32]:
        """A vector for `scan`."""
        return self._times.time(EMBED, partial(self._libraries.embed, text))

    def scan(self, vector: NDArray[np.float32]) -> None:
        """The nearest of the codes."""
        self._times.time(SCAN, partial(self._libraries.scan, vector))

    def echo(self, request: bytes) -> None:
        """One echo."""
        self._times.time(ECHO, partial(self._echo, request, timeout=DEADLINE_S))

    def fsync(self) -> None:
        """Append and sync."""
        self._times.time(FSYNC, self._append)

    def embed_all(self, texts: Sequence[str]) -> None:
        """All texts, on all cores."""
        seconds, _ = timed(lambda: list(self._pool.map(self._libraries.embed, texts)))
        self._times.add(EMBED_ALL, seconds / len(texts))

    def echo_many(self, requests: Sequence[bytes]) -> None:
        """All requests, `IN_FLIGHT` at once."""
        seconds, _ = timed(lambda: in_flight(self._echo, requests))
        self._times.add(ECHO_MANY, seconds / len(requests))

    def close(self) -> None:
        """End threads, close the file."""
        self._pool.shutdown()
        os.close(self._descriptor)

    def _append(self) -> None:
        os.write(self._descriptor, self._block)
        os.fdatasync(self._descriptor)


def in_flight(method: Any, requests: Sequence[bytes]) -> list[bytes]:
    """Answers to all requests in their order, with `IN_FLIGHT` calls under way from one thread."""
    waiting: deque[Any] = deque()
    answers: list[bytes] = []
    for request in requests:
        if len(waiting) == IN_FLIGHT:
            answers.append(waiting.popleft().result())
        waiting.append(method.future(request, timeout=DEADLINE_S))
    answers += [call.result() for call in waiting]
    return answers


def start_process(libraries: Libraries, times: Times) -> None:
    """The part `process`."""
    command = [sys.executable, "-c", _LOAD_LIBRARIES, str(libraries.graph)]
    run = partial(
        subprocess.run,
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=PROCESS_SECONDS_MAX,
        env={**os.environ, "ORT_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"},
    )
    times.time(PROCESS, run)


@contextmanager
def calibrating(
    libraries: Libraries, times: Times, directory: Path, answer_bytes: int
) -> Iterator[Calibration]:
    """The parts, with an echo server of their own and a file in `directory`."""
    with ExitStack() as stack:
        address = stack.enter_context(processes.echo(directory, answer_bytes))
        channel = stack.enter_context(grpc.insecure_channel(address))
        echo: Any = channel.unary_unary(echo_server.METHOD)
        calibration = Calibration(libraries, times, echo, directory / "calibration")
        stack.callback(calibration.close)
        yield calibration
