"""Commands for the people who run a sidecar: stats, verify, snapshot, reembed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ..results import ReembedProgress, VerifySummary
from .flags import EXIT_IN_PART, Flags, command
from .output import bytes_shown

PANEL = "Care"

MaybeResource = Annotated[str, typer.Argument(help="This resource only. Default: the whole store.")]


@dataclass(frozen=True, kw_only=True)
class StatsFlags(Flags):
    """Flags of `stats`."""

    resource: MaybeResource = ""


def stats(flags: StatsFlags) -> None:
    """Show counts, sizes and which model made the vectors."""
    with flags.client() as memory:
        found = memory.stats(flags.resource)
    output = flags.output
    if output.as_json:
        output.json(found)
        return
    shown: dict[str, object] = {
        "messages": found.messages,
        "vectors": found.vectors,
        "waiting to be embedded": found.pending,
        "threads": found.threads,
    }
    if not flags.resource:
        cache, kept = found.cache, found.snapshots
        asked = cache.hits + cache.misses
        shown |= {
            "resources": found.resources,
            "database on disk": bytes_shown(found.disk_bytes),
            "in memory": bytes_shown(found.resident_bytes),
            "partitions loaded": f"{found.partitions_loaded:,}; words of "
            f"{found.lexical_partitions_loaded:,}, {bytes_shown(found.lexical_bytes)}",
            "embedding cache": f"{cache.entries:,} vectors, {bytes_shown(cache.bytes)}, "
            f"{cache.hits / asked if asked else 0:.0%} of {asked:,} look-ups found; "
            f"on disk {cache.disk_entries:,} vectors, {bytes_shown(cache.disk_bytes)}",
            "snapshots": f"{kept.partitions:,} partitions, {bytes_shown(kept.bytes)}, "
            f"{kept.damaged:,} damaged, {kept.failures:,} failed",
            "device": found.device,
            "server": f"{found.server_version}, up {found.uptime_seconds:,.0f} s",
        }
    output.pairs(shown | {"vectors of": found.index_identity})


@dataclass(frozen=True, kw_only=True)
class VerifyFlags(Flags):
    """Flags of `verify`."""

    resource: MaybeResource = ""


def verify(flags: VerifyFlags) -> None:
    """Compare record, vectors and partitions; exits with 4 if something does not agree.

    Changes nothing. With --format json: JSON Lines, each finding, then the summary.
    """
    output = flags.output
    findings = 0
    with flags.client() as memory:
        for item in memory.verify(flags.resource):
            if not isinstance(item, VerifySummary):
                findings += 1
            if output.as_json:
                output.json(item)
            elif isinstance(item, VerifySummary):
                output.console.print(
                    f"{item.messages:,} messages and {item.vectors:,} vectors: "
                    + (f"{item.findings:,} findings" if item.findings else "all agree"),
                    style="green" if not item.findings else "red",
                )
            else:
                place = f"{item.resource_id} {item.message_id}".strip()
                output.console.print(f"{item.kind}  {place}  {item.detail}", markup=False)
    if findings:
        raise typer.Exit(EXIT_IN_PART)


@dataclass(frozen=True, kw_only=True)
class SnapshotFlags(Flags):
    """Flags of `snapshot`."""

    list: Annotated[bool, typer.Option("--list", help="List those there are.")] = False


def snapshot(flags: SnapshotFlags) -> None:
    """Write snapshots, so that a start is quick. (No --list yet.)"""
    with flags.client() as memory:
        found = memory.list_snapshots() if flags.list else (memory.create_snapshot(),)
    if flags.output.as_json:
        flags.output.json(found if flags.list else found[0])
    else:
        flags.output.table(
            ("snapshot", f"made ({flags.output.zone_name})", "messages", "size"),
            ((s.name, s.create_time, s.messages, bytes_shown(s.bytes)) for s in found),
        )


@dataclass(frozen=True, kw_only=True)
class ReembedFlags(Flags):
    """Flags of `reembed`."""


def reembed(flags: ReembedFlags) -> None:
    """Make all vectors anew with the server's model. (Not in this version.)"""
    output = flags.output
    last = ReembedProgress(0, 0)
    columns = (TextColumn("re-embedding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with flags.client() as memory, output.progress(*columns) as progress:
        task = progress.add_task("", total=None)
        for last in memory.reembed():
            progress.update(task, completed=last.done, total=last.total)
    if output.as_json:
        output.json(last)
    else:
        output.console.print(f"{last.done:,} of {last.total:,} messages re-embedded.")


def register(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        "stats",
        panel=PANEL,
        examples="""
        semanticrecall stats
        semanticrecall stats user-42 --format json
        """,
    )(stats)
    command(app, "verify", panel=PANEL, examples="semanticrecall verify user-42")(verify)
    command(
        app,
        "snapshot",
        panel=PANEL,
        examples="semanticrecall snapshot",
    )(snapshot)
    command(app, "reembed", panel=PANEL, examples="semanticrecall reembed")(reembed)
