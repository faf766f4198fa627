"""The codes FAISS scans: their layout, what it computes with them, and the bound on their error."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.vectors.codes import CodedRows, Coder, Probe, faiss

DIMENSIONS = 384


def units(rng: np.random.Generator, count: int, heavy: float = 0.0) -> NDArray[np.float32]:
    """Unit rows; `heavy` spikes one coordinate of some of them far beyond the others."""
    rows = rng.normal(size=(count, DIMENSIONS))
    if heavy:
        spiked = rng.random(count) < 0.01
        rows[spiked, rng.integers(0, DIMENSIONS)] *= heavy
    unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(
        np.float32
    )
    return unit


def coded(vectors: NDArray[np.float32], clip: float) -> CodedRows:
    coder = Coder(DIMENSIONS, clip)
    return CodedRows(coder, *coder.encode(vectors))


def test_codes_are_rounded_clipped_multiples_of_the_scale() -> None:
    vectors = np.zeros((1, DIMENSIONS), np.float32)
    vectors[0, :6] = (0.3, -0.3, 0.9, -0.9, 0.1, -0.001)
    codes = coded(vectors, 0.3).codes()
    assert (codes[0, :6].astype(int) - 128).tolist() == [127, -127, 127, -127, 42, 0]
    assert set(codes[0, 6:].tolist()) == {128}


def test_faiss_reads_the_codes_as_they_are_meant() -> None:
    vectors = units(np.random.default_rng(1), 50)
    index = faiss.IndexScalarQuantizer(
        DIMENSIONS, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
    )
    rounded = np.clip(np.rint(vectors * np.float32(127 / 0.3)), -127, 127).astype(np.float32)
    index.add(rounded)
    theirs = faiss.vector_to_array(index.codes).reshape(50, DIMENSIONS)
    np.testing.assert_array_equal(coded(vectors, 0.3).codes(), theirs)


def test_scores_are_whole_number_products() -> None:
    rng = np.random.default_rng(2)
    vectors, query = units(rng, 200), units(rng, 1)[0]
    codes = coded(vectors, 0.3)
    probe = Probe(query, DIMENSIONS)
    rows, scores = codes.scan(probe, 200, None)
    whole = codes.codes()[rows].astype(np.int64) - 128
    products = whole @ probe.codes[0].astype(np.int64)
    assert np.abs(probe.codes).max() == 127
    np.testing.assert_allclose(scores, products / (127 / 0.3 * probe.scale), rtol=1e-6)
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("clip", [0.05, 0.15, 0.3, 1.0])
@pytest.mark.parametrize("heavy", [0.0, 8.0, 300.0])
def test_no_row_but_the_outliers_errs_beyond_the_bound(clip: float, heavy: float) -> None:
    rng = np.random.default_rng(3)
    vectors = units(rng, 2000, heavy)
    codes = coded(vectors, clip)
    bounded = np.setdiff1d(np.arange(2000), codes.outliers)
    queries = np.concatenate((units(rng, 20, heavy), vectors[:20]))
    for query in queries:
        probe = Probe(query, DIMENSIONS)
        rows, scores = codes.scan(probe, 2000, None)
        approximate = np.empty(2000)
        approximate[rows] = scores
        true = vectors.astype(np.float64) @ query.astype(np.float64)
        worst = np.abs(true - approximate)[bounded].max()
        assert worst <= codes.error_bound(probe)


def test_a_few_clipped_rows_do_not_spoil_the_bound_of_the_others() -> None:
    rng = np.random.default_rng(4)
    vectors = units(rng, 2000)
    plain = coded(vectors, 0.3)
    vectors[7] = 0
    vectors[7, 0] = 1
    spiked = coded(vectors, 0.3)
    probe = Probe(units(rng, 1)[0], DIMENSIONS)
    assert spiked.outliers.tolist() == [7]
    assert spiked.error_bound(probe) <= plain.error_bound(probe) * 1.05


def test_only_allowed_rows_are_scanned_and_no_place_is_padded() -> None:
    rng = np.random.default_rng(5)
    vectors = units(rng, 100)
    codes = coded(vectors, 0.3)
    allowed = np.zeros(100, np.bool_)
    allowed[[0, 7, 8, 63, 64, 99]] = True
    bits = np.packbits(allowed, bitorder="little")
    rows, scores = codes.scan(Probe(vectors[1], DIMENSIONS), 20, bits)
    assert sorted(rows.tolist()) == [0, 7, 8, 63, 64, 99]
    assert np.isfinite(scores).all()


def run_python(code: str, *flags: str, threads: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("threads", [None, "1", "8"])
def test_importing_the_package_first_holds_faiss_to_one_thread(threads: str | None) -> None:
    code = (
        "import semanticrecall_core.vectors, faiss, os;"
        "print(faiss.omp_get_max_threads(), os.environ['OMP_NUM_THREADS'])"
    )
    done = run_python(code, threads=threads)
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_faiss_imported_first_with_one_thread_is_fine() -> None:
    done = run_python("import faiss, semanticrecall_core.vectors; print('ok')", threads="1")
    assert done.stdout.split() == ["ok"], done.stderr


@pytest.mark.parametrize("threads", [None, "4"])
def test_faiss_imported_first_with_many_threads_is_refused(threads: str | None) -> None:
    done = run_python("import faiss, semanticrecall_core.vectors", threads=threads)
    assert done.returncode != 0
    assert "UnsafeEnvironmentError: set OMP_NUM_THREADS=1" in done.stderr


def test_checks_hold_where_asserts_are_off() -> None:
    code = """
from dataclasses import replace
import numpy as np
from semanticrecall_core.types.errors import EmbeddingFailedError, InvalidArgumentError
from semanticrecall_core.types.values import PartitionRows, VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex
one = np.ones(1, np.int64)
row = np.eye(1, 8, dtype=np.float32)
rows = PartitionRows(one, one, one, np.ones(1, np.uint8), one * 0, one, row, one)
index = FaissVectorIndex(8, lambda resource_id: rows)
for vector in (row[0, :4], row[0] * np.float32(np.nan), row[0].astype(np.float64)):
    try:
        index.search("u", VectorQuery(vector, 1))
    except InvalidArgumentError:
        print("refused")
try:
    index.vectors_put("u", replace(rows, vectors=row[:, :4]))
except EmbeddingFailedError:
    print("refused")
print(index.search("u", VectorQuery(row[0], 1)).hits[0].score)
"""
    done = run_python(code, "-O", threads="1")
    assert done.stdout.split() == ["refused"] * 4 + ["1.0"], done.stderr
