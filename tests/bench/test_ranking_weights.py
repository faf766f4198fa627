"""Weights held out: the choice on figures made by hand, the ranking against brute force."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from benchmarks import ranking_weights
from benchmarks.axes import Numbers
from benchmarks.conversations import Conversation, Question, Turn, read_conversations
from benchmarks.evidence import recall_at, reciprocal_rank, share_found, within
from benchmarks.quality import SAMPLE, token_counter
from benchmarks.ranked_conversations import Budget, RankedConversation, Setting, Vectors
from benchmarks.ranking_weights import Config, Scores, Windows, windows
from benchmarks.raw_parts import RawEmbed
from semanticrecall_core.engine.recall import DEPTH_MIN
from semanticrecall_core.lexical.scoring import Scoring
from semanticrecall_core.ranking.fusion import Weights
from support import smoke_runs
from support.lexical_model import Corpus, Text, standing_out

BUDGET = Budget(60, lambda turn: len(turn.full_text.split()))
"""Tokens of the tests are words. The sample has more than so many."""

# ---- The choice ----


def made(*points: list[float], answerable: list[bool] | None = None) -> Scores:
    """A conversation: for each point the worth of each question, the same in every figure."""
    figures = np.repeat(np.array(points, np.float64)[:, :, np.newaxis], 4, axis=2)
    return Scores(figures, np.array(answerable or [True] * len(points[0])))


def test_means_are_over_the_questions_of_all_conversations() -> None:
    one = Scores(np.array([[[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]]), np.array([True, False]))
    two = Scores(np.array([[[0.3, 0.4, 0.5, 0.2]]]), np.array([True]))
    ((at_10, at_10_all, at_5, mrr, evidence),) = ranking_weights.means([one, two])
    assert at_5 == pytest.approx((0.1 + 0.3) / 2)
    assert at_10 == pytest.approx((0.2 + 0.4) / 2)
    assert at_10_all == pytest.approx((0.2 + 0.6 + 0.4) / 3)
    assert mrr == pytest.approx((0.3 + 0.5) / 2)
    assert evidence == pytest.approx((0.4 + 0.2) / 2)


def test_a_conversation_has_no_say_in_what_is_chosen_for_it() -> None:
    """The first is for point 0, and louder than the two others together, which are for point 1."""
    loud, quiet, also_quiet = made([1.0], [0.0]), made([0.4], [0.5]), made([0.3], [0.5])
    sides = {True: [loud, quiet, also_quiet], False: [loud, quiet, also_quiet]}
    assert ranking_weights.best_point(sides) == 0
    assert ranking_weights.chosen_on_the_others(sides) == [1, 0, 0]
    # Whatever its own figures are, the choice for it is the same.
    for own in (made([0.0], [1.0]), made([0.7], [0.7])):
        swapped = {named: [own, *scores[1:]] for named, scores in sides.items()}
        assert ranking_weights.chosen_on_the_others(swapped)[0] == 1


def test_both_sides_count_alike_and_the_first_of_equals_is_chosen() -> None:
    named, unnamed = made([0.6], [0.5], [0.6]), made([0.2], [0.5], [0.2])
    assert ranking_weights.best_point({True: [named], False: [unnamed]}) == 1
    assert ranking_weights.best_point({True: [named], False: [named]}) == 0


# ---- The grid ----


def test_the_products_weights_are_a_point_of_the_grid() -> None:
    points = ranking_weights.grid(Config())
    assert len(points) == len(set(points)) == 5 * 3 * 5 * 5
    assert Setting() in points
    assert Setting() in ranking_weights.grid(Config(**ranking_weights.SMOKE))
    assert Setting(Scoring(near_tenths=8, far_tenths=4), Weights(1.0, 1.2, 1.5, 0.35)) in points


def test_bm25are_read_as_they_are_written() -> None:
    assert windows("5/2,10/0") == Windows(((5, 2), (10, 0)))
    assert str(windows("5/2,10/0")) == "5/2,10/0"


@pytest.mark.parametrize("text", ["", "5", "5/2/1", "5/x", "5/2,", "11/2", "5/2,5/2"])
def test_bm25of_another_form_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        windows(text)


def test_every_part_is_taken_away_alone() -> None:
    parts = ranking_weights.ablations()
    assert parts.pop("nothing") == Setting()
    scoring, weights = Scoring(), Weights()
    assert parts == {
        "window": Setting(scoring=Scoring(near_tenths=0, far_tenths=0)),
        "second neighbours": Setting(scoring=replace(scoring, far_tenths=0)),
        "leaving names out": Setting(leaves_names_out=False),
        "date words": Setting(knows_dates=False),
        "author": Setting(weights=replace(weights, author=0.0)),
        "hand-over": Setting(weights=replace(weights, neighbour=0.0)),
        "dense": Setting(weights=replace(weights, dense=0.0)),
        "lexical": Setting(weights=replace(weights, lexical=0.0)),
        f"all but {DEPTH_MIN} by each": Setting(depth=DEPTH_MIN),
    }


# ---- The ranking ----


@pytest.fixture(scope="module")
def vectors() -> Iterator[Vectors]:
    made = Vectors()
    yield made
    made.close()


@pytest.fixture(scope="module")
def sample() -> Conversation:
    """With a question that names a date: else date words would make no difference."""
    (found,) = read_conversations(SAMPLE)
    dated = Question("What did Ruth tell in June?", 2, ("D3:5", "D3:1"))
    return replace(found, questions=(*found.questions, dated))


@pytest.fixture(scope="module")
def embed() -> RawEmbed:
    return RawEmbed()


def z(values: dict[int, float], least: float) -> dict[int, float]:
    mean, deviation = fmean(values.values()), max(least, float(np.std(list(values.values()))))
    return {seq: (value - mean) / deviation for seq, value in values.items()}


def brute_force(
    conversation: Conversation, setting: Setting, embed: RawEmbed, *, with_authors: bool
) -> list[list[str]]:
    """All turns of each question, best first: the formula in plain Python."""
    texts: list[Text] = []
    turns: list[Turn] = []
    for thread, session in enumerate(conversation.sessions, 1):
        assert session.started is not None
        for number, turn in enumerate(session.turns):
            turns.append(turn)
            time_ns = (int(session.started.timestamp()) + number) * 10**9
            time_ns = time_ns if setting.knows_dates else 0
            author = turn.speaker if with_authors else ""
            texts.append(Text(len(turns), thread, time_ns, 1, 1, turn.full_text, author))
    corpus = Corpus(texts, setting.scoring)
    passages = {text.seq: embed(text.text) for text in texts}
    answers = []
    for question in conversation.questions:
        if not question.evidence:
            continue
        words = corpus.scored(question.text)
        lexical = {seq: standing_out(words, seq) for seq in passages}
        vector = embed(question.text).astype(np.float64)
        names = list(dict.fromkeys(re.findall(r"\b(Ruth|Tomas)\b", question.text)))
        if with_authors and setting.leaves_names_out and names:
            span = np.stack([embed(name).astype(np.float64) for name in names], axis=1)
            vector -= 1.25 * (span @ np.linalg.lstsq(span, vector, rcond=None)[0])
            vector /= np.linalg.norm(vector)
        dense = z({seq: float(vector @ passage) for seq, passage in passages.items()}, 0.01)
        weights = setting.weights
        alone = {
            seq: weights.dense * max(-1.0, dense[seq])
            + weights.lexical * lexical[seq]
            + weights.author * bool(document.author & words.names)
            for seq, document in corpus.documents.items()
        }
        worth = dict(alone)
        for seq in worth:
            before = corpus.neighbour(seq, -1)
            if before is not None and corpus.documents[before].asks:
                worth[seq] += weights.neighbour * alone[before]
        best = sorted(worth, key=lambda seq: (-worth[seq], seq))
        lists = [sorted(part, key=lambda seq: (-part[seq], seq)) for part in (dense, lexical)]
        by_cosine, by_words = (set(one[: setting.depth]) for one in lists)
        listed = by_cosine | {seq for seq in by_words if words.context[seq] > 0}
        best = [seq for seq in best if seq in listed]
        answers.append([turns[seq - 1].id for seq in best])
    return answers


SETTINGS = {
    **ranking_weights.ablations(),
    "all but 2 by each": Setting(depth=2),
    "other weights": Setting(
        Scoring(near_tenths=9, far_tenths=1), Weights(0.5, 1.5, 0.25, 0.75), knows_dates=False
    ),
}


@pytest.mark.parametrize("with_authors", [True, False])
def test_hits_and_figures_are_those_of_brute_force(
    sample: Conversation, vectors: Vectors, embed: RawEmbed, with_authors: bool
) -> None:
    ranked = RankedConversation(sample, vectors, BUDGET, with_authors=with_authors)
    tokens = {turn.id: BUDGET.count(turn) for turn in sample.turns()}
    assert sum(tokens.values()) > BUDGET.tokens
    # All at once: settings of one window share what is computed for it.
    figures = ranked.figures(list(SETTINGS.values()))
    assert figures.shape == (len(SETTINGS), 6, 4)
    seen = set()
    for (name, setting), rows in zip(SETTINGS.items(), figures, strict=True):
        answers = brute_force(sample, setting, embed, with_authors=with_authors)
        assert ranked.hits(setting) == answers, name
        seen.add(json.dumps(answers))
        for question, hits, row in zip(ranked.questions, answers, rows, strict=True):
            wanted = question.evidence
            fitting = within(BUDGET.tokens, [[hit] for hit in hits], tokens)
            assert row.tolist() == pytest.approx(
                [
                    recall_at(5, hits, wanted),
                    recall_at(10, hits, wanted),
                    reciprocal_rank(hits, wanted),
                    share_found(fitting, wanted),
                ]
            ), name
    # All parts have something to do with this sample, but that it is too short for the depth of
    # a recall; and where there are no authors, names are not known either.
    assert len(seen) == len(SETTINGS) - (1 if with_authors else 3)


def test_evidence_that_is_no_message_is_not_found(tmp_path: Path, vectors: Vectors) -> None:
    (conversation,) = read_conversations(
        a_file(tmp_path / "one.json", [("D1:1", "My boat is red."), ("D1:2", " ")], ["D1:2; D1:1"])
    )
    ranked = RankedConversation(conversation, vectors, BUDGET, with_authors=True)
    assert ranked.hits(Setting()) == [["D1:1"]]
    assert ranked.figures([Setting()]).tolist() == [[[0.5, 0.5, 1.0, 0.5]]]


def a_file(
    path: Path, turns: list[tuple[str, str]], evidence: list[str], category: int = 4
) -> Path:
    """One conversation of one session without a date, and one question."""
    session = {
        "session": 1,
        "turns": [{"id": id_, "speaker": "Ann", "text": text} for id_, text in turns],
    }
    asked = {"question": "What colour?", "category": category, "evidence": evidence}
    path.write_text(
        json.dumps([{"conversation": "c", "sessions": [session], "questions": [asked]}])
    )
    return path


# ---- The run ----


def test_weights_are_measured_where_they_were_not_chosen(tmp_path: Path) -> None:
    """Two conversations: for each the best point of the other."""
    (sample,) = json.loads(SAMPLE.read_text())
    parts = [
        {**sample, "conversation": name, "questions": questions}
        for name, questions in (("a", sample["questions"][:3]), ("b", sample["questions"][3:]))
    ]
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(parts))
    config = Config(
        file,
        budget_tokens=60,
        window=Windows(((0, 0), (9, 0))),
        lexical=Numbers((0, 50, 300)),
        neighbour=Numbers((0, 100)),
        author=Numbers((0,)),
    )
    result = ranking_weights.measure(config)
    points = ranking_weights.grid(config)
    budget = Budget(60, token_counter())
    vectors = Vectors()
    try:
        figures = {
            (at, named): RankedConversation(one, vectors, budget, with_authors=named).figures(
                points
            )
            for at, one in enumerate(read_conversations(file))
            for named in (True, False)
        }
    finally:
        vectors.close()
    # Of the categories of the sample's questions 1 to 4 are answerable: 3, then 1 of 2.
    answerable = [3, 1]
    best = [_best(figures, at, answerable[at], len(points)) for at in (0, 1)]
    assert best[0] != best[1]
    rows = {
        (row["conversation"], row["authors"], row["weights"]): row
        for row in result.tables["by_conversation"]
    }
    for at, other in ((0, 1), (1, 0)):
        chosen = points[best[other]]
        for named, authors in ((True, "named"), (False, "not named")):
            row = rows[at + 1, authors, "held out"]
            near_far = f"{chosen.scoring.near_tenths}/{chosen.scoring.far_tenths}"
            assert (row["window"], row["lexical"], row["neighbour"], row["author"]) == (
                near_far, chosen.weights.lexical, chosen.weights.neighbour, 0.0,
            )  # fmt: skip
            mine = figures[at, named][best[other]]
            assert row["recall_at_10_all"] == pytest.approx(mine[:, 1].mean())
            assert row["mrr"] == pytest.approx(mine[: answerable[at], 2].mean())
    pooled = {(row["weights"], row["authors"]): row for row in result.tables["figures"]}
    mine = [figures[at, True][best[1 - at]][: answerable[at], 2] for at in (0, 1)]
    assert pooled["held out", "named"]["mrr"] == pytest.approx(np.concatenate(mine).mean())
    assert "held out" not in result.figures


def _best(figures: Any, at: int, answerable: int, points: int) -> int:
    """The best point of one conversation, question by question."""
    worth = []
    for point in range(points):
        of_point = []
        for named in (True, False):
            rows = figures[at, named][point]
            of_point += [fmean(row[k] for row in rows[:answerable]) for k in range(4)]
            of_point.append(fmean(row[1] for row in rows))
        worth.append(fmean(of_point))
    return max(range(points), key=lambda point: (round(worth[point], 12), -point))


def test_a_smoke_run_measures_the_sample_and_says_that_nothing_is_held_out(tmp_path: Path) -> None:
    result, printed = smoke_runs.run("ranking_weights", tmp_path / "result.json", "--smoke")
    smoke_runs.assert_charts_can_be_drawn(result)
    assert result["figures"]["held out"].startswith("there is one conversation")
    assert (result["figures"]["questions"], result["figures"]["points of the grid"]) == (5, 4)
    assert f"answers {result['answers_digest']}" in printed
    weights = {row["weights"] for row in result["tables"]["figures"]}
    assert weights == {"the product's", "best in sample", "least", "median", "most"}
    ablated = {(row["without"], row["authors"]): row for row in result["tables"]["ablation"]}
    assert len(ablated) == 2 * 10
    for row in result["tables"]["figures"]:
        if row["weights"] == "the product's":
            same = ablated["nothing", row["authors"]]
            assert all(row[name] == same[name] for name in ranking_weights.MEANS)


def test_without_conversations_it_says_so(tmp_path: Path) -> None:
    nothing = ranking_weights.measure(Config())
    assert nothing.skipped.startswith("no conversations: name a file")
    missing = ranking_weights.measure(Config(tmp_path / "nowhere.json"))
    assert missing.skipped.startswith("no conversations: there is no file")
    adversarial = a_file(tmp_path / "five.json", [("D1:1", "My boat is red.")], ["D1:1"], 5)
    unasked = ranking_weights.measure(Config(adversarial))
    assert unasked.skipped == "no conversations: no question of categories 1 to 4 has evidence"
    assert (unasked.tables, unasked.digest) == ({}, "")
