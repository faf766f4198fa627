"""How large each fault test is: one table for all of them.

The quick column runs inside `make test`, the nightly one in `make faults`. FAULTS_<NAME> in the
environment gives another number to both: FAULTS_F1_KILLS=10000.

    @pytest.mark.parametrize("column", COLUMNS)
    def test_...(column: str) -> None:
        for _ in range(size("F1_KILLS", column)):
"""

from __future__ import annotations

import os

import pytest

QUICK, NIGHTLY = "quick", "nightly"
COLUMNS = [QUICK, pytest.param(NIGHTLY, marks=pytest.mark.nightly)]

_SIZES: dict[str, tuple[int, int]] = {
    # name: (quick, nightly)
    "F1_KILLS": (50, 1_000),
    "F2_SCENARIOS": (1, 5),
    "F3_POWER_CUTS": (20, 300),
    "F4_CRASHES": (1, 20),
    "F5_DISK_SIZES": (1, 64),
    "F6_DAMAGES_PER_FILE": (200, 2_000),
    "F7_LOST_TAILS": (50, 500),
    "F8_SLOW_DISKS": (1, 10),
    "F9_MEMORY_LIMITS": (10, 100),
    "F11_CLOCK_JUMPS": (4, 20),
    "F12_SIGNALS": (20, 500),
    "F13_HAMMER_SECONDS": (60, 3_600),
    "F14_HOLDERS": (5, 50),
    "F16_DAMAGED_IMAGES": (100, 1_000),
    "F17_DAMAGED_MODELS": (60, 400),
    "F18_CALLS": (10_000, 100_000),
    "F19_MESSAGES": (60, 600),
    "F20_PEERS": (8, 8),
    "F21_REQUESTS": (100_000, 10_000_000),
    "F23_OPERATIONS": (10_000, 1_000_000),
    "F24_EMBEDDINGS": (10_000, 1_000_000),
    "F26_NAMES": (200, 200),
    "F29_CANARIES": (1_000, 10_000),
    "F30_CANARIES": (1_000, 10_000),
}


def size(name: str, column: str) -> int:
    """The number of this column, or of the environment.

    Args:
        name: e.g. "F1_KILLS".
        column: QUICK or NIGHTLY.
    """
    given = os.environ.get(f"FAULTS_{name}")
    return int(given) if given else _SIZES[name][column == NIGHTLY]
