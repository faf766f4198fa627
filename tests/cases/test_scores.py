"""Scores: true cosines, in order, inclusive at the threshold, never invented."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from semanticrecall.v1 import recall_pb2
from support.wire_memory import (
    ALONE,
    BY_COSINE,
    NOON_NS,
    SCORE_TOLERANCE,
    Memory,
    Model,
    conversation,
    hit_ids,
    hits,
    said,
    scores,
    window,
)

VARIED_TEXTS = {
    "word": "hello",
    "sentence": "My sister's wedding is on the third of May in Lisbon.",
    "question": "Which train did we take from Kyoto to Nara?",
    "numbers": "Invoice 4711: 1,250.00 EUR, due 2024-03-31, IBAN DE00 1234",
    "code": "def f(x): return {'a': x ** 2, \"b\": [i for i in range(x)]}",
    "punctuation": "?!... --- ###",
    "upper case": "PLEASE CALL ME BACK BEFORE NOON",
    "emoji": "we won \U0001f3c6\U0001f389 see you \U0001f44b\U0001f3fd",
    "german": "Der Schl\u00fcssel liegt unter der Fu\u00dfmatte.",
    "chinese": "\u6211\u7684\u72d7\u5bf9\u9e21\u8089\u8fc7\u654f",
    "arabic": "\u0643\u0644\u0628\u064a \u064a\u0639\u0627\u0646\u064a \u0645\u0646 "
    "\u062d\u0633\u0627\u0633\u064a\u0629",
    "line breaks": "first line\nsecond line\r\n\r\nthird line\ttabbed",
    "url": "https://example.org/a/b?c=d&e=%20#frag",
    "spaces around": "   the gate code is 5512   ",
    "hundred words": " ".join(f"item {i} costs {i * 3} coins" for i in range(25)),
}

VOCABULARY = "river stone lamp cloud horse bread paper glass tower storm garden piano".split()


# SCORE-1 ----------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize("text", VARIED_TEXTS.values(), ids=VARIED_TEXTS.keys())
def test_the_same_text_scores_one_with_the_real_model(real_memory: Memory, text: str) -> None:
    real_memory.learn([said("same", text), said("other", "a completely different matter")])
    answer = real_memory.recall(text, top_k=1, message_range=ALONE)
    assert hit_ids(answer) == ["same"]
    assert 0.999 <= scores(answer)[0] <= 1.0
    assert answer.info.best_score == scores(answer)[0]


@pytest.mark.parametrize("text", VARIED_TEXTS.values(), ids=VARIED_TEXTS.keys())
def test_the_same_text_scores_one(memory: Memory, text: str) -> None:
    memory.learn([said("same", text), said("other", "a completely different matter")])
    answer = memory.recall(text, top_k=1, message_range=ALONE)
    assert hit_ids(answer) == ["same"]
    assert 0.999 <= scores(answer)[0] <= 1.0


# SCORE-2 ----------------------------------------------------------------------------------------


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(VOCABULARY, k=rng.randint(1, 8))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_ranks_follow_true_scores_and_neighbours_have_none(
    memory: Memory, model: Model, seed: int
) -> None:
    texts = list(dict.fromkeys(random_texts(seed, 60)))
    memory.learn(conversation(texts))
    query = texts[seed] + " piano"
    answer = memory.recall(
        query, top_k=9, message_range=window(1, 2), explain=True, ranking=BY_COSINE
    )
    everything = memory.listed()
    expected = dict(model.ranked(query, everything))
    found = hits(answer)
    listed = scores(answer)
    assert listed == sorted(listed, reverse=True)
    assert len(found) == 9
    # Anagrams score alike but for rounding: compare scores with the model, not the order of ties.
    assert np.allclose(listed, sorted(expected.values(), reverse=True)[:9], atol=SCORE_TOLERANCE)
    for hit in found:
        assert math.isclose(hit.score, expected[hit.message.id], abs_tol=SCORE_TOLERANCE)
        assert -1.0 <= hit.score <= 1.0
        assert hit.explain.cosine == hit.score
        assert hit.explain.dense_rank == hit.rank
    neighbours = [m for m in answer.messages if not m.hit]
    assert neighbours
    for neighbour in neighbours:
        assert not neighbour.HasField("score")
        assert neighbour.rank == 0
        assert not neighbour.HasField("explain")
    assert answer.info.best_score == listed[0]


# SCORE-3 ----------------------------------------------------------------------------------------


@pytest.fixture
def ladder(memory: Memory) -> Memory:
    """Messages that share 8, 7, ... 1 words with the query."""
    memory.learn(
        conversation(
            " ".join(VOCABULARY[: 8 - i] + [f"x{i}y{j}" for j in range(i)]) for i in range(8)
        )
    )
    return memory


LADDER_QUERY = " ".join(VOCABULARY[:8])


RANKINGS = pytest.mark.parametrize(
    "ranking", [recall_pb2.Ranking(), BY_COSINE], ids=["default", "by cosine"]
)


@RANKINGS
def test_a_threshold_is_inclusive_to_the_last_bit(
    ladder: Memory, ranking: recall_pb2.Ranking
) -> None:
    asked = {"top_k": 8, "message_range": ALONE, "ranking": ranking}
    answer = ladder.recall(LADDER_QUERY, **asked)
    ranked = list(zip(hit_ids(answer), scores(answer), strict=True))
    assert len({score for _, score in ranked}) == 8
    for _, score in ranked:
        at = ladder.recall(LADDER_QUERY, **asked, threshold=score)
        left = [one for one in ranked if one[1] >= score]
        assert list(zip(hit_ids(at), scores(at), strict=True)) == left
        above = float(np.nextafter(np.float32(score), np.float32(2)))
        if above <= 1.0:
            over = ladder.recall(LADDER_QUERY, **asked, threshold=above)
            assert hit_ids(over) == [one for one, other in ranked if other > score]


@RANKINGS
def test_raising_the_threshold_never_adds_a_message(
    ladder: Memory, model: Model, ranking: recall_pb2.Ranking
) -> None:
    expected = dict(model.ranked(LADDER_QUERY, ladder.listed()))
    asked = {"top_k": 8, "message_range": ALONE, "ranking": ranking}
    ranked = hit_ids(ladder.recall(LADDER_QUERY, **asked))
    if ranking == BY_COSINE:
        assert ranked == list(expected)
    before = set(expected)
    for step in range(-20, 21):
        threshold = min(step / 20, 0.9999)
        # A threshold closer to a score than rounding could go either way.
        others = list(expected.values())[1:]
        assert all(abs(score - step / 20) > SCORE_TOLERANCE for score in others)
        found = hit_ids(ladder.recall(LADDER_QUERY, **asked, threshold=threshold))
        assert found == [one for one in ranked if expected[one] >= threshold]
        assert set(found) <= before
        before = set(found)


@RANKINGS
def test_the_lowest_returned_score_as_threshold_gives_the_same_set(
    ladder: Memory, ranking: recall_pb2.Ranking
) -> None:
    for k in range(1, 9):
        asked = {"top_k": k, "message_range": ALONE, "ranking": ranking}
        answer = ladder.recall(LADDER_QUERY, **asked)
        again = ladder.recall(LADDER_QUERY, **asked, threshold=min(scores(answer)))
        assert list(again.messages) == list(answer.messages)


# SCORE-4 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"roles": [1]}], ids=["plain", "by role"])
def test_nothing_near_enough_is_an_empty_answer_that_says_so(
    memory: Memory, model: Model, fields: dict[str, Any]
) -> None:
    texts = random_texts(7, 35)
    memory.learn(conversation(texts))
    query = "quarterly tax declaration"
    answer = memory.recall(query, threshold=0.9, top_k=10, **fields)
    assert list(answer.messages) == []
    assert answer.context_text == ""
    assert answer.info.why_empty == recall_pb2.WHY_EMPTY_BELOW_THRESHOLD
    best = max(model.score(query, text) for text in texts)
    assert best < 0.9
    assert math.isclose(answer.info.best_score, best, abs_tol=SCORE_TOLERANCE)
    assert answer.info.candidates == 35


# SCORE-5 ----------------------------------------------------------------------------------------


def at_cosine(model: Model, text: str, cosine: float) -> list[float]:
    """A query vector at this cosine from the text's vector."""
    towards = model.vector(text)
    towards = towards / np.linalg.norm(towards)
    aside = np.roll(towards, 1)
    aside -= (aside @ towards) * towards
    aside /= np.linalg.norm(aside)
    return [float(x) for x in cosine * towards + math.sqrt(1 - cosine**2) * aside]


