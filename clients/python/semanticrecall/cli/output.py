"""Where the command line writes: answers to stdout, everything else to stderr."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, tzinfo
from enum import IntEnum
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn
from rich.table import Table

from ..errors import SemanticRecallError
from ..values import Message
from .jsonlines import message_to_json

OTHER_COLUMNS_WIDTH = 12
"""What each column but the first has at least, in characters, with the gap before it."""


class Output:
    """Tables for people, or JSON with stable keys.

    Args:
        zone: of the times in tables; JSON is always in UTC.
    """

    def __init__(self, *, as_json: bool, zone: tzinfo = UTC) -> None:
        self.as_json = as_json
        self.zone = zone
        self.console = Console(highlight=False, soft_wrap=False)
        self.notes = Console(stderr=True, highlight=False)

    def json(self, value: object) -> None:
        """One JSON document on a line of its own."""
        text = json.dumps(to_json(value), ensure_ascii=False, allow_nan=False)
        sys.stdout.write(text + "\n")

    def json_lines(self, values: Iterable[object]) -> None:
        """One JSON document a line, as they come."""
        for value in values:
            self.json(value)

    def table(self, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
        """A table; numbers stand to the right, and what the first column names is never cut."""
        listed = [list(row) for row in rows]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for position, name in enumerate(columns):
            numbers = bool(listed) and all(isinstance(row[position], int) for row in listed)
            table.add_column(
                name,
                justify="right" if numbers else "left",
                overflow="fold",
                no_wrap=position == 0,
            )
        for row in listed:
            table.add_row(*(self._shown(value) for value in row))
        first = max((cell_len(self._shown(row[0])) for row in listed), default=0)
        others = OTHER_COLUMNS_WIDTH * (len(table.columns) - 1)
        self.print_trimmed(table, max(self.console.width, first + others))

    def pairs(self, values: Mapping[str, object]) -> None:
        """Names and values, one a line."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in values.items():
            table.add_row(name, self._shown(value))
        self.print_trimmed(table)

    def print_trimmed(self, drawn: RenderableType, width: int | None = None) -> None:
        """Something drawn, to stdout, without blanks at the ends of its lines.

        Args:
            drawn: what.
            width: in characters. Default: the terminal's.
        """
        # rich fills every line up to the width; who reads a pipe does not want the blanks.
        console = self.console if width is None else Console(highlight=False, width=width)
        with console.capture() as captured:
            console.print(drawn)
        lines = captured.get().splitlines()
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))

    def _shown(self, value: object) -> str:
        return self.time(value) if isinstance(value, datetime) else shown(value)

    def time(self, moment: datetime) -> str:
        """A moment in the zone of this command, to the minute; `zone_name` says which."""
        return moment.astimezone(self.zone).strftime("%Y-%m-%d %H:%M")

    @property
    def zone_name(self) -> str:
        """The zone of the times in tables: UTC, or an IANA name."""
        return str(self.zone)

    def note(self, text: str) -> None:
        """Something beside the answer."""
        self.notes.print(text, markup=False)

    def error(self, text: str) -> None:
        """What went wrong, on one line."""
        self.notes.print(f"semanticrecall: {text}", style="red", markup=False, soft_wrap=True)

    def progress(self, *columns: ProgressColumn) -> AbstractContextManager[Progress]:
        """A progress bar; nothing is drawn where stderr is no terminal."""
        return Progress(
            *columns, console=self.notes, transient=True, disable=not self.notes.is_terminal
        )


def to_json(value: object) -> Any:
    """A result of the client as JSON values; the keys are its attributes."""
    if isinstance(value, Message):
        return message_to_json(value)
    if isinstance(value, SemanticRecallError):
        return {"message": value.message, "reason": value.reason, "retryable": value.retryable}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value


def shown(value: object) -> str:
    """A value in a table's cell; what a message holds is never read as markup."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return plain(str(value)).replace("[", r"\[")


def plain(text: str) -> str:
    """A text without control characters: what was stored must not steer the terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def bytes_shown(count: int) -> str:
    """A size with its unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
