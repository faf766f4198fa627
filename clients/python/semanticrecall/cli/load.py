"""The command `load`: the plan that its flags ask for, the run, and where its result goes.

The parts of a load are imported where they are used: the other commands start without them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..connection import DEFAULT_ADDRESS, connection
from .flags import EXIT_ERROR, EXIT_IN_PART, EXIT_USAGE, command, errors_told
from .load_flags import (
    DEFAULT_RATE,
    DEFAULT_RECALL_SHARE,
    LoadFlags,
    command_line,
    flags_named,
    lines,
    message_range,
    several,
    span,
)
from .plugins import install_command

if TYPE_CHECKING:
    from ..load.plan import LoadPlan, Workload
    from ..load.result import LoadResult

PANEL = "Measure"
INTERRUPTED = 130
RAMP_SECONDS = 2.0
PREFIX_BYTES = 4


def load(flags: LoadFlags) -> None:
    """Send load, and measure what a caller waits.

    Calls begin by a schedule, and their latency counts from when they were due: a server that
    stands still is seen by every call of that time. With --in-flight, callers wait for their
    answers instead. Users are made up and forgotten at the end, unless you name yours: from those
    it recalls only.

    It goes to this machine unless --address says otherwise. Exits with 4 where calls failed.
    """
    flags = dataclasses.replace(flags, address=address_of(flags))
    with errors_told("load", flags), flags_named():
        _check_extras(flags)
        plan = plan_of(flags)
        _check_files(flags)
        raise typer.Exit(_run(flags, plan))


def _run(flags: LoadFlags, plan: LoadPlan) -> int:
    from ..load.live import LiveObserver
    from ..load.run import LoadEndedError, run_load

    failure = ""
    try:
        with LiveObserver(flags.output.notes) as observer:
            result = run_load(plan, command_line(flags), observer)
    except KeyboardInterrupt:
        return INTERRUPTED
    except LoadEndedError as error:
        result, failure = error.result, error.message
    notes, problems = _write_files(flags, result)
    _show(flags, result)
    # What is beside the answer comes last: nobody may be there to read it.
    for note in notes:
        flags.output.note(note)
    if failure:
        problems.append(f"the load ended early: {failure}")
    for problem in problems:
        flags.output.error(problem)
    return EXIT_ERROR if problems else exit_code(result)


def exit_code(result: LoadResult) -> int:
    """130 where it was interrupted, 4 where calls failed or were given up, else 0."""
    from ..load.result import FindingCode

    codes = {finding.code for finding in result.findings}
    if FindingCode.INTERRUPTED in codes:
        return INTERRUPTED
    return EXIT_IN_PART if codes & {FindingCode.ERRORS, FindingCode.UNFINISHED} else 0


# --- from flags to a plan ------------------------------------------------------------------------


def plan_of(flags: LoadFlags) -> LoadPlan:
    """The plan that the flags ask for.

    Raises:
        typer.BadParameter, InvalidArgumentError: a flag makes no sense or is beyond its limit.
    """
    from ..load.plan import Arrivals, LoadPlan, Loop, Stage

    if flags.rate and flags.in_flight:
        raise typer.BadParameter(
            "--rate and --in-flight exclude each other: an open loop, or a closed one"
        )
    if flags.in_flight:
        loop, numbers = Loop.CLOSED, several("--in-flight", flags.in_flight, int, "8 or 1,8,64")
        stages = [Stage(in_flight=number, duration_s=flags.seconds) for number in numbers]
    else:
        text = flags.rate or DEFAULT_RATE
        loop, rates = Loop.OPEN, several("--rate", text, float, "50 or 50,100,200")
        stages = [Stage(rate_per_s=rate, duration_s=flags.seconds) for rate in rates]
    warm_up = flags.warm_up_seconds
    plan = LoadPlan(
        connection=connection(flags.address, flags.client_options),
        workload=_workload(flags),
        loop=loop,
        arrivals=Arrivals(flags.arrivals.value),
        stages=tuple(stages),
        warm_up_s=warm_up,
        ramp_s=min(RAMP_SECONDS, warm_up) if flags.ramp_seconds is None else flags.ramp_seconds,
        in_flight_max=flags.in_flight_max,
        calls_max=flags.calls_max,
        timeout_ms=flags.timeout_ms,
        processes=flags.processes,
    )
    plan.check()
    return plan


def address_of(flags: LoadFlags) -> str:
    """Where the load goes: to this machine, unless the command line itself names another one.

    Raises:
        typer.BadParameter: the environment names one.
    """
    from ..load.target import is_local

    if flags.address:
        return flags.address
    address = os.environ.get("SEMANTICRECALL_ADDRESS") or DEFAULT_ADDRESS
    if not is_local(address):
        raise typer.BadParameter(
            f"SEMANTICRECALL_ADDRESS is {address}, which is not this machine. A load goes to "
            f"another one only where the command line says so: --address {address}"
        )
    return address


def _workload(flags: LoadFlags) -> Workload:
    from ..load.plan import Span, WaitMode, Workload

    existing = tuple(flags.resource) + lines("--resources-file", flags.resources_file)
    share = flags.recall_share
    if share is None:
        share = 1.0 if existing else DEFAULT_RECALL_SHARE
    ranges = several("--message-range", flags.message_range, message_range, "1/1 or 0/0,2/2")
    return Workload(
        recall_share=share,
        resources=flags.resources,
        zipf_exponent=flags.zipf,
        threads=flags.threads,
        query_repeat_share=flags.query_repeat,
        query_words=Span(*span("--query-words", flags.query_words)),
        message_words=Span(*span("--message-words", flags.message_words)),
        messages_per_index=flags.messages_per_index,
        wait=WaitMode(flags.wait.value),
        thread_scope_share=flags.thread_scope_share,
        top_k=tuple(several("--top-k", flags.top_k, int, "4 or 4,10")),
        message_range=tuple(ranges),
        messages_before=flags.messages_before,
        existing_resources=existing,
        queries=lines("--queries-file", flags.queries_file),
        keep=flags.keep,
        seed=flags.seed,
        resource_prefix=f"load-{secrets.token_hex(PREFIX_BYTES)}-",
    )


# --- before it runs -------------------------------------------------------------------------------


def _check_extras(flags: LoadFlags) -> None:
    needed = ["hdrh"] if flags.html is None else ["hdrh", "matplotlib", "jinja2"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        flags.output.error(f"`load` needs {', '.join(missing)}: {install_command('load')}")
        raise typer.Exit(EXIT_USAGE)


def _check_files(flags: LoadFlags) -> None:
    """Find out before the load runs what could not be written after it."""
    for flag, path in (("--json", flags.json), ("--html", flags.html)):
        if path is None:
            continue
        try:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if _is_replaced(path):
                target = path.resolve()
                with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
                    pass
            elif not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (OSError, RuntimeError) as error:
            told = error.strerror if isinstance(error, OSError) else error
            raise typer.BadParameter(f"{flag}: cannot write {path}: {told}") from None
    files = [path.resolve() for path in (flags.json, flags.html) if path and _is_replaced(path)]
    if len(set(files)) < len(files):
        raise typer.BadParameter("--json and --html: both cannot be one file")


def _is_replaced(path: Path) -> bool:
    """Whether a path is of a plain file, or of none: a pipe or a device is written to as it is."""
    return path.is_file() or not path.exists()


# --- after it ran ---------------------------------------------------------------------------------


def _write_files(flags: LoadFlags, result: LoadResult) -> tuple[list[str], list[str]]:
    """Write the files that are asked for; notes of those written, and what could not be written."""
    writers: list[tuple[Path, Callable[[Path], object]]] = []
    if flags.json is not None:
        writers.append((flags.json, lambda path: path.write_text(_document(result), "utf-8")))
    if flags.html is not None:
        from ..load.html_report import write_html

        writers.append((flags.html, lambda path: write_html(result, path)))
    notes: list[str] = []
    problems: list[str] = []
    for file, write in writers:
        # It could be written before the load. What was measured is shown even where it no more can.
        try:
            with _replaced(file) as path:
                write(path)
        except OSError as error:
            problems.append(f"cannot write {file}: {error.strerror}")
        else:
            notes.append(f"Wrote {file}.")
    return notes, problems


def _show(flags: LoadFlags, result: LoadResult) -> None:
    if flags.output.as_json:
        sys.stdout.write(_document(result))
    else:
        from ..load.findings import likewise
        from .load_shown import show_load

        show_load(flags.output, result, likewise(result.findings))


def _document(result: LoadResult) -> str:
    return json.dumps(dataclasses.asdict(result), ensure_ascii=False, allow_nan=False) + "\n"


@contextlib.contextmanager
def _replaced(path: Path) -> Generator[Path, None, None]:
    """A file beside it to write, which takes its place when it is whole and on disk.

    Where it is a link, that of the file it leads to; what is no plain file is written to as it is.
    """
    if not _is_replaced(path):
        yield path
        return
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    try:
        os.chmod(name, 0o666 & ~_umask())
        yield Path(name)
        with open(name, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def register(app: typer.Typer) -> None:
    """Add this command."""
    command(
        app,
        "load",
        panel=PANEL,
        examples="""
        semanticrecall load
        # where does it bend? each rate for 30 s, with a report
        semanticrecall load --rate 50,100,200,400 --html load.html
        # how much can 8 callers get at all?
        semanticrecall load --in-flight 8 --json load.json
        # your users, your questions; writes nothing
        semanticrecall load --resources-file users.txt --queries-file questions.txt
        # another machine
        semanticrecall load --address recall.example:7650 --tls-ca-file ca.pem \\
          --token-file token
        """,
    )(load)
