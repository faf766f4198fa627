"""`semanticrecall snapshot restore PATH --data-dir DIR`, found through an entry point.

Takes its arguments and returns an exit status: 0 done, 1 refused or failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .argument_parser import ArgumentParser

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
KEY_VARIABLE = "SEMANTICRECALL_ENCRYPTION_KEY"
KEY_FILE_VARIABLE = "SEMANTICRECALL_ENCRYPTION_KEY_FILE"
KEY_TEXT_MAX = 4096
_WITHOUT_LEDGER = (
    "semanticrecall: no FORGOTTEN lies beside the snapshot: what was forgotten since it was made "
    "may have come back\n"
)


def restore(arguments: Sequence[str]) -> int:
    """Restore a snapshot into an empty directory, without a sidecar."""
    from semanticrecall_core.types.errors import SemanticRecallError

    from .saving_commands import restore_offline

    chosen = _parser().parse_args(arguments)
    try:
        counts = restore_offline(
            chosen.data_dir,
            chosen.snapshot,
            key=_key(chosen.encryption_key_file),
            allow_network_filesystem=chosen.allow_network_filesystem,
        )
    except SemanticRecallError as error:
        sys.stderr.write(f"semanticrecall: {error.message}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("semanticrecall: interrupted; nothing was restored\n")
        return EXIT_INTERRUPTED
    if counts.without_ledger:
        sys.stderr.write(_WITHOUT_LEDGER)
    if chosen.format == "json":
        answer = {
            "messages": counts.messages,
            "vectors": counts.vectors,
            "forgotten": counts.forgotten,
            "without_ledger": counts.without_ledger,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        sys.stdout.write(
            f"Restored {counts.messages:,} messages and {counts.vectors:,} vectors into "
            f"{chosen.data_dir}; {counts.forgotten:,} were forgotten since and left out.\n"
        )
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="semanticrecall snapshot restore",
        description="Restore a snapshot into an empty directory, without a sidecar.",
        allow_abbrev=False,
    )
    parser.add_argument("snapshot", type=Path, help="folder of the snapshot")
    parser.add_argument(
        "--data-dir", type=Path, required=True, metavar="DIR", help="empty or absent"
    )
    parser.add_argument(
        "--encryption-key-file",
        type=Path,
        metavar="FILE",
        help=f"key of the store that the snapshot was made of (or {KEY_VARIABLE})",
    )
    parser.add_argument(
        "--allow-network-filesystem",
        action="store_true",
        help="restore although the directory is on a network file system",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    return parser


def _key(path: Path | None) -> bytes | None:
    """The user's key, from the file or the environment; None where there is none.

    Raises:
        InvalidArgumentError: the file cannot be read, or what is there is no key.
    """
    from semanticrecall_core.encryption import user_key
    from semanticrecall_core.types.errors import InvalidArgumentError

    named = str(path or os.environ.get(KEY_FILE_VARIABLE, ""))
    text = os.environ.get(KEY_VARIABLE, "")
    source = f"--encryption-key-file {named}" if named else KEY_VARIABLE
    if named:
        try:
            with open(named, encoding="ascii") as file:
                text = file.read(KEY_TEXT_MAX)
        except (OSError, ValueError):
            raise InvalidArgumentError.of(source, "cannot be read") from None
    elif not text:
        return None
    key = user_key(text)
    if key is None:
        raise InvalidArgumentError.of(source, "must hold 64 hexadecimal digits")
    return key
