"""Named collections: memory, restarts, calls that are over, what is counted."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.types.collections import (
    CollectionInfo,
    Metric,
    VectorChange,
    VectorEntry,
    VectorQuery,
)
from semanticrecall_core.types.errors import (
    CancelledError,
    DeadlineExceededError,
    SemanticRecallError,
    UnavailableError,
)
from semanticrecall_core.types.values import CallBudget
from support.collection_model import (
    ANY_TIME,
    KEY,
    by_filter,
    by_ids,
    entry,
    filled,
    find,
    ids,
    opened,
    put,
)


def test_collections_make_room_for_others(tmp_path: Path) -> None:
    collections = opened(tmp_path, bytes_max=200_000)
    values = {name: filled(collections, name, 300, seed) for seed, name in enumerate("abc")}
    for name in "abcabc":
        for row in (0, 299):
            found = find(collections, values[name][row], name=name, top_k=1)
            assert ids(found) == [f"v{row}"]
        counts = collections.counts()
        assert counts.memory_bytes <= 200_000
        assert 1 <= counts.loaded <= 2
    assert counts.loads == 6
    assert counts.evictions >= 4
    large = filled(collections, "large", 1_000, 9)
    for _ in range(2):
        assert ids(find(collections, large[7], name="large", top_k=1)) == ["v7"]
    assert collections.counts().loaded == 1
    assert collections.counts().memory_bytes > 200_000
    assert collections.counts().loads == 7
    collections.close()


def test_rows_that_are_gone_leave_memory(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    values = filled(collections, "c", 2_000, 1)
    before = len(find(collections, values[0], top_k=2_000))
    size = collections.counts().memory_bytes
    for round in range(6):
        batch = [entry(f"v{n}", values[n], n=n, round=round) for n in range(1_000)]
        put(collections, *batch)
        assert ids(find(collections, values[7], filter={"round": round}, top_k=1)) == ["v7"]
        assert len(find(collections, values[0], top_k=10_000)) == before
        assert find(collections, values[7], filter={"round": round - 1}) == []
    assert collections.counts().memory_bytes < 3 * size
    collections.delete_vectors("u", "c", by_filter(n={"$lt": 1_990}), ANY_TIME)
    assert ids(find(collections, values[1_999], top_k=1)) == ["v1999"]
    assert collections.counts().memory_bytes < size / 10
    collections.close()


def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    for key in (None, KEY):
        folder = tmp_path / str(key is None)
        folder.mkdir()
        first = opened(folder, key=key)
        values = filled(first, "c", 1_500, 3)
        first.delete_vectors("u", "c", by_ids("v3"), ANY_TIME)
        first.close()
        second = opened(folder, key=key)
        assert second.list("u") == [CollectionInfo("c", 16, Metric.COSINE, 1_499)]
        found = find(second, values[5], top_k=2_000, include_values=True)
        assert sorted(ids(found)) == sorted(f"v{n}" for n in range(1_500) if n != 3)
        assert found[0].id == "v5"
        assert all(
            one.values is not None and one.values.tobytes() == values[int(one.id[1:])].tobytes()
            for one in found
        )
        assert all(one.metadata == {"n": int(one.id[1:])} for one in found)
        second.close()


def test_a_search_beside_changes_sees_whole_changes(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    collections.create("u", "c", 4, Metric.DOT_PRODUCT)

    def batch(round: int) -> list[VectorEntry]:
        return [entry(f"v{n}", [round, 0, 0, n], round=round) for n in range(300)]

    collections.upsert("u", "c", batch(0), None, ANY_TIME)
    done = threading.Event()

    def search() -> set[int]:
        seen = set()
        while not done.is_set():
            found = find(collections, [1, 0, 0, 0], filter={"round": {"$gte": 0}}, top_k=1_000)
            assert len(found) == 300
            assert len({one.metadata["round"] for one in found}) == 1
            assert {one.score for one in found} == {found[0].metadata["round"]}
            seen.add(int(found[0].score))
        return seen

    with ThreadPoolExecutor(2) as pool:
        searches = [pool.submit(search) for _ in range(2)]
        try:
            for round in range(1, 40):
                collections.upsert("u", "c", batch(round), {"round": round - 2}, ANY_TIME)
        finally:
            done.set()
        for one in searches:
            assert one.result(30) <= set(range(40))
    assert {one.score for one in find(collections, [1, 0, 0, 0], top_k=1_000)} == {39.0}
    collections.close()


def over() -> CallBudget:
    return CallBudget(time.monotonic() - 1)


def gone() -> CallBudget:
    return CallBudget(math.inf, lambda: True)


@pytest.mark.parametrize(
    ("budget", "error"), [(over(), DeadlineExceededError), (gone(), CancelledError)]
)
def test_a_call_that_is_over_changes_nothing(
    tmp_path: Path, budget: CallBudget, error: type[SemanticRecallError]
) -> None:
    collections = opened(tmp_path)
    filled(collections, "c", 1_100, 1)
    new = [entry("new", [1] * 16)]
    calls: list[Callable[[SqliteVectorCollections], object]] = [
        lambda one: one.upsert("u", "c", new, None, budget),
        lambda one: one.upsert("u", "c", new, {"n": 1}, budget),
        lambda one: one.update("u", "c", by_ids("v1"), VectorChange([2] * 16), budget),
        lambda one: one.delete_vectors("u", "c", by_ids("v1"), budget),
        lambda one: one.delete_vectors("u", "c", by_filter(n=1), budget),
        lambda one: one.query("u", "c", VectorQuery([1] * 16), budget),
    ]
    for call in calls:
        for _ in range(2):  # not in memory, and in memory
            with pytest.raises(error):
                call(collections)
            assert collections.describe("u", "c").vectors == 1_100
            find(collections, [1] * 16)
        collections.close()
        collections = opened(tmp_path)
    collections.close()


def test_an_update_of_many_ends_with_its_budget(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    filled(collections, "c", 2_500, 1)
    find(collections, [1] * 16)
    asked, most = 0, math.inf

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > most

    def update(*ids: str) -> int:
        nonlocal asked
        asked = 0
        change = VectorChange(metadata={"n": -1})
        return collections.update(
            "u", "c", by_ids(*ids), change, CallBudget(math.inf, is_cancelled)
        )

    assert update("v0") == 1
    most = asked + 1
    with pytest.raises(CancelledError):
        update(*(f"v{n}" for n in range(1, 2_500)))
    found = find(collections, [1] * 16, top_k=10, filter={"n": -1})
    assert [one.id for one in found] == ["v0"]
    collections.close()


def test_nothing_is_made_before_the_first_collection(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    assert collections.list("u") == []
    assert collections.delete("u", "c") is None
    assert collections.forget_resource("u") == 0
    assert not collections.purge_pending()
    collections.purge(ANY_TIME)
    assert list(collections.verify(None, ANY_TIME)) == []
    assert collections.counts().disk_bytes == 0
    assert list(tmp_path.iterdir()) == []
    collections.create("u", "c", 1, Metric.COSINE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "collections.db",
        "collections.db-wal",
    ]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    collections.close()
    assert [path.name for path in tmp_path.iterdir()] == ["collections.db"]


def test_a_closed_one_says_so(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    collections.create("u", "c", 1, Metric.COSINE)
    put(collections, entry("v", [1]))
    find(collections, [1])
    collections.close()
    collections.close()
    for call in (
        lambda: collections.list("u"),
        lambda: collections.describe("u", "c"),
        lambda: find(collections, [1]),
        lambda: put(collections, entry("v", [1])),
        lambda: collections.purge(ANY_TIME),
    ):
        with pytest.raises(UnavailableError):
            call()


def test_it_counts(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    collections.create("u", "c", 1, Metric.COSINE)
    collections.create("w", "d", 1, Metric.COSINE)
    put(collections, entry("v", [1]), entry("w", [1]))
    counts = collections.counts()
    assert (counts.collections, counts.vectors, counts.loaded, counts.loads) == (2, 2, 0, 0)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert counts.disk_bytes == sum(sizes)
    find(collections, [1])
    assert (collections.counts().loaded, collections.counts().loads) == (1, 1)
    collections.delete("u", "c")
    counts = collections.counts()
    assert (counts.collections, counts.vectors, counts.loaded, counts.memory_bytes) == (1, 0, 0, 0)
    collections.close()


def test_who_is_told_of_removals(tmp_path: Path) -> None:
    collections = opened(tmp_path)
    told: list[None] = []
    collections.tell_removed(lambda: told.append(None))
    collections.create("u", "c", 1, Metric.COSINE)

    def upsert(delete_filter: Mapping[str, object] | None) -> None:
        collections.upsert("u", "c", [entry("v", [1], n=1)], delete_filter, ANY_TIME)

    steps: list[tuple[Any, int, bool]] = [
        (lambda: upsert(None), 0, False),
        (lambda: upsert(None), 0, False),
        (lambda: upsert({"n": 2}), 0, False),
        (lambda: collections.delete_vectors("u", "c", by_ids("x"), ANY_TIME), 0, False),
        (lambda: upsert({"n": 1}), 1, True),
        (lambda: collections.delete_vectors("u", "c", by_ids("v"), ANY_TIME), 2, True),
        (lambda: collections.delete("u", "nothing"), 2, True),
        (lambda: collections.purge(ANY_TIME), 2, False),
        (lambda: collections.delete("u", "c"), 3, True),
    ]
    for step, number, pending in steps:
        step()
        assert (len(told), collections.purge_pending()) == (number, pending)
    collections.close()
    again = opened(tmp_path)
    assert again.purge_pending()
    again.close()
