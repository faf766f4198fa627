"""Weights of the BERT family, read from safetensors without torch.

A tensor may be stored bare (`embeddings.word_embeddings.weight`), or behind `bert.` or
`0.auto_model.`. Linear weights are returned transposed, as [inputs, outputs], so that a layer is
`x @ weight + bias`. Query, key and value stand side by side in one matrix.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types.errors import ModelUnavailableError

Floats = NDArray[np.float32]

PREFIXES = ("", "bert.", "0.auto_model.", "0.auto_model.bert.")
MAX_LAYERS = 48
MAX_HIDDEN = 4_096
MAX_VOCABULARY = 1_000_000


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The numbers of config.json that shape the graph."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    token_types: int
    layer_norm_epsilon: float


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One encoder layer; h = hidden, i = intermediate.

    Attributes:
        qkv, qkv_bias: [h, 3h] and [3h], in the order query, key, value.
        out, out_bias: [h, h], [h]; attention's output.
        attention_gamma, attention_beta: [h]; the norm after attention.
        up, up_bias: [h, i], [i].
        down, down_bias: [i, h], [h].
        output_gamma, output_beta: [h]; the norm after the feed-forward part.
    """

    qkv: Floats
    qkv_bias: Floats
    out: Floats
    out_bias: Floats
    attention_gamma: Floats
    attention_beta: Floats
    up: Floats
    up_bias: Floats
    down: Floats
    down_bias: Floats
    output_gamma: Floats
    output_beta: Floats


@dataclass(frozen=True, slots=True)
class BertWeights:
    """A whole encoder.

    Attributes:
        words: [vocabulary, h].
        positions: [positions, h], the vector of token type 0 already added.
        gamma, beta: [h]; the norm after the embeddings.
    """

    config: BertConfig
    words: Floats
    positions: Floats
    gamma: Floats
    beta: Floats
    layers: tuple[LayerWeights, ...]


def _refuse(what: str) -> ModelUnavailableError:
    return ModelUnavailableError(f"the model cannot be used: {what}", reason="MODEL_UNSUPPORTED")


def _positive(fields: Mapping[str, Any], key: str, limit: int) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise _refuse(f"config.json: {key} must be a whole number from 1 to {limit}")
    return value


def _epsilon(value: object) -> float:
    if not isinstance(value, float) or not 0 < value < 1:
        raise _refuse("config.json: layer_norm_eps must be a number between 0 and 1")
    return value


def parse_config(data: bytes) -> BertConfig:
    """Read config.json.

    Raises:
        ModelUnavailableError: not JSON, not of the BERT family, or out of range.
    """
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise _refuse("config.json is not JSON") from error
    if not isinstance(fields, dict) or fields.get("model_type") != "bert":
        raise _refuse("config.json: only model_type bert is supported for safetensors")
    if fields.get("hidden_act", "gelu") != "gelu":
        raise _refuse("config.json: only hidden_act gelu is supported")
    if fields.get("position_embedding_type", "absolute") != "absolute":
        raise _refuse("config.json: only absolute position embeddings are supported")
    config = BertConfig(
        hidden=_positive(fields, "hidden_size", MAX_HIDDEN),
        layers=_positive(fields, "num_hidden_layers", MAX_LAYERS),
        heads=_positive(fields, "num_attention_heads", MAX_HIDDEN),
        intermediate=_positive(fields, "intermediate_size", 4 * MAX_HIDDEN),
        vocabulary=_positive(fields, "vocab_size", MAX_VOCABULARY),
        positions=_positive(fields, "max_position_embeddings", 65_536),
        token_types=_positive(fields, "type_vocab_size", 1_024),
        layer_norm_epsilon=_epsilon(fields.get("layer_norm_eps", 1e-12)),
    )
    if config.hidden % config.heads:
        raise _refuse("config.json: hidden_size is not a multiple of num_attention_heads")
    return config


