"""What callers give, checked against their collection and brought into the form that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import orjson

from ..types.collections import Metric, VectorEntry
from ..types.errors import InvalidArgumentError
from .loaded import StoredVector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..types.collections import Values


def as_vector(values: Values, dimensions: int, metric: Metric, field: str) -> NDArray[np.float32]:
    """A vector as a float32 array.

    Raises:
        InvalidArgumentError: another number of values, one that is not finite as float32, or a
            vector without direction.
    """
    if len(values) != dimensions:
        raise InvalidArgumentError.of(
            field, f"has {len(values)} values; the collection has {dimensions} dimensions"
        )
    with np.errstate(over="ignore"):
        vector = np.array(values, np.float32)
    if not np.isfinite(vector).all():
        raise InvalidArgumentError.of(field, "must be finite numbers")
    if metric is Metric.COSINE and not vector.any():
        raise InvalidArgumentError.of(field, "must not all be zero, with METRIC_COSINE")
    return vector


def as_metadata(metadata: Mapping[str, object], bytes_max: int, field: str) -> bytes:
    """Metadata as compact JSON. Raises InvalidArgumentError where they are too long."""
    encoded = orjson.dumps(metadata)
    if len(encoded) > bytes_max:
        raise InvalidArgumentError.of(
            field, f"must be at most {bytes_max} bytes as JSON; has {len(encoded)}"
        )
    return encoded


def as_stored(
    entries: Sequence[VectorEntry], dimensions: int, metric: Metric, metadata_bytes_max: int
) -> list[StoredVector]:
    """Entries in the form that is kept; of two with one id the later one.

    Raises InvalidArgumentError, which names the entry.
    """
    stored = {
        entry.id: StoredVector(
            entry.id,
            as_vector(entry.values, dimensions, metric, f"entries[{i}].values"),
            as_metadata(entry.metadata, metadata_bytes_max, f"entries[{i}].metadata"),
        )
        for i, entry in enumerate(entries)
    }
    return list(stored.values())
