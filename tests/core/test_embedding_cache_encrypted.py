"""The file of cached vectors under a key: unreadable without it, and never wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from support.cache_files import FiledCache, files_of, vector_of

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
TEXTS = [f"text number {n}" for n in range(40)]
FLIPS = 60


def filled(folder: Path, key: bytes | None) -> Path:
    filed = FiledCache(folder, key=key)
    for text in TEXTS:
        filed.put(text)
    filed.close()
    return filed.path


def test_entries_outlive_a_restart_and_cannot_be_read_without_the_key(tmp_path: Path) -> None:
    path = filled(tmp_path, KEY)
    content = path.read_bytes()
    assert len(content) > len(TEXTS) * len(vector_of("u", TEXTS[0]).tobytes())
    assert not any(vector_of("u", text).tobytes() in content for text in TEXTS)
    assert not content.startswith(b"SQLite format 3")
    filed = FiledCache(tmp_path, key=KEY)
    assert all(filed.find(text) for text in TEXTS)
    assert filed.forget(TEXTS[3]) == 1
    assert not filed.find(TEXTS[3])
    filed.put("waits in the log")
    filed.flush()
    assert vector_of("u", "waits in the log").tobytes() not in filed.bytes_on_disk()
    filed.close()


@pytest.mark.parametrize(
    ("before", "now"), [(KEY, OTHER), (KEY, None), (None, KEY)], ids=["other", "none", "new"]
)
def test_a_file_of_another_key_is_begun_anew(
    before: bytes | None, now: bytes | None, tmp_path: Path
) -> None:
    filled(tmp_path, before)
    with capture_logs() as lines:
        filed = FiledCache(tmp_path, key=now)
    assert [line["event"] for line in lines] == ["embedding.cache_file_begun_anew"]
    assert not any(filed.find(text) for text in TEXTS)
    filed.put("a")
    filed.close()
    again = FiledCache(tmp_path, key=now)
    assert again.find("a")
    again.close()


def test_a_changed_bit_never_gives_another_vector(tmp_path: Path) -> None:
    path = filled(tmp_path, KEY)
    sound = path.read_bytes()
    chance = random.Random(20)
    missing = 0
    for _ in range(FLIPS):
        hurt = bytearray(sound)
        hurt[chance.randrange(len(sound))] ^= 1 << chance.randrange(8)
        path.write_bytes(hurt)
        filed = FiledCache(tmp_path, key=KEY)
        missing += [filed.find(text) for text in TEXTS].count(False)  # it checks what it finds
        filed.close()
        for rest in files_of(path):
            rest.unlink()
    assert missing >= FLIPS
