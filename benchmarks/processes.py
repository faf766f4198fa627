"""The processes that a benchmark measures: the sidecar and the echo server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

START_SECONDS_MAX = 120


@contextmanager
def sidecar(directory: Path, *flags: str) -> Iterator[tuple[str, int]]:
    """A sidecar on a Unix socket with its data in `directory`; yields its address and pid."""
    address = f"unix:{directory}/recall.sock"
    arguments = ["--listen", address, "--data-dir", str(directory / "data"), *flags]
    with _process(["-m", "semanticrecall_server", *arguments]) as pid:
        with grpc.insecure_channel(address) as channel:
            _wait_serving(channel)
        yield address, pid


@contextmanager
def echo(directory: Path, answer_bytes: int) -> Iterator[str]:
    """An echo server on a Unix socket; yields its address."""
    address = f"unix:{directory}/echo.sock"
    with _process(["-m", "benchmarks.echo_server", address, str(answer_bytes)]):
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(START_SECONDS_MAX)
        yield address


@contextmanager
def _process(arguments: Sequence[str]) -> Iterator[int]:
    root = Path(__file__).parents[1]
    process = subprocess.Popen([sys.executable, *arguments], cwd=root)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def _wait_serving(channel: grpc.Channel) -> None:
    grpc.channel_ready_future(channel).result(START_SECONDS_MAX)
    watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(), timeout=START_SECONDS_MAX
    )
    for answer in watch:
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            watch.cancel()
            return
    raise RuntimeError("the sidecar did not begin to serve")
