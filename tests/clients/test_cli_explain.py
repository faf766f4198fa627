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
    assert title == "Hits · with recency only differences of relevance count"
    assert below == (
        "Not in the answer · rank before anything was left out · relevance before diversity"
    )
    numbers = (
        "relevance meaning words neighbour author recency diversity "
        "#meaning cosine #words BM25 in context own"
    )
    assert names.split() == ["message", *numbers.split(), "who", "when", "text"]
    parts = "+0.125 +0.250 +0.500 +0.625 +0.750 -0.875".split()
    assert hit.split()[:14] == [
        *("1", "best", "2.000", *parts),
        *("1", "1.000", "22", "3.50", "2.50"),
    ]
    said = "red green \N{REPLACEMENT CHARACTER}[2J [bold]end"
    assert hit.split()[14:] == ["Kim", "2024-05-01", *said.split()]
    assert others.split() == ["message", *numbers.split(), "why", "text"]
    assert left_out.split()[:3] == ["2", "other", "1.000"]
    assert left_out.endswith("nearly the same as best user: red")
    assert "1 of 0 messages in 1.5 ms" in cost[0]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_narrow_terminal_gets_lines_that_fit(run: Run, columns: int) -> None:
    shown = explained(run, columns=columns).stdout
    assert max(cell_len(line) for line in shown.splitlines()) <= columns
    words = " ".join(shown.split())
    assert "1 best relevance 2.00 = +0.12 meaning +0.25 words" in words
    facts = ("meaning #1", "cosine 1.000", "words #22", "BM25 in context 3.50", "own words 2.50")
    assert f"-0.88 diversity {', '.join(facts)} Kim, 2024-05-01: red green" in words
    assert "2 other 1.00, nearly the same as best user: red" in words


@pytest.mark.parametrize("columns", [40, 80])
def test_no_line_ends_between_a_number_and_what_it_is_of(run: Run, columns: int) -> None:
    shown = explained(run, columns=columns).stdout
    for fact in ("-0.88 diversity", "words #22", "BM25 in context 3.50", "own words 2.50"):
        assert sum(fact in line for line in shown.splitlines()) == 1


def test_what_is_below_a_candidate_is_indented(run: Run) -> None:
    run("index", "u", "t", "red green", "--id", "best" * 8)
    run("index", "u", "t", "red", "--id", "other" * 6)
    shown = run("recall", "u", "red green", "--explain", "-k", "1", columns=40).stdout
    lines = shown[shown.index("other") :].splitlines()
    assert [line.strip() for line in lines[1:4]] == [
        "1.00,",
        "nearly the same as bestbest…tbest",
        "user: red",
    ]
    assert all(line.startswith(" " * 5) for line in lines[1:4])


def of_four_and_twenty(run: Run, columns: int) -> list[str]:
    """What is printed of four hits and as many left out as there are at most."""
    run("index", "u", "t", *(f"red number {n} and much more of it" * 3 for n in range(24)))
    shown: str = run("recall", "u", "red", "--explain", columns=columns).stdout
    return shown.splitlines()


def test_in_a_narrow_terminal_few_of_those_left_out_are_shown(run: Run, shelf: Shelf) -> None:
    lines = of_four_and_twenty(run, 80)
    assert "15 more: --format json" in lines
    assert len(lines) <= 2 * 24
    whole_ids = {message.id for message in shelf.messages.values()}
    assert sum(any(line.split()[1:2] == [id] for line in lines) for id in whole_ids) == 9


def test_in_a_wide_terminal_each_candidate_has_one_line(run: Run) -> None:
    lines = of_four_and_twenty(run, 200)
    placed = [line.split()[0] for line in lines if line.split()[0].isdecimal()]
    assert placed[:24] == [str(n) for n in range(1, 25)]
    assert len(lines) <= 2 * 2 + 24 + 2
    assert max(cell_len(line) for line in lines) <= 200


def test_without_the_texts_of_what_is_left_out_its_reasons_are_shown(
    run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them was forgotten between the two calls."""
    run("index", "u", "t", "red green", "--id", "best")
    run("index", "u", "t", "red", "--id", "other")

    def forgotten(self: sr.RecallClient, *_: object, **__: object) -> tuple[sr.Message, ...]:
        raise sr.NotFoundError("no such message")

    monkeypatch.setattr(sr.RecallClient, "get_messages", forgotten)
    for columns in (80, 200):
        result = run("recall", "u", "red green", "--explain", "-k", "1", columns=columns)
        assert result.exit_code == 0
        assert "nearly the same as best" in result.stdout
        assert "user: red\n" not in result.stdout


def test_places_that_a_name_in_the_query_turns_round_are_explained(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "meaning is of the query without names, cosine of all of it"
    assert said not in explained(run).stdout

    def turned(self: sr.RecallClient, *_: object, **__: object) -> sr.RecallResult:
        hits = [(1, 0.349, 1), (2, 0.368, 10)]
        return sr.RecallResult(
            tuple(
                sr.RecalledMessage(
                    sr.user("x", id=f"m{rank}"),
                    hit=True,
                    score=cosine,
                    rank=rank,
                    explain=sr.Explain(cosine, place, 0, 1),
                )
                for rank, cosine, place in hits
            )
        )

    monkeypatch.setattr(sr.RecallClient, "recall", turned)
    assert said in run("recall", "u", "red", "--explain").stdout


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
    assert " of 0 messages" not in shown  # nothing was searched


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
