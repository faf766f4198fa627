"""Exact answers at the sizes and shapes that break approximate ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.types.values import PartitionRows, Role, VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex, Tuning, exactness
from support.brute_force import answer, cosines, grouped

DIMENSIONS = 384


def clustered(rng: np.random.Generator, count: int, spread: float) -> NDArray[np.float32]:
    """Unit rows around 40 centres, as sentence vectors lie; `spread` 0 is 40 vectors, repeated."""
    centres = rng.normal(size=(40, DIMENSIONS))
    rows = np.empty((count, DIMENSIONS), np.float32)
    for start in range(0, count, 4096):
        size = min(4096, count - start)
        part = centres[rng.integers(0, 40, size)] + rng.normal(size=(size, DIMENSIONS)) * spread
        rows[start : start + size] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def as_rows(vectors: NDArray[np.float32], chunks: int = 1) -> PartitionRows:
    """Rows of messages of so many chunks each; columns vary with the message."""
    positions = np.arange(len(vectors))
    seqs = positions // chunks + 1
    return PartitionRows(
        seqs=seqs,
        thread_keys=seqs % 7 + 1,
        times_ns=seqs * 1000,
        roles=(seqs % 4 + 1).astype(np.uint8),
        chunks=positions % chunks,
        revisions=seqs + 5,
        vectors=vectors,
        checksums=positions + 9,
    )


def index_of(rows: PartitionRows, tuning: Tuning | None = None) -> FaissVectorIndex:
    return FaissVectorIndex(DIMENSIONS, lambda _: rows, tuning=tuning)


def expect(rows: PartitionRows, query: NDArray[np.float32], top_k: int) -> list[tuple[int, float]]:
    """The nearest of one-chunk messages by a sort of all scores."""
    return nearest(rows, query)[:top_k]


def nearest(rows: PartitionRows, query: NDArray[np.float32]) -> list[tuple[int, float]]:
    """All one-chunk messages, best first."""
    scores = cosines(rows.vectors, query)
    order = np.lexsort((rows.seqs, -scores))
    return list(zip(rows.seqs[order].tolist(), scores[order].tolist(), strict=True))


def found(index: FaissVectorIndex, query: VectorQuery) -> list[tuple[int, float]]:
    return [(hit.seq, hit.score) for hit in index.search("u", query).hits]


@pytest.mark.parametrize("spread", [0.0, 1e-4, 0.02, 1.0, 20.0])
@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 1025, 10_000, 50_000])
def test_answers_equal_brute_force_at_every_size(count: int, spread: float) -> None:
    rng = np.random.default_rng(count)
    vectors = clustered(rng, count + 1, spread)
    rows = as_rows(vectors[:count])
    index = index_of(rows)
    for query in (vectors[count], vectors[0]):
        right = nearest(rows, query)
        for top_k in (1, 4, 50):
            assert found(index, VectorQuery(query, top_k)) == right[:top_k]


def test_all_of_many_rows_can_be_asked_for() -> None:
    rng = np.random.default_rng(8)
    vectors = clustered(rng, 3001, 1.0)
    rows = as_rows(vectors[:3000])
    query = vectors[3000]
    assert found(index_of(rows), VectorQuery(query, 9999)) == expect(rows, query, 9999)


def test_fifty_thousand_equal_vectors_are_ordered_by_seq() -> None:
    rng = np.random.default_rng(9)
    vectors = np.repeat(clustered(rng, 1, 1.0), 50_000, axis=0)
    hits = found(index_of(as_rows(vectors)), VectorQuery(clustered(rng, 1, 1.0)[0], 20))
    assert [seq for seq, _ in hits] == list(range(1, 21))
    assert len({score for _, score in hits}) == 1


def test_the_nearest_by_codes_is_not_the_nearest() -> None:
    # 3,000 rows whose true cosines differ by less than a code can tell.
    rng = np.random.default_rng(10)
    query = clustered(rng, 1, 1.0)[0].astype(np.float64)
    aside = rng.normal(size=(3000, DIMENSIONS))
    aside -= np.outer(aside @ query, query)
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    cosine = 0.7 + 1e-6 * rng.permutation(3000)
    vectors = cosine[:, None] * query + np.sqrt(1 - cosine**2)[:, None] * aside
    rows = as_rows(vectors.astype(np.float32))
    asked = query.astype(np.float32)
    for top_k in (1, 5, 20):
        assert found(index_of(rows), VectorQuery(asked, top_k)) == expect(rows, asked, top_k)


@pytest.mark.parametrize("chunks", [2, 10, 700])
def test_messages_of_many_chunks_fill_all_places(chunks: int) -> None:
    rng = np.random.default_rng(chunks)
    vectors = clustered(rng, 20 * chunks + 1, 0.3)
    rows = as_rows(vectors[:-1], chunks)
    index = index_of(rows)
    for top_k in (3, 20, 25):
        query = VectorQuery(vectors[-1], top_k)
        assert index.search("u", query) == answer(grouped(rows).values(), query)


@pytest.mark.parametrize(
    "conditions",
    [
        {"thread_key": 3},
        {"roles": frozenset((Role.USER, Role.SYSTEM))},
        {"time_from_ns": 1_500_000},
        {"time_to_ns": 40_000},
        {"excluded_seqs": np.arange(1, 3000, 2)},
        {"allowed_seqs": np.arange(100, 140)},
        {"allowed_seqs": np.arange(1, 2900)},
    ],
)
def test_conditions_are_exact_over_sealed_parts_and_tail(conditions: dict[str, object]) -> None:
    rng = np.random.default_rng(11)
    vectors = clustered(rng, 6001, 0.5)
    rows = as_rows(vectors[:-1], 2)
    first = 5600  # the rest arrives later and stays in the tail
    loaded = PartitionRows(*(getattr(rows, name)[:first] for name in PartitionRows.__slots__))
    later = PartitionRows(*(getattr(rows, name)[first:] for name in PartitionRows.__slots__))
    index = index_of(loaded)
    query = VectorQuery(vectors[-1], 10)
    index.search("u", query)
    index.vectors_put("u", later)
    query = replace(query, **conditions)  # type: ignore[arg-type]
    assert index.search("u", query) == answer(grouped(rows).values(), query)


@pytest.fixture
def full_scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often a search had to read all rows."""
    counted: list[int] = []
    real: Callable[..., object] = exactness._all_that_may_count

    def counting(*arguments: object) -> object:
        counted.append(1)
        return real(*arguments)

    monkeypatch.setattr(exactness, "_all_that_may_count", counting)
    return counted


