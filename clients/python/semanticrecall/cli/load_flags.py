"""The flags of `load`: what they are called, how their values are written, and back again."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import count
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import typer

from ..arguments import id_fault, is_unicode
from ..connection import DEFAULT_ADDRESS
from ..errors import InvalidArgumentError
from .flags import CONNECTION, Flags

DEFAULT_RATE = "50"
DEFAULT_RECALL_SHARE = 0.8
RESOURCES_FILE = "--resources-file"
LINES_MAX = 1_000_000
LINE_CHARS_MAX = 100_000

WHEN = "When it is called"
WHAT = "What is asked"
BOUNDS = "Bounds"
ANSWER = "The answer"

T = TypeVar("T")


class ArrivalsName(StrEnum):
    """How the calls of an open loop are spread."""

    POISSON = "poisson"
    CONSTANT = "constant"


class WaitName(StrEnum):
    """What an Index call waits for."""

    DURABLE = "durable"
    SEARCHABLE = "searchable"


def _option(panel: str, help_text: str, metavar: str | None = None, **given: Any) -> Any:
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=panel, **given)


@dataclass(frozen=True, kw_only=True)
class LoadFlags(Flags):
    """Flags of `load`."""

    rate: Annotated[
        str,
        _option(
            WHEN,
            "Calls that begin each second, whatever became of those before (open loop). Several, "
            f"with commas, are stages one after the other. Default: {DEFAULT_RATE}.",
            "R[,R...]",
        ),
    ] = ""
    in_flight: Annotated[
        str,
        _option(
            WHEN,
            "Instead: so many callers, each calling again when it is answered (closed loop).",
            "N[,N...]",
        ),
    ] = ""
    seconds: Annotated[float, _option(WHEN, "Of each stage.")] = 30.0
    warm_up_seconds: Annotated[float, _option(WHEN, "Before anything is measured.")] = 5.0
    ramp_seconds: Annotated[
        float | None,
        _option(WHEN, "Of the warm-up, in which the rate rises from zero. Default: 2 at most."),
    ] = None
    arrivals: Annotated[
        ArrivalsName,
        _option(WHEN, "As independent callers would (poisson), or evenly (constant).", "HOW"),
    ] = ArrivalsName.POISSON

    recall_share: Annotated[
        float | None,
        _option(
            WHAT,
            f"Of the calls; the others index. Default: {DEFAULT_RECALL_SHARE}; 1 with yours.",
            "SHARE",
        ),
    ] = None
    resources: Annotated[int, _option(WHAT, "Made-up users, forgotten again at the end.")] = 100
    zipf: Annotated[
        float, _option(WHAT, "How unevenly calls fall on them; 0: evenly.", "EXPONENT")
    ] = 1.0
    threads: Annotated[int, _option(WHAT, "Conversations of each.")] = 10
    messages_before: Annotated[int, _option(WHAT, "Messages of each that are indexed first.")] = 20
    query_repeat: Annotated[
        float, _option(WHAT, "Of the recalls that ask the same again.", "SHARE")
    ] = 0.2
    query_words: Annotated[str, _option(WHAT, "Length of queries.", "LOW-HIGH")] = "6-16"
    message_words: Annotated[str, _option(WHAT, "Length of messages.", "LOW-HIGH")] = "10-60"
    messages_per_index: Annotated[int, _option(WHAT, "In one Index call.")] = 2
    wait: Annotated[
        WaitName,
        _option(WHAT, "Index calls return when it is on disk (durable), or searchable.", "WHEN"),
    ] = WaitName.DURABLE
    thread_scope_share: Annotated[
        float, _option(WHAT, "Of the recalls that ask one conversation only.", "SHARE")
    ] = 0.0
    top_k: Annotated[
        str, _option(WHAT, "Messages to find; several are taken in turn.", "K[,K...]")
    ] = "4"
    message_range: Annotated[
        str,
        _option(WHAT, "Neighbours before and after; several are taken in turn.", "B/A[,B/A...]"),
    ] = "1/1"
    resource: Annotated[
        list[str],
        typer.Option(
            "--resource",
            "-r",
            metavar="ID",
            help="Recall from this one of yours, and write nothing. Repeatable.",
            rich_help_panel=WHAT,
        ),
    ] = field(default_factory=list[str])
    resources_file: Annotated[
        Path | None, _option(WHAT, "Recall from those of this file, one a line.", "FILE")
    ] = None
    queries_file: Annotated[
        Path | None, _option(WHAT, "Ask these, one a line, in turn.", "FILE")
    ] = None
    seed: Annotated[int, _option(WHAT, "Of all that is drawn.")] = 1
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave the made-up resources in the store.", rich_help_panel=WHAT
        ),
    ] = False

    calls_max: Annotated[int, _option(BOUNDS, "Of all stages; then it ends.")] = 1_000_000
    in_flight_max: Annotated[
        int, _option(BOUNDS, "Calls under way at once; others wait, in their latency.")
    ] = 1_000
    timeout_ms: Annotated[int, _option(BOUNDS, "What each measured call may take.")] = 10_000
    processes: Annotated[
        int, _option(BOUNDS, "That send; 0: one, more where the warm-up shows the need.")
    ] = 0

    json: Annotated[Path | None, _option(ANSWER, "Write the result here too, as JSON.", "FILE")] = (
        None
    )
    html: Annotated[
        Path | None, _option(ANSWER, "Write a report with plots here, one file.", "FILE")
    ] = None

    address: Annotated[
        str,
        _option(
            CONNECTION,
            f"HOST:PORT or unix:/path/to.sock. Default: {DEFAULT_ADDRESS}, or "
            "SEMANTICRECALL_ADDRESS where that is this machine.",
            "ADDRESS",
        ),
    ] = ""
    timeout: Annotated[
        float,
        _option(CONNECTION, "What a call that is not measured may take.", "SECONDS", min=0.001),
    ] = 30.0

    def __post_init__(self) -> None:
        """Refuse what is not UTF-8: it can be neither sent nor written into a result."""
        for declared in dataclasses.fields(self):
            value = getattr(self, declared.name)
            given = value if isinstance(value, list) else [value]
            for one in given:
                if isinstance(one, str | Path) and not is_unicode(str(one)):
                    raise typer.BadParameter(f"{_flag(declared.name)}: must be UTF-8")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def several(flag: str, text: str, kind: Callable[[str], T], example: str) -> list[T]:
    """The values of a flag that takes some, with commas."""
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{flag}: {text!r} is no list like {example}") from None


def message_range(text: str) -> tuple[int, int]:
    """Neighbours before and after: "1/2"."""
    before, _, after = text.partition("/")
    return int(before), int(after)


def span(flag: str, text: str) -> tuple[int, int]:
    """The least and the most of a flag like "6-16", or of one like "10"."""
    low, dash, high = text.partition("-")
    try:
        return int(low), int(high if dash else low)
    except ValueError:
        raise typer.BadParameter(f"{flag}: {text!r} is no span like 6-16, or 10") from None


def lines(flag: str, path: Path | None) -> tuple[str, ...]:
    """The lines of a file that hold something, without blanks around them."""
    if path is None:
        return ()
    try:
        # Some editors begin a file with a byte order mark, which is no part of its first line.
        with path.open(encoding="utf-8-sig") as file:
            found = tuple(line for line in _stripped(flag, path, file) if line)
    except OSError as error:
        raise typer.BadParameter(f"{flag}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{flag}: {path} is not UTF-8") from None
    if not found:
        raise typer.BadParameter(f"{flag}: {path} is empty")
    return found


def _stripped(flag: str, path: Path, file: IO[str]) -> Iterator[str]:
    for number in count(1):
        line = file.readline(LINE_CHARS_MAX + 1)
        if not line:
            return
        if len(line) > LINE_CHARS_MAX:
            raise typer.BadParameter(
                f"{flag}: a line of {path} has more than {LINE_CHARS_MAX:,} characters"
            )
        if number > LINES_MAX:
            raise typer.BadParameter(f"{flag}: {path} has more than {LINES_MAX:,} lines")
        line = line.strip()
        if line and flag == RESOURCES_FILE and (fault := id_fault(line)):
            raise typer.BadParameter(f"{flag}: line {number} of {path} {fault}")
        yield line


# Attributes of a plan whose flags are called otherwise.
_FLAG_NAMES = {
    "duration_s": "seconds",
    "rate_per_s": "rate",
    "stages": "rate",
    "warm_up_s": "warm_up_seconds",
    "ramp_s": "ramp_seconds",
    "zipf_exponent": "zipf",
    "query_repeat_share": "query_repeat",
    # Those of a file are checked by the line before.
    "existing_resources": "resource",
}


@contextlib.contextmanager
def flags_named() -> Generator[None, None, None]:
    """What a plan calls its attributes, in the words of the command line."""
    try:
        yield
    except InvalidArgumentError as error:
        if not error.violations or error.violations[0].field not in _FLAG_NAMES:
            raise
        violation = error.violations[0]
        raise InvalidArgumentError.of(_FLAG_NAMES[violation.field], violation.description) from None


def command_line(flags: LoadFlags) -> str:
    """The command line that repeats a load: what differs from the defaults, without names of yours.

    Where its answer went is not part of it.
    """
    parts = ["semanticrecall", "load"]
    for declared in dataclasses.fields(flags):
        value = getattr(flags, declared.name)
        if declared.name in {"json", "html", "format"} or value in (declared.default, []):
            continue
        flag = _flag(declared.name)
        if value is True:
            parts.append(flag)
        elif isinstance(value, list):
            parts += [f"{flag} RESOURCE" for _ in value]
        else:
            shown = value.value if isinstance(value, Enum) else value
            parts += [flag, shlex.quote(str(shown))]
    return " ".join(parts)
