"""Chroma as a server: what its documentation prefers to the embedded client outside development.

The collections, their parameters and the calls are those of `chroma`; its HTTP client makes them,
while loading too, which takes about as long as embedded.

The server is the one that `chroma run` starts, without the Python modules which that command
imports and the server does not use: they would count as its memory and in every start. It logs
warnings, as our sidecar does here: by default it writes 3 kB for every call. It sends no telemetry
unless a configuration asks for it. It is in the process group of the process that asks, and ends
with it.

A directory holds `data`, the server's files, and `server.log`, what it prints.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import chromadb

from benchmarks.competitors.chroma import Chroma, settings
from benchmarks.competitors.port import InOwnProcess, Setup

HOST = "127.0.0.1"
DATA, LOG = "data", "server.log"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
HEARTBEAT_SECONDS_MAX = 5.0
HEARTBEAT_POLL_S = 0.02
LOG_CHARACTERS_MAX = 200

_CHROMA = "import sys, chromadb_rust_bindings; chromadb_rust_bindings.cli(sys.argv)"


@dataclass(frozen=True, slots=True)
class _Serving:
    port: int
    process_id: int


class ChromaServer(Chroma):
    """A server with its files in a directory, and a client of it."""

    def __init__(self, directory: Path) -> None:
        with ExitStack() as opening:
            self._serving = opening.enter_context(_server(directory))
            client = chromadb.HttpClient(HOST, self._serving.port, settings=settings())
            super().__init__(client)
            self._open = opening.pop_all()

    @property
    def setup(self) -> Setup:
        """How it was set up."""
        embedded = super().setup
        return replace(
            embedded,
            name="Chroma, server",
            index=f"{embedded.index}; `chroma run` on the loopback, asked over HTTP",
            advice=f"https://docs.trychroma.com/guides/deploy/client-server-mode, "
            f"{embedded.advice}",
        )

    @property
    def process_id(self) -> int:
        """Of the server."""
        return self._serving.process_id

    def close(self) -> None:
        """Stop the client and the server."""
        with self._open:
            super().close()


@contextmanager
def _server(directory: Path) -> Generator[_Serving]:
    """A server that answers, on a free port of this machine.

    Raises:
        RuntimeError: it ended, or did not answer in time.
    """
    with closing(socket.create_server((HOST, 0))) as free:
        port: int = free.getsockname()[1]
    arguments = ["run", "--path", str(directory / DATA), "--host", HOST, "--port", str(port)]
    with (directory / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHROMA, *arguments],
            env={**os.environ, "RUST_LOG": "warn"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_for_heartbeat(port, process, directory / LOG)
        yield _Serving(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        finally:
            process.kill()  # nothing where it has ended


def _wait_for_heartbeat(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not _beats(port):
        if process.poll() is not None or time.monotonic() >= deadline:
            said = log.read_text(errors="replace")[-LOG_CHARACTERS_MAX:].strip()
            raise RuntimeError(f"the server does not answer; it said: {said}")
        time.sleep(HEARTBEAT_POLL_S)


def _beats(port: int) -> bool:
    asking = http.client.HTTPConnection(HOST, port, timeout=HEARTBEAT_SECONDS_MAX)
    with closing(asking):
        try:
            asking.request("GET", "/api/v2/heartbeat")
            return asking.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def open_system(directory: Path, dimensions: int) -> InOwnProcess:
    """Open what is in the directory, or begin anew; a collection learns `dimensions` itself.

    Raises:
        RuntimeError: the server does not start.
    """
    return ChromaServer(directory)
