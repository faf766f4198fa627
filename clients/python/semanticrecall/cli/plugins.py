"""Commands that other parts of the distribution bring along; each is imported when it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import cast

GROUP = "semanticrecall.commands"
# Parts of `snapshot` that need no sidecar, but the package of one.
SNAPSHOT_GROUP = "semanticrecall.snapshot_commands"
WRONG_USAGE = 2


def install_command(extra: str) -> str:
    """What brings an extra of this package: from an index, or from a checkout."""
    return f"pip install 'semanticrecall-sidecar[{extra}]' (in a checkout: '.[{extra}]')"


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
            f"semanticrecall: `{found.name}` needs {name}: {install_command('server')}\n"
        )
        return WRONG_USAGE
