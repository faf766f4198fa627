"""Every page of recall.db is checked when it is read: by its checksum, or by its cipher's tag."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.messages import StoreOptions, page_checksums
from semanticrecall_core.messages.connection import DatabaseFile
from semanticrecall_core.types.errors import CorruptDataError, SemanticRecallError, UnavailableError
from semanticrecall_core.types.values import ListQuery
from support import format_2
from support.faulty_disk import FaultyDisk
from support.message_stores import append, draft, embed
from support.stored_messages import open_store

KEY = bytes(range(32))
SEED = 20_260
FLIPS = 100
MESSAGES = 60


def filled(home: Path, key: bytes | None) -> None:
    """A store whose database uses some dozens of pages, closed."""
    store = open_store(home, generation="g", options=StoreOptions(key=key))
    for n in range(MESSAGES):
        (outcome,) = append(store, draft(f"m{n}", text=f"{n} " + "x" * 3_000))
        if n % 3 == 0:
            embed(store, outcome, *np.eye(4, 384, dtype=np.float32).tolist())
    store.close()


def listed(home: Path, key: bytes | None) -> list[tuple[str, str]]:
    """Everything that the store gives, read through all its tables."""
    store = open_store(home, generation="g", options=StoreOptions(key=key))
    try:
        found = store.list_messages(ListQuery("u", None, 1000))
        findings = list(store.verify(None))
        return [(message.id, message.text) for message in found] + [("f", str(f)) for f in findings]
    finally:
        store.close()


@pytest.mark.parametrize("key", [None, KEY], ids=["checksums", "encrypted"])
def test_every_flipped_bit_of_the_database_is_found(key: bytes | None, tmp_path: Path) -> None:
    home = tmp_path / "data"
    filled(home, key)
    sound = (home / "recall.db").read_bytes()
    expected = listed(home, key)
    chance = random.Random(SEED)
    silent = []
    for _ in range(FLIPS):
        at, bit = chance.randrange(len(sound)), 1 << chance.randrange(8)
        (home / "recall.db").write_bytes(flipped(sound, at, bit))
        if not _is_found(home, key):
            silent.append((at, bit))
    assert silent == [], f"seed {SEED}"
    (home / "recall.db").write_bytes(sound)
    assert listed(home, key) == expected


def flipped(content: bytes, at: int, bit: int) -> bytes:
    hurt = bytearray(content)
    hurt[at] ^= bit
    return bytes(hurt)


def _is_found(home: Path, key: bytes | None) -> bool:
    """Whether a connection that reads every page is told of damage."""
    file = DatabaseFile(home / "recall.db", home / "LOCK", key=key)
    if key is None:
        try:
            page_checksums.check_header(file.path, 8192)
        except CorruptDataError:
            return True
    try:
        connection = file.open_reader()
    except apsw.Error:
        return True
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
    except apsw.Error:
        return True
    finally:
        connection.close()


def test_the_bit_that_says_whether_there_are_checksums_is_checked_itself(tmp_path: Path) -> None:
    home = tmp_path / "data"
    filled(home, None)
    sound = (home / "recall.db").read_bytes()
    assert sound[20] == 8
    for bit in range(8):
        (home / "recall.db").write_bytes(flipped(sound, 20, 1 << bit))
        with pytest.raises(CorruptDataError) as refused:
            open_store(home, generation="g")
        assert refused.value.reason == "PAGE_DAMAGED"
        assert (home / "recall.db").read_bytes() == flipped(sound, 20, 1 << bit)


@pytest.mark.parametrize("key", [None, KEY], ids=["checksums", "encrypted"])
def test_a_damaged_page_is_an_error_that_names_it_and_a_log_line(
    key: bytes | None, tmp_path: Path
) -> None:
    home = tmp_path / "data"
    filled(home, key)
    sound = (home / "recall.db").read_bytes()
    options = StoreOptions(key=key)
    reasons = set()
    for page in range(6, len(sound) // 8192, 3):
        (home / "recall.db").write_bytes(flipped(sound, page * 8192 + 4_000, 1))
        with capture_logs() as lines:
            try:
                store = open_store(home, generation="g", options=options)
                try:
                    for n in range(MESSAGES):
                        store.get("u", [f"m{n}"])
                finally:
                    store.close()
            except SemanticRecallError as error:
                reasons.add(error.reason)
                assert any(line["log_level"] in ("error", "critical") for line in lines)
    assert reasons == {"PAGE_DAMAGED"}


def test_a_damaged_page_of_an_encrypted_log_is_found(tmp_path: Path) -> None:
    home = tmp_path / "data"
    store = open_store(home, generation="g", options=StoreOptions(key=KEY))
    for n in range(20):
        append(store, draft(f"m{n}", text=f"{n} " + "x" * 3_000))
    log = home / "recall.db-wal"
    content = log.read_bytes()
    hurt = bytearray(content)
    for start in range(32, len(content), 24 + 8192):
        if content[start : start + 4] != b"\0\0\0\1":  # the number of the page
            hurt[start + 24 + 5_000] ^= 1
    log.write_bytes(hurt)
    reader = DatabaseFile(home / "recall.db", home / "LOCK", key=KEY).open_reader()
    with pytest.raises(apsw.CorruptError):
        reader.execute("SELECT max(encoded) FROM messages").fetchall()
    log.write_bytes(content)
    assert len(reader.execute("SELECT encoded FROM messages").fetchall()) == 20
    reader.close()
    store.close()


# -- a database that was made without ---------------------------------------------------------


def has_checksums(home: Path) -> bool:
    return (home / "recall.db").read_bytes()[20] == 8


def test_a_database_of_an_older_format_gets_checksums_once(tmp_path: Path) -> None:
    home = format_2.unpacked(tmp_path)
    assert not has_checksums(home)
    with capture_logs() as lines:
        open_store(home, generation=format_2.GENERATION).close()
    assert "store_page_checksums_added" in {line["event"] for line in lines}
    assert has_checksums(home)
    assert sorted(path.name for path in home.iterdir()) == ["BALLAST", "LOCK", "MARK", "recall.db"]
    with capture_logs() as lines:
        open_store(home, generation=format_2.GENERATION).close()
    assert "store_page_checksums_added" not in {line["event"] for line in lines}


def test_without_room_for_a_second_database_it_goes_on_without_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = format_2.unpacked(tmp_path)
    room = shutil.disk_usage(home)._replace(free=1 << 20)
    monkeypatch.setattr(page_checksums.shutil, "disk_usage", lambda path: room)
    with capture_logs() as lines:
        store = open_store(home, generation=format_2.GENERATION)
    assert "store_page_checksums_lacking" in {line["event"] for line in lines}
    append(store, draft("more"))
    store.close()
    assert not has_checksums(home)
    monkeypatch.undo()
    store = open_store(home, generation=format_2.GENERATION)
    assert has_checksums(home)
    assert [message.id for message in store.get("u", ["more"])] == ["more"]
    store.close()


def test_a_copy_that_was_left_by_a_power_cut_is_made_anew(tmp_path: Path) -> None:
    home = format_2.unpacked(tmp_path)
    (home / "recall.db.checksums").write_bytes(b"half a copy")
    store = open_store(home, generation=format_2.GENERATION)
    assert has_checksums(home)
    assert not (home / "recall.db.checksums").exists()
    assert list(store.verify(None)) == []
    store.close()


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    made = FaultyDisk()
    yield made
    made.unregister()


def test_the_cipher_lies_over_whichever_layer_a_store_is_given(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    options = StoreOptions(vfs=disk.vfs_name, key=KEY)
    store = open_store(tmp_path / "data", generation="g", options=options)
    append(store, draft("first"))

    def failing(operation: str, _name: str) -> None:
        if operation == "sync":
            raise apsw.IOError("sync failed")

    disk.fault = failing
    with pytest.raises(UnavailableError):
        append(store, draft("lost"))
    disk.fault = None
    append(store, draft("second"))
    store.close()
    assert disk.calls > 0
    again = open_store(tmp_path / "data", generation="g", options=StoreOptions(key=KEY))
    found = again.list_messages(ListQuery("u", None, 10))
    assert [message.id for message in found] == ["first", "second"]
    assert list(again.verify(None)) == []
    again.close()


def test_the_layer_lies_over_whichever_layer_a_store_is_given(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    stores = [
        open_store(tmp_path / "a", generation="g", options=StoreOptions(vfs=disk.vfs_name)),
        open_store(tmp_path / "b", generation="g"),
        open_store(tmp_path / "c", generation="g", options=StoreOptions(vfs="unix-excl")),
    ]
    calls = []
    for store in stores:
        disk.calls = 0
        append(store, draft("m"))
        assert [message.id for message in store.get("u", ["m"])] == ["m"]
        calls.append(disk.calls)
        store.close()
    assert calls[0] > 0
    assert calls[1:] == [0, 0]
    assert all(has_checksums(tmp_path / name) for name in "abc")
    assert not (tmp_path / "c" / "recall.db-shm").exists()
