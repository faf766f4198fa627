"""Why hits rank where they do, and why candidates are no hits, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest

from semanticrecall_core.types.filters import parse_filter
from semanticrecall_core.types.recalling import (
    ContextFormat,
    ExcludedReason,
    Mode,
    Scope,
    WhyEmpty,
)
from semanticrecall_core.types.values import ForgetTarget, Role
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
from support.running_engine import draft, hit_ids, ids


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


@pytest.mark.parametrize("mode", MODES)
def test_ranks_follow_relevance_and_relevance_is_the_sum_of_its_parts(
    facts: HybridRunning, mode: Mode
) -> None:
    """SCORE-2."""
    answer = facts.recall("tea in the harbour", mode=mode, top_k=6, **BARE)
    found = hits(answer)
    assert found
    for hit in found:
        p = hit.parts
        parts = [p.dense, p.lexical, p.neighbour, p.author, p.recency, p.diversity]
        assert hit.relevance == reduce(add, parts)
        assert np.isfinite(hit.relevance)
        assert hit.cosine is None or -1.0 <= hit.cosine <= 1.0
    order = [(-hit.relevance, hit.seq) for hit in found]
    assert order == sorted(order)


def test_conditions_hold_for_both_sides(running: HybridRunning) -> None:
    for n, role in enumerate((Role.USER, Role.ASSISTANT)):
        running.add(
            draft(f"a{n}", "tea one", role=role, create_time_ns=n, metadata_json='{"p":"A"}'),
            draft(
                f"b{n}",
                "tea two",
                thread_id="b",
                role=role,
                create_time_ns=n,
                metadata_json='{"p":"B"}',
            ),
        )
    everything = {"a0", "a1", "b0", "b1"}
    for asked, right in (
        ({}, everything),
        ({"roles": frozenset({Role.USER})}, {"a0", "b0"}),
        ({"time_from_ns": 1}, {"a1", "b1"}),
        ({"time_to_ns": 1}, {"a0", "b0"}),
        ({"filter": parse_filter({"p": "A"})}, {"a0", "a1"}),
        ({"scope": Scope.THREAD, "thread_id": "b"}, {"b0", "b1"}),
        ({"excluded_ids": ("a0", "b1")}, {"a1", "b0"}),
    ):
        for mode in MODES:
            fields = {"mode": mode, "top_k": 9, "explain": True, **BARE, **asked}
            answer = running.recall("tea", **fields)
            assert set(hit_ids(answer)) == right
            barred = {i for i, why in reasons(answer).items() if why is ExcludedReason.CONDITIONS}
            assert barred == everything - right


def test_a_thread_that_is_not_there_has_no_messages(facts: HybridRunning) -> None:
    for mode in MODES:
        asked = {"scope": Scope.THREAD, "thread_id": "none", "mode": mode}
        answer = facts.recall("tea", explain=True, **asked)
        assert (ids(answer), answer.info.why_empty) == ([], WhyEmpty.NO_MESSAGES)
        assert set(reasons(answer).values()) == {ExcludedReason.CONDITIONS}


def test_nothing_of_another_resource_is_found_or_told(running: HybridRunning) -> None:
    add_facts(running)
    running.add(draft("theirs", "tea harbour secret", thread_id="s"), resource="other")
    for mode in MODES:
        answer = running.recall("tea secret", mode=mode, top_k=9, explain=True, roles=frozenset())
        assert set(ids(answer)) <= set(FACTS)
        assert {e.message.id for e in answer.excluded if e.message} <= set(FACTS)
        theirs = running.recall("tea secret", mode=mode, top_k=9, resource="other", explain=True)
        assert (ids(theirs), theirs.excluded) == (["theirs"], ())


def test_what_is_forgotten_is_found_by_nothing(running: HybridRunning) -> None:
    add_facts(running)
    running.engine.forget("u", ForgetTarget(message_ids=("tea",)))
    for mode in MODES:
        answer = running.recall("green tea Uji", mode=mode, top_k=9, explain=True)
        assert "tea" not in ids(answer)
        assert "tea" not in reasons(answer)


def test_candidates_behind_the_last_hit_are_told_by_rank(facts: HybridRunning) -> None:
    for mode in (Mode.DENSE, Mode.HYBRID):
        everything = hit_ids(facts.recall("tea harbour", mode=mode, top_k=6, **BARE))
        answer = facts.recall("tea harbour", mode=mode, top_k=2, explain=True, **BARE)
        assert hit_ids(answer) == everything[:2]
        told = [(e.message.id, e.rank) for e in answer.excluded if e.message is not None]
        assert told == list(zip(everything[2:], [3, 4, 5, 6], strict=True))
        assert set(reasons(answer).values()) == {ExcludedReason.TOP_K}
        assert facts.recall("tea harbour", mode=mode, top_k=2).excluded == ()


def test_at_most_twenty_are_told(running: HybridRunning) -> None:
    running.add(*(draft(f"m{n}", f"tea {n}", thread_id=f"t{n}") for n in range(30)))
    for mode in MODES:
        answer = running.recall("tea", mode=mode, top_k=2, explain=True, **BARE)
        assert [e.rank for e in answer.excluded] == list(range(3, 23))


def test_below_the_threshold_is_told(facts: HybridRunning) -> None:
    answer = facts.recall("tea harbour", top_k=6, threshold=0.3, explain=True, **BARE)
    below = {id for id, text in FACTS.items() if cosine("tea harbour", text) < 0.3}
    assert below
    assert set(hit_ids(answer)) == set(FACTS) - below
    assert reasons(answer) == dict.fromkeys(below, ExcludedReason.BELOW_THRESHOLD)


def test_a_near_duplicate_makes_room_and_is_told(running: HybridRunning) -> None:
    add_facts(running)
    running.add(draft("again", FACTS["tea"], thread_id="again"))
    for mode in MODES:
        both = running.recall("green tea", mode=mode, top_k=2, **BARE)
        assert hit_ids(both) == ["tea", "again"]
        fields = {"near_duplicate_cosine": 0.98, "explain": True, **BARE}
        answer = running.recall("green tea", mode=mode, top_k=2, **fields)
        assert hit_ids(answer) == ["tea", "cup"]
        told = [e for e in answer.excluded if e.reason is ExcludedReason.NEAR_DUPLICATE]
        assert [(e.message.id, e.rank) for e in told if e.message] == [("again", 2)]
        assert told[0].instead_of_it == hits(answer)[0].seq


def test_diversity_takes_what_is_new_and_tells(running: HybridRunning) -> None:
    running.add(
        draft("a", "tea tea tea cup", thread_id="a"),
        draft("b", "tea tea tea cups", thread_id="b"),
        draft("c", "tea harbour night", thread_id="c"),
    )
    for mode in MODES:
        plain = running.recall("tea cup", mode=mode, top_k=2, **BARE)
        assert hit_ids(plain) == ["a", "b"]
        fields = {"diversity": 0.8, "explain": True, **BARE}
        answer = running.recall("tea cup", mode=mode, top_k=2, **fields)
        assert hit_ids(answer) == ["a", "c"]
        assert reasons(answer)["b"] is ExcludedReason.DIVERSITY
        first, second = hits(answer)
        assert first.parts.diversity <= 0.0
        assert second.parts.diversity < 0.0
        assert first.relevance >= second.relevance


def test_hits_that_do_not_fit_the_tokens_are_told(facts: HybridRunning) -> None:
    everything = hit_ids(facts.recall("tea harbour", top_k=6, **BARE))
    fields = {"top_k": 6, "tokens_max": 30, "context_format": ContextFormat.NONE, **BARE}
    answer = facts.recall("tea harbour", explain=True, **fields)
    kept = hit_ids(answer)
    assert 0 < len(kept) < 6
    left_out = [id for id in everything if id not in kept]
    told = [(e.message.id, e.reason) for e in answer.excluded if e.message is not None]
    assert told == [(id, ExcludedReason.TOKENS) for id in left_out]
    assert [e.rank for e in answer.excluded] == [everything.index(id) + 1 for id in left_out]


def test_a_hit_that_changes_without_pause_is_told(running: HybridRunning) -> None:
    add_facts(running)
    running.store.before["windows"] = [
        lambda n=n: running.add(draft("tea", f"green tea {n}", thread_id="tea")) for n in range(9)
    ]
    answer = running.recall("green tea", top_k=1, explain=True, **BARE)
    running.store.before.clear()
    assert hit_ids(answer) == []
    assert answer.excluded[0].reason is ExcludedReason.CHANGED
    assert answer.excluded[0].message is None


def test_what_conditions_keep_out_has_the_rank_that_recency_gives_it(
    running: HybridRunning,
) -> None:
    now_ns = 1_700_000_000 * 10**9
    day_ns = 86_400 * 10**9
    running.set_clock(now_ns)
    for id, role, age in (
        ("old", Role.USER, 70),
        ("new", Role.TOOL, 1),
        ("newer", Role.USER, 0),
        ("older", Role.TOOL, 90),
    ):
        time_ns = now_ns - age * day_ns
        running.add(draft(id, "tea", thread_id=id, role=role, create_time_ns=time_ns))
    for mode in MODES:
        asked = {"recency_weight": 0.5, "roles": frozenset({Role.USER}), "explain": True}
        answer = running.recall("tea", mode=mode, top_k=1, **asked, **BARE)
        assert hit_ids(answer) == ["newer"]
        told = [(e.message.id, e.reason, e.rank) for e in answer.excluded if e.message is not None]
        assert told == [
            ("new", ExcludedReason.CONDITIONS, 2),
            ("old", ExcludedReason.TOP_K, 3),
            ("older", ExcludedReason.CONDITIONS, 4),
        ]
