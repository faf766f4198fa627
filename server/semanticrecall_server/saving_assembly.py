"""The folder of saved snapshots that an engine keeps."""

from __future__ import annotations

from pathlib import Path

from semanticrecall_core.encryption import KEY_FILE, Purpose, UserKeys, unlocked
from semanticrecall_core.engine import Engine
from semanticrecall_core.engine.saving import Saving
from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.messages.saved_database import SqliteSavedDatabases
from semanticrecall_core.saving import SavedSnapshots
from semanticrecall_core.types.errors import FailedPreconditionError

from .admin import server_version
from .config import Settings
from .encryption_keys import user_keys

_KEY_HINT = (
    "the snapshot is encrypted with another key than this server has; the server must run with the "
    "key of that snapshot (serve --encryption-key-file)"
)


def keep_snapshots(settings: Settings, store: SqliteMessageStore, engine: Engine) -> None:
    """Give an engine that is not started yet the snapshots of the settings' folder."""
    databases = saved_databases(user_keys(settings), key_hint=_KEY_HINT)
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


def saved_databases(keys: UserKeys, *, key_hint: str = "") -> SqliteSavedDatabases:
    """Saved databases, each opened with the key in its own folder.

    Args:
        keys: the user's.
        key_hint: said in place of which flag to give, where that is none of the caller's.
    """

    def key_of(folder: Path) -> bytes | None:
        try:
            found = unlocked(folder, keys, plain_allowed=True)
        except FailedPreconditionError as error:
            if not key_hint:
                raise
            raise FailedPreconditionError(key_hint, reason=error.reason) from error
        return None if found is None else found.subkey(Purpose.RECORD)

    return SqliteSavedDatabases(key_of=key_of)
