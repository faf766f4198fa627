"""What is fixed about a model before any of its files is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["mean", "cls"]
Quantisation = Literal["int8", "fp32"]
QUANTISATIONS: tuple[Quantisation, ...] = ("int8", "fp32")

GRAPH_BUILDER_VERSION = 1
"""Of `graph`. Grows with every change that changes the bytes; a graph of another version is
rebuilt."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Identity and use of one embedding model.

    Attributes:
        name: short name, as shown to people and as the cache folder begins.
        revision: first 12 hex digits of the weights' SHA-256.
        dimensions: numbers in a vector.
        max_tokens: window in tokens, special tokens included.
        pooling: how token vectors become one: their masked mean, or the first token's.
        normalize: the graph ends with an L2 norm.
        query_prompt, passage_prompt: put before the text of that role.
        weights_sha256, tokenizer_sha256, config_sha256: lower-case hex digests of
            model.safetensors, tokenizer.json and config.json; "" where not pinned.
        quantisation: arithmetic of the graph; part of the vectors' identity.
    """

    name: str
    revision: str
    dimensions: int
    max_tokens: int = 256
    pooling: Pooling = "mean"
    normalize: bool = True
    query_prompt: str = ""
    passage_prompt: str = ""
    weights_sha256: str = ""
    tokenizer_sha256: str = ""
    config_sha256: str = ""
    quantisation: Quantisation = "int8"


DEFAULT_MODEL = ModelSpec(
    name="all-MiniLM-L6-v2",
    revision="53aa51172d14",
    dimensions=384,
    weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    tokenizer_sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    config_sha256="953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
)
"""all-MiniLM-L6-v2 (Apache-2.0), official weights."""
