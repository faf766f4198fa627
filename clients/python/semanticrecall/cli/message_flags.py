"""Flags that several commands have which work with messages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, cast

import typer

from ..values import JsonValue, Role

PANEL = "Memory"

Resource = Annotated[str, typer.Argument(help="Whose memory, e.g. a user's id.")]
Thread = Annotated[str, typer.Option("--thread", "-t", help="The conversation.")]
Since = Annotated[str, typer.Option(help="Only messages at or after this time.")]
Until = Annotated[str, typer.Option(help="Only messages before this time.")]


class RoleName(StrEnum):
    """Roles by their names."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


Roles = Annotated[
    list[RoleName],
    typer.Option(
        "--role",
        metavar="ROLE",
        help="Only this role: user, assistant, system or tool. Repeatable.",
    ),
]


def roles_named(names: Iterable[RoleName]) -> list[Role]:
    """The roles of these names."""
    return [Role[name.name] for name in names]


def json_object(text: str, flag: str) -> dict[str, JsonValue]:
    """A JSON object of the command line.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        parsed: object = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise typer.BadParameter(f'{flag} must be a JSON object, e.g. \'{{"project": "A"}}\'')
    return cast("dict[str, JsonValue]", parsed)
