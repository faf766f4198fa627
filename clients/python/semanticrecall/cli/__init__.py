"""The command line `semanticrecall`. Needs typer and rich: the extra `[cli]`.

Exit codes: 0 done; 1 the server refused or failed; 2 the command line is wrong; 3 no answer (not
running, draining, too late, too busy); 4 done in part (some lines or messages were refused, or
`verify` found something); 130 interrupted.

`--format json` writes one JSON document, or JSON Lines where the answer is a list (`history`,
`threads`, `get`, `export`, `verify`). Its keys are those of the Python client and stay.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `semanticrecall`."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in {"typer", "rich", "click"}:
            raise
        sys.stderr.write(
            "semanticrecall: the command line needs typer and rich: "
            "pip install 'semanticrecall-sidecar[cli]'\n"
        )
        sys.exit(2)
    run()
