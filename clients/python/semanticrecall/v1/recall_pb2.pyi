from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from semanticrecall.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExcludedReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXCLUDED_REASON_UNSPECIFIED: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_TOP_K: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_BELOW_THRESHOLD: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_NO_VECTOR: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_NEAR_DUPLICATE: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_DIVERSITY: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_TOKENS: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_ANSWER_SIZE: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_CONDITIONS: _ClassVar[ExcludedReason]
    EXCLUDED_REASON_CHANGED: _ClassVar[ExcludedReason]

class WhyEmpty(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WHY_EMPTY_UNSPECIFIED: _ClassVar[WhyEmpty]
    WHY_EMPTY_NO_QUERY: _ClassVar[WhyEmpty]
    WHY_EMPTY_NO_MESSAGES: _ClassVar[WhyEmpty]
    WHY_EMPTY_FILTERED: _ClassVar[WhyEmpty]
    WHY_EMPTY_BELOW_THRESHOLD: _ClassVar[WhyEmpty]
    WHY_EMPTY_NO_WORDS: _ClassVar[WhyEmpty]

class EmbedRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMBED_ROLE_UNSPECIFIED: _ClassVar[EmbedRole]
    EMBED_ROLE_QUERY: _ClassVar[EmbedRole]
    EMBED_ROLE_PASSAGE: _ClassVar[EmbedRole]
EXCLUDED_REASON_UNSPECIFIED: ExcludedReason
EXCLUDED_REASON_TOP_K: ExcludedReason
EXCLUDED_REASON_BELOW_THRESHOLD: ExcludedReason
EXCLUDED_REASON_NO_VECTOR: ExcludedReason
EXCLUDED_REASON_NEAR_DUPLICATE: ExcludedReason
EXCLUDED_REASON_DIVERSITY: ExcludedReason
EXCLUDED_REASON_TOKENS: ExcludedReason
EXCLUDED_REASON_ANSWER_SIZE: ExcludedReason
EXCLUDED_REASON_CONDITIONS: ExcludedReason
EXCLUDED_REASON_CHANGED: ExcludedReason
WHY_EMPTY_UNSPECIFIED: WhyEmpty
WHY_EMPTY_NO_QUERY: WhyEmpty
WHY_EMPTY_NO_MESSAGES: WhyEmpty
WHY_EMPTY_FILTERED: WhyEmpty
WHY_EMPTY_BELOW_THRESHOLD: WhyEmpty
WHY_EMPTY_NO_WORDS: WhyEmpty
EMBED_ROLE_UNSPECIFIED: EmbedRole
EMBED_ROLE_QUERY: EmbedRole
EMBED_ROLE_PASSAGE: EmbedRole

class MessageRange(_message.Message):
    __slots__ = ("before", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: int
    after: int
    def __init__(self, before: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class Ranking(_message.Message):
    __slots__ = ("mode", "recency_weight", "recency_half_life", "diversity", "near_duplicate_cosine")
    MODE_FIELD_NUMBER: _ClassVar[int]
    RECENCY_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    RECENCY_HALF_LIFE_FIELD_NUMBER: _ClassVar[int]
    DIVERSITY_FIELD_NUMBER: _ClassVar[int]
    NEAR_DUPLICATE_COSINE_FIELD_NUMBER: _ClassVar[int]
    mode: _types_pb2.Mode
    recency_weight: float
    recency_half_life: _duration_pb2.Duration
    diversity: float
    near_duplicate_cosine: float
    def __init__(self, mode: _Optional[_Union[_types_pb2.Mode, str]] = ..., recency_weight: _Optional[float] = ..., recency_half_life: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., diversity: _Optional[float] = ..., near_duplicate_cosine: _Optional[float] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("request_id", "resource_id", "thread_id", "scope", "query", "alternative_queries", "query_embedding", "top_k", "message_range", "threshold", "filter", "roles", "create_time_from", "create_time_to", "exclude_message_ids", "ranking", "max_tokens", "context_format", "time_zone", "explain", "read_token", "timeout_ms", "context_other_threads_only")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    QUERY_EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_RANGE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FROM_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_TO_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    RANKING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    READ_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_OTHER_THREADS_ONLY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    resource_id: str
    thread_id: str
    scope: _types_pb2.Scope
    query: str
    alternative_queries: _containers.RepeatedScalarFieldContainer[str]
    query_embedding: _containers.RepeatedScalarFieldContainer[float]
    top_k: int
    message_range: MessageRange
    threshold: float
    filter: _struct_pb2.Struct
    roles: _containers.RepeatedScalarFieldContainer[_types_pb2.Role]
    create_time_from: _timestamp_pb2.Timestamp
    create_time_to: _timestamp_pb2.Timestamp
    exclude_message_ids: _containers.RepeatedScalarFieldContainer[str]
    ranking: Ranking
    max_tokens: int
    context_format: _types_pb2.ContextFormat
    time_zone: str
    explain: bool
    read_token: str
    timeout_ms: int
    context_other_threads_only: bool
    def __init__(self, request_id: _Optional[str] = ..., resource_id: _Optional[str] = ..., thread_id: _Optional[str] = ..., scope: _Optional[_Union[_types_pb2.Scope, str]] = ..., query: _Optional[str] = ..., alternative_queries: _Optional[_Iterable[str]] = ..., query_embedding: _Optional[_Iterable[float]] = ..., top_k: _Optional[int] = ..., message_range: _Optional[_Union[MessageRange, _Mapping]] = ..., threshold: _Optional[float] = ..., filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[_types_pb2.Role, str]]] = ..., create_time_from: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., create_time_to: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., exclude_message_ids: _Optional[_Iterable[str]] = ..., ranking: _Optional[_Union[Ranking, _Mapping]] = ..., max_tokens: _Optional[int] = ..., context_format: _Optional[_Union[_types_pb2.ContextFormat, str]] = ..., time_zone: _Optional[str] = ..., explain: bool = ..., read_token: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., context_other_threads_only: bool = ...) -> None: ...

class Explain(_message.Message):
    __slots__ = ("cosine", "dense_rank", "chunk", "chunks", "bm25", "bm25_in_context", "lexical_rank", "dense_part", "lexical_part", "neighbour_part", "author_part", "recency_part", "diversity_part")
    COSINE_FIELD_NUMBER: _ClassVar[int]
    DENSE_RANK_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    BM25_FIELD_NUMBER: _ClassVar[int]
    BM25_IN_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    LEXICAL_RANK_FIELD_NUMBER: _ClassVar[int]
    DENSE_PART_FIELD_NUMBER: _ClassVar[int]
    LEXICAL_PART_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOUR_PART_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_PART_FIELD_NUMBER: _ClassVar[int]
    RECENCY_PART_FIELD_NUMBER: _ClassVar[int]
    DIVERSITY_PART_FIELD_NUMBER: _ClassVar[int]
    cosine: float
    dense_rank: int
    chunk: int
    chunks: int
    bm25: float
    bm25_in_context: float
    lexical_rank: int
    dense_part: float
    lexical_part: float
    neighbour_part: float
    author_part: float
    recency_part: float
    diversity_part: float
    def __init__(self, cosine: _Optional[float] = ..., dense_rank: _Optional[int] = ..., chunk: _Optional[int] = ..., chunks: _Optional[int] = ..., bm25: _Optional[float] = ..., bm25_in_context: _Optional[float] = ..., lexical_rank: _Optional[int] = ..., dense_part: _Optional[float] = ..., lexical_part: _Optional[float] = ..., neighbour_part: _Optional[float] = ..., author_part: _Optional[float] = ..., recency_part: _Optional[float] = ..., diversity_part: _Optional[float] = ...) -> None: ...

class RecalledMessage(_message.Message):
    __slots__ = ("message", "hit", "score", "rank", "explain", "group_state", "relevance", "lexical_only", "text_cut")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    GROUP_STATE_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    LEXICAL_ONLY_FIELD_NUMBER: _ClassVar[int]
    TEXT_CUT_FIELD_NUMBER: _ClassVar[int]
    message: _types_pb2.Message
    hit: bool
    score: float
    rank: int
    explain: Explain
    group_state: _types_pb2.GroupState
    relevance: float
    lexical_only: bool
    text_cut: bool
    def __init__(self, message: _Optional[_Union[_types_pb2.Message, _Mapping]] = ..., hit: bool = ..., score: _Optional[float] = ..., rank: _Optional[int] = ..., explain: _Optional[_Union[Explain, _Mapping]] = ..., group_state: _Optional[_Union[_types_pb2.GroupState, str]] = ..., relevance: _Optional[float] = ..., lexical_only: bool = ..., text_cut: bool = ...) -> None: ...

class ExcludedCandidate(_message.Message):
    __slots__ = ("message_id", "thread_id", "reason", "rank", "relevance", "explain", "near_duplicate_of")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    NEAR_DUPLICATE_OF_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    thread_id: str
    reason: ExcludedReason
    rank: int
    relevance: float
    explain: Explain
    near_duplicate_of: str
    def __init__(self, message_id: _Optional[str] = ..., thread_id: _Optional[str] = ..., reason: _Optional[_Union[ExcludedReason, str]] = ..., rank: _Optional[int] = ..., relevance: _Optional[float] = ..., explain: _Optional[_Union[Explain, _Mapping]] = ..., near_duplicate_of: _Optional[str] = ...) -> None: ...

class RecallTimings(_message.Message):
    __slots__ = ("total_us", "queue_us", "embed_us", "search_us", "fetch_us", "render_us", "lexical_us")
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    EMBED_US_FIELD_NUMBER: _ClassVar[int]
    SEARCH_US_FIELD_NUMBER: _ClassVar[int]
    FETCH_US_FIELD_NUMBER: _ClassVar[int]
    RENDER_US_FIELD_NUMBER: _ClassVar[int]
    LEXICAL_US_FIELD_NUMBER: _ClassVar[int]
    total_us: int
    queue_us: int
    embed_us: int
    search_us: int
    fetch_us: int
    render_us: int
    lexical_us: int
    def __init__(self, total_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., embed_us: _Optional[int] = ..., search_us: _Optional[int] = ..., fetch_us: _Optional[int] = ..., render_us: _Optional[int] = ..., lexical_us: _Optional[int] = ...) -> None: ...

class RecallInfo(_message.Message):
    __slots__ = ("scope_used", "mode_used", "best_score", "why_empty", "query_truncated", "query_tokens", "cache_hit", "timings", "candidates", "searchable", "pending", "exact", "unknown_filter_keys", "index_identity", "absent_group_ids", "messages_dropped", "answer_cache_hit", "tokens", "context_tokens", "messages_dropped_for_tokens", "context_did_not_fit")
    SCOPE_USED_FIELD_NUMBER: _ClassVar[int]
    MODE_USED_FIELD_NUMBER: _ClassVar[int]
    BEST_SCORE_FIELD_NUMBER: _ClassVar[int]
    WHY_EMPTY_FIELD_NUMBER: _ClassVar[int]
    QUERY_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SEARCHABLE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FILTER_KEYS_FIELD_NUMBER: _ClassVar[int]
    INDEX_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ABSENT_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_CACHE_HIT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_DROPPED_FOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DID_NOT_FIT_FIELD_NUMBER: _ClassVar[int]
    scope_used: _types_pb2.Scope
    mode_used: _types_pb2.Mode
    best_score: float
    why_empty: WhyEmpty
    query_truncated: bool
    query_tokens: int
    cache_hit: bool
    timings: RecallTimings
    candidates: int
    searchable: int
    pending: int
    exact: bool
    unknown_filter_keys: _containers.RepeatedScalarFieldContainer[str]
    index_identity: str
    absent_group_ids: _containers.RepeatedScalarFieldContainer[str]
    messages_dropped: int
    answer_cache_hit: bool
    tokens: int
    context_tokens: int
    messages_dropped_for_tokens: int
    context_did_not_fit: bool
    def __init__(self, scope_used: _Optional[_Union[_types_pb2.Scope, str]] = ..., mode_used: _Optional[_Union[_types_pb2.Mode, str]] = ..., best_score: _Optional[float] = ..., why_empty: _Optional[_Union[WhyEmpty, str]] = ..., query_truncated: bool = ..., query_tokens: _Optional[int] = ..., cache_hit: bool = ..., timings: _Optional[_Union[RecallTimings, _Mapping]] = ..., candidates: _Optional[int] = ..., searchable: _Optional[int] = ..., pending: _Optional[int] = ..., exact: bool = ..., unknown_filter_keys: _Optional[_Iterable[str]] = ..., index_identity: _Optional[str] = ..., absent_group_ids: _Optional[_Iterable[str]] = ..., messages_dropped: _Optional[int] = ..., answer_cache_hit: bool = ..., tokens: _Optional[int] = ..., context_tokens: _Optional[int] = ..., messages_dropped_for_tokens: _Optional[int] = ..., context_did_not_fit: bool = ...) -> None: ...

class RecallResponse(_message.Message):
    __slots__ = ("request_id", "messages", "context_text", "info", "error", "excluded")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TEXT_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    messages: _containers.RepeatedCompositeFieldContainer[RecalledMessage]
    context_text: str
    info: RecallInfo
    error: _types_pb2.ErrorDetail
    excluded: _containers.RepeatedCompositeFieldContainer[ExcludedCandidate]
    def __init__(self, request_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[RecalledMessage, _Mapping]]] = ..., context_text: _Optional[str] = ..., info: _Optional[_Union[RecallInfo, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.ErrorDetail, _Mapping]] = ..., excluded: _Optional[_Iterable[_Union[ExcludedCandidate, _Mapping]]] = ...) -> None: ...

