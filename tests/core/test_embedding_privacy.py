"""No text, no event and no device id leaves the machine: onnxruntime would send some by default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.outside_connections import can_trace, outside_addresses, tracing

ROOT = Path(__file__).resolve().parents[2]
NAME = "onnxruntime"
HOME_OF_THE_LIBRARY = ROOT / "core/semanticrecall_core/embedding/runtime_environment.py"
EMBED = """
import sys
sys.path.insert(0, sys.argv[1])
from support.tiny_model import model
from semanticrecall_core.embedding.embedder import OnnxEmbedder
from semanticrecall_core.types.values import CallBudget
found = OnnxEmbedder(model(), device="cpu").embed_query("hello", CallBudget.of_seconds(60.0))
assert found.vectors.shape == (1, 16)
"""


def imports_of(path: Path) -> list[str]:
    lines = path.read_text("utf-8").splitlines()
    return [line for line in lines if line.split()[:2] in (["import", NAME], ["from", NAME])]


def test_the_library_is_imported_in_one_place() -> None:
    folders = ("core", "server", "clients/python", "benchmarks", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in files if imports_of(path)] == [HOME_OF_THE_LIBRARY]


@pytest.mark.parametrize("before", [None, "0"])
def test_embedding_writes_no_device_id_and_reaches_nobody(
    tmp_path: Path, before: str | None
) -> None:
    home, report = tmp_path / "home", tmp_path / "trace"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    if before is not None:
        environment["ORT_DISABLE_TELEMETRY"] = before
    command = [*tracing(report), sys.executable, "-c", EMBED, str(ROOT / "tests")]
    subprocess.run(command, env=environment, check=True, timeout=100, cwd=tmp_path)
    assert [str(path.relative_to(home)) for path in home.rglob("*")] == []
    assert outside_addresses(report) == []


def test_a_program_that_imported_it_first_stops_it_too() -> None:
    script = (
        "import os, sys, types\n"
        "calls = []\n"
        "fake = types.ModuleType('onnxruntime')\n"
        "fake.disable_telemetry_events = lambda: calls.append(1)\n"
        "sys.modules['onnxruntime'] = fake\n"
        "import semanticrecall_core.embedding.runtime_environment\n"
        "assert calls == [1]\n"
        "assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)


@pytest.mark.skipif(not can_trace(), reason="strace is not there, or may not look")
def test_the_trace_sees_an_attempt(tmp_path: Path) -> None:
    report = tmp_path / "trace"
    # A datagram socket that is connected sends nothing.
    attempt = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.connect_ex(('192.0.2.1', 9)); s.connect_ex(('127.0.0.1', 9))"
    )
    subprocess.run([*tracing(report), sys.executable, "-c", attempt], check=True, timeout=60)
    assert outside_addresses(report) == ["192.0.2.1"]
