"""The README's figures follow from stored results, and only a whole run writes them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import readme
from benchmarks.readme_table import (
    SCRIPTS,
    ResultsDoNotMatchError,
    block_of,
    rows,
    share,
    systems,
)

README = f"before\n{readme.BEGIN} (old) -->\nold figures\n{readme.END}\nafter\n"
CHROMA, SERVER, MISSING = "Chroma", "Chroma, server", "LanceDB"


def latency(p50_ms: float) -> dict[str, float]:
    """Percentiles of a series."""
    return {"count": 5, "p50_ms": p50_ms, "p95_ms": 2 * p50_ms, "p99_ms": 3 * p50_ms}


def recall(system: str, size: int, p50_ms: float, found: float, kind: str = "text") -> Any:
    """A row of the side by side."""
    return {
        "system": system,
        "user_messages": size,
        "kind": kind,
        "p50_ms": p50_ms,
        "p99_ms": 3 * p50_ms,
        "recall_share": found,
    }


def side_by_side() -> dict[str, Any]:
    """Ours, a library, a server, and one that is not installed."""
    ours, with_neighbours = "SemanticRecall", "SemanticRecall, with neighbours"
    return {
        "tables": {
            "recall": [
                recall(ours, 10, 4.0, 1.0),
                recall(with_neighbours, 10, 4.4, 1.0),
                recall(CHROMA, 10, 5.04, 0.9996),
                recall(SERVER, 10, 7.0, 0.9996),
                recall(ours, 2000, 12.4, 1.0),
                recall(with_neighbours, 2000, 13.0, 1.0),
                recall(CHROMA, 2000, 9.96, 0.955),
                recall(SERVER, 2000, 14.0, 0.955),
                recall(ours, 10, 0.1, 1.0, "vector"),
            ],
            "index": [
                {"system": ours, "kind": "text", "p50_ms": 9.0},
                {"system": ours, "kind": "durable", "p50_ms": 2.5, "p99_ms": 7.0},
                {"system": CHROMA, "kind": "text", "p50_ms": 15.0},
                {"system": CHROMA, "kind": "vector", "p50_ms": 7.0},
                {"system": SERVER, "kind": "text", "p50_ms": 17.0},
            ],
            "footprint": [
                {
                    "system": ours,
                    "resident_mb": 250.2,
                    "anonymous_mb": 90.6,
                    "model_in_it": True,
                    "disk_mb": 30.4,
                    "restart_s": 1.61,
                },
                {
                    "system": CHROMA,
                    "resident_mb": 400.0,
                    "anonymous_mb": 300.0,
                    "model_in_it": True,
                    "disk_mb": 80.0,
                    "restart_s": 2.0,
                },
                {
                    "system": SERVER,
                    "resident_mb": 200.0,
                    "anonymous_mb": 150.0,
                    "model_in_it": False,
                    "disk_mb": 81.0,
                    "restart_s": 2.5,
                },
            ],
            "setups": [
                {"system": ours, "status": "measured", "versions": "semanticrecall-sidecar 1"},
                {"system": CHROMA, "status": "measured", "versions": "chromadb 2"},
                {"system": SERVER, "status": "measured", "versions": "chromadb 2"},
                {"system": MISSING, "status": "not installed: lancedb", "versions": ""},
            ],
        },
        "config": {"sizes": "10,2000", "crowd_users": 3, "crowd_messages": 5, "top_k": 10},
    }


def results() -> dict[str, dict[str, Any]]:
    """A result of every script."""
    series = {"recall_cold": 6.0, "raw_embed": 3.0, "raw_scan": 0.5, "echo": 1.5}
    measured: dict[str, dict[str, Any]] = {
        "side_by_side": side_by_side(),
        "first_table": {
            "config": {"messages": 10_000},
            "latencies_ms": {
                "turns: recall_warm": latency(0.914),
                **{f"turns: {name}": latency(p50) for name, p50 in series.items()},
                **{f"loops: {name}": latency(p50) for name, p50 in series.items()},
                "loops: recall_cold": latency(8.0),
            },
        },
        "growth": {
            "config": {"messages": 10_000, "crowd_messages": 1_000_000},
            "latencies_ms": {"cold, crowded": latency(5.15), "cold, alone": latency(5.0)},
        },
        "import_speed": {
            "figures": {"new: messages/s": 454.4, "same ids: messages/s": 24_949.0},
        },
        "start": {
            "config": {"crowd_messages": 1_000_000, "crowd_resources": 10_000},
            "figures": {"there: start, seconds": 1.64},
        },
        "resident_memory": {
            "config": {"crowd_messages": 1_000_000},
            "figures": {
                "default: bytes with all partitions": 1.94e9,
                "low: bytes with all partitions": 0.654e9,
            },
        },
    }
    for name, result in measured.items():
        result |= {"script": name, "command": f"python -m benchmarks.{name}", "skipped": ""}
        result |= {"machine": "a machine", "versions": {"grpcio": "1"}, "smoke": False}
    return measured


def test_the_table_shows_what_was_measured() -> None:
    lines = block_of(results(), "a.svg").splitlines()
    assert lines[0].endswith("(a.svg)")
    assert lines[2:18] == [
        "| | SemanticRecall | Chroma | Chroma, server |",
        "|---|---|---|---|",
        "| recall of a new question, 10 messages of the user | **4.0 ms (100 %)** "
        "| 5.0 ms (99.9 %) | 7.0 ms (99.9 %) |",
        "| recall of a new question, 2,000 messages of the user | 12 ms (100 %) "
        "| **10.0 ms (95.5 %)** | 14 ms (95.5 %) |",
        "| the same with 2,000, a neighbour on each side of a hit, and a text for the prompt "
        "| 13 ms, p99 39 ms |  |  |",
        "| asked again, nothing changed | 0.91 ms, p99 2.7 ms |  |  |",
        "| index of a two-message turn, until it is found | **9.0 ms** | 15 ms | 17 ms |",
        "| index of the turn, until it is on disk: an agent need not wait longer "
        "| 2.5 ms, p99 7.0 ms |  |  |",
        "| restart, to the first answer, model loaded | **1.6 s** | 2.0 s | 2.5 s |",
        "| memory (without mapped files); disk, with 2,025 messages, in MB | 250 (91); 30 | "
        "400 (300); 80 | 200 (150) without the model; 81 |",
        "| a user of 10,000 messages among 1,000,000 of others, recall / alone | 1.03 |  |  |",
        "| start with 1,000,000 messages of 10,000 users, to SERVING | 1.6 s |  |  |",
        "| memory a message at 1,000,000, all in memory; `--memory low` | 1.9; 0.65 kB |  |  |",
        "| import of new text; the same messages again | 454/s; 24,900/s |  |  |",
        "| recall of a new question / the sum of its parts (embedding, int8 scan, gRPC echo) "
        "| 1.20 (in loops 1.60) |  |  |",
        "",
    ]


def test_under_the_table_stand_the_commands_and_what_was_not_measured() -> None:
    block = block_of(results(), "a.svg")
    commands = block.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert commands[0].startswith("make bench-readme ")
    assert [one.partition("   # ")[0] for one in commands[1:]] == [
        f"python -m benchmarks.{name}" for name in SCRIPTS
    ]
    assert all(one.partition("   # ")[2] for one in commands), "which rows are whose"
    place = "SemanticRecall is number 1 of 3 at 10 messages, number 2 of 3 at 2,000 messages."
    assert place in block
    for said in ("a machine", "chromadb 2", f"{MISSING} (not installed: lancedb)", "top 10"):
        assert said in block
    assert block.count("chromadb 2") == 1, "of the library and of the server"
    assert f"embed with the same model: {CHROMA}; and with {SERVER}, a process" in block
    assert "mean nothing" not in block
    smoke = results()
    for result in smoke.values():
        result["smoke"] = True
    assert "mean nothing" in block_of(smoke, "a.svg")


def test_a_system_that_was_not_measured_has_no_column() -> None:
    assert systems(side_by_side()) == ["SemanticRecall", CHROMA, SERVER]
    assert all(MISSING not in row.cells for row in rows(results()))


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "100 %"), (0.9999, "99.9 %"), (0.5, "50 %"), (0.0, "0 %")]
)
def test_a_share_is_rounded_down(value: float, text: str) -> None:
    assert share(value) == text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": "another"}, "machine"),
        ({"versions": {"grpcio": "2"}}, "versions"),
        ({"smoke": True}, "smoke"),
        ({"skipped": "no model"}, "growth"),
    ],
)
def test_results_that_do_not_belong_together_are_refused(
    changed: dict[str, Any], said: str
) -> None:
    mixed = results()
    mixed["growth"] |= changed
    with pytest.raises(ResultsDoNotMatchError, match=said):
        block_of(mixed, "a.svg")


def test_a_result_that_is_missing_is_named() -> None:
    few = results()
    del few["start"]
    with pytest.raises(ResultsDoNotMatchError, match="start"):
        block_of(few, "a.svg")


def test_only_what_is_between_the_markers_is_written() -> None:
    written = readme.with_block(README, "new\n")
    assert written == f"before\n{readme.BEGIN_LINE}\nnew\n{readme.END}\nafter\n"
    assert readme.with_block(written, "new\n") == written
    for broken in ("none", README + README, f"{readme.END} {readme.BEGIN}"):
        with pytest.raises(ValueError, match="must be there, once"):
            readme.with_block(broken, "new\n")


def test_kept_results_name_no_directory(tmp_path: Path) -> None:
    place = "/some/where"
    result = {
        "config": {"data_dir": place, "calls": 3},
        "command": f"python -m benchmarks.growth --data-dir {place} --calls 3",
    }
    kept = readme.without_places(result)
    assert kept["config"] == {"data_dir": "DIR", "calls": 3}
    assert kept["command"] == "python -m benchmarks.growth --data-dir DIR --calls 3"
    readme.keep({"growth": kept}, tmp_path / "new")
    assert readme.stored(tmp_path / "new") == {"growth": kept}


class Runs:
    """Benchmarks that are not run: each gives its stored result, or fails."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.results = results()
        self.flags: dict[str, Sequence[str]] = {}
        self.drawn: list[dict[str, Any]] = []

    def run(self, name: str, flags: Sequence[str]) -> dict[str, Any]:
        """As `bars.run_benchmark`."""
        self.flags[name] = flags
        if name == self.failing:
            return {"script": name, "error": "exit status 1"}
        result = copy.deepcopy(self.results[name])
        result["smoke"] = "--smoke" in flags
        return result

    def draw(self, result: Path, picture: Path) -> None:
        """As `readme.draw`."""
        self.drawn.append(json.loads(result.read_text()))
        assert picture.name == "latency-by-history.svg"


