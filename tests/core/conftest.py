"""Stores over one folder of saved snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.saved_worlds import SavedWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SavedWorld]:
    made = SavedWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[SavedWorld]:
    """Another store, empty, over the same snapshots; as to locks it is another process."""
    made = SavedWorld(tmp_path, "other")
    yield made
    made.close()
