"""`semanticrecall snapshot restore PATH --data-dir DIR`: arguments, keys, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semanticrecall_server.restore_command import restore
from support.saved_worlds import SavedWorld, texts
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    world = SavedWorld(tmp_path)
    world.add("u", ["one", "two", "three"])
    made = world.create()
    world.forget("u", "two")
    folder = world.path(made).parent
    world.close()
    return folder


@pytest.fixture(autouse=True)
def _no_key_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEMANTICRECALL_ENCRYPTION_KEY", "SEMANTICRECALL_ENCRYPTION_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("style", ["json", "table"])
def test_a_snapshot_is_restored(
    snapshot: Path, tmp_path: Path, style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "restored"
    assert restore([str(snapshot), "--data-dir", str(target), "--format", style]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    if style == "json":
        counts = json.loads(shown.out)
        assert counts == {"messages": 2, "vectors": 2, "forgotten": 1, "without_ledger": False}
    else:
        assert shown.out == (
            f"Restored 2 messages and 2 vectors into {target}; 1 were forgotten since and left "
            "out.\n"
        )
    store = open_store(target, generation="two numbers", analyser=WordAnalyser())
    found = texts(store)
    store.close()
    assert found == {"u": ["one", "three"]}


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read"), ("key", "64 hexadecimal digits"), ("\xe9", "cannot be read")],
)
def test_a_key_file_that_holds_no_key(
    snapshot: Path,
    tmp_path: Path,
    content: str | None,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_text(content, encoding="utf-8")
    target = tmp_path / "restored"
    flags = ["--data-dir", str(target), "--encryption-key-file", str(key)]
    assert restore([str(snapshot), *flags]) == 1
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("\n") == 1
    assert not target.exists()


def test_where_no_ledger_lies_beside_it(
    snapshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (snapshot.parent / "FORGOTTEN").unlink()
    assert restore([str(snapshot), "--data-dir", str(tmp_path / "restored")]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Restored 3 messages")
    assert shown.err == (
        "semanticrecall: no FORGOTTEN lies beside the snapshot: what was forgotten since it was "
        "made may have come back\n"
    )


def test_a_plain_snapshot_with_a_key(
    snapshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4)
    target = tmp_path / "restored"
    flags = ["--data-dir", str(target), "--encryption-key-file", str(key)]
    assert restore([str(snapshot), *flags]) == 1
    assert "the snapshot is not encrypted, and a key was given" in capsys.readouterr().err
    assert not target.exists()


def test_what_is_no_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert restore([str(tmp_path), "--data-dir", str(tmp_path / "restored")]) == 1
    assert capsys.readouterr().err.startswith("semanticrecall: ")


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        restore(["somewhere"])
    assert ended.value.code == 2
    assert "--data-dir" in capsys.readouterr().err
