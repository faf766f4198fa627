"""Words that are scored on another thread while the query is embedded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from semanticrecall_core.engine.words_ahead import WordsAhead
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.types.errors import CorruptDataError, EmbeddingFailedError
from semanticrecall_core.types.lexical import LexicalQuery, LexicalRows
from semanticrecall_core.types.recalling import RecallAnswer
from semanticrecall_core.types.values import ForgetTarget
from support.fake_embedder import Gate
from support.hybrid_engine import BARE, HybridRunning, add_facts, hits
from support.running_engine import WAIT_SECONDS, draft, hit_ids

QUERY = "green tea harbour"


class Ahead(HybridRunning):
    """An engine of two cores that tells what was scored ahead.

    Attributes:
        threads: on which threads words were scored ahead.
        scored: one of them is done.
    """

    def __init__(self, directory: Path, cores: int = 2) -> None:
        super().__init__(directory, cores=cores)
        self.threads: list[str] = []
        self.scored = threading.Event()
        score = self.lexical.scored

        def told(resource_id: str, texts: tuple[str, ...], top_k: int) -> object:
            self.threads.append(threading.current_thread().name)
            try:
                return score(resource_id, texts, top_k)
            finally:
                self.scored.set()

        self.lexical.scored = told  # type: ignore[method-assign, assignment]

    def between(self, act: Callable[[], object], query: str = QUERY) -> RecallAnswer:
        """A recall, in which this is done when its words are scored and its vector is awaited."""
        gate: Gate = self.embedder.block_on(query)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.recall, query, top_k=6, **BARE)
            try:
                assert gate.entered.wait(WAIT_SECONDS)
                assert self.scored.wait(WAIT_SECONDS)
                act()
            finally:
                gate.release.set()
            return answer.result(WAIT_SECONDS)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Ahead]:
    made = Ahead(tmp_path / "data")
    add_facts(made)
    yield made
    made.embedder.heal()
    made.engine.stop()


def test_words_scored_ahead_give_the_same_answer(running: Ahead, tmp_path: Path) -> None:
    ahead = running.between(lambda: None)
    assert [name.rpartition("_")[0] for name in running.threads] == ["words-ahead"]
    assert running.lexical.queries == []
    other = HybridRunning(tmp_path / "other")
    add_facts(other)
    alone = other.recall(QUERY, top_k=6, **BARE)
    other.engine.stop()
    assert len(other.lexical.queries) == 1
    assert (hit_ids(ahead), hits(ahead)) == (hit_ids(alone), hits(alone))


def test_a_message_that_came_after_the_words_were_scored_is_found(running: Ahead) -> None:
    answer = running.between(lambda: running.add(draft("new", "harbour tea green")))
    assert hit_ids(answer)[0] == "new"
    assert hits(answer)[0].bm25 > 0.0
    assert len(running.lexical.queries) == 1


def test_a_message_edited_after_the_words_were_scored_is_told_as_it_is(running: Ahead) -> None:
    answer = running.between(lambda: running.add(draft("tea", "harbour of stone", thread_id="tea")))
    texts = {m.message.id: m.message.text for m in answer.messages}
    assert texts["tea"] == "harbour of stone"
    assert running.lexical.queries


def test_a_message_forgotten_after_the_words_were_scored_is_not_told(running: Ahead) -> None:
    answer = running.between(lambda: running.engine.forget("u", ForgetTarget(("tea",))))
    assert sorted(hit_ids(answer)) == ["boat", "cat", "code", "cup", "rain"]


def test_nothing_is_scored_ahead_while_another_recall_is_at_work(running: Ahead) -> None:
    with running.engine._serving._current.recall._words.recalling():
        running.recall(QUERY, **BARE)
    assert running.threads == []
    running.between(lambda: None, "mountains")
    assert len(running.threads) == 1


def test_nothing_is_scored_ahead_on_one_core(tmp_path: Path) -> None:
    running = Ahead(tmp_path / "data", cores=1)
    add_facts(running)
    assert "tea" in hit_ids(running.recall(QUERY, **BARE))
    assert running.threads == []
    running.engine.stop()


def test_nothing_is_scored_ahead_of_a_vector_that_is_known(running: Ahead) -> None:
    running.between(lambda: None)
    running.recall(QUERY, **BARE)
    assert len(running.threads) == 1


def test_nothing_is_scored_ahead_where_two_phrasings_take_both_cores(running: Ahead) -> None:
    running.recall(QUERY, alternative_texts=("thin cup",), **BARE)
    assert running.threads == []


def test_an_error_reaches_who_asked(running: Ahead) -> None:
    def fail(*_: object) -> None:
        running.scored.set()
        raise CorruptDataError("the words are damaged")

    scored = running.lexical.scored
    running.lexical.scored = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(CorruptDataError):
        running.between(lambda: None)
    running.lexical.scored = scored  # type: ignore[method-assign]
    assert "tea" in hit_ids(running.recall(QUERY, **BARE))


def test_a_core_is_free_again_after_a_query_that_could_not_be_embedded(running: Ahead) -> None:
    running.embedder.fail_on(QUERY)
    with pytest.raises(EmbeddingFailedError):
        running.between(lambda: None)
    running.embedder.heal()
    running.engine._serving._current.recall._words.close()
    assert running.engine._serving._current.recall._words._busy == 0
    assert "tea" in hit_ids(running.recall(QUERY, **BARE))


class Held:
    """Work for a pool that nobody does."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []

    def submit(self, work: Callable[..., object], *arguments: object) -> Future[None]:
        self.work.append(lambda: work(*arguments))
        return Future()


