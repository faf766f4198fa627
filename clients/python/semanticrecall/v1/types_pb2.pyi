from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_TOOL: _ClassVar[Role]

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_UNSPECIFIED: _ClassVar[Scope]
    SCOPE_RESOURCE: _ClassVar[Scope]
    SCOPE_THREAD: _ClassVar[Scope]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_DENSE: _ClassVar[Mode]
    MODE_LEXICAL: _ClassVar[Mode]
    MODE_HYBRID: _ClassVar[Mode]

class ContextFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTEXT_FORMAT_UNSPECIFIED: _ClassVar[ContextFormat]
    CONTEXT_DEFAULT: _ClassVar[ContextFormat]
    CONTEXT_MASTRA: _ClassVar[ContextFormat]
    CONTEXT_NONE: _ClassVar[ContextFormat]

class Wait(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_UNSPECIFIED: _ClassVar[Wait]
    WAIT_SEARCHABLE: _ClassVar[Wait]
    WAIT_DURABLE: _ClassVar[Wait]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_INDEXED: _ClassVar[Status]
    STATUS_REPLACED: _ClassVar[Status]
    STATUS_UNCHANGED: _ClassVar[Status]
    STATUS_PENDING: _ClassVar[Status]
    STATUS_NOT_EMBEDDED: _ClassVar[Status]
    STATUS_REJECTED: _ClassVar[Status]

class GroupState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_STATE_UNSPECIFIED: _ClassVar[GroupState]
    GROUP_STATE_WHOLE: _ClassVar[GroupState]
    GROUP_STATE_HIT_ONLY: _ClassVar[GroupState]
ROLE_UNSPECIFIED: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
ROLE_SYSTEM: Role
ROLE_TOOL: Role
SCOPE_UNSPECIFIED: Scope
SCOPE_RESOURCE: Scope
SCOPE_THREAD: Scope
MODE_UNSPECIFIED: Mode
MODE_DENSE: Mode
MODE_LEXICAL: Mode
MODE_HYBRID: Mode
CONTEXT_FORMAT_UNSPECIFIED: ContextFormat
CONTEXT_DEFAULT: ContextFormat
CONTEXT_MASTRA: ContextFormat
CONTEXT_NONE: ContextFormat
WAIT_UNSPECIFIED: Wait
WAIT_SEARCHABLE: Wait
WAIT_DURABLE: Wait
STATUS_UNSPECIFIED: Status
STATUS_INDEXED: Status
STATUS_REPLACED: Status
STATUS_UNCHANGED: Status
STATUS_PENDING: Status
STATUS_NOT_EMBEDDED: Status
STATUS_REJECTED: Status
GROUP_STATE_UNSPECIFIED: GroupState
GROUP_STATE_WHOLE: GroupState
GROUP_STATE_HIT_ONLY: GroupState

class Message(_message.Message):
    __slots__ = ("id", "thread_id", "resource_id", "role", "author", "text", "create_time", "metadata", "payload", "payload_type", "group_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread_id: str
    resource_id: str
    role: Role
    author: str
    text: str
    create_time: _timestamp_pb2.Timestamp
    metadata: _struct_pb2.Struct
    payload: bytes
    payload_type: str
    group_id: str
    def __init__(self, id: _Optional[str] = ..., thread_id: _Optional[str] = ..., resource_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., author: _Optional[str] = ..., text: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., payload: _Optional[bytes] = ..., payload_type: _Optional[str] = ..., group_id: _Optional[str] = ...) -> None: ...

class MessageVectors(_message.Message):
    __slots__ = ("message_id", "index_identity", "data")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    index_identity: str
    data: bytes
    def __init__(self, message_id: _Optional[str] = ..., index_identity: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "reason", "field_violations", "retryable", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    reason: str
    field_violations: _containers.RepeatedCompositeFieldContainer[FieldViolation]
    retryable: bool
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., reason: _Optional[str] = ..., field_violations: _Optional[_Iterable[_Union[FieldViolation, _Mapping]]] = ..., retryable: bool = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class FieldViolation(_message.Message):
    __slots__ = ("field", "description")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    field: str
    description: str
    def __init__(self, field: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...
