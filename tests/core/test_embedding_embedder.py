"""The ONNX embedder: prompts, sharing of vectors, start-up checks, what it logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from semanticrecall_core.embedding import embedder as embedder_module
from semanticrecall_core.embedding.chunking import Chunk, chunks_of
from semanticrecall_core.embedding.embedder import OnnxEmbedder, load_embedder
from semanticrecall_core.embedding.manifest import Probe
from semanticrecall_core.embedding.session import EncoderSession
from semanticrecall_core.embedding.tokenizer import TextTokenizer
from semanticrecall_core.types.errors import (
    CancelledError,
    EmbeddingFailedError,
    ModelUnavailableError,
)
from semanticrecall_core.types.values import CallBudget
from support import tiny_model

SECRET = "meet at nine"


def budget() -> CallBudget:
    return CallBudget.of_seconds(60)


def tiny(
    query_prompt: str = "", passage_prompt: str = "", cache_bytes_max: int = 10**6
) -> OnnxEmbedder:
    model = tiny_model.model(query_prompt=query_prompt, passage_prompt=passage_prompt)
    return OnnxEmbedder(model, device="cpu", cache_bytes_max=cache_bytes_max)


def test_a_vector_is_that_of_its_words() -> None:
    found = tiny().embed_query("turn on dark mode", budget())
    expected = tiny_model.expected_vector("turn on dark mode")
    np.testing.assert_allclose(found.vectors[0], expected, atol=1e-6)
    assert found.tokens == 6


def test_queries_and_passages_share_vectors_where_prompts_are_equal() -> None:
    embedder = tiny()
    embedder.embed_passage("dark mode", budget())
    found = embedder.embed_query("dark mode", budget())
    assert (found.computed, found.cached) == (0, 1)


def test_queries_and_passages_do_not_share_vectors_where_prompts_differ() -> None:
    embedder = tiny("query : ", "passage : ")
    embedder.embed_passage("dark mode", budget())
    found = embedder.embed_query("dark mode", budget())
    assert found.computed == 1
    expected = tiny_model.expected_vector("query : dark mode")
    np.testing.assert_allclose(found.vectors[0], expected, atol=1e-6)
    assert embedder.forget_texts(["dark mode"]) == 2


def test_a_text_that_spells_the_prompt_does_not_meet_it() -> None:
    embedder = tiny("", "passage : ")
    embedder.embed_passage("dark mode", budget())
    assert embedder.embed_query("passage : dark mode", budget()).computed == 1


def test_of_texts_whose_caller_went_away_no_more_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, cut = tiny(), list[str]()

    def counted(
        tokenizer: TextTokenizer, prompt: str, text: str, prepared: str | None
    ) -> Iterator[Chunk]:
        cut.append(text)
        return chunks_of(tokenizer, prompt, text, prepared)

    monkeypatch.setattr(embedder_module, "chunks_of", counted)
    gone = CallBudget(budget().deadline, cancelled=lambda: len(cut) == 2)
    with pytest.raises(CancelledError):
        embedder.embed_queries(["dark mode", "turn on", "mode", "dark"], gone)
    assert cut == ["dark mode", "turn on"]


def test_a_cached_text_is_found_without_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = tiny()
    first = embedder.embed_query("dark mode", budget())
    monkeypatch.setattr(embedder_module, "chunks_of", no_chunks)
    again = embedder.embed_query("dark mode", budget())
    assert (again.cached, again.tokens) == (1, first.tokens)
    assert np.array_equal(first.vectors, again.vectors)


def test_without_a_cache_every_text_is_computed() -> None:
    embedder = tiny(cache_bytes_max=0)
    answers = [embedder.embed_query("dark mode", budget()) for _ in range(2)]
    assert [answer.computed for answer in answers] == [1, 1]
    assert np.array_equal(answers[0].vectors, answers[1].vectors)


def test_vectors_cannot_be_written_to() -> None:
    embedder = tiny()
    for vectors in (
        embedder.embed_query("hello", budget()).vectors,
        embedder.embed_passage("hello world " * 100, budget()).vectors,
    ):
        assert not vectors.flags.writeable


def test_a_text_with_an_unusable_vector_fails_alone() -> None:
    embedder = tiny()
    with pytest.raises(EmbeddingFailedError, match="not finite"):
        embedder.embed_passage("hello nanword", budget())
    assert embedder.embed_passage("hello", budget()).computed == 1
    assert embedder.cache_stats().entries == 1


def test_the_probes_are_compared_at_start() -> None:
    model = tiny_model.model()
    right = tiny_model.expected_vector("hello world")
    good = Probe("hello world", right, 0.9999, "reference")
    OnnxEmbedder(replace(model, probes=(good,)), device="cpu")
    wrong = replace(good, vector=tiny_model.expected_vector("dark mode"))
    with pytest.raises(ModelUnavailableError) as raised:
        OnnxEmbedder(replace(model, probes=(good, wrong)), device="cpu")
    assert raised.value.reason == "MODEL_SELF_TEST_FAILED"


def test_a_probe_of_nan_is_never_met() -> None:
    vector = np.full(tiny_model.DIMENSIONS, np.nan, dtype=np.float32)
    probe = Probe("hello", vector, 0.5, "reference")
    with pytest.raises(ModelUnavailableError):
        OnnxEmbedder(replace(tiny_model.model(), probes=(probe,)), device="cpu")


def test_a_model_that_gives_nothing_usable_does_not_start() -> None:
    zeros = tiny_model.graph(np.zeros_like(tiny_model.table()))
    with pytest.raises(ModelUnavailableError, match="plain sentence"):
        OnnxEmbedder(tiny_model.model(graph_bytes=zeros), device="cpu")


def test_both_sessions_have_run_the_longest_window_before_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: dict[int, set[int]] = {}
    run = EncoderSession.run

    def watched(session: EncoderSession, ids: NDArray[np.int64]) -> object:
        lengths.setdefault(id(session), set()).add(len(ids))
        return run(session, ids)

    monkeypatch.setattr(EncoderSession, "run", watched)
    tiny()
    assert len(lengths) == 2
    assert all(max(seen) >= tiny_model.WINDOW - 8 for seen in lengths.values())


def test_the_identity_follows_what_shapes_a_vector() -> None:
    model = tiny_model.model()
    spec = model.spec
    changed = [
        replace(model, spec=replace(spec, revision="another")),
        replace(model, spec=replace(spec, pooling="cls")),
        replace(model, spec=replace(spec, query_prompt="query : ")),
        replace(model, spec=replace(spec, passage_prompt="query : ")),
        replace(model, spec=replace(spec, quantisation="int8")),
        replace(model, spec=replace(spec, max_tokens=32)),
        replace(model, spec=replace(spec, tokenizer_sha256="0")),
        replace(model, graph_version=2),
    ]
    assert len({model.generation, *(other.generation for other in changed)}) == len(changed) + 1
    shown = {model.index_identity, *(other.index_identity for other in changed)}
    assert len(shown) == len(changed) + 1
    assert model.index_identity.startswith(f"tiny@{spec.revision}/16/{spec.quantisation}#")
    assert replace(model, spec=replace(spec, name="renamed")).generation == model.generation


def test_auto_says_what_it_chose_and_no_log_holds_text() -> None:
    with capture_logs() as logs:
        embedder = OnnxEmbedder(tiny_model.model(), device="auto")
        embedder.embed_passage(SECRET, budget())
        with pytest.raises(EmbeddingFailedError):
            embedder.embed_passage(f"{SECRET} nanword", budget())
    (ready,) = [entry for entry in logs if entry["event"] == "embedding.ready"]
    assert (ready["device"], ready["device_asked"]) == (embedder.device, "auto")
    assert SECRET not in str(logs)


def test_a_missing_default_model_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="semanticrecall model install"):
        load_embedder(None, tmp_path, "cpu")


@pytest.mark.model
def test_the_default_model_finds_what_is_meant() -> None:
    embedder = load_embedder(None, None, "cpu")
    assert embedder.dimensions == 384
    query = embedder.embed_query("Which colour does Ada like?", budget()).vectors[0]
    near = embedder.embed_passage("Ada's favourite color is green.", budget()).vectors[0]
    far = embedder.embed_passage("The train to Porto leaves at nine.", budget()).vectors[0]
    assert query @ near > 0.5 > 0.3 > query @ far


@pytest.mark.model
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_the_default_model_finds_a_fact_in_48000_characters(place: float) -> None:
    embedder = load_embedder(None, None, "cpu")
    filler = "The committee went on to talk about the budget of the coming year. " * 720
    at = filler.index(". ", int(place * (len(filler) - 100))) + 2
    text = f"{filler[:at]}Ada's favourite colour is green. {filler[at:]}"
    assert len(text) > 48_000
    query = embedder.embed_query("What is Ada's favourite colour?", budget()).vectors[0]
    with_fact = embedder.embed_passage(text, budget()).vectors @ query
    without = embedder.embed_passage(filler, budget()).vectors @ query
    assert with_fact.max() > without.max() + 0.1


def no_chunks(*_: object) -> Iterator[object]:
    raise AssertionError("the tokenizer was asked")
