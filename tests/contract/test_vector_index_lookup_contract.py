"""What every VectorIndex promises of named messages and of a partition as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.values import CosineRows, VectorQuery
from support.brute_force import STD_MIN, cosine_rows, moments, vectors_of
from support.vector_worlds import DIMENSIONS, MAKERS, World


@pytest.fixture(params=sorted(MAKERS))
def world(request: pytest.FixtureRequest) -> World:
    return World(MAKERS[request.param])


def column(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def expect_equal(found: CosineRows, right: CosineRows) -> None:
    for name in ("cosines", "chunks", "chunk_counts", "revisions"):
        np.testing.assert_array_equal(getattr(found, name), getattr(right, name), err_msg=name)
    assert found.cosines.dtype == np.float32


def check(world: World, seqs: NDArray[np.int64]) -> None:
    """Cosines, vectors and moments are those of the record."""
    messages = world.record.get("u", {})
    queries = world.units(3)
    expect_equal(world.index.cosines("u", seqs, queries), cosine_rows(messages, seqs, queries))
    order = world.rng.permutation(len(seqs))
    chunks = world.rng.integers(-1, 4, len(seqs))
    np.testing.assert_array_equal(
        world.index.vectors_of("u", seqs[order], chunks),
        vectors_of(messages, seqs[order], chunks, DIMENSIONS),
    )
    found, right = world.index.moments("u", queries), moments(messages.values(), queries)
    for column_found, column_right in zip(found, right, strict=True):
        assert column_found.shape == (3,)
        np.testing.assert_allclose(column_found, column_right, atol=2e-6)


def test_of_an_empty_resource_nothing_is_told(world: World) -> None:
    query = world.units(1)
    found = world.index.cosines("nobody", column(1, 5), query)
    expect_equal(found, cosine_rows({}, column(1, 5), query))
    assert not world.index.vectors_of("nobody", column(1, 5), column(0, 1)).any()
    mean, std = world.index.moments("nobody", query)
    assert (mean.tolist(), std.tolist()) == ([0.0], [np.float32(STD_MIN)])


def test_nothing_asked_is_nothing_told(world: World) -> None:
    world.put("u", [world.message(1)])
    none = column()
    expect_equal(world.index.cosines("u", none, world.units(2)), cosine_rows({}, none, np.ones(2)))
    none_asked = world.index.cosines("u", column(1, 2), world.units(1)[:0])
    assert none_asked.cosines.shape == none_asked.chunks.shape == (0, 2)
    assert world.index.vectors_of("u", none, none).shape == (0, DIMENSIONS)
    mean, std = world.index.moments("u", world.units(1)[:0])
    assert (mean.shape, std.shape) == ((0,), (0,))


@pytest.mark.parametrize("count", [1, 3, 5, 12, 41, 100, 700])
def test_of_messages_that_were_loaded(world: World, count: int) -> None:
    world.record["u"] = {
        seq: world.message(seq, world.units(1 + seq % 3)) for seq in range(1, count)
    }
    for step in (1, 2, 7):
        check(world, np.arange(0, count + 20, step))


def test_of_messages_put_edited_and_removed(world: World) -> None:
    check(world, column(1))
    for start in range(1, 200, 9):
        world.put(
            "u", [world.message(seq, world.units(1 + seq % 4)) for seq in range(start, start + 9)]
        )
        world.put("u", [world.message(start), world.message(start + 4, world.units(3))])
        world.remove("u", [start + 2, start + 7])
        check(world, np.arange(max(0, start - 30), start + 12))


def test_seqs_beyond_every_width_are_not_there(world: World) -> None:
    world.put("u", [world.message(seq) for seq in (1, 2, 2**31 - 1)])
    check(world, column(-(2**63), -1, 0, 1, 3, 2**31 - 2, 2**31 - 1, 2**31, 2**40, 2**63 - 1))
    world.put("u", [world.message(2**40)])
    check(world, column(1, 2**31 - 1, 2**31, 2**40, 2**40 + 1, 2**63 - 1))


def test_the_first_of_equal_chunks_is_the_best(world: World) -> None:
    one, other, query = world.units(3)
    queries = np.stack((query, -query))
    chunks = np.stack([one, other, one, other] if one @ query < other @ query else [other, one] * 2)
    world.put("u", [world.message(seq, chunks) for seq in range(1, 30)])
    found = world.index.cosines("u", np.arange(1, 30), queries)
    assert found.chunks.tolist() == [[1] * 29, [0] * 29]
    assert set(found.chunk_counts.tolist()) == {4}


def test_cosines_are_those_of_a_search(world: World) -> None:
    world.put("u", [world.message(seq, world.units(1 + seq % 3)) for seq in range(1, 90)])
    queries = world.units(2)
    hits = sorted(world.index.search("u", VectorQuery(queries[1], 50)).hits)
    found = world.index.cosines("u", column(*(hit.seq for hit in hits)), queries)
    assert found.cosines[1].tolist() == [hit.score for hit in hits]
    assert found.chunks[1].tolist() == [hit.chunk for hit in hits]
    assert found.chunk_counts.tolist() == [hit.chunks for hit in hits]
    assert found.revisions.tolist() == [hit.revision for hit in hits]


def test_equal_vectors_and_a_single_one_have_a_spread_above_zero(world: World) -> None:
    same, query = world.units(2)
    for count in (1, 60):
        world.put("u", [world.message(seq, same) for seq in range(1, count + 1)])
        mean, std = world.index.moments("u", query[np.newaxis])
        assert mean[0] == pytest.approx(float(same @ query), abs=1e-6)
        assert std[0] == np.float32(STD_MIN)


@pytest.mark.parametrize("bad", [0.0, np.nan, 2.0])
def test_a_query_that_is_no_unit_vector_is_refused(world: World, bad: float) -> None:
    world.put("u", [world.message(1)])
    query = world.units(1) * np.float32(bad)
    with pytest.raises(InvalidArgumentError):
        world.index.cosines("u", column(1), query)
    with pytest.raises(InvalidArgumentError):
        world.index.cosines("u", column(1), np.concatenate((world.units(1), query)))
    with pytest.raises(InvalidArgumentError):
        world.index.cosines("u", column(1), world.units(1)[0])
    with pytest.raises(InvalidArgumentError):
        world.index.moments("u", query)
    with pytest.raises(InvalidArgumentError):
        world.index.moments("u", world.units(1)[0])
