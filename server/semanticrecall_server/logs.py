"""Structured logs on stderr: event names, ids of errors, counts, durations, code places.

Never in a log: message text, queries, ids of users or their messages, tokens, exception texts.
Records of other libraries are reduced to where they were written, since their texts hold what
they were called with.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Protocol, TextIO, cast

import structlog


class Logger(Protocol):
    """What the server needs of a logger."""

    def debug(self, event: str, **fields: Any) -> Any:
        """Detail for those who look for a fault."""
        ...

    def info(self, event: str, **fields: Any) -> Any:
        """A step of the server's life."""
        ...

    def warning(self, event: str, **fields: Any) -> Any:
        """Something to look at."""
        ...

    def error(self, event: str, **fields: Any) -> Any:
        """Something went wrong."""
        ...


class ForeignRecords(logging.Handler):
    """Writes records of other libraries without their texts."""

    def __init__(self, log: Logger) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Say which library wrote something, where, and about what kind of exception."""
        kind = record.exc_info[0] if record.exc_info else None
        self._log.warning(
            "library_log",
            library=record.name,
            severity=record.levelname.lower(),
            at=f"{record.module}:{record.lineno} {record.funcName}",
            exception=None if kind is None else f"{kind.__module__}.{kind.__qualname__}",
        )


class UnfailingStream:
    """A stream whose reader may be gone, or whose disk may be full: what it does not take is lost.

    A log that cannot be written must not end what logs.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what can be passed on."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def _kind_of(value: object) -> str:
    """Stands for a value that JSON does not know: its type, never its text."""
    return f"<{type(value).__name__}>"


def _without_texts(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Reduce exceptions among the fields to their types, whoever logged them."""
    del logger, method
    raised = event.pop("exc_info", None)
    if raised:
        error = sys.exc_info()[1] if raised is True else raised
        event["exception"] = _kind_of(error[1] if isinstance(error, tuple) else error)
    for name, value in event.items():
        if isinstance(value, BaseException):
            event[name] = _kind_of(value)
    return event


def configure_logs(level: str, form: str, stream: TextIO | None = None) -> Logger:
    """Set up the process's logs and return the server's logger.

    Args:
        level: debug, info, warning or error.
        form: "json" (one object a line) or "console" (for people).
        stream: where to write; stderr by default.
    """
    target = stream or sys.stderr
    render: Any
    unfailing = cast(TextIO, UnfailingStream(target))
    if form == "console":
        render = structlog.dev.ConsoleRenderer(colors=target.isatty())
    else:
        render = structlog.processors.JSONRenderer(default=_kind_of)
    structlog.configure(
        processors=[
            _without_texts,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=unfailing),
        cache_logger_on_first_use=False,
    )
    log = cast(Logger, structlog.get_logger())
    root = logging.getLogger()
    root.handlers = [ForeignRecords(log)]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return log
