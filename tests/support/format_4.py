"""Data directories of format 4, plain and encrypted: what is in them, and how they were made.

`tests/fixtures/format-4.tar.xz` holds two: `plain/data` and `encrypted/data`, each with all kinds
of files: the record, images of partitions, cached vectors, a saved snapshot and what was forgotten
since. It was written by the last version that changed this format. To make it again, run from the
root of a checkout of that version:
    PYTHONPATH=tests python -m support.format_4
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.encryption import Purpose
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.config import Settings
from semanticrecall_server.encryption_keys import data_key
from support.disk_cached_embedder import DiskCachedEmbedder
from support.running_server import InProcessServer, running
from support.wire_memory import INDEXED, REPLACED, Sidecar, said

ARCHIVE = Path(__file__).parent.parent / "fixtures" / "format-4.tar.xz"
KEY = "00112233445566778899aabbccddeeff" * 2
KINDS = ("plain", "encrypted")
FIRST_TIME_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
CALL_SECONDS = 60.0
IMAGED = 8

FORGOTTEN = "The lighthouse keeper sold his violin."
BEFORE_EDIT = "The ferry leaves at six."
EDITED = "The ferry leaves at seven."
TEXTS = {
    "alice": {
        "first": "I lost my passport in Lisbon, ZX-8841.",
        "edited": EDITED,
        "world": "東京の天気は晴れです. Straße, ΣΊΣΥΦΟΣ",
        "tagged": "The budget of the observatory is due.",
    },
    "bob": {"first": "My umbrella hangs in the drawer."}
    | {f"m{n}": f"Bob counted {n} geese near mill number {n * n + 17}." for n in range(IMAGED)},
}
METADATA = {"project": "comet", "count": 3}
PAYLOAD = b"\x00\xffbytes"


def messages(resource: str) -> list[types_pb2.Message]:
    """What a resource has, oldest first."""
    return [
        said(
            identity,
            text,
            at=FIRST_TIME_NS + place * SECOND_NS,
            author="Zoë",
            metadata=METADATA if identity == "tagged" else None,
            payload=PAYLOAD if identity == "tagged" else b"",
            payload_type="text/plain" if identity == "tagged" else "",
        )
        for place, (identity, text) in enumerate(TEXTS[resource].items())
    ]


def load(home: Path) -> Callable[[Settings], DiskCachedEmbedder]:
    """The embedder of these directories, with the file it keeps."""

    def loaded(settings: Settings) -> DiskCachedEmbedder:
        found = data_key(settings)
        key = None if found is None else found.subkey(Purpose.EMBEDDINGS)
        return DiskCachedEmbedder(home / "data" / "embeddings.db", key=key)

    return loaded


def serving(home: Path, kind: str) -> Any:
    """A server over `home/data`, which is of this kind."""
    settings = {"encryption_key": KEY} if kind == "encrypted" else {}
    return running(home, default_parts(load(home)), purge_interval_ms=0, **settings)


def unpacked(into: Path) -> Path:
    """A folder with `plain/data` and `encrypted/data`, ready to be opened."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(into, filter="data")
    return into


def make() -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(ARCHIVE, "w:xz") as archive:
        for kind in KINDS:
            home = Path(folder) / kind
            home.mkdir()
            with serving(home, kind) as server:
                _fill(server)
            for path in sorted((home / "data").rglob("*")):
                if path.name not in {"BALLAST", "LOCK"}:
                    name = f"{kind}/{path.relative_to(home)}"
                    archive.add(path, name, recursive=False, filter=_nobodys)


def _fill(server: InProcessServer) -> None:
    """The history that ends in TEXTS, an edit, a snapshot and a deletion among it."""
    sidecar = Sidecar(server.sidecar.addresses[0].target)
    alice, bob = sidecar.memory("alice"), sidecar.memory("bob")
    history = messages("alice")
    now = [one for one in history if one.id == "edited"]
    before = said("edited", BEFORE_EDIT, at=FIRST_TIME_NS + SECOND_NS, author="Zoë")
    first = [before if one.id == "edited" else one for one in history]
    assert set(alice.index([*first, said("forgotten", FORGOTTEN, at=1)])) == {INDEXED}
    assert set(bob.index(messages("bob"))) == {INDEXED}
    assert set(alice.index(now)) == {REPLACED}
    _snapshot(sidecar, partitions_only=False)
    alice.forget(message_ids=recall_pb2.MessageIds(ids=["forgotten"]))
    _snapshot(sidecar, partitions_only=True)
    sidecar.close()


def _snapshot(sidecar: Sidecar, *, partitions_only: bool) -> None:
    request = admin_pb2.CreateSnapshotRequest(partitions_only=partitions_only)
    sidecar.admin.CreateSnapshot(request, timeout=CALL_SECONDS)


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    make()
