"""The end of a rewriting: a snapshot's new files take the places of the old ones."""

from __future__ import annotations

from pathlib import Path

from ..types.errors import CorruptDataError
from . import files, manifest
from .manifest import DATABASE, MANIFEST

NEW = ".new"


def go_on_rewriting(folder: Path) -> None:
    """Put what is whole into its place, remove what is not.

    A whole new manifest says that the new database is whole as well.
    """
    database, listed = folder / f"{DATABASE}{NEW}", folder / f"{MANIFEST}{NEW}"
    if listed.is_file():
        try:
            manifest.decoded(files.read_small(listed, manifest.MANIFEST_BYTES_MAX))
        except CorruptDataError:
            pass
        else:
            if database.exists():
                database.rename(folder / DATABASE)
            listed.rename(folder / MANIFEST)
            files.sync_folder(folder)
    for path in folder.glob(f"*{NEW}*"):
        path.unlink()
