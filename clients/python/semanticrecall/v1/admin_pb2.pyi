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
    __slots__ = ("messages", "vectors", "pending", "threads", "resources", "disk_bytes", "resident_bytes", "partitions_loaded", "cache", "index_identity", "device", "server_version", "uptime_seconds", "snapshots", "lexical_partitions_loaded", "lexical_bytes", "next_index_identity", "next_embedded", "expired", "purge_pending", "damaged", "encrypted")
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
    NEXT_INDEX_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NEXT_EMBEDDED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    PURGE_PENDING_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
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
    next_index_identity: str
    next_embedded: int
    expired: int
    purge_pending: bool
    damaged: int
    encrypted: bool
    def __init__(self, messages: _Optional[int] = ..., vectors: _Optional[int] = ..., pending: _Optional[int] = ..., threads: _Optional[int] = ..., resources: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., partitions_loaded: _Optional[int] = ..., cache: _Optional[_Union[CacheStats, _Mapping]] = ..., index_identity: _Optional[str] = ..., device: _Optional[str] = ..., server_version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., snapshots: _Optional[_Union[SnapshotStats, _Mapping]] = ..., lexical_partitions_loaded: _Optional[int] = ..., lexical_bytes: _Optional[int] = ..., next_index_identity: _Optional[str] = ..., next_embedded: _Optional[int] = ..., expired: _Optional[int] = ..., purge_pending: bool = ..., damaged: _Optional[int] = ..., encrypted: bool = ...) -> None: ...

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
    __slots__ = ("partitions_only",)
    PARTITIONS_ONLY_FIELD_NUMBER: _ClassVar[int]
    partitions_only: bool
    def __init__(self, partitions_only: bool = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("name", "create_time", "bytes", "messages", "vectors", "revision", "digest", "index_identity", "server_version", "format", "encrypted", "forgotten")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    INDEX_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    create_time: _timestamp_pb2.Timestamp
    bytes: int
    messages: int
    vectors: int
    revision: int
    digest: str
    index_identity: str
    server_version: str
    format: int
    encrypted: bool
    forgotten: int
    def __init__(self, name: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., bytes: _Optional[int] = ..., messages: _Optional[int] = ..., vectors: _Optional[int] = ..., revision: _Optional[int] = ..., digest: _Optional[str] = ..., index_identity: _Optional[str] = ..., server_version: _Optional[str] = ..., format: _Optional[int] = ..., encrypted: bool = ..., forgotten: _Optional[int] = ...) -> None: ...

class CreateSnapshotResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots", "left_out")
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    left_out: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ..., left_out: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteSnapshotRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreSnapshotRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RestoreSnapshotResponse(_message.Message):
    __slots__ = ("messages", "vectors", "forgotten", "without_ledger")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_LEDGER_FIELD_NUMBER: _ClassVar[int]
    messages: int
    vectors: int
    forgotten: int
    without_ledger: bool
    def __init__(self, messages: _Optional[int] = ..., vectors: _Optional[int] = ..., forgotten: _Optional[int] = ..., without_ledger: bool = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("revision", "snapshots_rewritten", "snapshots_holding")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_REWRITTEN_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_HOLDING_FIELD_NUMBER: _ClassVar[int]
    revision: int
    snapshots_rewritten: _containers.RepeatedScalarFieldContainer[str]
    snapshots_holding: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, revision: _Optional[int] = ..., snapshots_rewritten: _Optional[_Iterable[str]] = ..., snapshots_holding: _Optional[_Iterable[str]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("resource_id", "repair")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    repair: bool
    def __init__(self, resource_id: _Optional[str] = ..., repair: bool = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("finding", "summary", "progress")
    FINDING_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    finding: Finding
    summary: VerifySummary
    progress: VerifyProgress
    def __init__(self, finding: _Optional[_Union[Finding, _Mapping]] = ..., summary: _Optional[_Union[VerifySummary, _Mapping]] = ..., progress: _Optional[_Union[VerifyProgress, _Mapping]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("kind", "resource_id", "message_id", "detail", "repaired")
    KIND_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    resource_id: str
    message_id: str
    detail: str
    repaired: bool
    def __init__(self, kind: _Optional[str] = ..., resource_id: _Optional[str] = ..., message_id: _Optional[str] = ..., detail: _Optional[str] = ..., repaired: bool = ...) -> None: ...

class VerifyProgress(_message.Message):
    __slots__ = ("stage", "done", "total")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    stage: str
    done: int
    total: int
    def __init__(self, stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class VerifySummary(_message.Message):
    __slots__ = ("messages", "vectors", "findings", "repaired", "analyses", "images", "snapshots", "self_test_recalls", "self_test_failures", "lost")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    ANALYSES_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    SELF_TEST_RECALLS_FIELD_NUMBER: _ClassVar[int]
    SELF_TEST_FAILURES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    messages: int
    vectors: int
    findings: int
    repaired: int
    analyses: int
    images: int
    snapshots: int
    self_test_recalls: int
    self_test_failures: int
    lost: int
    def __init__(self, messages: _Optional[int] = ..., vectors: _Optional[int] = ..., findings: _Optional[int] = ..., repaired: _Optional[int] = ..., analyses: _Optional[int] = ..., images: _Optional[int] = ..., snapshots: _Optional[int] = ..., self_test_recalls: _Optional[int] = ..., self_test_failures: _Optional[int] = ..., lost: _Optional[int] = ...) -> None: ...

class ReembedRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReembedResponse(_message.Message):
    __slots__ = ("done", "total", "from_index_identity", "to_index_identity", "complete")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FROM_INDEX_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TO_INDEX_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    done: int
    total: int
    from_index_identity: str
    to_index_identity: str
    complete: bool
    def __init__(self, done: _Optional[int] = ..., total: _Optional[int] = ..., from_index_identity: _Optional[str] = ..., to_index_identity: _Optional[str] = ..., complete: bool = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("resource_id", "with_vectors")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    WITH_VECTORS_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    with_vectors: bool
    def __init__(self, resource_id: _Optional[str] = ..., with_vectors: bool = ...) -> None: ...

class ExportResponse(_message.Message):
    __slots__ = ("message", "vectors")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    message: _types_pb2.Message
    vectors: _types_pb2.MessageVectors
    def __init__(self, message: _Optional[_Union[_types_pb2.Message, _Mapping]] = ..., vectors: _Optional[_Union[_types_pb2.MessageVectors, _Mapping]] = ...) -> None: ...
