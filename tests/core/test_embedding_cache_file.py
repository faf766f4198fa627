"""The vector cache on disk: kept across restarts, erased when asked, never wrong."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from structlog.testing import capture_logs

from semanticrecall_core.embedding import write_behind
from semanticrecall_core.embedding.cache import CacheKey, open_vector_cache
from semanticrecall_core.embedding.cache_file import CacheFile, CacheFileOptions
from semanticrecall_core.embedding.write_behind import WriteBehind
from semanticrecall_core.types.errors import UnavailableError
from support.cache_files import DIMENSIONS, FiledCache, files_of, vector_of
from support.faulty_disk import FaultyDisk

TEXTS = [f"what was said at {n}" for n in range(40)]


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[FiledCache]:
    cache = FiledCache(tmp_path)
    yield cache
    cache.close()


def reopened(cache: FiledCache, **options: Any) -> FiledCache:
    cache.close()
    return FiledCache(cache.path.parent, **options)


def filled(folder: Path) -> Path:
    """A sound file with TEXTS in it, closed."""
    cache = FiledCache(folder)
    for text in TEXTS:
        cache.put(text)
    cache.close()
    assert not [path for path in files_of(cache.path) if path != cache.path]
    return cache.path


# ---- across restarts ----


def test_what_was_put_is_found_after_a_restart(filed: FiledCache) -> None:
    for text in TEXTS:
        filed.put(text)
    again = reopened(filed)
    assert all(again.find(text) for text in TEXTS)
    assert not again.find("something else")
    assert not again.find(TEXTS[0], owner="v")
    stats = again.cache.stats()
    assert (stats.disk_entries, stats.disk_hits, stats.hits, stats.disk_damaged) == (40, 40, 40, 0)
    assert stats.entries == 40
    assert stats.disk_bytes == sum(path.stat().st_size for path in files_of(again.path))
    assert all(again.find(text) for text in TEXTS)
    assert again.cache.stats().disk_hits == 40  # in memory now
    again.close()


def test_get_does_not_ask_the_disk(filed: FiledCache) -> None:
    filed.put("a")
    again = reopened(filed)
    assert again.cache.get(CacheKey("u", "", "a")) is None
    assert again.find("a")
    assert again.cache.get(CacheKey("u", "", "a")) is not None
    again.close()


def test_entries_are_written_without_being_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.db"
    file = CacheFile(CacheFileOptions(path, 1 << 20), "g", DIMENSIONS)
    written = threading.Event()
    write = file.write

    def noted(*arguments: Any) -> None:
        write(*arguments)
        written.set()

    file.write = noted  # type: ignore[method-assign]
    behind = WriteBehind(file, delay_s=0.01)
    name = bytes(40)
    value = vector_of("u", "a").tobytes() + bytes(4)
    behind.put(name, value)
    assert written.wait(30)
    assert file.read(name) == value
    behind.close()


def test_what_waits_to_be_written_is_found(tmp_path: Path) -> None:
    filed = FiledCache(tmp_path, memory=1)  # nothing fits in memory
    filed.put("a")
    assert filed.find("a")
    filed.flush()
    assert filed.find("a")
    filed.close()


def test_a_full_queue_takes_no_more(filed: FiledCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "QUEUE_ENTRIES_MAX", 3)
    for text in TEXTS:
        filed.put(text)
    again = reopened(filed)
    assert [again.find(text) for text in TEXTS] == [n < 3 for n in range(40)]
    again.close()


def test_the_file_is_private_and_names_nothing(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        filed = FiledCache(tmp_path, generation="model of the test")
        filed.put("a secret sentence", owner="somebody")
        filed.behind.flush()
        filed.put("another sentence", owner="somebody")
        filed.behind._write(with_uses=False)  # not checkpointed: it is in the log
        paths = files_of(filed.path)
        assert len(paths) == 2
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
        content = filed.bytes_on_disk()
    finally:
        os.umask(old)
    assert vector_of("somebody", "another sentence").tobytes() in content
    assert b"sentence" not in content
    assert b"somebody" not in content
    filed.close()


def test_an_older_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = filled(tmp_path)
    path.chmod(0o644)
    FiledCache(tmp_path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_stores_name_one_text_differently(tmp_path: Path) -> None:
    names = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        filed = FiledCache(folder)
        filed.put("a")
        filed.flush()
        names.append(
            sqlite3.connect(filed.path).execute("SELECT key, owner FROM entries").fetchall()
        )
        filed.close()
    assert names[0] != names[1]
    assert names[0][0][0] != names[1][0][0]
    assert names[0][0][1] != names[1][0][1]


def test_what_belongs_to_nobody_is_not_written(filed: FiledCache) -> None:
    filed.put("a", owner="")
    assert filed.find("a", owner="")
    again = reopened(filed)
    assert not again.find("a", owner="")
    assert again.cache.stats().disk_entries == 0
    again.close()


# ---- room ----


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    room = 400 << 10
    filed = FiledCache(tmp_path, disk=room)
    for text in TEXTS:
        filed.put(text)
        filed.flush()
    filed = reopened(filed, disk=room)
    assert filed.find(TEXTS[0])  # used now
    filed = reopened(filed, disk=room)
    fresh = [f"fresh {n}" for n in range(190)]
    for text in fresh:
        filed.put(text)
    filed = reopened(filed, disk=room)
    stats = filed.cache.stats()
    assert filed.find(TEXTS[0])
    left = [filed.find(text) for text in TEXTS[1:]]
    gone = left.count(False)
    assert gone > 10
    assert left == [False] * gone + [True] * (len(left) - gone)
    assert all(filed.find(text) for text in fresh)
    assert stats.disk_entries == 40 + 190 - gone
    filed.close()
    assert filed.path.stat().st_size <= room + 190 * 2048


def test_a_file_much_larger_than_allowed_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr("semanticrecall_core.embedding.cache_file._SLACK_BYTES", 0)
    with capture_logs() as logs:
        filed = FiledCache(tmp_path, disk=50_000)
    assert [entry["reason"] for entry in logs] == ["LARGER_THAN_ALLOWED"]
    assert filed.cache.stats().disk_entries == 0
    filed.close()


@pytest.mark.parametrize(("memory", "disk"), [(0, 1 << 20), (1 << 20, 0)])
def test_without_a_bound_above_zero_no_file_stays(tmp_path: Path, memory: int, disk: int) -> None:
    path = filled(tmp_path)
    cache = open_vector_cache(memory, CacheFileOptions(path, disk), "g", DIMENSIONS)
    assert files_of(path) == []
    cache.close()


# ---- erasing ----


def test_forgetting_counts_each_text_once_wherever_it_is(filed: FiledCache) -> None:
    for text in ("on disk", "in both", "in the queue"):
        filed.put(text)
    filed = reopened(filed)
    assert filed.find("in both")
    filed.put("in the queue and memory")
    assert filed.forget("on disk", "in both", "in the queue and memory", "nowhere") == 3
    assert filed.forget("on disk", "in both", "in the queue and memory", "nowhere") == 0
    filed = reopened(filed)
    assert not filed.find("on disk")
    assert not filed.find("in both")
    assert not filed.find("in the queue and memory")
    assert filed.find("in the queue")
    assert filed.cache.stats().disk_entries == 1
    filed.close()


def test_what_was_forgotten_while_it_was_computed_is_not_written(filed: FiledCache) -> None:
    mark = filed.cache.begin_miss()
    filed.forget("secret")
    found = filed.cache.get(CacheKey("u", "", "secret"))
    assert found is None
    filed.put("other")
    entry = filed.cache.get(CacheKey("u", "", "other"))
    assert entry is not None
    filed.cache.put(CacheKey("u", "", "secret"), entry, mark)
    again = reopened(filed)
    assert not again.find("secret")
    assert again.cache.stats().disk_entries == 1
    again.close()


def test_what_is_forgotten_while_it_is_read_does_not_come_back_to_memory(
    filed: FiledCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    filed.put("secret")
    filed = reopened(filed)
    read = filed.file.read

    def read_then_forget(name: bytes) -> bytes | None:
        value = read(name)
        monkeypatch.undo()
        assert filed.forget("secret") == 1
        return value

    monkeypatch.setattr(filed.file, "read", read_then_forget)
    filed.find("secret")
    assert not filed.find("secret")
    assert filed.cache.stats().entries == 0
    filed.close()


def test_what_is_read_while_it_is_forgotten_does_not_stay_in_memory(
    filed: FiledCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    filed.put("secret")
    filed = reopened(filed)
    erase = filed.file.erase

    def found_then_erase(names: Any) -> set[bytes]:
        assert filed.find("secret")
        return erase(names)

    monkeypatch.setattr(filed.file, "erase", found_then_erase)
    assert filed.forget("secret") == 1
    assert filed.cache.stats().entries == 0
    assert not filed.find("secret")
    filed.close()


def test_an_owner_is_erased_as_a_whole_and_alone(filed: FiledCache) -> None:
    for owner in ("ada", "bob"):
        for text in TEXTS[:20]:
            filed.put(text, owner=owner)
    filed.flush()
    for owner in ("ada", "bob"):
        for text in TEXTS[20:]:
            filed.put(text, owner=owner)
    assert filed.cache.forget_owner("ada") == 40
    assert filed.cache.forget_owner("ada") == 0
    again = reopened(filed)
    assert not any(again.find(text, owner="ada") for text in TEXTS)
    assert all(again.find(text, owner="bob") for text in TEXTS)
    assert again.cache.stats().disk_entries == 40
    again.close()


def test_no_byte_of_what_was_forgotten_is_left(filed: FiledCache) -> None:
    for owner in ("ada", "bob"):
        for text in TEXTS:
            filed.put(text, owner=owner)
    filed.flush()
    names = {text: filed.cache._name(CacheKey("ada", "", text))[8:] for text in TEXTS}
    content = filed.bytes_on_disk()
    assert all(names[text] in content for text in TEXTS)
    filed.forget(TEXTS[3], owner="ada")
    # Gone from what is read, before any checkpoint: the log has pages without it.
    assert not filed.find(TEXTS[3], owner="ada")
    filed.flush()
    content = filed.bytes_on_disk()
    assert vector_of("ada", TEXTS[3]).tobytes()[:64] not in content
    assert names[TEXTS[3]] not in content
    assert vector_of("ada", TEXTS[4]).tobytes() in content
    filed.cache.forget_owner("ada")
    filed.flush()
    content = filed.bytes_on_disk()
    for text in TEXTS:
        raw = vector_of("ada", text).tobytes()
        assert raw[:64] not in content
        assert raw[-64:] not in content
        assert names[text] not in content
        assert vector_of("bob", text).tobytes() in content


def test_the_log_is_emptied_soon_after(tmp_path: Path) -> None:
    file = CacheFile(CacheFileOptions(tmp_path / "embeddings.db", 1 << 20), "g", DIMENSIONS)
    emptied = threading.Event()
    checkpoint = file.checkpoint

    def noted() -> bool:
        done = checkpoint()
        emptied.set()
        return done

    file.checkpoint = noted  # type: ignore[method-assign]
    behind = WriteBehind(file, delay_s=0.01)
    file.write({bytes(40): vector_of("u", "a").tobytes() + bytes(4)}, ())
    assert behind.forget([bytes(40)]) == {bytes(40)}
    assert emptied.wait(30)
    assert (tmp_path / "embeddings.db-wal").stat().st_size == 0
    behind.close()


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
    content = bytearray(path.read_bytes())
    place = content.index(vector_of("u", TEXTS[7]).tobytes())
    content[place + 100] ^= 4
    path.write_bytes(content)
    filed = FiledCache(tmp_path)
    assert [text for text in TEXTS if not filed.find(text)] == [TEXTS[7]]
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
    name = filed.cache._name(CacheKey("u", "", "a"))
    value = (vector_of("u", "a") * np.float32(factor)).tobytes() + bytes(4)
    filed.file.write({name: value}, ())
    assert filed.file.read(name) is None
    assert filed.file.stats().damaged == 1


def test_an_entry_of_another_name_is_not_given_out(filed: FiledCache) -> None:
    filed.put("a")
    filed.put("b")
    filed.close()
    raw = sqlite3.connect(filed.path)
    rows = raw.execute("SELECT id, checksum, value FROM entries ORDER BY id").fetchall()
    for (row_id, _, _), (_, checksum, value) in zip(rows, reversed(rows), strict=True):
        raw.execute(
            "UPDATE entries SET checksum = ?, value = ? WHERE id = ?", (checksum, value, row_id)
        )
    raw.commit()
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
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 2")
    raw.close()


def with_a_trigger(path: Path) -> None:
    filled(path.parent)
    raw = sqlite3.connect(path)
    raw.execute("CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END")
    raw.commit()
    raw.close()


def without_its_row(path: Path) -> None:
    filled(path.parent)
    raw = sqlite3.connect(path)
    raw.execute("DELETE FROM cache")
    raw.commit()
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


def fails_once(operation: str, error: type[Exception]) -> Any:
    failed = threading.Event()

    def fault(what: str, name: str) -> None:
        if what == operation and not failed.is_set():
            failed.set()
            raise error("injected")

    return fault


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