class _Tensors:
    """The file's tensors by bare name, their shapes checked as they are taken."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._tensors = tensors
        probe = "embeddings.word_embeddings.weight"
        found = [prefix for prefix in PREFIXES if prefix + probe in tensors]
        if not found:
            raise _refuse(f"model.safetensors has no tensor {probe}")
        self._prefix = found[0]

    def take(self, name: str, *shape: int) -> Floats:
        tensor = self._tensors.get(self._prefix + name)
        if tensor is None:
            raise _refuse(f"model.safetensors has no tensor {name}")
        if tensor.shape != shape:
            raise _refuse(f"model.safetensors: {name} has shape {tensor.shape}, not {shape}")
        if tensor.dtype.name not in ("float32", "float16"):
            raise _refuse(f"model.safetensors: {name} is {tensor.dtype}, not float32 or float16")
        values = np.ascontiguousarray(tensor, dtype=np.float32)
        if not np.isfinite(values).all():
            raise _refuse(f"model.safetensors: {name} holds a value that is not finite")
        return values

    def linear(self, name: str, inputs: int, outputs: int) -> tuple[Floats, Floats]:
        """Weight as [inputs, outputs], and bias."""
        weight = self.take(f"{name}.weight", outputs, inputs)
        return np.ascontiguousarray(weight.T), self.take(f"{name}.bias", outputs)

    def norm(self, name: str, size: int) -> tuple[Floats, Floats]:
        """Gamma and beta."""
        return self.take(f"{name}.weight", size), self.take(f"{name}.bias", size)


def _layer(tensors: _Tensors, config: BertConfig, index: int) -> LayerWeights:
    at, hidden = f"encoder.layer.{index}", config.hidden
    projections = [
        tensors.linear(f"{at}.attention.self.{part}", hidden, hidden)
        for part in ("query", "key", "value")
    ]
    out, out_bias = tensors.linear(f"{at}.attention.output.dense", hidden, hidden)
    up, up_bias = tensors.linear(f"{at}.intermediate.dense", hidden, config.intermediate)
    down, down_bias = tensors.linear(f"{at}.output.dense", config.intermediate, hidden)
    attention_gamma, attention_beta = tensors.norm(f"{at}.attention.output.LayerNorm", hidden)
    output_gamma, output_beta = tensors.norm(f"{at}.output.LayerNorm", hidden)
    return LayerWeights(
        qkv=np.concatenate([weight for weight, _ in projections], axis=1),
        qkv_bias=np.concatenate([bias for _, bias in projections]),
        out=out,
        out_bias=out_bias,
        attention_gamma=attention_gamma,
        attention_beta=attention_beta,
        up=up,
        up_bias=up_bias,
        down=down,
        down_bias=down_bias,
        output_gamma=output_gamma,
        output_beta=output_beta,
    )


def parse_weights(safetensors: bytes, config: BertConfig) -> BertWeights:
    """Read an encoder from the bytes of model.safetensors (already verified by the caller).

    Raises:
        ModelUnavailableError: not safetensors, a tensor missing, or of another shape or type.
    """
    from safetensors import SafetensorError  # only where a graph is built
    from safetensors.numpy import load

    try:
        tensors = _Tensors(load(safetensors))
    except (SafetensorError, KeyError) as error:
        raise _refuse("model.safetensors is not a readable safetensors file") from error
    hidden = config.hidden
    words = tensors.take("embeddings.word_embeddings.weight", config.vocabulary, hidden)
    positions = tensors.take("embeddings.position_embeddings.weight", config.positions, hidden)
    types = tensors.take("embeddings.token_type_embeddings.weight", config.token_types, hidden)
    gamma, beta = tensors.norm("embeddings.LayerNorm", hidden)
    return BertWeights(
        config=config,
        words=words,
        positions=positions + types[0],
        gamma=gamma,
        beta=beta,
        layers=tuple(_layer(tensors, config, index) for index in range(config.layers)),
    )
