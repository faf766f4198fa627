"""The error table: what the server raises is what a client gets, and nothing of grpc shows."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import grpc
import pytest

import semanticrecall as sr
from semanticrecall.errors import error_from_call
from semanticrecall.v1 import types_pb2
from semanticrecall_core.types import errors as raised
from semanticrecall_server import errors as table


class FailedCall(grpc.RpcError):
    """A call as grpc leaves it."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str | None = None,
        trailers: Iterable[tuple[str, str | bytes]] | None = (),
    ) -> None:
        super().__init__()
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        return self._trailers


def received(error: raised.SemanticRecallError) -> sr.SemanticRecallError:
    call = FailedCall(table.status_code(error), error.message, table.trailers(error))
    return error_from_call(call, "127.0.0.1:7650")


EXPECTED: dict[type[raised.SemanticRecallError], type[sr.SemanticRecallError]] = {
    raised.NotFoundError: sr.NotFoundError,
    raised.AlreadyExistsError: sr.AlreadyExistsError,
    raised.FailedPreconditionError: sr.FailedPreconditionError,
    raised.ModelUnavailableError: sr.FailedPreconditionError,
    raised.StoreLockedError: sr.FailedPreconditionError,
    raised.UnsafeEnvironmentError: sr.FailedPreconditionError,
    raised.ResourceExhaustedError: sr.ResourceExhaustedError,
    raised.LimitReachedError: sr.ResourceExhaustedError,
    raised.DeadlineExceededError: sr.DeadlineExceededError,
    raised.CancelledError: sr.CancelledError,
    raised.UnavailableError: sr.UnavailableError,
    raised.UnimplementedError: sr.UnimplementedError,
    raised.EmbeddingFailedError: sr.UnavailableError,
    raised.CorruptDataError: sr.DataLossError,
    table.UnauthenticatedError: sr.UnauthenticatedError,
    table.AnswerTooLargeError: sr.ResourceExhaustedError,
}


@pytest.mark.parametrize("kind", EXPECTED, ids=lambda kind: kind.__name__)
def test_each_error_of_the_server_has_its_class(kind: type[raised.SemanticRecallError]) -> None:
    error = received(kind("what is wrong and how to mend it"))
    assert type(error) is EXPECTED[kind]
    assert (str(error), error.message) == ("what is wrong and how to mend it",) * 2
    assert (error.reason, error.retryable) == (kind.default_reason, kind.retryable)


def test_the_table_is_complete() -> None:
    defined = {
        kind
        for _, kind in inspect.getmembers(raised, inspect.isclass)
        if issubclass(kind, raised.SemanticRecallError) and kind is not raised.SemanticRecallError
    }
    assert defined - set(EXPECTED) == {raised.InvalidArgumentError}


def test_fields_at_fault_are_all_named() -> None:
    error = received(
        raised.InvalidArgumentError(
            [raised.FieldViolation("top_k", "too large"), raised.FieldViolation("query", "bad")]
        )
    )
    assert isinstance(error, sr.InvalidArgumentError)
    assert isinstance(error, ValueError)
    assert error.violations == (
        sr.FieldViolation("top_k", "too large"),
        sr.FieldViolation("query", "bad"),
    )


def test_when_to_come_back() -> None:
    error = received(raised.ResourceExhaustedError("full", retry_after_ms=250))
    assert (error.retryable, error.retry_after_seconds) == (True, 0.25)


def test_an_internal_error_has_its_id() -> None:
    class Log:
        def __init__(self) -> None:
            self.entries: list[dict[str, object]] = []

        def error(self, event: str, **fields: object) -> None:
            self.entries.append(fields)

    log = Log()
    known = table.known_error(RuntimeError("secret"), log)  # type: ignore[arg-type]
    error = received(known)
    assert isinstance(error, sr.InternalError)
    assert error.error_id == log.entries[0]["error_id"]
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, sr.UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, sr.DeadlineExceededError),
        (grpc.StatusCode.CANCELLED, sr.CancelledError),
        (grpc.StatusCode.PERMISSION_DENIED, sr.PermissionDeniedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, sr.ResourceExhaustedError),
        (grpc.StatusCode.UNKNOWN, sr.InternalError),
        (grpc.StatusCode.DATA_LOSS, sr.DataLossError),
        (grpc.StatusCode.ABORTED, sr.InternalError),
    ],
)
@pytest.mark.parametrize("trailers", [(), None, (("semanticrecall-error-bin", b"\xff\xff"),)])
def test_what_the_transport_says_has_a_class_too(
    code: grpc.StatusCode,
    kind: type[sr.SemanticRecallError],
    trailers: Iterable[tuple[str, str | bytes]] | None,
) -> None:
    error = error_from_call(FailedCall(code, None, trailers), "127.0.0.1:7650")
    assert type(error) is kind
    assert str(error)
    assert not isinstance(error, grpc.RpcError)


def test_a_code_of_the_future_is_internal() -> None:
    detail = types_pb2.ErrorDetail(code=99, message="new", reason="NEW")
    trailers = (("semanticrecall-error-bin", detail.SerializeToString()),)
    error = error_from_call(FailedCall(grpc.StatusCode.UNKNOWN, "", trailers), "a:1")
    assert (type(error), error.reason) == (sr.InternalError, "NEW")


def test_every_error_says_when_it_is_raised() -> None:
    for name in sr.__all__:
        kind = getattr(sr, name)
        if inspect.isclass(kind) and issubclass(kind, sr.SemanticRecallError):
            assert inspect.getdoc(kind)
            if kind is not sr.SemanticRecallError:
                assert "Raised " in (kind.__doc__ or "")