def an_index() -> InMemoryLexicalIndex:
    def none(_: str) -> LexicalRows:
        raise AssertionError("nobody asked for the words")

    return InMemoryLexicalIndex(none)


def test_what_nobody_has_begun_is_taken_back() -> None:
    ahead, held = WordsAhead(an_index(), 2), Held()
    ahead.close()
    ahead._pool = held  # type: ignore[assignment]
    words = ahead.begin("r", ("a",), 3, embedding=1)
    assert words is not None
    assert ahead.begin("r", ("a",), 3, embedding=2) is None
    assert words.take() is None
    assert words.take() is None
    held.work.pop()()
    assert ahead.begin("r", ("a",), 3, embedding=2) is not None


def test_after_the_end_nothing_is_begun_and_what_was_in_hand_is_given() -> None:
    entered, release = threading.Event(), threading.Event()

    def load(_: str) -> LexicalRows:
        entered.set()
        assert release.wait(WAIT_SECONDS)
        raise CorruptDataError("the words are damaged")

    ahead = WordsAhead(InMemoryLexicalIndex(load), 2)
    words = ahead.begin("r", ("a",), 3, embedding=1)
    assert words is not None
    assert entered.wait(WAIT_SECONDS)
    with ThreadPoolExecutor(2) as pool:
        end, taken = pool.submit(ahead.close), pool.submit(words.take)
        release.set()
        end.result(WAIT_SECONDS)
        with pytest.raises(CorruptDataError):
            taken.result(WAIT_SECONDS)
    assert ahead.begin("r", ("a",), 3, embedding=1) is None
    assert ahead._busy == 0


def test_an_answer_without_words_ahead_is_that_of_the_index(running: Ahead) -> None:
    """What `scored` and `match` give is the same, bit for bit."""
    query = LexicalQuery((QUERY, "thin cup"), 3)
    whole = running.lexical.match("u", query)
    parts = running.lexical.scored("u", query.texts, query.top_k).match(query)
    for name in whole.__slots__:
        one, other = getattr(whole, name), getattr(parts, name)
        assert one.tobytes() == other.tobytes() if hasattr(one, "tobytes") else one == other
