"""The benchmarks with bars run, at a size that proves nothing else, and their figures agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import smoke_runs

ROOT = Path(__file__).parents[2]
CALLS = 5
WRITERS = ("one writer", "32 writers")
SERIES = {"raw_embed", "raw_scan", "echo", "recall_cold", "recall_warm", "index_turn"}
CROWD = {"messages": "60", "crowd-messages": "240", "crowd-resources": "4"}


def run(module: str, file: Path, **flags: str) -> tuple[dict[str, Any], str]:
    """The result of a benchmark and what it printed."""
    arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
    return smoke_runs.run(module, file, *arguments)


def bar(result: dict[str, Any], name: str) -> float:
    """The ratio measured for the one bar whose name begins so; printed with its verdict."""
    found = [one for one in result["bars"] if one["name"].startswith(name)]
    assert len(found) == 1, result["bars"]
    at_most = {"at most": True, "at least": False}[found[0]["rule"]]
    measured, limit = found[0]["measured"], found[0]["limit"]
    assert found[0]["met"] is ((measured <= limit) if at_most else (measured >= limit))
    return float(measured)


def counts(result: dict[str, Any]) -> dict[str, int]:
    """Calls of each series."""
    return {name: latency["count"] for name, latency in result["latencies_ms"].items()}


def p50(result: dict[str, Any], series: str) -> float:
    """Median of a series, in milliseconds."""
    return float(result["latencies_ms"][series]["p50_ms"])


def test_the_first_table_is_measured_in_turns_and_in_loops(tmp_path: Path) -> None:
    result, printed = run("first_table", tmp_path / "result.json", messages="120", calls=str(CALLS))
    assert result["config"]["messages"] == 120
    assert set(counts(result).values()) == {CALLS}
    for order in ("turns", "loops"):
        assert {f"{order}: {series}" for series in SERIES} <= set(result["latencies_ms"])
        floor = sum(p50(result, f"{order}: {part}") for part in ("raw_embed", "raw_scan", "echo"))
        ratio = p50(result, f"{order}: recall_cold") / floor
        name = f"cold p50 / (embed + scan + echo), in {order}"
        measured = bar(result, name) if order == "turns" else result["figures"][name]
        assert measured == pytest.approx(ratio)
    assert f"answers {result['answers_digest']}" in printed


def test_the_hot_path_is_measured_with_both_clients(tmp_path: Path) -> None:
    result, printed = run("hot_path", tmp_path / "result.json", messages="120", calls=str(CALLS))
    assert set(counts(result).values()) == {CALLS}
    for client in ("sync", "aio"):
        label = f"{client} turns"
        floor = sum(p50(result, f"{label} {part}") for part in ("raw_embed", "raw_scan", "echo"))
        suffix = f", {client} client in turns"
        expected = {
            "cold p50 / (embed + scan + echo)": p50(result, f"{label} cold") / floor,
            "warm p50 / echo": p50(result, f"{label} warm") / p50(result, f"{label} echo_again"),
            "warm on a stream p50 / echo": p50(result, f"{label} warm_stream")
            / p50(result, f"{label} echo_stream"),
        }
        for name, ratio in expected.items():
            assert bar(result, name + suffix) == pytest.approx(ratio)
            assert f"{name}{suffix}: {ratio:.2f} (bar at most" in printed
    assert f"answers {result['answers_digest']}" in printed
    assert len(result["answers_digest"]) == 16


def test_throughput_is_measured_for_three_sizes_and_two_kinds(tmp_path: Path) -> None:
    result, _ = run("throughput", tmp_path / "result.json", messages="100", calls="70", rounds="1")
    figures = result["figures"]
    for size in (1, 10, 100):
        raw = figures[f"{size} messages, raw texts/s"]
        for kind in ("stream", "unary"):
            rate = figures[f"{size} messages, {kind}, recalls/s"]
            assert figures[f"{size} messages, {kind} / raw"] == pytest.approx(rate / raw)
    for kind in ("stream", "unary"):
        ratio = figures[f"100 messages, {kind} / raw"]
        assert bar(result, f"recalls/s, {kind}") == pytest.approx(ratio)


@pytest.mark.slow
def test_growth_compares_stores(tmp_path: Path) -> None:
    flags = {**CROWD, "large-messages": "300", "calls": str(CALLS), "data-dir": str(tmp_path)}
    result, _ = run("growth", tmp_path / "result.json", **flags)
    assert set(counts(result).values()) == {CALLS}
    for kind in ("cold", "warm"):
        ratio = p50(result, f"{kind}, crowded") / p50(result, f"{kind}, alone")
        assert bar(result, f"{kind} p50 with 240 messages") == pytest.approx(ratio)
    ratio = p50(result, "cold, 300 messages") / p50(result, "cold, 60 messages")
    assert bar(result, "cold p50 of a resource of 300") == pytest.approx(ratio)
    stores = {path.parent.name for path in tmp_path.glob("*/built.json")}
    assert stores == {"alone", "crowded", "sizes"}


@pytest.mark.slow
def test_starts_are_measured_in_every_state_of_the_snapshots(tmp_path: Path) -> None:
    flags = {**CROWD, "resources-asked": "3", "starts": "1"}
    result, _ = run("start", tmp_path / "result.json", **flags)
    assert result["figures"]["messages in snapshots"] == int(CROWD["crowd-messages"])
    for state in ("there", "missing", "damaged"):
        assert counts(result)[f"{state}: first"] == 3
        assert result["figures"][f"{state}: start, seconds"] > 0
    first = p50(result, "there: first")
    for series in ("new query", "asked again"):
        name = f"there: first recall of a resource p50 / p99 of {series}"
        p99 = result["latencies_ms"][f"there: {series}"]["p99_ms"]
        assert bar(result, name) == pytest.approx(first / p99)
    seconds = result["figures"]["there: start, seconds"]
    assert bar(result, "there: start, seconds") == pytest.approx(seconds)


@pytest.mark.slow
def test_resident_memory_is_measured_in_both_modes(tmp_path: Path) -> None:
    result, _ = run("resident_memory", tmp_path / "result.json", **CROWD)
    for mode in ("default", "low"):
        resident = result["figures"][f"{mode}: bytes with all partitions"]
        assert bar(result, f"{mode}: resident bytes") == pytest.approx(
            resident / int(CROWD["crowd-messages"])
        )


def test_a_store_of_another_plan_is_built_anew(tmp_path: Path) -> None:
    flags = {"resources": "3", "data-dir": str(tmp_path / "store")}
    for messages, built in (("10", True), ("10", False), ("11", True)):
        result, _ = run("store_builder", tmp_path / "result.json", messages=messages, **flags)
        assert result["figures"]["built"] is built
    smoke_runs.assert_store_is_as_built(tmp_path / "store", messages=11, resources=3)


def test_imports_are_measured_new_and_again(tmp_path: Path) -> None:
    result, _ = run("import_speed", tmp_path / "result.json", messages="110", rounds="1")
    figures = result["figures"]
    new = figures["new: messages/s"]
    raw = figures["raw texts/s"]
    assert bar(result, "import of new text / raw") == pytest.approx(new / raw)
    for kind in ("same ids", "new ids"):
        ratio = figures[f"{kind}: messages/s"] / new
        assert bar(result, f"import of the same texts, {kind}") == pytest.approx(ratio)


@pytest.mark.slow
def test_group_commits_are_measured_on_two_disks(tmp_path: Path) -> None:
    result, _ = run(
        "group_commit", tmp_path / "result.json", turns="64", waits=str(CALLS), rounds="1"
    )
    assert set(counts(result).values()) == {CALLS}
    for disk in ("this disk", "fsync + 2 ms"):
        one, many = (result["figures"][f"{disk}: turns/s of {w}"] for w in WRITERS)
        assert bar(result, f"{disk}: durable turns/s") == pytest.approx(many / one)
        floor = p50(result, f"{disk}: fdatasync") + p50(result, f"{disk}: echo")
        ratio = p50(result, f"{disk}: turn of one writer") / floor
        assert bar(result, f"{disk}: one writer's p50") == pytest.approx(ratio)
    # The pause is in the sidecar's own syncs, not only in the floor it is compared with.
    assert p50(result, "fsync + 2 ms: turn of one writer") >= 2


def test_recalls_are_measured_under_an_import(tmp_path: Path) -> None:
    result, _ = run("recall_under_import", tmp_path / "result.json", messages="60", calls="20")
    idle, busy = "cold, idle", "cold, under import"
    assert counts(result)[idle] == counts(result)[busy] == 20
    ratio = p50(result, busy) / p50(result, idle)
    assert bar(result, "p50 under import") == pytest.approx(ratio)


def test_the_table_of_bars_says_what_was_met_and_what_failed() -> None:
    results = [
        {
            "script": "one",
            "smoke": False,
            "bars": [
                {"name": "a / b", "measured": 1.236, "limit": 1.2, "rule": "at most", "met": False},
                {"name": "c / d", "measured": 16.0, "limit": 15, "rule": "at least", "met": True},
            ],
        },
        {
            "script": "smoked",
            "smoke": True,
            "bars": [{"name": "a", "measured": 1, "limit": 2, "rule": "at most", "met": True}],
        },
        {"script": "two", "error": "exit status 1"},
    ]
    program = (
        "import json, sys; from benchmarks.bars import markdown;"
        " print(markdown(json.load(sys.stdin)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        input=json.dumps(results),
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.splitlines()[2:] == [
        "| `one` | a / b | at most 1.2 | 1.24 | **no** |",
        "| `one` | c / d | at least 15 | 16.00 | yes |",
        "| `smoked` | a | at most 2 | 1.00 | a smoke run: means nothing |",
        "| `two` | failed: exit status 1 | | | |",
    ]


@pytest.mark.slow
def test_the_table_of_bars_is_filled_by_the_benchmarks(tmp_path: Path) -> None:
    file, table = tmp_path / "bars.json", tmp_path / "bars.md"
    arguments = ["--quick", "--only", "import_speed", "--json", str(file), "--markdown", str(table)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.bars", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=100,
    )
    written = json.loads(file.read_text())
    assert written["size"] == "quick"
    assert [result["script"] for result in written["results"]] == ["import_speed"]
    assert table.read_text().count("| `import_speed` |") == len(written["results"][0]["bars"]) == 3
