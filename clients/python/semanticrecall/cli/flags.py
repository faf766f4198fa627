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
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape

from ..client import RecallClient
from ..connection import DEFAULT_ADDRESS, Tls
from ..errors import (
    FAIL_OPEN_ERRORS,
    InvalidArgumentError,
    SemanticRecallError,
    UnauthenticatedError,
)
from .output import Output

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NO_ANSWER = 3
EXIT_IN_PART = 4
TOKEN_BYTES_MAX = 4096

CONNECTION = "Connection"


class Format(StrEnum):
    """How answers are written."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags that every command has."""

    address: Annotated[
        str,
        typer.Option(
            envvar="SEMANTICRECALL_ADDRESS",
            help="Where the sidecar is: HOST:PORT or unix:/path/to.sock.",
            rich_help_panel=CONNECTION,
        ),
    ] = DEFAULT_ADDRESS
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="SEMANTICRECALL_TOKEN_FILE",
            help="File with the token, where the server wants one (or SEMANTICRECALL_TOKEN).",
            rich_help_panel=CONNECTION,
        ),
    ] = None
    tls_ca_file: Annotated[
        Path | None,
        typer.Option(
            help="Use TLS and trust the authorities of this PEM file.", rich_help_panel=CONNECTION
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(help="Seconds a call may take.", min=0.001, rich_help_panel=CONNECTION),
    ] = 30.0
    format: Annotated[
        Format, typer.Option("--format", "-f", help="A table for people, or JSON.")
    ] = Format.TABLE

    @property
    def output(self) -> Output:
        """Where and how to write."""
        return Output(as_json=self.format is Format.JSON)

    @contextlib.contextmanager
    def client(self) -> Generator[RecallClient, None, None]:
        """A client of the sidecar that the flags name. It never fails open."""
        options: dict[str, Any] = {}
        if self.token_file is not None:
            options["token"] = _read_token(self.token_file)
        if self.tls_ca_file is not None:
            options["tls"] = Tls(ca_file=self.tls_ca_file)
        with RecallClient(
            self.address, timeout=self.timeout, connect_timeout=1.0, fail_open=False, **options
        ) as memory:
            yield memory


def _read_token(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(TOKEN_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError):
        raise InvalidArgumentError.of("--token-file", f"cannot read {path}") from None


FlagsT = TypeVar("FlagsT", bound=Flags)


def command(
    app: typer.Typer, name: str, *, panel: str, examples: str
) -> Callable[[Callable[[FlagsT], None]], Callable[[FlagsT], None]]:
    """Register a function of one `Flags` dataclass as a command.

    Args:
        panel: the group of commands in the overview.
        examples: command lines that teach, one a line.
    """

    def register(function: Callable[[FlagsT], None]) -> Callable[[FlagsT], None]:
        kind: type[FlagsT] = next(iter(typing.get_type_hints(function).values()))
        hints = typing.get_type_hints(kind, include_extras=True)

        def run(**given: Any) -> None:
            flags = kind(**given)
            with errors_told(flags.output, flags.address):
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
        lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
        text = f"{inspect.getdoc(function)}\n\n\b\n[bold]Examples[/]\n{escape(lines)}"
        app.command(name, help=text, rich_help_panel=panel)(run)
        return function

    return register


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def _own_first(kind: type[Flags]) -> list[dataclasses.Field[Any]]:
    shared = {field.name for field in dataclasses.fields(Flags)}
    fields = dataclasses.fields(kind)
    own = [field for field in fields if field.name not in shared]
    return own + [field for field in fields if field.name in shared]


@contextlib.contextmanager
def errors_told(output: Output, address: str) -> Generator[None, None, None]:
    """End with one clear line and an exit code where a call fails."""
    try:
        yield
    except BrokenPipeError:
        # The reader (`head`, say) has enough. Keep Python from complaining at exit as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SemanticRecallError as error:
        output.error(_told(error, address))
        if isinstance(error, FAIL_OPEN_ERRORS) and error.retryable:
            raise typer.Exit(EXIT_NO_ANSWER) from None
        usage = isinstance(error, InvalidArgumentError)
        raise typer.Exit(EXIT_USAGE if usage else EXIT_ERROR) from None


def _told(error: SemanticRecallError, address: str) -> str:
    if error.reason == "UNREACHABLE":
        return (
            f"no sidecar answers at {address}. Start one with `semanticrecall serve`, try "
            "`semanticrecall demo`, or name another with --address."
        )
    if isinstance(error, UnauthenticatedError):
        return f"{error.message} (--token-file or SEMANTICRECALL_TOKEN)"
    return error.message


def parse_time(text: str) -> datetime:
    """A time of the command line: ISO 8601; without a zone it is this machine's.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write 2024-05-01 or 2024-05-01T14:00:00Z"
        ) from None
    return moment.astimezone(UTC)
