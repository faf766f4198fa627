"""A real sidecar process for fault tests, quickly started and killed.

    with FaultSidecar(tmp_path) as sidecar:
        sidecar.stubs.recall.Index(...)
        sidecar.kill()
        sidecar.start()

The process is forked from one that has imported everything (0.2 s until it serves); with `prefix`
or `environment` it is a program of its own (1.5 s), for what must be there from its first
instruction: strace, unshare, LD_PRELOAD. The embedder is `FakeEmbedder` in both.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

from support.fault_forking import forking, with_tests
from support.fault_serving import Prepare, serve_forked
from support.running_server import Stubs

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class FaultSidecar:
    """A sidecar over `home/data`, on the socket `home/s`.

    Attributes:
        stubs: of the process that runs now.
        log: of all its processes.
    """

    def __init__(
        self,
        home: Path,
        *flags: str,
        prepare: Prepare | None = None,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        socket: Path | None = None,
    ) -> None:
        """Nothing runs yet.

        Args:
            home: of data and socket.
            flags: of `semanticrecall serve`.
            prepare: runs in the forked process before it serves; a function of a module, or a
                `functools.partial` of one.
            prefix, environment: of a program of its own.
            socket: elsewhere than in `home`.
        """
        self.data = home / "data"
        self.socket = socket or home / "s"
        self._flags = ("--data-dir", str(self.data), "--listen", f"unix:{self.socket}", *flags)
        self._prepare = prepare
        self._prefix = tuple(prefix)
        self._environment = environment
        self.log: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._stubs: Stubs | None = None
        self._process: _Process | None = None
        self._lines: _Lines

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def stubs(self) -> Stubs:
        """Calls of the process that runs."""
        assert self._stubs is not None
        return self._stubs

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self, *more: str, wait: bool = True) -> Self:
        """Begin another process; with `wait`, return when it serves.

        Args:
            more: flags of this process alone.
            wait: see above.
        """
        assert self._process is None
        flags = (*self._flags, *more)
        if self._prefix or self._environment is not None:
            self._process = _Program(flags, self._prefix, self._environment or {})
        else:
            self._process = _Forked(flags, self._prepare)
        self._lines = _Lines(self._process.stderr, self)
        self._stubs = Stubs(f"unix:{self.socket}")
        if wait:
            self.wait_for("serving")
        return self

    def wait_for(self, event: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """The first log line of an event in the process that runs."""
        return self._lines.wait_for(event, timeout_s)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of an event so far, of all processes."""
        return [line for line in self.log if line.get("event") == event]

    def is_listening(self) -> bool:
        """Waits until it listens or has ended: which of the two."""
        return self._lines.wait_for_either("listening")

    def is_running(self) -> bool:
        """Whether it has not ended."""
        assert self._process is not None
        return self._process.is_running()

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, where it runs, and wait."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        assert self._process is not None
        status = self._process.wait(timeout_s)
        self._lines.join()
        self._process = None
        self.stubs.close()
        return status


class _Process(Protocol):
    """A process that serves."""

    stderr: int

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def is_running(self) -> bool: ...

    def wait(self, timeout_s: float) -> int: ...


class _Forked:
    """Forked from a process that has imported what it needs."""

    def __init__(self, flags: Sequence[str], prepare: Prepare | None) -> None:
        context = forking()
        log, said = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=serve_forked, args=(said, flags, prepare), daemon=True
        )
        self._process.start()
        said.close()
        self.stderr = os.dup(log.fileno())
        log.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def is_running(self) -> bool:
        return self._process.is_alive()

    def wait(self, timeout_s: float) -> int:
        self._process.join(timeout_s)
        status = self._process.exitcode
        assert status is not None, "the sidecar did not end"
        self._process.close()
        return status


class _Program:
    """Started with its own interpreter."""

    def __init__(
        self, flags: Sequence[str], prefix: Sequence[str], environment: dict[str, str]
    ) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SEMANTICRECALL_")}
        self.stderr, said = os.pipe()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "support.fault_serving", *flags],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**kept, "PYTHONPATH": with_tests(kept.get("PYTHONPATH")), **environment},
        )
        os.close(said)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)


class _Lines:
    """Reads a log to its end, on a thread, so that nobody who writes it ever waits."""

    def __init__(self, fd: int, sidecar: FaultSidecar) -> None:
        self._fd = fd
        self._sidecar = sidecar
        self._seen: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="sidecar-log", daemon=True)
        self._thread.start()

    def wait_for(self, event: str, timeout_s: float) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: event in self._seen or self._ended, timeout_s)
            if event not in self._seen:
                raise AssertionError(f"no {event} in:\n" + "\n".join(self._sidecar.said[-40:]))
            return self._seen[event]

    def wait_for_either(self, event: str) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: event in self._seen or self._ended, START_TIMEOUT_S)
            return event in self._seen

    def join(self) -> None:
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), "another process holds the sidecar's log"

    def _read(self) -> None:
        with os.fdopen(self._fd, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                self._take(line.rstrip("\n"))
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self, line: str) -> None:
        self._sidecar.said.append(line)
        try:
            entry = cast("dict[str, Any]", json.loads(line)) if line.startswith("{") else None
        except ValueError:
            entry = None
        if entry is None:
            return
        self._sidecar.log.append(entry)
        with self._changed:
            self._seen.setdefault(str(entry.get("event")), entry)
            self._changed.notify_all()


def wait_until(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for a count of another process to come to something; nobody tells of it."""
    poll = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if holds():
            return
        poll.wait(0.01)
    raise AssertionError("it did not come to that")
