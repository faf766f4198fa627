"""Weights and graphs of small random encoders, against the plain reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors.numpy import save

from semanticrecall_core.embedding.graph import (
    GraphOptions,
    build_graph,
    quantise,
    smoothing_factors,
)
from semanticrecall_core.embedding.runtime_environment import onnxruntime
from semanticrecall_core.embedding.weights import BertWeights, parse_config, parse_weights
from semanticrecall_core.types.errors import ModelUnavailableError
from support.bert_reference import BertReference
from support.tiny_bert import (
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    WORDS,
    Tensors,
    tiny_config,
    tiny_tensors,
    write_tiny_model,
)

Rows = NDArray[np.float32]
IDS = [[2, 4, 5, 9, 3], [2, 3], [2, *range(4, len(WORDS)), 3]]


def parse(tensors: Tensors) -> BertWeights:
    return parse_weights(save(tensors), parse_config(json.dumps(tiny_config()).encode()))


def run(graph: bytes, ids: list[list[int]], mask: list[list[int]] | None = None) -> Rows:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    inputs = {"input_ids": np.array(ids, dtype=np.int64)}
    if mask is not None:
        inputs["attention_mask"] = np.array(mask, dtype=np.int64)
    return np.asarray(session.run(["embedding"], inputs)[0])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_fp32_graph_is_the_reference(tmp_path: Path, pooling: Literal["mean", "cls"]) -> None:
    reference = BertReference(write_tiny_model(tmp_path), pooling=pooling)
    graph = build_graph(parse(tiny_tensors()), GraphOptions(pooling=pooling, quantisation="fp32"))
    for ids in IDS:
        np.testing.assert_allclose(run(graph, [ids])[0], reference.embed_ids(ids), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_changes_nothing(tmp_path: Path, pooling: Literal["mean", "cls"]) -> None:
    reference = BertReference(write_tiny_model(tmp_path), pooling=pooling)
    options = GraphOptions(pooling=pooling, quantisation="fp32", masked=True)
    width = max(map(len, IDS))
    padded = [row + [0] * (width - len(row)) for row in IDS]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in IDS]
    vectors = run(build_graph(parse(tiny_tensors()), options), padded, mask)
    for ids, vector in zip(IDS, vectors, strict=True):
        np.testing.assert_allclose(vector, reference.embed_ids(ids), atol=1e-5)


def test_without_normalisation_only_the_length_differs() -> None:
    weights = parse(tiny_tensors())
    plain = run(build_graph(weights, GraphOptions(quantisation="fp32", normalize=False)), [IDS[0]])
    unit = run(build_graph(weights, GraphOptions(quantisation="fp32")), [IDS[0]])
    assert abs(np.linalg.norm(plain) - 1) > 0.01
    np.testing.assert_allclose(plain / np.linalg.norm(plain), unit, atol=1e-6)


@pytest.mark.parametrize("smoothed", [False, True])
def test_int8_graph_is_near_the_reference(tmp_path: Path, smoothed: bool) -> None:
    reference = BertReference(write_tiny_model(tmp_path))
    maxima = None
    if smoothed:
        maxima = {
            f"{layer}.{tap}": np.linspace(0.2, 4, size).astype(np.float32)
            for layer in range(LAYERS)
            for tap, size in (
                ("qkv", HIDDEN), ("out", HIDDEN), ("up", HIDDEN), ("down", INTERMEDIATE),
            )
        }  # fmt: skip
    graph = build_graph(parse(tiny_tensors()), GraphOptions(), maxima)
    for ids in IDS:
        assert float(run(graph, [ids])[0] @ reference.embed_ids(ids)) >= 0.995


def test_taps_give_the_largest_magnitude_of_each_input() -> None:
    weights = parse(tiny_tensors())
    graph = build_graph(weights, GraphOptions(quantisation="fp32", tapped=True))
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (first,) = session.run(["0.qkv"], {"input_ids": np.array([IDS[0]], dtype=np.int64)})
    sums = weights.words[IDS[0]] + weights.positions[: len(IDS[0])]
    centred = sums - sums.mean(axis=1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
    expected = np.abs(normal * weights.gamma + weights.beta).max(axis=0)
    np.testing.assert_allclose(np.asarray(first), expected, rtol=1e-4)


def test_the_same_weights_give_the_same_bytes() -> None:
    maxima = {"0.qkv": np.linspace(1, 2, HIDDEN).astype(np.float32)}
    first = build_graph(parse(tiny_tensors()), GraphOptions(), maxima)
    assert build_graph(parse(tiny_tensors()), GraphOptions(), maxima) == first
    assert build_graph(parse(tiny_tensors(8)), GraphOptions(), maxima) != first
    # What another processor measures differs in the last bits, and must not show.
    nudged = {"0.qkv": maxima["0.qkv"] * np.float32(1 + 1e-6)}
    assert build_graph(parse(tiny_tensors()), GraphOptions(), nudged) == first


def test_products_fit_processors_that_add_pairs_in_16_bits() -> None:
    model = onnx.load_from_string(build_graph(parse(tiny_tensors()), GraphOptions()))
    codes = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and tensor.name.endswith(".weight")
    }
    assert len(codes) == 4 * LAYERS
    assert {int(np.abs(values.astype(int)).max()) for values in codes.values()} == {100}


matrices = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(-100, 100, width=32).map(lambda value: 0.0 if abs(value) < 1e-3 else value),
)


@given(matrices, st.sampled_from([64, 100, 127]))
@settings(max_examples=200)
def test_codes_are_within_half_a_step(weight: Rows, largest: int) -> None:
    codes, scales = quantise(weight, 0, largest)
    assert np.abs(codes.astype(int)).max() <= largest
    assert (np.abs(codes * scales[None, :] - weight) <= scales[None, :] * 0.501).all()
    codes, scales = quantise(weight, 1, largest)
    assert (np.abs(codes * scales[:, None] - weight) <= scales[:, None] * 0.501).all()


@given(matrices)
@settings(max_examples=200)
def test_smoothing_factors_are_the_rule_on_a_grid(weight: Rows) -> None:
    activations = np.linspace(0.01, 50, weight.shape[0]).astype(np.float32)
    factors = smoothing_factors(activations, weight)
    rows = np.maximum(np.abs(weight).max(axis=1), 1e-5).astype(float)
    rule = np.log2(activations.astype(float)) * 0.75 - np.log2(rows) * 0.25
    sixteenths = 16 * np.log2(factors.astype(float))
    np.testing.assert_allclose(sixteenths, np.rint(sixteenths), atol=1e-4)
    assert (np.abs(sixteenths / 16 - rule) <= 1 / 32 + 1e-4).all()


@pytest.mark.parametrize("prefix", ["", "bert.", "0.auto_model."])
def test_prefixes_are_understood(prefix: str) -> None:
    plain, renamed = (
        parse(tiny_tensors()),
        parse({prefix + name: tensor for name, tensor in tiny_tensors().items()}),
    )
    np.testing.assert_array_equal(renamed.layers[1].qkv, plain.layers[1].qkv)


def test_linear_weights_are_transposed_and_stacked() -> None:
    tensors = tiny_tensors()
    layer = parse(tensors).layers[0]
    at = "encoder.layer.0.attention.self"
    np.testing.assert_array_equal(layer.qkv[:, :HIDDEN], tensors[f"{at}.query.weight"].T)
    np.testing.assert_array_equal(layer.qkv[:, 2 * HIDDEN :], tensors[f"{at}.value.weight"].T)
    np.testing.assert_array_equal(layer.qkv_bias[HIDDEN : 2 * HIDDEN], tensors[f"{at}.key.bias"])


def test_half_precision_weights_are_read() -> None:
    half = {name: tensor.astype(np.float16) for name, tensor in tiny_tensors().items()}
    words = parse_weights(save(half), parse_config(json.dumps(tiny_config()).encode())).words
    assert words.dtype == np.float32
    expected = tiny_tensors()["embeddings.word_embeddings.weight"]
    np.testing.assert_allclose(words, expected, atol=2e-3)


def damage(kind: str) -> Tensors:
    tensors = tiny_tensors()
    name = "encoder.layer.1.output.dense.weight"
    if kind == "missing":
        del tensors[name]
    elif kind == "shape":
        tensors[name] = np.ascontiguousarray(tensors[name].T)
    elif kind == "type":
        tensors[name] = tensors[name].astype(np.int32)
    else:
        tensors[name][0, 0] = float(kind)
    return tensors


@pytest.mark.parametrize("kind", ["missing", "shape", "type", "nan", "inf"])
def test_a_tensor_that_cannot_be_used_is_named(kind: str) -> None:
    with pytest.raises(ModelUnavailableError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        parse(damage(kind))


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"{}", (2**60).to_bytes(8, "little") + b"{}"])
def test_bytes_that_are_not_safetensors_are_refused(data: bytes) -> None:
    with pytest.raises(ModelUnavailableError, match=r"model\.safetensors"):
        parse_weights(data, parse_config(json.dumps(tiny_config()).encode()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "gpt2"),
        ("hidden_act", "relu"),
        ("position_embedding_type", "relative_key"),
        ("hidden_size", 0),
        ("hidden_size", "16"),
        ("hidden_size", True),
        ("hidden_size", 17),
        ("num_hidden_layers", 10**9),
        ("vocab_size", -1),
        ("layer_norm_eps", "small"),
        ("layer_norm_eps", -1.0),
        ("layer_norm_eps", float("nan")),
    ],
)
def test_a_config_that_cannot_be_used_is_refused(field: str, value: object) -> None:
    with pytest.raises(ModelUnavailableError, match=r"config\.json"):
        parse_config(json.dumps({**tiny_config(), field: value}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff\xfe", b'{"model_type": "bert"}'])
def test_a_config_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ModelUnavailableError, match=r"config\.json"):
        parse_config(data)
