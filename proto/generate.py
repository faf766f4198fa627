"""Writes the Python stubs of package semanticrecall.v1, or checks that they are current.

Runs in the environment that `proto/requirements.txt` pins; `make proto` and `make proto-check`
set that up. With `--check` nothing is changed: the stubs are written to a temporary folder, and a
file that is missing, superfluous or different ends the run with status 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

PROTO_DIR = Path(__file__).resolve().parent
PACKAGE = Path("semanticrecall/v1")
PYTHON_DIR = PROTO_DIR.parent / "clients/python"
WELL_KNOWN_TYPES = files("grpc_tools") / "_proto"
# Beside the interpreter, where pip puts it, whether or not the environment is activated.
MYPY_PLUGIN = Path(sys.executable).parent / "protoc-gen-mypy_grpc"


def run_protoc(outputs: list[str], protos: list[Path]) -> None:
    """Run the bundled protoc from the root of the proto files."""
    includes = [f"-I{PROTO_DIR}", f"-I{WELL_KNOWN_TYPES}"]
    names = [str(proto.relative_to(PROTO_DIR)) for proto in protos]
    status = protoc.main(["protoc", *includes, *outputs, *names])
    if status != 0:
        raise SystemExit(status)


def generate(into: Path) -> None:
    """Write all stubs below `into`; service stubs only of files that declare a service."""
    protos = sorted((PROTO_DIR / PACKAGE).glob("*.proto"))
    services = [
        proto
        for proto in protos
        if any(line.startswith("service ") for line in proto.read_text("utf-8").splitlines())
    ]
    run_protoc([f"--python_out={into}", f"--pyi_out={into}"], protos)
    run_protoc(
        [
            f"--plugin=protoc-gen-mypy_grpc={MYPY_PLUGIN}",
            f"--grpc_python_out={into}",
            f"--mypy_grpc_out=quiet:{into}",
        ],
        services,
    )


def stubs(folder: Path) -> dict[str, bytes]:
    """Generated files of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*_pb2*.py*"))}


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed stubs")
    check: bool = parser.parse_args().check

    committed_dir = PYTHON_DIR / PACKAGE
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = stubs(Path(scratch) / PACKAGE)
    committed = stubs(committed_dir)
    stale = sorted(
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )
    if check:
        for name in stale:
            sys.stderr.write(
                f"{PACKAGE / name} is not what the proto files give; run `make proto`\n"
            )
        return 1 if stale else 0
    for name in stale:
        if name in fresh:
            (committed_dir / name).write_bytes(fresh[name])
        else:
            (committed_dir / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
