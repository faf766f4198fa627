"""How much memory this process may use: the machine's, or less where a control group says so.

Sources: Linux `cgroup-v2.rst` (`memory.max`: bytes, "max" is none) and `cgroup-v1/memory.rst`
(`memory.limit_in_bytes`). The tightest limit from the process's group up to the root wins.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from .setting_kinds import Memory

if TYPE_CHECKING:
    from .config import Settings

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_OF_SELF = Path("/proc/self/cgroup")
PARTITIONS_BYTES_MAX = 4 * 2**30
LEXICAL_BYTES_MAX = 2**30
COLLECTIONS_BYTES_MAX = 2**30
LOW_MEMORY_DIVISOR = 4
"""With `--memory low` caches grow to this part of their settings."""


def memory_limit_bytes(
    *,
    cgroup_root: Path = CGROUP_ROOT,
    cgroup_of_self: Path = CGROUP_OF_SELF,
    physical_bytes: int | None = None,
) -> int:
    """Bytes this process may use.

    Args:
        cgroup_root: where the control groups are mounted.
        cgroup_of_self: the process's groups, `hierarchy:controllers:path` a line.
        physical_bytes: memory of the machine; asked of the system when None.
    """
    limit = _physical_bytes() if physical_bytes is None else physical_bytes
    try:
        lines = cgroup_of_self.read_text().splitlines()
    except OSError:
        return limit
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            mount, name = cgroup_root, "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = cgroup_root / "memory", "memory.limit_in_bytes"
        else:
            continue
        parts = PurePosixPath(group).parts[1:]
        for depth in range(len(parts) + 1):
            limit = min(limit, _limit_in(mount.joinpath(*parts[:depth]) / name, limit))
    return limit


def partitions_bytes_default() -> int:
    """What partitions may take where nothing is set: half of the memory, at most 4 GiB."""
    return min(PARTITIONS_BYTES_MAX, memory_limit_bytes() // 2)


def lexical_bytes(settings: Settings) -> int:
    """What the words of partitions may take.

    Where nothing is set: an eighth of the memory, at most 1 GiB.
    """
    most = settings.lexical_bytes_max or min(LEXICAL_BYTES_MAX, memory_limit_bytes() // 8)
    return cache_bytes(settings, most)


def collections_bytes(settings: Settings) -> int:
    """What vector collections may take.

    Where nothing is set: an eighth of the memory, at most 1 GiB.
    """
    most = settings.collections_bytes_max or min(COLLECTIONS_BYTES_MAX, memory_limit_bytes() // 8)
    return cache_bytes(settings, most)


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limit_in(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file in this group, or "max"
        return otherwise


def cache_bytes(settings: Settings, bytes_max: int) -> int:
    """How large a cache may grow of which the settings say `bytes_max`."""
    return bytes_max // LOW_MEMORY_DIVISOR if settings.memory is Memory.LOW else bytes_max
