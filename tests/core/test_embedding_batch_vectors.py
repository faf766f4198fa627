"""Micro-batches of real graphs: each text has the vector that it has alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from semanticrecall_core.embedding.batching import (
    CPU_SHAPE,
    BatchScheduler,
    Lane,
    batches_agree,
)
from semanticrecall_core.embedding.embedder import OnnxEmbedder
from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.folder import read_model_folder
from semanticrecall_core.embedding.graph import GraphOptions, build_graph
from semanticrecall_core.embedding.provision import install_model
from semanticrecall_core.embedding.scheduler import Scheduling
from semanticrecall_core.embedding.session import EncoderSession
from semanticrecall_core.embedding.tokenizer import TextTokenizer
from semanticrecall_core.embedding.weights import parse_config, parse_weights
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    EmbeddingFailedError,
)
from semanticrecall_core.types.values import EmbedRole
from support import tiny_bert, tiny_model
from support.approve_golden import golden_texts
from support.token_runner import WAIT, Caller, budget, wait_until

QUERY, PASSAGE = EmbedRole.QUERY, EmbedRole.PASSAGE
TOLERANCE = 1e-5
"""As the port promises: of each number of a vector, against the same text alone."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as made:
        yield made


def tiny_bert_graph(folder: Path, options: GraphOptions) -> bytes:
    tiny_bert.write_tiny_model(folder)
    config = parse_config((folder / "config.json").read_bytes())
    return build_graph(parse_weights((folder / "model.safetensors").read_bytes(), config), options)


def session_of(graph: bytes) -> EncoderSession:
    return EncoderSession(graph, device="cpu", pooling="mean")


def random_texts(count: int, seed: int = 3) -> list[NDArray[np.int64]]:
    """Distinct texts of the tiny BERT's words."""
    rng = random.Random(seed)
    found: set[tuple[int, ...]] = set()
    while len(found) < count:
        words = rng.choices(range(4, len(tiny_bert.WORDS)), k=rng.randint(1, 24))
        found.add((2, *words, 3))
    return [np.array(ids, dtype=np.int64) for ids in sorted(found)]


def assert_same_vectors(
    session: EncoderSession, texts: list[NDArray[np.int64]], size: int, tolerance: float
) -> None:
    """Whatever shares a run, padded or not: the vectors of single runs."""
    order = random.Random(size).sample(range(len(texts)), len(texts))
    for start in range(0, len(order), size):
        batch = [texts[n] for n in order[start : start + size]]
        for ids, row in zip(batch, session.run_batch(batch), strict=True):
            alone = session.run(ids)
            assert not isinstance(row, EmbeddingFailedError)
            assert np.abs(row - alone).max() <= tolerance
            assert float(row.astype(np.float64) @ alone.astype(np.float64)) >= 0.99999
            assert not row.flags.writeable
            assert row.base is None


@pytest.mark.parametrize("size", [2, 5, 32])
def test_a_text_has_the_same_vector_in_a_padded_batch(tmp_path: Path, size: int) -> None:
    graph = tiny_bert_graph(tmp_path, GraphOptions(quantisation="fp32", masked=True))
    assert_same_vectors(session_of(graph), random_texts(96), size, TOLERANCE)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_token_vectors_are_pooled_without_the_padding(pooling: str) -> None:
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    graph = tiny_model.graph(output="last_hidden_state", inputs=inputs)
    session = EncoderSession(graph, device="cpu", pooling=pooling)  # type: ignore[arg-type]
    lines = ["dark mode on", "hello", "the fact is blue", "nanword", "turn off"]
    ids = [
        np.array([tiny_model.vocabulary()[w] for w in ("[CLS]", *line.split(), "[SEP]")])
        for line in lines
    ]
    rows = session.run_batch(ids)
    for line, row in zip(lines, rows, strict=True):
        if line == "nanword" and pooling == "mean":
            assert isinstance(row, EmbeddingFailedError)
            continue
        assert not isinstance(row, EmbeddingFailedError)
        expected = tiny_model.expected_vector(line, cls=pooling == "cls")
        np.testing.assert_allclose(row, expected, atol=1e-6)


@pytest.mark.model
def test_the_default_models_fp32_batches_give_the_vectors_of_single_runs() -> None:
    files = install_model()
    weights = parse_weights(
        (files.folder / "model.safetensors").read_bytes(),
        parse_config((files.folder / "config.json").read_bytes()),
    )
    session = session_of(build_graph(weights, GraphOptions(quantisation="fp32", masked=True)))
    tokenizer = TextTokenizer(files.read_tokenizer(), files.spec.max_tokens)
    texts = [tokenizer.encode("", line).ids[:256] for line in golden_texts()[::4]]
    assert_same_vectors(session, texts, 8, 1e-6)
    assert batches_agree(session, texts[:4])


