"""A BERT of random weights, small enough to build in milliseconds, as a model folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 16, 2, 4, 32, 64
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"a b c d e f we met at the harbour on day".split())

Tensors = dict[str, NDArray[np.float32]]


def tiny_config() -> dict[str, object]:
    """config.json of the tiny model."""
    return {
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": len(WORDS),
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }


def tiny_tensors(seed: int = 7) -> Tensors:
    """Random tensors by their bare names."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}

    def put(name: str, *shape: int, spread: float = 0.5, centre: float = 0.0) -> None:
        tensors[name] = rng.normal(centre, spread, shape).astype(np.float32)

    put("embeddings.word_embeddings.weight", len(WORDS), HIDDEN)
    put("embeddings.position_embeddings.weight", POSITIONS, HIDDEN)
    put("embeddings.token_type_embeddings.weight", 2, HIDDEN)
    norms = ["embeddings.LayerNorm"]
    linears: list[tuple[str, int, int]] = []
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linears.append((f"{at}.attention.{part}", HIDDEN, HIDDEN))
        linears.append((f"{at}.intermediate.dense", HIDDEN, INTERMEDIATE))
        linears.append((f"{at}.output.dense", INTERMEDIATE, HIDDEN))
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for name in norms:
        put(f"{name}.weight", HIDDEN, spread=0.2, centre=1.0)
        put(f"{name}.bias", HIDDEN, spread=0.2)
    for name, inputs, outputs in linears:
        put(f"{name}.weight", outputs, inputs, spread=0.4)
        put(f"{name}.bias", outputs, spread=0.1)
    return tensors


def tiny_tokenizer() -> Tokenizer:
    """Splits at white space; unknown words become [UNK]."""
    ids = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def write_tiny_model(folder: Path, tensors: Tensors | None = None) -> Path:
    """Write model.safetensors, config.json and tokenizer.json; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors or tiny_tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(tiny_config()), encoding="utf-8")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
