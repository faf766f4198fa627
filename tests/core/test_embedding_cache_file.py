"""The vector cache on disk: kept across restarts, erased when asked, never wrong."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from semanticrecall_core.embedding import write_behind
from semanticrecall_core.embedding.cache import open_vector_cache
from semanticrecall_core.embedding.cache_file import CacheFile, CacheFileOptions
from semanticrecall_core.embedding.write_behind import WriteBehind
from support.cache_files import DIMENSIONS, TEXTS, FiledCache, files_of, filled, reopened, vector_of


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[FiledCache]:
    cache = FiledCache(tmp_path)
    yield cache
    cache.close()


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
    assert again.cache.get(again.cache.key("u", "", "a")) is None
    assert again.find("a")
    assert again.cache.get(again.cache.key("u", "", "a")) is not None
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


def test_many_entries_are_not_waited_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "QUEUE_ENTRIES_EARLY", 3)
    filed = FiledCache(tmp_path)
    written = threading.Event()
    write = filed.file.write

    def noted(*arguments: Any) -> None:
        write(*arguments)
        written.set()

    monkeypatch.setattr(filed.file, "write", noted)
    for text in TEXTS:
        filed.put(text)
    assert written.wait(30)
    assert filed.cache.stats().disk_entries >= 3
    filed.close()


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
    found = filed.cache.get(filed.cache.key("u", "", "secret"))
    assert found is None
    filed.put("other")
    entry = filed.cache.get(filed.cache.key("u", "", "other"))
    assert entry is not None
    filed.cache.put(filed.cache.key("u", "", "secret"), entry, mark)
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
    names = {text: filed.cache.key("ada", "", text)[8:] for text in TEXTS}
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
    # However long entries wait for others to be written with them.
    behind = WriteBehind(file, delay_s=3_600.0)
    assert emptied.wait(30)
    emptied.clear()
    file.write({bytes(40): vector_of("u", "a").tobytes() + bytes(4)}, ())
    assert behind.forget([bytes(40)]) == {bytes(40)}
    assert emptied.wait(30)
    assert (tmp_path / "embeddings.db-wal").stat().st_size == 0
    behind.close()
