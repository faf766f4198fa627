"""One ONNX graph on one device: token ids to unit vectors, checked.

A batch is for fp32 only: the int8 graph takes the range of an activation over the whole batch, so a
text's vector would depend on its neighbours. One thread a run, the caller's own: no pool, no
spinning (measured on fp32: a second thread that does not spin gains nothing).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..types.errors import EmbeddingFailedError, ModelUnavailableError
from .runtime_environment import onnxruntime
from .spec import Pooling, Quantisation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..types.values import FloatRows, IntColumn

    IntRows = NDArray[np.int64]

Device = Literal["cpu", "cuda"]
DEVICES = ("auto", "cpu", "cuda")

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_POOLED_OUTPUTS = ("embedding", "sentence_embedding")
_TOKEN_OUTPUTS = ("last_hidden_state", "token_embeddings")
_KNOWN_INPUTS = frozenset(("input_ids", "attention_mask", "token_type_ids"))
_LENGTH_MIN = 1e-12
_ONES = np.ones((1, 512), dtype=np.int64)  # a lone text's mask and types are views of these
_ZEROS = np.zeros_like(_ONES)


def choose_device(asked: str, quantisation: Quantisation) -> Device:
    """The device to open sessions on.

    Args:
        asked: "cpu", "cuda" or "auto"; "auto" takes cuda where onnxruntime offers it.
        quantisation: of the graph; int8 products have kernels for the processor only, so that
            "cuda" would run them there without saying so.

    Raises ModelUnavailableError for another word, and for "cuda" that cannot be had.
    """
    if asked not in DEVICES:
        raise ModelUnavailableError(f"device must be one of {', '.join(DEVICES)}")
    offered = _CUDA in onnxruntime.get_available_providers()
    if asked == "cuda" and not offered:
        raise _no_cuda(
            "this onnxruntime has no CUDA provider; install onnxruntime-gpu or choose device cpu"
        )
    if asked == "cuda" and quantisation == "int8":
        raise _no_cuda("the int8 graph runs on the processor only; use the fp32 graph")
    return "cuda" if offered and asked != "cpu" and quantisation == "fp32" else "cpu"


def _no_cuda(why: str) -> ModelUnavailableError:
    return ModelUnavailableError(f"device cuda: {why}", reason="DEVICE_UNAVAILABLE")


class EncoderSession:
    """Thread-safe.

    Args:
        graph: verified ONNX bytes, no external data.
        device: where it must run.
        pooling: for a graph that ends in token vectors.
        dimensions: of the vector; 0 takes whatever the graph gives.

    Raises ModelUnavailableError when the graph cannot be opened on that device (never another),
    or wants inputs or gives outputs that we do not know.
    """

    def __init__(
        self, graph: bytes, *, device: Device, pooling: Pooling, dimensions: int = 0
    ) -> None:
        self._session = _open(graph, device)
        self._pooling = pooling
        self._dimensions = dimensions
        inputs = {entry.name for entry in self._session.get_inputs()}
        if "input_ids" not in inputs or not inputs <= _KNOWN_INPUTS:
            raise ModelUnavailableError("the ONNX graph wants inputs other than token ids and mask")
        self._mask = "attention_mask" in inputs
        self._types = "token_type_ids" in inputs
        self._output, self._pooled = _choose_output(self._session)

    @property
    def takes_padding(self) -> bool:
        """Texts of different lengths can share a run: the graph takes a mask."""
        return self._mask

    def run(self, ids: IntColumn) -> FloatRows:
        """The unit vector of one text.

        Args:
            ids: int64, shape (tokens,), tokens >= 1.

        Returns:
            float32, shape (dimensions,), unit length, read-only.

        Raises EmbeddingFailedError when the model fails or gives something unusable.
        """
        (vector,) = self.run_batch([ids])
        if isinstance(vector, EmbeddingFailedError):
            raise vector
        return vector

    def run_batch(self, texts: Sequence[IntColumn]) -> list[FloatRows | EmbeddingFailedError]:
        """The unit vector of each text, in one run, or what is wrong with it.

        Args:
            texts: as in `run`; 1 or more, all of one length unless `takes_padding`.

        Raises EmbeddingFailedError when the run fails as a whole.
        """
        ids, mask = _padded(texts)
        feed = {"input_ids": ids}
        if self._mask:
            feed["attention_mask"] = mask
        if self._types:
            feed["token_type_ids"] = _filled(_ZEROS, ids)
        try:
            outputs = self._session.run([self._output], feed)
        except Exception as error:  # onnxruntime's exceptions have no common base
            # Its text names nodes and shapes; the class is enough to act on.
            raise EmbeddingFailedError(f"the model failed: {type(error).__name__}") from None
        rows = self._pool(np.asarray(outputs[0], dtype=np.float32), mask)
        if rows.ndim != 2 or len(rows) != len(ids) or self._dimensions not in (0, rows.shape[1]):
            raise EmbeddingFailedError("the model gave a vector of a wrong shape")
        return [_unit(row) for row in rows]

    def _pool(self, output: FloatRows, mask: IntRows) -> FloatRows:
        if self._pooled:
            return output
        if output.ndim != 3 or output.shape[:2] != mask.shape:
            raise EmbeddingFailedError("the model gave token vectors of a wrong shape")
        if self._pooling == "cls":
            return output[:, 0]
        is_token = True if len(mask) == 1 or mask.all() else mask.astype(bool)[:, :, np.newaxis]
        mean: FloatRows = output.mean(axis=1, dtype=np.float64, where=is_token).astype(np.float32)
        return mean


def _padded(texts: Sequence[IntColumn]) -> tuple[IntRows, IntRows]:
    """Token ids and mask, both int64, shape (texts, longest)."""
    if len(texts) == 1:
        ids = np.ascontiguousarray(texts[0], dtype=np.int64)[np.newaxis]
        return ids, _filled(_ONES, ids)
    longest = max(len(text) for text in texts)
    ids = np.zeros((len(texts), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return ids, mask


def _filled(constant: IntRows, ids: IntRows) -> IntRows:
    """The constant's number in the shape of `ids`; not to be written to."""
    row = constant[:, : ids.shape[1]]
    return row if row.shape == ids.shape else np.full_like(ids, constant[0, 0])


