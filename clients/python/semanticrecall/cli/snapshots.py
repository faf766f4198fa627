"""The commands `snapshot create`, `list`, `delete` and `restore`.

`restore --data-dir` needs no sidecar, but the package of one: it is found by its entry point, so
that the client never imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from ..care_results import Snapshot
from .flags import EXIT_ERROR, Flags, LongFlags, command
from .help import Group
from .output import Output, bytes_shown, plain
from .plugins import SNAPSHOT_GROUP, install_command, run_plugin

PANEL = "Care"
DEFAULT = "create"
HELP = """Save the whole store, list what is saved, or restore it.

Alone it is the same as `snapshot create`.

\b
[bold]Examples[/]
  semanticrecall snapshot
  semanticrecall snapshot list
  semanticrecall snapshot restore NAME
"""

Name = Annotated[str, typer.Argument(help="As `snapshot list` shows it.")]


class DefaultingGroup(Group):
    """Commands of which one runs where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; put the default's name where it names no command."""
        helps = ctx.help_option_names
        if not args or (args[0] not in self.commands and args[0] not in helps):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, kw_only=True)
class CreateFlags(LongFlags):
    """Flags of `snapshot create`."""

    partitions_only: Annotated[
        bool,
        typer.Option(
            "--partitions-only",
            help="Only write images of partitions, so that the next start is quick.",
        ),
    ] = False


def create(flags: CreateFlags) -> None:
    """Save the whole store, as it is at one moment, while the sidecar serves.

    It goes to a folder of the sidecar's (`serve --snapshots-dir`), which makes the name.
    """
    with flags.client() as memory:
        made = memory.create_snapshot(partitions_only=flags.partitions_only)
    if flags.output.as_json:
        flags.output.json(made)
    elif flags.partitions_only:
        flags.output.console.print(
            f"Images of partitions: {made.vectors:,} vectors, {bytes_shown(made.bytes)}."
        )
    else:
        _show(flags.output, [made])


@dataclass(frozen=True, kw_only=True)
class ListFlags(Flags):
    """Flags of `snapshot list`."""


def list_snapshots(flags: ListFlags) -> None:
    """List the snapshots in the sidecar's folder, newest first (JSON Lines with --format json)."""
    with flags.client() as memory:
        found = memory.list_snapshots()
    if flags.output.as_json:
        flags.output.json_lines(found)
    elif found:
        _show(flags.output, found)
    else:
        flags.output.note("No snapshots.")
    if left_out := found.left_out:
        flags.output.note(
            f"{len(left_out):,} more in the folder cannot be read as snapshots, and may hold what "
            f"was forgotten: {', '.join(map(plain, left_out))}"
        )


def _show(output: Output, snapshots: Sequence[Snapshot]) -> None:
    output.table(
        ("snapshot", f"made ({output.zone_name})", "messages", "size", "forgotten since"),
        ((s.name, s.create_time, s.messages, bytes_shown(s.bytes), s.forgotten) for s in snapshots),
    )


@dataclass(frozen=True, kw_only=True)
class DeleteFlags(Flags):
    """Flags of `snapshot delete`."""

    name: Name


def delete(flags: DeleteFlags) -> None:
    """Remove a snapshot from the sidecar's folder."""
    with flags.client() as memory:
        memory.delete_snapshot(flags.name)
    if flags.output.as_json:
        flags.output.json({"deleted": flags.name})
    else:
        flags.output.console.print(f"Deleted {flags.name}.", markup=False)


@dataclass(frozen=True, kw_only=True)
class RestoreFlags(LongFlags):
    """Flags of `snapshot restore`."""

    name: Annotated[
        str,
        typer.Argument(help="As `snapshot list` shows it; with --data-dir the path of its folder."),
    ]
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Restore into this directory, which must be empty or absent, without a sidecar.",
        ),
    ] = None
    encryption_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --data-dir: the key of the store that the snapshot was made of (or "
            "SEMANTICRECALL_ENCRYPTION_KEY).",
        ),
    ] = None


def restore(flags: RestoreFlags) -> None:
    """Fill an empty store with a snapshot: all of it, or nothing if it is damaged.

    What was forgotten since it was made is left out.
    """
    if flags.data_dir is not None:
        raise typer.Exit(_restore_offline(flags, flags.data_dir))
    if flags.encryption_key_file is not None:
        raise typer.BadParameter("--encryption-key-file goes with --data-dir")
    with flags.client() as memory:
        counts = memory.restore_snapshot(flags.name)
    if flags.output.as_json:
        flags.output.json(counts)
    else:
        flags.output.console.print(
            f"Restored {counts.messages:,} messages and {counts.vectors:,} vectors; "
            f"{counts.forgotten:,} were forgotten since and left out."
        )
    if counts.without_ledger:
        flags.output.note(
            "no FORGOTTEN lies beside the snapshot: what was forgotten since it was made may have "
            "come back"
        )


def _restore_offline(flags: RestoreFlags, data_dir: Path) -> int:
    arguments = [flags.name, "--data-dir", str(data_dir), "--format", flags.format.value]
    if flags.encryption_key_file is not None:
        arguments += ["--encryption-key-file", str(flags.encryption_key_file)]
    for found in entry_points(group=SNAPSHOT_GROUP, name="restore"):
        return run_plugin(found, arguments)
    flags.output.error(f"--data-dir needs the sidecar here: {install_command('server')}")
    return EXIT_ERROR


def register(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(name="snapshot", cls=DefaultingGroup, help=HELP)
    command(
        group,
        "create",
        panel=PANEL,
        examples="""
        semanticrecall snapshot
        semanticrecall snapshot create --partitions-only
        """,
    )(create)
    command(group, "list", panel=PANEL, examples="semanticrecall snapshot list")(list_snapshots)
    command(
        group,
        "delete",
        panel=PANEL,
        examples="semanticrecall snapshot delete NAME",
    )(delete)
    command(
        group,
        "restore",
        panel=PANEL,
        examples="""
        semanticrecall snapshot restore NAME
        semanticrecall snapshot restore ./saved/NAME --data-dir ./restored
        """,
    )(restore)
    app.add_typer(group, rich_help_panel=PANEL)