def test_usual_searches_are_proven_without_reading_all_rows(full_scans: list[int]) -> None:
    rng = np.random.default_rng(12)
    vectors = clustered(rng, 10_050, 1.0)
    index = index_of(as_rows(vectors[:10_000]))
    for query in vectors[10_000:]:
        index.search("u", VectorQuery(query, 4))
    assert full_scans == []


def test_a_row_with_an_outlier_costs_no_full_scan_and_is_found(full_scans: list[int]) -> None:
    rng = np.random.default_rng(13)
    vectors = clustered(rng, 5_000, 1.0)
    vectors[77] = 0
    vectors[77, 5] = 1  # clipped to 0.3 in its code
    rows = as_rows(vectors)
    index = index_of(rows)
    query = (vectors[78] + 0.9 * vectors[77]) / np.linalg.norm(vectors[78] + 0.9 * vectors[77])
    assert found(index, VectorQuery(query, 4)) == expect(rows, query, 4)
    assert 78 in [seq for seq, _ in expect(rows, query, 4)]
    assert full_scans == []


def test_rows_whose_codes_flatter_them_push_no_better_row_out() -> None:
    # Rows that belong among the first ten or so; their codes, clipped in the one coordinate that
    # parts them from the query, look nearer than any other row.
    rng = np.random.default_rng(15)
    vectors = clustered(rng, 3_000, 20.0)
    query = vectors[-1].astype(np.float64)
    query[5] = 0
    query /= np.linalg.norm(query)
    toward, asked = query.copy(), query * np.sqrt(1 - 0.25**2)
    asked[5] = -0.25
    scores = np.sort(vectors[:-1] @ asked)
    parting = np.linspace(0.5, 0.99, 10_000)
    cosines = asked @ toward * np.sqrt(1 - parting**2) - 0.25 * parting
    apart = parting[np.argmin(np.abs(cosines - scores[-8]))]
    for row in range(100, 106):
        vectors[row] = np.sqrt(1 - apart**2) * toward
        vectors[row, 5] = apart
    rows, nearby = as_rows(vectors[:-1]), asked.astype(np.float32)
    for top_k in (1, 4, 6):
        right = expect(rows, nearby, top_k)
        assert found(index_of(rows), VectorQuery(nearby, top_k)) == right
        assert not {seq for seq, _ in right} & set(range(101, 107))


def test_a_score_does_not_depend_on_the_rows_beside_it() -> None:
    rng = np.random.default_rng(14)
    vectors = clustered(rng, 2_000, 1.0)
    query = clustered(rng, 1, 1.0)[0]
    rows = as_rows(vectors)
    index = index_of(rows)
    everything = dict(found(index, VectorQuery(query, 2_000)))
    for size in (1, 2, 3, 17, 64, 700):
        chosen = np.sort(rng.choice(np.arange(1, 2_001), size, replace=False))
        alone = found(index, VectorQuery(query, size, allowed_seqs=chosen))
        assert alone == [(seq, everything[seq]) for seq, _ in alone]
        assert len(alone) == size
