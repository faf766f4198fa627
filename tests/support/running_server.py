"""A running server for tests: in this process on a thread, or as a process of its own.

with running(tmp_path, parts_of(engine), top_k_max=5) as server:
    server.recall.Recall(...)
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2_grpc

from semanticrecall.v1 import types_pb2
from semanticrecall.v1.admin_pb2_grpc import AdminServiceStub
from semanticrecall.v1.recall_pb2_grpc import RecallServiceStub
from semanticrecall.v1.vectors_pb2_grpc import VectorServiceStub
from semanticrecall_server.config import Settings
from semanticrecall_server.lifecycle import Parts, Sidecar, run_sidecar
from semanticrecall_server.logs import configure_logs

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 20.0
ERROR_KEY = "semanticrecall-error-bin"


class NoClaim:
    """Stands for a data directory where the engine keeps nothing."""

    closed = False

    def close(self) -> None:
        self.closed = True


def parts_of(engine: Any) -> Parts:
    """Parts that give this engine."""
    return Parts(lambda settings: NoClaim(), lambda settings, claim: engine)


def error_detail(error: grpc.RpcError) -> types_pb2.ErrorDetail:
    """The ErrorDetail that came with a failed call."""
    trailers = dict(error.trailing_metadata() or ())  # type: ignore[attr-defined]
    return types_pb2.ErrorDetail.FromString(trailers[ERROR_KEY])


class Stubs:
    """A channel to a server with all its stubs."""

    def __init__(self, target: str, *, token: str | None = None) -> None:
        self.channel = grpc.insecure_channel(target)
        channel = self.channel
        if token is not None:
            channel = grpc.intercept_channel(channel, _Bearer(token))
        self.recall: Any = RecallServiceStub(channel)
        self.admin: Any = AdminServiceStub(channel)
        self.vectors: Any = VectorServiceStub(channel)
        self.health: Any = health_pb2_grpc.HealthStub(channel)

    def raw(self, service: str, method: str, request: bytes, *, timeout: float = 20.0) -> bytes:
        """Send bytes as they are to a unary method."""
        call = self.channel.unary_unary(f"/semanticrecall.v1.{service}/{method}")
        answer: bytes = call(request, timeout=timeout)
        return answer

    def close(self) -> None:
        self.channel.close()


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    def __init__(self, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)

    def _with_token(self, details: Any) -> Any:
        return details._replace(metadata=self._metadata)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._with_token(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._with_token(details), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(self._with_token(details), requests)


class InProcessServer(Stubs):
    """A server on a thread of this process; its log lines are kept in `log_lines`."""

    def __init__(self, settings: Settings, parts: Parts, recall_threads: int) -> None:
        self.settings = settings
        self._parts = parts
        self._recall_threads = recall_threads
        self._log = io.StringIO()
        self._logged = threading.Condition()
        self._events: set[str] = set()
        self._listening = threading.Event()
        self._serving = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="server")
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._hurry: asyncio.Event
        self.sidecar: Sidecar

    def start(self, *, wait: bool = True) -> None:
        """Begin; with `wait`, return when it serves."""
        self._thread.start()
        if not self._listening.wait(START_TIMEOUT_S):
            raise TimeoutError("the server did not begin to listen")
        self._raise_failure()
        super().__init__(self.sidecar.addresses[0].target)
        if wait:
            self.wait_serving()

    def wait_serving(self) -> None:
        """Wait until calls are answered."""
        if not self._serving.wait(START_TIMEOUT_S):
            raise TimeoutError("the server did not begin to serve")
        self._raise_failure()

    def wait_for_log(self, event: str) -> None:
        """Wait until this event was logged."""
        with self._logged:
            assert self._logged.wait_for(lambda: event in self._events, START_TIMEOUT_S), event

    def in_flight(self, lane: str) -> int:
        """Requests that a lane has queued or works on."""
        return self.reading(f'in_flight{{lane="{lane}"}}')

    def reading(self, name: str) -> int:
        """What a metric shows now."""
        for line in self.sidecar.metrics.text().decode().splitlines():
            if line.startswith(f"semanticrecall_{name} "):
                return int(float(line.split()[-1]))
        raise AssertionError(f"no metric {name}")

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for the server's own counts to come to something."""
        give_up = time.monotonic() + CALL_TIMEOUT_S
        while not holds():
            assert time.monotonic() < give_up, "it did not come to that"
            threading.Event().wait(0.005)

    def begin_stop(self) -> None:
        """What SIGTERM does."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has already stopped
            self._loop.call_soon_threadsafe(self._stop.set)

    def hurry(self) -> None:
        """What a second SIGTERM does."""
        self._loop.call_soon_threadsafe(self._hurry.set)

    def wait_stopped(self) -> None:
        """Wait for the end."""
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), "the server did not stop"
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Stop and wait."""
        if self._thread.is_alive():
            self.begin_stop()
        self.wait_stopped()
        self.close()

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    @property
    def log_text(self) -> str:
        """The log so far, as written."""
        return self._log.getvalue()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _main(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._failure = error
        finally:
            self._listening.set()
            self._serving.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        log = _Announcing(configure_logs("debug", "json", self._log), self)
        self.sidecar = Sidecar(self.settings, self._parts, log, self._recall_threads)
        grace_s = self.settings.drain_grace_ms / 1000
        await run_sidecar(self.sidecar, grace_s, self._stop, self._hurry)

    def announce(self, event: str) -> None:
        """Called for every log event."""
        with self._logged:
            self._events.add(event)
            self._logged.notify_all()
        if event == "listening":
            self._listening.set()
        elif event == "serving":
            self._serving.set()


class _Announcing:
    """A logger that tells the test which step was reached."""

    def __init__(self, log: Any, server: InProcessServer) -> None:
        self._log = log
        self._server = server

    def debug(self, event: str, **fields: Any) -> None:
        self._log.debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log.info(event, **fields)
        self._server.announce(event)

    def warning(self, event: str, **fields: Any) -> None:
        self._log.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log.error(event, **fields)


@contextlib.contextmanager
def running(
    directory: Path, parts: Parts, *, recall_threads: int = 2, **settings: Any
) -> Iterator[InProcessServer]:
    """A server on a Unix socket in `directory`, in this process."""
    values = {"listen": (f"unix:{directory}/s.sock",), "data_dir": directory / "data", **settings}
    server = InProcessServer(Settings(**values), parts, recall_threads)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class ServerProcess:
    """A server as a process of its own, with its log."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: dict[str, str] | None = None,
        *,
        prefix: Sequence[str] = (),
    ) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SEMANTICRECALL_")}
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "semanticrecall_server", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**kept, **(environment or {})},
        )
        self.lines: list[str] = []
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=STOP_TIMEOUT_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def wait_for(self, event: str, timeout: float = 60.0) -> dict[str, Any]:
        """The first log line of an event."""
        until = time.monotonic() + timeout
        for line in self._lines(until):
            if line.startswith("{"):
                entry: dict[str, Any] = json.loads(line)
                if entry.get("event") == event:
                    return entry
        raise AssertionError(f"no {event} in:\n" + "\n".join(self.lines))

    def wait(self, timeout: float = STOP_TIMEOUT_S) -> tuple[int, str]:
        """Exit status and everything written to stderr."""
        _, rest = self._process.communicate(timeout=timeout)
        text = "\n".join(self.lines) + "\n" + (self._rest + rest).decode()
        return self._process.returncode, text

    def _lines(self, until: float) -> Iterator[str]:
        stream = self._process.stderr
        assert stream is not None
        while time.monotonic() < until:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                self.lines.append(line.decode())
                yield self.lines[-1]
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                return
            self._rest += chunk
