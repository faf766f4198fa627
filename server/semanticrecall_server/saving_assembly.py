"""The folder of saved snapshots that an engine keeps."""

from __future__ import annotations

from pathlib import Path

from semanticrecall_core.encryption import KEY_FILE, Purpose, UserKeys, unlocked
from semanticrecall_core.engine import Engine
from semanticrecall_core.engine.saving import Saving
from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.messages.saved_database import SqliteSavedDatabases
from semanticrecall_core.saving import SavedSnapshots

from .admin import server_version
from .config import Settings
from .encryption_keys import user_keys


def keep_snapshots(settings: Settings, store: SqliteMessageStore, engine: Engine) -> None:
    """Give an engine that is not started yet the snapshots of the settings' folder."""
    databases = saved_databases(user_keys(settings))
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


def saved_databases(keys: UserKeys) -> SqliteSavedDatabases:
    """Saved databases, each opened with the key in its own folder."""

    def key_of(folder: Path) -> bytes | None:
        found = unlocked(folder, keys, plain_allowed=True)
        return None if found is None else found.subkey(Purpose.RECORD)

    return SqliteSavedDatabases(key_of=key_of)
