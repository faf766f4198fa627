"""The app: all commands together, and those that other parts of the distribution bring along."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import typer

from .. import __version__
from . import care, demo, files, forgetting, load, memory, recalling, snapshots
from .flags import PROGRAM
from .help import Group
from .plugins import plugins, run_plugin

INTERRUPTED = 130
SERVER_HELP = {
    "serve": "Start a sidecar.",
    "model": "Install, list, check or remove embedding models.",
    "key": "Make a key for encryption at rest.",
}

app = typer.Typer(
    name=PROGRAM,
    cls=Group,
    help="Semantic recall over conversation history, from a sidecar.\n\n"
    "New here? [bold]semanticrecall demo[/] shows it with a small conversation. "
    "[bold]semanticrecall COMMAND --help[/] has examples.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no sidecar reached (or too "
    "busy, too late), 4 done in part, 130 interrupted.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"semanticrecall {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _add_plugin(found: EntryPoint) -> None:
    """A command of another package, which is imported when it is used and not before."""

    def run(context: typer.Context) -> None:
        raise typer.Exit(run_plugin(found, context.args))

    app.command(
        found.name,
        help=SERVER_HELP.get(found.name, ""),
        rich_help_panel="Server",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(run)


demo.register(app)
recalling.register(app)
memory.register(app)
forgetting.register(app)
files.register(app)
care.register(app)
snapshots.register(app)
load.register(app)
for _entry in plugins():
    _add_plugin(_entry)


def run() -> None:
    """Run the command line of this process and exit."""
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
