"""How large one collection may become in memory: refused before, and true when it was read."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from semanticrecall_core.collections import changing
from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.types.collections import Metric, VectorChange, VectorEntry
from semanticrecall_core.types.errors import LimitReachedError
from support.collection_model import ANY_TIME, by_filter, by_ids, entry, find, ids, opened, put

DIMENSIONS = 100
ROW_BYTES = 4 * DIMENSIONS + 309
LIMIT = 40_000
TEXT = len('{"t":""}')


def one(number: int, text: int = 0) -> VectorEntry:
    """A vector with an id of four bytes, and metadata with so many bytes of text."""
    return entry(f"{number:04}", [1.0] * DIMENSIONS, t="x" * text)


def size(vectors: int, text: int = 0) -> int:
    """Of so many vectors in memory, all of them with so many bytes of text."""
    return vectors * (ROW_BYTES + 4 + TEXT + text)


def limited(folder: Path, limit: int = LIMIT) -> SqliteVectorCollections:
    return opened(folder, bytes_max=limit, collection_bytes_max=limit, metadata_bytes_max=30_000)


def refused(collections: SqliteVectorCollections, *entries: VectorEntry) -> None:
    before = collections.describe("u", "c").vectors
    with pytest.raises(LimitReachedError) as raised:
        put(collections, *entries)
    assert raised.value.reason == "COLLECTION_FULL"
    assert "--collections-bytes-max" in raised.value.message
    assert collections.describe("u", "c").vectors == before


@pytest.mark.parametrize("is_loaded", [False, True])
def test_vectors_that_would_be_too_large_in_memory_are_refused(
    tmp_path: Path, is_loaded: bool
) -> None:
    collections = limited(tmp_path)
    collections.create("u", "c", DIMENSIONS, Metric.COSINE)
    if is_loaded:
        assert find(collections, [1.0] * DIMENSIONS) == []
    fits = LIMIT // size(1)
    assert size(fits) <= LIMIT < size(fits + 1)
    put(collections, *(one(n) for n in range(fits - 1)))
    refused(collections, one(fits), one(fits + 1))
    put(collections, one(fits))
    refused(collections, one(fits + 1))
    put(collections, one(fits))  # is there
    collections.close()
    again = limited(tmp_path)
    assert len(find(again, [1.0] * DIMENSIONS, top_k=9_999)) == fits
    assert again.counts().memory_bytes == size(fits)
    refused(again, one(fits + 1))
    again.close()


def test_metadata_count_too(tmp_path: Path) -> None:
    collections = limited(tmp_path)
    collections.create("u", "c", DIMENSIONS, Metric.COSINE)
    left = LIMIT - size(2)
    assert left > 20_000
    put(collections, one(1, 15_000))
    refused(collections, one(2, left - 15_000 + 1))
    put(collections, one(2, left - 15_000))
    refused(collections, one(1, 15_001))
    change = VectorChange(metadata={"more": 1})
    with pytest.raises(LimitReachedError) as raised:
        collections.update("u", "c", by_ids("0001"), change, ANY_TIME)
    assert raised.value.reason == "COLLECTION_FULL"
    shorter = VectorChange(metadata={"t": ""})
    assert collections.update("u", "c", by_ids("0001"), shorter, ANY_TIME) == 1
    put(collections, one(1, 14_000), one(3, 1_000 - size(1)))
    refused(collections, one(3, 1_001 - size(1)))
    assert collections.delete_vectors("u", "c", by_ids("0003", "none"), ANY_TIME) == 1
    put(collections, one(1, 15_000))
    refused(collections, one(1, 15_001))
    gone = {"t": "x" * 15_000}
    collections.upsert("u", "c", [one(4, 14_999)], gone, ANY_TIME)
    refused(collections, one(4, 15_001))
    collections.delete_vectors("u", "c", by_filter(t={"$exists": True}), ANY_TIME)
    put(collections, one(1, 15_000), one(2, left - 15_000))
    collections.close()
    again = limited(tmp_path)
    assert len(find(again, [1.0] * DIMENSIONS)) == 2
    assert again.counts().memory_bytes == LIMIT
    again.close()


def test_a_larger_one_is_read_and_made_smaller_but_not_larger(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.create("u", "c", DIMENSIONS, Metric.COSINE)
    put(first, *(one(n, 50) for n in range(100)))
    first.close()
    collections = limited(tmp_path)
    assert ids(find(collections, [1.0] * DIMENSIONS, top_k=2)) == ["0000", "0001"]
    refused(collections, one(100))
    refused(collections, one(1, 51))
    put(collections, one(1, 50), one(2, 49))
    assert collections.delete_vectors("u", "c", by_filter(t="x" * 50), ANY_TIME) == 99
    put(collections, one(100))
    collections.close()


def test_a_small_collection_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To count reads all of it: that is for those which may be near the limit."""
    counted: list[int] = []
    real = changing.text_bytes_of_all

    def count(connection: apsw.Connection, key: int) -> int:
        counted.append(key)
        return real(connection, key)

    monkeypatch.setattr(changing, "text_bytes_of_all", count)
    collections = limited(tmp_path, 450_000)
    collections.create("u", "c", DIMENSIONS, Metric.COSINE)
    for number in range(12):
        put(collections, one(number))
    assert counted == []
    for number in range(12, 20):
        put(collections, one(number))
    assert len(counted) == 1
    collections.close()