def _unit(row: FloatRows) -> FloatRows | EmbeddingFailedError:
    vector = row.astype(np.float64)
    length = math.sqrt(vector.dot(vector))
    if not math.isfinite(length):
        return EmbeddingFailedError("the model gave a vector that is not finite")
    if length < _LENGTH_MIN:
        return EmbeddingFailedError("the model gave a vector of zeros")
    unit: FloatRows = (vector / length).astype(np.float32)
    unit.setflags(write=False)
    return unit


def _open(graph: bytes, device: Device) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # it writes to stderr past our log; failures are raised anyway
    # The arena keeps the worst shape ever seen; without it a run is as fast (measured, 16 to 256
    # tokens).
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    cuda: tuple[str, dict[str, str]] = (_CUDA, {"use_tf32": "0"})
    try:
        session = onnxruntime.InferenceSession(
            graph,
            options,
            providers=[cuda, _CPU] if device == "cuda" else [_CPU],
            disabled_optimizers=["SkipLayerNormFusion"],  # see `graph`
            enable_fallback=0,
        )
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise ModelUnavailableError(
            f"the ONNX graph cannot be opened on {device}: {type(error).__name__}"
        ) from error
    if device == "cuda" and session.get_providers()[0] != _CUDA:
        raise _no_cuda(
            "onnxruntime opened the model elsewhere; look at the driver and the CUDA libraries, "
            "or choose device cpu"
        )
    return session


def _choose_output(session: onnxruntime.InferenceSession) -> tuple[str, bool]:
    """Name of the output to read, and whether it is pooled already."""
    names = [entry.name for entry in session.get_outputs()]
    for name in _POOLED_OUTPUTS:
        if name in names:
            return name, True
    for name in _TOKEN_OUTPUTS:
        if name in names:
            return name, False
    raise ModelUnavailableError(
        f"the ONNX graph has none of the outputs {', '.join(_POOLED_OUTPUTS + _TOKEN_OUTPUTS)}"
    )
