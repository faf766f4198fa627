"""VectorService: named collections of the caller's vectors, on plain threads."""

from __future__ import annotations

from semanticrecall.v1 import vectors_pb2
from semanticrecall_core.engine import Engine
from semanticrecall_core.types.collections import VectorCollections
from semanticrecall_core.types.errors import UnavailableError

from . import vector_convert
from .observability import Reading
from .service import Call, require_resource
from .vector_convert import VectorLimits, fill_collection, place_faults


class VectorService:
    """The use cases of VectorService. Thread-safe."""

    def __init__(self, engine: Engine, limits: VectorLimits) -> None:
        self._engine = engine
        self._limits = limits

    def _collections(self) -> VectorCollections:
        collections = self._engine.collections
        if collections is None:
            raise UnavailableError("no vector collections are kept here")
        return collections

    def create_collection(
        self, request: vectors_pb2.CreateCollectionRequest, call: Call
    ) -> vectors_pb2.CreateCollectionResponse:
        """Make one, unless it is there."""
        dimensions, metric = vector_convert.dimensions_and_metric(request, self._limits)
        call.budget.check()
        info, created = self._collections().create(
            request.resource_id, request.collection, dimensions, metric
        )
        response = vectors_pb2.CreateCollectionResponse(created=created)
        fill_collection(response.collection, info)
        return response

    def list_collections(
        self, request: vectors_pb2.ListCollectionsRequest, call: Call
    ) -> vectors_pb2.ListCollectionsResponse:
        """Those of a resource."""
        require_resource(request.resource_id)
        call.budget.check()
        response = vectors_pb2.ListCollectionsResponse()
        for info in self._collections().list(request.resource_id):
            fill_collection(response.collections.add(), info)
        return response

    def describe_collection(
        self, request: vectors_pb2.DescribeCollectionRequest, call: Call
    ) -> vectors_pb2.DescribeCollectionResponse:
        """One of them."""
        place_faults(request.resource_id, request.collection).raise_if_found()
        call.budget.check()
        response = vectors_pb2.DescribeCollectionResponse()
        info = self._collections().describe(request.resource_id, request.collection)
        fill_collection(response.collection, info)
        return response

    def delete_collection(
        self, request: vectors_pb2.DeleteCollectionRequest, call: Call
    ) -> vectors_pb2.DeleteCollectionResponse:
        """Remove one with its vectors."""
        place_faults(request.resource_id, request.collection).raise_if_found()
        call.budget.check()
        vectors = self._collections().delete(request.resource_id, request.collection, call.budget)
        return vectors_pb2.DeleteCollectionResponse(
            vectors=vectors or 0, deleted=vectors is not None
        )

    def upsert(
        self, request: vectors_pb2.UpsertVectorsRequest, call: Call
    ) -> vectors_pb2.UpsertVectorsResponse:
        """Keep vectors."""
        entries, delete_filter = vector_convert.entries(request, self._limits)
        call.budget.check()
        counts = self._collections().upsert(
            request.resource_id, request.collection, entries, delete_filter, call.budget
        )
        return vectors_pb2.UpsertVectorsResponse(
            added=counts.added, replaced=counts.replaced, deleted=counts.deleted
        )

    def query(
        self, request: vectors_pb2.QueryVectorsRequest, call: Call
    ) -> vectors_pb2.QueryVectorsResponse:
        """Find the nearest vectors."""
        query = vector_convert.query(request)
        call.budget.check()
        matches = self._collections().query(
            request.resource_id, request.collection, query, call.budget
        )
        return vector_convert.query_response(matches, self._limits.answer_bytes_max)

    def update(
        self, request: vectors_pb2.UpdateVectorsRequest, call: Call
    ) -> vectors_pb2.UpdateVectorsResponse:
        """Change vectors or their metadata."""
        selection, change = vector_convert.selection_and_change(request, self._limits)
        call.budget.check()
        updated = self._collections().update(
            request.resource_id, request.collection, selection, change, call.budget
        )
        return vectors_pb2.UpdateVectorsResponse(updated=updated)

    def delete(
        self, request: vectors_pb2.DeleteVectorsRequest, call: Call
    ) -> vectors_pb2.DeleteVectorsResponse:
        """Remove vectors."""
        selection = vector_convert.selection(request)
        call.budget.check()
        deleted = self._collections().delete_vectors(
            request.resource_id, request.collection, selection, call.budget
        )
        return vectors_pb2.DeleteVectorsResponse(deleted=deleted)


def collection_readings(engine: Engine) -> list[Reading]:
    """What vector collections count by themselves."""
    if engine.collections is None:
        return []
    counts = engine.collections.counts()
    return [
        Reading("collections", "Vector collections.", counts.collections),
        Reading("collection_vectors", "Vectors in them.", counts.vectors),
        Reading("collections_disk_bytes", "Bytes of their file and its log.", counts.disk_bytes),
        Reading("collections_loaded", "Collections in memory.", counts.loaded),
        Reading("collections_bytes", "Bytes of memory of those.", counts.memory_bytes),
        Reading("collection_loads", "Collections read into memory.", counts.loads, True),
        Reading("collection_evictions", "Left memory for others.", counts.evictions, True),
    ]
