"""Calibration of the int8 graph, and the vectors a built graph is checked against.

`calibration_texts.txt` holds one text a line (UTF-8, blank lines ignored): our own writing, short
to long, several languages. The plain fp32 graph is run over them, one at a time, and the largest
magnitude of every input channel of every quantised product is kept.

`calibration_maxima.npz` holds those maxima for the default model, so that every machine builds the
same graph to the byte. Its arrays: `weights_sha256` and `texts_sha256` say what it was measured
from; the others are `Maxima`, float32. It is used only if both digests match.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib import resources

import numpy as np
from tokenizers import Tokenizer

from ..types.errors import ModelUnavailableError
from .graph import GraphOptions, Maxima, build_graph
from .runtime_environment import onnxruntime
from .spec import Pooling
from .tokenizer import named_error
from .weights import BertWeights, Floats

TEXTS_FILE = "calibration_texts.txt"
MAXIMA_FILE = "calibration_maxima.npz"
MAX_CHARACTERS_PER_TOKEN = 8
"""A text is cut to this many characters a token before it is tokenized: tokenizing takes time in
proportion to the text, truncated or not."""

Progress = Callable[[str, int, int], None]
"""Called with a stage, what is done, and the total, both in the stage's own unit."""


def package_data(name: str) -> bytes:
    """Bytes of a file that ships beside this module."""
    return resources.files(__package__ or "").joinpath(name).read_bytes()


def calibration_texts() -> tuple[str, ...]:
    """The shipped texts."""
    lines = package_data(TEXTS_FILE).decode("utf-8").splitlines()
    return tuple(line for line in lines if line.strip())


class PlainRunner:
    """Runs a graph without a mask over single texts, on one thread of the processor."""

    def __init__(self, graph: bytes, tokenizer_json: bytes, max_tokens: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
            self._session = onnxruntime.InferenceSession(
                graph,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["SkipLayerNormFusion"],
            )
        except BaseException as error:
            raise named_error(error, _unusable("does not load")) from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=max_tokens)
        self._max_characters = MAX_CHARACTERS_PER_TOKEN * max_tokens

    def run(self, text: str) -> dict[str, Floats]:
        """All outputs by name for one text.

        Raises ModelUnavailableError where tokenizer or graph fails on it.
        """
        try:
            ids = self._tokenizer.encode(text[: self._max_characters]).ids
            outputs = self._session.run(None, {"input_ids": np.array([ids], dtype=np.int64)})
        except BaseException as error:
            raise named_error(error, _unusable("fails on a text")) from error
        names = [output.name for output in self._session.get_outputs()]
        return {name: np.asarray(value) for name, value in zip(names, outputs, strict=True)}

    def embed(self, text: str) -> Floats:
        """The vector of one text: [dimensions]."""
        vector: Floats = self.run(text)["embedding"][0]
        return vector


def _unusable(why: str) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"the model cannot be used: its tokenizer or graph {why}", reason="MODEL_UNSUPPORTED"
    )


def measure_maxima(
    weights: BertWeights,
    tokenizer_json: bytes,
    max_tokens: int,
    texts: Sequence[str],
    progress: Progress | None = None,
) -> Maxima:
    """Run the fp32 graph over the texts and keep the largest magnitude per channel."""
    graph = build_graph(weights, GraphOptions(quantisation="fp32", tapped=True))
    runner = PlainRunner(graph, tokenizer_json, max_tokens)
    maxima: Maxima = {}
    for done, text in enumerate(texts):
        for name, values in runner.run(text).items():
            if name != "embedding":
                before = maxima.get(name)
                maxima[name] = values if before is None else np.maximum(before, values)
        if progress is not None:
            progress("calibrate", done + 1, len(texts))
    return maxima


def shipped_maxima(weights_sha256: str) -> Maxima | None:
    """The shipped maxima, if they belong to these weights and to the shipped texts."""
    with resources.files(__package__ or "").joinpath(MAXIMA_FILE).open("rb") as stream:
        archive = np.load(stream, allow_pickle=False)
        arrays = {name: archive[name] for name in archive.files}
    texts_sha256 = hashlib.sha256(package_data(TEXTS_FILE)).hexdigest()
    if str(arrays.pop("weights_sha256")) != weights_sha256:
        return None
    if str(arrays.pop("texts_sha256")) != texts_sha256:
        return None
    return arrays


def reference_vectors(
    weights: BertWeights,
    tokenizer_json: bytes,
    max_tokens: int,
    pooling: Pooling,
    texts: Sequence[str],
) -> Floats:
    """Vectors of the plain fp32 graph, unit length: [texts, dimensions]."""
    graph = build_graph(weights, GraphOptions(quantisation="fp32", pooling=pooling))
    runner = PlainRunner(graph, tokenizer_json, max_tokens)
    return np.stack([runner.embed(text) for text in texts])
