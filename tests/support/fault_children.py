"""Forked processes that run a scenario with a fault, and what is heard of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support import fault_calls, fault_scenarios
from support.fault_calls import Fault
from support.fault_forking import forking

CHILD_TIMEOUT_S = 60.0
Script = Callable[[str, Path, fault_scenarios.Tell, Callable[[], object]], None]


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        status: its exit status, negative for a signal.
        told: what it told.
        counted: calls that were counted, where it lived to tell.
        met: calls at which something happened, likewise.
    """

    status: int
    told: fault_scenarios.Told
    counted: int
    met: int


def run_with(name: str, folder: Path, fault: Fault | None) -> Ended:
    """Run a scenario in a process of its own."""
    return _ended(fault_scenarios.run, name, folder, fault)


def recover_with(name: str, folder: Path, fault: Fault | None) -> Ended:
    """Only open the store that a scenario left, in a process of its own."""
    return _ended(fault_scenarios.recover, name, folder, fault)


def _ended(script: Script, name: str, folder: Path, fault: Fault | None) -> Ended:
    context = forking()
    heard, said = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(said, script, name, folder, fault), daemon=True)
    process.start()
    said.close()
    events: list[tuple[str, Any]] = []
    try:
        while heard.poll(CHILD_TIMEOUT_S):
            events.append(heard.recv())
    except EOFError:
        pass
    heard.close()
    process.join(CHILD_TIMEOUT_S)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
        raise AssertionError("it hangs")
    process.close()
    counts = dict(event for event in events if event[0] in ("counted", "met"))
    told = fault_scenarios.heard(events)
    return Ended(status, told, counts.get("counted", 0), counts.get("met", 0))


def _child(said: Connection, script: Script, name: str, folder: Path, fault: Fault | None) -> None:
    if fault is not None:
        fault_calls.arm(fault)
    try:
        mend = (lambda: None) if fault is None else fault_calls.disarm
        script(name, folder, said.send, mend)
        if fault is not None:
            said.send(("counted", fault_calls.counted()))
            said.send(("met", fault_calls.met()))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(70)
    os._exit(0)
