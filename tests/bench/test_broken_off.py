"""A benchmark that is broken off leaves no process and no temporary directory behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from support import smoke_runs

SIDE_BY_SIDE = ("side_by_side", "--calls", "500", "--systems", "ours,plain_faiss")
SECONDS_MAX = 100


def running_with(text: str) -> list[bytes]:
    """Command lines of processes that hold the text; those of zombies are empty."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            lines.append(file.read_bytes())
    return [line for line in lines if text.encode() in line]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ctrl_c", [True, False], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("command", [SIDE_BY_SIDE, ("readme",)], ids=lambda one: one[0])
def test_nothing_stays(tmp_path: Path, command: tuple[str, ...], ctrl_c: bool) -> None:
    stores = tmp_path / "stores"
    with tempfile.TemporaryDirectory() as temporary:  # short: sockets are in it
        module, *flags = command
        flags += ["--smoke", "--data-dir", str(stores)]
        process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *flags],
            cwd=smoke_runs.ROOT,
            env={**os.environ, "TMPDIR": temporary, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Shells start what is in the background with it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        with process:
            assert process.stdout is not None
            assert any(line.startswith("SemanticRecall: ") for line in process.stdout)
            assert list(stores.rglob("stores-*"))
            if ctrl_c:
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.terminate()
            printed, _ = process.communicate(timeout=SECONDS_MAX)
        expected = (1, -signal.SIGINT) if ctrl_c else (128 + signal.SIGTERM,)
        assert process.returncode in expected, printed
        assert not list(stores.rglob("stores-*"))
        assert not list(Path(temporary).iterdir())
    assert not running_with(str(stores))
