"""Rows that nobody waits for, until they are embedded together."""

from __future__ import annotations

import math
import time
from typing import Generic, Protocol, TypeVar

# Embedded as soon as they come, each turn's would take the processor, a commit and the thread that
# commits from the turn that follows. So long, turns that follow each other at once take the 2.2 to
# 3.3 ms that they take without any embedding (at p50, from Node.js, on two busy cores).
GATHER_SECONDS = 0.05


class _OfResource(Protocol):
    @property
    def resource_id(self) -> str: ...


RowT = TypeVar("RowT", bound=_OfResource)


class Gathering(Generic[RowT]):
    """In the order they came. Not thread-safe."""

    def __init__(self, rows_max: int) -> None:
        """Nothing has gathered. Of `rows_max` rows it is full."""
        self._rows_max = rows_max
        self._rows: list[RowT] = []
        self.until = math.inf
        """When they are to be taken, by `time.monotonic`; infinite where there are none."""

    def __len__(self) -> int:
        """How many rows."""
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Waiting for more would gain nothing."""
        return len(self._rows) >= self._rows_max

    def add(self, row: RowT) -> None:
        """Let a row wait for others."""
        self._rows.append(row)
        if self.until == math.inf:
            self.until = time.monotonic() + GATHER_SECONDS

    def take(self, resource_id: str | None = None) -> list[RowT]:
        """What has gathered, of one resource or of all; the others stay."""
        taken = self._rows
        self._rows = []
        if resource_id is not None:
            self._rows = [row for row in taken if row.resource_id != resource_id]
            taken = [row for row in taken if row.resource_id == resource_id]
        if not self._rows:
            self.until = math.inf
        return taken
