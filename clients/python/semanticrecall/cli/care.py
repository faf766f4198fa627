"""Commands for the people who run a sidecar: stats, verify, reembed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from ..care_results import Finding, ReembedProgress, Stats, VerifyProgress, VerifySummary
from ..client import RecallClient
from ..errors import SemanticRecallError
from .flags import EXIT_IN_PART, Flags, LongFlags, command
from .output import Output, bytes_shown, plain

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
        shown |= _of_the_store(found)
    shown["vectors of"] = found.index_identity
    if found.next_index_identity:
        shown["next model"] = found.next_index_identity
    output.pairs(shown)


def _of_the_store(found: Stats) -> dict[str, object]:
    cache, kept = found.cache, found.snapshots
    asked = cache.hits + cache.misses
    shown: dict[str, object] = {
        "resources": found.resources,
        "database on disk": bytes_shown(found.disk_bytes),
        "encrypted": found.encrypted,
        "in memory": bytes_shown(found.resident_bytes),
        "partitions loaded": f"{found.partitions_loaded:,}; words of "
        f"{found.lexical_partitions_loaded:,}, {bytes_shown(found.lexical_bytes)}",
        "embedding cache": f"{cache.entries:,} vectors, {bytes_shown(cache.bytes)}, "
        f"{cache.hits / asked if asked else 0:.0%} of {asked:,} look-ups found; "
        f"on disk {cache.disk_entries:,} vectors, {bytes_shown(cache.disk_bytes)}",
        "images": f"{kept.partitions:,} partitions, {bytes_shown(kept.bytes)}, "
        f"{kept.damaged:,} damaged, {kept.failures:,} failed",
        "found damaged": found.damaged,
        "expired": found.expired,
        "forgotten, in files still": found.purge_pending,
        "device": found.device,
        "server": f"{found.server_version}, up {found.uptime_seconds:,.0f} s",
    }
    if found.next_index_identity:
        shown["embedded with next model"] = found.next_embedded
    return shown


@dataclass(frozen=True, kw_only=True)
class VerifyFlags(LongFlags):
    """Flags of `verify`."""

    resource: MaybeResource = ""
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Mend what can be made anew, remove and tell what is lost, and recall some "
            "messages by their own text at the end.",
        ),
    ] = False


def verify(flags: VerifyFlags) -> None:
    """Compare all that is stored; exits with 4 if something does not agree.

    Changes nothing; with --repair it mends, and exits with 4 if something could not be mended, or
    messages are lost. With --format json: JSON Lines, each finding, then the summary.
    """
    output = flags.output
    summary = VerifySummary(0, 0, 0)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with flags.client() as memory, output.progress(*columns) as progress:
        task = progress.add_task("", total=None)
        for item in memory.verify(flags.resource, repair=flags.repair):
            if isinstance(item, VerifyProgress):
                total = item.total or None
                progress.update(task, description=item.stage, completed=item.done, total=total)
                continue
            if isinstance(item, VerifySummary):
                summary = item
            if output.as_json:
                output.json(item)
            elif isinstance(item, Finding):
                _tell_finding(output, item)
        may_have_them = summary.lost and not output.as_json and _has_snapshots(memory)
    if not output.as_json:
        _tell_summary(output, summary)
        if may_have_them:
            output.console.print(
                "A saved snapshot may have them: semanticrecall snapshot list", markup=False
            )
    if flags.resource and not (summary.messages or summary.findings):
        output.note(f"{plain(flags.resource)} has no messages.")
    if not summary.is_sound:
        raise typer.Exit(EXIT_IN_PART)


def _has_snapshots(memory: RecallClient) -> bool:
    try:
        return bool(memory.list_snapshots())
    except SemanticRecallError:  # what was found is to be told all the same
        return False


def _tell_finding(output: Output, found: Finding) -> None:
    place = f"{found.resource_id} {found.message_id}".strip()
    mended = "  (mended)" if found.repaired else ""
    line = f"{found.kind}  {plain(place)}  {plain(found.detail)}{mended}"
    output.console.print(line, markup=False)


def _tell_summary(output: Output, summary: VerifySummary) -> None:
    told = f"{summary.messages:,} messages and {summary.vectors:,} vectors: "
    if summary.findings:
        told += f"{summary.findings:,} findings, {summary.repaired:,} of them mended"
    else:
        told += "all agree"
    if summary.lost:
        told += f"; {summary.lost:,} messages were lost"
    if summary.self_test_recalls:
        first = summary.self_test_recalls - summary.self_test_failures
        told += f"; {first:,} of {summary.self_test_recalls:,} messages recalled by their own text"
    output.console.print(told, style="green" if summary.is_sound else "red")


@dataclass(frozen=True, kw_only=True)
class ReembedFlags(LongFlags):
    """Flags of `reembed`."""


def reembed(flags: ReembedFlags) -> None:
    """Make all vectors anew with the next model (`serve --next-model-dir`), then switch to it.

    The present model answers meanwhile. Ctrl-C ends only the watching; the next call joins again.
    """
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
        output.pairs({"from": last.from_index_identity, "to": last.to_index_identity})
    if not last.complete:
        raise typer.Exit(EXIT_IN_PART)


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
    command(
        app,
        "verify",
        panel=PANEL,
        examples="""
        semanticrecall verify
        semanticrecall verify user-42
        semanticrecall verify --repair
        """,
    )(verify)
    command(app, "reembed", panel=PANEL, examples="semanticrecall reembed")(reembed)
