"""What is particular to one system of the side by side; the contract of all is `test_competitors`.

Each runs in a process of its own; what is not installed is skipped.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.competitors.port import Found, Rows
from support.system_worker import WorkerSystem, new_worker

DIMENSIONS = 32
MESSAGES = 400
TOP_K = 10


@pytest.fixture(scope="module")
def lance_worker() -> Iterator[WorkerSystem]:
    with new_worker() as process:
        yield WorkerSystem(process, "lance")


@pytest.fixture
def lance(lance_worker: WorkerSystem, tmp_path: Path) -> Iterator[WorkerSystem]:
    lance_worker.open(tmp_path, DIMENSIONS)
    yield lance_worker
    lance_worker.close()


def rows_of(user: str, count: int, *, seed: int) -> Rows:
    vectors = np.random.default_rng(seed).normal(size=(count, DIMENSIONS))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Rows(
        resource_id=user,
        ids=[f"m{number}" for number in range(count)],
        thread_ids=["thread"] * count,
        texts=[f"{user} says {number}" for number in range(count)],
        vectors=vectors.astype(np.float32),
    )


def share_found(system: WorkerSystem, rows: Rows, questions: int) -> float:
    """Of the nearest by brute force, how many are found; answers hold messages of the user only."""
    shares = []
    for question in rows_of("nobody", questions, seed=99).vectors:
        nearest = np.argsort(-(rows.vectors @ question))[:TOP_K]
        found = system.search(rows.resource_id, question, TOP_K)
        expected = {Found(rows.ids[row], rows.texts[row]) for row in nearest}
        assert len(found) == len(expected)
        assert {one.text.split(" says ")[0] for one in found} == {rows.resource_id}
        shares.append(len(expected & set(found)) / len(expected))
    return float(np.mean(shares))


@pytest.mark.parametrize("bitmap_users_max", [1000, 0], ids=["bitmap", "btree"])
def test_a_lance_table_with_a_vector_index_finds_small_users_and_what_came_since(
    lance: WorkerSystem, bitmap_users_max: int, tmp_path: Path
) -> None:
    large, small, late = (
        rows_of("o'large", MESSAGES, seed=1),
        rows_of("small", 15, seed=2),
        rows_of("late", 12, seed=3),
    )
    lance.add(large)
    lance.add(small)
    assert lance.setup.index.startswith("exact")
    lance.call("build_indexes", vector_rows_min=MESSAGES, bitmap_users_max=bitmap_users_max)
    lance.loaded()
    assert lance.setup.index.startswith("approximate")
    lance.add(late)
    for _ in range(2):
        for rows in (large, small, late):
            assert share_found(lance, rows, questions=8) >= 0.9
        lance.close()
        lance.open(tmp_path, DIMENSIONS)
        assert lance.setup.index.startswith("approximate")


def test_a_lance_table_is_optimized_after_some_adds(lance: WorkerSystem, tmp_path: Path) -> None:
    """The advised twenty: fragments of single messages do not pile up."""
    turns = rows_of("ann", 60, seed=4)
    for row in range(60):
        if row == 10:
            lance.loaded()
        part = slice(row, row + 1)
        lance.add(
            Rows(
                "ann",
                turns.ids[part],
                turns.thread_ids[part],
                turns.texts[part],
                turns.vectors[part],
            )
        )
    assert len(list(tmp_path.glob("messages.lance/data/*.lance"))) < 30
    assert share_found(lance, turns, questions=8) == 1.0


def test_a_sqlite_vec_file_grows_with_its_messages_and_not_with_its_users(tmp_path: Path) -> None:
    """A user's vectors are allocated in whole chunks: 100 users of 16 messages take 100 chunks."""
    with new_worker() as process:
        system = WorkerSystem(process, "sqlite_vec")
        system.open(tmp_path, DIMENSIONS)
        for number in range(100):
            system.add(rows_of(f"user {number}", 16, seed=number))
        system.loaded()
        system.close()
    chunk_bytes = 256 * DIMENSIONS * 4
    file_bytes = (tmp_path / "messages.sqlite3").stat().st_size
    assert 100 * chunk_bytes < file_bytes < 1.3 * 100 * chunk_bytes


@pytest.fixture
def chroma_server() -> Iterator[WorkerSystem]:
    with new_worker() as process:
        system = WorkerSystem(process, "chroma_server")
        yield system
        system.close()


def test_a_chroma_server_that_cannot_start_says_why(
    chroma_server: WorkerSystem, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("no directory")
    with pytest.raises(RuntimeError, match=r"(?s)it said: .*File exists"):
        chroma_server.open(tmp_path, DIMENSIONS)


def test_a_killed_chroma_server_has_kept_what_it_took_and_logs_no_calls(
    chroma_server: WorkerSystem, tmp_path: Path
) -> None:
    rows = rows_of("ann", 30, seed=1)
    chroma_server.open(tmp_path, DIMENSIONS)
    chroma_server.add(rows)
    log = tmp_path / "server.log"
    before = log.stat().st_size
    assert share_found(chroma_server, rows, questions=8) == 1.0
    assert log.stat().st_size == before
    os.kill(chroma_server.attribute("process_id"), signal.SIGKILL)
    chroma_server.close()
    chroma_server.open(tmp_path, DIMENSIONS)
    assert share_found(chroma_server, rows, questions=8) == 1.0
