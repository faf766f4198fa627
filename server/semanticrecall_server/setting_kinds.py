"""What settings are made of: topics, choices, and how a field is declared."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_settings import NoDecode


class Device(StrEnum):
    """Where the model runs."""

    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


class Memory(StrEnum):
    """How much of the partitions is kept in memory."""

    DEFAULT = "default"
    LOW = "low"


class LogLevel(StrEnum):
    """Least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a log line is written."""

    JSON = "json"
    CONSOLE = "console"


class Group(StrEnum):
    """Topics of the settings, in the order of the help text."""

    LISTEN = "Listening"
    SECURITY = "Security"
    STORAGE = "Storage"
    MODEL = "Model"
    CAPACITY = "Capacity"
    REQUEST = "Limits of a request"
    COLLECTIONS = "Vector collections"
    TIME = "Time"
    OPERATION = "Operation"


def setting(group: Group, description: str, **rest: Any) -> Any:
    """A field of the settings: its topic, what it does, and its default and limits."""
    return Field(description=description, json_schema_extra={"group": group.value}, **rest)


def expanded(value: Path | None) -> Path | None:
    """A path with `~` as the user's home."""
    return None if value is None else Path(os.path.expanduser(value))


Strings = Annotated[tuple[str, ...], NoDecode]
