"""A change of the key that is broken off: whoever has the key in force opens the snapshots too."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from semanticrecall_core.encryption import UserKeys, unlocked
from semanticrecall_core.types.errors import FailedPreconditionError
from semanticrecall_server.encryption_keys import data_key
from semanticrecall_server.settings_loading import load_settings

SNAPSHOTS = 3
KEY = "KEY"


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_at(step: int, call: Callable[..., None]) -> Callable[..., None]:
    left = [step]

    def counted(*arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        call(*arguments)

    return counted


def new_key(path: Path) -> Path:
    path.write_text(secrets.token_hex(32), encoding="ascii")
    path.chmod(0o600)
    return path


def key_in(path: Path) -> bytes:
    return bytes.fromhex(path.read_text(encoding="ascii"))


def opens(folder: Path, key: bytes) -> bool:
    try:
        return unlocked(folder, UserKeys(current=key)) is not None
    except FailedPreconditionError:
        return False


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """An encrypted directory, begun with key "old", and snapshots of it."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    old = key_in(new_key(tmp_path / "old"))
    assert unlocked(data_dir, UserKeys(current=old), begin=True)
    snapshots = [tmp_path / "saved" / f"snapshot-{number}" for number in range(SNAPSHOTS)]
    for each in snapshots:
        each.mkdir(parents=True)
        shutil.copy(data_dir / KEY, each / KEY)
    return [data_dir, *snapshots]


def change(home: Path, new: Path, old: Path) -> None:
    settings = load_settings(
        data_dir=home / "data",
        snapshots_dir=home / "saved",
        encryption_key_file=new,
        encryption_old_key_file=old,
    )
    data_key(settings)


@pytest.mark.parametrize("step", range(SNAPSHOTS + 2))
def test_the_key_in_force_opens_all_or_the_change_is_made_again(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    old, new = tmp_path / "old", new_key(tmp_path / "new")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", killed_at(step, os.rename))
        try:
            change(tmp_path, new, old)
            assert step == SNAPSHOTS + 1
        except Killed:
            assert step <= SNAPSHOTS
    if opens(folders[0], key_in(new)):
        assert all(opens(each, key_in(new)) for each in folders)
    else:
        assert opens(folders[0], key_in(old))
        change(tmp_path, new, old)
        assert all(opens(each, key_in(new)) for each in folders)
    assert not any(opens(each, key_in(old)) for each in folders)


def test_with_two_wrong_keys_nothing_is_changed(folders: list[Path], tmp_path: Path) -> None:
    """Although one of them opens the snapshots."""
    data_dir, *snapshots = folders
    new = new_key(tmp_path / "new")
    shutil.rmtree(data_dir)
    data_dir.mkdir()
    assert unlocked(data_dir, UserKeys(current=secrets.token_bytes(32)), begin=True)
    before = [(each / KEY).read_bytes() for each in folders]
    with pytest.raises(FailedPreconditionError):
        change(tmp_path, new, tmp_path / "old")
    assert [(each / KEY).read_bytes() for each in folders] == before
    assert all(opens(each, key_in(tmp_path / "old")) for each in snapshots)
