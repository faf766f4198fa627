"""Keys in settings: what does not fit together is refused in words, and no key is ever shown."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from semanticrecall_core.encryption import KEY_FILE
from semanticrecall_core.types.errors import UnsafeEnvironmentError
from semanticrecall_server import encryption_keys
from semanticrecall_server.config import SettingsError
from semanticrecall_server.key_commands import key
from semanticrecall_server.settings_loading import load_settings

DIGITS = "0123456789abcdef" * 4


def fault(**given: object) -> str:
    with pytest.raises(SettingsError) as refused:
        load_settings(**given)
    assert DIGITS not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{DIGITS}\n")
    path.chmod(0o600)
    return path


def test_settings_that_do_not_fit_together_are_refused(key_file: Path) -> None:
    name = str(key_file)
    assert "give one of them" in fault(encryption_key=DIGITS, encryption_key_file=name)
    assert "needs the new key" in fault(encryption_old_key_file=name)
    assert "given but empty" in fault(encryption_key="")
    for given in ({"encryption_key": DIGITS}, {"encryption_key_file": name}):
        assert "--memory low" in fault(memory="low", **given)


def test_a_key_comes_from_a_file_or_the_environment(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_file = load_settings(data_dir=str(tmp_path), encryption_key_file=str(key_file))
    assert encryption_keys.user_keys(from_file).current == bytes.fromhex(DIGITS)
    monkeypatch.setenv("SEMANTICRECALL_ENCRYPTION_KEY", DIGITS)
    from_environment = load_settings(data_dir=str(tmp_path))
    assert encryption_keys.user_keys(from_environment).current == bytes.fromhex(DIGITS)
    assert from_file.is_encrypted
    assert from_environment.is_encrypted
    assert DIGITS not in repr(from_environment)
    monkeypatch.delenv("SEMANTICRECALL_ENCRYPTION_KEY")
    plain = load_settings(data_dir=str(tmp_path))
    assert encryption_keys.user_keys(plain).current is None
    assert not plain.is_encrypted


@pytest.mark.parametrize("content", ["", "0123", "x" * 64, DIGITS + "0", DIGITS * 100, "\x00\xff"])
def test_what_is_no_key_is_refused_without_being_shown(content: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(content, "latin-1")
    settings = load_settings(data_dir=str(tmp_path / "data"), encryption_key_file=str(path))
    with pytest.raises(UnsafeEnvironmentError) as refused:
        encryption_keys.user_keys(settings)
    assert refused.value.message == (
        "--encryption-key-file: must be 64 hexadecimal digits, as `semanticrecall key new` prints "
        "them"
    )
    assert not (tmp_path / "data").exists()


def test_a_key_file_that_others_may_read_is_said(key_file: Path, tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir()
    settings = load_settings(data_dir=str(home), encryption_key_file=str(key_file))
    for mode, events in ((0o600, []), (0o640, ["encryption_key_file_open_to_others"])):
        key_file.chmod(mode)
        with capture_logs() as lines:
            assert encryption_keys.data_key(settings, begin=True) is not None
        assert [line["event"] for line in lines] == events
        assert DIGITS not in str(lines)
    assert stat.S_IMODE((home / KEY_FILE).stat().st_mode) == 0o600


def test_a_start_says_that_others_may_read_the_key_file(key_file: Path, tmp_path: Path) -> None:
    key_file.chmod(0o644)
    flags = {
        "--data-dir": tmp_path / "data",
        "--encryption-key-file": key_file,
        "--model-dir": tmp_path / "nowhere",
        "--listen": f"unix:{tmp_path}/socket",
    }
    command = [sys.executable, "-m", "semanticrecall_server"]
    command += [str(part) for flag in flags.items() for part in flag]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert '"encryption_key_file_open_to_others"' in ended.stderr
    assert DIGITS not in ended.stderr


def test_the_command_prints_a_new_key_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    printed = set()
    for _ in range(5):
        assert key(["new"]) == 0
        out, err = capsys.readouterr()
        assert re.fullmatch(r"[0-9a-f]{64}\n", out)
        assert err == ""
        printed.add(out)
    assert len(printed) == 5
    with pytest.raises(SystemExit):
        key(["--help"])
    assert "That is all it does" in capsys.readouterr().out
    for wrong in ([], ["old"], ["new", "more"]):
        with pytest.raises(SystemExit) as ended:
            key(wrong)
        assert ended.value.code == 2
