"""What `recall` says beside messages: why there are none, what was searched, what had no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import semanticrecall as sr
from semanticrecall.cli.app import app

Answered = Callable[..., Any]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Answered:
    """Run `recall` where the sidecar answers so."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(result: sr.RecallResult, *flags: str) -> Any:
        def recall(self: sr.RecallClient, *_: object, **__: object) -> sr.RecallResult:
            return result

        monkeypatch.setattr(sr.RecallClient, "recall", recall)
        return CliRunner().invoke(app, ["recall", "u", "seafood", *flags])

    return run


def none_because(why: sr.WhyEmpty, best: float | None = None) -> sr.RecallResult:
    """An empty answer."""
    info = sr.RecallInfo(
        mode_used=sr.Mode.HYBRID, searchable=74, candidates=74, why_empty=why, best_score=best
    )
    return sr.RecallResult((), info=info)


@pytest.mark.parametrize("flags", [(), ("--explain",)])
def test_a_threshold_that_the_closest_message_reaches_is_not_said_to_be_too_high(
    answered: Answered, flags: tuple[str, ...]
) -> None:
    result = none_because(sr.WhyEmpty.BELOW_THRESHOLD, 0.534)
    lower = answered(result, "-k", "2", "--threshold", "0.4", *flags).stdout
    assert lower.splitlines()[0] == (
        "No memories: the threshold takes away the best 2, and the closest message (0.534) is not "
        "among them: raise --top-k, or use --mode dense."
    )
    higher = answered(result, "-k", "2", "--threshold", "0.6", *flags).stdout
    assert higher.splitlines()[0] == (
        "No memories: nothing is as close as the threshold asks (closest: 0.534)."
    )


def test_an_empty_query_is_not_said_to_have_searched_anything(answered: Answered) -> None:
    shown = answered(none_because(sr.WhyEmpty.NO_QUERY)).stdout
    assert shown == "No memories: the query is empty.\n"


def test_in_lexical_mode_messages_with_a_word_of_the_query_are_counted(answered: Answered) -> None:
    info = sr.RecallInfo(mode_used=sr.Mode.LEXICAL, searchable=74, candidates=1, pending=2)
    hit = sr.RecalledMessage(sr.user("seafood"), hit=True, score=None, rank=1, lexical_only=True)
    shown = answered(sr.RecallResult((hit,), info=info)).stdout
    assert "lexical · 1 with a word of the query · 2 without a vector yet" in shown
    info = sr.RecallInfo(mode_used=sr.Mode.HYBRID, searchable=74, candidates=1)
    assert "hybrid · 1 allowed" in answered(sr.RecallResult((hit,), info=info)).stdout


def test_a_text_for_a_prompt_that_has_no_room_is_missed_on_stderr(answered: Answered) -> None:
    hit = sr.RecalledMessage(sr.user("seafood"), hit=True, score=0.5, rank=1)
    without = sr.RecallResult((hit,), info=sr.RecallInfo(context_did_not_fit=True))
    ran = answered(without, "--context", "default", "--max-tokens", "60")
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert ran.stderr == "No room for a text for a prompt in 60 tokens.\n"
    in_this_thread = answered(sr.RecallResult((hit,)), "--context", "mastra")
    assert (in_this_thread.stdout, in_this_thread.stderr) == ("", "")


def test_why_there_is_nothing_for_a_prompt_is_said_on_stderr(answered: Answered) -> None:
    ran = answered(none_because(sr.WhyEmpty.NO_MESSAGES), "--context", "default")
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert ran.stderr == "No memories: there is nothing to search here yet.\n"


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("recall", "u", "q", "--since", "yesterday"), "--since"),
        (("recall", "u", "q", "--until", "yesterday"), "--until"),
        (("history", "u", "--since", "yesterday"), "--since"),
        (("index", "u", "t", "x", "--time", "yesterday"), "--time"),
        (("forget", "u", "--before", "yesterday"), "--before"),
    ],
)
def test_a_time_that_is_none_is_named_by_its_flag(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], flag: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ran = CliRunner().invoke(app, list(arguments))
    assert ran.exit_code == 2
    assert f"{flag}: 'yesterday' is not a time" in ran.stderr
