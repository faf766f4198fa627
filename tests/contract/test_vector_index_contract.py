"""What every VectorIndex promises of a search, over every implementation (`vector_worlds`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall_core.types.errors import (
    EmbeddingFailedError,
    InvalidArgumentError,
    SemanticRecallError,
)
from semanticrecall_core.types.values import Role, VectorQuery
from support.brute_force import StoredVectors, partition_rows
from support.vector_worlds import DIMENSIONS, MAKERS, World


@pytest.fixture(params=sorted(MAKERS))
def world(request: pytest.FixtureRequest) -> World:
    return World(MAKERS[request.param])


def near(query: NDArray[np.float32], cosine: float, other: NDArray[np.float32]) -> Any:
    """A unit vector at this cosine to the query."""
    aside = other - (other @ query) * query
    aside /= np.linalg.norm(aside)
    return (cosine * query + np.sqrt(1 - cosine**2) * aside).astype(np.float32)


def test_an_empty_resource_answers_with_nothing(world: World) -> None:
    for query in world.units(25):
        found = world.index.search("nobody", VectorQuery(query, 4))
        assert (found.hits, found.candidates, found.searchable) == ((), 0, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 12, 13, 41, 100, 600])
def test_what_was_loaded_is_found_exactly(world: World, count: int) -> None:
    world.record["u"] = {seq: world.message(seq) for seq in range(1, count + 1)}
    for query in world.units(5):
        for top_k in (1, 4, 50):
            world.check("u", VectorQuery(query, top_k))


@pytest.mark.parametrize("count", [1, 4, 5, 9, 30, 100])
def test_what_was_put_one_by_one_is_found_exactly(world: World, count: int) -> None:
    query = world.units(1)[0]
    world.check("u", VectorQuery(query, 4))
    for seq in range(1, count + 1):
        world.put("u", [world.message(seq)])
        world.check("u", VectorQuery(query, 4))


def test_a_vector_finds_itself_with_cosine_one(world: World) -> None:
    world.put("u", [world.message(seq) for seq in range(1, 30)])
    target = world.record["u"][17].vectors[0]
    best = world.index.search("u", VectorQuery(target, 1)).hits[0]
    assert best.seq == 17
    assert best.score == pytest.approx(1.0, abs=1e-6)
    assert best.score <= 1.0


def test_what_is_found_is_told_in_columns(world: World) -> None:
    """Of the same types whatever the rows are kept in: they are joined with columns of words."""
    query = world.units(1)[0]
    for world_has in (0, 3, 40):
        world.put("u", [world.message(seq) for seq in range(1, world_has + 1)])
        found = world.index.search("u", VectorQuery(query, 5)).found
        assert {len(column) for column in found} == {min(5, world_has)}
        assert found.scores.dtype == np.float32
        numbers = (found.seqs, found.chunks, found.chunk_counts, found.revisions)
        assert {column.dtype for column in numbers} == {np.dtype(np.int64)}


def test_more_asked_than_there_are_gives_what_there_is(world: World) -> None:
    world.put("u", [world.message(seq) for seq in (1, 2, 3)])
    found = world.index.search("u", VectorQuery(world.units(1)[0], 1000))
    assert sorted(hit.seq for hit in found.hits) == [1, 2, 3]
    assert all(-1.0 <= hit.score <= 1.0 for hit in found.hits)


def test_equal_vectors_are_ordered_by_seq(world: World) -> None:
    same = world.units(1)[0]
    query = world.units(1)[0]
    world.check("u", VectorQuery(query, 1))
    for start in range(1, 401, 40):
        world.put("u", [world.message(seq, same) for seq in range(start, start + 40)])
    assert world.check("u", VectorQuery(query, 5)) == [1, 2, 3, 4, 5]
    world.put("u", [world.message(2, same)])  # moves to another part, keeps its place
    assert world.check("u", VectorQuery(query, 3)) == [1, 2, 3]


def test_a_nearest_row_found_last_is_not_missed_among_near_equals(world: World) -> None:
    query, other = world.units(2)
    steps = [near(query, 0.9 - 1e-4 * (seq * 37 % 200), other) for seq in range(1, 201)]
    world.put("u", [world.message(seq, steps[seq - 1]) for seq in range(1, 201)])
    for top_k in (1, 3, 10):
        world.check("u", VectorQuery(query, top_k))


def test_other_resources_do_not_take_places(world: World) -> None:
    query = world.units(1)[0]
    world.put("B", [world.message(seq, query) for seq in range(1, 301)])
    world.put("A", [world.message(seq) for seq in range(1001, 1011)])
    found = world.check("A", VectorQuery(query, 5))
    assert len(found) == 5
    assert all(seq > 1000 for seq in found)


@pytest.mark.parametrize("names", [("john-doe", "john_doe", "john%doe"), ("acme", "acme:1", "a")])
def test_resource_ids_compare_by_equality(world: World, names: tuple[str, ...]) -> None:
    for position, name in enumerate(names):
        world.put(name, [world.message(position + 1)])
    query = world.units(1)[0]
    assert [world.check(name, VectorQuery(query, 9)) for name in names] == [[1], [2], [3]]


@pytest.mark.parametrize("chunks", [10, 200])
def test_many_chunks_of_one_message_take_one_place(world: World, chunks: int) -> None:
    query = world.units(1)[0]
    world.index.search("u", VectorQuery(query, 1))
    others = world.units(chunks)
    long = np.stack([near(query, 0.99 - 0.0001 * i, others[i]) for i in range(chunks)])
    world.put("u", [world.message(1, long)])
    world.put("u", [world.message(seq) for seq in range(2, 7)])
    found = world.index.search("u", VectorQuery(query, 3))
    assert len({hit.seq for hit in found.hits}) == 3
    assert (found.hits[0].seq, found.hits[0].chunk, found.hits[0].chunks) == (1, 0, chunks)
    assert (found.candidates, found.searchable) == (6, 6)
    world.check("u", VectorQuery(query, 3))


@pytest.mark.parametrize("others", [0, 300, 700])
def test_equal_chunks_of_a_message_give_the_first(world: World, others: int) -> None:
    query, other = world.units(2)
    close = near(query, 0.8, other)
    chunks = np.stack([near(query, 0.1, other), *[close] * 12])
    world.put("u", [world.message(seq) for seq in range(2, 2 + others)])
    world.put("u", [world.message(1, chunks)])
    for _ in range(2):
        hit = world.index.search("u", VectorQuery(query, 1)).hits[0]
        assert (hit.seq, hit.chunk, hit.chunks) == (1, 1, 13)
        world.put("u", [world.message(1, chunks)])


def test_a_message_edited_many_times_is_one_message(world: World) -> None:
    query = world.units(1)[0]
    world.check("u", VectorQuery(query, 4))
    for _ in range(9):
        world.put("u", [world.message(seq, world.units(2)) for seq in (3, 5, 9)])
        world.put("u", [world.message(5)])
        world.check("u", VectorQuery(query, 4))
    for _ in range(2):
        world.remove("u", [3, 5])
        assert world.check("u", VectorQuery(query, 4)) == [9]


def test_excluded_messages_leave_their_places_to_others(world: World) -> None:
    query = world.units(1)[0]
    world.put("u", [world.message(seq) for seq in range(1, 101)])
    nearest = world.check("u", VectorQuery(query, 6))
    gone = np.array(sorted(nearest), np.int64)
    found = world.check("u", VectorQuery(query, 4, excluded_seqs=gone))
    assert len(found) == 4
    assert not set(found) & set(nearest)


def test_a_removed_message_gives_way_to_the_next(world: World) -> None:
    query = world.units(1)[0]
    world.put("u", [world.message(seq) for seq in range(1, 51)])
    for _ in range(50):
        first, *_ = world.check("u", VectorQuery(query, 2))
        world.remove("u", [first])
    assert world.check("u", VectorQuery(query, 2)) == []


def test_rows_put_after_a_removal_do_not_hide_others(world: World) -> None:
    world.put("u", [world.message(seq) for seq in (1, 2, 3)])
    a, b, c = (world.record["u"][seq].vectors[0] for seq in (1, 2, 3))
    world.check("u", VectorQuery(a, 3))
    world.remove("u", [1])
    world.put("u", [world.message(4)])
    d = world.record["u"][4].vectors[0]
    for vector, seq in ((b, 2), (c, 3), (d, 4)):
        assert world.check("u", VectorQuery(vector, 1)) == [seq]
    assert sorted(world.check("u", VectorQuery(a, 9))) == [2, 3, 4]


def test_an_edit_replaces_all_chunks(world: World) -> None:
    tail = world.units(5)
    world.check("u", VectorQuery(tail[0], 1))
    world.put("u", [world.message(1, tail)])
    world.put("u", [world.message(seq) for seq in range(2, 12)])
    world.put("u", [world.message(1)])
    for vector in tail:
        found = world.index.search("u", VectorQuery(vector, 11))
        assert all(hit.chunks == 1 and hit.score < 0.999 for hit in found.hits)
        world.check("u", VectorQuery(vector, 11))


@pytest.mark.parametrize(
    "conditions",
    [
        {"thread_key": 2},
        {"thread_key": 99},
        {"roles": frozenset((Role.USER,))},
        {"roles": frozenset((Role.USER, Role.TOOL))},
        {"time_from_ns": 500},
        {"time_to_ns": 500},
        {"time_from_ns": 500, "time_to_ns": 500},
        {"time_from_ns": 100, "time_to_ns": 900, "thread_key": 1},
        {"allowed_seqs": np.array([], np.int64)},
        {"allowed_seqs": np.array([3], np.int64)},
        {"allowed_seqs": np.arange(2, 90, 3)},
        {"allowed_seqs": np.arange(0, 10_000)},
        {"excluded_seqs": np.array([], np.int64)},
        {"excluded_seqs": np.arange(1, 121)},
        {"allowed_seqs": np.arange(2, 90, 3), "excluded_seqs": np.arange(0, 90, 2)},
    ],
)
def test_conditions_hold_before_top_k(world: World, conditions: dict[str, Any]) -> None:
    query = world.units(1)[0]
    world.record["u"] = {seq: world.message(seq, world.units(1 + seq % 3)) for seq in range(1, 61)}
    world.check("u", VectorQuery(query, 1))
    world.put("u", [world.message(seq) for seq in range(61, 121)])
    world.remove("u", [5, 6, 70])
    for top_k in (1, 4, 200):
        world.check("u", VectorQuery(query, top_k, **conditions))


def test_time_bounds_are_half_open_over_the_whole_range(world: World) -> None:
    low, high = -(2**63), 2**63 - 1
    vectors = world.units(3)
    rows = [StoredVectors(i + 1, 1, at, 1, vectors[[i]]) for i, at in enumerate((low, 0, high))]
    world.put("u", rows)
    query = vectors[0]
    assert sorted(world.check("u", VectorQuery(query, 9, time_from_ns=0))) == [2, 3]
    assert sorted(world.check("u", VectorQuery(query, 9, time_to_ns=high))) == [1, 2]
    assert sorted(world.check("u", VectorQuery(query, 9, time_from_ns=low))) == [1, 2, 3]


def test_changes_of_a_resource_not_in_memory_are_read_from_the_record(world: World) -> None:
    world.put("u", [world.message(1), world.message(2)])
    world.remove("u", [1])
    assert world.loads == []
    assert world.index.partitions_loaded() == 0
    assert world.check("u", VectorQuery(world.units(1)[0], 4)) == [2]
    assert world.loads == ["u"]
    assert world.index.partitions_loaded() == 1


def test_a_dropped_resource_is_read_anew(world: World) -> None:
    world.put("u", [world.message(1)])
    query = world.units(1)[0]
    assert world.check("u", VectorQuery(query, 4)) == [1]
    world.record["u"] = {9: world.message(9)}
    world.index.resource_dropped("u")
    world.index.resource_dropped("never seen")
    assert world.check("u", VectorQuery(query, 4)) == [9]


def test_a_failed_load_is_told_and_tried_again(world: World) -> None:
    world.put("u", [world.message(1)])
    world.failures.append(OSError("disk"))
    query = VectorQuery(world.units(1)[0], 4)
    with pytest.raises(OSError, match="disk"):
        world.index.search("u", query)
    assert world.check("u", query) == [1]


def test_partition_rows_are_what_is_alive_by_seq_and_chunk(world: World) -> None:
    query = VectorQuery(world.units(1)[0], 1)
    assert len(world.index.partition_rows("u").seqs) == 0
    assert world.index.partition_rows("u").vectors.shape == (0, DIMENSIONS)
    for seq in (8, 3, 5, 1, 9, 2, 7, 4, 6):
        world.put("u", [world.message(seq, world.units(1 + seq % 4))])
    world.put("u", [world.message(3, world.units(2))])
    world.remove("u", [5, 9])
    world.check("u", query)
    rows = world.index.partition_rows("u")
    right = partition_rows(world.record["u"].values(), DIMENSIONS)
    for name in ("seqs", "thread_keys", "times_ns", "roles", "chunks", "revisions", "vectors"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(right, name), err_msg=name)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda v: v[:-1],
        lambda v: v.astype(np.float64),
        lambda v: v.reshape(1, -1),
        lambda v: v * np.float32(0),
        lambda v: v * np.float32(np.nan),
        lambda v: np.where(np.arange(DIMENSIONS) == 3, np.float32(np.inf), v),
        lambda v: np.where(np.arange(DIMENSIONS) == 3, np.float32(-np.inf), v),
        lambda v: v * np.float32(3),
    ],
    ids=["short", "double", "two-dimensional", "zero", "nan", "inf", "-inf", "long"],
)
def test_a_query_that_is_no_unit_vector_is_refused(
    world: World, spoil: Callable[[NDArray[np.float32]], NDArray[Any]]
) -> None:
    world.put("u", [world.message(1)])
    good = world.units(1)[0]
    with pytest.raises(InvalidArgumentError) as caught:
        world.index.search("u", VectorQuery(spoil(good), 4))
    assert caught.value.violations[0].field == "query_embedding"
    assert world.check("u", VectorQuery(good, 4)) == [1]


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_below_one_is_refused(world: World, top_k: int) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        world.index.search("u", VectorQuery(world.units(1)[0], top_k))
    assert caught.value.violations[0].field == "top_k"


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, 2.0])
def test_rows_that_are_no_unit_vectors_change_nothing(world: World, bad: float) -> None:
    world.put("u", [world.message(1)])
    query = VectorQuery(world.units(1)[0], 4)
    world.check("u", query)
    rows = partition_rows([world.message(1), world.message(2)], DIMENSIONS)
    rows.vectors[1] *= np.float32(bad)
    with pytest.raises(EmbeddingFailedError):
        world.index.vectors_put("u", rows)
    assert world.check("u", query) == [1]


def test_rows_of_another_dimension_change_nothing(world: World) -> None:
    world.put("u", [world.message(1)])
    query = VectorQuery(world.units(1)[0], 4)
    world.check("u", query)
    narrow = np.eye(1, DIMENSIONS - 1, dtype=np.float32)
    with pytest.raises(SemanticRecallError):
        world.index.vectors_put(
            "u", partition_rows([StoredVectors(2, 1, 1, 1, narrow)], DIMENSIONS - 1)
        )
    assert world.check("u", query) == [1]
