"""Recall by meaning and by words together, over a real record and real vectors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semanticrecall_core.engine import VerifyReport
from semanticrecall_core.engine.warming import WarmingLimits
from semanticrecall_core.types.errors import CancelledError, UnimplementedError
from semanticrecall_core.types.recalling import (
    ExcludedReason,
    Mode,
    RecallQuery,
    Scope,
    WhyEmpty,
)
from semanticrecall_core.types.values import CallBudget, Finding, Wait
from support.fake_embedder import text_vector
from support.hybrid_engine import (
    BARE,
    FACTS,
    MODES,
    HybridRunning,
    add_facts,
    cosine,
    hits,
    reasons,
)
from support.running_engine import Running, await_pending, draft, hit_ids, ids

DAY_NS = 86_400 * 10**9


@pytest.fixture
def running(tmp_path: Path) -> Iterator[HybridRunning]:
    made = HybridRunning(tmp_path / "data")
    yield made
    made.embedder.heal()
    made.engine.stop()


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HybridRunning]:
    """FACTS, one each in a thread of its own; only read."""
    made = HybridRunning(tmp_path_factory.mktemp("facts") / "data")
    add_facts(made)
    yield made
    made.engine.stop()


def test_the_default_is_hybrid_where_there_are_words_and_dense_elsewhere(
    facts: HybridRunning, tmp_path: Path
) -> None:
    assert facts.recall("tea").info.mode_used is Mode.HYBRID
    plain = Running(tmp_path / "plain")
    assert plain.recall("tea").info.mode_used is Mode.DENSE
    for mode in (Mode.LEXICAL, Mode.HYBRID):
        with pytest.raises(UnimplementedError):
            plain.recall("tea", mode=mode)
    plain.engine.stop()


def test_an_exact_code_is_first_though_its_vector_is_far_down(running: HybridRunning) -> None:
    """TOPK-7."""
    query = "ZX-8841"
    code = "Z9 " + " ".join(f"other{n}" for n in range(40)) + " ZX-8841 end"
    near = [f"- number{n}" for n in range(30)]
    far = [f"something else {n}" for n in range(90)]
    running.add(draft("code", code, thread_id="c"))
    running.add(*(draft(f"n{n}", text, thread_id=f"t{n}") for n, text in enumerate(near + far)))
    dense = hit_ids(running.recall(query, mode=Mode.DENSE, top_k=31, **BARE))
    assert dense.index("code") >= 20
    for mode in (Mode.HYBRID, Mode.LEXICAL):
        assert hit_ids(running.recall(query, mode=mode, top_k=3, **BARE))[0] == "code"


def test_dense_relevance_is_the_cosine(facts: HybridRunning) -> None:
    for hit in hits(facts.recall("tea", mode=Mode.DENSE, top_k=6, **BARE)):
        assert hit.relevance == hit.cosine == hit.parts.dense
        assert (hit.lexical_rank, hit.bm25) == (0, 0.0)


def test_words_alone_find_only_messages_with_a_word_and_embed_nothing(
    facts: HybridRunning,
) -> None:
    runs = facts.embedder.runs
    answer = facts.recall("unheard tea", mode=Mode.LEXICAL, top_k=6, explain=True, **BARE)
    assert facts.embedder.runs == runs
    assert sorted(hit_ids(answer)) == ["cup", "tea"]
    for hit in hits(answer):
        assert hit.cosine is None
        assert hit.parts.dense == 0.0
        assert hit.bm25 > 0.0
    assert [hit.lexical_rank for hit in hits(answer)] == [1, 2]
    assert (answer.info.best_score, answer.info.embed_us) == (None, 0)


@pytest.mark.parametrize(
    "asked", [{"threshold": -1.0}, {"diversity": 0.1}, {"near_duplicate_cosine": 0.99}]
)
def test_words_alone_embed_where_a_cosine_is_asked_for(
    facts: HybridRunning, asked: dict[str, float]
) -> None:
    query = "tea harbour"
    answer = facts.recall(query, mode=Mode.LEXICAL, top_k=6, **BARE, **asked)
    assert sorted(hit_ids(answer)) == ["boat", "cup", "rain", "tea"]
    for hit, id in zip(hits(answer), hit_ids(answer), strict=True):
        assert hit.cosine == pytest.approx(cosine(query, FACTS[id]), abs=1e-6)
        assert hit.parts.dense == 0.0
    best = max(cosine(query, text) for text in FACTS.values())
    assert answer.info.best_score == pytest.approx(best, abs=1e-6)


def test_no_message_holds_a_word(facts: HybridRunning) -> None:
    answer = facts.recall("zeppelin", mode=Mode.LEXICAL)
    assert (ids(answer), answer.info.why_empty) == ([], WhyEmpty.NO_WORDS)
    nobody = facts.recall("zeppelin", mode=Mode.LEXICAL, resource="nobody")
    assert nobody.info.why_empty is WhyEmpty.NO_MESSAGES
    assert facts.recall("zeppelin", resource="nobody").info.why_empty is WhyEmpty.NO_MESSAGES
    everywhere = facts.recall("zeppelin").info.searchable
    for mode in Mode:
        nowhere = facts.recall("zeppelin", mode=mode, scope=Scope.THREAD, thread_id="nowhere")
        assert nowhere.messages == ()
        assert (nowhere.info.candidates, nowhere.info.searchable) == (0, everywhere) != (0, 0)
        assert nowhere.info.why_empty is WhyEmpty.NO_MESSAGES


def test_a_message_that_waits_for_its_vector_is_found_by_its_words(
    running: HybridRunning,
) -> None:
    add_facts(running)
    new = "the new lighthouse keeper"
    running.embedder.fail_on(new)
    running.add(draft("new", new, thread_id="n"), wait=Wait.DURABLE)
    for mode in (Mode.HYBRID, Mode.LEXICAL):
        answer = running.recall("lighthouse", mode=mode, top_k=1, **BARE)
        assert hit_ids(answer) == ["new"]
        assert hits(answer)[0].cosine is None
        assert (hits(answer)[0].chunks, hits(answer)[0].dense_rank) == (0, 0)
    barred = running.recall("lighthouse", top_k=1, threshold=-1.0, explain=True, **BARE)
    assert hit_ids(barred) == []
    assert barred.info.why_empty is WhyEmpty.BELOW_THRESHOLD
    assert reasons(barred)["new"] is ExcludedReason.NO_VECTOR
    running.embedder.heal()
    await_pending(running, 0)
    found = hits(running.recall("lighthouse", top_k=1, threshold=-1.0, **BARE))
    assert found[0].cosine == pytest.approx(cosine("lighthouse", new), abs=1e-6)


WORDS = ["tea", "harbour", "cat", "roof", "night", "Uji", "zeppelin", "the"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True),
    thresholds=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2).map(sorted),
    top_k=st.integers(1, 6),
    mode=st.sampled_from(MODES),
    asked=st.sampled_from([{}, {"diversity": 0.5}, {"near_duplicate_cosine": 0.5}]),
)
def test_raising_the_threshold_never_adds_a_result(
    facts: HybridRunning,
    words: list[str],
    thresholds: list[float],
    top_k: int,
    mode: Mode,
    asked: dict[str, float],
) -> None:
    """SCORE-3, in each mode."""
    text, fields = " ".join(words), {"mode": mode, "top_k": top_k, **BARE, **asked}
    without = facts.recall(text, **fields)
    low, high = (facts.recall(text, threshold=value, **fields) for value in thresholds)
    kept = hit_ids(without)
    assert [id for id in kept if id in hit_ids(low)] == hit_ids(low)
    assert set(hit_ids(high)) <= set(hit_ids(low)) <= set(kept)
    least = np.float32(thresholds[0])
    cosines = {id: cosine(text, FACTS[id]) for id in kept}
    assert {id for id in kept if cosines[id] >= least + 1e-6} <= set(hit_ids(low))
    assert set(hit_ids(low)) <= {id for id in kept if cosines[id] >= least - 1e-6}


@pytest.mark.parametrize("mode", MODES)
def test_the_lowest_score_as_threshold_gives_the_same(facts: HybridRunning, mode: Mode) -> None:
    first = facts.recall("tea harbour", mode=mode, top_k=3, threshold=-1.0, **BARE)
    lowest = min(hit.cosine for hit in hits(first) if hit.cosine is not None)
    again = facts.recall("tea harbour", mode=mode, top_k=3, threshold=lowest, **BARE)
    assert hit_ids(again) == hit_ids(first)
    above = float(np.nextafter(np.float32(lowest), np.float32(2.0)))
    assert len(hit_ids(facts.recall("tea harbour", mode=mode, top_k=3, threshold=above))) == 2


def test_an_answer_below_the_threshold_says_the_best_score(facts: HybridRunning) -> None:
    """SCORE-4."""
    answer = facts.recall("tea harbour", threshold=0.99)
    assert (ids(answer), answer.info.why_empty) == ([], WhyEmpty.BELOW_THRESHOLD)
    best = max(cosine("tea harbour", text) for text in FACTS.values())
    assert answer.info.best_score == pytest.approx(best, abs=1e-6)


def test_a_vector_without_words_is_ranked_by_meaning(facts: HybridRunning) -> None:
    vector = text_vector("tea", 64)
    answer = facts.recall("", embedding=vector, top_k=6, mode=Mode.HYBRID, **BARE)
    assert answer.info.mode_used is Mode.DENSE
    assert hit_ids(answer) == hit_ids(facts.recall("tea", mode=Mode.DENSE, top_k=6, **BARE))


def test_a_vector_stands_in_for_that_of_the_query(facts: HybridRunning) -> None:
    runs = facts.embedder.runs
    answer = facts.recall("boat", embedding=text_vector("tea", 64), top_k=6, **BARE)
    assert facts.embedder.runs == runs
    assert answer.info.mode_used is Mode.HYBRID
    found = dict(zip(hit_ids(answer), hits(answer), strict=True))
    assert found["boat"].bm25 > 0.0
    assert found["tea"].cosine == pytest.approx(cosine("tea", FACTS["tea"]), abs=1e-6)


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b"])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_no_query_is_no_error(facts: HybridRunning, text: str, mode: Mode | None) -> None:
    answer = facts.recall(text, mode=mode, alternative_texts=("tea",))
    assert (ids(answer), answer.info.why_empty) == ([], WhyEmpty.NO_QUERY)
    assert answer.info.mode_used is (mode or Mode.HYBRID)


def test_words_are_not_looked_for_in_a_vector(facts: HybridRunning) -> None:
    answer = facts.recall("", mode=Mode.LEXICAL, embedding=text_vector("tea", 64))
    assert answer.info.why_empty is WhyEmpty.NO_QUERY


@pytest.mark.parametrize("mode", MODES)
def test_other_phrasings_count_and_the_best_cosine_is_the_score(
    facts: HybridRunning, mode: Mode
) -> None:
    others = ("harbour at night", "", " ", "tea", "harbour at night")
    fields = {"mode": mode, "top_k": 6, "threshold": -1.0, **BARE}
    answer = facts.recall("tea", alternative_texts=others, **fields)
    queries = ("tea", "harbour at night")
    assert {"tea", "cup", "boat", "rain"} <= set(hit_ids(answer))
    for id, hit in zip(hit_ids(answer), hits(answer), strict=True):
        right = max(cosine(query, FACTS[id]) for query in queries)
        assert hit.cosine == pytest.approx(right, abs=1e-6)
    best = max(cosine(query, text) for query in queries for text in FACTS.values())
    assert answer.info.best_score == pytest.approx(best, abs=1e-6)
    if mode is Mode.DENSE:
        cosines = [hit.cosine for hit in hits(answer)]
        assert cosines == sorted(cosines, reverse=True)


def test_other_phrasings_are_worth_the_mean_of_all(facts: HybridRunning) -> None:
    queries = ("tea", "harbour at night")
    alone = [facts.recall(query, top_k=6, **BARE) for query in queries]
    worth = [{hit.seq: hit.relevance for hit in hits(answer)} for answer in alone]
    both = facts.recall(queries[0], alternative_texts=queries[1:], top_k=6, **BARE)
    assert len(hits(both)) == 6
    for hit in hits(both):
        right = sum(one[hit.seq] for one in worth) / 2
        assert hit.relevance == pytest.approx(right, abs=1e-5)


def test_a_caller_that_went_away_is_noticed_between_phrasings(
    facts: HybridRunning, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def recorded(resource_id: str, text: str) -> tuple[str, ...]:
        read.append(text)
        return ()

    monkeypatch.setattr(facts.lexical, "names_in", recorded)
    query = RecallQuery("u", "boat", alternative_texts=("ship", "yacht", "dinghy"))
    gone = CallBudget(time.monotonic() + 60, cancelled=lambda: len(read) == 2)
    with pytest.raises(CancelledError):
        facts.engine.recall(query, gone)
    assert read == ["boat", "ship"]


def test_a_repeated_phrasing_changes_nothing(facts: HybridRunning) -> None:
    once = facts.recall("tea", top_k=6, **BARE)
    twice = facts.recall("tea", alternative_texts=("tea", "  "), top_k=6, **BARE)
    assert hits(once) == hits(twice)


def test_conditions_change_no_relevance(facts: HybridRunning) -> None:
    seqs = {hit.seq: hit.relevance for hit in hits(facts.recall("tea harbour", top_k=6))}
    scoped = facts.recall("tea harbour", scope=Scope.THREAD, thread_id="cup", **BARE)
    assert hit_ids(scoped) == ["cup"]
    assert hits(scoped)[0].relevance == seqs[hits(scoped)[0].seq]


@pytest.mark.parametrize("mode", MODES)
def test_recency_brings_what_is_new_forward(running: HybridRunning, mode: Mode) -> None:
    """SCORE-6: the future has age zero."""
    now_ns = 1_700_000_000 * 10**9
    running.set_clock(now_ns)
    ages = {"old": 70, "new": 7, "future": -10}
    for id, age in ages.items():
        running.add(draft(id, "tea", thread_id=id, create_time_ns=now_ns - age * DAY_NS))
    running.add(draft("other", "tea with a boat", thread_id="o", create_time_ns=now_ns))
    plain = running.recall("tea", mode=mode, **BARE)
    assert hit_ids(plain) == ["old", "new", "future", "other"]
    worst, best = hits(plain)[-1].relevance, hits(plain)[0].relevance
    answer = running.recall("tea", mode=mode, recency_weight=0.25, **BARE)
    assert hit_ids(answer) == ["future", "new", "old", "other"]
    for id, hit in zip(hit_ids(answer), hits(answer), strict=True):
        recent = 0.5 ** (max(0, ages.get(id, 0)) / 7)
        scaled = 0.0 if id == "other" else 1.0
        right = worst + (best - worst) * (0.75 * scaled + 0.25 * recent)
        assert hit.relevance == pytest.approx(right, abs=1e-6)
        if mode is not Mode.LEXICAL:
            text = "tea with a boat" if id == "other" else "tea"
            assert hit.cosine == pytest.approx(cosine("tea", text))


def test_equal_messages_go_by_arrival(running: HybridRunning) -> None:
    running.add(*(draft(f"m{n}", "tea", thread_id=f"t{n}") for n in range(8)))
    for mode in MODES:
        answers = [running.recall("tea", mode=mode, top_k=8) for _ in range(3)]
        assert hit_ids(answers[0]) == [f"m{n}" for n in range(8)]
        assert answers[0].messages == answers[1].messages == answers[2].messages


def test_an_edit_between_the_looks_is_looked_at_again(running: HybridRunning) -> None:
    add_facts(running)
    running.lexical.after_match.append(
        lambda: running.add(draft("tea", "a plain stone", thread_id="tea"))
    )
    answer = running.recall("green tea Uji", top_k=2, explain=True, **BARE)
    assert "tea" not in hit_ids(answer)
    assert len(running.lexical.queries) >= 2
    for hit, id in zip(hits(answer), hit_ids(answer), strict=True):
        assert hit.cosine == pytest.approx(cosine("green tea Uji", FACTS[id]), abs=1e-6)


def test_a_vector_of_an_older_text_does_not_count(running: HybridRunning) -> None:
    add_facts(running)
    new = "a plain stone"
    running.embedder.fail_on(new)
    running.add(draft("tea", new, thread_id="tea"), wait=Wait.DURABLE)
    answer = running.recall("green tea Uji stone", top_k=6, **BARE)
    found = dict(zip(hit_ids(answer), hits(answer), strict=True))
    assert found["tea"].cosine is None
    assert found["tea"].bm25 > 0.0


def test_times_are_told(facts: HybridRunning) -> None:
    info = facts.recall("tea").info
    assert info.lexical_us > 0
    assert info.search_us >= info.lexical_us
    assert facts.recall("tea", mode=Mode.DENSE).info.lexical_us == 0


def test_small_partitions_are_exact(facts: HybridRunning) -> None:
    assert all(facts.recall("tea harbour", mode=mode).info.exact for mode in MODES)


def test_names_of_the_partition_do_not_draw_the_query_but_its_score_is_the_whole_ones(
    running: HybridRunning,
) -> None:
    """What is ranked by is turned away from the author's name; the cosine told is the true one."""
    running.add(
        draft("name", "Ottilie", author="Max", thread_id="n"),
        draft("boat", "a boat in the harbour", author="Ottilie", thread_id="b"),
        draft("night", "the harbour at night", author="Max", thread_id="c"),
        draft("roof", "a cat on the roof", author="Max", thread_id="d"),
    )
    query = "Ottilie boat"
    vector, name = (text_vector(text, 64).astype(np.float64) for text in (query, "Ottilie"))
    turned = vector - 1.25 * (vector @ name) * name
    turned /= np.linalg.norm(turned)
    answer = running.recall(query, top_k=4, explain=True, **BARE)
    found = dict(zip(hit_ids(answer), hits(answer), strict=True))
    texts = {m.message.id: m.message.text for m in answer.messages}
    assert hit_ids(answer)[0] == "boat"
    assert found["boat"].parts.author == 1.0
    for id, hit in found.items():
        assert hit.cosine == pytest.approx(cosine(query, texts[id]), abs=1e-6)
    by_meaning = sorted(found, key=lambda id: found[id].dense_rank)
    nearness = {id: float(turned @ text_vector(text, 64)) for id, text in texts.items()}
    assert by_meaning == sorted(texts, key=lambda id: -nearness[id])
    parts = np.array([found[id].parts.dense for id in by_meaning])
    cosines = np.array([nearness[id] for id in by_meaning])
    standing_out = np.maximum((cosines - cosines.mean()) / cosines.std(), -1.0)
    assert parts == pytest.approx(standing_out, abs=1e-3)
    best = max(cosine(query, text) for text in texts.values())
    assert answer.info.best_score == pytest.approx(best, abs=1e-6)
    dense = running.recall(query, mode=Mode.DENSE, top_k=4, **BARE)
    assert hit_ids(dense) == sorted(texts, key=lambda id: -cosine(query, texts[id]))


