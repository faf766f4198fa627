"""The command that a result names repeats the run, and a result is not lost."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import store_builder
from benchmarks.report import Result, as_json, flag, run_script


@dataclass(frozen=True, slots=True)
class Config:
    """Of a script that measures nothing."""

    calls: int = flag(200, "calls")
    seed: int = flag(7, "seed")
    name: str = flag("a", "name", str)


SMOKE = {"calls": 3}


def measured(monkeypatch: pytest.MonkeyPatch, *flags: str) -> Config:
    """What is measured with these flags."""
    found: list[Config] = []

    def measure(config: Config) -> Result:
        found.append(config)
        return Result()

    monkeypatch.setattr(sys, "argv", ["script", *flags])
    run_script("A script.", Config, measure, smoke=SMOKE)
    return found[0]


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ((), "python -m benchmarks.script"),
        (("--seed", "8"), "python -m benchmarks.script --seed 8"),
        (("--name", "b c"), "python -m benchmarks.script --name 'b c'"),
        (("--smoke",), "python -m benchmarks.script --smoke"),
        (("--smoke", "--seed", "8"), "python -m benchmarks.script --seed 8 --smoke"),
        (("--smoke", "--calls", "3"), "python -m benchmarks.script --smoke"),
        # The usual number is none that a smoke run takes.
        (("--smoke", "--calls", "200"), "python -m benchmarks.script --calls 200 --smoke"),
        (("--calls", "3"), "python -m benchmarks.script --calls 3"),
    ],
)
def test_the_command_repeats_the_run_and_says_that_it_is_a_smoke_run(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], command: str
) -> None:
    config = measured(monkeypatch, *flags)
    is_smoke = "--smoke" in flags
    written = as_json("script", config, Result(), smoke=SMOKE if is_smoke else None)
    assert (written["command"], written["smoke"]) == (command, is_smoke)
    again = command.replace("'b c'", "b_c").split()[3:]
    repeated: dict[str, Any] = asdict(measured(monkeypatch, *again))
    assert repeated == {**asdict(config), "name": config.name.replace(" ", "_")}


@dataclass(frozen=True, slots=True)
class WithStores:
    """Of a script that builds large stores."""

    data_dir: Path | None = flag(None, "where they are", Path)  # noqa: RUF009


@pytest.mark.parametrize("flags", [(), ("--smoke",)])
def test_a_smoke_run_leaves_the_large_stores_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
) -> None:
    found: list[WithStores] = []

    def measure(config: WithStores) -> Result:
        found.append(config)
        return Result()

    monkeypatch.setattr(sys, "argv", ["script", "--data-dir", str(tmp_path), *flags])
    run_script("A script.", WithStores, measure, smoke={})
    assert found == [WithStores(tmp_path / "smoke" if flags else tmp_path)]
    assert f"data_dir={tmp_path}\n" in capsys.readouterr().out


def test_a_result_that_cannot_be_written_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        measured(monkeypatch, "--json", str(tmp_path / "not-there" / "result.json"))
    assert ended.value.code == 2


def test_a_store_that_was_found_says_nothing_of_the_speed_of_building(tmp_path: Path) -> None:
    config = store_builder.Config(data_dir=tmp_path, resources=2, messages=6)
    built, found = (store_builder.measure(config).figures for _ in range(2))
    assert (built["built"], found["built"]) == (True, False)
    assert built["messages/s"] == pytest.approx(6 / built["seconds"])
    assert "messages/s" not in found
