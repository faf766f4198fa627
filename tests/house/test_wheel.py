"""The wheel, in an environment that holds the base dependencies and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE_DISTRIBUTIONS = {"grpcio", "protobuf", "semanticrecall-sidecar", "typing-extensions"}
PACKAGES = ("semanticrecall", "semanticrecall_core", "semanticrecall_server")
# Building and installing; a slow package index is not a failure.
PREPARE_SECONDS = 300
CALL_SECONDS = 60

IMPORT_AND_LIST = """
import json, sys
from importlib.metadata import distributions
import semanticrecall
from semanticrecall import AsyncRecallClient, RecallClient
names = ("numpy", "faiss", "apsw", "hdrh", "matplotlib", "semanticrecall_core",
         "semanticrecall_server", "semanticrecall.load", "typer")
foreign = [n for n in names if n in sys.modules]
print(json.dumps({"installed": [d.name for d in distributions()], "foreign": foreign}))
"""

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(2 * PREPARE_SECONDS)]


@dataclass(frozen=True)
class Installed:
    """The wheel and the environment it was installed into."""

    wheel: Path
    bin: Path


def call(*command: str | Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command outside the source tree; what it prints is kept."""
    return subprocess.run(
        [str(part) for part in command],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def prepare(*command: str | Path) -> None:
    """Run a step that must work."""
    done = call(sys.executable, "-m", *command, seconds=PREPARE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build with the tools that are here, install into an empty environment."""
    folder = tmp_path_factory.mktemp("wheel")
    prepare("build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    prepare("uv", "venv", "-q", "--python", sys.executable, environment)
    constraints = ROOT / ".ci/constraints.txt"
    python = environment / "bin/python"
    prepare("uv", "pip", "install", "-q", "--python", python, "-c", constraints, wheel)
    return Installed(wheel, environment / "bin")


def test_the_client_needs_grpcio_and_protobuf_only(installed: Installed) -> None:
    done = call(
        installed.bin / "python", "-I", "-W", "error", "-c", IMPORT_AND_LIST, seconds=CALL_SECONDS
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert {name.replace("_", "-").lower() for name in seen["installed"]} == BASE_DISTRIBUTIONS
    assert seen["foreign"] == []


def test_the_command_says_how_to_get_what_is_missing(installed: Installed) -> None:
    done = call(installed.bin / "semanticrecall", "--help", seconds=CALL_SECONDS)
    assert done.returncode != 0
    assert "pip install 'semanticrecall-sidecar[" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_wheel_holds_three_typed_packages_and_no_tests(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES)
    assert [
        f"{package}/py.typed" for package in PACKAGES if f"{package}/py.typed" not in names
    ] == []
    for data in ("v1/recall_pb2.pyi", "load/report.html.jinja", "demo/"):
        assert any(name.startswith(f"semanticrecall/{data}") for name in names), data
