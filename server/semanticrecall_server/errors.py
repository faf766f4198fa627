"""The error table: what the engine raises, and what a caller sees.

| raised | gRPC code |
|---|---|
| InvalidArgumentError | INVALID_ARGUMENT, with google.rpc.BadRequest |
| UnauthenticatedError | UNAUTHENTICATED |
| NotFoundError | NOT_FOUND |
| AlreadyExistsError | ALREADY_EXISTS |
| FailedPreconditionError and its kinds | FAILED_PRECONDITION |
| ResourceExhaustedError, MemoryError | RESOURCE_EXHAUSTED, with google.rpc.RetryInfo |
| LimitReachedError | RESOURCE_EXHAUSTED: asking again is no use |
| DeadlineExceededError | DEADLINE_EXCEEDED |
| CancelledError | CANCELLED |
| UnavailableError, EmbeddingFailedError | UNAVAILABLE, with google.rpc.RetryInfo where known |
| UnimplementedError | UNIMPLEMENTED |
| CorruptDataError | DATA_LOSS |
| anything else | INTERNAL: an error id, and the log line that carries it |

Every error travels three times: as status message, as google.rpc.Status (with ErrorInfo, whose
domain is "semanticrecall") in `grpc-status-details-bin`, and as `ErrorDetail` in
`semanticrecall-error-bin`. Peers drop trailers above 8 KiB, so all three are bounded.
"""

from __future__ import annotations

import secrets
import traceback
from functools import lru_cache
from pathlib import PurePath

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from semanticrecall.v1 import types_pb2
from semanticrecall_core.types.errors import (
    AlreadyExistsError,
    CancelledError,
    CorruptDataError,
    DeadlineExceededError,
    EmbeddingFailedError,
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
    UnimplementedError,
)

from .logs import Logger

ERROR_DOMAIN = "semanticrecall"
STATUS_DETAILS_KEY = "grpc-status-details-bin"
ERROR_DETAIL_KEY = "semanticrecall-error-bin"
MESSAGE_CHARS_MAX = 1000
VIOLATIONS_BYTES_MAX = 1600
_FRAMES_LOGGED_MAX = 12


class UnauthenticatedError(SemanticRecallError):
    """Raised when tokens are configured and none, or a wrong one, was sent."""

    default_reason = "UNAUTHENTICATED"


class AnswerTooLargeError(ResourceExhaustedError):
    """Raised when an answer would be larger than `--answer-bytes-max`; asking again is no use."""

    default_reason = "ANSWER_TOO_LARGE"
    retryable = False


class InternalError(SemanticRecallError):
    """Stands for an exception that nobody expected; carries an id and nothing else of it."""

    default_reason = "INTERNAL"


_CODES: dict[type[SemanticRecallError], grpc.StatusCode] = {
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    FailedPreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    CancelledError: grpc.StatusCode.CANCELLED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    EmbeddingFailedError: grpc.StatusCode.UNAVAILABLE,
    UnimplementedError: grpc.StatusCode.UNIMPLEMENTED,
    CorruptDataError: grpc.StatusCode.DATA_LOSS,
    InternalError: grpc.StatusCode.INTERNAL,
}


def status_code(error: SemanticRecallError) -> grpc.StatusCode:
    """The code of an error: its own class's, or the nearest base class's."""
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return grpc.StatusCode.INTERNAL


def known_error(error: BaseException, log: Logger) -> SemanticRecallError:
    """The error a caller may see for anything that was raised.

    An unexpected exception is logged with an id, its type and the places it passed; its text
    goes nowhere, since it may hold what users wrote.
    """
    if isinstance(error, SemanticRecallError):
        return error
    if isinstance(error, MemoryError):
        return ResourceExhaustedError(
            "the server is out of memory; ask for less, or later", reason="OUT_OF_MEMORY"
        )
    error_id = secrets.token_hex(8)
    log.error(
        "internal_error",
        error_id=error_id,
        exception=exception_name(error),
        at=code_places(error),
    )
    return InternalError(f"internal error; its id in the server's log is {error_id}")


def exception_name(error: BaseException) -> str:
    """Module and class of an exception."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"


def code_places(error: BaseException) -> list[str]:
    """`file:line function` of the innermost frames, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_LOGGED_MAX:]
    return [f"{PurePath(f.filename).name}:{f.lineno} {f.name}" for f in frames]


def error_detail(error: SemanticRecallError) -> types_pb2.ErrorDetail:
    """The error as a message of ours."""
    return types_pb2.ErrorDetail(
        code=status_code(error).value[0],
        message=_shortened(error.message),
        reason=error.reason,
        field_violations=[
            types_pb2.FieldViolation(field=v.field, description=v.description)
            for v in _violations(error)
        ],
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
    )


def rich_status(error: SemanticRecallError) -> status_pb2.Status:
    """The error as google.rpc.Status."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    details = [_packed(info)]
    violations = _violations(error)
    if violations:
        bad = error_details_pb2.BadRequest()
        for violation in violations:
            bad.field_violations.add(field=violation.field, description=violation.description)
        details.append(_packed(bad))
    if error.retryable and error.retry_after_ms > 0:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(
        code=status_code(error).value[0], message=_shortened(error.message), details=details
    )


def trailers(error: SemanticRecallError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata of a failed call."""
    if type(error) is ResourceExhaustedError:
        return _refusal_trailers(error.message, error.reason, error.retry_after_ms)
    return _encoded(error)


@lru_cache(maxsize=256)
def _refusal_trailers(
    message: str, reason: str, retry_after_ms: int
) -> tuple[tuple[str, bytes], ...]:
    """In a flood thousands of calls are refused with the same few words."""
    return _encoded(ResourceExhaustedError(message, reason=reason, retry_after_ms=retry_after_ms))


def _encoded(error: SemanticRecallError) -> tuple[tuple[str, bytes], ...]:
    return (
        (STATUS_DETAILS_KEY, rich_status(error).SerializeToString()),
        (ERROR_DETAIL_KEY, error_detail(error).SerializeToString()),
    )


async def abort(
    context: grpc.aio.ServicerContext[bytes, bytes], error: SemanticRecallError
) -> None:
    """End the call with this error. Never returns normally."""
    await context.abort(status_code(error), _shortened(error.message), trailers(error))


def _packed(message: error_details_pb2.BadRequest | object) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)  # type: ignore[arg-type]
    return packed


def _violations(error: SemanticRecallError) -> list[FieldViolation]:
    """The fields at fault, as many as fit into a trailer."""
    if not isinstance(error, InvalidArgumentError):
        return []
    kept: list[FieldViolation] = []
    room = VIOLATIONS_BYTES_MAX
    for violation in error.violations:
        room -= len(violation.field.encode()) + len(violation.description.encode()) + 8
        if kept and room < 0:
            break
        kept.append(violation)
    return kept


def _shortened(text: str) -> str:
    if len(text) <= MESSAGE_CHARS_MAX:
        return text
    return text[: MESSAGE_CHARS_MAX - 3] + "..."
