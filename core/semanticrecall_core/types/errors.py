"""Every error the engine raises on purpose.

Promise: no error ever holds message text, a query, an id of another resource or a token. The
server maps these classes to gRPC codes in one table (`semanticrecall_server.errors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field at fault: its path (`messages[2].text`) and what is wrong and allowed."""

    field: str
    description: str


class SemanticRecallError(Exception):
    """Base of all errors below.

    Attributes:
        message: one sentence: what is wrong and how to mend it.
        reason: a stable word in UPPER_SNAKE_CASE.
        retryable: whether the same request can succeed later.
        retry_after_ms: how long to wait before that; 0 is no advice.
    """

    default_reason = "ERROR"
    retryable = False

    def __init__(self, message: str, *, reason: str = "", retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.retry_after_ms = retry_after_ms


class InvalidArgumentError(SemanticRecallError):
    """Raised when a field breaks its documented limit. Names every field at fault."""

    default_reason = "FIELD_INVALID"

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = tuple(violations)

    @classmethod
    def of(cls, field: str, description: str) -> InvalidArgumentError:
        """Shorthand for one field at fault."""
        return cls((FieldViolation(field, description),))


class NotFoundError(SemanticRecallError):
    """Raised when something is not there for this resource; foreign and unknown look alike."""

    default_reason = "NOT_FOUND"


class AlreadyExistsError(SemanticRecallError):
    """Raised when an id is taken at the place it would move to."""

    default_reason = "ALREADY_EXISTS"


class FailedPreconditionError(SemanticRecallError):
    """Raised when the store or the model is not in the state the call needs."""

    default_reason = "FAILED_PRECONDITION"


class ModelUnavailableError(FailedPreconditionError):
    """Raised when the embedding model is missing, damaged or cannot run on the device asked."""

    default_reason = "MODEL_UNAVAILABLE"


class StoreLockedError(FailedPreconditionError):
    """Raised when another process holds the data directory; names its pid."""

    default_reason = "DATA_DIRECTORY_LOCKED"


class UnsafeEnvironmentError(FailedPreconditionError):
    """Raised at start for a set-up that would lose data or guards (`-O`, network disk, ...)."""

    default_reason = "UNSAFE_ENVIRONMENT"


class ResourceExhaustedError(SemanticRecallError):
    """Raised when a queue, a limit in flight or the disk is full. Nothing was done."""

    default_reason = "QUEUE_FULL"
    retryable = True

    def __init__(self, message: str, *, reason: str = "", retry_after_ms: int = 200) -> None:
        super().__init__(message, reason=reason, retry_after_ms=retry_after_ms)


class LimitReachedError(ResourceExhaustedError):
    """Raised when as much is kept as is allowed; asking again is no use until some is removed."""

    default_reason = "LIMIT_REACHED"
    retryable = False

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message, reason=reason, retry_after_ms=0)


class DeadlineExceededError(SemanticRecallError):
    """Raised when the caller's deadline passed before the work was done."""

    default_reason = "DEADLINE_EXCEEDED"
    retryable = True


class CancelledError(SemanticRecallError):
    """Raised when the caller went away; the work stops at the next stage."""

    default_reason = "CANCELLED"


class UnavailableError(SemanticRecallError):
    """Raised while starting, draining, or after the store stopped accepting writes."""

    default_reason = "UNAVAILABLE"
    retryable = True

    def __init__(self, message: str, *, reason: str = "", retry_after_ms: int = 500) -> None:
        super().__init__(message, reason=reason, retry_after_ms=retry_after_ms)


class UnimplementedError(SemanticRecallError):
    """Raised for a part of the contract that this version does not have."""

    default_reason = "UNIMPLEMENTED"


class EmbeddingFailedError(SemanticRecallError):
    """Raised when the model gave no usable vector (NaN, zero, wrong shape) or could not run."""

    default_reason = "EMBEDDING_FAILED"
    retryable = True


class CorruptDataError(SemanticRecallError):
    """Raised when something read back does not match its checksum. It is never served."""

    default_reason = "CORRUPT_DATA"
