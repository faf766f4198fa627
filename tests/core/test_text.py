"""Which texts are worth embedding: those of which the default model sees something."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semanticrecall_core.embedding.embedder import OnnxEmbedder, load_embedder
from semanticrecall_core.types.text import has_visible_text
from semanticrecall_core.types.values import CallBudget


@pytest.fixture(scope="module")
def embedder() -> OnnxEmbedder:
    return load_embedder(None, None, "cpu", 0)


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t", "\u200b", "\u2060\ufeff", "\u0301\u0301", "\ufffd", "\ue000", "\x00"]
)
def test_nothing_to_see(text: str) -> None:
    assert not has_visible_text(text)


@pytest.mark.parametrize("text", ["a", "7", "é", "e\u0301", "?", "日", "ก", "👍🏽", "\u200bx", "ـ"])
def test_something_to_see(text: str) -> None:
    assert has_visible_text(text)


@given(
    unseen=st.text(st.sampled_from(" \n\u200b\u0301\ufffd\u1734\ue000"), min_size=1),
    seen=st.sampled_from(["", "a", "?", "日", "👍"]),
)
def test_one_character_is_enough_wherever_it_stands(unseen: str, seen: str) -> None:
    for text in (seen + unseen, unseen + seen, unseen + seen + unseen):
        assert has_visible_text(text) == bool(seen)


@given(text=st.text(min_size=1, max_size=4).filter(has_visible_text))
@settings(max_examples=500)
def test_the_model_finds_tokens_wherever_there_is_something_to_see(
    embedder: OnnxEmbedder, text: str
) -> None:
    """Else a message would wait to be embedded for ever."""
    assert embedder.embed_passage(text, CallBudget.of_seconds(60)).tokens > 2
