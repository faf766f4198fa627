"""What a process holds, read from /proc once in a while: memory, threads, open files."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Gauge:
    """One look."""

    resident_bytes: int
    threads: int
    handles: int


def gauge(pid: int) -> Gauge:
    """Of this process now."""
    proc = Path(f"/proc/{pid}")
    resident = int((proc / "statm").read_text().split()[1]) * PAGE_BYTES
    return Gauge(resident, len(os.listdir(proc / "task")), len(os.listdir(proc / "fd")))


class Watched:
    """Looks at a process until it is left.

    Attributes:
        seen: what was seen, in order.
    """

    def __init__(self, pid: int, interval_s: float = 0.25) -> None:
        self.seen: list[Gauge] = []
        self._pid = pid
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="gauges", daemon=True)

    def __enter__(self) -> Self:
        self.seen.append(gauge(self._pid))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(10)

    def growth_bytes(self) -> int:
        """The most memory seen, less what there was at first."""
        return max(one.resident_bytes for one in self.seen) - self.seen[0].resident_bytes

    def slope_bytes(self) -> float:
        """Bytes of memory gained from look to look in the second half, by least squares."""
        half = [one.resident_bytes for one in self.seen[len(self.seen) // 2 :]]
        if len(half) < 2:
            return 0.0
        return float(np.polyfit(range(len(half)), half, 1)[0])

    def halves(self, name: str) -> tuple[int, int]:
        """The most of a gauge in the first half, and in the second."""
        values = [getattr(one, name) for one in self.seen]
        middle = len(values) // 2
        return max(values[: middle + 1]), max(values[middle:])

    def _look(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.seen.append(gauge(self._pid))
            except OSError:  # it has ended
                return
