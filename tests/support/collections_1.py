"""A `collections.db` of format 1, plain and encrypted: what is in it, and how it was made.

`tests/fixtures/collections-1.tar.xz` holds `plain/` and `encrypted/`, each as a process that was
killed left it: the file, its log and its mark. It was written by the last version that changed this
format. To make it again, run from the root of a checkout of that version:
    PYTHONPATH=tests python -m support.collections_1
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from semanticrecall_core.types.collections import Metric, VectorEntry
from support.collection_model import ANY_TIME, KEY, by_ids, opened_with_mark

ARCHIVE = Path(__file__).parent.parent / "fixtures" / "collections-1.tar.xz"
KEYS = {"plain": None, "encrypted": KEY}
PLACES = {("alice", "notes"): Metric.COSINE, ("büro", "東京"): Metric.EUCLIDEAN}
VECTORS: dict[str, tuple[list[float], dict[str, Any]]] = {
    "first": ([1.0, 0.5, -2.0], {"n": 1, "tags": ["a", None, True], "deep": {"x": 0.5}}),
    "é": ([0.25, 0.0, 1e-30], {"text": "Straße ΣΊΣΥΦΟΣ"}),
    "last": ([-1.0, -1.0, 3e38], {}),
}


def make() -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as temporary:
        for kind, key in KEYS.items():
            running = Path(temporary) / "running" / kind
            running.mkdir(parents=True)
            collections = opened_with_mark(running, key=key)
            for (resource, name), metric in PLACES.items():
                collections.create(resource, name, 3, metric)
                entries = [VectorEntry(id, values, meta) for id, (values, meta) in VECTORS.items()]
                gone = VectorEntry("gone", [1.0, 1.0, 1.0], {})
                collections.upsert(resource, name, [*entries, gone], None, ANY_TIME)
            collections.purge(ANY_TIME)
            for resource, name in PLACES:
                collections.delete_vectors(resource, name, by_ids("gone"), ANY_TIME)
            shutil.copytree(running, Path(temporary) / "left" / kind)
            collections.close()
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for kind in KEYS:
                archive.add(Path(temporary) / "left" / kind, kind, filter=_nobodys)


def _nobodys(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.uid = file.gid = file.mtime = 0
    file.uname = file.gname = ""
    return file


def unpacked(folder: Path) -> Path:
    """The archive's content in a folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


if __name__ == "__main__":
    make()
