"""Another model in the place of the one that answers: online, at once, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from support.exchanging_engine import Exchanging, OtherWords, other_vector
from support.fake_embedder import FakeEmbedder, text_vector

TEXTS = {f"m{i}": f"note {i} about {'tea' if i % 2 else 'coffee'} and day{i}" for i in range(120)}


def expected(
    texts: dict[str, str], query: str, vector: Callable[[str, int], np.ndarray], dimensions: int
) -> list[tuple[str, float]]:
    """All messages by brute force with one model, best first."""
    asked = vector(query, dimensions).astype(np.float64)
    scored = [(name, float(vector(t, dimensions) @ asked)) for name, t in texts.items()]
    return sorted(scored, key=lambda pair: -pair[1])


def agrees(found: list[tuple[str, float]], wanted: list[tuple[str, float]]) -> bool:
    scores = [score for _, score in found]
    return np.allclose(scores, [score for _, score in wanted[: len(found)]], atol=1e-5)


@pytest.fixture(params=[48, 64], ids=["other dimension", "same dimension"])
def exchanging(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Exchanging]:
    made = Exchanging(tmp_path, FakeEmbedder(64), OtherWords(request.param)).start()
    yield made
    made.engine.stop()


def test_the_next_model_takes_the_place_of_the_present_one(exchanging: Exchanging) -> None:
    dimensions = exchanging.following.dimensions
    exchanging.add("u", TEXTS)
    exchanging.add("v", {"only": "her sister lives in Oslo"})
    before = exchanging.found("u", "tea day7")
    assert agrees(before, expected(TEXTS, "tea day7", text_vector, 64))
    events = exchanging.reembed()
    assert [event.complete for event in events] == [False] * (len(events) - 1) + [True]
    assert (events[-1].done, events[-1].total) == (121, 121)
    assert {event.before for event in events} == {exchanging.embedder.index_identity}
    assert {event.after for event in events} == {exchanging.following.index_identity}
    after = exchanging.found("u", "tea day7")
    assert agrees(after, expected(TEXTS, "tea day7", other_vector, dimensions))
    assert exchanging.engine.index_identity == exchanging.following.index_identity
    assert exchanging.engine.dimensions == dimensions
    exchanging.wait_until_retired()
    assert exchanging.found("v", "Oslo")[0][0] == "only"
    assert exchanging.engine.stats(None).vectors == 121
    assert [
        f for f in exchanging.store.care.examine(None, None, dimensions) if hasattr(f, "seq")
    ] == []
