"""What a sidecar keeps beside its record: snapshots, and the vectors of texts it has embedded.

Everything here is derived. Benchmarks make it, damage it and take it away between two runs of a
sidecar, never under a running one.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import grpc

from benchmarks import processes
from semanticrecall.v1 import admin_pb2, admin_pb2_grpc
from semanticrecall_server.assembly import SNAPSHOTS

SnapshotState = Literal["there", "missing", "damaged"]

SNAPSHOT_SECONDS_MAX = 600
CACHE_FILES = "embeddings.db*"
DAMAGED_PLACES = 100


def make_snapshots(directory: Path, *flags: str) -> int:
    """Write images of everything in `directory`/data; returns the vectors in them."""
    with (
        processes.sidecar(directory, "--log-level", "error", *flags) as (address, _),
        grpc.insecure_channel(address) as channel,
    ):
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.CreateSnapshotRequest(partitions_only=True)
        vectors: int = stub.CreateSnapshot(request, timeout=SNAPSHOT_SECONDS_MAX).snapshot.vectors
        return vectors


def keep_snapshots(directory: Path, kept: Path) -> None:
    """Copy the snapshots of `directory`/data to `kept`."""
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(directory / "data" / SNAPSHOTS, kept)


def set_snapshots(directory: Path, kept: Path, state: SnapshotState) -> None:
    """Bring the snapshots of `directory`/data into a state; `kept` holds sound copies."""
    there = directory / "data" / SNAPSHOTS
    shutil.rmtree(there, ignore_errors=True)
    if state == "missing":
        return
    shutil.copytree(kept, there)
    if state == "damaged":
        for path in there.rglob("*"):
            if path.is_file():
                _damage(path)


@contextmanager
def snapshots_set_aside(directory: Path) -> Generator[None, None, None]:
    """The body sees `directory`/data without snapshots; afterwards they are as they were.

    Nothing is copied. What the body's sidecars write in their place is removed.
    """
    there, aside = directory / "data" / SNAPSHOTS, directory / "snapshots-aside"
    if aside.exists():  # of a run that was killed: it is whole, and what took its place may not be
        shutil.rmtree(there, ignore_errors=True)
    else:
        there.rename(aside)
    try:
        yield
    finally:
        shutil.rmtree(there, ignore_errors=True)
        aside.rename(there)


def forget_cached_vectors(directory: Path) -> None:
    """No text is known to the next sidecar on `directory`/data: its first recall is a cold one."""
    for path in (directory / "data").glob(CACHE_FILES):
        path.unlink()


def _damage(path: Path) -> None:
    """Turn the bits of a byte at a hundred places all over the file."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for place in range(0, size, max(1, size // DAMAGED_PLACES)):
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes((byte ^ 0xFF,)))
