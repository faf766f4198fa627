"""How help looks: no type beside a switch, arguments in capitals, one paragraph a line."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from rich.markup import escape
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help shows `[OPTIONS] RESOURCE` and switches without `<bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, as help shows them."""
        return _without_types_of_switches(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of its usage line."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"^\{(.*)\}", lambda found: found[1].upper(), piece) for piece in pieces]


class Group(TyperGroup):
    """All commands; its switches are shown as those of `Command`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, as help shows them."""
        return _without_types_of_switches(super().get_params(ctx))


def _without_types_of_switches(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def help_text(function: Callable[..., object], formats: str, examples: str) -> str:
    """The help of a command in typer's markup: its docstring, then what is kept line by line.

    Args:
        formats: of the files that it reads; may be empty.
        examples: command lines that teach; a backslash goes on in the next line.
    """
    paragraphs = [" ".join(p.split()) for p in (inspect.getdoc(function) or "").split("\n\n")]
    parts = [escape(paragraph) for paragraph in paragraphs]
    if formats:
        parts.append(f"\b\n[bold]Formats[/]\n{escape(_indented(formats))}")
    parts.append(f"\b\n[bold]Examples[/]\n{escape(_indented(examples))}")
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n").rstrip(), "  ")
