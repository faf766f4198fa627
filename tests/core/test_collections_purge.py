"""What was removed from collections leaves their file with a purge; a search of every byte."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import numpy as np
import pytest

from semanticrecall_core.collections import removing, storage
from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.types.collections import Metric, VectorEntry
from semanticrecall_core.types.errors import DeadlineExceededError, ResourceExhaustedError
from semanticrecall_core.types.values import CallBudget
from support.collection_model import ANY_TIME, KEY, by_filter, by_ids, find, ids, opened, put

SEED = 20_262
DIMENSIONS = 384
VECTORS = 400
RUN = 16


def flock(seed: int) -> list[VectorEntry]:
    """Vectors whose ids, metadata and numbers nothing else has; some need several pages."""
    chance = random.Random(seed)
    values = np.random.default_rng(seed).standard_normal((VECTORS, DIMENSIONS)).astype(np.float32)
    return [
        VectorEntry(
            f"id-{chance.getrandbits(64):016x}",
            values[n],
            {
                "word": f"word-{chance.getrandbits(64):016x}",
                "part": n % 4,
                "long": "".join(
                    f"{chance.getrandbits(64):016x}" for _ in range(900 if n % 50 == 0 else 2)
                ),
            },
        )
        for n in range(VECTORS)
    ]


def traces(entries: list[VectorEntry]) -> set[bytes]:
    """Runs of 16 bytes of each vector, id and field."""
    found = set()
    for one in entries:
        word, long = str(one.metadata["word"]), str(one.metadata["long"])
        for content in (
            np.asarray(one.values).tobytes(),
            one.id.encode(),
            word.encode(),
            long.encode(),
        ):
            found.update(content[at : at + RUN] for at in range(0, len(content) - RUN + 1, RUN))
    return found


def left_in(home: Path, wanted: set[bytes]) -> int:
    """How many of these runs any file has, at any place."""
    found = 0
    for path in home.iterdir():
        content = path.read_bytes()
        found += len({content[at : at + RUN] for at in range(len(content) - RUN + 1)} & wanted)
    return found


def grown(collections: SqliteVectorCollections, entries: list[VectorEntry]) -> None:
    """Put in an order that makes SQLite move rows from page to page."""
    collections.create("u", "c", DIMENSIONS, Metric.COSINE)
    order = list(entries)
    random.Random(SEED).shuffle(order)
    for start in range(0, VECTORS, 50):
        put(collections, *order[start : start + 50])


def test_removed_vectors_are_in_no_byte_after_a_purge(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    entries = flock(SEED)
    grown(collections, entries)
    gone = [one for one in entries if one.metadata["part"] in (0, 1, 2)]
    kept = [one for one in entries if one.metadata["part"] == 3]
    assert left_in(tmp_path, traces(gone)) > 1_000
    collections.delete_vectors("u", "c", by_filter(part=0), ANY_TIME)
    collections.upsert("u", "c", [kept[0]], {"part": 1}, ANY_TIME)
    collections.delete_vectors(
        "u", "c", by_ids(*(one.id for one in gone if one.metadata["part"] == 2)), ANY_TIME
    )
    collections.purge(ANY_TIME)
    assert left_in(tmp_path, traces(gone)) == 0, f"seed {SEED}"
    assert left_in(tmp_path, traces(kept)) == len(traces(kept))
    assert not collections.purge_pending()
    found = find(collections, np.asarray(kept[7].values).tolist(), top_k=VECTORS)
    assert set(ids(found)) == {one.id for one in kept}
    assert found[0].id == kept[7].id
    collections.close()
    assert left_in(tmp_path, traces(gone)) == 0


def test_removed_collections_are_in_no_byte_after_a_purge(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    entries = flock(SEED)
    grown(collections, entries)
    collections.create("another-resource", "another-collection", 2, Metric.COSINE)
    collections.create("resource-that-is-gone", "collection-that-is-gone", 2, Metric.COSINE)
    collections.forget_resource("resource-that-is-gone")
    collections.delete("u", "c")
    collections.purge(ANY_TIME)
    names = {b"resource-that-is", b"collection-that-"}
    assert left_in(tmp_path, traces(entries) | names) == 0
    assert left_in(tmp_path, {b"another-resource", b"another-collecti"}) == 2
    collections.close()


def test_an_encrypted_file_shows_nothing_at_any_time(tmp_path: Path) -> None:
    collections = opened(tmp_path, key=KEY)
    entries = flock(SEED)
    grown(collections, entries)
    assert left_in(tmp_path, traces(entries)) == 0
    collections.delete_vectors("u", "c", by_filter(part=0), ANY_TIME)
    collections.purge(ANY_TIME)
    assert len(find(collections, [1.0] * DIMENSIONS, top_k=VECTORS)) == 3 * VECTORS // 4
    collections.close()


def test_what_was_removed_before_a_restart_is_purged_after_it(tmp_path: Path) -> None:
    first = opened(tmp_path)
    entries = flock(SEED)
    grown(first, entries)
    first.delete_vectors("u", "c", by_filter(part={"$ne": 3}), ANY_TIME)
    first.close()
    second = opened(tmp_path)
    assert second.purge_pending()
    second.purge(ANY_TIME)
    assert not second.purge_pending()
    assert left_in(tmp_path, traces([one for one in entries if one.metadata["part"] != 3])) == 0
    second.close()


def test_rows_of_a_collection_that_a_process_did_not_come_to_are_purged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(tmp_path)
    entries = flock(SEED)
    grown(first, entries)
    monkeypatch.setattr(removing.Remover, "start", lambda _: None)
    assert first.delete("u", "c") == VECTORS
    first.close()
    assert left_in(tmp_path, traces(entries)) > 1_000
    second = opened(tmp_path)
    assert list(second.verify(None, ANY_TIME)) == []
    assert second.create("u", "c", DIMENSIONS, Metric.COSINE)[1]
    assert find(second, [1.0] * DIMENSIONS) == []
    second.purge(ANY_TIME)
    assert left_in(tmp_path, traces(entries)) == 0
    second.close()


def test_a_purge_waits_for_a_reader_as_long_as_its_budget(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    grown(collections, flock(SEED))
    collections.delete_vectors("u", "c", by_filter(part=0), ANY_TIME)
    held = reading(collections)
    next(held)
    with pytest.raises(DeadlineExceededError):
        collections.purge(CallBudget.of_seconds(0.2))
    assert collections.purge_pending()
    with ThreadPoolExecutor(1) as pool:
        purge = pool.submit(collections.purge, ANY_TIME)
        assert not purge.done()
        held.close()
        purge.result(30)
    assert not collections.purge_pending()
    collections.close()


def reading(collections: SqliteVectorCollections) -> Iterator[None]:
    """A read of everything that goes on until this is closed."""
    opened_storage = collections._storage
    assert opened_storage is not None
    with opened_storage.read() as connection:
        connection.execute("SELECT count(*) FROM vectors").fetchall()
        yield


def test_a_purge_needs_room_and_takes_none_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collections = opened(tmp_path)
    grown(collections, flock(SEED))
    collections.delete_vectors("u", "c", by_filter(part=0), ANY_TIME)
    size = (tmp_path / "collections.db").stat().st_size
    usage = storage.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage._replace(free=2 * size - 1))
    with pytest.raises(ResourceExhaustedError) as raised:
        collections.purge(ANY_TIME)
    assert raised.value.reason == "DISK_FULL"
    assert collections.purge_pending()
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage._replace(free=3 * size))
    collections.purge(ANY_TIME)
    assert not collections.purge_pending()
    collections.close()


def test_others_write_and_search_after_a_purge_and_beside_it(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    grown(collections, flock(SEED))
    done = threading.Event()

    def work(name: str) -> int:
        rounds = 0
        collections.create(name, "c", 2, Metric.COSINE)
        while not done.is_set() or rounds < 5:
            one = [VectorEntry(f"v{rounds}", [1, rounds], {"n": rounds})]
            collections.upsert(name, "c", one, {"n": rounds - 2}, ANY_TIME)
            found = collections.list(name)
            assert found[0].vectors == min(rounds + 1, 2)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(work, name) for name in "ab"]
        try:
            for _ in range(5):
                collections.purge(ANY_TIME)
        finally:
            done.set()
        assert all(worker.result(60) >= 5 for worker in workers)
    assert list(collections.verify(None, ANY_TIME)) == []
    assert len(find(collections, [1.0] * DIMENSIONS, top_k=VECTORS)) == VECTORS
    collections.close()
    connection = apsw.Connection(str(tmp_path / "collections.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
