"""Large collections go at once for everybody; their rows by and by, and after a restart too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from semanticrecall_core.collections import changing
from semanticrecall_core.collections.file_format import CollectionsFile
from semanticrecall_core.types.errors import (
    CancelledError,
    NotFoundError,
    UnavailableError,
)
from semanticrecall_core.types.values import CallBudget
from support.collection_model import ANY_TIME, by_filter, by_ids, filled, find, ids, opened

VECTORS = 2_500
TIMEOUT_S = 30.0
Remove = Callable[[apsw.Connection], bool]


def rows_in(folder: Path) -> int:
    """Rows of vectors in the file, whosever; it is open nowhere."""
    connection = CollectionsFile(folder / "collections.db").open_reader()
    try:
        return int(connection.execute("SELECT count(*) FROM vectors").get)
    finally:
        connection.close()


class Removal:
    """Rows of removed collections, which go when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_begin = threading.Event()
        self.is_done = threading.Event()
        self.batches: list[bool] = []
        self._real: Remove = changing.remove_dropped
        monkeypatch.setattr(changing, "remove_dropped", self.remove)

    def remove(self, connection: apsw.Connection) -> bool:
        if not self.may_begin.wait(TIMEOUT_S):
            raise UnavailableError("nobody told it to")
        self.batches.append(self._real(connection))
        if not self.batches[-1]:
            self.is_done.set()
        return self.batches[-1]


@pytest.fixture
def removal(monkeypatch: pytest.MonkeyPatch) -> Removal:
    return Removal(monkeypatch)


def test_a_collection_is_gone_before_its_rows_are(tmp_path: Path, removal: Removal) -> None:
    collections = opened(tmp_path)
    filled(collections, "c", VECTORS, 1)
    filled(collections, "d", 10, 2)
    done = threading.Event()
    told: list[int | None] = []

    def delete() -> None:
        told.append(collections.delete("u", "c"))
        done.set()

    thread = threading.Thread(target=delete)
    thread.start()
    try:
        assert done.wait(TIMEOUT_S / 3)
        assert told == [VECTORS]
        assert [one.name for one in collections.list("u")] == ["d"]
        with pytest.raises(NotFoundError):
            collections.describe("u", "c")
    finally:
        removal.may_begin.set()
        thread.join()
    assert removal.is_done.wait(TIMEOUT_S)
    assert removal.batches == [True, True, True, False]
    assert list(collections.verify(None, ANY_TIME)) == []
    assert (collections.counts().collections, collections.counts().vectors) == (1, 10)
    collections.close()
    assert rows_in(tmp_path) == 10


def test_rows_that_were_left_go_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: apsw.Connection) -> bool:
        raise UnavailableError("the disk failed")

    with monkeypatch.context() as patched:
        patched.setattr(changing, "remove_dropped", fail)
        first = opened(tmp_path)
        filled(first, "c", VECTORS, 1)
        assert first.delete("u", "c") == VECTORS
        first.close()
    assert rows_in(tmp_path) == VECTORS
    removal = Removal(monkeypatch)
    removal.may_begin.set()
    second = opened(tmp_path)
    assert removal.is_done.wait(TIMEOUT_S)
    second.close()
    assert rows_in(tmp_path) == 0


def test_the_name_is_free_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removal = Removal(monkeypatch)
    collections = opened(tmp_path)
    filled(collections, "c", VECTORS, 1)
    removal.may_begin.set()
    assert collections.forget_resource("u") == VECTORS
    values = filled(collections, "c", 5, 3)
    assert removal.is_done.wait(TIMEOUT_S)
    assert ids(find(collections, values[4], top_k=1)) == ["v4"]
    assert collections.describe("u", "c").vectors == 5
    collections.close()
    assert rows_in(tmp_path) == 5


def test_a_removal_by_filter_that_runs_out_of_time_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collections = opened(tmp_path)
    filled(collections, "c", VECTORS, 4)
    removed: list[int] = []
    over = threading.Event()
    real = changing.remove_vectors

    def remove(connection: apsw.Connection, key: int, ids: list[str]) -> int:
        removed.append(len(ids))
        if len(removed) == 2:
            over.set()
        return real(connection, key, ids)

    monkeypatch.setattr(changing, "remove_vectors", remove)
    everything = by_filter(none={"$exists": False})
    with pytest.raises(CancelledError):
        collections.delete_vectors("u", "c", everything, CallBudget(ANY_TIME.deadline, over.is_set))
    assert removed == [1_000, 1_000]
    left = VECTORS - 1_000
    assert collections.describe("u", "c").vectors == left
    assert len(find(collections, None, filter={"none": {"$exists": False}}, top_k=9_999)) == left
    assert list(collections.verify(None, ANY_TIME)) == []
    assert collections.delete_vectors("u", "c", everything, ANY_TIME) == left
    assert collections.delete_vectors("u", "c", by_ids("v1"), ANY_TIME) == 0
    collections.close()
    assert rows_in(tmp_path) == 0
