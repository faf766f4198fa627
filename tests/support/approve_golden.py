"""Recompute the model's golden values from the plain reference and the fp32 graph.

Run from the root of the repository, with the default model installed:
    PYTHONPATH=tests python -m support.approve_golden

Writes tests/fixtures/golden/vectors.npy (float16 [texts, dimensions], in the order of texts.txt)
and the package data self_test.npz and calibration_maxima.npz. Look at the differences it prints
before committing them.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from semanticrecall_core import embedding
from semanticrecall_core.embedding import calibration, self_test
from semanticrecall_core.embedding.provision import find_model
from semanticrecall_core.embedding.weights import parse_config, parse_weights
from support.bert_reference import BertReference

GOLDEN = Path(__file__).parent.parent / "fixtures" / "golden"


def golden_texts() -> list[str]:
    """The texts of texts.txt, one a line."""
    return (GOLDEN / "texts.txt").read_text(encoding="utf-8").splitlines()


def approve() -> None:
    """Write all three files."""
    folder = find_model().folder
    package = Path(embedding.__file__).parent
    reference = BertReference(folder)
    weights_bytes = (folder / "model.safetensors").read_bytes()
    weights_sha256 = np.array(hashlib.sha256(weights_bytes).hexdigest())

    vectors = np.stack([reference.embed(text) for text in golden_texts()])
    path = GOLDEN / "vectors.npy"
    if path.exists() and np.load(path).shape == vectors.shape:
        worst = float(np.abs(np.load(path).astype(np.float32) - vectors).max())
        sys.stdout.write(f"largest difference to the approved vectors: {worst:.2e}\n")
    np.save(path, vectors.astype(np.float16))

    texts = self_test.SELF_TEST_TEXTS
    np.savez(
        package / self_test.SELF_TEST_FILE,
        weights_sha256=weights_sha256,
        texts=np.array(texts),
        vectors=np.stack([reference.embed(text) for text in texts]),
    )
    weights = parse_weights(weights_bytes, parse_config((folder / "config.json").read_bytes()))
    maxima = calibration.measure_maxima(
        weights,
        (folder / "tokenizer.json").read_bytes(),
        256,
        calibration.calibration_texts(),
    )
    texts_bytes = calibration.package_data(calibration.TEXTS_FILE)
    np.savez(
        package / calibration.MAXIMA_FILE,
        weights_sha256=weights_sha256,
        texts_sha256=np.array(hashlib.sha256(texts_bytes).hexdigest()),
        allow_pickle=False,
        **maxima,
    )


if __name__ == "__main__":
    approve()
