"""What every VectorIndex promises of the nearest messages that a recall goes on with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.values import Role, VectorQuery
from support.vector_worlds import MAKERS, World


@pytest.fixture(params=sorted(MAKERS))
def world(request: pytest.FixtureRequest) -> World:
    return World(MAKERS[request.param])


def check(world: World, resource_id: str, queries: list[VectorQuery]) -> None:
    """They are those that searches find, which are those of the record; so are the moments."""
    found = world.index.nearest(resource_id, queries)
    wanted: set[int] = set().union(*(world.check(resource_id, query) for query in queries))
    assert found.seqs.tolist() == sorted(wanted)
    assert found.seqs.dtype == np.int64
    answer = world.index.search(resource_id, queries[0])
    assert (found.candidates, found.searchable) == (answer.candidates, answer.searchable)
    mean, std = world.index.moments(resource_id, np.stack([query.vector for query in queries]))
    assert found.mean.tolist() == mean.tolist()
    assert found.std.tolist() == std.tolist()
    assert found.mean.dtype == found.std.dtype == np.float32


def test_of_an_empty_resource_nothing_is_near(world: World) -> None:
    check(world, "nobody", [VectorQuery(world.units(1)[0], 4)])


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 12, 41, 130, 700])
def test_of_messages_that_were_loaded(world: World, count: int, chunks: int) -> None:
    world.record["u"] = {
        seq: world.message(seq, world.units(1 + seq % chunks)) for seq in range(1, count + 1)
    }
    for query in world.units(5):
        for top_k in (1, 4, 50, 1000):
            check(world, "u", [VectorQuery(query, top_k)])


def test_of_messages_put_edited_and_removed(world: World) -> None:
    check(world, "u", [VectorQuery(world.units(1)[0], 3)])
    for start in range(1, 200, 9):
        world.put(
            "u", [world.message(seq, world.units(1 + seq % 2)) for seq in range(start, start + 9)]
        )
        world.put("u", [world.message(start), world.message(start + 4, world.units(3))])
        world.remove("u", [start + 2, start + 7])
        for query in world.units(2):
            check(world, "u", [VectorQuery(query, 1 + start // 3)])


def test_of_several_vectors_each_has_its_nearest(world: World) -> None:
    world.put("u", [world.message(seq) for seq in range(1, 90)])
    check(world, "u", [VectorQuery(vector, 20) for vector in world.units(3)])


def test_of_equal_vectors_the_first_are_the_nearest(world: World) -> None:
    same, query = world.units(2)
    for start in range(1, 121, 40):
        world.put("u", [world.message(seq, same) for seq in range(start, start + 40)])
    world.put("u", [world.message(2, same)])  # moves to another part, keeps its place
    assert world.index.nearest("u", [VectorQuery(query, 5)]).seqs.tolist() == [1, 2, 3, 4, 5]
    check(world, "u", [VectorQuery(query, 41)])
    check(world, "u", [VectorQuery(same, 41)])


def test_near_equals_are_told_apart_where_float32_cannot(world: World) -> None:
    """Their cosines differ by less than the error of a float32 product."""
    query = world.units(1)[0].astype(np.float64)
    aside = world.units(1)[0].astype(np.float64)
    aside -= (aside @ query) * query
    aside /= np.linalg.norm(aside)
    cosines = 0.6 + 3e-8 * world.rng.permutation(150)
    vectors = [
        (cosine * query + np.sqrt(1 - cosine**2) * aside).astype(np.float32) for cosine in cosines
    ]
    world.put("u", [world.message(seq, vectors[seq - 1]) for seq in range(1, 151)])
    for top_k in (1, 2, 10, 75, 149):
        check(world, "u", [VectorQuery(query.astype(np.float32), top_k)])


def test_lengths_a_little_off_tie_within_one(world: World) -> None:
    target = world.units(1)[0]
    long, short = (target * np.float32(1.004)), (target * np.float32(0.996))
    vectors = [long, target, short, long, short, target, long]
    world.put("u", [world.message(seq, vector) for seq, vector in enumerate(vectors, 1)])
    for top_k in (1, 2, 3, 5):
        check(world, "u", [VectorQuery(target, top_k)])
        check(world, "u", [VectorQuery(-target, top_k)])


@pytest.mark.parametrize(
    "conditions",
    [
        {"thread_key": 1},
        {"roles": frozenset((Role.USER, Role.TOOL))},
        {"time_from_ns": 40},
        {"time_to_ns": 40},
        {"allowed_seqs": np.arange(3, 60, 4)},
        {"allowed_seqs": np.empty(0, np.int64)},
        {"excluded_seqs": np.arange(1, 80, 2)},
    ],
)
def test_only_what_is_allowed_is_near(world: World, conditions: dict[str, Any]) -> None:
    world.put("u", [world.message(seq, world.units(1 + seq % 2)) for seq in range(1, 90)])
    world.put("u", [world.message(seq) for seq in range(90, 100)])
    world.remove("u", [5, 95])
    for query in world.units(3):
        for top_k in (1, 8, 200):
            check(world, "u", [VectorQuery(query, top_k, **conditions)])


def test_what_is_no_query_is_refused(world: World) -> None:
    world.put("u", [world.message(1)])
    good = world.units(1)[0]
    for bad in (VectorQuery(good, 0), VectorQuery(good * 2, 1), VectorQuery(good[:-1], 1)):
        with pytest.raises(InvalidArgumentError):
            world.index.nearest("u", [VectorQuery(good, 1), bad])
