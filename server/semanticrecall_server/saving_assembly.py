"""The folder of saved snapshots, and restoring one of it where no server runs."""

from __future__ import annotations

from pathlib import Path

from semanticrecall_core.encryption import KEY_FILE, Purpose, UserKeys, unlocked
from semanticrecall_core.engine import Engine
from semanticrecall_core.engine.offline_restore import restore_offline as _restore_offline
from semanticrecall_core.engine.saving import Saving
from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.messages.saved_database import SqliteSavedDatabases
from semanticrecall_core.saving import SavedSnapshots, checked
from semanticrecall_core.types.saving import RestoreCounts
from semanticrecall_core.types.values import CallBudget

from .admin import server_version
from .config import Settings
from .encryption_keys import user_keys


def keep_snapshots(settings: Settings, store: SqliteMessageStore, engine: Engine) -> None:
    """Give an engine that is not started yet the snapshots of the settings' folder."""
    databases = _databases(user_keys(settings))
    snapshots = SavedSnapshots(
        settings.saved_dir,
        databases,
        program_version=server_version(),
        key_file=settings.data_dir / KEY_FILE,
    )
    engine.saving = Saving(
        store.saving(databases),
        snapshots,
        index_identity=lambda: engine.index_identity,
        take_up_pending=engine.take_up_pending,
    )


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
        key: the user's, 32 bytes, where the snapshot is encrypted.
        allow_network_filesystem: as the setting of the same name.

    Raises:
        SemanticRecallError: see `semanticrecall_core.engine.offline_restore.restore_offline`.
    """
    return _restore_offline(
        data_dir,
        snapshot,
        _databases(UserKeys(current=key, old=None)),
        _UNLIMITED,
        allow_shared_file_system=allow_network_filesystem,
    )


def verify_offline(snapshot: Path, *, key: bytes | None = None) -> None:
    """Read a snapshot in full; CorruptDataError where something does not agree."""
    checked(snapshot, _databases(UserKeys(current=key, old=None)), _UNLIMITED)


_UNLIMITED = CallBudget(float("inf"))


def _databases(keys: UserKeys) -> SqliteSavedDatabases:
    def key_of(folder: Path) -> bytes | None:
        found = unlocked(folder, keys, plain_allowed=True)
        return None if found is None else found.subkey(Purpose.RECORD)

    return SqliteSavedDatabases(key_of=key_of)
