"""One snapshot's folder: what it says, whether that is so, and what of it was forgotten since."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..types.errors import CorruptDataError, NotFoundError, SemanticRecallError
from ..types.saving import SavedDatabases, SavedState
from ..types.values import CallBudget
from . import files, manifest
from .ledger import Ledger
from .manifest import DATABASE, MANIFEST, Manifest

KEY = "KEY"
KEY_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class CheckedSnapshot:
    """A snapshot that was read in full, and agrees with itself.

    Attributes:
        database: where it is.
        key_file: the key, wrapped; None where it is not encrypted.
        state: what is in it.
        left_out: messages in it that were forgotten since, sorted.
        without_ledger: no ledger lies beside it, so that it is not known what was forgotten.
    """

    database: Path
    key_file: Path | None
    state: SavedState
    left_out: list[int]
    without_ledger: bool


def manifest_of(folder: Path, name: str | None = None) -> Manifest:
    """The manifest, where the files are there in the size that it says.

    Args:
        folder: of the snapshot.
        name: that it must have; None where people may have renamed it.

    Raises CorruptDataError, UnavailableError, FailedPreconditionError.
    """
    with files.translated_errors():
        content = files.read_small(folder / MANIFEST, manifest.MANIFEST_BYTES_MAX)
        found = manifest.decoded(content)
        if name is not None and found.name != name:
            raise CorruptDataError("the manifest is another snapshot's")
        for file, entry in found.files.items():
            if os.lstat(folder / file).st_size != entry.bytes:
                raise CorruptDataError("a file of the snapshot has another size")
    return found


def verify(
    folder: Path,
    found: Manifest,
    databases: SavedDatabases,
    budget: CallBudget,
    *,
    rows: bool = True,
) -> None:
    """Compare the digests, SQLite's own check, and the checksum of every row.

    Without `rows` those that were damaged when they were saved are no fault: the digest says that
    nothing has become damaged since.

    Raises CorruptDataError where something does not agree.
    """
    with files.translated_errors():
        for name, entry in found.files.items():
            if files.digest_of(folder / name, budget) != entry.sha256:
                raise CorruptDataError("a file of the snapshot does not match its digest")
    if (folder / KEY).exists() != found.encrypted:
        raise CorruptDataError("the key of the snapshot is missing, or another's")
    databases.check(folder / DATABASE, budget, rows=rows)
    if databases.state(folder / DATABASE) != found.state:
        raise CorruptDataError("the snapshot's database is not the one of its manifest")


def forgotten_seqs(ledger: Ledger, state: SavedState) -> list[int]:
    """What a ledger names of a snapshot's messages, sorted.

    A message that its store had taken from a snapshot of another counts as forgotten wherever it
    was forgotten: in that store, or in any that took it from there.

    Raises CorruptDataError where the ledger is damaged.
    """
    found = {
        seq
        for each in ledger.ranges(state.store_id)
        if each.revision > state.revision
        for seq in range(each.first_seq, min(each.last_seq, state.last_seq) + 1)
    }
    for origin in state.origins:
        for each in ledger.ranges(origin.store_id):
            first = max(each.first_seq + origin.shift, origin.first_seq)
            last = min(each.last_seq + origin.shift, origin.last_seq)
            found.update(range(first, last + 1))
    return sorted(found)


def not_rewritten(name: str, error: SemanticRecallError) -> SemanticRecallError:
    """Why a snapshot could not be rewritten; of a damaged one, what to do about it."""
    if not isinstance(error, CorruptDataError):
        return error
    return CorruptDataError(
        f"the snapshot {name} is damaged and may hold what was forgotten: "
        f"`semanticrecall snapshot delete {name}` removes it, then purge again",
        reason="SNAPSHOT_DAMAGED",
    )


def checked(
    folder: Path, databases: SavedDatabases, budget: CallBudget, *, rows: bool = True
) -> CheckedSnapshot:
    """Read a snapshot wherever it is, with the ledger beside its folder; `rows`: see `verify`.

    Raises:
        NotFoundError: there is no snapshot there.
        CorruptDataError: it is damaged, or the ledger is.
    """
    if not (folder / MANIFEST).exists():
        raise NotFoundError("there is no snapshot in this folder")
    found = manifest_of(folder)
    verify(folder, found, databases, budget, rows=rows)
    ledger = Ledger(folder.parent)
    return CheckedSnapshot(
        folder / DATABASE,
        folder / KEY if found.encrypted else None,
        found.state,
        forgotten_seqs(ledger, found.state),
        ledger.is_missing(),
    )
