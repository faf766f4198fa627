"""Starts a sidecar of this installation as a process of its own, and stops it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ..client import RecallClient
from .plugins import install_command

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
LOG_TAIL_BYTES = 8192
LOG_TAIL_LINES = 6
# What the child may take from the environment: which model, and where it runs. The rest (tokens,
# addresses, limits) would make it another sidecar than the one asked for.
_KEPT = ("SEMANTICRECALL_MODEL_", "SEMANTICRECALL_DEVICE")


class SidecarFailedError(Exception):
    """Raised when the process ended before it served, or does not come to it; says why."""


class SidecarProcess:
    """One `python -m semanticrecall_server`.

    Args:
        arguments: flags of `semanticrecall serve`.
        log_file: where its log goes.
    """

    def __init__(self, arguments: Sequence[str], log_file: Path) -> None:
        self._log_file = log_file
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SEMANTICRECALL_") or name.startswith(_KEPT)
        }
        with log_file.open("wb") as log:
            # A session of its own: Ctrl-C reaches this process alone, which then stops the child.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "semanticrecall_server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        """The process itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.stop()

    def wait_until_serving(self, memory: RecallClient) -> None:
        """Wait until the sidecar answers that it is ready.

        Raises:
            SidecarFailedError: it ended, or is not ready after two minutes.
        """
        give_up = time.monotonic() + START_SECONDS_MAX
        while not memory.is_serving(timeout=1.0):
            if self.ended(POLL_SECONDS):
                raise SidecarFailedError(self._why())
            if time.monotonic() > give_up:
                raise SidecarFailedError(f"is not ready after {START_SECONDS_MAX:.0f} s")

    def ended(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _why(self) -> str:
        log = self._log_file.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
        if "ModuleNotFoundError" in log:
            return f"misses its libraries: {install_command('server')}"
        lines = [line for line in log.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("semanticrecall: ")]
        return "\n".join(told or lines[-LOG_TAIL_LINES:]) or "ended without a word"

    def stop(self) -> int:
        """Drain and end it; its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                drained = self.ended(STOP_SECONDS_MAX)
            except KeyboardInterrupt:
                # The second Ctrl-C: its record is safe, whatever is cut off.
                drained = False
            if not drained:
                self._process.kill()
        return self._process.wait()
