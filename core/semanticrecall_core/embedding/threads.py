"""How many cores this process may use, control-group quotas included; a thread's priority.

Neither `os.cpu_count` nor the affinity mask shows a quota, so both control-group generations are
read. Sources: Linux `cgroup-v2.rst` (`cpu.max`: "$MAX $PERIOD", "max" is none), `sched-bwc.rst`
(`cpu.cfs_quota_us`, -1 is none). The tightest limit from the process's group up to the root wins.
"""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_OF_SELF = Path("/proc/self/cgroup")

WORKERS_MAX = 64
"""No pool of this process is sized above this, whatever the machine."""
LOWEST_PRIORITY = 19
"""Of the operating system's; 0 is the usual one."""


def cpu_quota(
    *,
    cgroup_root: Path = CGROUP_ROOT,
    cgroup_of_self: Path = CGROUP_OF_SELF,
    affinity: int | None = None,
) -> float:
    """Cores' worth of time this process may use; above 0, fractions possible.

    Args:
        cgroup_root: where the control groups are mounted.
        cgroup_of_self: the process's groups, `hierarchy:controllers:path` a line.
        affinity: cores of the affinity mask; asked of the system when None.
    """
    cores = float(_affinity() if affinity is None else affinity)
    for directory, version in _group_directories(cgroup_root, cgroup_of_self):
        quota = _quota_v2(directory) if version == 2 else _quota_v1(directory)
        if quota is not None:
            cores = min(cores, quota)
    return cores


def worker_threads(cores: float | None = None) -> int:
    """Threads for one pool of compute-bound work: the quota rounded up, 1 to WORKERS_MAX."""
    available = cpu_quota() if cores is None else cores
    return max(1, min(WORKERS_MAX, math.ceil(available)))


def lower_priority() -> bool:
    """Give the calling thread the lowest priority; False where the system does not let it."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
    except (AttributeError, OSError):
        return False
    return True


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # systems without affinity masks have no control groups either


def _group_directories(root: Path, of_self: Path) -> list[tuple[Path, int]]:
    """Directories that may hold a limit, and the control-group version of each."""
    found: list[tuple[Path, int]] = []
    for line in _read(of_self).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            bases, version = [root, root / "unified"], 2
        elif "cpu" in controllers.split(","):
            bases, version = [root / "cpu", root / controllers], 1
        else:
            continue
        group = PurePosixPath(path.strip().lstrip("/"))
        for base in bases:
            # Inside a container the path is often the host's and absent here: parents count too.
            found += [(base / part, version) for part in (group, *group.parents)]
    return found


def _quota_v2(directory: Path) -> float | None:
    match _read(directory / "cpu.max").split():
        case [quota, period] if quota.isdigit() and period.isdigit():
            return _cores(int(quota), int(period))
        case _:
            return None


def _quota_v1(directory: Path) -> float | None:
    quota = _read(directory / "cpu.cfs_quota_us").strip()
    period = _read(directory / "cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit():  # "-1" is no limit
        return _cores(int(quota), int(period))
    return None


def _cores(quota_us: int, period_us: int) -> float | None:
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
