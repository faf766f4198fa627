"""What every embedder promises, over each one we have."""

from __future__ import annotations

import random
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.embedding.embedder import OnnxEmbedder, load_embedder
from semanticrecall_core.embedding.scheduler import Scheduling
from semanticrecall_core.embedding.session import EncoderSession
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    EmbeddingFailedError,
    InvalidArgumentError,
)
from semanticrecall_core.types.ports import Embedder
from semanticrecall_core.types.values import CallBudget, EmbeddedText, EmbedRole
from support import tiny_model
from support.fake_embedder import FakeEmbedder, Gate

WAIT = 60.0
HELD = "meet at the blue harbour"
LONG = " ".join(f"{word} {n}" for n in range(120) for word in ("blue harbour", "dark mode"))


class Subject:
    """An embedder, fresh ones like it, and control over its runs.

    Attributes:
        tolerance: how far a number of a text's vector may be from what it is alone.
    """

    tolerance = 0.0

    def __init__(self, make: Callable[[], Embedder]) -> None:
        self.make = make
        self.embedder = make()

    def hold(self) -> Gate:
        """Hold runs of HELD up."""
        raise NotImplementedError

    def fail(self) -> None:
        """Make runs of HELD fail until `heal`."""
        raise NotImplementedError

    def heal(self) -> None:
        """End what `fail` began."""
        raise NotImplementedError

    def runs(self) -> int:
        """How often the model has run for this embedder."""
        raise NotImplementedError


class FakeSubject(Subject):
    def __init__(self) -> None:
        super().__init__(FakeEmbedder)
        assert isinstance(self.embedder, FakeEmbedder)
        self.fake = self.embedder

    def hold(self) -> Gate:
        return self.fake.block_on(HELD)

    def fail(self) -> None:
        self.fake.fail_on(HELD)

    def heal(self) -> None:
        self.fake.heal()

    def runs(self) -> int:
        return self.fake.runs


