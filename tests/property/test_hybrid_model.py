"""Hybrid recalls of random histories against the formula: dictionaries and plain Python floats."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semanticrecall_core.types.recalling import Mode
from semanticrecall_core.types.values import ForgetTarget, ListQuery, StoredMessage, Wait
from support.fake_embedder import text_vector
from support.hybrid_engine import HybridRunning
from support.lexical_model import Corpus, Text, standing_out
from support.running_engine import draft

AUTHORS = ["", "Ottilie", "Max Brod"]
WORDS = ["tea", "harbour", "cats", "roof", "night", "zx-8841", "zeppelin", "Ottilie", "Brod", "?"]
DAY_NS = 86_400 * 10**9
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=7).map(" ".join)
COUNTER = itertools.count()
SHARE_OF_QUESTION = 0.25
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Said:
    id: int
    thread: int
    author: str
    day: int
    text: str
    waits: bool


SAID = st.builds(
    Said,
    st.integers(0, 11),
    st.integers(0, 2),
    st.sampled_from(AUTHORS),
    st.integers(0, 400),
    TEXTS,
    st.sampled_from([False, False, False, True]),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HybridRunning]:
    made = HybridRunning(tmp_path_factory.mktemp("hybrid") / "data")
    yield made
    made.embedder.heal()
    made.engine.stop()


def turned_from_authors(text: str, rows: list[StoredMessage]) -> np.ndarray:
    """The query's vector, 1.25 of its share in the authors' that it names taken out.

    As it is where it has no other word. The part of it in the span of the names' vectors is found
    by least squares.
    """
    known = {word.casefold() for row in rows for word in row.author.split()}
    kept = " ".join(word for word in text.split() if word.casefold() not in known)
    names = dict.fromkeys(word for word in text.split() if word.casefold() in known)
    vector = text_vector(text, 64).astype(np.float64)
    if not names or not any(c.isalnum() for c in kept):
        return vector
    span = np.stack([text_vector(name, 64).astype(np.float64) for name in names], axis=1)
    shares, *_ = np.linalg.lstsq(span, vector, rcond=None)
    turned = vector - 1.25 * (span @ shares)
    unit: np.ndarray = turned / np.linalg.norm(turned)
    return unit


def z(value: float, values: list[float], least: float) -> float:
    deviation = max(float(np.std(values)), least)
    return (value - float(np.mean(values))) / deviation


def relevance_of(
    rows: list[StoredMessage], waiting: set[str], query: str
) -> dict[int, tuple[float, float]]:
    """Relevance and own BM25 of every message for one phrasing, by seq."""
    threads = {row.thread_id: key for key, row in enumerate(rows)}
    corpus = Corpus(
        Text(
            row.seq,
            threads[row.thread_id],
            row.create_time_ns,
            row.revision,
            int(row.role),
            row.text,
            row.author,
        )
        for row in rows
    )
    scored = corpus.scored(query)
    vector = turned_from_authors(query, rows)
    cosines = {
        row.seq: float(vector @ text_vector(row.text, 64)) for row in rows if row.id not in waiting
    }
    alone = {}
    for row in rows:
        dense = 0.0
        if row.seq in cosines:
            dense = max(-1.0, z(cosines[row.seq], list(cosines.values()), least=0.01))
        lexical = standing_out(scored, row.seq)
        named = float(bool(corpus.documents[row.seq].author & scored.names))
        alone[row.seq] = dense + lexical + named
    relevance = {}
    for row in rows:
        before = corpus.neighbour(row.seq, -1)
        handed = 0.0
        if before is not None and corpus.documents[before].asks:
            handed = SHARE_OF_QUESTION * alone[before]
        relevance[row.seq] = (alone[row.seq] + handed, scored.own[row.seq])
    return relevance


@settings(max_examples=60, deadline=None)
@given(
    history=st.lists(SAID, min_size=1, max_size=24),
    gone=st.sets(st.integers(0, 11), max_size=2),
    queries=st.lists(TEXTS.filter(lambda t: t.strip("? ")), min_size=1, max_size=2, unique=True),
)
def test_a_hybrid_recall_is_that_of_the_formula(
    running: HybridRunning, history: list[Said], gone: set[int], queries: list[str]
) -> None:
    resource = f"r{next(COUNTER)}"
    latest: dict[str, Said] = {}
    for number, said in enumerate(history):
        # A text of its own makes the embedder fail on it and on no other.
        text = f"{said.text} {resource} {number}" if said.waits else said.text
        if not any(c.isalnum() for c in text):
            continue
        if said.waits:
            running.embedder.fail_on(text)
        running.add(
            draft(
                f"m{said.id}",
                text,
                thread_id=f"t{said.thread}",
                author=said.author,
                create_time_ns=said.day * DAY_NS,
            ),
            wait=Wait.DURABLE if said.waits else Wait.SEARCHABLE,
            resource=resource,
        )
        latest[f"m{said.id}"] = said
    running.engine.forget(resource, ForgetTarget(message_ids=tuple(f"m{id}" for id in gone)))
    rows = running.store.list_messages(ListQuery(resource, None, limit=1000))
    waiting = {row.id for row in rows if latest[row.id].waits}

    answer = running.recall(
        queries[0],
        resource=resource,
        alternative_texts=tuple(queries[1:]),
        top_k=50,
        before=0,
        after=0,
    )

    running.embedder.heal()

    of_each = [relevance_of(rows, waiting, query) if rows else {} for query in queries]
    found = {m.message.seq: m for m in answer.messages}
    for row in rows:
        right = sum(one[row.seq][0] for one in of_each) / len(queries)
        own = max(one[row.seq][1] for one in of_each)
        if row.seq not in found:  # it has no vector, and no word is near it
            assert row.id in waiting
            assert own == 0.0
            continue
        hit = found[row.seq].found
        assert hit is not None
        assert hit.relevance == pytest.approx(right, abs=TOLERANCE)
        assert hit.bm25 == pytest.approx(own, abs=TOLERANCE)
        assert (hit.cosine is None) == (row.id in waiting)
    ranked = sorted(answer.messages, key=lambda m: m.rank)
    order = [(-m.found.relevance, m.found.seq) for m in ranked if m.found is not None]
    assert order == sorted(order)
    assert len(order) == len(found) <= len(rows)
    assert answer.info.mode_used is Mode.HYBRID
    assert answer.info.exact
