"""A damaged `collections.db` gives CORRUPT_DATA, and never a wrong answer."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

from semanticrecall_core.collections.file_format import CollectionsFile
from semanticrecall_core.collections.sqlite_collections import SqliteVectorCollections
from semanticrecall_core.types.collections import VectorChange, VectorQuery
from semanticrecall_core.types.errors import (
    CorruptDataError,
    FailedPreconditionError,
    NotFoundError,
    UnavailableError,
)
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

SEED = 20_261
FLIPS = 60
VECTORS = 300
keys = pytest.mark.parametrize("key", [None, KEY], ids=["checksums", "encrypted"])

Answers = tuple[Any, ...]


def answers(home: Path, key: bytes | None) -> Answers:
    """All that the file is asked, read through all its tables."""
    collections = opened(home, key=key)
    try:
        found = find(collections, [1.0] * 16, top_k=VECTORS, include_values=True)
        return (
            [(one.id, one.score, one.metadata, np.asarray(one.values).tobytes()) for one in found],
            list(collections.list("u")),
            list(collections.verify(None, ANY_TIME)),
        )
    finally:
        collections.close()


@keys
def test_every_flipped_bit_is_found(key: bytes | None, tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir()
    first = opened(home, key=key)
    filled(first, "c", VECTORS, 1)
    filled(first, "d", 20, 2)
    first.close()
    file = home / "collections.db"
    sound = file.read_bytes()
    expected = answers(home, key)
    assert len(expected[0]) == VECTORS
    assert expected[2] == []
    chance = random.Random(SEED)
    places = [chance.randrange(len(sound)) for _ in range(FLIPS)]
    places += [20, 60, 68, 100, 8191] if key is None else [30, 8191]
    for at in places:
        damaged = bytearray(sound)
        damaged[at] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        file.with_name("collections.db-wal").unlink(missing_ok=True)
        try:
            found = answers(home, key)
        except (CorruptDataError, FailedPreconditionError):
            continue
        assert found[:2] == expected[:2], f"byte {at}, seed {SEED}: {file}"
        assert found[2], f"byte {at} was not found, seed {SEED}: {file}"
    file.write_bytes(sound)
    assert answers(home, key) == expected


def test_the_bits_that_say_whether_there_are_checksums_are_checked(tmp_path: Path) -> None:
    home = tmp_path / "data"
    made(home).close()
    file = home / "collections.db"
    sound = bytearray(file.read_bytes())
    assert sound[20] == 8
    for bit in range(8):
        damaged = bytearray(sound)
        damaged[20] ^= 1 << bit
        file.write_bytes(damaged)
        collections = opened(home)
        with pytest.raises(CorruptDataError):
            collections.list("u")
        collections.close()
        assert file.read_bytes() == damaged


def rewritten(home: Path, *statements: str) -> None:
    """Change rows as no program of ours does, with sound pages."""
    connection = CollectionsFile(home / "collections.db").open_writer()
    for statement in statements:
        connection.execute(statement)
        assert connection.changes() == 1
    connection.close()


def made(home: Path) -> SqliteVectorCollections:
    home.mkdir()
    collections = opened(home)
    filled(collections, "c", 10, 1)
    filled(collections, "d", 10, 2)
    return collections


ROW_DAMAGE = {
    "value": "UPDATE vectors SET value = zeroblob(64) WHERE row_key = 3",
    "value's end": "UPDATE vectors SET value = substr(value, 1, 60) WHERE row_key = 3",
    "metadata": "UPDATE vectors SET metadata = CAST('{\"n\":9}' AS BLOB) WHERE row_key = 3",
    "id": "UPDATE vectors SET id = 'other' WHERE row_key = 3",
    "checksum": "UPDATE vectors SET checksum = checksum + 1 WHERE row_key = 3",
}


@pytest.mark.parametrize("what", list(ROW_DAMAGE))
def test_a_damaged_row_stops_its_collection_alone(what: str, tmp_path: Path) -> None:
    home = tmp_path / "data"
    made(home).close()
    rewritten(home, ROW_DAMAGE[what])
    collections = opened(home)
    for call in (
        lambda: find(collections, [1.0] * 16),
        lambda: find(collections, None, filter={"n": 7}),
        lambda: collections.update("u", "c", by_ids("v0"), VectorChange([2.0] * 16), ANY_TIME),
        lambda: collections.delete_vectors("u", "c", by_filter(n=0), ANY_TIME),
        lambda: collections.upsert("u", "c", [entry("x", [1] * 16)], {"n": 1}, ANY_TIME),
    ):
        with pytest.raises(CorruptDataError):
            call()
    assert collections.describe("u", "c").vectors == 10
    assert len(find(collections, [1.0] * 16, name="d", top_k=20)) == 10
    assert [(one.kind, one.resource_id) for one in collections.verify(None, ANY_TIME)] == [
        ("VECTOR_ROW_DAMAGED", "u")
    ]
    assert collections.counts().damaged >= 1
    # What names the row, and not what is in it, mends it.
    damaged = "other" if what == "id" else "v2"
    assert [one.message_id for one in collections.verify("u", ANY_TIME)] == [damaged]
    assert collections.delete_vectors("u", "c", by_ids(damaged), ANY_TIME) == 1
    put(collections, entry("v2", [1.0] * 16, n=2))
    assert ids(find(collections, [1.0] * 16, top_k=1)) == ["v2"]
    assert list(collections.verify(None, ANY_TIME)) == []
    collections.close()


def test_a_row_that_is_missing_or_of_another_collection_is_found(tmp_path: Path) -> None:
    for number, statements in enumerate(
        (
            ["DELETE FROM vectors WHERE row_key = 3"],
            [
                "UPDATE vectors SET id = 'w', collection_key = 2 WHERE row_key = 3",
            ],
        )
    ):
        home = tmp_path / str(number)
        made(home).close()
        rewritten(home, *statements)
        collections = opened(home)
        with pytest.raises(CorruptDataError):
            find(collections, [1.0] * 16)
        found = {one.kind for one in collections.verify(None, ANY_TIME)}
        assert "COLLECTION_DAMAGED" in found
        assert collections.delete("u", "c") in (9, 10)
        collections.close()


def test_a_damaged_collection_can_be_removed_and_no_more(tmp_path: Path) -> None:
    home = tmp_path / "data"
    made(home).close()
    rewritten(home, "UPDATE collections SET dimensions = 15 WHERE name = 'c'")
    collections = opened(home)
    for call in (
        lambda: collections.list("u"),
        lambda: collections.describe("u", "c"),
        lambda: find(collections, [1.0] * 15),
        lambda: put(collections, entry("x", [1.0] * 15)),
    ):
        with pytest.raises(CorruptDataError):
            call()
    findings = list(collections.verify(None, ANY_TIME))
    assert [(one.kind, one.resource_id) for one in findings] == [("COLLECTION_DAMAGED", "u")]
    assert len(find(collections, [1.0] * 16, name="d", top_k=20)) == 10
    assert collections.forget_resource("u") == 20
    assert collections.list("u") == []
    assert list(collections.verify(None, ANY_TIME)) == []
    collections.close()


def test_rows_of_no_collection_are_found(tmp_path: Path) -> None:
    home = tmp_path / "data"
    made(home).close()
    rewritten(home, "DELETE FROM collections WHERE name = 'd'")
    collections = opened(home)
    assert [one.kind for one in collections.verify(None, ANY_TIME)] == ["COLLECTION_DAMAGED"]
    collections.close()


@pytest.mark.parametrize(
    ("content", "key"),
    [(b"\0" * 8192, None), (b"x" * 40_000, None), (b"x" * 40_000, KEY), (None, KEY)],
    ids=["zeros", "noise", "noise, encrypted", "plain, with a key"],
)
def test_a_file_that_is_none_is_told_by_every_call_and_left(
    content: bytes | None, key: bytes | None, tmp_path: Path
) -> None:
    home = tmp_path / "data"
    made(home).close()
    file = home / "collections.db"
    file.write_bytes(content or file.read_bytes())
    before = file.read_bytes()
    collections = opened(home, key=key)
    for call in (
        lambda: collections.create("u", "e", 1, 1),
        lambda: collections.list("u"),
        lambda: collections.delete("u", "c"),
        lambda: collections.forget_resource("u"),
        lambda: find(collections, [1.0] * 16),
        lambda: collections.purge(ANY_TIME),
    ):
        with pytest.raises(CorruptDataError):
            call()
    assert [one.kind for one in collections.verify(None, ANY_TIME)] == ["PAGE_DAMAGED"]
    assert collections.counts().damaged == 1
    collections.close()
    assert file.read_bytes() == before


def newer(connection: apsw.Connection) -> None:
    connection.pragma("user_version", 2)


def foreign(connection: apsw.Connection) -> None:
    connection.pragma("application_id", 7)


@pytest.mark.parametrize(
    ("change", "reason"), [(newer, "FORMAT_UNKNOWN"), (foreign, "FOREIGN_DATABASE")]
)
def test_what_is_not_of_this_version_is_refused_and_left(
    change: Callable[[apsw.Connection], None], reason: str, tmp_path: Path
) -> None:
    home = tmp_path / "data"
    made(home).close()
    connection = CollectionsFile(home / "collections.db").open_writer()
    change(connection)
    connection.close()
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    with pytest.raises(FailedPreconditionError) as raised:
        opened(home)
    assert raised.value.reason == reason
    assert {path.name: path.read_bytes() for path in home.iterdir()} == before


def test_a_file_that_was_begun_and_no_more_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "collections.db").touch()
    collections = opened(tmp_path)
    assert collections.list("u") == []
    filled(collections, "c", 3, 1)
    assert len(find(collections, [1.0] * 16)) == 3
    collections.close()


def test_a_file_that_is_taken_away_is_noticed(tmp_path: Path) -> None:
    home = tmp_path / "data"
    collections = made(home)
    shutil.move(home / "collections.db", home / "elsewhere")
    with pytest.raises(UnavailableError) as raised:
        put(collections, entry("x", [1] * 16))
    assert raised.value.reason == "DATA_FILES_LOST"
    shutil.move(home / "elsewhere", home / "collections.db")
    put(collections, entry("x", [1] * 16))
    collections.close()
    again = opened(home)
    assert again.describe("u", "c").vectors == 11
    again.close()


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    collections = opened(tmp_path, key=KEY)
    filled(collections, "c", 3, 1)
    collections.close()
    before = (tmp_path / "collections.db").read_bytes()
    for key in (KEY[::-1], None):
        other = opened(tmp_path, key=key)
        with pytest.raises(CorruptDataError):
            other.query("u", "c", VectorQuery([1.0] * 16), ANY_TIME)
        other.close()
    assert (tmp_path / "collections.db").read_bytes() == before
    right = opened(tmp_path, key=KEY)
    with pytest.raises(NotFoundError):
        right.describe("u", "d")
    assert right.describe("u", "c").vectors == 3
    right.close()
