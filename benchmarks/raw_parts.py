"""The parts of a recall by themselves: one embedding, one scan. No code of ours around them.

They are the floor that a recall is compared with: onnxruntime on the model's graph with the
tokenizer before it, and FAISS over as many codes as the resource has messages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from semanticrecall_core.embedding.provision import find_model
from semanticrecall_core.embedding.runtime_environment import onnxruntime

DIMENSIONS = 384
SCALE_CLIP = 0.30
CANDIDATES = 20


class RawEmbed:
    """Tokenize and run the model's graph for one text; shape (384,)."""

    def __init__(self) -> None:
        files = find_model()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            files.read_graph(), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_buffer(files.read_tokenizer())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(files.spec.max_tokens)

    def __call__(self, text: str) -> NDArray[np.float32]:
        """One vector."""
        vector: NDArray[np.float32] = self._run([self.token_ids(text)])[0]
        return vector

    def token_ids(self, text: str) -> list[int]:
        """Tokens as the graph takes them, special ones included."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def count_embedded(self, texts: Sequence[str]) -> int:
        """Embed a batch, a run for each length in it; returns how many vectors came."""
        by_length: dict[int, list[list[int]]] = {}
        for text in texts:
            ids = self.token_ids(text)
            by_length.setdefault(len(ids), []).append(ids)
        return sum(len(self._run(rows)) for rows in by_length.values())

    def _run(self, rows: list[list[int]]) -> NDArray[np.float32]:
        ids = np.array(rows, dtype=np.int64)
        return np.asarray(self._session.run(None, {"input_ids": ids})[0], np.float32)


class RawScan:
    """An int8 scan for the 20 nearest of `rows` random unit vectors: one FAISS call."""

    def __init__(self, rows: int, *, seed: int) -> None:
        # Not in processes that only embed: their memory is measured.
        import faiss

        rng = np.random.default_rng(seed)
        vectors = rng.standard_normal((rows, DIMENSIONS), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        self._index: Any = faiss.IndexScalarQuantizer(
            DIMENSIONS, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
        )
        faiss.omp_set_num_threads(1)
        self._index.add(_scaled(vectors))

    def __call__(self, vector: NDArray[np.float32]) -> NDArray[np.int64]:
        """Positions of the nearest."""
        ids: NDArray[np.int64] = self._index.search(_scaled(vector[np.newaxis]), CANDIDATES)[1]
        return ids


def _scaled(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = np.rint(np.clip(vectors / SCALE_CLIP, -1, 1) * 127)
    return scaled
