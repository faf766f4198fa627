"""Another model in the place of the one that answers: online, at once, and nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semanticrecall_core.engine import generations
from semanticrecall_core.types.errors import FailedPreconditionError, UnavailableError
from semanticrecall_core.types.recalling import RecallQuery
from semanticrecall_core.types.values import CallBudget, ForgetTarget, VectorRecord, Wait
from support.exchanging_engine import WAIT_S, Exchanging, OtherWords, other_vector
from support.fake_embedder import FakeEmbedder, text_vector
from support.running_engine import draft

TEXTS = {f"m{i}": f"note {i} about {'tea' if i % 2 else 'coffee'} and day{i}" for i in range(120)}
Vector = Callable[[str, int], np.ndarray]


def expected(
    texts: dict[str, str], query: str, vector: Vector, dimensions: int
) -> list[tuple[str, float]]:
    """All messages by brute force with one model, best first."""
    asked = vector(query, dimensions).astype(np.float64)
    scored = [(name, float(vector(t, dimensions) @ asked)) for name, t in texts.items()]
    return sorted(scored, key=lambda pair: -pair[1])


def is_of(
    found: list[tuple[str, float]],
    texts: dict[str, str],
    query: str,
    vector: Vector,
    dimensions: int,
) -> bool:
    """Whether an answer is what brute force finds with that model."""
    wanted = expected(texts, query, vector, dimensions)
    scores = dict(wanted)
    best = [score for _, score in wanted[: len(found)]]
    right = np.allclose([score for _, score in found], best, atol=1e-5)
    return right and all(abs(scores.get(name, 9.0) - score) < 1e-5 for name, score in found)


@pytest.fixture(params=[48, 64], ids=["other dimension", "same dimension"])
def exchanging(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Exchanging]:
    made = Exchanging(tmp_path, FakeEmbedder(64), OtherWords(request.param)).start()
    yield made
    for embedder in (made.embedder, made.next_embedder):
        embedder.heal()
    made.engine.stop()


def test_the_next_model_takes_the_place_of_the_present_one(exchanging: Exchanging) -> None:
    dimensions = exchanging.next_embedder.dimensions
    exchanging.add("u", TEXTS)
    exchanging.add("v", {"only": "her sister lives in Oslo"})
    exchange = exchanging.engine.exchange
    assert exchange.next_index_identity == exchanging.next_embedder.index_identity
    assert exchange.embedded() == 0
    before = exchanging.found("u", "tea day7")
    assert is_of(before, TEXTS, "tea day7", text_vector, 64)
    told: list[str] = []
    exchange.on_switch(lambda: told.append(exchanging.engine.index_identity))
    events = exchanging.reembed()
    assert [event.complete for event in events] == [False] * (len(events) - 1) + [True]
    assert (events[-1].done, events[-1].total) == (121, 121)
    assert [event.done for event in events] == sorted(event.done for event in events)
    assert {event.before for event in events} == {exchanging.embedder.index_identity}
    assert {event.after for event in events} == {exchanging.next_embedder.index_identity}
    after = exchanging.found("u", "tea day7")
    assert is_of(after, TEXTS, "tea day7", other_vector, dimensions)
    assert told == [exchanging.next_embedder.index_identity] == [exchanging.engine.index_identity]
    assert exchanging.engine.dimensions == dimensions
    exchanging.wait_until_retired()
    assert exchanging.found("v", "Oslo")[0][0] == "only"
    assert exchanging.vectors_on_record() == {(121, 4 * dimensions)}
    assert (exchange.next_index_identity, exchange.embedded()) == ("", 0)
    assert [event.complete for event in exchanging.reembed()] == [True]


def test_recalls_in_flight_finish_on_the_model_they_began_with(exchanging: Exchanging) -> None:
    exchanging.add("u", TEXTS)
    held = exchanging.embedder.block_on("tea day9")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(exchanging.found, "u", "tea day9")
        assert held.entered.wait(WAIT_S)
        assert exchanging.reembed()[-1].complete
        now = exchanging.found("u", "tea day7")
        assert is_of(now, TEXTS, "tea day7", other_vector, exchanging.next_embedder.dimensions)
        assert not exchanging.discarded.is_set()  # somebody is still on the former one
        exchanging.engine.forget("u", ForgetTarget(message_ids=("m9",)))
        held.release.set()
        old = answer.result(WAIT_S)
    assert "m9" not in dict(old)
    left = {name: text for name, text in TEXTS.items() if name != "m9"}
    assert is_of(old, left, "tea day9", text_vector, 64)
    exchanging.wait_until_retired()


def test_what_comes_and_changes_meanwhile_is_covered(exchanging: Exchanging) -> None:
    texts = dict(TEXTS)
    exchanging.add("u", texts)
    held = exchanging.next_embedder.block_on(texts["m100"])
    following = exchanging.follow()
    next(following)
    assert held.entered.wait(WAIT_S)
    changes = {
        "m1": "a boiler that leaks",
        "m100": "nobody is held up",
        "new": "her sister in Oslo",
    }
    texts.update(changes)
    exchanging.add("u", changes)
    token = exchanging.add("u", {"late": "the last train to Lisbon"}, wait=Wait.DURABLE)
    texts["late"] = "the last train to Lisbon"
    exchanging.engine.forget("u", ForgetTarget(message_ids=("m2",)))
    del texts["m2"]
    exchanging.engine.transfer_thread("u", "t", "w")
    waiting = {name: text for name, text in texts.items() if name != "late"}  # or found already
    present = exchanging.found("w", "boiler")
    assert any(is_of(present, known, "boiler", text_vector, 64) for known in (texts, waiting))
    held.release.set()
    assert exchanging.reembed()[-1].complete
    size = exchanging.next_embedder.dimensions
    for text in ("boiler", "her sister", "tea day7", "Lisbon"):
        assert is_of(exchanging.found("w", text), texts, text, other_vector, size)
    assert exchanging.found("u", "boiler") == []
    query = RecallQuery("u", "Lisbon", read_token=token)
    exchanging.engine.recall(query, CallBudget.of_seconds(WAIT_S))
    exchanging.wait_until_retired()
    assert exchanging.vectors_on_record() == {(len(texts), 4 * size)}
    assert exchanging.engine.pending() == 0


def test_all_who_ask_follow_one_run_and_none_is_needed(exchanging: Exchanging) -> None:
    exchanging.add("u", TEXTS)
    held = exchanging.next_embedder.block_on(TEXTS["m50"])
    leaver = exchanging.follow()
    next(leaver)
    assert held.entered.wait(WAIT_S)
    leaver.close()
    with ThreadPoolExecutor(3) as threads:
        ends = [threads.submit(exchanging.reembed) for _ in range(3)]
        held.release.set()
        assert all(end.result(WAIT_S)[-1].complete for end in ends)
    assert exchanging.next_embedder.texts_run.count(TEXTS["m50"]) == 1


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Exchanging(tmp_path, FakeEmbedder(64), OtherWords(48)).start()
    first.add("u", TEXTS)
    held = first.next_embedder.block_on(TEXTS["m90"])
    following = first.follow()
    next(following)
    assert held.entered.wait(WAIT_S)
    first.engine.stop()
    with pytest.raises(UnavailableError):
        list(following)
    made = {text for text in first.next_embedder.texts_run if text != TEXTS["m90"]}
    second = Exchanging(tmp_path, FakeEmbedder(64), OtherWords(48)).start()
    begun = second.engine.exchange.embedded()
    assert 0 < begun <= len(made)
    assert is_of(second.found("u", "tea"), TEXTS, "tea", text_vector, 64)
    events = second.reembed()
    assert (events[-1].done, events[-1].total, events[-1].complete) == (120, 120, True)
    assert len(set(second.next_embedder.texts_run) & set(TEXTS.values())) == 120 - begun
    second.engine.stop()
    # Switched: it serves whichever flag names it, and says so to who asks again.
    third = Exchanging(tmp_path, FakeEmbedder(64), OtherWords(48)).start()
    assert is_of(third.found("u", "tea"), TEXTS, "tea", other_vector, 48)
    (event,) = third.reembed()
    assert (event.done, event.total, event.complete) == (120, 120, True)
    third.engine.stop()
    fourth = Exchanging(tmp_path, OtherWords(48)).start()
    assert is_of(fourth.found("u", "tea"), TEXTS, "tea", other_vector, 48)
    with pytest.raises(FailedPreconditionError) as refused:
        fourth.reembed()
    assert refused.value.reason == "NO_NEXT_MODEL"
    fourth.engine.stop()
    with pytest.raises(FailedPreconditionError) as refused:
        Exchanging(tmp_path, FakeEmbedder(64))
    assert refused.value.reason == "MODEL_CHANGED"


def test_what_the_next_model_cannot_embed_is_pending_afterwards(
    exchanging: Exchanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "ATTEMPT_PAUSE_S", 0.001)
    exchanging.add("u", TEXTS)
    exchanging.next_embedder.fail_on(TEXTS["m7"])
    exchanging.next_embedder.return_nan_on(TEXTS["m8"])
    last = exchanging.reembed()[-1]
    assert (last.done, last.total, last.complete) == (118, 120, True)
    assert exchanging.engine.stats(None).pending == 2
    left = {name: text for name, text in TEXTS.items() if name not in ("m7", "m8")}
    size = exchanging.next_embedder.dimensions
    assert is_of(exchanging.found("u", "tea"), left, "tea", other_vector, size)
    exchanging.next_embedder.heal()
    exchanging.wait_until_embedded()
    assert is_of(exchanging.found("u", "day8"), TEXTS, "day8", other_vector, size)


def test_a_model_that_fails_on_many_takes_no_place(
    exchanging: Exchanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "ATTEMPT_PAUSE_S", 0.001)
    exchanging.add("u", TEXTS)
    for name in [f"m{i}" for i in range(11)]:
        exchanging.next_embedder.fail_on(TEXTS[name])
    with pytest.raises(FailedPreconditionError, match="fails on 11 of 120") as refused:
        exchanging.reembed()
    assert refused.value.reason == "NEXT_MODEL_FAILS"
    assert is_of(exchanging.found("u", "tea"), TEXTS, "tea", text_vector, 64)
    assert exchanging.engine.stats(None).pending == 0
    exchanging.next_embedder.heal()
    assert exchanging.reembed()[-1].complete


def test_a_forget_leaves_no_cache_of_either_model(exchanging: Exchanging) -> None:
    exchanging.add("u", TEXTS)
    held = exchanging.next_embedder.block_on(TEXTS["m100"])
    next(exchanging.follow())
    assert held.entered.wait(WAIT_S)
    assert exchanging.next_embedder.cache_stats().entries > 0
    report = exchanging.engine.forget("u", ForgetTarget(everything=True))
    assert report.messages == 120
    for embedder in (exchanging.embedder, exchanging.next_embedder):
        assert embedder.cache_stats().entries == 0
    held.release.set()
    assert exchanging.reembed()[-1].complete
    assert exchanging.next_embedder.cache_stats().entries == 0
    exchanging.wait_until_retired()
    assert exchanging.vectors_on_record() == set()


def test_images_are_of_the_model_that_answers(exchanging: Exchanging) -> None:
    exchanging.add("u", TEXTS)
    exchanging.add("v", {"only": "her sister lives in Oslo"})
    budget = CallBudget.of_seconds(WAIT_S)
    assert exchanging.engine.create_snapshot(budget).partitions == 2
    exchanging.reembed()
    exchanging.wait_until_retired()
    stats = exchanging.engine.snapshot_stats()
    assert stats is not None
    assert stats.partitions == 0
    assert exchanging.engine.create_snapshot(budget).partitions == 2
    image = exchanging.snapshots.read("u")
    assert image is not None
    assert image.generation == exchanging.next_embedder.generation
    assert image.rows.vectors.shape == (120, exchanging.next_embedder.dimensions)


def test_who_waits_for_vectors_during_the_exchange_is_answered(exchanging: Exchanging) -> None:
    """Index calls that wait go on to wait across the switch, and every one is searchable then."""
    texts = dict(TEXTS)
    exchanging.add("u", texts)
    stop = threading.Event()
    failures: list[str] = []

    def write(writer: int) -> dict[str, str]:
        written: dict[str, str] = {}
        while not stop.is_set() and len(written) < 500:
            name = f"w{writer}-{len(written)}"
            text = f"writer{writer} writes line{len(written)}"
            exchanging.add("u", {name: text})
            written[name] = text
            found = exchanging.found("u", text, top_k=1)
            if [hit for hit, _ in found] != [name]:
                failures.append(name)
        return written

    with ThreadPoolExecutor(2) as threads:
        writers = [threads.submit(write, number) for number in range(2)]
        assert exchanging.reembed()[-1].complete
        exchanging.wait_until_retired()
        stop.set()
        for writer in writers:
            texts.update(writer.result(WAIT_S))
    assert failures == []
    size = exchanging.next_embedder.dimensions
    for text in ("writer1 line3", "coffee day8"):
        assert is_of(exchanging.found("u", text), texts, text, other_vector, size)
    assert exchanging.vectors_on_record() == {(len(texts), 4 * size)}


def test_a_message_of_many_windows_keeps_them_all(exchanging: Exchanging) -> None:
    long = " ".join(f"word{i}" for i in range(200))
    exchanging.add("u", {"long": long, "short": "green tea"})
    windows = exchanging.engine.stats(None).vectors
    exchanging.reembed()
    exchanging.wait_until_retired()
    assert exchanging.engine.stats(None).vectors == windows > 3
    assert exchanging.found("u", "word150 word151", top_k=1)[0][0] == "long"


def test_an_empty_store_switches_at_once(exchanging: Exchanging) -> None:
    last = exchanging.reembed()[-1]
    assert (last.done, last.total, last.complete) == (0, 0, True)
    exchanging.add("u", {"m": "green tea"})
    size = exchanging.next_embedder.dimensions
    assert is_of(exchanging.found("u", "tea"), {"m": "green tea"}, "tea", other_vector, size)


def test_a_stop_during_the_exchange_ends_it(exchanging: Exchanging) -> None:
    exchanging.add("u", TEXTS)
    exchanging.embedder.block_on("never embedded")
    budget = CallBudget.of_seconds(WAIT_S)
    exchanging.engine.index("u", [draft("x", "never embedded")], Wait.DURABLE, budget)
    events = exchanging.follow()
    exchanging.wait_until_embedding("never embedded")
    next(events)
    exchanging.wait_until_made(120)  # it waits for what the present model has in hand
    exchanging.engine.stop()
    with pytest.raises(UnavailableError):
        list(events)


def test_what_changes_after_the_next_partitions_were_read_is_read_anew(
    exchanging: Exchanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models' vectors go along with a message that is moved to another thread."""
    exchanging.add("u", TEXTS)
    serve = exchanging.store.serve

    def changed_before(*arguments: Any) -> tuple[int, ...]:
        monkeypatch.setattr(exchanging.store, "serve", serve)
        budget = CallBudget.of_seconds(WAIT_S)
        moved = [draft(name, text, thread_id="elsewhere") for name, text in TEXTS.items()]
        exchanging.engine.index("u", moved, Wait.DURABLE, budget)
        return serve(*arguments)

    monkeypatch.setattr(exchanging.store, "serve", changed_before)
    assert exchanging.reembed()[-1].complete
    size = exchanging.next_embedder.dimensions
    assert len(exchanging.found("u", "tea")) == 5
    assert is_of(exchanging.found("u", "tea"), TEXTS, "tea", other_vector, size)


