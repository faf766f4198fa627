"""The command `forget`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated

import typer

from ..client import RecallClient
from ..results import ForgetResult
from .flags import EXIT_ERROR, TimedFlags, command
from .message_flags import PANEL, Resource, Thread
from .output import plain


@dataclass(frozen=True, kw_only=True)
class ForgetFlags(TimedFlags):
    """Flags of `forget`."""

    resource: Resource
    message: Annotated[
        list[str],
        typer.Option("--message", "-m", metavar="ID", help="Id of a message. Repeatable."),
    ] = field(default_factory=list[str])
    thread: Thread = ""
    before: Annotated[str, typer.Option(help="All messages created before this time.")] = ""
    everything: Annotated[bool, typer.Option("--everything", help="All of the resource.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False


def forget(flags: ForgetFlags) -> None:
    """Remove messages from every answer at once. It cannot be taken back.

    Asks first, and says what goes; not with --yes, and not for single messages (--message).
    """
    chosen = [bool(flags.message), bool(flags.thread), bool(flags.before), flags.everything]
    if sum(chosen) != 1:
        raise typer.BadParameter("give one of --message, --thread, --before, --everything")
    with flags.client() as memory:
        if not (flags.yes or flags.message):
            _confirm(flags, _what(flags, memory))
        result = _forget(flags, memory)
    if flags.output.as_json:
        flags.output.json(result)
    else:
        flags.output.console.print(
            f"Forgot {result.messages:,} messages, {result.vectors:,} vectors, "
            f"{result.threads:,} threads."
        )


def _what(flags: ForgetFlags, memory: RecallClient) -> str:
    owner = plain(flags.resource)
    if flags.thread:
        listed = memory.list_threads(flags.resource)
        count = next((t.messages for t in listed if t.thread_id == flags.thread), 0)
        return f"thread {plain(flags.thread)} of {owner} ({count:,} messages)"
    if flags.before:
        moment = flags.output.time(flags.moment(flags.before, "--before"))
        return f"all messages of {owner} from before {moment} {flags.output.zone_name}"
    count = memory.stats(flags.resource).messages
    return f"everything of {owner} ({count:,} messages)"


def _confirm(flags: ForgetFlags, what: str) -> None:
    # Not typer.confirm: it writes a part of its question to stdout, which is for the answer.
    sys.stderr.write(f"Forget {what} for good? [y/N]: ")
    sys.stderr.flush()
    said = sys.stdin.readline()
    if not said:
        sys.stderr.write("\n")
        flags.output.error("nobody is there to answer; --yes does not ask")
    if said.strip().lower() not in ("y", "yes"):
        flags.output.note("Nothing was forgotten.")
        raise typer.Exit(EXIT_ERROR)


def _forget(flags: ForgetFlags, memory: RecallClient) -> ForgetResult:
    if flags.message:
        return memory.forget_messages(flags.resource, list(flags.message))
    if flags.thread:
        return memory.forget_thread(flags.resource, flags.thread)
    if flags.before:
        return memory.forget_before(flags.resource, flags.moment(flags.before, "--before"))
    return memory.forget_everything(flags.resource)


def register(app: typer.Typer) -> None:
    """Add this command."""
    command(
        app,
        "forget",
        panel=PANEL,
        examples="""
        semanticrecall forget user-42 --message 1f0c --message 2e1d
        semanticrecall forget user-42 --thread kitchen
        semanticrecall forget user-42 --everything --yes
        """,
    )(forget)
