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


@pytest.mark.parametrize("table", ["messages", "vectors", "analyses"])
def test_each_row_is_compared_with_its_checksum(table: str, tmp_path: Path) -> None:
    world = SavedWorld(tmp_path)
    world.add("u", ["one", "two", "three"])
    path = world.path(world.create())
    connection = connect(path.as_uri(), apsw.SQLITE_OPEN_READWRITE)
    connection.execute(f"UPDATE {table} SET checksum = checksum + 1 WHERE seq = 2")
    assert connection.changes() == 1
    connection.close()
    world.databases.check(path, budget(), rows=False)
    with pytest.raises(CorruptDataError, match="does not match its checksum"):
        world.databases.check(path, budget())
    world.close()
