"""Names of snapshots: made here alone, of the time, the revision, and two bytes by chance."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-r[0-9]{1,19}-[0-9a-f]{4}")


def new_suffix() -> str:
    """The part by chance, known before the snapshot's revision is."""
    return secrets.token_hex(2)


def new_name(time_ns: int, revision: int, suffix: str) -> str:
    """The name of a snapshot of this revision, made at this time."""
    made = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return f"{made:%Y%m%dT%H%M%SZ}-r{revision}-{suffix}"


def may_be_snapshot(path: Path) -> bool:
    """Whether a path in the folder may be a snapshot, sound or not."""
    return bool(_NAME.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()
