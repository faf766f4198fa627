"""Telling somebody of every resource that changed, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from semanticrecall_core.types.values import PartitionRows

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn


class ChangeWatch:
    """A `CommitListener` that passes on `resource_changed`."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        """`changed`: called with the resource's id, on the record's writer thread."""
        self._changed = changed

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        """Part of a change."""

    def vectors_removed(self, resource_id: str, seqs: IntColumn) -> None:
        """Part of a change."""

    def resource_dropped(self, resource_id: str) -> None:
        """Part of a change."""

    def resource_changed(self, resource_id: str) -> None:
        """Pass it on."""
        self._changed(resource_id)