def test_a_model_that_hangs_at_the_end_does_not_hold_up_indexing(
    exchanging: Exchanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "PAUSED_MAX_S", 0.05)
    exchanging.add("u", TEXTS)
    held = exchanging.next_embedder.block_on("a late one")
    serve = exchanging.store.serve

    def late(*arguments: Any) -> tuple[int, ...]:
        monkeypatch.setattr(exchanging.store, "serve", serve)
        (row,) = exchanging.store.append(
            "u", [draft("late", "a late one")], CallBudget.of_seconds(WAIT_S)
        )
        vector = text_vector("a late one", 64)[np.newaxis]
        exchanging.store.put_vectors([VectorRecord("u", row.seq, row.revision, vector)])
        return serve(*arguments)

    monkeypatch.setattr(exchanging.store, "serve", late)
    following = exchanging.follow()
    next(following)
    assert held.entered.wait(WAIT_S)
    exchanging.add("u", {"other": "is searchable though it hangs"})
    assert exchanging.found("u", "searchable")[0][0] == "other"
    held.release.set()
    assert exchanging.reembed()[-1].complete
    assert exchanging.found("u", "late")[0][0] == "late"


def test_partitions_that_are_mapped_from_images_are_exchanged_too(tmp_path: Path) -> None:
    running = Exchanging(tmp_path, FakeEmbedder(64), OtherWords(48), mapped=True).start()
    budget = CallBudget.of_seconds(WAIT_S)
    running.add("u", TEXTS)
    running.engine.create_snapshot(budget)
    assert is_of(running.found("u", "tea"), TEXTS, "tea", text_vector, 64)
    assert running.reembed()[-1].complete
    assert is_of(running.found("u", "tea"), TEXTS, "tea", other_vector, 48)
    running.wait_until_retired()
    running.engine.create_snapshot(budget)
    running.engine.forget("u", ForgetTarget(message_ids=("m1",)))
    left = {name: text for name, text in TEXTS.items() if name != "m1"}
    assert is_of(running.found("u", "tea"), left, "tea", other_vector, 48)
    running.engine.stop()
