"""The vector cache on a damaged file and a failing disk: never wrong, and in nobody's way."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.embedding.cache_format import open_connection
from semanticrecall_core.types.errors import UnavailableError
from support.cache_files import TEXTS, FiledCache, files_of, filled, reopened, vector_of
from support.faulty_disk import FaultyDisk


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[FiledCache]:
    cache = FiledCache(tmp_path)
    yield cache
    cache.close()


def fails_once(operation: str, error: type[Exception]) -> Any:
    failed = threading.Event()

    def fault(what: str, name: str) -> None:
        if what == operation and not failed.is_set():
            failed.set()
            raise error("injected")

    return fault


def test_an_erasure_that_fails_takes_the_whole_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    filed = FiledCache(tmp_path, vfs=disk.vfs_name)
    for text in TEXTS:
        filed.put(text)
    filed.flush()
    disk.fault = fails_once("write", apsw.FullError)
    with capture_logs() as logs:
        filed.forget(TEXTS[0])
    assert [entry["reason"] for entry in logs] == ["NOT_ERASABLE"]
    assert vector_of("u", TEXTS[0]).tobytes()[:64] not in filed.bytes_on_disk()
    assert not filed.find(TEXTS[0])
    filed.put("new")  # it goes on, with an empty file
    again = reopened(filed)
    assert again.find("new")
    assert again.cache.stats().disk_entries == 1
    again.close()


def test_an_erasure_that_is_impossible_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    filed = FiledCache(tmp_path, vfs=disk.vfs_name)
    filed.put("a")
    filed.flush()
    disk.fault = fails_once("write", apsw.IOError)

    def refuse(path: str) -> None:
        raise OSError(errno.EACCES, "no")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(UnavailableError):
        filed.forget("a")
    with pytest.raises(UnavailableError):
        filed.cache.forget_owner("u")
    monkeypatch.undo()
    assert filed.forget("a") == 0
    assert not filed.find("a")
    assert vector_of("u", "a").tobytes()[:64] not in filed.bytes_on_disk()
    filed.close()


# ---- damage ----


def test_a_changed_bit_never_gives_another_vector(tmp_path: Path) -> None:
    path = filled(tmp_path)
    sound = path.read_bytes()
    random_places = random.Random(20)
    places = [random_places.randrange(len(sound)) for _ in range(150)]
    places += [*range(0, 100, 7), 8192, 8199, 2 * 8192 + 1, 3 * 8192 + 3]
    missing = 0
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << random_places.randrange(8)
        path.write_bytes(damaged)
        filed = FiledCache(tmp_path)
        found = [filed.find(text) for text in TEXTS]  # checks the bytes of what it finds
        missing += found.count(False)
        for text, there in zip(TEXTS, found, strict=True):
            if not there:
                filed.put(text)
        filed.flush()
        assert filed.forget(TEXTS[0]) == 1
        filed.close()
        for rest in files_of(path):
            rest.unlink()
    assert missing > 40


def test_a_damaged_entry_is_dropped_counted_and_made_anew(tmp_path: Path) -> None:
    path = filled(tmp_path)
    damaged = bytearray(vector_of("u", TEXTS[7]).tobytes())
    damaged[100] ^= 4
    raw = open_connection(path, "unix-excl", None)  # below the entry's checksum, above the page's
    raw.execute(
        "UPDATE entries SET value = CAST(? || substr(value, ?) AS BLOB) WHERE substr(value, 1, 64)"
        " = ?",
        (bytes(damaged), len(damaged) + 1, vector_of("u", TEXTS[7]).tobytes()[:64]),
    )
    assert raw.changes() == 1
    raw.close()
    filed = FiledCache(tmp_path)
    with capture_logs() as logs:
        assert [text for text in TEXTS if not filed.find(text)] == [TEXTS[7]]
    assert [entry["event"] for entry in logs] == ["embedding.cache_entry_damaged"]
    assert filed.cache.stats().disk_damaged == 1
    filed.put("another")
    filed.flush()
    assert filed.cache.stats().disk_entries == 40
    filed.put(TEXTS[7])
    again = reopened(filed)
    assert all(again.find(text) for text in TEXTS)
    assert again.cache.stats().disk_damaged == 0
    again.close()


@pytest.mark.parametrize("factor", [np.nan, np.inf, 0.0, 1.01])
def test_a_vector_that_is_not_of_unit_length_is_not_given_out(
    filed: FiledCache, factor: float
) -> None:
    name = filed.cache.key("u", "", "a")
    value = (vector_of("u", "a") * np.float32(factor)).tobytes() + bytes(4)
    filed.file.write({name: value}, ())
    assert filed.file.read(name) is None
    assert filed.file.stats().damaged == 1


def test_an_entry_of_another_name_is_not_given_out(filed: FiledCache) -> None:
    filed.put("a")
    filed.put("b")
    filed.close()
    raw = open_connection(filed.path, "unix-excl", None)
    rows = raw.execute("SELECT id, checksum, value FROM entries ORDER BY id").fetchall()
    for (row_id, _, _), (_, checksum, value) in zip(rows, reversed(rows), strict=True):
        raw.execute(
            "UPDATE entries SET checksum = ?, value = ? WHERE id = ?", (checksum, value, row_id)
        )
    raw.close()
    again = FiledCache(filed.path.parent)
    assert not again.find("a")
    assert not again.find("b")
    again.close()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file_costs_its_entries_and_no_more(tmp_path: Path, share: float) -> None:
    path = filled(tmp_path)
    os.truncate(path, int(path.stat().st_size * share))
    filed = FiledCache(tmp_path)
    for text in TEXTS:
        filed.find(text)
    for text in TEXTS:
        filed.put(text)
    filed.flush()
    again = reopened(filed)
    found = [again.find(text) for text in TEXTS]
    assert all(found) or again.cache.stats().disk_damaged
    again.close()


def foreign_database(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE entries(key BLOB, value BLOB)")
    raw.commit()
    raw.close()


def other_format(path: Path) -> None:
    filled(path.parent)
    raw = open_connection(path, "unix-excl", None)
    raw.execute("PRAGMA user_version = 99")
    raw.close()


def with_a_trigger(path: Path) -> None:
    filled(path.parent)
    raw = open_connection(path, "unix-excl", None)
    raw.execute("CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END")
    raw.close()


def without_its_row(path: Path) -> None:
    filled(path.parent)
    raw = open_connection(path, "unix-excl", None)
    raw.execute("DELETE FROM cache")
    raw.close()


def a_link(path: Path) -> None:
    filled(path.parent)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"not a database, but long enough to be looked at " * 400),
        foreign_database,
        other_format,
        with_a_trigger,
        without_its_row,
        a_link,
    ],
    ids=["noise", "foreign", "format", "trigger", "empty", "link"],
)
def test_a_foreign_file_is_begun_anew_with_one_line(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "embeddings.db"
    make(path)
    with capture_logs() as logs:
        filed = FiledCache(tmp_path)
    assert [entry["event"] for entry in logs] == ["embedding.cache_file_begun_anew"]
    assert not any(filed.find(text) for text in TEXTS)
    filed.put("a")
    again = reopened(filed)
    assert again.find("a")
    assert again.cache.stats().disk_entries == 1
    again.close()
    if path.with_name("elsewhere").exists():
        assert sqlite3.connect(path.with_name("elsewhere")).execute(
            "SELECT count(*) FROM entries"
        ).fetchone() == (40,)


def test_another_model_begins_anew(tmp_path: Path) -> None:
    filled(tmp_path)
    with capture_logs() as logs:
        filed = FiledCache(tmp_path, generation="another")
    assert [entry["reason"] for entry in logs] == ["OTHER_MODEL"]
    assert not any(filed.find(text) for text in TEXTS)
    assert vector_of("u", TEXTS[0]).tobytes() not in filed.bytes_on_disk()
    filed.close()


def test_a_place_where_no_file_can_be_costs_the_file_only(tmp_path: Path) -> None:
    (tmp_path / "embeddings.db").mkdir()
    with capture_logs() as logs:
        filed = FiledCache(tmp_path)
    assert [entry["event"] for entry in logs] == [
        "embedding.cache_file_begun_anew",
        "embedding.cache_file_unusable",
    ]
    filed.put("a")
    filed.flush()
    assert filed.find("a")
    assert filed.forget("a") == 1
    assert filed.cache.stats().disk_entries == 0
    filed.close()


# ---- a full disk ----


def test_a_full_disk_pauses_the_file_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("semanticrecall_core.embedding.cache_file.time.monotonic", lambda: clock[0])
    free = [1 << 40]
    disk = FaultyDisk()
    filed = FiledCache(tmp_path, vfs=disk.vfs_name, free_bytes=lambda folder: free[0])
    filed.put("before")
    filed.flush()

    def full(what: str, name: str) -> None:
        if what == "write":
            raise apsw.FullError("injected")

    with capture_logs() as logs:
        disk.fault = full
        for text in TEXTS[:3]:
            filed.put(text)
            filed.behind._write(with_uses=False)
            clock[0] += 100
        disk.fault = None
        free[0] = 1 << 20  # there is some room, which is left to the record
        for text in TEXTS[:3]:
            filed.put(text)
            filed.behind._write(with_uses=False)
            clock[0] += 100
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("embedding.cache_file_paused", "DISK_FULL")
    ]
    assert filed.find("before")
    assert all(filed.find(text) for text in TEXTS[:3])  # in memory
    assert filed.cache.stats().disk_entries == 1
    free[0] = 1 << 40
    filed.put("after")
    again = reopened(filed)
    assert again.find("before")
    assert again.find("after")
    assert not again.find(TEXTS[0])
    again.close()


def test_a_disk_that_does_not_answer_costs_the_entries_only(tmp_path: Path) -> None:
    disk = FaultyDisk()
    filed = FiledCache(tmp_path, vfs=disk.vfs_name)
    filed.put("before")
    filed.flush()
    disk.fault = fails_once("write", apsw.IOError)
    with capture_logs() as logs:
        filed.put("lost")
        filed.flush()
    assert [entry["reason"] for entry in logs] == ["WRITE_FAILED"]
    assert filed.find("before")
    filed.close()


# ---- threads ----


def test_readers_writers_and_forgetters_at_once(tmp_path: Path) -> None:
    filed = FiledCache(tmp_path, memory=20 * 2000)
    ended = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=run)

    def read() -> None:
        while not ended.is_set():
            for text in TEXTS:
                filed.find(text)

    def write() -> None:
        for _ in range(15):
            for text in TEXTS:
                filed.put(text)
            filed.flush()

    def forget() -> None:
        for _ in range(10):
            for text in TEXTS[::4]:
                filed.forget(text)
            filed.cache.forget_owner("nobody")

    readers = [guarded(read) for _ in range(4)]
    others = [guarded(write), guarded(forget)]
    for thread in readers + others:
        thread.start()
    for thread in others:
        thread.join(120)
    ended.set()
    for thread in readers:
        thread.join(120)
    assert not failures
    assert filed.cache.stats().disk_damaged == 0
    filed.forget(*TEXTS)
    filed.flush()
    assert filed.cache.stats().disk_entries == 0
    filed.close()
