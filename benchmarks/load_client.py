"""Keeps so many calls in flight on one connection, from a process of its own.

Usage: python -m benchmarks.load_client ADDRESS METHOD KIND IN_FLIGHT REQUESTS ANSWERS

It costs as little as a Python client can: grpc.aio, bytes in and out, nothing decoded. KIND is
"unary" or "stream" (one stream, answers in whatever order they come). REQUESTS and ANSWERS are
files of frames: a length of 4 bytes, little endian, and as many bytes. Prints one JSON object:
`seconds`, from the first request sent to the last answer, and `call_seconds`, of every unary call.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.processes import ROOT

LENGTH_BYTES = 4
SECONDS_MAX = 3600
CONNECT_SECONDS_MAX = 30
_CHANNEL = (("grpc.max_receive_message_length", -1),)


@dataclass(frozen=True, slots=True)
class Load:
    """How requests are sent.

    Attributes:
        method: full gRPC name.
        kind: "unary" or "stream".
        in_flight: calls at once.
    """

    method: str
    kind: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a load. `call_seconds` is empty for streams."""

    seconds: float
    answers: list[bytes]
    call_seconds: list[float]


def run_load(address: str, load: Load, requests: Sequence[bytes]) -> Answered:
    """Send all requests from another process.

    Raises:
        subprocess.CalledProcessError: a call failed.
    """
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name:
        sent, received = Path(name, "requests"), Path(name, "answers")
        _write(sent, requests)
        arguments = [address, load.method, load.kind, str(load.in_flight), str(sent), str(received)]
        printed = subprocess.run(
            [sys.executable, "-m", "benchmarks.load_client", *arguments],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=SECONDS_MAX,
        )
        timings = json.loads(printed.stdout)
        return Answered(timings["seconds"], _read(received), timings["call_seconds"])


def _write(path: Path, frames: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        for frame in frames:
            file.write(len(frame).to_bytes(LENGTH_BYTES, "little"))
            file.write(frame)


def _read(path: Path) -> list[bytes]:
    data, at, frames = path.read_bytes(), 0, []
    while at < len(data):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        frames.append(data[start:at])
    return frames


async def _unary(
    channel: grpc.aio.Channel, load: Load, requests: list[bytes]
) -> tuple[list[bytes], list[float]]:
    call: Callable[..., Any] = channel.unary_unary(load.method)
    answers = [b""] * len(requests)
    seconds = [0.0] * len(requests)
    waiting = iter(range(len(requests)))

    async def caller() -> None:
        for number in waiting:
            started = time.perf_counter()
            answers[number] = await call(requests[number])
            seconds[number] = time.perf_counter() - started

    async with asyncio.TaskGroup() as callers:
        for _ in range(load.in_flight):
            callers.create_task(caller())
    return answers, seconds


async def _stream(channel: grpc.aio.Channel, load: Load, requests: list[bytes]) -> list[bytes]:
    call: Callable[..., Any] = channel.stream_stream(load.method)
    stream = call()
    for request in requests[: load.in_flight]:
        await stream.write(request)
    answers: list[bytes] = []
    for number in range(len(requests)):
        answer = await stream.read()
        if not isinstance(answer, bytes):
            raise RuntimeError("the stream ended")
        answers.append(answer)
        following = number + load.in_flight
        if following < len(requests):
            await stream.write(requests[following])
    await stream.done_writing()
    return answers


async def _send(address: str, load: Load, sent: Path, received: Path) -> None:
    requests = _read(sent)
    seconds: list[float] = []
    async with grpc.aio.insecure_channel(address, options=_CHANNEL) as channel:
        await asyncio.wait_for(channel.channel_ready(), CONNECT_SECONDS_MAX)
        started = time.perf_counter()
        if load.kind == "stream":
            answers = await _stream(channel, load, requests)
        else:
            answers, seconds = await _unary(channel, load, requests)
        elapsed = time.perf_counter() - started
    _write(received, answers)
    sys.stdout.write(json.dumps({"seconds": elapsed, "call_seconds": seconds}))


if __name__ == "__main__":
    _address, _method, _kind, _in_flight, _sent, _received = sys.argv[1:]
    _load = Load(_method, _kind, int(_in_flight))
    asyncio.run(_send(_address, _load, Path(_sent), Path(_received)))
