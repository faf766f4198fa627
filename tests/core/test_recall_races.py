"""Edits that come between the steps of a recall: what is answered met every condition as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semanticrecall_core.types.filters import parse_filter
from semanticrecall_core.types.recalling import GroupState, RecallAnswer, Scope, WhyEmpty
from semanticrecall_core.types.values import ForgetTarget, MessageDraft, Role
from support.fake_embedder import text_vector
from support.hybrid_engine import HybridRunning
from support.running_engine import Running, draft, hit_ids, ids

A, B = {"metadata_json": '{"p":"A"}'}, {"metadata_json": '{"p":"B"}'}
ONLY_A = parse_filter({"p": "A"})


@pytest.fixture(params=[Running, HybridRunning], ids=["dense", "hybrid"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    made: Running = request.param(tmp_path / "data")
    yield made
    made.engine.stop()


def before(running: Running, method: str, *drafts: MessageDraft) -> None:
    """Index these drafts, one a call, just before the next calls of a method of the store."""
    steps = running.store.before.setdefault(method, [])
    steps += [lambda d=d: running.add(d) for d in drafts]


def scores_are_of_the_texts(answer: RecallAnswer, query: str) -> bool:
    vector = text_vector(query, 64)
    found = [(m.found, m.message.text) for m in answer.messages if m.found is not None]
    return all(
        hit.cosine == pytest.approx(float(vector @ text_vector(text, 64)), abs=1e-6)
        for hit, text in found
    )


@pytest.mark.parametrize("steps", [("windows",), ("seqs_matching", "windows"), ("windows",) * 2])
@pytest.mark.parametrize(
    ("asked", "old", "new"),
    [
        ({"scope": Scope.THREAD, "thread_id": "t"}, {}, {"thread_id": "other"}),
        ({"filter": ONLY_A}, A, B),
        ({"time_to_ns": 100}, {"create_time_ns": 1}, {"create_time_ns": 100}),
        ({"roles": frozenset({Role.USER})}, {}, {"role": Role.TOOL}),
        ({}, {}, {"text": "secret words"}),
    ],
)
def test_a_hit_edited_meanwhile_meets_every_condition_or_is_none(
    running: Running,
    asked: dict[str, object],
    old: dict[str, object],
    new: dict[str, object],
    steps: tuple[str, ...],
) -> None:
    running.add(draft("x", "alpha picnic", **old), draft("y", "alpha garden", **old))
    for turn, step in enumerate(steps):
        values: dict[str, object] = {**old, **new, "author": str(turn)}
        text = str(values.pop("text", "alpha picnic"))
        before(running, step, draft("x", text, **values))
    answer = running.recall("alpha picnic", top_k=1, before=0, after=0, **asked)
    assert hit_ids(answer) == ["y"]
    assert scores_are_of_the_texts(answer, "alpha picnic")


def test_a_hit_edited_without_pause_is_left_out(running: Running) -> None:
    running.add(draft("x", "alpha picnic", **A))
    before(running, "windows", *(draft("x", "alpha picnic", author=str(n), **A) for n in range(9)))
    answer = running.recall("alpha picnic", filter=ONLY_A)
    assert (ids(answer), answer.info.why_empty) == ([], WhyEmpty.FILTERED)
    assert answer.info.best_score is None
    running.store.before.clear()
    assert hit_ids(running.recall("alpha picnic", filter=ONLY_A)) == ["x"]


def test_a_hit_edited_without_pause_can_be_a_neighbour(running: Running) -> None:
    running.add(draft("x", "alpha picnic"), draft("y", "alpha garden"))
    before(running, "windows", *(draft("x", "secret", author=str(n)) for n in range(9)))
    answer = running.recall("alpha picnic", top_k=2, before=1, after=0)
    found = {m.message.id: (m.rank, m.message.text) for m in answer.messages}
    assert found == {"x": (0, "secret"), "y": (1, "alpha garden")}
    assert scores_are_of_the_texts(answer, "alpha picnic")
    assert answer.info.best_score == next(m.found.cosine for m in answer.messages if m.found)


def test_an_edit_of_metadata_alone_keeps_a_message_searchable(tmp_path: Path) -> None:
    first = Running(tmp_path / "data")
    first.add(draft("x", "alpha picnic", **B))
    assert hit_ids(first.recall("alpha picnic")) == ["x"]
    runs = first.embedder.runs
    first.add(draft("x", "alpha picnic", **A))
    assert hit_ids(first.recall("alpha picnic", filter=ONLY_A)) == ["x"]
    assert first.embedder.runs == runs
    first.engine.stop()
    second = Running(tmp_path / "data")
    assert hit_ids(second.recall("alpha picnic", filter=ONLY_A)) == ["x"]
    second.engine.stop()


def test_a_thread_made_anew_meanwhile_is_the_one_searched(running: Running) -> None:
    running.add(draft("x", "alpha picnic"))

    def made_anew() -> None:
        running.engine.forget("u", ForgetTarget(thread_id="t"))
        running.add(draft("z", "alpha picnic again"))

    running.store.before["windows"] = [made_anew]
    answer = running.recall("alpha picnic", scope=Scope.THREAD, thread_id="t")
    assert hit_ids(answer) == ["z"]


@pytest.mark.parametrize("hit_too", [False, True])
def test_a_neighbour_that_the_filter_no_longer_allows_is_left_out(
    running: Running, hit_too: bool
) -> None:
    running.add(
        draft("n", "unlike", **A), draft("hit", "alpha picnic", **A), draft("m", "unlike", **A)
    )
    edits = [draft("n", "private", author=str(n), **B) for n in range(9)]
    before(running, "windows", *edits)
    if hit_too:
        running.store.before["windows"][0] = lambda: running.add(
            edits[0], draft("hit", "alpha picnic", author="edited", **A)
        )
    answer = running.recall("alpha picnic", top_k=1, before=1, after=1, filter=ONLY_A)
    assert ids(answer) == ["hit", "m"]


@pytest.mark.parametrize(
    "edit",
    [
        draft("call", "alpha picnic", group_id="g", **B),  # the hit itself
        draft("result", "now private", group_id="g", **B),
        draft("result", "now elsewhere", group_id="", **A),
    ],
    ids=["hit", "member", "left"],
)
def test_a_group_that_changes_while_it_is_read_is_absent_but_for_its_hits(
    running: Running, edit: MessageDraft
) -> None:
    group = {"group_id": "g", **A}
    running.add(draft("call", "alpha picnic", **group), draft("result", "unlike", **group))
    before(running, "group", edit)
    answer = running.recall("alpha picnic", top_k=1, before=0, after=1, filter=ONLY_A)
    assert ids(answer) == ["call"]
    assert answer.messages[0].group_state is GroupState.HIT_ONLY
    assert answer.messages[0].message.metadata_json == A["metadata_json"]
    assert answer.info.absent_group_ids == ("g",)
