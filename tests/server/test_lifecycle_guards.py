"""What holds before anything heavy is imported, and signals at every stage."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semanticrecall_core.embedding.provision import default_cache_dir
from semanticrecall_server.guards import StopSignals
from support.outside_connections import outside_addresses, tracing
from support.running_server import ServerProcess

HEAVY = ("numpy", "faiss", "onnxruntime", "tokenizers", "grpc", "apsw")
LOOK = f"""
import json, os, resource, sys
import semanticrecall_server.main
early = [name for name in {HEAVY} if name in sys.modules]
from semanticrecall_server import guards
guards.prepare_process()
print(json.dumps({{
    "early": early,
    "environment": {{name: os.environ.get(name) for name in (
        "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "GRPC_ENABLE_FORK_SUPPORT",
        "GRPC_VERBOSITY", "ORT_DISABLE_TELEMETRY")}},
    "interval": sys.getswitchinterval(),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
}}))
"""


def test_the_process_is_prepared_before_anything_heavy_is_imported() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "8", "GRPC_VERBOSITY": "ERROR"}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = subprocess.run(
        ["sh", "-c", 'ulimit -S -n 256; exec "$0" -c "$1"', sys.executable, LOOK],
        env=environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    found = json.loads(seen.stdout)
    assert found["early"] == []
    assert found["environment"] == {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "GRPC_VERBOSITY": "ERROR",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    assert found["interval"] == pytest.approx(0.0005)
    assert soft <= hard
    assert found["files"] == [hard, hard]


def test_a_signal_before_anybody_listens_ends_the_process_with_0() -> None:
    signals = StopSignals()
    with pytest.raises(SystemExit) as left:
        signals._on_signal(signal.SIGTERM, None)
    assert left.value.code == 0


def test_signals_are_counted_for_the_listener() -> None:
    signals = StopSignals()
    counts: list[int] = []
    signals.listen(counts.append)
    signals._on_signal(signal.SIGTERM, None)
    signals.notify()
    assert counts == [1, 2]


def arguments(directory: Path) -> list[str]:
    return ["--data-dir", str(directory / "data"), "--listen", f"unix:{directory}/s.sock"]


@pytest.mark.model
def test_a_signal_while_the_model_loads_ends_with_0(tmp_path: Path) -> None:
    with ServerProcess(arguments(tmp_path)) as process:
        process.wait_for("listening")
        process.signal()
        status, log = process.wait()
    assert status == 0, log
    assert "Traceback" not in log
    assert not (tmp_path / "s.sock").exists()


@pytest.mark.model
def test_a_hang_up_ends_it_like_sigterm_and_user_signals_do_nothing(tmp_path: Path) -> None:
    with ServerProcess(arguments(tmp_path)) as process:
        process.wait_for("serving")
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            process.signal(number)
        process.wait_for("draining")
        status, log = process.wait()
    assert status == 0, log
    assert not (tmp_path / "s.sock").exists()


@pytest.mark.model
def test_under_nohup_a_hang_up_is_nothing(tmp_path: Path) -> None:
    ignoring = ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
    with ServerProcess(arguments(tmp_path), prefix=ignoring) as process:
        process.wait_for("serving")
        process.signal(signal.SIGHUP)
        process.signal(signal.SIGTERM)
        # One signal was seen: with two, it would not have waited for calls.
        assert process.wait_for("signal")["count"] == 1
        process.wait_for("stopped")
        status, log = process.wait()
    assert status == 0, log
    assert log.count('"event":"signal"') + log.count('"event": "signal"') == 1


@pytest.mark.model
def test_it_leaves_nothing_at_home_and_reaches_nobody(tmp_path: Path) -> None:
    home, report = tmp_path / "home", tmp_path / "trace"
    home.mkdir()
    environment = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "ORT_DISABLE_TELEMETRY": "0",
        "SEMANTICRECALL_MODEL_CACHE_DIR": str(default_cache_dir()),
    }
    traced = tracing(report)
    with ServerProcess(arguments(tmp_path), environment, prefix=traced) as process:
        process.wait_for("serving")
        pid = process.pid
        if traced:
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        os.kill(pid, signal.SIGTERM)
        status, log = process.wait()
    assert status == 0, log
    assert list(home.rglob("*")) == []
    assert outside_addresses(report) == []


@pytest.mark.model
@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to make a process namespace")
def test_as_the_first_process_of_a_container_it_stops_on_sigterm(tmp_path: Path) -> None:
    """The kernel drops signals to process 1 that have no handler."""
    with ServerProcess(arguments(tmp_path), prefix=("unshare", "--pid", "--fork")) as process:
        process.wait_for("serving")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        os.kill(int(children), signal.SIGTERM)
        status, log = process.wait()
    assert status == 0, log


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    from semanticrecall_server.command_line import parse_flags

    with pytest.raises(SystemExit) as left:
        parse_flags(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for word in ("examples:", "exit status:", "Listening:", "Limits of a request:", "[default"):
        assert word in text
