"""Timing, percentiles and the account of the machine, shared by the benchmarks."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hdrh.histogram import HdrHistogram

T = TypeVar("T")
NANOSECONDS_MAX = 60 * 10**9
SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of one series, in milliseconds."""

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> Latency:
        """Percentiles to three significant digits; up to 1 minute."""
        # The library has no annotations.
        make: Any = HdrHistogram
        histogram = make(1, NANOSECONDS_MAX, SIGNIFICANT_DIGITS)
        for value in seconds:
            histogram.record_value(min(NANOSECONDS_MAX, round(value * 1e9)))

        def at(percent: float) -> float:
            return float(histogram.get_value_at_percentile(percent)) / 1e6

        return cls(len(seconds), at(50), at(95), at(99))


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds of one call, and what it gave."""
    started = time.perf_counter()
    answer = call()
    return time.perf_counter() - started, answer


def machine() -> str:
    """Processor, cores, kernel and Python, in one line."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        flags = next((line for line in lines if line.startswith("flags")), "")
        if names:
            model = names[0] + (", AVX-512 VNNI" if "avx512_vnni" in flags else "")
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def processor_seconds(pid: int) -> float:
    """Seconds that all threads of a process have run so far, in steps of 10 ms; see proc(5)."""
    # The name, in parentheses, may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident memory of a process, in bytes.

    Attributes:
        bytes: all of it.
        anonymous_bytes: without mapped files, which the kernel may drop.
    """

    bytes: int
    anonymous_bytes: int

    @classmethod
    def of(cls, pid: int) -> Resident:
        """As the kernel counts it now; see proc(5), /proc/pid/status."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kilobytes = {
            name: int(rest.split()[0])
            for name, _, rest in (line.partition(":") for line in lines)
            if name in ("VmRSS", "RssAnon")
        }
        return cls(kilobytes["VmRSS"] * 1024, kilobytes["RssAnon"] * 1024)
