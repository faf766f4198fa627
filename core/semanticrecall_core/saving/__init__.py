"""Saved snapshots: folders that hold a whole store, and the ledger of what was forgotten since."""

from __future__ import annotations

from .folder import SavedSnapshots
from .reading import CheckedSnapshot, checked

__all__ = ["CheckedSnapshot", "SavedSnapshots", "checked"]
