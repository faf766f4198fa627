"""Collections on a failing disk: a change is there or not, and memory says what the file does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.types.collections import Metric, VectorChange
from semanticrecall_core.types.errors import ResourceExhaustedError, UnavailableError
from support.collection_model import ANY_TIME, KEY, by_filter, by_ids, entry, find, opened, put
from support.faulty_disk import FaultyDisk

CALLS_MAX = 200
LONG = "x" * 900

CHANGES: dict[str, Callable[[SqliteVectorCollections], Any]] = {
    "upsert": lambda one: one.upsert(
        "u", "c", [entry(f"v{n}", [9, n], n=n, long=LONG) for n in range(5, 15)], {"n": 1}, ANY_TIME
    ),
    "update": lambda one: one.update(
        "u", "c", by_filter(n={"$gte": 0}), VectorChange([9, 9], {"new": LONG}), ANY_TIME
    ),
    "delete vectors": lambda one: one.delete_vectors("u", "c", by_ids("v1", "v2"), ANY_TIME),
    "create": lambda one: one.create("u", "d", 2, Metric.COSINE),
    "delete": lambda one: one.delete("u", "c"),
    "purge": lambda one: one.purge(ANY_TIME),
}

State = tuple[Any, ...]


def state(collections: SqliteVectorCollections) -> State:
    """Names, and all that is in the collection."""
    infos = tuple(collections.list("u"))
    if not any(one.name == "c" for one in infos):
        return infos, None
    found = find(collections, [1, 1], top_k=100, include_values=True)
    whole = [
        (one.id, str(one.metadata), one.values.tolist()) for one in found if one.values is not None
    ]
    return infos, sorted(whole)


def made(home: Path, **options: Any) -> SqliteVectorCollections:
    home.mkdir()
    collections = opened(home, **options)
    collections.create("u", "c", 2, Metric.EUCLIDEAN)
    put(collections, *(entry(f"v{n}", [n, 1], n=n, long=LONG) for n in range(10)))
    put(collections, entry("gone", [1, 1]))
    collections.delete_vectors("u", "c", by_ids("gone"), ANY_TIME)
    return collections


class Fault:
    """Fails one operation of a disk, the so many-th of its kind, or all from there on."""

    def __init__(self, operation: str, number: int, error: type[Exception], *, on: bool) -> None:
        self.operation, self.number, self.error, self.on = operation, number, error, on
        self.seen = 0
        self.hit = False

    def __call__(self, operation: str, name: str) -> None:
        if operation == self.operation and "collections.db" in name:
            self.seen += 1
            if self.seen == self.number or (self.on and self.seen > self.number):
                self.hit = True
                raise self.error("injected")


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize(
    ("operation", "error", "on"),
    [
        ("write", apsw.FullError, False),
        ("write", apsw.IOError, True),
        ("sync", apsw.IOError, True),
    ],
)
def test_a_failing_disk_leaves_all_of_a_change_or_nothing(
    change: str, operation: str, error: type[Exception], on: bool, tmp_path: Path
) -> None:
    changed = made(tmp_path / "changed")
    before = state(changed)
    CHANGES[change](changed)
    after = state(changed)
    changed.close()
    assert (before != after) is (change != "purge")
    for number in range(1, CALLS_MAX):
        home = tmp_path / str(number)
        disk = FaultyDisk()
        collections = made(home, vfs=disk.vfs_name)
        assert state(collections) == before
        disk.fault = fault = Fault(operation, number, error, on=on)
        refused = None
        try:
            CHANGES[change](collections)
        except (ResourceExhaustedError, UnavailableError) as raised:
            refused = raised
        if fault.hit and on:
            assert refused is not None or change == "delete"
        disk.fault = None
        where = f"{operation} {number}: {home}"
        found = state(collections)
        assert found == (after if refused is None else before), where
        put(collections, entry("next", [5, 5])) if found[1] is not None else None
        CHANGES[change](collections)
        collections.purge(ANY_TIME)
        assert list(collections.verify(None, ANY_TIME)) == [], where
        found = state(collections)
        collections.close()
        again = opened(home)
        assert state(again) == found, where
        again.close()
        if not fault.hit:
            break
    else:
        raise AssertionError("the change never came to its end")
    assert number > 1


def test_a_full_disk_is_told_and_searches_go_on(tmp_path: Path) -> None:
    disk = FaultyDisk()
    collections = made(tmp_path / "data", vfs=disk.vfs_name, key=KEY)
    disk.fault = Fault("write", 1, apsw.FullError, on=True)
    with pytest.raises(ResourceExhaustedError) as raised:
        CHANGES["upsert"](collections)
    assert raised.value.reason == "DISK_FULL"
    assert raised.value.retryable
    assert len(find(collections, [1, 1], top_k=100)) == 10
    collections.close()
