"""Commands that other parts of the distribution bring along; each is imported when it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import cast

GROUP = "semanticrecall.commands"
WRONG_USAGE = 2


def plugins() -> list[EntryPoint]:
    """All of them, by name."""
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def run_plugin(found: EntryPoint, arguments: Sequence[str]) -> int:
    """Run one; returns its exit status."""
    try:
        return cast("int", found.load()(list(arguments)))
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if not name or name.startswith("semanticrecall"):
            raise
        sys.stderr.write(
            f"semanticrecall: `{found.name}` needs {name}: "
            "pip install 'semanticrecall-sidecar[server]'\n"
        )
        return WRONG_USAGE
