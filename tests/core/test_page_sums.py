"""Pages that VACUUM INTO wrote before it knew that they have sums get theirs."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from semanticrecall_core.messages import page_checksums, page_sums

PAGE_BYTES = 8192
ROWS = 1_500


def written_without_sums(path: Path, *, reserved: int = 8) -> None:
    """A database of some megabytes with room for sums, and none in it."""
    connection = apsw.Connection(str(path), vfs="unix")
    connection.pragma("page_size", PAGE_BYTES)
    connection.reserve_bytes("main", reserved)
    connection.execute("CREATE TABLE t(n INTEGER PRIMARY KEY, text TEXT)")
    with connection:
        connection.executemany(
            "INSERT INTO t VALUES (?, ?)", ((n, f"row {n} " * 300) for n in range(ROWS))
        )
    connection.close()


def read_through_the_layer(path: Path) -> int:
    with page_checksums.layer_over("unix") as layer:
        connection = apsw.Connection(str(path), vfs=layer)
        connection.pragma("schema_version")
    try:
        return int(connection.execute("SELECT count(text) FROM t WHERE length(text) > 100").get)
    finally:
        connection.close()


def test_every_page_has_its_sum_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    written_without_sums(path)
    with pytest.raises(apsw.Error):
        read_through_the_layer(path)
    pages = path.stat().st_size // PAGE_BYTES
    assert pages * PAGE_BYTES > 2 << 20
    assert page_sums.complete(path) == pages
    assert read_through_the_layer(path) == ROWS
    assert page_sums.complete(path) == 0


def test_a_sum_that_does_not_match_is_left_to_be_found(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    written_without_sums(path)
    page_sums.complete(path)
    with path.open("r+b") as file:
        file.seek(40 * PAGE_BYTES + 4000)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    assert page_sums.complete(path) == 0
    with pytest.raises(apsw.Error):
        read_through_the_layer(path)


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    written_without_sums(other, reserved=0)
    before = other.read_bytes()
    assert page_sums.complete(other) == 0
    assert other.read_bytes() == before
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)) * 64)
    assert page_sums.complete(noise) == 0
