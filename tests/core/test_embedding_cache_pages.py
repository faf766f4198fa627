"""A damaged page of the file of cached vectors is met, and nothing forgotten stays behind it."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import numpy as np
import pytest

from semanticrecall_core.encryption import checksum_layer
from support.cache_files import DIMENSIONS, TEXTS, FiledCache, files_of, vector_of

SEED = 20261130
PAGE_BYTES = 8192
FLIPS = 60
MANY = 15_000
FLUSHED_EVERY = 500
MEMORY_BYTES_MAX = 8 << 20


def filled(folder: Path) -> bytes:
    """The bytes of a file with an entry for each text."""
    folder.mkdir()
    made = FiledCache(folder)
    for text in TEXTS:
        made.put(text)
    made.close()
    return made.path.read_bytes()


def opened(folder: Path, content: bytes) -> FiledCache:
    folder.mkdir()
    (folder / "embeddings.db").write_bytes(content)
    return FiledCache(folder)


def holds(cache: FiledCache, text: str) -> bool:
    """Whether a text's vector is in the file or its log, as it is on the disk."""
    return vector_of("u", text).astype("<f4").tobytes() in cache.bytes_on_disk()


def test_whatever_page_is_damaged_nothing_forgotten_stays(tmp_path: Path) -> None:
    """Among them the pages of the indexes, through which an erasure finds its entries."""
    content = filled(tmp_path / "made")
    for page in range(len(content) // PAGE_BYTES):
        damaged = bytearray(content)
        start = page * PAGE_BYTES + 200
        damaged[start : start + 4_000] = bytes(4_000)
        cache = opened(tmp_path / f"page-{page}", bytes(damaged))
        cache.forget(*TEXTS[:20])
        cache.file.erase_forgotten()
        assert not [text for text in TEXTS[:20] if holds(cache, text)], f"page {page}"
        cache.put("a new one")
        cache.flush()
        assert cache.find("a new one")
        cache.close()


@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["plain", "encrypted"])
def test_what_is_forgotten_leaves_the_file_in_little_memory(
    tmp_path: Path, key: bytes | None
) -> None:
    cache = FiledCache(tmp_path, key=key)
    for number in range(MANY):
        cache.put(f"text {number}")
        if number % FLUSHED_EVERY == 0:
            cache.flush()  # what waits to be written is bounded, and the rest is dropped
    cache.forget("text 0")
    cache.flush()
    assert sum(path.stat().st_size for path in files_of(cache.path)) > 2 * MEMORY_BYTES_MAX
    before = apsw.memory_used()
    apsw.memory_high_water(True)
    assert cache.file.erase_forgotten()
    assert apsw.memory_high_water() - before < MEMORY_BYTES_MAX
    assert not [path for path in tmp_path.iterdir() if path not in files_of(cache.path)]
    assert cache.find("text 1")
    cache.close()


def test_every_flipped_bit_is_met_when_its_page_is_read(tmp_path: Path) -> None:
    content = filled(tmp_path / "made")
    chosen = random.Random(SEED)
    for number in range(FLIPS):
        at = chosen.randrange(100, len(content))
        damaged = bytearray(content)
        damaged[at] ^= 1 << chosen.randrange(8)
        cache = opened(tmp_path / f"flip-{number}", bytes(damaged))
        for text in TEXTS:  # what is given out is right
            cache.find(text)
        cache.forget(*TEXTS)
        cache.file.erase_forgotten()
        assert not [text for text in TEXTS if holds(cache, text)], f"byte {at} of seed {SEED}"
        assert cache.file.stats().damaged > 0, f"byte {at} of seed {SEED}"
        cache.close()


def test_a_file_of_before_gets_its_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(checksum_layer, "reserve", lambda connection: None)
        before.setattr(checksum_layer, "has_checksums", lambda connection: True)
        filled(tmp_path / "made")
    old = tmp_path / "made" / "embeddings.db"
    assert old.read_bytes()[20] == 0
    cache = FiledCache(old.parent)
    assert all(cache.find(text) for text in TEXTS)
    cache.close()
    content = bytearray(old.read_bytes())
    assert content[20] == 8
    for page in range(1, len(content) // PAGE_BYTES):
        content[(page + 1) * PAGE_BYTES - 9] ^= 1  # before the sum
    damaged = opened(tmp_path / "damaged", bytes(content))
    assert not any(damaged.find(text) for text in TEXTS)
    assert damaged.file.stats().damaged == 1
    damaged.close()


@pytest.mark.parametrize("value", [9, 12, 255])
def test_a_head_that_says_there_are_no_checksums_begins_the_file_anew(
    tmp_path: Path, value: int
) -> None:
    content = bytearray(filled(tmp_path / "made"))
    assert content[20] == 8
    content[20] = value
    cache = opened(tmp_path / "damaged", bytes(content))
    assert not any(cache.find(text) for text in TEXTS)
    assert not [text for text in TEXTS if holds(cache, text)]
    cache.close()


def test_vectors_have_the_size_that_the_test_looks_for() -> None:
    assert np.dtype("<f4").itemsize * DIMENSIONS == len(vector_of("u", TEXTS[0]).tobytes())
