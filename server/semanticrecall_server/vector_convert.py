"""Requests of VectorService to checked values of the engine, and its answers.

What only a collection can tell, e.g. whether a vector has its dimensions, the engine checks. Every
function that reads raises InvalidArgumentError that names all fields at fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf import struct_pb2

from semanticrecall.v1 import vectors_pb2
from semanticrecall_core.types.collections import (
    CollectionInfo,
    Metric,
    VectorChange,
    VectorEntry,
    VectorMatch,
    VectorQuery,
    VectorSelection,
)
from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.filters import FILTER_DEPTH_MAX

from .checks import Violations
from .config import Settings
from .metadata_json import METADATA_DEPTH_MAX, fill_object, json_of, plain_object

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOP_K_DEFAULT = 10
TOP_K_MAX = 10_000
SELECTED_IDS_MAX = 10_000
NUMBERS_MAX = 65_536
"""Of one vector, whatever its collection: `--collection-dimensions-max` may have been larger."""

MATCH_FRAME_BYTES = 8
"""Bytes of framing of one match inside an answer, at most."""


@dataclass(frozen=True, slots=True)
class VectorLimits:
    """Limits that requests are held to; see the settings of the same names."""

    collection_dimensions_max: int
    collection_upsert_max: int
    metadata_bytes_max: int
    answer_bytes_max: int

    @classmethod
    def of(cls, settings: Settings) -> VectorLimits:
        """Those of the settings."""
        return cls(
            collection_dimensions_max=settings.collection_dimensions_max,
            collection_upsert_max=settings.collection_upsert_max,
            metadata_bytes_max=settings.metadata_bytes_max,
            answer_bytes_max=settings.answer_bytes_max,
        )


# ---- which collection ----


def place_faults(resource_id: str, collection: str) -> Violations:
    """What is wrong with the fields that name a collection."""
    v = Violations()
    v.identifier("resource_id", resource_id)
    v.identifier("collection", collection)
    return v


def dimensions_and_metric(
    request: vectors_pb2.CreateCollectionRequest, limits: VectorLimits
) -> tuple[int, Metric]:
    """What a new collection is to be."""
    v = place_faults(request.resource_id, request.collection)
    v.count("dimensions", request.dimensions, 1, limits.collection_dimensions_max)
    metric = v.choice("metric", request.metric, Metric, Metric.COSINE)
    v.raise_if_found()
    return request.dimensions, metric


# ---- vectors ----


def entries(
    request: vectors_pb2.UpsertVectorsRequest, limits: VectorLimits
) -> tuple[list[VectorEntry], dict[str, object] | None]:
    """The vectors to keep, and the filter of those to remove before."""
    v = place_faults(request.resource_id, request.collection)
    count, most = len(request.entries), limits.collection_upsert_max
    if not 1 <= count <= most:
        v.add("entries", f"must be 1 to {most} vectors; has {count}")
        raise v.error()
    found = [_entry(v, f"entries[{i}].", one, limits) for i, one in enumerate(request.entries)]
    delete_filter = None
    if request.HasField("delete_filter"):
        delete_filter = _filter(v, "delete_filter", request.delete_filter)
    v.raise_if_found()
    return found, delete_filter


def query(request: vectors_pb2.QueryVectorsRequest) -> VectorQuery:
    """What to look for."""
    v = place_faults(request.resource_id, request.collection)
    values = _values(v, "values", request.values) if request.values else None
    top_k = request.top_k if request.HasField("top_k") else TOP_K_DEFAULT
    v.count("top_k", top_k, 1, TOP_K_MAX)
    condition = _filter(v, "filter", request.filter) if request.HasField("filter") else None
    if not request.values and not request.filter.fields:
        v.add("filter", "is required where there are no values to compare with")
    score_min = None
    if request.HasField("score_min"):
        score_min = request.score_min
        v.number("score_min", score_min, -math.inf, math.inf)
    v.raise_if_found()
    return VectorQuery(values, top_k, condition, score_min, request.include_values)


def selection_and_change(
    request: vectors_pb2.UpdateVectorsRequest, limits: VectorLimits
) -> tuple[VectorSelection, VectorChange]:
    """Which vectors to change, and what to."""
    v = place_faults(request.resource_id, request.collection)
    selected = _selection(v, request.selection)
    values = _values(v, "values", request.values) if request.values else None
    metadata = None
    if request.HasField("metadata"):
        metadata = _metadata(v, "metadata", request.metadata, limits)
    elif not request.values:
        v.add("values", "or metadata is required: there is nothing to change")
    v.raise_if_found()
    return selected, VectorChange(values, metadata)


def selection(request: vectors_pb2.DeleteVectorsRequest) -> VectorSelection:
    """Which vectors to remove."""
    v = place_faults(request.resource_id, request.collection)
    selected = _selection(v, request.selection)
    v.raise_if_found()
    return selected


def _entry(
    v: Violations, path: str, entry: vectors_pb2.VectorEntry, limits: VectorLimits
) -> VectorEntry:
    v.identifier(f"{path}id", entry.id)
    values = _values(v, f"{path}values", entry.values)
    metadata = _metadata(v, f"{path}metadata", entry.metadata, limits)
    return VectorEntry(entry.id, values, metadata)


def _values(v: Violations, field: str, given: Sequence[float]) -> NDArray[np.float32]:
    if not 1 <= len(given) <= NUMBERS_MAX:
        v.add(field, f"must be 1 to {NUMBERS_MAX} numbers; has {len(given)}")
        return np.empty(0, np.float32)
    values = np.array(given, dtype=np.float32)
    if not np.isfinite(values).all():
        v.add(field, "numbers must be finite")
    return values


def _metadata(
    v: Violations, field: str, given: struct_pb2.Struct, limits: VectorLimits
) -> dict[str, object]:
    try:
        metadata = plain_object(given, field, METADATA_DEPTH_MAX)
        json_of(metadata, field, limits.metadata_bytes_max)
    except InvalidArgumentError as error:
        v.extend(error)
        return {}
    return metadata


def _filter(v: Violations, field: str, given: struct_pb2.Struct) -> dict[str, object] | None:
    try:
        # A list of objects takes two of the Struct's levels for one of the filter's.
        return plain_object(given, field, 2 * FILTER_DEPTH_MAX)
    except InvalidArgumentError as error:
        v.extend(error)
        return None


def _selection(v: Violations, given: vectors_pb2.VectorSelection) -> VectorSelection:
    kind = given.WhichOneof("selection")
    if kind == "ids":
        v.identifiers("selection.ids.ids", given.ids.ids, 1, SELECTED_IDS_MAX)
        return VectorSelection(ids=tuple(given.ids.ids))
    if kind == "filter":
        if not given.filter.fields:
            v.add("selection.filter", "is empty, which would be every vector; name a condition")
        return VectorSelection(filter=_filter(v, "selection.filter", given.filter))
    v.add("selection", "is required: ids or a filter")
    return VectorSelection()


# ---- answers ----


def fill_collection(target: vectors_pb2.Collection, info: CollectionInfo) -> None:
    """Write what a collection is."""
    target.name = info.name
    target.dimensions = info.dimensions
    target.metric = int(info.metric)  # type: ignore[assignment]
    target.vectors = info.vectors


def query_response(
    matches: Sequence[VectorMatch], answer_bytes_max: int
) -> vectors_pb2.QueryVectorsResponse:
    """The matches, as many of the best as an answer holds; one at least."""
    response = vectors_pb2.QueryVectorsResponse()
    room = answer_bytes_max
    for position, match in enumerate(matches):
        target = response.matches.add()
        _fill_match(target, match)
        room -= target.ByteSize() + MATCH_FRAME_BYTES
        if room < 0 and position:
            del response.matches[-1]
            response.dropped = len(matches) - position
            break
    return response


def _fill_match(target: vectors_pb2.VectorMatch, match: VectorMatch) -> None:
    target.id = match.id
    target.score = match.score
    if match.metadata:
        fill_object(target.metadata, match.metadata)
    if match.values is not None:
        target.values.extend(match.values.tolist())
