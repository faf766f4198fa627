"""What words say where the statistics are poor: values by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.lexical.partition import Tuning
from semanticrecall_core.lexical.scoring import Scoring
from semanticrecall_core.ranking.fusion import Weights, fused
from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery
from support.lexical_model import Text, rows_of

ONE_BY_ONE = Tuning(sparse_places_min=0, sparse_share=1)
"""Every word is scored where it is, not over whole arrays."""
DATE_WORDS = 3
K1, B = 1.2, 0.75


@pytest.fixture(params=[Tuning(), ONE_BY_ONE], ids=["arrays", "one by one"])
def tuning(request: pytest.FixtureRequest) -> Tuning:
    chosen: Tuning = request.param
    return chosen


def match_of(
    query: str,
    threads: Sequence[Sequence[str]],
    tuning: Tuning,
    scoring: Scoring | None = None,
) -> LexicalMatch:
    """All messages, by seq: thread after thread."""
    seqs = iter(range(1, 1000))
    texts = [
        Text(seq=(seq := next(seqs)), thread_key=key, time_ns=seq, revision=seq, role=1, text=text)
        for key, thread in enumerate(threads, 1)
        for text in thread
    ]
    index = InMemoryLexicalIndex(lambda _: rows_of(texts), tuning=tuning, scoring=scoring)
    everyone = np.array([text.seq for text in texts], np.int64)
    return index.match("r", LexicalQuery((query,), 100, also_seqs=everyone))


def idf(n: int, df: int) -> float:
    return math.log(1 + (n - df + 0.5) / (df + 0.5))


def test_a_function_word_counts_a_quarter(tuning: Tuning) -> None:
    threads = [["the harbour"], ["castle"], ["castle"]]
    lengths = [2 + DATE_WORDS, 1 + DATE_WORDS, 1 + DATE_WORDS]
    norm = K1 * (1 - B + B * lengths[0] / (sum(lengths) / 3))
    harbour = idf(3, 1) * (K1 + 1) / (1 + norm)
    for query, want in (
        ("harbour", harbour),
        ("the", harbour / 4),
        ("the harbour", 1.25 * harbour),
    ):
        match = match_of(query, threads, tuning)
        assert match.own[0].tolist() == pytest.approx([want, 0, 0], rel=1e-5)
        assert match.context[0].tolist() == pytest.approx([want, 0, 0], rel=1e-5)


def test_in_a_large_resource_function_words_count_only_where_there_are_no_others(
    tuning: Tuning,
) -> None:
    threads = [["the harbour"], ["the castle"], ["castle"]]
    small, large = Scoring(function_messages_max=3), Scoring(function_messages_max=2)
    for query, without in (("the harbour", "harbour"), ("the", "the")):
        match = match_of(query, threads, tuning, large)
        alone = match_of(without, threads, tuning, small)
        for name in ("own", "context", "worth", "worth_mean", "context_std"):
            assert getattr(match, name).tolist() == getattr(alone, name).tolist()
        assert match.matched == alone.matched
    both = match_of("the harbour", threads, tuning, small)
    alone = match_of("harbour", threads, tuning, small)
    assert both.context[0].tolist() != alone.context[0].tolist()
    assert both.matched == 2


def test_a_code_is_not_in_the_windows_of_its_neighbours(tuning: Tuning) -> None:
    thread = ["they sealed", "parcel ZX-8841", "and left", "ZX-8842 too"]
    number = match_of("8841", [thread, ["x"] * 60], tuning).context[0]
    assert number.nonzero()[0].tolist() == [1]
    code = match_of("ZX-8841", [thread, ["x"] * 60], tuning).context[0]
    assert code[1] > 2 * code[3] > 0  # they share the letters
    word = match_of("parcel", [thread, ["x"] * 60], tuning).context[0]
    assert word[1] > word[0] > word[3] > 0


def test_a_window_with_little_of_the_query_is_worth_less(tuning: Tuning) -> None:
    """Four words, of which nobody has three: a quarter of a query that is worth 0.4 in full."""
    threads = [["harbour"], ["castle"], ["bridge"], ["tower"]]
    bm25 = idf(4, 1) * (K1 + 1) / (1 + K1)
    full = 0.4 * (idf(4, 1) + 3 * idf(4, 0))
    assert bm25 < full
    match = match_of("harbour seafood medal penguin", threads, tuning)
    assert match.context[0].tolist() == pytest.approx([bm25, 0, 0, 0], rel=1e-5)
    assert match.worth[0].tolist() == pytest.approx([bm25 * bm25 / full, 0, 0, 0], rel=1e-5)
    assert match.worth_mean[0] == pytest.approx(bm25 * bm25 / full / 4, rel=1e-5)
    assert match.context_std[0] == pytest.approx(bm25 * math.sqrt(1 / 4 - 1 / 16), rel=1e-5)


def test_a_window_with_enough_of_the_query_is_worth_its_bm25(tuning: Tuning) -> None:
    """Of two words one: half of a query that is worth 0.4 in full."""
    match = match_of("harbour castle", [["harbour"], ["castle"], ["bridge"]], tuning)
    assert match.worth[0].tolist() == match.context[0].tolist()
    assert match.worth[0][0] > 0
    assert match.worth[0][2] == 0


@pytest.mark.parametrize("query", ["seafood", "", "?!", "the", "8841"])
@pytest.mark.parametrize("threads", [[["harbour"]], [["harbour"], ["castle", "harbour"]], [["1"]]])
def test_words_that_nobody_has_add_nothing(query: str, threads: list[list[str]]) -> None:
    parts = fused(match_of(query, threads, Tuning()), None, Weights())
    assert parts.relevance.tolist() == [0.0] * sum(map(len, threads))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("query", ["harbour", "the harbour seafood", "harbour 7"])
def test_what_all_say_alike_speaks_for_nobody(n: int, query: str) -> None:
    parts = fused(match_of(query, [["the harbour, 7"]] * n, Tuning()), None, Weights())
    assert parts.lexical.tolist() == pytest.approx([0.0] * n, abs=1e-5)


def test_a_seq_of_more_than_32_bits_is_not_taken_for_a_smaller_one() -> None:
    texts = [Text(seq, 1, seq, 1, 1, "harbour") for seq in (1, 2, 3)]
    index = InMemoryLexicalIndex(lambda _: rows_of(texts))
    asked = np.array([2, 2**32 + 1, 2**32 + 3], np.int64)
    assert index.match("r", LexicalQuery(("castle",), 0, also_seqs=asked)).seqs.tolist() == [2]
    large = [Text(2**32 + seq, 1, seq, 1, 1, "harbour") for seq in (1, 2, 3)]
    index = InMemoryLexicalIndex(lambda _: rows_of(large))
    match = index.match("r", LexicalQuery(("castle",), 0, also_seqs=asked))
    assert match.seqs.tolist() == [2**32 + 1, 2**32 + 3]


def test_counts_of_several_terms_of_a_word_are_summed_in_every_part() -> None:
    """A word that is a month too; in sealed parts and in the tail, and one message is gone."""
    may_ns = 125 * 86_400_000_000_000
    texts = [Text(seq, seq, may_ns if seq % 2 else 0, 1, 1, "may") for seq in range(1, 9)]
    index = InMemoryLexicalIndex(
        lambda _: rows_of(texts[:4]), tuning=Tuning(loaded_rows_max=2, tail_rows_max=2)
    )
    index.partition_seqs("r")
    for text in texts[4:]:
        index.texts_put("r", rows_of([text]))
    index.texts_removed("r", np.array([3], np.int64))
    everyone = np.arange(1, 9)
    match = index.match("r", LexicalQuery(("may",), 100, also_seqs=everyone))
    whole = InMemoryLexicalIndex(lambda _: rows_of([t for t in texts if t.seq != 3]))
    alone = whole.match("r", LexicalQuery(("may",), 100, also_seqs=everyone))
    assert match.seqs.tolist() == [1, 2, 4, 5, 6, 7, 8]
    for name in ("seqs", "own", "context", "worth", "worth_mean", "context_std"):
        assert getattr(match, name).tolist() == getattr(alone, name).tolist()
    assert match.own[0][0] > match.own[0][1]
