"""The error table: what a call can raise, and the one place where it is made.

gRPC's own exceptions never leave this package. Every error tells what is wrong and how to mend
it (`str(error)`), a stable `reason`, whether the same request can succeed later (`retryable`), and
when (`retry_after_seconds`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import grpc
from google.protobuf.message import DecodeError

from .v1 import types_pb2

ERROR_TRAILER = "semanticrecall-error-bin"
UNREACHABLE = "UNREACHABLE"
NO_CONNECTION = "NO_CONNECTION"
CLIENT_CLOSED = "CLIENT_CLOSED"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field at fault: its path (`messages[2].text`) and what is wrong and allowed."""

    field: str
    description: str


class SemanticRecallError(Exception):
    """Base of all errors of this package.

    Attributes:
        message: what is wrong and how to mend it; never holds text of a message or a query.
        reason: a stable word in UPPER_SNAKE_CASE.
        retryable: whether the same request can succeed later.
        retry_after_seconds: how long to wait before that; 0.0 is no advice.
    """

    default_reason = "ERROR"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        retryable: bool = False,
        retry_after_seconds: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds


class InvalidArgumentError(SemanticRecallError, ValueError):
    """Raised when a field breaks its documented limit (INVALID_ARGUMENT).

    Attributes:
        violations: every field at fault.
    """

    default_reason = "FIELD_INVALID"
    violations: tuple[FieldViolation, ...] = ()

    @classmethod
    def of(cls, field: str, description: str) -> InvalidArgumentError:
        """One field at fault."""
        error = cls(f"{field}: {description}")
        error.violations = (FieldViolation(field, description),)
        return error


class NotFoundError(SemanticRecallError, LookupError):
    """Raised when something is not there for this resource (NOT_FOUND).

    What belongs to another resource looks the same as what never was.
    """

    default_reason = "NOT_FOUND"


class AlreadyExistsError(SemanticRecallError):
    """Raised when an id is taken at the place it would move to (ALREADY_EXISTS)."""

    default_reason = "ALREADY_EXISTS"


class FailedPreconditionError(SemanticRecallError):
    """Raised when the store or the model is not in the state the call needs.

    Examples (FAILED_PRECONDITION): a vector of another model, a read token of another store, a
    restore into a store that holds messages ("STORE_NOT_EMPTY"), a re-embedding without a next
    model ("NO_NEXT_MODEL").
    """

    default_reason = "FAILED_PRECONDITION"


class DataLossError(SemanticRecallError):
    """Raised when stored data is damaged beyond mending, a snapshot say (DATA_LOSS).

    Nothing of it was taken. A `recall` of a client that fails open does not raise it.
    """

    default_reason = "DATA_LOSS"


class ResourceExhaustedError(SemanticRecallError):
    """Raised when a queue, a limit or the disk is full (RESOURCE_EXHAUSTED). Nothing was done.

    `retry_after_seconds` says when to come back.
    """

    default_reason = "RESOURCE_EXHAUSTED"


class DeadlineExceededError(SemanticRecallError, TimeoutError):
    """Raised when the call's timeout passed before the answer was there (DEADLINE_EXCEEDED)."""

    default_reason = "DEADLINE_EXCEEDED"


class UnavailableError(SemanticRecallError, ConnectionError):
    """Raised when the sidecar cannot be reached, is starting or is draining (UNAVAILABLE).

    `reason` is "UNREACHABLE" where nothing answered at the address, and "NO_CONNECTION" where
    something listens there, but no connection came about (TLS on one side only, say).
    """

    default_reason = "UNAVAILABLE"


class UnauthenticatedError(SemanticRecallError):
    """Raised when the server wants a token and got none, or a wrong one (UNAUTHENTICATED)."""

    default_reason = "UNAUTHENTICATED"


class PermissionDeniedError(SemanticRecallError):
    """Raised when the token is known but may not do this (PERMISSION_DENIED)."""

    default_reason = "PERMISSION_DENIED"


class UnimplementedError(SemanticRecallError):
    """Raised for a part of the contract that this server does not have (UNIMPLEMENTED)."""

    default_reason = "UNIMPLEMENTED"


class CancelledError(SemanticRecallError):
    """Raised when the call was cancelled, e.g. by closing the client (CANCELLED).

    `reason` is "CLIENT_CLOSED" where the client was closed before the call.
    """

    default_reason = "CANCELLED"


