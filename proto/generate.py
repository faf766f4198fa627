"""Writes the stubs of package semanticrecall.v1, Python and TypeScript, or checks them.

Runs in the environment that `proto/requirements.txt` pins, with the plugin that the lock file of
`clients/typescript` pins; `make proto` and `make proto-check` set both up. With `--check` nothing
is changed: the stubs are written to a temporary folder, and a file that is missing, superfluous or
different ends the run with status 1.
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
PYTHON_STUBS = PROTO_DIR.parent / "clients/python" / PACKAGE
TYPESCRIPT_DIR = PROTO_DIR.parent / "clients/typescript"
TYPESCRIPT_STUBS = TYPESCRIPT_DIR / "src/v1"
ES_PLUGIN = TYPESCRIPT_DIR / "node_modules/.bin/protoc-gen-es"
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


def generate_typescript(into: Path) -> None:
    """Write the TypeScript stubs below `into`."""
    run_protoc(
        [
            f"--plugin=protoc-gen-es={ES_PLUGIN}",
            f"--es_out={into}",
            "--es_opt=target=ts,import_extension=js",
        ],
        sorted((PROTO_DIR / PACKAGE).glob("*.proto")),
    )


def stubs(folder: Path) -> dict[str, bytes]:
    """Generated files of a folder by name."""
    found = (*folder.glob("*_pb2*.py*"), *folder.glob("*_pb.ts"))
    return {path.name: path.read_bytes() for path in sorted(found)}


def stale_in(committed_dir: Path, fresh: dict[str, bytes], *, check: bool) -> list[Path]:
    """Files of a folder that are not as generated; without `check` they are mended."""
    committed = stubs(committed_dir)
    names = fresh.keys() | committed.keys()
    stale = sorted(name for name in names if fresh.get(name) != committed.get(name))
    for name in stale if not check else ():
        if name in fresh:
            (committed_dir / name).write_bytes(fresh[name])
        else:
            (committed_dir / name).unlink()
    return [committed_dir / name for name in stale]


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed stubs")
    check: bool = parser.parse_args().check

    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as other:
        generate(Path(scratch))
        generate_typescript(Path(other))
        stale = [
            *stale_in(PYTHON_STUBS, stubs(Path(scratch) / PACKAGE), check=check),
            *stale_in(TYPESCRIPT_STUBS, stubs(Path(other) / PACKAGE), check=check),
        ]
    if not check:
        return 0
    for path in stale:
        place = path.relative_to(PROTO_DIR.parent)
        sys.stderr.write(f"{place} is not what the proto files give; run `make proto`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
