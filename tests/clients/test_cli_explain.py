"""`recall --explain`: why each hit was found, and why other candidates were not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

import semanticrecall as sr
from semanticrecall.cli.app import app
from semanticrecall.cli.explained import reason_of
from support.fake_engine import FakeEngine
from support.fake_sidecar import Shelf
from support.running_server import parts_of, running

Run = Callable[..., Any]


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a terminal that is so wide."""
    monkeypatch.setenv("SEMANTICRECALL_ADDRESS", address)

    def invoke(*arguments: str, columns: int = 200) -> Any:
        monkeypatch.setenv("COLUMNS", str(columns))
        return CliRunner().invoke(app, list(arguments))

    return invoke


def explained(run: Run, *arguments: str, columns: int = 200) -> Any:
    """One hit and one candidate that is left out."""
    kim = ("--author", "Kim", "--time", "2024-05-01T23:30:00Z")
    run("index", "u", "t", "red green \x1b[2J [bold]end", "--id", "best", *kim)
    run("index", "u", "t", "red", "--id", "other")
    flags = ("--explain", "-k", "1", *arguments)
    return run("recall", "u", "red green", *flags, columns=columns)


def test_a_table_shows_the_parts_of_each_hit_and_what_is_left_out(run: Run) -> None:
    result = explained(run)
    assert result.exit_code == 0
    title, names, hit, below, others, left_out, *cost = result.stdout.splitlines()
    assert (title, below) == ("Hits", "Not in the answer")
    numbers = (
        "relevance meaning words neighbour author recency diversity "
        "cosine #cosine BM25 in context #BM25"
    )
    assert names.split() == ["message", *numbers.split(), "who", "when", "text"]
    parts = "+0.125 +0.250 +0.500 +0.625 +0.750 -0.875".split()
    assert hit.split()[:14] == [
        *("1", "best", "2.000", *parts),
        *("1.000", "1", "2.50", "3.50", "22"),
    ]
    said = "red green \N{REPLACEMENT CHARACTER}[2J [bold]end"
    assert hit.split()[14:] == ["Kim", "2024-05-01", *said.split()]
    assert others.split() == ["message", *numbers.split(), "why"]
    assert left_out.split()[:3] == ["2", "other", "1.000"]
    assert left_out.endswith("says nearly the same as best")
    assert "1 of 0 messages in 1.5 ms" in cost[0]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_narrow_terminal_gets_lines_that_fit(run: Run, columns: int) -> None:
    shown = explained(run, columns=columns).stdout
    assert max(cell_len(line) for line in shown.splitlines()) <= columns
    words = " ".join(shown.split())
    assert "1 best relevance 2.000 = +0.125 meaning +0.250 words" in words
    assert "-0.875 diversity cosine 1.000 (#1) BM25 2.50 (#22), in context 3.50" in words
    assert "Kim, 2024-05-01 red green" in words
    assert "2 other relevance 1.000 =" in words
    assert "says nearly the same as best" in words


def test_text_that_is_twice_as_wide_as_it_is_long_stays_inside(run: Run, shelf: Shelf) -> None:
    run("index", "u", "t", "red " + "猫" * 100, "--id", "wide")
    for columns in (50, 130):
        shown = run("recall", "u", "red", "--explain", columns=columns).stdout
        assert "猫" in shown
        assert max(cell_len(line) for line in shown.splitlines()) <= columns


def test_json_says_the_same(run: Run) -> None:
    document = json.loads(explained(run, "--format", "json").stdout)
    numbers = {
        "dense_rank": 1,
        "chunk": 20,
        "chunks": 21,
        "bm25": 2.5,
        "bm25_in_context": 3.5,
        "lexical_rank": 22,
        "dense_part": 0.125,
        "lexical_part": 0.25,
        "neighbour_part": 0.5,
        "author_part": 0.625,
        "recency_part": 0.75,
        "diversity_part": -0.875,
    }
    assert document["messages"][0]["explain"] == {"cosine": 1.0, **numbers}
    assert document["excluded"] == [
        {
            "message_id": "other",
            "thread_id": "t",
            "reason": "near_duplicate",
            "rank": 2,
            "relevance": 1.0,
            "explain": {"cosine": 0.5, **numbers, "dense_rank": 2},
            "near_duplicate_of": "best",
        }
    ]


def test_an_empty_answer_says_why(run: Run) -> None:
    shown = run("recall", "u", "red", "--explain").stdout
    assert shown.startswith("No memories: the query is empty.")
    assert "Hits" not in shown


def test_the_text_for_a_prompt_is_not_mixed_with_the_explanation(run: Run) -> None:
    refused = explained(run, "--context", "default")
    assert refused.exit_code == 2
    assert "--explain and --context together need --format json" in refused.stderr
    assert explained(run, "--context", "default", "--format", "json").exit_code == 0


@pytest.mark.parametrize("reason", list(sr.ExcludedReason))
def test_every_reason_is_said_in_words(reason: sr.ExcludedReason) -> None:
    others = [r for r in sr.ExcludedReason if r is not reason]

    def said(why: sr.ExcludedReason) -> str:
        explain = sr.Explain(None, 0, 0, 0)
        return reason_of(sr.ExcludedCandidate("m", "t", why, 1, 0.0, explain))

    assert said(reason)
    assert said(reason) not in map(said, others)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--near-duplicates", "1.5"), "--near-duplicates: must be above 0 and at most 1"),
        (("--half-life", "0", "--recency", "1"), "--half-life: must be positive"),
        (("--max-tokens", "2000000"), "--max-tokens: must be 0 to 1000000"),
        (("--also", "a", "--also", "b" * 1_100_000), "--also: must be at most 1048576 bytes"),
    ],
)
def test_a_value_that_the_server_refuses_is_named_by_its_flag(
    tmp_path: Path, run: Run, arguments: tuple[str, ...], told: str
) -> None:
    with running(tmp_path, parts_of(FakeEngine())):
        at = ("--address", f"unix:{tmp_path}/s.sock")
        refused = run("recall", "u", "q", *arguments, *at)
    assert refused.exit_code == 2
    assert told in " ".join(refused.stderr.split())
