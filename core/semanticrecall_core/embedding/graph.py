"""The ONNX graph of a BERT encoder, written node by node.

Inputs: `input_ids` int64 [batch, tokens]; masked graphs also `attention_mask` int64 [batch,
tokens], 1 for a token and 0 for padding. Output: `embedding` float32 [batch, hidden], of unit
length where asked.

The int8 graph
  * keeps the word table as int8 rows with a scale each;
  * quantises activations per run and weights per output column: DynamicQuantizeLinear with
    com.microsoft QAttention, and com.microsoft DynamicQuantizeMatMul;
  * divides the inputs of every quantised product by smoothing factors, one per channel, and
    multiplies the rows of its weights by them (SmoothQuant, arXiv 2211.10438), so that a few
    large channels do not cost the others their resolution. The factors of attention's output are
    folded into the value projection; the others are one Mul, because the residual needs the
    unscaled value.
  * gives the same vector for the same text only if the text is alone in the run: the range of
    an activation is taken over the whole batch.

Add and LayerNormalization are left apart on purpose: onnxruntime's SkipLayerNormalization cost 27 %
of a run. Open sessions with the optimizer `SkipLayerNormFusion` disabled.

The same weights, maxima and options give the same bytes on every machine: nothing here depends on
the order of a sum, and smoothing factors lie on a grid of sixteenth powers of two. A change that
changes the bytes needs another `spec.GRAPH_BUILDER_VERSION`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from .spec import Pooling, Quantisation
from .weights import BertWeights, Floats, LayerWeights

SMOOTHING_ALPHA = 0.75
"""How much of an activation's spread moves into the weights. Mean cosine to fp32 on the golden
texts: 0.981 at 0.5, 0.996 at 0.65, 0.997 at 0.75, 0.996 at 0.85; 0.993 without smoothing."""
SELDOM_FIRING_FLOOR = 2.0
"""Maxima of the feed-forward channels are taken as no less than this many medians of the layer.
Many of these neurons fire for a few words only, which no calibration sees all of; one that fires
unforeseen would set the range of the whole activation. Lifts the worst cosine from 0.976 to 0.993.
"""
LARGEST_WEIGHT_CODE = 100
"""Codes of quantised products stay in [-100, 100]. x86 processors without VNNI add two products of
an unsigned and a signed byte in 16 bits and saturate: with codes up to 127 the golden texts came
out at a mean of 0.993 and a minimum of 0.971 there, with 100 at 0.997 and 0.991. With VNNI nothing
saturates, and the coarser codes cost 0.0005 of the mean."""
LARGEST_ROW_CODE = 127
"""Codes of the word table, which is only looked up."""

OPSET = 17
IR_VERSION = 8
MICROSOFT = "com.microsoft"
TAPS = ("qkv", "out", "up", "down")
"""The quantised products of a layer, named by their weights."""

Maxima = dict[str, Floats]
"""Largest magnitude per input channel: `<layer>.<tap>` to [channels]."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What to build.

    Attributes:
        masked: take an attention mask, for rows of different lengths.
        tapped: fp32 only; also output the maxima that calibration needs, one output per
            product named as in `Maxima`.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    quantisation: Quantisation = "int8"
    masked: bool = False
    tapped: bool = False


