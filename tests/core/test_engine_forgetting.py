"""What Forget and TransferThread drop from the embedding cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semanticrecall_core.messages import forget as forget_module
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.values import ForgetTarget
from support.running_engine import Running, draft

QUERY = "what colour is the boat"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    engine = Running(tmp_path / "data")
    engine.recall(QUERY)
    engine.add(*(draft(f"m{n}", f"sentence number {n}") for n in range(4)))
    engine.add(draft("m0", "sentence number 0"), resource="other")
    yield engine
    engine.engine.stop()


def cached(running: Running) -> int:
    return running.engine.cache_stats().entries


def test_messages_that_are_named_leave_with_their_texts_alone(running: Running) -> None:
    before = cached(running)
    report = running.engine.forget("u", ForgetTarget(message_ids=("m0", "m2", "nobody's")))
    assert (report.messages, report.cache_entries) == (2, 2)
    assert cached(running) == before - 2


def test_everything_leaves_with_the_queries(running: Running) -> None:
    before = cached(running)
    report = running.engine.forget("u", ForgetTarget(everything=True))
    assert (report.messages, report.cache_entries) == (4, 5)
    assert cached(running) == before - 5
    assert not running.recall(QUERY).info.cache_hit


@pytest.mark.parametrize(
    "target",
    [
        ForgetTarget(message_ids=("gone",)),
        ForgetTarget(thread_id="gone"),
        ForgetTarget(create_time_before_ns=1),
        ForgetTarget(everything=True),
    ],
)
def test_what_an_earlier_call_may_have_left_goes(running: Running, target: ForgetTarget) -> None:
    running.engine.forget("u", ForgetTarget(thread_id="t"))
    before = cached(running)
    report = running.engine.forget("u", target)
    # Counted where all was meant; a message that is not there has nothing to be counted.
    assert (report.messages, report.cache_entries) == (0, int(target.everything))
    assert cached(running) == before - 1


def test_an_edit_drops_what_was_made_from_the_old_text(running: Running) -> None:
    before = cached(running)
    running.add(draft("m1", "another sentence"))
    assert cached(running) == before
    assert not running.recall("sentence number 1").info.cache_hit
    assert running.recall("another sentence").info.cache_hit


@pytest.mark.parametrize(
    ("texts", "bytes_max"), [(3, 10**6), (10**6, 3 * len("sentence number 0"))]
)
def test_more_texts_than_are_named_take_all_with_them(
    running: Running, monkeypatch: pytest.MonkeyPatch, texts: int, bytes_max: int
) -> None:
    monkeypatch.setattr(forget_module, "FORGET_TEXTS_MAX", texts)
    monkeypatch.setattr(forget_module, "FORGET_TEXT_BYTES_MAX", bytes_max)
    report = running.engine.forget("u", ForgetTarget(thread_id="t"))
    assert (report.messages, report.cache_entries) == (4, 5)


def test_as_many_texts_as_can_be_named_leave_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget_module, "FORGET_TEXTS_MAX", 4)
    running.add(draft("never embedded", "", embeddable=False))
    report = running.engine.forget("u", ForgetTarget(thread_id="t"))
    assert (report.messages, report.cache_entries) == (5, 4)


def test_a_thread_that_is_given_away_takes_its_first_owners_cache_along(running: Running) -> None:
    before = cached(running)
    assert running.engine.transfer_thread("u", "t", "v") == 4
    assert cached(running) == before - 5
    assert running.engine.forget("v", ForgetTarget(everything=True)).messages == 4
    assert cached(running) == before - 5


def test_an_edit_is_searchable_though_the_cache_cannot_drop_the_old_text(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(texts: object, owner: str = "") -> int:
        raise UnavailableError("the file of cached embeddings cannot be erased")

    monkeypatch.setattr(running.embedder, "forget_texts", fails)
    running.add(draft("m1", "quite another sentence"))
    found = running.recall("quite another sentence").messages
    assert [m.message.text for m in found if m.rank == 1] == ["quite another sentence"]
    assert running.engine.pending("u") == 0