class IndexRequest(_message.Message):
    __slots__ = ("resource_id", "thread_id", "messages", "wait", "metadata", "vectors")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    thread_id: str
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.Message]
    wait: _types_pb2.Wait
    metadata: _struct_pb2.Struct
    vectors: _containers.RepeatedCompositeFieldContainer[_types_pb2.MessageVectors]
    def __init__(self, resource_id: _Optional[str] = ..., thread_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_types_pb2.Message, _Mapping]]] = ..., wait: _Optional[_Union[_types_pb2.Wait, str]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., vectors: _Optional[_Iterable[_Union[_types_pb2.MessageVectors, _Mapping]]] = ...) -> None: ...

class IndexResult(_message.Message):
    __slots__ = ("message_id", "status", "error")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    status: _types_pb2.Status
    error: _types_pb2.ErrorDetail
    def __init__(self, message_id: _Optional[str] = ..., status: _Optional[_Union[_types_pb2.Status, str]] = ..., error: _Optional[_Union[_types_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class IndexInfo(_message.Message):
    __slots__ = ("embeddings_computed", "embeddings_cached", "durable_us", "total_us")
    EMBEDDINGS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_CACHED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    embeddings_computed: int
    embeddings_cached: int
    durable_us: int
    total_us: int
    def __init__(self, embeddings_computed: _Optional[int] = ..., embeddings_cached: _Optional[int] = ..., durable_us: _Optional[int] = ..., total_us: _Optional[int] = ...) -> None: ...

class IndexResponse(_message.Message):
    __slots__ = ("results", "read_token", "info", "error")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    READ_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[IndexResult]
    read_token: str
    info: IndexInfo
    error: _types_pb2.ErrorDetail
    def __init__(self, results: _Optional[_Iterable[_Union[IndexResult, _Mapping]]] = ..., read_token: _Optional[str] = ..., info: _Optional[_Union[IndexInfo, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class MessageIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("resource_id", "message_ids", "thread_id", "everything", "create_time_before", "condition", "purge")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_BEFORE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    message_ids: MessageIds
    thread_id: str
    everything: bool
    create_time_before: _timestamp_pb2.Timestamp
    condition: ForgetCondition
    purge: bool
    def __init__(self, resource_id: _Optional[str] = ..., message_ids: _Optional[_Union[MessageIds, _Mapping]] = ..., thread_id: _Optional[str] = ..., everything: bool = ..., create_time_before: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., condition: _Optional[_Union[ForgetCondition, _Mapping]] = ..., purge: bool = ...) -> None: ...

class ForgetCondition(_message.Message):
    __slots__ = ("thread_id", "authors", "create_time_from", "create_time_to", "roles")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHORS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FROM_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_TO_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    authors: _containers.RepeatedScalarFieldContainer[str]
    create_time_from: _timestamp_pb2.Timestamp
    create_time_to: _timestamp_pb2.Timestamp
    roles: _containers.RepeatedScalarFieldContainer[_types_pb2.Role]
    def __init__(self, thread_id: _Optional[str] = ..., authors: _Optional[_Iterable[str]] = ..., create_time_from: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., create_time_to: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[_types_pb2.Role, str]]] = ...) -> None: ...

class ForgetResponse(_message.Message):
    __slots__ = ("messages", "vectors", "threads", "cache_entries", "purged", "purge_due_time", "snapshots_holding")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    CACHE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    PURGE_DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_HOLDING_FIELD_NUMBER: _ClassVar[int]
    messages: int
    vectors: int
    threads: int
    cache_entries: int
    purged: bool
    purge_due_time: _timestamp_pb2.Timestamp
    snapshots_holding: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, messages: _Optional[int] = ..., vectors: _Optional[int] = ..., threads: _Optional[int] = ..., cache_entries: _Optional[int] = ..., purged: bool = ..., purge_due_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., snapshots_holding: _Optional[_Iterable[str]] = ...) -> None: ...

class ListMessagesRequest(_message.Message):
    __slots__ = ("resource_id", "thread_id", "page_size", "page_token", "newest_first", "create_time_from", "create_time_to", "roles")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FROM_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_TO_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    thread_id: str
    page_size: int
    page_token: str
    newest_first: bool
    create_time_from: _timestamp_pb2.Timestamp
    create_time_to: _timestamp_pb2.Timestamp
    roles: _containers.RepeatedScalarFieldContainer[_types_pb2.Role]
    def __init__(self, resource_id: _Optional[str] = ..., thread_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., newest_first: bool = ..., create_time_from: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., create_time_to: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[_types_pb2.Role, str]]] = ...) -> None: ...

class ListMessagesResponse(_message.Message):
    __slots__ = ("messages", "next_page_token")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.Message]
    next_page_token: str
    def __init__(self, messages: _Optional[_Iterable[_Union[_types_pb2.Message, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetMessagesRequest(_message.Message):
    __slots__ = ("resource_id", "message_ids")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resource_id: _Optional[str] = ..., message_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetMessagesResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[_types_pb2.Message, _Mapping]]] = ...) -> None: ...

class ListThreadsRequest(_message.Message):
    __slots__ = ("resource_id", "page_size", "page_token")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    page_size: int
    page_token: str
    def __init__(self, resource_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class Thread(_message.Message):
    __slots__ = ("thread_id", "messages", "first_create_time", "last_create_time")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    messages: int
    first_create_time: _timestamp_pb2.Timestamp
    last_create_time: _timestamp_pb2.Timestamp
    def __init__(self, thread_id: _Optional[str] = ..., messages: _Optional[int] = ..., first_create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., last_create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListThreadsResponse(_message.Message):
    __slots__ = ("threads", "next_page_token")
    THREADS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    threads: _containers.RepeatedCompositeFieldContainer[Thread]
    next_page_token: str
    def __init__(self, threads: _Optional[_Iterable[_Union[Thread, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TransferThreadRequest(_message.Message):
    __slots__ = ("resource_id", "thread_id", "to_resource_id")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    TO_RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    thread_id: str
    to_resource_id: str
    def __init__(self, resource_id: _Optional[str] = ..., thread_id: _Optional[str] = ..., to_resource_id: _Optional[str] = ...) -> None: ...

class TransferThreadResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("texts", "role")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    role: EmbedRole
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., role: _Optional[_Union[EmbedRole, str]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("values", "tokens", "truncated")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    tokens: int
    truncated: bool
    def __init__(self, values: _Optional[_Iterable[float]] = ..., tokens: _Optional[int] = ..., truncated: bool = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embeddings", "dimensions", "index_identity")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    INDEX_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    dimensions: int
    index_identity: str
    def __init__(self, embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., dimensions: _Optional[int] = ..., index_identity: _Optional[str] = ...) -> None: ...
