"""A sidecar imports what serving needs: each library here took time off every start."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SERVE = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules))))
from semanticrecall_server.main import serve_command
sys.exit(serve_command(sys.argv[1:]))
"""
NEEDED = {"numpy", "faiss", "onnxruntime", "tokenizers", "grpc", "apsw", "structlog"}
NOT_NEEDED = {
    "onnx": "writes graphs, and checks those of others",
    "safetensors": "reads the weights that graphs are written from",
    "huggingface_hub": "fetches",
    "typer": "the command line",
    "rich": "the command line; structlog would import it",
    "pygments": "rich would import it",
    "semanticrecall.client": "the stubs lie in the client's package",
    "semanticrecall.aio": "the stubs lie in the client's package",
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the modules of a process that served the default model and was stopped."""
    directory: Path = tmp_path_factory.mktemp("sidecar")
    options = ["--data-dir", f"{directory}/data", "--listen", f"unix:{directory}/s.sock"]
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        try:
            events = (json.loads(line)["event"] for line in process.stderr)
            assert "serving" in events
            process.send_signal(signal.SIGTERM)
            listed, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    return set(json.loads(listed))


@pytest.mark.model
def test_what_serving_needs_is_imported(imported: set[str]) -> None:
    assert imported >= NEEDED


@pytest.mark.model
@pytest.mark.parametrize("name", NOT_NEEDED)
def test_what_serving_does_not_need_is_not_imported(imported: set[str], name: str) -> None:
    assert name not in imported


def test_logs_work_and_rich_can_be_imported_after_the_log_library() -> None:
    script = (
        "from semanticrecall_server.guards import import_log_library\n"
        "import_log_library()\n"
        "from semanticrecall_server.logs import configure_logs\n"
        "configure_logs('info', 'console').info('told', exc_info=ValueError('text'))\n"
        "import rich.console\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "told" in done.stderr
    assert "text" not in done.stderr
