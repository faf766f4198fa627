"""What lies in the folder of the snapshots and is none of those that are listed.

A copy of a snapshot under another name, or one whose manifest is damaged, may hold what was
forgotten; nothing here looks for that, or removes it. So whatever lies there counts as holding it,
except
  - what is empty, half made (a folder `*.partial`), or a file of ours (FORGOTTEN, KEY);
  - `lost+found`, which a file system makes;
  - a snapshot of which a sound manifest says that it is of other stores only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from ..types.errors import SemanticRecallError
from ..types.saving import SavedState
from . import files, manifest
from .ledger import LEDGER
from .manifest import MANIFEST

PARTIAL = ".partial"
NAMES_MAX = 1_000
NAME_CHARACTERS_MAX = 255
_NEVER_HOLDS = frozenset({LEDGER, "KEY", "lost+found"})


def left_out(folder: Path, among: Iterable[str], store_ids: Collection[str]) -> tuple[str, ...]:
    """Names of what may hold messages of these stores, printable and sorted; at most NAMES_MAX.

    Args:
        folder: need not be there.
        among: those of `names` that are no snapshots that can be read.
        store_ids: whose.
    """
    found: list[str] = []
    for name in among:
        if _may_hold(folder / name, store_ids):
            found.append(printable(name))
            if len(found) == NAMES_MAX:
                break
    return tuple(sorted(found))


def names(folder: Path) -> list[str]:
    """All that lies there, sorted, without what never holds a message.

    Raises UnavailableError, CorruptDataError where the folder cannot be read.
    """
    with files.translated_errors():
        try:
            found = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
    return [n for n in found if n not in _NEVER_HOLDS and not is_half_made(folder / n)]


def is_half_made(path: Path) -> bool:
    """Whether this is being made or removed, or was when a process ended; a file never is."""
    return path.name.endswith(PARTIAL) and (path.is_symlink() or path.is_dir())


def of_other_stores(folder: Path, store_id: str) -> int:
    """How many snapshots, under whatever name, say that another store made them."""
    states = (_state(folder / name) for name in names(folder))
    return sum(1 for state in states if state is not None and state.store_id != store_id)


def printable(name: str) -> str:
    """The name of a file that anybody may have made, fit for a log or a terminal."""
    shown = name[:NAME_CHARACTERS_MAX]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


def _may_hold(path: Path, store_ids: Collection[str]) -> bool:
    state = _state(path)
    if state is not None:
        ids = {state.store_id, *(origin.store_id for origin in state.origins)}
        return not ids.isdisjoint(store_ids)
    try:
        with os.scandir(path) as entries:
            return any(entries)
    except FileNotFoundError:
        return False  # it was removed meanwhile
    except NotADirectoryError:
        return not path.is_file() or path.stat().st_size > 0
    except OSError:
        return True


def _state(path: Path) -> SavedState | None:
    """What a sound manifest in a folder says; None where there is none."""
    try:
        with files.translated_errors():
            content = files.read_small(path / MANIFEST, manifest.MANIFEST_BYTES_MAX)
            return manifest.decoded(content).state
    except SemanticRecallError:
        return None
