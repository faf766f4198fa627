"""Changes of collections that were acknowledged and are gone are noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from semanticrecall_core.collections.file_format import CollectionsFile
from semanticrecall_core.messages.high_water_mark import HighWaterMark
from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_server.collections_assembly import MARK_FILE
from support.collection_model import ANY_TIME, by_ids, entry, filled, find, opened_with_mark, put

LOG_HEADER, FRAME = 32, 8192 + 24


def killed(tmp_path: Path) -> Path:
    """A directory as a kill leaves it: a file, and a log with several changes."""
    home = tmp_path / "running"
    home.mkdir()
    collections = opened_with_mark(home)
    filled(collections, "c", 50, 1)
    for n in range(5):
        put(collections, entry(f"late{n}", [1.0] * 16))
    left = tmp_path / "left"
    shutil.copytree(home, left)
    collections.close()
    return left


def test_a_log_that_is_whole_is_gone_on_with(tmp_path: Path) -> None:
    home = killed(tmp_path)
    collections = opened_with_mark(home)
    assert collections.describe("u", "c").vectors == 55
    collections.close()
    again = opened_with_mark(home)
    assert again.describe("u", "c").vectors == 55
    again.close()


@pytest.mark.parametrize("what", ["a flipped bit", "a lost end", "no log"])
def test_a_damaged_log_is_noticed(what: str, tmp_path: Path) -> None:
    home = killed(tmp_path)
    log = home / "collections.db-wal"
    content = bytearray(log.read_bytes())
    frames = (len(content) - LOG_HEADER) // FRAME
    assert frames > 10
    if what == "a flipped bit":
        content[LOG_HEADER + (frames - 5) * FRAME + 5_000] ^= 1
        log.write_bytes(content)
    elif what == "a lost end":
        log.write_bytes(content[: LOG_HEADER + (frames - 1) * FRAME])
    else:
        log.unlink()
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    with capture_logs() as logs:
        collections = opened_with_mark(home)
    assert "collections_acknowledged_changes_missing" in [one["event"] for one in logs] or (
        what == "no log"
    )
    with pytest.raises(CorruptDataError):
        collections.list("u")
    collections.close()
    if what != "no log":
        after = {path.name: path.read_bytes() for path in home.iterdir()}
        assert after == before


def test_an_older_copy_is_noticed_and_can_be_accepted(tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir()
    first = opened_with_mark(home)
    filled(first, "c", 10, 1)
    first.close()
    copy = (home / "collections.db").read_bytes()
    second = opened_with_mark(home)
    put(second, entry("late", [1.0] * 16))
    second.close()
    (home / "collections.db").write_bytes(copy)
    refused = opened_with_mark(home)
    for _ in range(2):
        with pytest.raises(CorruptDataError) as raised:
            find(refused, [1.0] * 16)
        assert raised.value.reason == "ACKNOWLEDGED_CHANGES_MISSING"
    assert [one.kind for one in refused.verify(None, ANY_TIME)] == ["PAGE_DAMAGED"]
    refused.close()
    accepted = opened_with_mark(home, accept_loss=True)
    assert accepted.describe("u", "c").vectors == 10
    accepted.close()
    again = opened_with_mark(home)
    assert again.describe("u", "c").vectors == 10
    again.close()


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir()
    first = opened_with_mark(home)
    filled(first, "c", 10, 1)
    first.close()
    (home / "collections.db").unlink()
    for vectors in (3, 3):
        again = opened_with_mark(home)
        if not again.list("u"):
            filled(again, "c", vectors, 1)
        assert again.describe("u", "c").vectors == vectors
        again.close()


def test_a_mark_that_is_gone_is_made_again(tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir()
    first = opened_with_mark(home)
    filled(first, "c", 10, 1)
    first.close()
    for content in (b"", b"\xff" * 8192):
        (home / MARK_FILE).write_bytes(content)
        again = opened_with_mark(home)
        assert again.describe("u", "c").vectors == 10
        put(again, entry("x", [1.0] * 16))
        again.delete_vectors("u", "c", by_ids("x"), ANY_TIME)
        again.close()
        mark = HighWaterMark(home / MARK_FILE)
        last = mark.read()
        mark.close()
        connection = CollectionsFile(home / "collections.db").open_reader()
        assert last is not None
        assert last.revision == connection.execute("SELECT revision FROM file").get
        connection.close()
