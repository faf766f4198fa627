"""Relevance against sums by hand, and against the formula in plain Python floats."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semanticrecall_core.ranking.fusion import (
    WEIGHT_MAX,
    Cosines,
    Weights,
    best_first,
    fused,
)
from semanticrecall_core.types.lexical import LexicalMatch

NAN = math.nan


def a_match(
    worth: list[list[float]],
    names_author: list[list[float]] | None = None,
    before: list[int] | None = None,
    asks: list[bool] | None = None,
    moments: tuple[float, float] = (0.0, 1.0),
) -> LexicalMatch:
    """A match of which only what counts for relevance is said; every phrasing has one moment."""
    n, phrasings = len(worth[0]), len(worth)
    zeros = [[0.0] * n] * phrasings
    worth_mean, context_std = (np.full(phrasings, value, np.float32) for value in moments)
    return LexicalMatch(
        seqs=np.arange(1, n + 1),
        revisions=np.arange(1, n + 1),
        times_ns=np.zeros(n, np.int64),
        is_candidate=np.ones(n, np.bool_),
        own=np.array(zeros, np.float32),
        context=np.array(zeros, np.float32),
        worth=np.array(worth, np.float32),
        worth_mean=worth_mean,
        context_std=context_std,
        names_author=np.array(names_author or zeros, np.float32),
        asks=np.array(asks or [False] * n, np.bool_),
        before=np.array(before or [-1] * n, np.int32),
        matched=n,
        searchable=n,
    )


def near(cosines: list[list[float]], mean: float = 0.0, std: float = 1.0) -> Cosines:
    phrasings = len(cosines)
    return Cosines(
        np.array(cosines, np.float32),
        np.full(phrasings, mean, np.float32),
        np.full(phrasings, std, np.float32),
    )


def test_parts_by_hand() -> None:
    match = a_match(
        worth=[[6.0, 0.0]],
        names_author=[[1.0, 0.0]],
        before=[-1, 0],
        asks=[True, True],
        moments=(2.0, 4.0),
    )
    weights = Weights(dense=1.0, lexical=0.5, author=2.0, neighbour=0.5)
    parts = fused(match, near([[0.75, 0.25]], mean=0.25, std=0.5), weights)
    assert parts.dense.tolist() == [1.0, 0.0]
    assert parts.lexical.tolist() == [0.5, -0.25]
    assert parts.author.tolist() == [2.0, 0.0]
    # Alone they are worth 3.5 and -0.25; the first asks what the second answers.
    assert parts.neighbour.tolist() == [0.0, 1.75]
    assert parts.relevance.tolist() == [3.5, 1.5]


def test_only_a_question_right_before_hands_over_and_a_bad_one_takes_away() -> None:
    match = a_match(
        worth=[[4.0, 1.0, -3.0, 2.0]],
        before=[-1, 0, 1, 2],
        asks=[True, False, True, True],
    )
    weights = Weights(dense=0.0, lexical=1.0, author=0.0, neighbour=0.5)
    assert fused(match, None, weights).neighbour.tolist() == [0.0, 2.0, 0.0, -1.5]


def test_a_message_without_a_vector_counts_as_an_average_one() -> None:
    match = a_match(worth=[[0.0, 0.0, 0.0]])
    parts = fused(match, near([[0.5, NAN, 0.75]], mean=0.5, std=0.25), Weights())
    assert parts.dense.tolist() == [0.0, 0.0, 1.0]
    assert np.isfinite(parts.relevance).all()


def test_a_cosine_far_below_the_mean_is_one_deviation_below() -> None:
    match = a_match(worth=[[0.0] * 4])
    parts = fused(match, near([[0.5, 0.375, 0.25, -1.0]], mean=0.5, std=0.125), Weights(dense=2.0))
    assert parts.dense.tolist() == [0.0, -2.0, -2.0, -2.0]


def test_words_alone_have_no_dense_part() -> None:
    parts = fused(a_match(worth=[[1.0, 2.0]]), None, Weights(lexical=0.5))
    assert parts.dense.tolist() == [0.0, 0.0]
    assert parts.relevance.tolist() == [0.5, 1.0]


def test_several_phrasings_count_by_their_mean() -> None:
    match = a_match(worth=[[4.0, 0.0], [0.0, 2.0]], names_author=[[1.0, 0.0], [0.0, 0.0]])
    parts = fused(match, near([[1.0, NAN], [0.0, 0.5]]), Weights())
    assert parts.dense.tolist() == [0.5, 0.25]
    assert parts.lexical.tolist() == [2.0, 1.0]
    assert parts.author.tolist() == [0.5, 0.0]


def by_formula(
    match: LexicalMatch, cosines: list[list[float]], mean: float, std: float, weights: Weights
) -> list[float]:
    """Relevance, one message after the other, in Python floats."""
    phrasings, n = match.worth.shape
    total = [0.0] * n
    for q in range(phrasings):
        alone = []
        for i in range(n):
            cosine = cosines[q][i]
            window = float(match.worth[q, i]) - float(match.worth_mean[q])
            alone.append(
                (0.0 if math.isnan(cosine) else weights.dense * max(-1.0, (cosine - mean) / std))
                + weights.lexical * window / float(match.context_std[q])
                + weights.author * float(match.names_author[q, i])
            )
        for i in range(n):
            question = match.before[i] >= 0 and match.asks[match.before[i]]
            total[i] += alone[i] + (weights.neighbour * alone[match.before[i]] if question else 0.0)
    return [value / phrasings for value in total]


SCORES = st.floats(0.0, 30.0, width=32)
COSINES = st.floats(-1.0, 1.0, width=32) | st.just(NAN)


@given(data=st.data(), phrasings=st.integers(1, 3), n=st.integers(1, 8))
def test_relevance_is_that_of_the_formula(data: st.DataObject, phrasings: int, n: int) -> None:
    def columns(values: st.SearchStrategy[float]) -> list[list[float]]:
        row = st.lists(values, min_size=n, max_size=n)
        return data.draw(st.lists(row, min_size=phrasings, max_size=phrasings))

    weights = Weights(*data.draw(st.tuples(*[st.floats(0, WEIGHT_MAX)] * 4)))
    match = a_match(
        columns(SCORES),
        columns(st.sampled_from([0.0, 1.0])),
        data.draw(st.lists(st.integers(-1, n - 1), min_size=n, max_size=n)),
        data.draw(st.lists(st.booleans(), min_size=n, max_size=n)),
        (1.5, 2.0),
    )
    cosines = columns(COSINES)
    parts = fused(match, near(cosines, 0.25, 0.125), weights)
    right = by_formula(match, cosines, 0.25, 0.125, weights)
    assert parts.relevance.tolist() == pytest.approx(right, rel=1e-9, abs=1e-9)
    in_order = zip(*(column.tolist() for column in parts.columns), strict=True)
    assert parts.relevance.tolist() == [reduce(add, row) for row in in_order]


def test_equal_relevance_goes_by_arrival() -> None:
    relevance = np.array([1.0, 2.0, 1.0, 2.0])
    assert best_first(relevance, np.array([7, 9, 3, 8])).tolist() == [3, 1, 2, 0]


def test_no_messages_are_no_parts() -> None:
    parts = fused(a_match(worth=[[]]), near([[]]), Weights())
    assert parts.relevance.tolist() == []


@pytest.mark.parametrize("name", [field.name for field in fields(Weights)])
@pytest.mark.parametrize("value", [-0.1, WEIGHT_MAX + 0.1, NAN])
def test_weights_are_bounded(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Weights(**{name: value})
