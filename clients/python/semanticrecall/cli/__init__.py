"""The command line `semanticrecall`. Needs typer and rich: the extra `[cli]`.

Exit codes: 0 done; 1 the server refused or failed; 2 the command line is wrong; 3 no sidecar
reached, or it drains, is too late or too busy; 4 done in part (some lines or messages were refused,
or `verify` found something); 130 interrupted.

`--format json` writes one JSON document, or JSON Lines where the answer is a list (`history`,
`threads`, `get`, `export`, `verify`). Its keys are those of the Python client and stay.
"""

from __future__ import annotations

import sys

from .plugins import install_command, plugins, run_plugin

_SERVER_COMMANDS = ("serve", "model", "key", "demo")


def main() -> None:
    """Entry point of `semanticrecall`."""
    if sys.argv[1:2] == ["serve"]:
        # A sidecar needs nothing of the other commands, which take longer to import than it does.
        for found in plugins():
            if found.name == "serve":
                sys.exit(run_plugin(found, sys.argv[2:]))
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in {"typer", "rich", "click"}:
            raise
        # What starts a sidecar, or keeps its models, needs the sidecar as well.
        extra = "server" if sys.argv[1:2] and sys.argv[1] in _SERVER_COMMANDS else "cli"
        sys.stderr.write(
            f"semanticrecall: the command line needs typer and rich: {install_command(extra)}\n"
        )
        sys.exit(2)
    run()