class OnnxSubject(Subject):
    def __init__(self, make: Callable[[], Embedder], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(make)
        self._runs = 0
        self._gate: Gate | None = None
        self._failing = False
        run_batch = EncoderSession.run_batch

        def watched(session: EncoderSession, texts: list[object]) -> object:
            self._runs += len(texts)
            if (gate := self._gate) is not None:
                gate.entered.set()
                assert gate.release.wait(WAIT)
            if self._failing:
                raise EmbeddingFailedError("the model failed")
            return run_batch(session, texts)  # type: ignore[arg-type]

        monkeypatch.setattr(EncoderSession, "run_batch", watched)

    def hold(self) -> Gate:
        self._gate = Gate()
        return self._gate

    def fail(self) -> None:
        self._failing = True

    def heal(self) -> None:
        self._failing = False

    def runs(self) -> int:
        return self._runs


def one_by_one() -> OnnxEmbedder:
    model = tiny_model.model()
    return OnnxEmbedder(replace(model, spec=replace(model.spec, quantisation="int8")), device="cpu")


def batched() -> OnnxEmbedder:
    graph = tiny_model.graph(output="last_hidden_state", inputs=("input_ids", "attention_mask"))
    # One worker, so that batches form.
    scheduling = Scheduling(runs_max=1)
    return OnnxEmbedder(tiny_model.model(graph_bytes=graph), device="cpu", scheduling=scheduling)


@pytest.fixture(
    params=["fake", "one by one", "batched", pytest.param("default", marks=pytest.mark.model)]
)
def subject(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    made: Subject
    if request.param == "fake":
        made = FakeSubject()
    elif request.param == "one by one":
        made = OnnxSubject(one_by_one, monkeypatch)
    elif request.param == "batched":
        made = OnnxSubject(batched, monkeypatch)
        made.tolerance = 1e-5
    else:
        made = OnnxSubject(lambda: load_embedder(None, None, "cpu"), monkeypatch)
    yield made
    made.heal()


@dataclass
class Watch:
    """A budget's caller: says when it has begun to wait, and can go away."""

    asked_before_waiting: int = 3

    def __post_init__(self) -> None:
        self.waiting = threading.Event()
        self.gone = threading.Event()
        self._asked = 0

    def budget(self) -> CallBudget:
        return CallBudget(CallBudget.of_seconds(WAIT).deadline, self._is_gone)

    def _is_gone(self) -> bool:
        self._asked += 1
        if self._asked >= self.asked_before_waiting:
            self.waiting.set()
        return self.gone.is_set()


def budget() -> CallBudget:
    return CallBudget.of_seconds(WAIT)


def assert_unit_rows(embedded: EmbeddedText, dimensions: int) -> None:
    assert embedded.vectors.dtype == np.float32
    assert embedded.vectors.ndim == 2
    assert embedded.vectors.shape[1] == dimensions
    lengths = np.linalg.norm(embedded.vectors.astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths, 1.0, atol=1e-5)
    assert embedded.computed + embedded.cached == len(embedded.vectors)
    assert embedded.tokens > 0


def test_a_query_is_one_unit_vector(subject: Subject) -> None:
    embedded = subject.embedder.embed_query("turn on dark mode", budget())
    assert_unit_rows(embedded, subject.embedder.dimensions)
    assert len(embedded.vectors) == 1
    assert not embedded.truncated


def test_a_long_passage_is_many_unit_vectors(subject: Subject) -> None:
    embedded = subject.embedder.embed_passage(LONG, budget())
    assert_unit_rows(embedded, subject.embedder.dimensions)
    assert len(embedded.vectors) > 2
    assert not embedded.truncated
    assert subject.embedder.embed_passage("hello", budget()).vectors.shape[0] == 1


def test_a_long_query_is_cut_and_says_so(subject: Subject) -> None:
    embedded = subject.embedder.embed_query("blue harbour " * 8_000, budget())
    assert_unit_rows(embedded, subject.embedder.dimensions)
    assert len(embedded.vectors) == 1
    assert embedded.truncated


def test_the_same_text_is_the_same_vector_whatever_runs_beside_it(subject: Subject) -> None:
    texts = [f"the {n} {word} harbour" for n in range(6) for word in ("blue", "dark", "nine")]
    quiet, beside = subject.make(), subject.make()
    alone = {text: quiet.embed_query(text, budget()).vectors for text in texts}
    start = threading.Barrier(16)

    def work(seed: int) -> list[tuple[str, NDArray[np.float32]]]:
        order = random.Random(seed).sample(texts, len(texts))
        start.wait(WAIT)
        answers = []
        for position, text in enumerate(order):
            embed = beside.embed_query if (position + seed) % 2 else beside.embed_passage
            answers.append((text, embed(text, budget()).vectors))
        return answers

    with ThreadPoolExecutor(16) as pool:
        for answers in pool.map(work, range(16)):
            assert len(answers) == len(texts)
            for text, vectors in answers:
                assert np.abs(vectors - alone[text]).max() <= subject.tolerance
    stats = beside.scheduler_stats()
    assert stats.batched_texts >= stats.batches > 0
    assert (stats.queued_texts, stats.queued_tokens, stats.refused) == (0, 0, 0)


def test_identical_queries_at_once_cost_one_run(subject: Subject) -> None:
    gate = subject.hold()
    before = subject.runs()
    watches = [Watch() for _ in range(7)]
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(subject.embedder.embed_query, HELD, budget())
        assert gate.entered.wait(WAIT)
        others = [pool.submit(subject.embedder.embed_query, HELD, w.budget()) for w in watches]
        assert all(watch.waiting.wait(WAIT) for watch in watches)
        gate.release.set()
        answers = [first.result(WAIT), *(other.result(WAIT) for other in others)]
    assert subject.runs() - before == 1
    assert sum(answer.computed for answer in answers) == 1
    assert len({answer.vectors.tobytes() for answer in answers}) == 1


def test_queries_together_have_the_vectors_of_each_alone(subject: Subject) -> None:
    texts = [f"the {n} blue harbour" + " dark mode" * n for n in range(6)]
    alone = [subject.make().embed_query(text, budget()) for text in texts]
    subject.embedder.embed_query(texts[2], budget())
    before, kept = subject.runs(), subject.embedder.cache_stats()
    together = subject.embedder.embed_queries([*texts, texts[0], LONG * 20], budget())
    assert subject.runs() - before == 6
    assert subject.embedder.cache_stats().misses - kept.misses == 6
    for one, other in zip(alone, together, strict=False):
        assert np.abs(one.vectors - other.vectors).max() <= subject.tolerance
        assert (one.tokens, one.truncated) == (other.tokens, other.truncated)
    assert [one.computed for one in together] == [1, 1, 0, 1, 1, 1, 0, 1]
    assert [one.cached for one in together] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert np.array_equal(together[6].vectors, together[0].vectors)
    assert together[7].truncated
    again = subject.embedder.embed_queries(texts, budget())
    assert [one.vectors.tobytes() for one in again] == [
        one.vectors.tobytes() for one in together[:6]
    ]
    assert subject.embedder.embed_queries([], budget()) == []


def test_what_is_cached_is_not_to_be_computed_and_asking_counts_nothing(subject: Subject) -> None:
    embedder = subject.embedder
    asked = ["hello", "turn on dark mode"]
    assert embedder.queries_to_compute(asked, "alice") == 2
    embedder.embed_query("hello", budget(), "alice")
    counted = embedder.cache_stats()
    assert embedder.queries_to_compute(asked, "alice") == 1
    assert embedder.queries_to_compute(["hello"], "alice") == 0
    assert embedder.queries_to_compute(asked, "bob") == 2
    assert embedder.queries_to_compute([], "alice") == 0
    assert embedder.cache_stats() == counted


def test_queries_together_share_runs_with_others_and_owners_share_nothing(
    subject: Subject,
) -> None:
    gate, watch = subject.hold(), Watch()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(subject.embedder.embed_query, HELD, budget(), "alice")
        assert gate.entered.wait(WAIT)
        both = pool.submit(subject.embedder.embed_queries, ["hello", HELD], watch.budget(), "alice")
        assert watch.waiting.wait(WAIT)
        gate.release.set()
        held = first.result(WAIT)
        hello, other = both.result(WAIT)
    assert (hello.computed, held.computed + other.computed) == (1, 1)
    assert np.array_equal(held.vectors, other.vectors)
    (mine,) = subject.embedder.embed_queries([HELD], budget(), "bob")
    assert mine.computed == 1


def test_queries_together_fail_as_one_alone_does(subject: Subject) -> None:
    with pytest.raises(InvalidArgumentError):
        subject.embedder.embed_queries(["hello", "  "], budget())
    with pytest.raises(DeadlineExceededError):
        subject.embedder.embed_queries(["hello", HELD], CallBudget.of_seconds(-1))
    subject.fail()
    with pytest.raises(EmbeddingFailedError):
        subject.embedder.embed_queries([HELD, "turn on dark mode"], budget())
    subject.heal()
    assert len(subject.embedder.embed_queries([HELD, "turn on dark mode"], budget())) == 2


def test_tokens_are_counted_and_texts_cut_to_them(subject: Subject) -> None:
    embedder = subject.embedder
    assert embedder.count_tokens(["", "hello world", "turn on dark mode"]) == [0, 2, 4]
    assert embedder.count_tokens([]) == []
    assert embedder.embed_query("turn on dark mode", budget()).tokens == 4 + 2
    assert embedder.cut_to_tokens("turn on dark mode", 4) == "turn on dark mode"
    assert embedder.cut_to_tokens("turn on dark mode ", 3) == "turn on dark"
    assert embedder.cut_to_tokens("turn on dark mode", 0) == ""
    (whole,) = embedder.count_tokens([LONG])
    for tokens in (1, whole // 2, whole - 1):
        beginning = embedder.cut_to_tokens(LONG, tokens)
        assert LONG.startswith(beginning)
        assert embedder.count_tokens([beginning]) == [tokens]


def test_one_caller_going_away_disturbs_no_other(subject: Subject) -> None:
    gate = subject.hold()
    leaving, staying = Watch(), Watch()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(subject.embedder.embed_query, HELD, budget())
        assert gate.entered.wait(WAIT)
        gone = pool.submit(subject.embedder.embed_query, HELD, leaving.budget())
        kept = pool.submit(subject.embedder.embed_query, HELD, staying.budget())
        assert leaving.waiting.wait(WAIT)
        assert staying.waiting.wait(WAIT)
        leaving.gone.set()
        with pytest.raises(CancelledError):
            gone.result(WAIT)
        with pytest.raises(DeadlineExceededError):
            subject.embedder.embed_query(HELD, CallBudget.of_seconds(0.02))
        gate.release.set()
        expected = first.result(WAIT).vectors.tobytes()
        assert kept.result(WAIT).vectors.tobytes() == expected


def test_a_call_that_is_over_costs_no_run(subject: Subject) -> None:
    before = subject.runs()
    with pytest.raises(DeadlineExceededError):
        subject.embedder.embed_query("hello", CallBudget.of_seconds(-1))
    with pytest.raises(CancelledError):
        subject.embedder.embed_passage("hello", CallBudget(budget().deadline, lambda: True))
    assert subject.runs() == before


def test_a_passage_stops_between_chunks_when_its_caller_goes_away(subject: Subject) -> None:
    whole = len(subject.make().embed_passage(LONG, budget()).vectors)
    before = subject.runs()
    asked = iter(range(1_000))
    going = CallBudget(budget().deadline, lambda: next(asked) >= 4)
    with pytest.raises(CancelledError):
        subject.embedder.embed_passage(LONG, going)
    assert subject.runs() - before < whole
    assert len(subject.embedder.embed_passage(LONG, budget()).vectors) == whole


def test_a_failure_is_said_not_kept_and_heals(subject: Subject) -> None:
    subject.fail()
    for _ in range(2):
        with pytest.raises(EmbeddingFailedError) as raised:
            subject.embedder.embed_passage(HELD, budget())
        assert "harbour" not in raised.value.message
    subject.heal()
    assert_unit_rows(subject.embedder.embed_passage(HELD, budget()), subject.embedder.dimensions)


def test_waiting_callers_share_a_failure(subject: Subject) -> None:
    gate = subject.hold()
    watch = Watch()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(subject.embedder.embed_query, HELD, budget())
        assert gate.entered.wait(WAIT)
        second = pool.submit(subject.embedder.embed_query, HELD, watch.budget())
        assert watch.waiting.wait(WAIT)
        subject.fail()
        gate.release.set()
        for call in (first, second):
            with pytest.raises(EmbeddingFailedError):
                call.result(WAIT)


def test_the_cache_is_counted_and_forgets(subject: Subject) -> None:
    embedder = subject.embedder
    start = embedder.cache_stats()
    first = embedder.embed_passage(LONG, budget())
    rows = len(first.vectors)
    again = embedder.embed_passage(LONG, budget())
    assert (first.computed, first.cached, again.computed, again.cached) == (rows, 0, 0, rows)
    assert again.tokens == first.tokens
    assert np.array_equal(first.vectors, again.vectors)
    stats = embedder.cache_stats()
    assert stats.entries - start.entries == rows
    assert stats.misses - start.misses == rows
    assert stats.hits - start.hits == rows
    assert stats.bytes > start.bytes
    assert embedder.forget_texts([LONG, "never seen", ""]) == rows
    assert embedder.cache_stats().entries == start.entries
    assert embedder.cache_stats().bytes == start.bytes
    assert embedder.embed_passage(LONG, budget()).computed == rows


def test_what_one_owner_has_cached_is_not_used_for_another(subject: Subject) -> None:
    embedder, text = subject.embedder, "my pin code is 4821"
    first = embedder.embed_query(text, budget(), "alice")
    other = embedder.embed_query(text, budget(), "bob")
    assert (other.computed, other.cached) == (1, 0)
    assert np.array_equal(first.vectors, other.vectors)
    assert embedder.forget_texts([text], "alice") == 1
    assert embedder.embed_query(text, budget(), "bob").cached == 1
    assert embedder.embed_query(text, budget(), "alice").computed == 1


def test_an_owner_is_forgotten_with_all_that_is_cached_for_him(subject: Subject) -> None:
    embedder = subject.embedder
    for owner in ("alice", "bob"):
        embedder.embed_query("my pin code is 4821", budget(), owner)
    rows = embedder.embed_passage(LONG, budget(), "alice").computed
    assert embedder.forget_owner("alice") == rows + 1
    assert embedder.forget_owner("alice") == 0
    assert embedder.embed_query("my pin code is 4821", budget(), "bob").cached == 1
    assert embedder.embed_query("my pin code is 4821", budget(), "alice").computed == 1
    assert embedder.embed_passage(LONG, budget(), "alice").computed == rows


def test_a_passage_cut_to_its_first_window_is_one_vector(subject: Subject) -> None:
    window = subject.embedder.embed_window(LONG, EmbedRole.PASSAGE, budget())
    assert window.truncated
    assert window.computed == 1
    whole = subject.embedder.embed_passage(LONG, budget())
    assert np.array_equal(window.vectors, whole.vectors[:1])


def test_a_query_that_was_cut_is_forgotten_too(subject: Subject) -> None:
    text = "blue harbour " * 8_000
    subject.embedder.embed_query(text, budget())
    assert subject.embedder.forget_texts([text]) == 1
    assert subject.embedder.embed_query(text, budget()).computed == 1


def test_texts_whose_short_hashes_collide_are_two_texts(subject: Subject) -> None:
    first = subject.embedder.embed_passage("msg-4246", budget())
    second = subject.embedder.embed_passage("msg-268273", budget())
    assert second.computed == 1
    assert not np.array_equal(first.vectors, second.vectors)


def test_on_and_off_are_two_queries(subject: Subject) -> None:
    on = subject.embedder.embed_query("turn on dark mode", budget())
    off = subject.embedder.embed_query("turn off dark mode", budget())
    assert off.computed == 1
    assert not np.array_equal(on.vectors, off.vectors)


@pytest.mark.parametrize("text", ["caf\u00e9", "A\u030angstro\u0308m", "\u1112\u1161\u11ab"])
def test_composed_and_decomposed_forms_find_each_other(subject: Subject, text: str) -> None:
    composed = subject.embedder.embed_passage(unicodedata.normalize("NFC", text), budget())
    decomposed = subject.embedder.embed_query(unicodedata.normalize("NFD", text), budget())
    assert np.array_equal(composed.vectors, decomposed.vectors)


@pytest.mark.parametrize("text", ["😀👩‍👩‍👧", "今日は東京", "مرحبا", "שלום", "ภาษาไทย", "\ufffd a"])
def test_texts_of_all_writing_systems_have_vectors(subject: Subject, text: str) -> None:
    embedded = subject.embedder.embed_passage(text * 300, budget())
    assert_unit_rows(embedded, subject.embedder.dimensions)


@pytest.mark.parametrize("text", ["", "   ", "\n", "\u200b", "\x00"])
def test_a_text_with_nothing_to_embed_is_the_callers_error(subject: Subject, text: str) -> None:
    for embed in (subject.embedder.embed_query, subject.embedder.embed_passage):
        with pytest.raises(InvalidArgumentError) as raised:
            embed(text, budget())
        assert [violation.field for violation in raised.value.violations] == ["text"]


def test_the_identity_is_stable_and_readable(subject: Subject) -> None:
    first, second = subject.embedder, subject.make()
    assert first.generation == second.generation
    assert first.index_identity == second.index_identity
    assert re.fullmatch(rf"[^@]+@[^/]+/{first.dimensions}(/.+)?", first.index_identity)
    assert first.device == "cpu"


def test_it_is_healthy_and_says_what_keeps_it_busy(subject: Subject) -> None:
    assert subject.embedder.healthy
    before = subject.embedder.scheduler_stats().batched_texts
    subject.embedder.embed_query("hello", budget())
    subject.embedder.embed_query("hello", budget())
    assert subject.embedder.scheduler_stats().batched_texts == before + 1
    assert subject.embedder.passages_at_once >= 1
