from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Metric(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    METRIC_UNSPECIFIED: _ClassVar[Metric]
    METRIC_COSINE: _ClassVar[Metric]
    METRIC_EUCLIDEAN: _ClassVar[Metric]
    METRIC_DOT_PRODUCT: _ClassVar[Metric]
METRIC_UNSPECIFIED: Metric
METRIC_COSINE: Metric
METRIC_EUCLIDEAN: Metric
METRIC_DOT_PRODUCT: Metric

class Collection(_message.Message):
    __slots__ = ("name", "dimensions", "metric", "vectors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dimensions: int
    metric: Metric
    vectors: int
    def __init__(self, name: _Optional[str] = ..., dimensions: _Optional[int] = ..., metric: _Optional[_Union[Metric, str]] = ..., vectors: _Optional[int] = ...) -> None: ...

class VectorEntry(_message.Message):
    __slots__ = ("id", "values", "metadata")
    ID_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    values: _containers.RepeatedScalarFieldContainer[float]
    metadata: _struct_pb2.Struct
    def __init__(self, id: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class VectorSelection(_message.Message):
    __slots__ = ("ids", "filter")
    IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ids: VectorIds
    filter: _struct_pb2.Struct
    def __init__(self, ids: _Optional[_Union[VectorIds, _Mapping]] = ..., filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class VectorIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateCollectionRequest(_message.Message):
    __slots__ = ("resource_id", "collection", "dimensions", "metric")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    collection: str
    dimensions: int
    metric: Metric
    def __init__(self, resource_id: _Optional[str] = ..., collection: _Optional[str] = ..., dimensions: _Optional[int] = ..., metric: _Optional[_Union[Metric, str]] = ...) -> None: ...

class CreateCollectionResponse(_message.Message):
    __slots__ = ("collection", "created")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    collection: Collection
    created: bool
    def __init__(self, collection: _Optional[_Union[Collection, _Mapping]] = ..., created: bool = ...) -> None: ...

class ListCollectionsRequest(_message.Message):
    __slots__ = ("resource_id",)
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    def __init__(self, resource_id: _Optional[str] = ...) -> None: ...

class ListCollectionsResponse(_message.Message):
    __slots__ = ("collections",)
    COLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    collections: _containers.RepeatedCompositeFieldContainer[Collection]
    def __init__(self, collections: _Optional[_Iterable[_Union[Collection, _Mapping]]] = ...) -> None: ...

class DescribeCollectionRequest(_message.Message):
    __slots__ = ("resource_id", "collection")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    collection: str
    def __init__(self, resource_id: _Optional[str] = ..., collection: _Optional[str] = ...) -> None: ...

class DescribeCollectionResponse(_message.Message):
    __slots__ = ("collection",)
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    collection: Collection
    def __init__(self, collection: _Optional[_Union[Collection, _Mapping]] = ...) -> None: ...

class DeleteCollectionRequest(_message.Message):
    __slots__ = ("resource_id", "collection")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    collection: str
    def __init__(self, resource_id: _Optional[str] = ..., collection: _Optional[str] = ...) -> None: ...

class DeleteCollectionResponse(_message.Message):
    __slots__ = ("vectors", "deleted")
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    vectors: int
    deleted: bool
    def __init__(self, vectors: _Optional[int] = ..., deleted: bool = ...) -> None: ...

class UpsertVectorsRequest(_message.Message):
    __slots__ = ("resource_id", "collection", "entries", "delete_filter")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DELETE_FILTER_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    collection: str
    entries: _containers.RepeatedCompositeFieldContainer[VectorEntry]
    delete_filter: _struct_pb2.Struct
    def __init__(self, resource_id: _Optional[str] = ..., collection: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[VectorEntry, _Mapping]]] = ..., delete_filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class UpsertVectorsResponse(_message.Message):
    __slots__ = ("added", "replaced", "deleted")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    added: int
    replaced: int
    deleted: int
    def __init__(self, added: _Optional[int] = ..., replaced: _Optional[int] = ..., deleted: _Optional[int] = ...) -> None: ...

class QueryVectorsRequest(_message.Message):
    __slots__ = ("resource_id", "collection", "values", "top_k", "filter", "include_values", "score_min")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_VALUES_FIELD_NUMBER: _ClassVar[int]
    SCORE_MIN_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    collection: str
    values: _containers.RepeatedScalarFieldContainer[float]
    top_k: int
    filter: _struct_pb2.Struct
    include_values: bool
    score_min: float
    def __init__(self, resource_id: _Optional[str] = ..., collection: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ..., top_k: _Optional[int] = ..., filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., include_values: bool = ..., score_min: _Optional[float] = ...) -> None: ...

class VectorMatch(_message.Message):
    __slots__ = ("id", "score", "metadata", "values")
    ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    id: str
    score: float
    metadata: _struct_pb2.Struct
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, id: _Optional[str] = ..., score: _Optional[float] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class QueryVectorsResponse(_message.Message):
    __slots__ = ("matches", "dropped")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[VectorMatch]
    dropped: int
    def __init__(self, matches: _Optional[_Iterable[_Union[VectorMatch, _Mapping]]] = ..., dropped: _Optional[int] = ...) -> None: ...

class UpdateVectorsRequest(_message.Message):
    __slots__ = ("resource_id", "collection", "selection", "values", "metadata")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    collection: str
    selection: VectorSelection
    values: _containers.RepeatedScalarFieldContainer[float]
    metadata: _struct_pb2.Struct
    def __init__(self, resource_id: _Optional[str] = ..., collection: _Optional[str] = ..., selection: _Optional[_Union[VectorSelection, _Mapping]] = ..., values: _Optional[_Iterable[float]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class UpdateVectorsResponse(_message.Message):
    __slots__ = ("updated",)
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    updated: int
    def __init__(self, updated: _Optional[int] = ...) -> None: ...

class DeleteVectorsRequest(_message.Message):
    __slots__ = ("resource_id", "collection", "selection")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    collection: str
    selection: VectorSelection
    def __init__(self, resource_id: _Optional[str] = ..., collection: _Optional[str] = ..., selection: _Optional[_Union[VectorSelection, _Mapping]] = ...) -> None: ...

class DeleteVectorsResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...
