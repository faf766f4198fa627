"""A plain float32 BERT sentence encoder in numpy, one text at a time.

It shares no code with the engine: tensors are taken by their full names from safetensors, and the
arithmetic follows the published description of BERT (Devlin et al., 2018) with mean pooling.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

Array = NDArray[np.float32]


def _erf(x: Array) -> Array:
    # numpy has no erf; the exact one is taken element by element.
    flat = [math.erf(value) for value in x.ravel().tolist()]
    return np.array(flat, dtype=np.float32).reshape(x.shape)


class BertReference:
    """Embeds texts with the files of one model folder."""

    def __init__(self, folder: Path, max_tokens: int = 256, pooling: str = "mean") -> None:
        self._config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._tensors: dict[str, Array] = load_file(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=max_tokens)
        self._pooling = pooling

    def token_ids(self, text: str) -> list[int]:
        """Ids with special tokens, cut to the window."""
        return list(self._tokenizer.encode(text).ids)

    def embed(self, text: str) -> Array:
        """Unit vector of a text: [hidden]."""
        return self.embed_ids(self.token_ids(text))

    def embed_ids(self, ids: list[int]) -> Array:
        """Unit vector of token ids: [hidden]."""
        t = self._tensors
        x = (
            t["embeddings.word_embeddings.weight"][ids]
            + t["embeddings.position_embeddings.weight"][: len(ids)]
            + t["embeddings.token_type_embeddings.weight"][0]
        )
        x = self._norm(x, "embeddings.LayerNorm")
        for layer in range(self._config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}"
            attended = self._linear(self._attention(x, at), f"{at}.attention.output.dense")
            x = self._norm(attended + x, f"{at}.attention.output.LayerNorm")
            wide = self._linear(x, f"{at}.intermediate.dense")
            wide = wide * np.float32(0.5) * (1 + _erf(wide / np.float32(math.sqrt(2))))
            x = self._norm(self._linear(wide, f"{at}.output.dense") + x, f"{at}.output.LayerNorm")
        pooled = x[0] if self._pooling == "cls" else x.mean(axis=0)
        return np.asarray(pooled / np.linalg.norm(pooled), dtype=np.float32)

    def _linear(self, x: Array, name: str) -> Array:
        product = x @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]
        return np.asarray(product, dtype=np.float32)

    def _norm(self, x: Array, name: str) -> Array:
        mean = x.mean(axis=-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + np.float32(self._config["layer_norm_eps"]))
        shifted = scaled * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]
        return np.asarray(shifted, dtype=np.float32)

    def _attention(self, x: Array, at: str) -> Array:
        heads = self._config["num_attention_heads"]
        tokens, hidden = x.shape
        size = hidden // heads

        def split(part: str) -> Array:
            projected = self._linear(x, f"{at}.attention.self.{part}")
            return projected.reshape(tokens, heads, size).transpose(1, 0, 2)

        query, key, value = split("query"), split("key"), split("value")
        scores = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(size))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        context = (weights @ value).transpose(1, 0, 2).reshape(tokens, hidden)
        return np.asarray(context, dtype=np.float32)
