"""The digest of a saved snapshot sees what every check below it would pass."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from semanticrecall_core.messages.connection import connect
from semanticrecall_core.types.errors import CorruptDataError
from support.saved_worlds import SavedWorld, budget, content


def test_another_database_that_is_sound_in_itself_is_refused(tmp_path: Path) -> None:
    world, empty = SavedWorld(tmp_path), SavedWorld(tmp_path, "empty")
    world.add("u", ["one", "two"])
    made = world.create()
    path = world.path(made)
    size = path.stat().st_size
    connection = connect(path.as_uri(), apsw.SQLITE_OPEN_READWRITE)
    # Pages, rows and counts agree afterwards: nothing but the digest can know.
    connection.execute("UPDATE record SET retention_time_ns = 1")
    connection.close()
    assert path.stat().st_size == size
    world.databases.check(path, budget())
    with pytest.raises(CorruptDataError):
        world.snapshots.verify(made.name, budget())
    with pytest.raises(CorruptDataError):
        empty.restore(made.name)
    assert content(empty.store) == {}
    world.close()
    empty.close()