class InternalError(SemanticRecallError):
    """Raised when the server failed in a way it did not foresee (INTERNAL and all other codes).

    Attributes:
        error_id: what to look for in the server's log; "" if it sent none.
    """

    default_reason = "INTERNAL"
    error_id: str = ""


_CLASSES: dict[int, type[SemanticRecallError]] = {
    1: CancelledError,
    3: InvalidArgumentError,
    4: DeadlineExceededError,
    5: NotFoundError,
    6: AlreadyExistsError,
    7: PermissionDeniedError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    12: UnimplementedError,
    14: UnavailableError,
    15: DataLossError,
    16: UnauthenticatedError,
}
_DEADLINE_EXCEEDED = 4
_UNAVAILABLE = 14
# "internal error; its id in the server's log is 0123456789abcdef"
_ERROR_ID = re.compile(r"\bid\b[^.]*\b([0-9a-f]{16})\b")

# What a caller who fails open goes on after; anything else is a mistake to be mended.
FAIL_OPEN_ERRORS = (
    UnavailableError,
    DeadlineExceededError,
    ResourceExhaustedError,
    DataLossError,
)


def error_from_detail(detail: types_pb2.ErrorDetail) -> SemanticRecallError:
    """The error that an ErrorDetail stands for."""
    error = _CLASSES.get(detail.code, InternalError)(
        detail.message,
        reason=detail.reason,
        retryable=detail.retryable,
        retry_after_seconds=detail.retry_after_ms / 1000,
    )
    if isinstance(error, InvalidArgumentError):
        error.violations = tuple(
            FieldViolation(v.field, v.description) for v in detail.field_violations
        )
    if isinstance(error, InternalError):
        found = _ERROR_ID.search(detail.message)
        error.error_id = found.group(1) if found else ""
    return error


class EndedCall(Protocol):
    """What a failed call of grpc and of grpc.aio have in common."""

    def code(self) -> grpc.StatusCode:
        """Its status."""
        ...

    def details(self) -> str | None:
        """What grpc or the server said."""
        ...

    def trailing_metadata(self) -> Iterable[Sequence[str | bytes]] | None:
        """Its trailers."""
        ...


def error_from_call(failure: grpc.RpcError, address: str) -> SemanticRecallError:
    """The error that a failed call stands for.

    The server's own words (the trailer `semanticrecall-error-bin`) come first; without them the
    failure is the transport's.
    """
    call = cast("EndedCall", failure)
    for entry in call.trailing_metadata() or ():
        key, value = entry[0], entry[1]
        if key == ERROR_TRAILER and isinstance(value, bytes):
            try:
                return error_from_detail(types_pb2.ErrorDetail.FromString(value))
            except DecodeError:
                break
    code = call.code().value[0]
    return _transport_error(code, call.details() or "", address)


def is_silence(failure: grpc.RpcError) -> bool:
    """Whether a call that waited for a connection got none, rather than an answer of any kind."""
    return cast("EndedCall", failure).code().value[0] in (_DEADLINE_EXCEEDED, _UNAVAILABLE)


def unreachable(address: str) -> UnavailableError:
    """What a client raises when nothing answers at its address."""
    return UnavailableError(
        f"no sidecar answers at {address}; start one with `semanticrecall serve`, "
        "or name another address (SEMANTICRECALL_ADDRESS)",
        reason=UNREACHABLE,
        retryable=True,
    )


def no_connection(address: str) -> UnavailableError:
    """What a client raises when something listens at its address, but is not to be talked to."""
    return UnavailableError(
        f"something listens at {address}, but no connection came about: if the sidecar uses TLS, "
        "pass tls=Tls(ca_file=...) with the authority of its certificate; if not, pass no tls; "
        "or is it another program?",
        reason=NO_CONNECTION,
        retryable=True,
    )


def client_closed() -> CancelledError:
    """What a client raises when it is called after `close`."""
    return CancelledError("this client is closed; make a new one", reason=CLIENT_CLOSED)


def _transport_error(code: int, details: str, address: str) -> SemanticRecallError:
    if code == _UNAVAILABLE:
        return unreachable(address)
    if code == _DEADLINE_EXCEEDED:
        return DeadlineExceededError(
            f"no answer from {address} within the timeout; give the call more time", retryable=True
        )
    error_class = _CLASSES.get(code, InternalError)
    return error_class(details or f"the call to {address} failed")