def patched(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> None:
    """Nothing is measured or drawn."""
    monkeypatch.setattr(readme, "run_benchmark", runs.run)
    monkeypatch.setattr(readme, "draw", runs.draw)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A README to be written."""
    path = tmp_path / "README.md"
    path.write_text(README)
    return path


def test_a_whole_run_keeps_results_and_writes_the_same_as_from_them(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    patched(monkeypatch, runs)
    kept = tmp_path / "figures"
    flags = ["--readme", str(file), "--results", str(kept), "--data-dir", str(tmp_path)]
    assert readme.main(flags) == 0
    assert list(runs.flags) == list(SCRIPTS)
    assert runs.flags["growth"] == ["--data-dir", str(tmp_path)]
    assert runs.flags["first_table"] == []
    assert {path.stem for path in kept.iterdir()} == set(SCRIPTS)
    assert file.read_text() == readme.with_block(README, block_of(results(), readme.PICTURE))
    assert runs.drawn[0]["script"] == "side_by_side"
    file.write_text(README)
    assert readme.main(["--from", str(kept), "--readme", str(file)]) == 0
    assert file.read_text() == readme.with_block(README, block_of(results(), readme.PICTURE))


def test_a_script_that_fails_leaves_the_readme_as_it_was(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(failing="growth")
    patched(monkeypatch, runs)
    kept = tmp_path / "figures"
    assert readme.main(["--readme", str(file), "--results", str(kept)]) == 1
    assert file.read_text() == README
    assert {path.stem for path in kept.iterdir()} == set(SCRIPTS) - {"growth"}
    assert "growth failed" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--write"]])
def test_a_smoke_run_is_written_only_when_told_to(
    file: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    runs = Runs()
    patched(monkeypatch, runs)
    assert readme.main(["--smoke", "--readme", str(file), *more]) == 0
    assert all("--smoke" in flags for flags in runs.flags.values())
    assert ("mean nothing" in file.read_text()) is bool(more)


def test_the_readme_shows_the_stored_results(tmp_path: Path) -> None:
    stored = readme.stored(readme.RESULTS)
    assert stored.keys() == set(SCRIPTS)
    text = readme.README.read_text("utf-8")
    assert readme.with_block(text, block_of(stored, readme.PICTURE)) == text
    picture = tmp_path / "picture.svg"
    readme.draw(readme.RESULTS / "side_by_side.json", picture)
    assert picture.read_bytes() == (readme.README.parent / readme.PICTURE).read_bytes()
    assert not any(result["smoke"] for result in stored.values())
