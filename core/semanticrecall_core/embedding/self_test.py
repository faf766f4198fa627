"""Three texts whose vectors are known, tried whenever a model is loaded.

`self_test.npz` holds the default model's vectors, computed in plain fp32 arithmetic by a separate
implementation: `weights_sha256`, `texts` and `vectors` (float32 [texts, dimensions]).
"""

from __future__ import annotations

from importlib import resources

import numpy as np

from .weights import Floats

SELF_TEST_FILE = "self_test.npz"
SELF_TEST_TEXTS = (
    "We agreed to meet at the harbour on Thursday at nine.",
    "Wie viel Speicher braucht der Index, wenn die Tabelle 10000 Zeilen hat?",
    "The deployment failed because the certificate had expired the night before; after renewing "
    "it and restarting both replicas, the error rate fell back to 0.02 % within four minutes.",
)


def shipped_reference(weights_sha256: str, texts: tuple[str, ...]) -> Floats | None:
    """The shipped vectors [texts, dimensions], if they belong to these weights and texts."""
    with resources.files(__package__ or "").joinpath(SELF_TEST_FILE).open("rb") as stream:
        archive = np.load(stream, allow_pickle=False)
        digest, known = str(archive["weights_sha256"]), tuple(archive["texts"].tolist())
        vectors = np.asarray(archive["vectors"], dtype=np.float32)
    return vectors if digest == weights_sha256 and known == texts else None
