"""A process that writes until it is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

WRITER_SECONDS_MAX = 60


def killed_writer(script: str, home: Path, cycle: int, *, lines: int) -> list[str]:
    """What a script said until it was killed, which is so many lines after its start.

    Args:
        script: Python; its arguments are `home` and `cycle`. May import `support`.
        home: where it writes.
        cycle: tells its runs apart.
        lines: how many are waited for.
    """
    tests = Path(__file__).resolve().parents[1]
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(home), str(cycle)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    assert writer.stdout is not None
    said = bytearray()
    deadline = time.monotonic() + WRITER_SECONDS_MAX
    while said.count(b"\n") < lines:
        assert select.select([writer.stdout], [], [], deadline - time.monotonic())[0]
        said += os.read(writer.stdout.fileno(), 4096)
    writer.send_signal(signal.SIGKILL)
    said += writer.stdout.read()
    writer.stdout.close()
    assert writer.wait(30) == -signal.SIGKILL
    return said.decode().splitlines()