@pytest.mark.parametrize("cosine", [-0.2, -0.999, -1.0, 0.0, 0.5])
@pytest.mark.parametrize("length", [1.0, 1e-6, 250.0], ids=["unit", "short", "long"])
def test_a_low_cosine_is_returned_where_no_threshold_forbids_it(
    memory: Memory, model: Model, cosine: float, length: float
) -> None:
    memory.learn([said("only", "river stone lamp", at=NOON_NS)])
    vector = [length * x for x in at_cosine(model, "river stone lamp", cosine)]
    answer = memory.recall(query_embedding=vector)
    assert hit_ids(answer) == ["only"]
    assert math.isclose(scores(answer)[0], cosine, abs_tol=SCORE_TOLERANCE)
    assert -1.0 <= scores(answer)[0] <= 1.0


def test_negative_thresholds_cut_like_any_other(memory: Memory, model: Model) -> None:
    memory.learn([said("only", "river stone lamp", at=NOON_NS)])
    vector = at_cosine(model, "river stone lamp", -0.2)
    for threshold, found in ((-1.0, ["only"]), (-0.21, ["only"]), (-0.19, []), (0.0, [])):
        answer = memory.recall(query_embedding=vector, threshold=threshold)
        assert hit_ids(answer) == found
        assert math.isclose(answer.info.best_score, -0.2, abs_tol=SCORE_TOLERANCE)