def test_the_answer_to_a_question_is_found_by_it(running: HybridRunning) -> None:
    running.add(
        draft("ask", "which harbour did the lighthouse keeper love?", thread_id="q"),
        draft("answer", "Bergen, of course", thread_id="q"),
        draft("after", "and so on", thread_id="q"),
        draft("other", "Bergen, of course", thread_id="o"),
        *(draft(f"m{n}", f"something else {n}", thread_id=f"m{n}") for n in range(5)),
    )
    found = hits(running.recall("lighthouse keeper harbour", top_k=9, **BARE))
    by_id = dict(zip([h.seq for h in found], found, strict=True))
    ask, answer = found[0], by_id[found[0].seq + 1]
    p = ask.parts
    assert answer.parts.neighbour == pytest.approx(0.25 * (p.dense + p.lexical + p.author))
    assert by_id[answer.seq + 1].parts.neighbour == 0.0


def test_verify_compares_the_words_with_the_record(running: HybridRunning) -> None:
    add_facts(running)
    running.recall("tea")
    seqs, _ = running.lexical.partition_seqs("u")
    assert [type(event) for event in running.engine.verify("u")] == [VerifyReport]
    running.lexical.texts_removed("u", seqs[1:2])
    findings = [event for event in running.engine.verify("u") if isinstance(event, Finding)]
    assert findings == [Finding("WORDS_DIFFER", "u", "", f"row {seqs[1]}")]