def smoothing_factors(activations: Floats, weight: Floats) -> Floats:
    """Factor per input channel of one product.

    Args:
        activations: [inputs], largest magnitude seen per channel.
        weight: [inputs, outputs].

    Returns:
        [inputs]: activation^alpha / weight^(1 - alpha), rounded to a sixteenth power of two.
    """
    floor = 1e-5
    rows = np.maximum(np.abs(weight).max(axis=1), floor)
    peaks = np.maximum(activations, floor)
    steps = [
        round(16 * (SMOOTHING_ALPHA * math.log2(peak) - (1 - SMOOTHING_ALPHA) * math.log2(row)))
        for peak, row in zip(peaks.tolist(), rows.tolist(), strict=True)
    ]
    sixteenths = [2.0 ** (step / 16) for step in range(16)]
    return np.array(
        [math.ldexp(sixteenths[step % 16], step // 16) for step in steps], dtype=np.float32
    )


def quantise(weight: Floats, axis: int, largest: int) -> tuple[NDArray[np.int8], Floats]:
    """Symmetric int8 of a matrix, one scale per slice along the other axis.

    Args:
        weight: [rows, columns].
        axis: the axis a scale spans: 0 for a scale per column, 1 for a scale per row.
        largest: magnitude of the largest code, at most 127.

    Returns:
        Codes in [-largest, largest], and scales so that code * scale is the value.
    """
    peaks = np.abs(weight).max(axis=axis, keepdims=True)
    scales = np.where(peaks > 0, peaks / np.float32(largest), np.float32(1)).astype(np.float32)
    codes = np.clip(np.rint(weight / scales), -largest, largest).astype(np.int8)
    return codes, scales.reshape(-1)


class _Graph:
    """Nodes and constants in the order they are written."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._names: set[str] = set()

    def constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self._names:
            self._names.add(name)
            self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def node(
        self, kind: str, inputs: list[str], output: str, domain: str = "", **attributes: Any
    ) -> str:
        self.nodes.append(
            helper.make_node(kind, inputs, [output], name=output, domain=domain, **attributes)
        )
        return output


class _Encoder:
    """Writes one encoder into a graph."""

    def __init__(self, weights: BertWeights, options: GraphOptions, maxima: Maxima | None) -> None:
        self._weights = weights
        self._options = options
        self._maxima = maxima or {}
        self._graph = _Graph()
        self._taps: list[str] = []
        self._mask = ""

    def model(self) -> onnx.ModelProto:
        graph, options = self._graph, self._options
        if options.masked:
            self._mask = graph.node("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
        hidden = self._embeddings()
        for index, layer in enumerate(self._weights.layers):
            hidden = self._layer(str(index), layer, hidden)
        self._pool(hidden)
        names = ["input_ids", "attention_mask"] if options.masked else ["input_ids"]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in names
        ]
        size = self._weights.config.hidden
        outputs = [
            helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", size]),
            *(helper.make_tensor_value_info(tap, TensorProto.FLOAT, None) for tap in self._taps),
        ]
        return helper.make_model(
            helper.make_graph(graph.nodes, "encoder", inputs, outputs, graph.constants),
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)],
            ir_version=IR_VERSION,
            producer_name="semanticrecall",
        )

    def _embeddings(self) -> str:
        graph, weights = self._graph, self._weights
        if self._options.quantisation == "int8":
            codes, scales = quantise(weights.words, 1, LARGEST_ROW_CODE)
            graph.constant("words", codes)
            graph.constant("words.scale", scales.reshape(-1, 1))
            graph.node("Gather", ["words", "input_ids"], "words.codes", axis=0)
            graph.node("Cast", ["words.codes"], "words.cast", to=TensorProto.FLOAT)
            graph.node("Gather", ["words.scale", "input_ids"], "words.row_scale", axis=0)
            graph.node("Mul", ["words.cast", "words.row_scale"], "words.rows")
        else:
            graph.constant("words", weights.words)
            graph.node("Gather", ["words", "input_ids"], "words.rows", axis=0)
        graph.constant("positions", weights.positions)
        graph.constant("zero", np.array([0], dtype=np.int64))
        graph.node("Shape", ["input_ids"], "tokens", start=1, end=2)
        graph.node("Slice", ["positions", "zero", "tokens", "zero"], "positions.rows")
        graph.node("Add", ["words.rows", "positions.rows"], "embeddings.sum")
        return self._norm("embeddings", "embeddings.sum", weights.gamma, weights.beta)

    def _norm(self, name: str, value: str, gamma: Floats, beta: Floats) -> str:
        graph = self._graph
        return graph.node(
            "LayerNormalization",
            [
                value,
                graph.constant(f"{name}.gamma", gamma),
                graph.constant(f"{name}.beta", beta),
            ],
            f"{name}.norm",
            axis=-1,
            epsilon=self._weights.config.layer_norm_epsilon,
        )

    def _factors(self, product: str, weight: Floats) -> Floats | None:
        if self._options.quantisation == "fp32" or product not in self._maxima:
            return None
        maxima = self._maxima[product]
        if product.endswith(".down"):
            maxima = np.maximum(maxima, np.float32(SELDOM_FIRING_FLOOR * np.median(maxima)))
        return smoothing_factors(maxima, weight)

    def _smoothed(self, product: str, value: str, weight: Floats) -> tuple[str, Floats]:
        """The product's input divided by its factors, and its weight multiplied by them."""
        self._tap(product, value)
        factors = self._factors(product, weight)
        if factors is None:
            return value, weight
        inverse = self._graph.constant(f"{product}.inverse", (1 / factors).astype(np.float32))
        scaled = self._graph.node("Mul", [value, inverse], f"{product}.scaled")
        return scaled, weight * factors[:, None]

    def _tap(self, product: str, value: str) -> None:
        if self._options.tapped:
            self._graph.node("Abs", [value], f"{product}.abs")
            self._graph.node("ReduceMax", [f"{product}.abs"], product, axes=[0, 1], keepdims=0)
            self._taps.append(product)

    def _layer(self, name: str, layer: LayerWeights, hidden: str) -> str:
        graph = self._graph
        context, out = self._attention(name, layer, hidden)
        attended = self._product(f"{name}.out", context, out, layer.out_bias)
        graph.node("Add", [attended, hidden], f"{name}.attention.sum")
        middle = self._norm(
            f"{name}.attention",
            f"{name}.attention.sum",
            layer.attention_gamma,
            layer.attention_beta,
        )
        value, up = self._smoothed(f"{name}.up", middle, layer.up)
        raised = self._product(f"{name}.up", value, up, layer.up_bias)
        active = graph.node("Gelu", [raised], f"{name}.gelu", domain=MICROSOFT)
        value, down = self._smoothed(f"{name}.down", active, layer.down)
        lowered = self._product(f"{name}.down", value, down, layer.down_bias)
        graph.node("Add", [lowered, middle], f"{name}.output.sum")
        return self._norm(
            f"{name}.output", f"{name}.output.sum", layer.output_gamma, layer.output_beta
        )

    def _attention(self, name: str, layer: LayerWeights, hidden: str) -> tuple[str, Floats]:
        """Attention's context, and the weight that its output product must use."""
        size = self._weights.config.hidden
        value, qkv = self._smoothed(f"{name}.qkv", hidden, layer.qkv)
        bias, out = layer.qkv_bias, layer.out
        factors = self._factors(f"{name}.out", out)
        if factors is not None:
            # The context is a mean of values, so factors of the context are factors of values.
            spread = np.concatenate([np.ones(2 * size, dtype=np.float32), factors])
            qkv, bias, out = qkv / spread, bias / spread, out * factors[:, None]
        context = self._attend(f"{name}.qkv", value, qkv, bias)
        self._tap(f"{name}.out", context)
        return context, out

    def _attend(self, name: str, value: str, qkv: Floats, bias: Floats) -> str:
        graph, heads = self._graph, self._weights.config.heads
        graph.constant(f"{name}.bias", bias)
        if self._options.quantisation == "fp32":
            graph.constant(f"{name}.weight", qkv)
            inputs = [value, f"{name}.weight", f"{name}.bias", self._mask]
            return graph.node(
                "Attention", inputs, f"{name}.context", domain=MICROSOFT, num_heads=heads
            )
        codes, scales = quantise(qkv, 0, LARGEST_WEIGHT_CODE)
        graph.constant(f"{name}.weight", codes)
        graph.constant(f"{name}.weight_scale", scales)
        graph.constant("weight_zero", np.zeros((), dtype=np.int8))
        quantised = [f"{name}.codes", f"{name}.scale", f"{name}.zero"]
        graph.nodes.append(
            helper.make_node("DynamicQuantizeLinear", [value], quantised, name=f"{name}.quantise")
        )
        inputs = [
            f"{name}.codes",
            f"{name}.weight",
            f"{name}.bias",
            f"{name}.scale",
            f"{name}.weight_scale",
            self._mask,
            f"{name}.zero",
            "weight_zero",
        ]
        return graph.node(
            "QAttention", inputs, f"{name}.context", domain=MICROSOFT, num_heads=heads
        )

    def _product(self, name: str, value: str, weight: Floats, bias: Floats) -> str:
        graph = self._graph
        graph.constant(f"{name}.bias", bias)
        if self._options.quantisation == "fp32":
            graph.constant(f"{name}.weight", weight)
            graph.node("MatMul", [value, f"{name}.weight"], f"{name}.matmul")
            return graph.node("Add", [f"{name}.matmul", f"{name}.bias"], f"{name}.result")
        codes, scales = quantise(weight, 0, LARGEST_WEIGHT_CODE)
        graph.constant(f"{name}.weight", codes)
        graph.constant(f"{name}.weight_scale", scales)
        inputs = [value, f"{name}.weight", f"{name}.weight_scale", "", f"{name}.bias"]
        return graph.node("DynamicQuantizeMatMul", inputs, f"{name}.result", domain=MICROSOFT)

    def _pool(self, hidden: str) -> None:
        graph = self._graph
        pooled = "pooled" if self._options.normalize else "embedding"
        if self._options.pooling == "cls":
            graph.constant("first", np.zeros((), dtype=np.int64))
            graph.node("Gather", [hidden, "first"], pooled, axis=1)
        elif not self._options.masked:
            graph.node("ReduceMean", [hidden], pooled, axes=[1], keepdims=0)
        else:
            graph.node("Cast", ["attention_mask"], "mask.float", to=TensorProto.FLOAT)
            graph.constant("one", np.array([1], dtype=np.int64))
            graph.constant("last", np.array([2], dtype=np.int64))
            graph.node("Unsqueeze", ["mask.float", "last"], "mask.column")
            graph.node("Mul", [hidden, "mask.column"], "mask.hidden")
            graph.node("ReduceSum", ["mask.hidden", "one"], "mask.sum", keepdims=0)
            graph.node("ReduceSum", ["mask.column", "one"], "mask.count", keepdims=0)
            graph.node("Div", ["mask.sum", "mask.count"], pooled)
        if self._options.normalize:
            graph.constant("tiny", np.array(1e-12, dtype=np.float32))
            graph.node("ReduceL2", ["pooled"], "length", axes=[1], keepdims=1)
            graph.node("Max", ["length", "tiny"], "length.safe")
            graph.node("Div", ["pooled", "length.safe"], "embedding")


def build_graph(weights: BertWeights, options: GraphOptions, maxima: Maxima | None = None) -> bytes:
    """Write the graph of an encoder.

    Args:
        weights: the encoder.
        options: which variant.
        maxima: calibration; without it the int8 graph is not smoothed.

    Returns:
        A serialised ONNX model, the same bytes for the same arguments.
    """
    model = _Encoder(weights, options, maxima).model()
    return model.SerializeToString(deterministic=True)
