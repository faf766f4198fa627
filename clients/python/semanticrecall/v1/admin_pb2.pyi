from google.protobuf import timestamp_pb2 as _timestamp_pb2
from semanticrecall.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatsRequest(_message.Message):
    __slots__ = ("resource_id",)
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    def __init__(self, resource_id: _Optional[str] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("messages", "vectors", "pending", "threads", "resources", "disk_bytes", "resident_bytes", "partitions_loaded", "cache", "index_identity", "device", "server_version", "uptime_seconds", "snapshots", "lexical_partitions_loaded", "lexical_bytes")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_LOADED_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    INDEX_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    LEXICAL_PARTITIONS_LOADED_FIELD_NUMBER: _ClassVar[int]
    LEXICAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    vectors: int
    pending: int
    threads: int
    resources: int
    disk_bytes: int
    resident_bytes: int
    partitions_loaded: int
    cache: CacheStats
    index_identity: str
    device: str
    server_version: str
    uptime_seconds: float
    snapshots: SnapshotStats
    lexical_partitions_loaded: int
    lexical_bytes: int
    def __init__(self, messages: _Optional[int] = ..., vectors: _Optional[int] = ..., pending: _Optional[int] = ..., threads: _Optional[int] = ..., resources: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., partitions_loaded: _Optional[int] = ..., cache: _Optional[_Union[CacheStats, _Mapping]] = ..., index_identity: _Optional[str] = ..., device: _Optional[str] = ..., server_version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., snapshots: _Optional[_Union[SnapshotStats, _Mapping]] = ..., lexical_partitions_loaded: _Optional[int] = ..., lexical_bytes: _Optional[int] = ...) -> None: ...

class SnapshotStats(_message.Message):
    __slots__ = ("files", "bytes", "partitions", "rows", "damaged", "failures")
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    files: int
    bytes: int
    partitions: int
    rows: int
    damaged: int
    failures: int
    def __init__(self, files: _Optional[int] = ..., bytes: _Optional[int] = ..., partitions: _Optional[int] = ..., rows: _Optional[int] = ..., damaged: _Optional[int] = ..., failures: _Optional[int] = ...) -> None: ...

class CacheStats(_message.Message):
    __slots__ = ("entries", "bytes", "hits", "misses", "evictions", "hit_ratio", "disk_entries", "disk_bytes", "disk_hits", "disk_evictions", "disk_damaged")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    HIT_RATIO_FIELD_NUMBER: _ClassVar[int]
    DISK_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_HITS_FIELD_NUMBER: _ClassVar[int]
    DISK_EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    DISK_DAMAGED_FIELD_NUMBER: _ClassVar[int]
    entries: int
    bytes: int
    hits: int
    misses: int
    evictions: int
    hit_ratio: float
    disk_entries: int
    disk_bytes: int
    disk_hits: int
    disk_evictions: int
    disk_damaged: int
    def __init__(self, entries: _Optional[int] = ..., bytes: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., evictions: _Optional[int] = ..., hit_ratio: _Optional[float] = ..., disk_entries: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., disk_hits: _Optional[int] = ..., disk_evictions: _Optional[int] = ..., disk_damaged: _Optional[int] = ...) -> None: ...

class CreateSnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("name", "create_time", "bytes", "messages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    create_time: _timestamp_pb2.Timestamp
    bytes: int
    messages: int
    def __init__(self, name: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., bytes: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class CreateSnapshotResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("resource_id",)
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    def __init__(self, resource_id: _Optional[str] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("finding", "summary")
    FINDING_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    finding: Finding
    summary: VerifySummary
    def __init__(self, finding: _Optional[_Union[Finding, _Mapping]] = ..., summary: _Optional[_Union[VerifySummary, _Mapping]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("kind", "resource_id", "message_id", "detail")
    KIND_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    resource_id: str
    message_id: str
    detail: str
    def __init__(self, kind: _Optional[str] = ..., resource_id: _Optional[str] = ..., message_id: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class VerifySummary(_message.Message):
    __slots__ = ("messages", "vectors", "findings")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    messages: int
    vectors: int
    findings: int
    def __init__(self, messages: _Optional[int] = ..., vectors: _Optional[int] = ..., findings: _Optional[int] = ...) -> None: ...

class ReembedRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReembedResponse(_message.Message):
    __slots__ = ("done", "total")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    done: int
    total: int
    def __init__(self, done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("resource_id",)
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    def __init__(self, resource_id: _Optional[str] = ...) -> None: ...

class ExportResponse(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: _types_pb2.Message
    def __init__(self, message: _Optional[_Union[_types_pb2.Message, _Mapping]] = ...) -> None: ...
