"""How commands are declared: one function, one frozen dataclass of its flags.

`command` shows the fields of the dataclass to typer as parameters, so that a command with many
flags is still a function of one argument, and the flags that all commands share are written once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import sys
import typing
import zoneinfo
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.models import ArgumentInfo, OptionInfo

from ..client import RecallClient
from ..connection import DEFAULT_ADDRESS, ClientOptions, Tls
from ..errors import (
    FAIL_OPEN_ERRORS,
    NO_CONNECTION,
    UNREACHABLE,
    InvalidArgumentError,
    SemanticRecallError,
    UnauthenticatedError,
    UnimplementedError,
)
from .help import Command, help_text
from .output import Output

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NO_ANSWER = 3
EXIT_IN_PART = 4
TOKEN_BYTES_MAX = 4096

CONNECTION = "Connection"
TIMEOUT_SECONDS = 30.0
PROGRAM = "semanticrecall"


class Format(StrEnum):
    """How answers are written."""

    TABLE = "table"
    JSON = "json"


def timeout_option(text: str) -> Any:
    """The option --timeout of a command."""
    return typer.Option(metavar="SECONDS", help=text, min=0.001, rich_help_panel=CONNECTION)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags that every command has."""

    address: Annotated[
        str,
        typer.Option(
            envvar="SEMANTICRECALL_ADDRESS",
            show_envvar=False,
            metavar="ADDRESS",
            help="HOST:PORT or unix:/path/to.sock (or SEMANTICRECALL_ADDRESS).",
            rich_help_panel=CONNECTION,
        ),
    ] = DEFAULT_ADDRESS
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="SEMANTICRECALL_TOKEN_FILE",
            show_envvar=False,
            metavar="FILE",
            help="Holds the token, where one is wanted (or SEMANTICRECALL_TOKEN_FILE; or "
            "SEMANTICRECALL_TOKEN, the token itself).",
            rich_help_panel=CONNECTION,
        ),
    ] = None
    tls_ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use TLS and trust the authorities of this PEM file.",
            rich_help_panel=CONNECTION,
        ),
    ] = None
    timeout: Annotated[float, timeout_option("What a call may take.")] = TIMEOUT_SECONDS
    format: Annotated[
        Format, typer.Option("--format", "-f", help="A table for people, or JSON.")
    ] = Format.TABLE

    @property
    def zone(self) -> tzinfo:
        """Of the times that are shown and read."""
        return UTC

    @property
    def output(self) -> Output:
        """Where and how to write."""
        return Output(as_json=self.format is Format.JSON, zone=self.zone)

    @contextlib.contextmanager
    def client(self) -> Generator[RecallClient, None, None]:
        """A client of the sidecar that the flags name. It never fails open."""
        with RecallClient(self.address, **self.client_options) as memory:
            yield memory

    @property
    def client_options(self) -> ClientOptions:
        """What the flags say of a connection."""
        options: ClientOptions = {
            "timeout": self.timeout,
            "connect_timeout": 1.0,
            "fail_open": False,
        }
        if self.token_file is not None:
            options["token"] = _read_token(self.token_file)
        if self.tls_ca_file is not None:
            options["tls"] = Tls(ca_file=self.tls_ca_file)
        return options


@dataclass(frozen=True, kw_only=True)
class LongFlags(Flags):
    """The flags of a command that reads or writes a whole store."""

    timeout: Annotated[
        float, timeout_option("Does not bound this command: it may take an hour.")
    ] = TIMEOUT_SECONDS


@dataclass(frozen=True, kw_only=True)
class TimedFlags(Flags):
    """The flags of a command that shows or reads times."""

    time_zone: Annotated[
        str,
        typer.Option(
            metavar="ZONE",
            help="Zone of times shown, and of times given without one; e.g. Europe/Berlin.",
        ),
    ] = "UTC"

    @property
    def zone(self) -> tzinfo:
        """Of the times that are shown and read."""
        if self.time_zone == "UTC":
            return UTC
        try:
            return zoneinfo.ZoneInfo(self.time_zone)
        except (KeyError, OSError, ValueError):
            raise typer.BadParameter(
                f"--time-zone: {self.time_zone!r} is not a zone; write one like Europe/Berlin"
            ) from None

    def moment(self, text: str, flag: str) -> datetime:
        """A time of the command line: ISO 8601; without a zone it is that of --time-zone.

        Raises:
            typer.BadParameter: it is not a time.
        """
        try:
            given = datetime.fromisoformat(text)
        except ValueError:
            raise typer.BadParameter(
                f"{flag}: {text!r} is not a time; write 2024-05-01 or 2024-05-01T14:00:00Z"
            ) from None
        return (given if given.tzinfo else given.replace(tzinfo=self.zone)).astimezone(UTC)


