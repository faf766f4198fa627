"""The user's keys from the settings, and the data key of the directory that they open."""

from __future__ import annotations

import stat
from pathlib import Path

import structlog

from semanticrecall_core.encryption import KEY_FILE, DataKey, UserKeys, unlocked, user_key
from semanticrecall_core.types.errors import (
    FailedPreconditionError,
    SemanticRecallError,
    UnsafeEnvironmentError,
)

from .config import Settings

_KEY_FILE_BYTES_MAX = 4096
_log = structlog.get_logger(__name__)


def user_keys(settings: Settings) -> UserKeys:
    """The keys that the settings name.

    Raises:
        UnsafeEnvironmentError: a file cannot be read, or holds no key.
    """
    given = settings.encryption_key.get_secret_value()
    current: bytes | None = None
    if given:
        current = _key_of(given, "--encryption-key")
    elif settings.encryption_key_file is not None:
        current = read_key_file(settings.encryption_key_file, "--encryption-key-file")
    old = settings.encryption_old_key_file
    return UserKeys(
        current=current,
        old=None if old is None else read_key_file(old, "--encryption-old-key-file"),
    )


def read_key_file(path: Path, flag: str) -> bytes:
    """The key in a file.

    Args:
        path: of the file.
        flag: names it in an error.

    Raises:
        UnsafeEnvironmentError: the file cannot be read, or holds no key.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UnsafeEnvironmentError(
            f"{flag}: {path} cannot be read: {error.strerror}", reason="ENCRYPTION_KEY_UNREADABLE"
        ) from error
    return _key_of(content.decode("ascii", "replace"), flag)


def data_key(settings: Settings, *, begin: bool = False) -> DataKey | None:
    """The data key of the data directory, which is claimed; None where it is plain.

    Where there is an old key, the saved snapshots of it are opened by the new one from here on too.

    Args:
        settings: name the directory and the keys.
        begin: make the key of a directory that has no record yet; the first call of a process.

    Raises:
        UnsafeEnvironmentError: a key cannot be read, or KEY cannot be.
        FailedPreconditionError, CorruptDataError: see `encryption.unlocked`.
    """
    keys = user_keys(settings)
    if begin:
        _warn_of_open_files(settings)
    try:
        if (settings.data_dir / KEY_FILE).exists():
            _require_one_of(settings.data_dir, keys)
            # Before the directory's own key: once that is changed nobody gives the old one again.
            _change_saved(settings.saved_dir, keys)
            found = unlocked(settings.data_dir, keys)
        else:
            found = unlocked(settings.data_dir, keys, begin=begin)
            _change_saved(settings.saved_dir, keys)
    except OSError as error:
        raise UnsafeEnvironmentError(
            f"the file {KEY_FILE} of the data directory cannot be used: {error.strerror}",
            reason="DATA_DIRECTORY_UNUSABLE",
        ) from error
    return found


def _warn_of_open_files(settings: Settings) -> None:
    """Containers often mount secrets readable for all, so that this is no reason to refuse."""
    for path in (settings.encryption_key_file, settings.encryption_old_key_file):
        mode = 0 if path is None else stat.S_IMODE(path.stat().st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            _log.warning("encryption_key_file_open_to_others", mode=f"{mode:04o}")


def _require_one_of(data_dir: Path, keys: UserKeys) -> None:
    """Nothing is changed, of the snapshots either, where neither key is the directory's."""
    if keys.current is None or keys.old is None:
        return  # nothing will be
    try:
        unlocked(data_dir, UserKeys(current=keys.current))
    except FailedPreconditionError:
        unlocked(data_dir, UserKeys(current=keys.old))


def _change_saved(saved_dir: Path, keys: UserKeys) -> None:
    if keys.old is None:
        return
    for path in sorted(saved_dir.glob(f"*/{KEY_FILE}")):
        try:
            unlocked(path.parent, keys)
        except (OSError, SemanticRecallError) as error:
            reason = getattr(error, "reason", "") or type(error).__name__
            _log.warning("snapshot_key_not_changed", snapshot=path.parent.name, reason=reason)


def _key_of(text: str, flag: str) -> bytes:
    key = user_key(text)
    if key is None:
        raise UnsafeEnvironmentError(
            f"{flag}: must be 64 hexadecimal digits, as `semanticrecall key new` prints them",
            reason="ENCRYPTION_KEY_INVALID",
        )
    return key
