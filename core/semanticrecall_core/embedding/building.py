"""Builds a model's graph, tries it, and writes graph and manifest: the end of an installation.

Apart from `provision`, so that serving an installed model imports none of the libraries that graphs
are written with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .calibration import (
    PlainRunner,
    Progress,
    calibration_texts,
    measure_maxima,
    reference_vectors,
    shipped_maxima,
)
from .graph import GraphOptions, build_graph
from .manifest import GraphEntry, Manifest, cpu_fingerprint, sha256_hex, write_atomic
from .self_test import SELF_TEST_TEXTS, shipped_reference
from .sources import Sources
from .spec import GRAPH_BUILDER_VERSION, ModelSpec
from .weights import Floats, parse_config, parse_weights


def _reference(spec: ModelSpec, texts: tuple[str, ...], compute: Callable[[], Floats]) -> Floats:
    shipped = shipped_reference(spec.weights_sha256, texts)
    return compute() if shipped is None else shipped


def build(
    folder: Path,
    spec: ModelSpec,
    sources: Sources,
    before: Manifest | None,
    official: dict[str, bytes],
    progress: Progress | None,
) -> Manifest:
    """Build the graph of the spec's arithmetic from verified files.

    Args:
        folder: of the cache; must exist.
        before: the folder's manifest, whose other graphs and files are kept; None for none.
        official: files that lie in the folder already and are named in the manifest.
        progress: called with "calibrate" (texts) and "build" (steps).

    Raises:
        ModelUnavailableError: not of the BERT family, or the folder cannot be written.
    """
    weights = parse_weights(sources.weights, parse_config(sources.config))
    tokens = min(spec.max_tokens, weights.config.positions)
    maxima = None
    if spec.quantisation == "int8":
        maxima = shipped_maxima(spec.weights_sha256)
        if maxima is None:
            texts = calibration_texts()
            maxima = measure_maxima(weights, sources.tokenizer, tokens, texts, progress)
    if progress is not None:
        progress("build", 0, 2)
    options = GraphOptions(spec.pooling, spec.normalize, spec.quantisation)
    reference = _reference(
        spec,
        SELF_TEST_TEXTS,
        lambda: reference_vectors(
            weights, sources.tokenizer, tokens, spec.pooling, SELF_TEST_TEXTS
        ),
    )
    # The recorded vectors come from the graph without a mask: on one text both are the same.
    plain = build_graph(weights, options, maxima)
    masked = spec.quantisation == "fp32"
    graph = build_graph(weights, dataclasses.replace(options, masked=True)) if masked else plain
    if progress is not None:
        progress("build", 1, 2)
    runner = PlainRunner(plain, sources.tokenizer, tokens)
    recorded = np.stack([runner.embed(text) for text in SELF_TEST_TEXTS])
    file = f"{spec.quantisation}.onnx"
    entry = GraphEntry(
        file=file,
        builder=GRAPH_BUILDER_VERSION,
        cpu=cpu_fingerprint(),
        texts=SELF_TEST_TEXTS,
        reference=reference,
        recorded=recorded,
    )
    write_atomic(folder / file, graph)
    manifest = before or Manifest(spec.name, spec.revision, {}, {}, {})
    for name, data in {**official, file: graph}.items():
        manifest.digests[name] = sha256_hex(data)
        manifest.sizes[name] = len(data)
    manifest.graphs[spec.quantisation] = entry
    manifest.write(folder)
    if progress is not None:
        progress("build", 2, 2)
    return manifest
