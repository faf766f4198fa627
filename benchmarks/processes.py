"""The processes that a benchmark measures: the sidecar and the echo server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROOT = Path(__file__).parents[1]
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 60
READY_POLL_S = 0.1
RECONNECT_MS = 20
"""As soon as the address is there, a client is; gRPC itself would come back after a second."""

_CHANNEL = (
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
)


@dataclass(frozen=True, slots=True)
class Started:
    """A sidecar that serves.

    Attributes:
        start_s: seconds from exec to SERVING.
    """

    address: str
    pid: int
    start_s: float


@contextmanager
def sidecar(directory: Path, *flags: str) -> Iterator[tuple[str, int]]:
    """A sidecar on a Unix socket with its data in `directory`; yields its address and pid."""
    with started(directory, "semanticrecall_server", *flags) as one:
        yield one.address, one.pid


@contextmanager
def started(directory: Path, module: str, *flags: str) -> Iterator[Started]:
    """A sidecar as `sidecar` makes it, run by a module that takes the flags of `serve`."""
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as short:
        # Not in `directory`: the path of a socket is 107 bytes at most.
        address = f"unix:{short}/recall.sock"
        arguments = ["--listen", address, "--data-dir", str(directory / "data"), *flags]
        begun = time.perf_counter()
        with _process(["-m", module, *arguments]) as process:
            with grpc.insecure_channel(address, options=_CHANNEL) as channel:
                _wait_serving(channel, process)
            yield Started(address, process.pid, time.perf_counter() - begun)


@contextmanager
def echo(directory: Path, answer_bytes: int) -> Iterator[str]:
    """An echo server on a Unix socket; yields its address."""
    address = f"unix:{directory}/echo.sock"
    with _process(["-m", "benchmarks.echo_server", address, str(answer_bytes)]):
        with grpc.insecure_channel(address, options=_CHANNEL) as channel:
            grpc.channel_ready_future(channel).result(START_SECONDS_MAX)
        yield address


def end_in_order_when_told() -> None:
    """SIGTERM then does as Ctrl-C: what it runs is stopped, what is temporary removed."""
    signal.signal(signal.SIGTERM, _end_in_order)


def _end_in_order(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: it is about to end
    raise SystemExit(128 + number)


def run_to_end(arguments: Sequence[str], seconds_max: float) -> int:
    """Run a benchmark; its exit status.

    Where the wait for it is broken off it is told to stop, and has time for that: it stops what it
    has started. It is in a process group of its own, so that Ctrl-C does not interrupt that.
    """
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(seconds_max)
    except BaseException:
        process.terminate()
        try:
            process.wait(2 * STOP_SECONDS_MAX)
        finally:
            with suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(process.pid, signal.SIGKILL)
        raise


@contextmanager
def _process(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        finally:
            process.kill()  # nothing where it has ended


def _wait_serving(channel: grpc.Channel, process: subprocess.Popen[bytes]) -> None:
    ready = grpc.channel_ready_future(channel)
    deadline = time.monotonic() + START_SECONDS_MAX
    while not _is_ready(ready):
        if process.poll() is not None:
            raise RuntimeError("the sidecar did not start; its own words are above")
        if time.monotonic() >= deadline:
            raise RuntimeError("the sidecar does not listen")
    health: Any = health_pb2_grpc.HealthStub(channel)  # its annotations are those of grpc.aio
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=START_SECONDS_MAX)
    with suppress(grpc.RpcError):  # it ended; why is for itself to say
        for answer in watch:
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                watch.cancel()
                return
    raise RuntimeError("the sidecar did not begin to serve; its own words are above")


def _is_ready(ready: grpc.Future[None]) -> bool:
    try:
        ready.result(READY_POLL_S)
    except grpc.FutureTimeoutError:
        return False
    return True
