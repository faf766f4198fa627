"""What the command line says where there is nothing, and what `export` leaves behind."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semanticrecall import DataLossError, Message, RecallClient, Role
from semanticrecall.cli.app import app
from support.fake_sidecar import Shelf

Run = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("SEMANTICRECALL_ADDRESS", address)
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments))

    return invoke


@pytest.mark.parametrize(
    "target", [("-m", "nosuch"), ("--everything",), ("--author", "Kim"), ("--thread", "t")]
)
@pytest.mark.parametrize("more", [(), ("--purge",)])
def test_a_forget_that_matched_nothing_says_so(
    run: Run, shelf: Shelf, target: tuple[str, ...], more: tuple[str, ...]
) -> None:
    result = run("forget", "nosuch", *target, "--yes", *more)
    assert result.exit_code == 0
    assert result.stdout == "Nothing matched; nothing was forgotten.\n"
    assert result.stderr == ""


def test_a_resource_without_messages_is_said(run: Run) -> None:
    asked = [(name, *form) for name in ("verify", "export") for form in ((), ("-f", "json"))]
    for name, *form in asked:
        nothing = run(name, "nosuch", *form)
        assert nothing.exit_code == 0
        assert nothing.stderr == "nosuch has no messages.\n"
    assert run("verify").stderr == ""
    run("index", "u", "t", "fine", "--id", "a")
    for name, *form in asked:
        assert run(name, "u", *form).stderr == ""


def test_an_exported_file_is_for_its_owner_alone(run: Run, folder: Path) -> None:
    run("index", "u", "t", "fine", "--id", "a")
    path = folder / "u.jsonl"
    result = run("export", "u", "-o", str(path))
    assert result.exit_code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == run("export", "u").stdout_bytes
    assert list(folder.iterdir()) == [path]


def test_a_file_that_is_there_is_left_as_it_is(run: Run, folder: Path) -> None:
    path = folder / "u.jsonl"
    path.write_text("mine")
    dangling = folder / "link"
    dangling.symlink_to(folder / "nowhere")
    for taken in (path, dangling):
        result = run("export", "u", "-o", str(taken))
        assert result.exit_code == 2
        assert "File exists" in result.stderr
    assert path.read_text() == "mine"
    assert sorted(folder.iterdir()) == [dangling, path]


@pytest.mark.parametrize(
    "failure", [DataLossError("a page is damaged"), KeyboardInterrupt(), OSError(28, "full")]
)
def test_an_export_that_fails_leaves_nothing_behind(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    run("index", "u", "t", "fine", "--id", "a")
    path = folder / "u.jsonl"

    def exported(*_: object, **__: object) -> Iterator[Message]:
        yield Message(Role.USER, "fine")
        raise failure

    with monkeypatch.context() as broken:
        broken.setattr(RecallClient, "export", exported)
        assert run("export", "u", "-o", str(path)).exit_code != 0
    assert list(folder.iterdir()) == []
    assert run("export", "u", "-o", str(path)).exit_code == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["verify"], "Does not bound this command: it may take an hour."),
        (["purge"], "Does not bound this command: it may take an hour."),
        (["reembed"], "Does not bound this command: it may take an hour."),
        (["export"], "Does not bound this command: it may take an hour."),
        (["snapshot", "create"], "Does not bound this command: it may take an hour."),
        (["snapshot", "restore"], "Does not bound this command: it may take an hour."),
        (["snapshot", "list"], "What a call may take."),
        (["recall"], "What a call may take."),
        (["forget"], "What a call may take; with --purge an hour, whatever this says."),
    ],
)
def test_the_help_says_what_the_timeout_bounds(run: Run, command: list[str], said: str) -> None:
    shown = " ".join(run(*command, "--help").stdout.replace("│", " ").split())
    assert f"{said} [default: 30.0]" in shown
