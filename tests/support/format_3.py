"""A data directory of format 3: what is in it, and how it was made.

`tests/fixtures/format-3.tar.xz` was written by the last version that wrote this format (commit
e7155e3); a later one writes another. To make it again, run from the root of a checkout of that
commit, with this file put into its tests/support:
    PYTHONPATH=tests python -m support.format_3
It has what a directory of format 2 has, and what the words of its messages were analysed into.
"""

from __future__ import annotations

import tarfile
import tempfile
from itertools import count
from pathlib import Path

from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.messages import StoreOptions
from support.format_2 import CONTENT, FIRST_TIME_NS, FORGOTTEN, GENERATION, WAITING, fill
from support.stored_messages import open_store

__all__ = ["CONTENT", "FIRST_TIME_NS", "FORGOTTEN", "GENERATION", "WAITING", "unpacked"]

ARCHIVE = Path(__file__).parent.parent / "fixtures" / "format-3.tar.xz"


def unpacked(into: Path) -> Path:
    """The data directory, ready to be opened."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(into, filter="data")
    return into / "data"


def make() -> None:
    """Write the archive."""
    seconds = count(FIRST_TIME_NS, 1_000_000_000)
    options = StoreOptions(clock=lambda: next(seconds))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "data"
        store = open_store(home, generation=GENERATION, analyser=Analyser(), options=options)
        fill(store)
        store.close()
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for name in ("LOCK", "MARK", "recall.db"):
                archive.add(home / name, f"data/{name}", filter=_nobodys)


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    make()
