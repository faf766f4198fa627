"""The command `load`: what must be known before it runs, the run, and where its result goes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .flags import EXIT_ERROR, EXIT_IN_PART, EXIT_USAGE, command, errors_told
from .load_flags import LoadFlags, address_of, command_line, flags_named, plan_of

if TYPE_CHECKING:
    from ..load.plan import LoadPlan
    from ..load.result import LoadResult

PANEL = "Measure"
INTERRUPTED = 130


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
        for name in ("json", "html"):
            _check_writable(f"--{name}", getattr(flags, name))
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
    _write(flags, result)
    if failure:
        flags.output.error(f"the load ended early: {failure}")
        return EXIT_ERROR
    return exit_code(result)


def exit_code(result: LoadResult) -> int:
    """130 where it was interrupted, 4 where calls failed or were given up, else 0."""
    from ..load.result import FindingCode

    codes = {finding.code for finding in result.findings}
    if FindingCode.INTERRUPTED in codes:
        return INTERRUPTED
    return EXIT_IN_PART if codes & {FindingCode.ERRORS, FindingCode.UNFINISHED} else 0


# --- before it runs -------------------------------------------------------------------------------


def _check_extras(flags: LoadFlags) -> None:
    needed = ["hdrh"] if flags.html is None else ["hdrh", "matplotlib", "jinja2"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        flags.output.error(
            f"`load` needs {', '.join(missing)}: pip install 'semanticrecall-sidecar[load]'"
        )
        raise typer.Exit(EXIT_USAGE)


def _check_writable(flag: str, path: Path | None) -> None:
    """Find out before the load runs, not after."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise typer.BadParameter(f"{flag}: cannot write {path}: {error.strerror}") from None


# --- after it ran ---------------------------------------------------------------------------------


def _write(flags: LoadFlags, result: LoadResult) -> None:
    document = json.dumps(dataclasses.asdict(result), ensure_ascii=False, allow_nan=False)
    if flags.json is not None:
        with _replaced(flags.json) as path:
            path.write_text(document + "\n", encoding="utf-8")
    if flags.html is not None:
        from ..load.html_report import write_html

        with _replaced(flags.html) as path:
            write_html(result, path)
    if flags.output.as_json:
        sys.stdout.write(document + "\n")
    else:
        from .load_shown import show_load

        show_load(flags.output, result)
    for written in (flags.json, flags.html):
        if written is not None:
            flags.output.note(f"Wrote {written}.")


@contextlib.contextmanager
def _replaced(path: Path) -> Generator[Path, None, None]:
    """A file beside it to write, which takes its place when it is whole and on disk."""
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
