"""What was never written is known without a look at the file of cached vectors; all else is not."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semanticrecall_core.embedding.cache_file import CacheFile, CacheFileOptions
from semanticrecall_core.embedding.cache_format import open_connection
from semanticrecall_core.embedding.written_names import WrittenNames
from support.cache_files import DIMENSIONS, ROOMY, FiledCache, vector_of

ENTRIES = 20_000


def names(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(40) for _ in range(count)]


THERE, LATER, NEVER = names(1, 40), names(2, 40), names(3, 40)


def values(of: list[bytes]) -> dict[bytes, bytes]:
    return {name: vector_of("u", name.hex()).tobytes() + bytes(4) for name in of}


def opened(folder: Path) -> CacheFile:
    return CacheFile(CacheFileOptions(folder / "embeddings.db", ROOMY), "g", DIMENSIONS)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CacheFile]:
    """A file that holds what is there, opened again."""
    made = opened(tmp_path)
    made.write(values(THERE), ())
    made.close()
    file = opened(tmp_path)
    yield file
    file.close()


def looks(file: CacheFile, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that the file is asked for from now on."""
    asked: list[bytes] = []
    read = file._asked

    def told(statement: str, bindings: tuple[bytes, ...]) -> Any:
        asked.extend(bindings)
        return read(statement, bindings)

    monkeypatch.setattr(file, "_asked", told)
    return asked


def test_what_was_written_is_never_ruled_out_and_little_else_is_not() -> None:
    written = WrittenNames(ENTRIES)
    there, others = names(1, ENTRIES), names(2, ENTRIES)
    assert all(map(written.may_have, others))  # it has not been told what there is
    written.add(there[:-2])
    written.add_beginnings(b"".join(name[8:12] for name in there[-2:]))
    written.knows_all = True
    assert all(map(written.may_have, there))
    assert sum(map(written.may_have, others)) <= ENTRIES // 16
    written.begin_anew(is_empty=True)
    assert not any(map(written.may_have, there))
    written.begin_anew(is_empty=False)
    assert all(map(written.may_have, there))


def test_a_small_file_has_names_too() -> None:
    written = WrittenNames(0)
    written.knows_all = True
    written.add([])
    assert not any(map(written.may_have, names(1, 40)))
    written.add(names(1, 40))
    assert all(map(written.may_have, names(1, 40)))


def test_a_name_that_was_never_written_costs_no_look(
    file: CacheFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = looks(file, monkeypatch)
    assert not any(map(file.read, NEVER))
    assert asked == [name[8:] for name in NEVER]  # nobody has read yet what there is
    file.learn_names()
    asked.clear()
    assert not any(map(file.read, NEVER))
    assert len(asked) <= len(NEVER) // 4
    asked.clear()
    assert {name: file.read(name) for name in THERE} == values(THERE)
    assert asked == [name[8:] for name in THERE]
    asked.clear()
    file.learn_names()
    assert asked == []


def test_an_empty_file_is_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path)
    asked = looks(file, monkeypatch)
    assert not any(map(file.read, NEVER))
    assert asked == []
    file.close()


def test_what_is_written_later_is_found(file: CacheFile) -> None:
    file.learn_names()
    file.write(values(LATER), ())
    assert {name: file.read(name) for name in THERE + LATER} == values(THERE + LATER)
    assert file.erase(LATER[:5]) == set(LATER[:5])
    assert [file.read(name) for name in LATER[:5]] == [None] * 5
    assert {name: file.read(name) for name in LATER[5:]} == values(LATER[5:])


def test_what_is_written_while_names_are_read_is_found(
    file: CacheFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = file._asked

    def written_between(statement: str, bindings: tuple[bytes, ...]) -> Any:
        answer = read(statement, bindings)
        if bindings[0] == b"\x80":
            file.write(values(LATER), ())
        return answer

    monkeypatch.setattr(file, "_asked", written_between)
    file.learn_names()
    assert {name: file.read(name) for name in THERE + LATER} == values(THERE + LATER)


def test_names_of_a_file_that_was_begun_anew_meanwhile_are_not_taken_for_all(
    file: CacheFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = file._asked

    def begun_anew(statement: str, bindings: tuple[bytes, ...]) -> Any:
        answer = read(statement, bindings)
        if bindings[0] == b"\x80":
            file._spoilt = True
            file.write(values(LATER), ())
        return answer

    monkeypatch.setattr(file, "_asked", begun_anew)
    file.learn_names()
    assert [file.read(name) for name in THERE] == [None] * len(THERE)
    assert {name: file.read(name) for name in LATER} == values(LATER)


def test_names_are_read_after_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, learn = threading.Event(), CacheFile.learn_names

    def told(file: CacheFile) -> None:
        learn(file)
        read.set()

    monkeypatch.setattr(CacheFile, "learn_names", told)
    filed = FiledCache(tmp_path)
    assert read.wait(10)
    filed.close()


def test_a_damaged_index_leaves_every_name_to_be_asked_for(tmp_path: Path) -> None:
    made = opened(tmp_path)
    made.write(values(THERE), ())
    made.close()
    path = tmp_path / "embeddings.db"
    raw = open_connection(path, "unix-excl", None)
    root: int = raw.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_entries_1'"
    ).get
    size: int = raw.pragma("page_size")
    raw.close()
    content = bytearray(path.read_bytes())
    content[root * size - 1_000 : root * size - 500] = bytes(500)
    path.write_bytes(content)
    file = opened(tmp_path)
    file.learn_names()
    assert file.stats().damaged == 0  # whoever looks for an entry meets it
    assert file.read(NEVER[0]) is None
    assert file.stats().damaged == 1
    file.write(values(LATER), ())
    assert {name: file.read(name) for name in LATER} == values(LATER)
    file.close()
