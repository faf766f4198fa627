"""One setting as the help text, the docs and the errors show it."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo


def flag_of(field: str) -> str:
    """The flag of a field."""
    return "--" + field.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as the help and the docs show it."""

    name: str
    field: FieldInfo

    @property
    def group(self) -> str:
        """Its topic."""
        extra = self.field.json_schema_extra
        assert isinstance(extra, dict)
        return str(extra["group"])

    @property
    def help(self) -> str:
        """One or two sentences."""
        return self.field.description or ""

    @property
    def kind(self) -> Any:
        """The type without `None`."""
        kind = self.field.annotation
        if isinstance(kind, types.UnionType):
            return next(arm for arm in typing.get_args(kind) if arm is not type(None))
        return kind

    @property
    def is_list(self) -> bool:
        """It may be given several times."""
        return typing.get_origin(self.kind) is tuple

    @property
    def values(self) -> str:
        """What it takes, in words."""
        kind = self.kind
        if self.is_list:
            return "list of strings"
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return ", ".join(member.value for member in kind)
        words = {
            bool: "true, false",
            int: "integer",
            float: "number",
            str: "string",
            Path: "path",
            SecretStr: "secret string",
        }
        return words[kind]

    @property
    def bounds(self) -> str:
        """Least and most, where there are such."""
        least = next((m.ge for m in self.field.metadata if hasattr(m, "ge")), None)
        most = next((m.le for m in self.field.metadata if hasattr(m, "le")), None)
        if least is None or self.is_list:
            return ""
        return f"{least:,} to {most:,}" if most is not None else f"{least:,} or more"

    @property
    def default(self) -> str:
        """The default as text; empty for none."""
        value = self.field.default
        if value is None or value == () or isinstance(value, SecretStr):
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ", ".join(value)
        return str(value)

    @property
    def demand(self) -> str:
        """What a value must be, as an error says it."""
        if isinstance(self.kind, type) and issubclass(self.kind, StrEnum):
            return f"one of {self.values}"
        words = {"true, false": "true or false", "integer": "an integer"}
        return words.get(self.values, f"a {self.values}") + (
            f", {self.bounds}" if self.bounds else ""
        )
