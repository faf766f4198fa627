"""What callers give, checked against their collection and brought into the form that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import orjson

from ..types.collections import (
    DIMENSIONS_DIFFER,
    METRIC_DIFFERS,
    Metric,
    VectorEntry,
    VectorSelection,
)
from ..types.errors import FailedPreconditionError, InvalidArgumentError
from .filter_parsing import parse_filter
from .filters import Filter
from .loaded import StoredVector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..types.collections import Values
    from .storage import CollectionRow


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


def require_same(row: CollectionRow, dimensions: int, metric: Metric) -> None:
    """Raises FailedPreconditionError where a collection is there with others of these."""
    if row.dimensions != dimensions:
        raise FailedPreconditionError(
            f"the collection has {row.dimensions} dimensions, not {dimensions}",
            reason=DIMENSIONS_DIFFER,
        )
    if row.metric is not metric:
        raise FailedPreconditionError(
            f"the collection's metric is {row.metric.name}, not {metric.name}",
            reason=METRIC_DIFFERS,
        )


def selected(selection: VectorSelection) -> Filter | None:
    """The filter of a selection; None where it names ids. Raises InvalidArgumentError."""
    if selection.ids is not None and selection.filter is None:
        return None
    if selection.ids is not None or selection.filter is None:
        raise InvalidArgumentError.of("selection", "needs ids or a filter, and not both")
    condition = parse_filter(selection.filter, "selection.filter")
    if condition is None:
        raise InvalidArgumentError.of("selection.filter", "is empty: that would be all of them")
    return condition
