"""Snapshots where no server runs: restored into a data directory, and verified."""

from __future__ import annotations

from pathlib import Path

from semanticrecall_core.encryption import UserKeys
from semanticrecall_core.engine.offline_restore import restore_offline as _restore_offline
from semanticrecall_core.saving import checked
from semanticrecall_core.types.saving import RestoreCounts
from semanticrecall_core.types.values import CallBudget

from .saving_assembly import saved_databases

_UNLIMITED = CallBudget(float("inf"))


def restore_offline(
    data_dir: Path,
    snapshot: Path,
    *,
    key: bytes | None = None,
    allow_network_filesystem: bool = False,
) -> RestoreCounts:
    """Make a data directory of a snapshot.

    Args:
        data_dir: an empty directory, or one that is not there.
        snapshot: the folder, wherever it is; the ledger FORGOTTEN beside it counts.
        key: the user's, 32 bytes, where the snapshot is encrypted; a plain one is refused with it.
        allow_network_filesystem: as the setting of the same name.

    Raises:
        SemanticRecallError: see `semanticrecall_core.engine.offline_restore.restore_offline`.
    """
    return _restore_offline(
        data_dir,
        snapshot,
        saved_databases(UserKeys(current=key, old=None)),
        _UNLIMITED,
        allow_shared_file_system=allow_network_filesystem,
        encrypted=key is not None,
    )


def verify_offline(snapshot: Path, *, key: bytes | None = None) -> None:
    """Read a snapshot in full; CorruptDataError where something does not agree."""
    checked(snapshot, saved_databases(UserKeys(current=key, old=None)), _UNLIMITED)
