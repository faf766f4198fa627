"""The default model against a plain fp32 reference, on texts it was not calibrated with."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.embedding import calibration, self_test
from semanticrecall_core.embedding.calibration import PlainRunner
from semanticrecall_core.embedding.graph import GraphOptions, build_graph
from semanticrecall_core.embedding.manifest import ModelFiles
from semanticrecall_core.embedding.provision import install_model
from semanticrecall_core.embedding.runtime_environment import onnxruntime
from semanticrecall_core.embedding.weights import BertWeights, parse_config, parse_weights
from support.approve_golden import GOLDEN, golden_texts
from support.bert_reference import BertReference

MEAN_COSINE = 0.995
MIN_COSINE = 0.98

Rows = NDArray[np.float32]


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return install_model()


@pytest.fixture(scope="module")
def reference(files: ModelFiles) -> BertReference:
    return BertReference(files.folder)


@pytest.fixture(scope="module")
def weights(files: ModelFiles) -> BertWeights:
    config = parse_config((files.folder / "config.json").read_bytes())
    return parse_weights((files.folder / "model.safetensors").read_bytes(), config)


@pytest.fixture(scope="module")
def golden() -> Rows:
    return np.asarray(np.load(GOLDEN / "vectors.npy"), dtype=np.float32)


@pytest.fixture(scope="module")
def int8(files: ModelFiles) -> PlainRunner:
    return PlainRunner(files.read_graph(), files.read_tokenizer(), files.spec.max_tokens)


def cosines(left: Rows, right: Rows) -> Rows:
    product = (left * right).sum(axis=1)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray(product / lengths, dtype=np.float32)


def test_the_golden_texts_are_300_from_8_to_256_tokens_and_none_calibrated(
    reference: BertReference,
) -> None:
    texts = golden_texts()
    lengths = [len(reference.token_ids(text)) for text in texts]
    assert len(set(texts)) == 300
    assert min(lengths) >= 8
    assert max(lengths) == 256
    assert sum(length > 100 for length in lengths) >= 40
    assert not set(texts) & set(calibration.calibration_texts())


def test_there_are_enough_calibration_texts() -> None:
    texts = calibration.calibration_texts()
    assert len(texts) >= 240
    assert len(set(texts)) == len(texts)


def test_the_stored_golden_vectors_are_the_references(
    reference: BertReference, golden: Rows
) -> None:
    texts = golden_texts()
    for index in (0, 73, 150, 170, 185):
        np.testing.assert_allclose(reference.embed(texts[index]), golden[index], atol=2e-4)


def test_the_shipped_self_test_is_the_references(
    files: ModelFiles, reference: BertReference
) -> None:
    shipped = self_test.shipped_reference(files.spec.weights_sha256, self_test.SELF_TEST_TEXTS)
    assert shipped is not None
    for text, vector in zip(self_test.SELF_TEST_TEXTS, shipped, strict=True):
        np.testing.assert_allclose(reference.embed(text), vector, atol=1e-5)


def test_the_self_test_is_only_for_its_own_weights_and_texts(files: ModelFiles) -> None:
    assert self_test.shipped_reference("0" * 64, self_test.SELF_TEST_TEXTS) is None
    assert self_test.shipped_reference(files.spec.weights_sha256, ("another",)) is None


def test_int8_stays_near_fp32(int8: PlainRunner, golden: Rows) -> None:
    vectors = np.stack([int8.embed(text) for text in golden_texts()])
    near = cosines(vectors, golden)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert near.mean() >= MEAN_COSINE
    assert near.min() >= MIN_COSINE


def test_the_same_text_always_gives_the_same_vector(int8: PlainRunner) -> None:
    texts = golden_texts()[::9]
    forward = {text: int8.embed(text) for text in texts}
    for text in reversed(texts):
        np.testing.assert_array_equal(int8.embed(text), forward[text])


def test_fp32_is_the_reference(files: ModelFiles, weights: BertWeights, golden: Rows) -> None:
    graph = build_graph(weights, GraphOptions(quantisation="fp32"))
    runner = PlainRunner(graph, files.read_tokenizer(), files.spec.max_tokens)
    vectors = np.stack([runner.embed(text) for text in golden_texts()[::6]])
    assert cosines(vectors, golden[::6]).min() >= 0.99999


def test_a_padded_fp32_batch_gives_each_text_its_own_vector(
    files: ModelFiles, weights: BertWeights, reference: BertReference, golden: Rows
) -> None:
    graph = build_graph(weights, GraphOptions(quantisation="fp32", masked=True))
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    texts = golden_texts()
    chosen = [0, 60, 120, 175, 180]
    rows = [reference.token_ids(texts[index]) for index in chosen]
    width = max(map(len, rows))
    assert len(set(map(len, rows))) > 2
    ids = np.array([row + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    (vectors,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    assert cosines(np.asarray(vectors), golden[chosen]).min() >= 0.99999


def test_the_shipped_maxima_are_those_of_the_shipped_texts(
    files: ModelFiles, weights: BertWeights
) -> None:
    shipped = calibration.shipped_maxima(files.spec.weights_sha256)
    assert shipped is not None
    texts = calibration.calibration_texts()[::16]
    sample = calibration.measure_maxima(weights, files.read_tokenizer(), 256, texts)
    assert sample.keys() == shipped.keys()
    for product, values in sample.items():
        assert (values <= shipped[product] * 1.001).all()


def test_maxima_of_other_weights_are_not_used() -> None:
    assert calibration.shipped_maxima("0" * 64) is None
