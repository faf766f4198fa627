"""The commands `forget` and `purge`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated

import typer

from ..client import RecallClient
from ..results import ForgetResult
from ..values import ForgetConditions, ListOptions, Message
from .flags import (
    EXIT_ERROR,
    EXIT_IN_PART,
    TIMEOUT_SECONDS,
    LongFlags,
    TimedFlags,
    command,
    timeout_option,
)
from .message_flags import PANEL, Resource, RoleName, Roles, Thread, roles_named
from .output import Output, plain

COUNTED_MAX = 10_000
PURGE_SECONDS_MAX = 3600.0

Author = Annotated[
    list[str], typer.Option(help="Only by this author (exactly). Repeatable.", metavar="NAME")
]
Since = Annotated[
    str, typer.Option("--since", "--from", help="Only messages at or after this time.")
]
Until = Annotated[str, typer.Option("--until", "--to", help="Only messages before this time.")]


@dataclass(frozen=True, kw_only=True)
class ForgetFlags(TimedFlags):
    """Flags of `forget`."""

    resource: Resource
    message: Annotated[
        list[str],
        typer.Option("--message", "-m", metavar="ID", help="Id of a message. Repeatable."),
    ] = field(default_factory=list[str])
    thread: Thread = ""
    author: Author = field(default_factory=list[str])
    since: Since = ""
    until: Until = ""
    before: Annotated[str, typer.Option(help="The same as --until.")] = ""
    role: Roles = field(default_factory=list[RoleName])
    everything: Annotated[bool, typer.Option("--everything", help="All of the resource.")] = False
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="Return when nothing of it is left in the files and snapshots either. "
            "Default: that is done later.",
        ),
    ] = False
    timeout: Annotated[
        float,
        timeout_option("What a call may take; with --purge an hour, whatever this says."),
    ] = TIMEOUT_SECONDS
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False

    @property
    def conditions(self) -> ForgetConditions:
        """What the flags say of the messages; empty where they say nothing."""
        found: ForgetConditions = {}
        if self.thread:
            found["thread_id"] = self.thread
        if self.author:
            found["authors"] = self.author
        if self.since:
            found["create_time_from"] = self.moment(self.since, "--since")
        if self.until:
            found["create_time_to"] = self.moment(self.until, "--until")
        if self.before:
            found["create_time_to"] = self.moment(self.before, "--before")
        if self.role:
            found["roles"] = roles_named(self.role)
        return found


def forget(flags: ForgetFlags) -> None:
    """Remove messages from every answer at once. It cannot be taken back.

    Takes ids (--message), --everything, or conditions that must all be met: --thread, --author,
    --since, --until, --role.

    Asks first, and says how many go; not with --yes, and not for single messages (--message).
    """
    if flags.until and flags.before:
        raise typer.BadParameter("--until and --before are the same; give one of them")
    conditions = flags.conditions
    if sum(map(bool, (flags.message, flags.everything, conditions))) != 1:
        raise typer.BadParameter(
            "give --message, or --everything, or one or more of --thread, --author, --since, "
            "--until, --role"
        )
    with flags.client() as memory:
        if not (flags.yes or flags.message):
            _confirm(flags, _what(flags, memory, conditions))
        result = _forget(flags, memory, conditions)
    if flags.output.as_json:
        flags.output.json(result)
        if flags.purge and not result.purged:
            raise typer.Exit(EXIT_IN_PART)
        return
    if result.messages or result.vectors or result.threads:
        flags.output.console.print(
            f"Forgot {result.messages:,} messages, {result.vectors:,} vectors, "
            f"{result.threads:,} threads."
        )
        _tell_when_gone(flags, result)
        return
    flags.output.console.print("Nothing matched; nothing was forgotten.")
    if flags.purge and not result.purged:
        raise _in_part(flags.output, result.snapshots_holding)


def _what(flags: ForgetFlags, memory: RecallClient, conditions: ForgetConditions) -> str:
    owner = plain(flags.resource)
    if not conditions:
        count = memory.stats(flags.resource).messages
        return f"everything of {owner} ({count:,} messages)"
    if conditions.keys() == {"thread_id"}:
        listed = memory.list_threads(flags.resource)
        count = next((t.messages for t in listed if t.thread_id == flags.thread), 0)
        return f"thread {plain(flags.thread)} of {owner} ({count:,} messages)"
    count = sum(1 for _ in islice(_meant(flags, memory, conditions), COUNTED_MAX))
    shown = f"{count:,}" if count < COUNTED_MAX else f"{count:,} or more"
    return f"{_told(flags, conditions)} ({shown} messages)"


def _told(flags: ForgetFlags, conditions: ForgetConditions) -> str:
    parts = [f"all messages of {plain(flags.resource)}"]
    if flags.thread:
        parts.append(f"in thread {plain(flags.thread)}")
    if flags.author:
        parts.append("by " + " or ".join(map(plain, flags.author)))
    if flags.role:
        parts.append("of role " + " or ".join(flags.role))
    if "create_time_from" in conditions:
        parts.append(f"since {flags.output.time(conditions['create_time_from'])}")
    if "create_time_to" in conditions:
        parts.append(f"before {flags.output.time(conditions['create_time_to'])}")
    if flags.since or flags.until or flags.before:
        parts.append(flags.output.zone_name)
    return " ".join(parts)


def _meant(
    flags: ForgetFlags, memory: RecallClient, conditions: ForgetConditions
) -> Iterator[Message]:
    options: ListOptions = {"thread_id": flags.thread, "roles": roles_named(flags.role)}
    if "create_time_from" in conditions:
        options["create_time_from"] = conditions["create_time_from"]
    if "create_time_to" in conditions:
        options["create_time_to"] = conditions["create_time_to"]
    for message in memory.list_messages(flags.resource, **options):
        if not flags.author or message.author in flags.author:
            yield message


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


def _forget(flags: ForgetFlags, memory: RecallClient, conditions: ForgetConditions) -> ForgetResult:
    resource, purge = flags.resource, flags.purge
    timeout = PURGE_SECONDS_MAX if purge else None
    if flags.message:
        listed = list(flags.message)
        return memory.forget_messages(resource, listed, purge=purge, timeout=timeout)
    if flags.everything:
        return memory.forget_everything(resource, purge=purge, timeout=timeout)
    if conditions.keys() == {"thread_id"}:
        return memory.forget_thread(resource, flags.thread, purge=purge, timeout=timeout)
    until = conditions.get("create_time_to")
    if until is not None and len(conditions) == 1:
        return memory.forget_before(resource, until, purge=purge, timeout=timeout)
    return memory.forget(resource, purge=purge, timeout=timeout, **conditions)


def _tell_when_gone(flags: ForgetFlags, result: ForgetResult) -> None:
    output = flags.output
    if result.purged:
        output.note("Nothing of it is left in the files.")
    elif flags.purge:
        raise _in_part(output, result.snapshots_holding)
    elif result.purge_due_time is not None:
        due = f"{output.time(result.purge_due_time)} {output.zone_name}"
        output.note(f"It leaves the files by {due}; `semanticrecall purge` does it now.")
    if result.snapshots_holding:
        listed = ", ".join(map(plain, result.snapshots_holding))
        output.note(f"Snapshots that hold it until then: {listed}")


def _in_part(output: Output, holding: Sequence[str]) -> typer.Exit:
    """Say why a purge is not complete."""
    listed = ", ".join(map(plain, holding))
    output.error(
        "it may be left in the files: these lie in the folder of the snapshots and cannot be read "
        f"as snapshots: {listed}. Remove them, then `semanticrecall purge`."
    )
    return typer.Exit(EXIT_IN_PART)


@dataclass(frozen=True, kw_only=True)
class PurgeFlags(LongFlags):
    """Flags of `purge`."""


def purge(flags: PurgeFlags) -> None:
    """Remove from the files what was forgotten: logs, free pages, images and snapshots.

    The server does that by itself too, some time after each Forget.
    """
    with flags.client() as memory:
        done = memory.purge()
    if flags.output.as_json:
        flags.output.json(done)
        if done.snapshots_holding:
            raise typer.Exit(EXIT_IN_PART)
        return
    if done.snapshots_holding:
        raise _in_part(flags.output, done.snapshots_holding)
    rewritten = len(done.snapshots_rewritten)
    flags.output.console.print(
        f"All that was forgotten up to revision {done.revision:,} has left the files; "
        f"{rewritten:,} snapshots were rewritten."
    )


def register(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        "forget",
        panel=PANEL,
        examples="""
        semanticrecall forget user-42 --message 1f0c --message 2e1d
        semanticrecall forget user-42 --thread kitchen
        semanticrecall forget user-42 --author Mallory \\
            --since 2024-05-01 --until 2024-05-08
        semanticrecall forget user-42 --everything --purge --yes
        """,
    )(forget)
    command(app, "purge", panel="Care", examples="semanticrecall purge")(purge)
