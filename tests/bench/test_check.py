"""The regression gate: what it stores, what it compares, what it says and exits with."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import check
from benchmarks.calibration import PARTS, Libraries, Times
from benchmarks.key_figures import FIGURES, Figure, Round
from benchmarks.noise_bounds import REPEATS_MIN, Verdict
from support import smoke_runs

CONFIG = check.Config(**check.SMOKE)
COLD = next(figure for figure in FIGURES if figure.name == "recall of a new query")


def a_round(factor: float = 1.0, machine: float = 1.0, slower: Figure | None = None) -> Round:
    """Every part takes 1 ms, every figure 3 ms, on a machine slower by `machine`."""
    times = Times()
    for part in PARTS:
        times.add(part, 0.001 * machine)
    for figure in FIGURES:
        times.add(figure.name, 0.003 * machine * (factor if slower in (None, figure) else 1.0))
    return Round.of(times, "d" * 16)


def runs(scatter: Sequence[float] = (0.98, 0.99, 1.0, 1.01, 1.02)) -> list[list[Round]]:
    """As many runs as there are factors, of three rounds each."""
    return [[a_round(factor)] * 3 for factor in scatter]


def stored(path: Path, **changed: Any) -> Path:
    """A baseline file of `runs`."""
    written = {**check.baseline_of(runs(), CONFIG), **changed}
    path.write_text(json.dumps(written))
    return path


def test_every_figure_names_parts_that_are_measured() -> None:
    assert len({figure.name for figure in FIGURES}) == len(FIGURES) == 8
    assert {part for figure in FIGURES for part in figure.parts} == set(PARTS)


def test_a_baseline_holds_the_ratio_of_every_round() -> None:
    written = json.loads(json.dumps(check.baseline_of(runs(), CONFIG)))
    assert list(written["figures"]) == [figure.name for figure in FIGURES]
    cold = written["figures"][COLD.name]
    # 3 ms over three parts of 1 ms, times the factor of its run.
    assert cold["runs"] == [[factor] * 3 for factor in (0.98, 0.99, 1.0, 1.01, 1.02)]
    assert cold["median"] == 1.0
    assert cold["spread"] == pytest.approx(0.0158, abs=1e-4)  # of 0.98 ... 1.02
    assert written["parts_ms"] == dict.fromkeys(PARTS, 1.0)
    assert "commit" not in written
    assert written["command"].startswith("python -m benchmarks.check ")


def test_runs_can_be_added_to_a_baseline() -> None:
    first = check.Baseline(check.baseline_of(runs(), CONFIG))
    written = check.baseline_of(runs((1.1,)), CONFIG, first)
    assert written["figures"][COLD.name]["runs"][-2:] == [[1.02] * 3, [1.1] * 3]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, Verdict.AS_BEFORE), (1.4, Verdict.SLOWER), (0.6, Verdict.QUICKER)],
)
def test_one_figure_that_changed_is_named_and_no_other(factor: float, verdict: Verdict) -> None:
    baseline = check.Baseline(check.baseline_of(runs(), CONFIG))
    changes = check.compare(baseline, [a_round(factor, slower=COLD)] * 3)
    assert set(changes) == {figure.name for figure in FIGURES}
    assert changes.pop(COLD.name).verdict is verdict
    assert {one.verdict for one in changes.values()} == {Verdict.AS_BEFORE}


def test_a_machine_of_half_the_speed_changes_nothing() -> None:
    baseline = check.Baseline(check.baseline_of(runs(), CONFIG))
    changes = check.compare(baseline, [a_round(machine=2.0)] * 3)
    assert [one.ratio for one in changes.values()] == pytest.approx([1.0] * 8, abs=1e-3)


def test_a_figure_whose_parts_changed_is_not_compared(tmp_path: Path) -> None:
    written = check.baseline_of(runs(), CONFIG)
    written["figures"][COLD.name]["compared_with"] = ["embed"]
    baseline = check.Baseline(written)
    changes = check.compare(baseline, [a_round()] * 3)
    assert set(changes) == {figure.name for figure in FIGURES} - {COLD.name}
    table = check.rows([a_round()] * 3, baseline, changes)
    assert {row["figure"] for row in table if row["verdict"] == "no baseline"} == {COLD.name}


def test_another_machine_and_other_libraries_are_said() -> None:
    written = check.baseline_of(runs(), CONFIG)
    now = {"machine": "a", "versions": {**written["versions"], "grpcio": "9"}}
    written["machine"] = "b"
    before = written["versions"]["grpcio"]
    assert check.Baseline(written).differences(now) == [
        "another machine: the baseline is of b",
        f"grpcio 9, in the baseline {before}",
    ]


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format"):
        check.Baseline({**check.baseline_of(runs(), CONFIG), "format": 0})


def call(monkeypatch: pytest.MonkeyPatch, rounds: list[Round], *flags: str) -> int:
    """The command line, with rounds that were measured elsewhere; its exit status."""
    waiting = iter(rounds)
    monkeypatch.setattr(check, "prepare", lambda *_: None)
    monkeypatch.setattr(Libraries, "load", lambda *_, **__: None)
    monkeypatch.setattr(check, "measure_round", lambda *_: next(waiting))
    monkeypatch.setattr(sys, "argv", ["check", "--smoke", *flags])
    return check.main()


@pytest.mark.parametrize(
    ("factor", "flags", "status"),
    [(1.5, (), 0), (1.5, ("--strict",), 1), (1.0, ("--strict",), 0), (0.5, ("--strict",), 0)],
)
def test_only_strict_fails_and_only_where_it_is_slower(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    flags: tuple[str, ...],
    status: int,
) -> None:
    baseline = ("--baseline", str(stored(tmp_path / "baseline.json")))
    assert call(monkeypatch, [a_round(factor)] * 3, *baseline, *flags) == status


def test_without_a_baseline_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--baseline", str(tmp_path / "none.json"))
    assert call(monkeypatch, [a_round()] * 3, *flags) == 0
    assert "make bench-baseline" in capsys.readouterr().out
    assert call(monkeypatch, [a_round()] * 3, *flags, "--strict") == 2


def test_a_baseline_is_written_and_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "baseline.json"
    flags = ("--write-baseline", "--baseline", str(file))
    assert call(monkeypatch, [a_round()] * 3 * REPEATS_MIN, *flags, "--repeats", "5") == 0
    assert call(monkeypatch, [a_round(2.0)] * 3, *flags, "--repeats", "1", "--add") == 0
    written = json.loads(file.read_text())
    assert written["figures"][COLD.name]["runs"] == [*[[1.0] * 3] * REPEATS_MIN, [2.0] * 3]
    first, added = written["command"].split("; ")
    assert first.endswith(" --write-baseline --repeats 5")
    assert added.endswith(" --write-baseline --repeats 1 --add")
    stored(file, machine="another")
    assert call(monkeypatch, [a_round()] * 3, *flags, "--repeats", "1", "--add") == 2
    assert "another machine" in capsys.readouterr().out


def test_other_answers_than_the_baseline_s_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--baseline", str(stored(tmp_path / "baseline.json")))
    assert call(monkeypatch, [a_round()] * 3, *flags) == 0
    assert "more than speed" not in capsys.readouterr().out
    other = replace(a_round(), digest="e" * 16)
    assert call(monkeypatch, [other] * 3, *flags) == 0
    assert "more than speed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--write-baseline", "--repeats", "5"), "--smoke"),  # into the project's
        (("--write-baseline", "--repeats", "1", "--add", "--baseline", "none.json"), "--repeats"),
        (("--json", "not-there/result.json"), "--json"),
    ],
)
def test_what_would_be_lost_or_overwritten_is_refused_before_it_is_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, [], *flags)
    assert ended.value.code == 2
    assert f"error: {said}" in capsys.readouterr().err


def test_rounds_that_answer_differently_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(a_round(), digest="e" * 16)
    with pytest.raises(RuntimeError, match="differently"):
        call(monkeypatch, [a_round(), other], "--baseline", str(tmp_path / "none.json"))


@pytest.mark.slow
def test_rounds_are_measured_with_real_sidecars(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result, _ = smoke_runs.run("check", file, "--smoke", "--baseline", str(tmp_path / "none.json"))
    assert result["smoke"] is True
    assert len(result["answers_digest"]) == 16
    figures = {row["figure"]: row for row in result["tables"]["figures"]}
    parts = {row["part"]: row["ms"] for row in result["tables"]["parts"]}
    assert set(figures) == {figure.name for figure in FIGURES}
    assert set(parts) == set(PARTS)
    assert all(ms > 0 for ms in [*parts.values(), *(row["ms"] for row in figures.values())])


def test_the_stored_baseline_is_whole() -> None:
    baseline = check.Baseline(json.loads(check.BASELINE.read_text()))
    assert baseline.written["config"] == {
        field: getattr(check.Config(), field) for field in baseline.written["config"]
    }
    for figure in FIGURES:
        stored_runs = baseline.runs(figure)
        assert len(stored_runs) >= REPEATS_MIN
        middle = median(median(run) for run in stored_runs)
        assert baseline.written["figures"][figure.name]["median"] == pytest.approx(middle, rel=1e-3)
