"""What an embedder gave, looked at before it is stored."""

from __future__ import annotations

import numpy as np

from semanticrecall_core.types.errors import EmbeddingFailedError
from semanticrecall_core.types.values import EmbeddedText

UNIT_TOLERANCE = 1e-3


def check_vectors(embedded: EmbeddedText, dimensions: int) -> None:
    """Refuse what must never be stored: a vector that is not finite, not unit, or of another size.

    One such row in a partition could be the answer to every query.
    """
    vectors = embedded.vectors
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != dimensions:
        raise EmbeddingFailedError(f"the model gave vectors of another size than {dimensions}")
    squares = np.vecdot(vectors, vectors)
    # The square of a length is twice as far from 1 as the length. NaN fails every comparison.
    if not (np.abs(squares - 1.0) <= 2 * UNIT_TOLERANCE).all():
        raise EmbeddingFailedError(
            "the model gave a vector that is not finite or not of unit length"
        )
