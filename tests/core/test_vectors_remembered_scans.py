"""A query asked again is not scanned for again, and the answer is as if it were."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.types.values import VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex, Tuning, codes
from semanticrecall_core.vectors.codes import (
    REMEMBERED_FROM_ROWS,
    REMEMBERED_ROWS_MAX,
    REMEMBERED_SCANS_MAX,
    CodedRows,
    Coder,
    Probe,
)
from support.brute_force import StoredVectors, answer, partition_rows

DIMENSIONS = 32
TUNING = Tuning(tail_rows_max=64, coded_rows_min=128)


def unit(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    rows = rng.normal(size=(count, DIMENSIONS))
    made: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(
        np.float32
    )
    return made


def message(seq: int, vectors: NDArray[np.float32]) -> StoredVectors:
    return StoredVectors(seq, seq % 3 + 1, seq, 1, vectors)


class Fixed:
    """A record of 600 messages and the index over it."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.record = {seq: message(seq, unit(rng, 1)) for seq in range(1, 601)}
        self.queries = unit(rng, 20)
        self.index = FaissVectorIndex(
            DIMENSIONS,
            lambda _: partition_rows(self.record.values(), DIMENSIONS),
            scale_clip=1.0,
            tuning=TUNING,
        )

    def check(self, query: VectorQuery) -> None:
        assert self.index.search("u", query) == answer(self.record.values(), query)

    def put(self, stored: StoredVectors) -> None:
        self.record[stored.seq] = stored
        self.index.vectors_put("u", partition_rows([stored], DIMENSIONS))

    def remove(self, seq: int) -> None:
        del self.record[seq]
        self.index.vectors_removed("u", np.array([seq]))


@pytest.fixture
def remembers_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts remember their scans too."""
    monkeypatch.setattr(codes, "REMEMBERED_FROM_ROWS", 1)


@pytest.fixture
def fixed(remembers_all: None) -> Fixed:
    return Fixed()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each scan wanted."""
    made: list[int] = []
    name = "_scan"
    real: Callable[..., object] = getattr(CodedRows, name)

    def counting(self: CodedRows, probe: Probe, wanted: int, bits: object) -> object:
        made.append(wanted)
        return real(self, probe, wanted, bits)

    monkeypatch.setattr(CodedRows, name, counting)
    return made


def test_the_same_query_is_scanned_for_once(fixed: Fixed, scans: list[int]) -> None:
    asked = VectorQuery(fixed.queries[0], 3)
    for _ in range(5):
        fixed.check(asked)
    fixed.check(VectorQuery(fixed.queries[0].copy(), 3))
    assert len(scans) == 1


def test_another_query_or_size_or_condition_is_scanned_for(fixed: Fixed, scans: list[int]) -> None:
    fixed.check(VectorQuery(fixed.queries[0], 3))
    fixed.check(VectorQuery(fixed.queries[1], 3))
    fixed.check(VectorQuery(fixed.queries[0], 4))
    for count in range(1, REMEMBERED_SCANS_MAX + 1):
        fixed.check(VectorQuery(fixed.queries[0], 3, excluded_seqs=np.arange(1, 9)))
        assert len(scans) == 3 + count
    fixed.check(VectorQuery(fixed.queries[0], 3))  # conditions have pushed nothing out
    assert len(scans) == 3 + REMEMBERED_SCANS_MAX


def test_new_rows_are_found_beside_what_is_remembered(fixed: Fixed, scans: list[int]) -> None:
    asked = VectorQuery(fixed.queries[0], 3)
    fixed.check(asked)
    fixed.put(message(700, asked.vector[np.newaxis]))
    fixed.check(asked)
    assert fixed.index.search("u", asked).hits[0].seq == 700
    assert len(scans) == 1


def test_removed_and_changed_rows_are_not_remembered(fixed: Fixed, scans: list[int]) -> None:
    asked = VectorQuery(fixed.queries[0], 3)
    for _ in range(10):
        before = len(scans)
        fixed.check(asked)
        fixed.remove(fixed.index.search("u", asked).hits[0].seq)
        assert len(scans) == before + 1
    best = fixed.index.search("u", asked).hits[0].seq
    fixed.put(message(best, -asked.vector[np.newaxis]))
    fixed.check(asked)
    assert fixed.index.search("u", asked).hits[0].seq != best


def test_only_the_last_few_scans_are_remembered(fixed: Fixed, scans: list[int]) -> None:
    for query in fixed.queries:
        fixed.check(VectorQuery(query, 3))
    assert len(scans) == len(fixed.queries)
    for query in fixed.queries[-REMEMBERED_SCANS_MAX:]:
        fixed.check(VectorQuery(query, 3))
    assert len(scans) == len(fixed.queries)
    fixed.check(VectorQuery(fixed.queries[0], 3))
    assert len(scans) == len(fixed.queries) + 1


def coded(rows: int) -> CodedRows:
    coder = Coder(DIMENSIONS, 1.0)
    return CodedRows(coder, *coder.encode(unit(np.random.default_rng(2), rows)))


@pytest.mark.parametrize("fewer", [0, 1])
def test_small_parts_remember_nothing(scans: list[int], fewer: int) -> None:
    rows = coded(REMEMBERED_FROM_ROWS - fewer)
    probe = Probe(unit(np.random.default_rng(3), 1)[0], DIMENSIONS)
    for _ in range(3):
        rows.scan(probe, 5, None, remember=True)
    assert len(scans) == (3 if fewer else 1)


@pytest.mark.usefixtures("remembers_all")
def test_large_scans_are_not_remembered(scans: list[int]) -> None:
    rows = coded(2 * REMEMBERED_ROWS_MAX)
    probe = Probe(unit(np.random.default_rng(3), 1)[0], DIMENSIONS)
    for wanted, scanned in ((REMEMBERED_ROWS_MAX, 1), (REMEMBERED_ROWS_MAX + 1, 3)):
        for _ in range(2):
            rows.scan(probe, wanted, None, remember=True)
        assert len(scans) == scanned


@pytest.mark.usefixtures("remembers_all")
def test_what_is_remembered_cannot_be_written_to() -> None:
    rows, scores = coded(200).scan(
        Probe(unit(np.random.default_rng(3), 1)[0], DIMENSIONS), 5, None, remember=True
    )
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        scores[0] = 1


@pytest.mark.usefixtures("remembers_all")
def test_nothing_of_a_query_is_kept() -> None:
    rows = coded(200)
    query = unit(np.random.default_rng(3), 1)[0]
    probe = Probe(query, DIMENSIONS)
    rows.scan(probe, 5, None, remember=True)
    kept = [weakref.ref(array) for array in (query, probe.vector, probe.wide, probe.codes)]
    digest = probe.digest
    del query, probe
    gc.collect()
    assert [reference() for reference in kept] == [None] * 4
    assert rows.remembers(Probe(unit(np.random.default_rng(3), 1)[0], DIMENSIONS), 5, None)
    assert len(digest) == 32
