"""The system calls that change a disk, with a fault at the one that is named."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

CHANGING = frozenset({"open", "pwrite", "ftruncate", "fsync", "rename", "unlink"})


class Crash(BaseException):
    """The process died here: nothing that it would do afterwards is done."""


class FaultyOs:
    """Stands for the module `os` in the module under test.

    `fault` is asked before each call that changes something: its number from 0, and its name. It
    raises what the call is to raise. `raised` counts how often it did. Nobody waits for the disk:
    what is cut off here is the process, and not the machine.
    """

    def __init__(self, fault: Callable[[int, str], None] = lambda number, name: None) -> None:
        self.fault = fault
        self.calls = 0
        self.raised = 0

    def mend(self) -> None:
        """No fault from now on."""
        self.fault = lambda number, name: None

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGING:
            return real

        def call(*arguments: object, **more: object) -> object:
            number, self.calls = self.calls, self.calls + 1
            try:
                self.fault(number, name)
            except BaseException:
                self.raised += 1
                raise
            return None if name == "fsync" else real(*arguments, **more)

        return call


def crash_at(target: int) -> Callable[[int, str], None]:
    """Die at that call; whatever runs afterwards reaches nothing."""

    def fault(number: int, name: str) -> None:
        if number >= target:
            raise Crash

    return fault


def fail_at(
    target: int, code: int = errno.EIO, *, sticky: bool = False
) -> Callable[[int, str], None]:
    """That call fails, and with `sticky` every later one."""

    def fault(number: int, name: str) -> None:
        if number == target or (sticky and number > target):
            raise OSError(code, os.strerror(code))

    return fault