def test_words_are_read_ahead_at_a_start(tmp_path: Path) -> None:
    first = HybridRunning(tmp_path / "data")
    add_facts(first)
    first.engine.stop()
    second = HybridRunning(tmp_path / "data", warming=WarmingLimits(seconds_before_serving=30.0))
    assert (second.index.partitions_loaded(), second.lexical.partitions_loaded()) == (1, 1)
    second.engine.stop()
    third = HybridRunning(tmp_path / "data", lexical_bytes_max=0)
    assert (third.index.partitions_loaded(), third.lexical.partitions_loaded()) == (0, 0)
    third.engine.stop()


def test_warming_up_leaves_nothing_of_nobody(running: HybridRunning) -> None:
    running.engine.warm_up("hello", CallBudget.of_seconds(30.0))
    assert running.lexical.partitions_loaded() == 0


def test_more_messages_than_are_looked_at(running: HybridRunning) -> None:
    """Of many, as many hits as are asked for; what is known to be exact says so."""
    running.add(*(draft(f"m{n}", f"tea {n}", thread_id=f"t{n}") for n in range(420)))
    for mode in MODES:
        answer = running.recall("tea", mode=mode, top_k=40, **BARE)
        assert len(hits(answer)) == 40
        assert answer.info.candidates == 420
        assert answer.info.exact is (mode is Mode.DENSE)
        few = running.recall("tea 7", mode=mode, top_k=1, **BARE)
        assert hit_ids(few) == ["m7"]
    assert running.recall("7", mode=Mode.LEXICAL, top_k=1).info.exact
    aged = running.recall("tea", mode=Mode.DENSE, top_k=1, recency_weight=0.1)
    assert not aged.info.exact


def test_the_best_score_is_that_of_all_where_there_is_a_threshold(running: HybridRunning) -> None:
    """Ranked by is the query without its name; the nearest message to the name is far down."""
    far = [draft(f"m{n}", f"tea {n}", author="Ottilie", thread_id=f"t{n}") for n in range(130)]
    running.add(*far, draft("name", "Ottilie Ottilie", thread_id="n", author="Max"))
    query = "Ottilie Ottilie Ottilie tea"
    right = cosine(query, "Ottilie Ottilie")
    assert right > max(cosine(query, f"tea {n}") for n in range(130))
    answer = running.recall(query, top_k=3, threshold=-1.0, **BARE)
    assert answer.info.best_score == pytest.approx(right, abs=1e-6)
