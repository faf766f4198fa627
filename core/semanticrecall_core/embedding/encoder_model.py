"""A model in memory, verified and ready to be opened: what every source of models ends in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..types.errors import ModelUnavailableError
from .manifest import ModelFiles, Probe
from .spec import GRAPH_BUILDER_VERSION, ModelSpec

if TYPE_CHECKING:
    import onnx

TEXT_RULES_VERSION = 1
"""Grows when the same text is prepared or cut in another way, so that its vectors differ."""

GRAPH_NESTING_MAX = 16


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """Everything an embedder is made from. All bytes were checked against their digests.

    Attributes:
        graph: ONNX model: `input_ids` int64 [1, tokens], and `attention_mask`, `token_type_ids`
            where it declares them, to a pooled [1, dimensions] or to [1, tokens, dimensions].
        tokenizer_json: file of the `tokenizers` library.
        graph_version: of the builder that wrote the graph; 0 for a graph that came as it is.
        probes: texts without prompt whose vectors are known, for the self-test.
    """

    spec: ModelSpec
    graph: bytes = field(repr=False)
    tokenizer_json: bytes = field(repr=False)
    graph_version: int = 0
    probes: tuple[Probe, ...] = ()

    @classmethod
    def of_files(cls, files: ModelFiles) -> EncoderModel:
        """Read a prepared model. Raises ModelUnavailableError for a damaged file."""
        return cls(
            spec=files.spec,
            graph=files.read_graph(),
            tokenizer_json=files.read_tokenizer(),
            graph_version=GRAPH_BUILDER_VERSION,
            probes=files.probes,
        )

    @property
    def index_identity(self) -> str:
        """`<model>@<revision>/<dimensions>/<quantisation>#` and 8 digits of `generation`'s digest.

        Two are the same only where their vectors are: the same files may be run with another
        arithmetic, window, pooling or prompt.
        """
        digest = self.generation.rpartition("#")[2][:8]
        spec = self.spec
        return f"{spec.name}@{spec.revision}/{spec.dimensions}/{spec.quantisation}#{digest}"

    @property
    def generation(self) -> str:
        """`<revision>/<dimensions>#` and a digest of everything that shapes a vector.

        The name is left out: a folder may be renamed. The bytes of a graph that we wrote are left
        out: its calibration may differ in the last bit between machines, and a data directory
        must open on another one.
        """
        identity: dict[str, Any] = {
            **asdict(self.spec),
            "graph_version": self.graph_version,
            "text_rules_version": TEXT_RULES_VERSION,
        }
        del identity["name"]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return f"{self.spec.revision}/{self.spec.dimensions}#{digest[:24]}"


def refuse_external_data(graph: bytes) -> None:
    """Raise ModelUnavailableError for a graph that is unreadable or keeps tensors in other files.

    Such files are outside the digest, and their paths come from the graph (CVE-2024-27318). For
    graphs that others wrote: ours have none, and their digest says that they are ours.
    """
    import onnx  # not needed for graphs of ours; takes as long to import as a model to open

    try:
        model = onnx.load_model_from_string(graph)
    except Exception as error:  # protobuf's DecodeError has no common public base
        raise ModelUnavailableError("the ONNX graph cannot be read") from error
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    for tensor in (*_tensors_of_graph(model.graph), *_tensors_of_nodes(nodes)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ModelUnavailableError(
                "the ONNX graph keeps tensors in other files; export it as one file"
            )


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def _tensors_of_nodes(
    nodes: Sequence[onnx.NodeProto], depth: int = 0
) -> Iterator[onnx.TensorProto]:
    if depth > GRAPH_NESTING_MAX:
        raise ModelUnavailableError("the ONNX graph is nested too deeply")
    for node in nodes:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors_of_graph(graph)
                if graph.node:
                    yield from _tensors_of_nodes(graph.node, depth + 1)