def _read_token(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(TOKEN_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError):
        raise InvalidArgumentError.of("--token-file", f"cannot read {path}") from None


FlagsT = TypeVar("FlagsT", bound=Flags)


def command(
    app: typer.Typer, name: str, *, panel: str, examples: str, formats: str = ""
) -> Callable[[Callable[[FlagsT], None]], Callable[[FlagsT], None]]:
    """Register a function of one `Flags` dataclass as a command.

    Args:
        panel: the group of commands in the overview.
        examples: command lines that teach, one a line.
        formats: of the files that it reads, kept line by line.
    """

    group = app.info.name
    title = f"{group} {name}" if isinstance(group, str) and group != PROGRAM else name

    def register(function: Callable[[FlagsT], None]) -> Callable[[FlagsT], None]:
        kind: type[FlagsT] = next(iter(typing.get_type_hints(function).values()))
        hints = typing.get_type_hints(kind, include_extras=True)

        def run(**given: Any) -> None:
            flags = kind(**given)
            with errors_told(title, flags):
                function(flags)

        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hints[field.name],
                default=_default(field),
            )
            for field in _own_first(kind)
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        text = help_text(function, formats, examples)
        app.command(name, cls=Command, help=text, rich_help_panel=panel)(run)
        return function

    return register


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def _own_first(kind: type[Flags]) -> list[dataclasses.Field[Any]]:
    shared = {field.name for field in dataclasses.fields(TimedFlags)}
    fields = dataclasses.fields(kind)
    own = [field for field in fields if field.name not in shared]
    return own + [field for field in fields if field.name in shared]


@contextlib.contextmanager
def errors_told(command_name: str, flags: Flags) -> Generator[None, None, None]:
    """End with one clear line and an exit code where a call fails."""
    try:
        yield
    except BrokenPipeError:
        # The reader (`head`, say) has enough. Keep Python from complaining at exit as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SemanticRecallError as error:
        flags.output.error(_told(error, command_name, flags))
        if isinstance(error, FAIL_OPEN_ERRORS) and error.retryable:
            raise typer.Exit(EXIT_NO_ANSWER) from None
        usage = isinstance(error, InvalidArgumentError)
        raise typer.Exit(EXIT_USAGE if usage else EXIT_ERROR) from None


def _told(error: SemanticRecallError, command_name: str, flags: Flags) -> str:
    if error.reason == UNREACHABLE:
        return (
            f"no sidecar answers at {flags.address}. Start one with `semanticrecall serve`, try "
            "`semanticrecall demo`, or name another with --address."
        )
    if error.reason == NO_CONNECTION:
        return (
            f"something listens at {flags.address}, but no connection came about. Does it use "
            "TLS? Give --tls-ca-file, the authority of its certificate, then and only then."
        )
    if isinstance(error, UnauthenticatedError):
        return f"{error.message} (--token-file or SEMANTICRECALL_TOKEN)"
    if isinstance(error, UnimplementedError):
        return f"`{command_name}`: {error.message}"
    if isinstance(error, InvalidArgumentError) and error.violations:
        return "; ".join(
            f"{flag_of(type(flags), v.field)}: {v.description}" for v in error.violations
        )
    return error.message


# Fields of the contract whose flags are called otherwise.
_FLAG_NAMES = {
    "resource_id": "resource",
    "to_resource_id": "to_resource",
    "thread_id": "thread",
    "message_ids": "message",
    "message_range.before": "before",
    "message_range.after": "after",
    "create_time_from": "since",
    "create_time_to": "until",
    "create_time_before": "before",
    "roles": "role",
    "exclude_message_ids": "exclude",
    "ranking.mode": "mode",
    "alternative_queries": "also",
    "recency_weight": "recency",
    "ranking.recency_weight": "recency",
    "recency_half_life": "half_life",
    "ranking.recency_half_life": "half_life",
    "ranking.diversity": "diversity",
    "near_duplicate_cosine": "near_duplicates",
    "ranking.near_duplicate_cosine": "near_duplicates",
    "token": "token_file",
    "tls": "tls_ca_file",
}


def flag_of(kind: type[Flags], field: str) -> str:
    """What the command line calls a field of the contract; the field itself where it has none."""
    whole = field.partition("[")[0]  # of a list the flag is repeated
    name = _FLAG_NAMES.get(whole, whole)
    hint = typing.get_type_hints(kind, include_extras=True).get(name)
    for declared in getattr(hint, "__metadata__", ()):
        if isinstance(declared, OptionInfo):
            return f"--{name.replace('_', '-')}"
        if isinstance(declared, ArgumentInfo):
            return name.upper()
    return field