def test_graphs_whose_batches_change_vectors_are_found_out(tmp_path: Path) -> None:
    texts = random_texts(4)
    fp32, int8 = GraphOptions(quantisation="fp32"), GraphOptions(quantisation="int8")
    assert batches_agree(session_of(tiny_bert_graph(tmp_path, fp32)), texts)
    assert batches_agree(session_of(tiny_bert_graph(tmp_path, replace(fp32, masked=True))), texts)
    assert not batches_agree(session_of(tiny_bert_graph(tmp_path, int8)), texts)
    one_text = onnx.load_model_from_string(tiny_bert_graph(tmp_path, fp32))
    for value in (*one_text.graph.input, *one_text.graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
        value.type.tensor_type.shape.dim[0].dim_value = 1
    assert not batches_agree(session_of(one_text.SerializeToString()), texts)


def test_a_folders_graph_that_cannot_be_batched_runs_texts_one_by_one(tmp_path: Path) -> None:
    int8 = tiny_bert_graph(tmp_path / "weights", GraphOptions(quantisation="int8"))
    model = read_model_folder(tmp_path / "weights", tmp_path / "cache")
    assert model.spec.quantisation == "fp32"
    with capture_logs() as logs:
        OnnxEmbedder(model, device="cpu")
        OnnxEmbedder(EncoderModel(model.spec, int8, model.tokenizer_json), device="cpu")
    ready = [entry["batched"] for entry in logs if entry["event"] == "embedding.ready"]
    assert ready == [True, False]
    assert [e["event"] for e in logs if e["log_level"] == "warning"] == [
        "embedding.batches_unusable"
    ]


def test_nobody_gets_a_neighbours_vector(tmp_path: Path) -> None:
    graph = tiny_bert_graph(tmp_path, GraphOptions(quantisation="fp32", masked=True))
    alone = session_of(graph)
    texts = random_texts(400)
    expected = np.stack([alone.run(ids) for ids in texts])
    apart = np.abs(expected[:, np.newaxis] - expected[np.newaxis]).max(axis=2)
    np.fill_diagonal(apart, np.inf)
    mixed_up = float(apart.min())
    assert mixed_up > 3 * TOLERANCE, "a mix-up would not be seen"
    session = session_of(graph)
    lane = Lane(tuple(EmbedRole), session, CPU_SHAPE, 2, Scheduling())
    scheduler = BatchScheduler(dict.fromkeys(EmbedRole, lane), 1)

    def work(seed: int) -> tuple[int, int]:
        rng, right, left = random.Random(seed), 0, 0
        for n in rng.sample(range(len(texts)), 250):
            going = rng.random() < 0.2
            caller = Caller(rng.choice((0.0002, 0.001)) if going and n % 2 else WAIT)
            if going and not n % 2:
                threading.Timer(0.0, caller.gone.set).start()
            try:
                found = scheduler.run(rng.choice((QUERY, PASSAGE)), texts[n], caller.budget)
            except (CancelledError, DeadlineExceededError):
                assert going
                left += 1
                continue
            assert np.abs(found - expected[n]).max() <= TOLERANCE
            right += 1
        return right, left

    with ThreadPoolExecutor(16) as pool:
        counts = list(pool.map(work, range(16)))
    assert sum(right + left for right, left in counts) == 16 * 250
    assert sum(left for _, left in counts) > 50
    stats = scheduler.stats()
    assert stats.batched_texts > 1.5 * stats.batches, "nothing shared a run"
    assert (stats.queued_texts, stats.queued_tokens) == (0, 0)


def test_a_leader_that_goes_away_leaves_its_text_to_those_who_wait(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = OnnxEmbedder(tiny_model.model(), device="cpu", scheduling=Scheduling(runs_max=1))
    begun, go = threading.Semaphore(0), threading.Event()
    runs: list[int] = []
    run_batch = EncoderSession.run_batch

    def held(session: EncoderSession, texts: list[NDArray[np.int64]]) -> object:
        runs.append(len(texts))
        begun.release()
        assert go.wait(WAIT)
        return run_batch(session, texts)

    monkeypatch.setattr(EncoderSession, "run_batch", held)
    other = pool.submit(embedder.embed_query, "blue", budget(), "alice")
    assert begun.acquire(timeout=WAIT)
    leaving = Caller()
    leader = pool.submit(embedder.embed_query, "dark", leaving.budget, "alice")
    wait_until(lambda: embedder.scheduler_stats().queued_texts == 1)
    followers = [pool.submit(embedder.embed_query, "dark", budget(), "alice") for _ in range(5)]
    leaving.gone.set()
    with pytest.raises(CancelledError):
        leader.result(WAIT)
    wait_until(lambda: embedder.scheduler_stats().queued_texts == 1)
    go.set()
    for follower in followers:
        expected = tiny_model.expected_vector("dark")
        np.testing.assert_allclose(follower.result(WAIT).vectors[0], expected, atol=TOLERANCE)
    assert sum(follower.result().computed for follower in followers) == 1
    assert other.result(WAIT).computed == 1
    assert runs == [1, 1]
