"""Semantic recall over conversation history, from a sidecar.

from semanticrecall import RecallClient, user, assistant
with RecallClient() as memory:
    memory.index("user-42", "thread-1", [user("My dog Rex is allergic to chicken")])
    for m in memory.recall("user-42", "What can Rex not eat?"):
        print(m.score, m.message.text)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aio import AsyncRecallClient
    from .care_results import (
        CacheStats,
        ExportedMessage,
        Finding,
        PurgeResult,
        ReembedProgress,
        RestoreResult,
        Snapshot,
        SnapshotList,
        SnapshotStats,
        Stats,
        VerifyProgress,
        VerifySummary,
    )
    from .client import RecallClient
    from .connection import ClientOptions, Tls
    from .errors import (
        AlreadyExistsError,
        CancelledError,
        DataLossError,
        DeadlineExceededError,
        FailedPreconditionError,
        FieldViolation,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        PermissionDeniedError,
        ResourceExhaustedError,
        SemanticRecallError,
        UnauthenticatedError,
        UnavailableError,
        UnimplementedError,
    )
    from .results import (
        Embedding,
        EmbedResult,
        ExcludedCandidate,
        Explain,
        ForgetResult,
        IndexResult,
        MessageOutcome,
        RecalledMessage,
        RecallInfo,
        RecallResult,
        RecallTimings,
        ThreadSummary,
    )
    from .session import AsyncRecallSession, RecallSession
    from .values import (
        ContextFormat,
        EmbedRole,
        ExcludedReason,
        ForgetConditions,
        GroupState,
        IndexBatch,
        IndexOptions,
        ListOptions,
        Message,
        MessageFields,
        MessageVectors,
        Mode,
        RecallOptions,
        Role,
        Scope,
        Status,
        Wait,
        WhyEmpty,
        assistant,
        system,
        tool,
        user,
    )

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError",
    "AsyncRecallClient",
    "AsyncRecallSession",
    "CacheStats",
    "CancelledError",
    "ClientOptions",
    "ContextFormat",
    "DataLossError",
    "DeadlineExceededError",
    "EmbedResult",
    "EmbedRole",
    "Embedding",
    "ExcludedCandidate",
    "ExcludedReason",
    "Explain",
    "ExportedMessage",
    "FailedPreconditionError",
    "FieldViolation",
    "Finding",
    "ForgetConditions",
    "ForgetResult",
    "GroupState",
    "IndexBatch",
    "IndexOptions",
    "IndexResult",
    "InternalError",
    "InvalidArgumentError",
    "ListOptions",
    "Message",
    "MessageFields",
    "MessageOutcome",
    "MessageVectors",
    "Mode",
    "NotFoundError",
    "PermissionDeniedError",
    "PurgeResult",
    "RecallClient",
    "RecallInfo",
    "RecallOptions",
    "RecallResult",
    "RecallSession",
    "RecallTimings",
    "RecalledMessage",
    "ReembedProgress",
    "ResourceExhaustedError",
    "RestoreResult",
    "Role",
    "Scope",
    "SemanticRecallError",
    "Snapshot",
    "SnapshotList",
    "SnapshotStats",
    "Stats",
    "Status",
    "ThreadSummary",
    "Tls",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "VerifyProgress",
    "VerifySummary",
    "Wait",
    "WhyEmpty",
    "assistant",
    "system",
    "tool",
    "user",
]

_HOMES = (
    "values",
    "errors",
    "results",
    "care_results",
    "session",
    "connection",
    "client",
    "aio",
)
"""Where the names above are defined."""

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> object:
        """Import what is asked for.

        The sidecar imports this package too, for the stubs in `semanticrecall.v1`, and would
        otherwise load both clients at every start.
        """
        if name in _HOMES:
            return import_module(f".{name}", __name__)
        if name in __all__:
            for home in _HOMES:
                found = vars(import_module(f".{home}", __name__))
                if name in found:
                    globals()[name] = found[name]
                    return found[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """The public names, imported or not."""
        return sorted({*globals(), *__all__})
