"""Isolation by metadata: a filter is understood whole or refused, and holds everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from semanticrecall import AsyncRecallClient, RecallClient
from support.wire_memory import (
    ALONE,
    BY_COSINE,
    THREAD_ONLY,
    Memory,
    Model,
    Sidecar,
    conversation,
    hit_ids,
    ids,
    invalid,
    said,
    window,
)

# ISO-7 ------------------------------------------------------------------------------------------

SECRET = "the vault code is seven four nine"

BAD_FILTERS: list[dict[str, Any]] = [
    {"projct": "A"},
    {"Project": "A"},
    {"project ": "A"},
    {"projct": {"$ne": "B"}},
    {"projct": {"$nin": ["B"]}},
    {"$not": {"projct": "B"}},
    {"$or": [{"project": "A"}, {"projct": "B"}]},
    {"$and": [{"project": "A"}, {"$not": {"projct": {"$in": ["B"]}}}]},
    {"project.name": "A"},
    {"metadata.project": "A"},
    {"project": {"$regex": "A"}},
    {"project": {"$like": "A"}},
    {"project": {"$EQ": "A"}},
    {"project": {"eq": "A"}},
    {"project": {"$eq": "A", "$nope": 1}},
    {"$nor": [{"project": "B"}]},
    {"$where": "true"},
    {"$OR": [{"project": "A"}]},
    {"or": [{"project": "A"}]},
    {"$or": []},
    {"$or": {"project": "A"}},
    {"$or": [{}]},
    {"$and": "project"},
    {"$not": "project"},
    {"$not": {}},
    {"project": {}},
    {"project": {"$in": "A"}},
    {"project": {"$in": [{"a": 1}]}},
    {"project": {"$exists": "yes"}},
    {"project": {"$gt": True}},
    {"project": {"$eq": {"nested": 1}}},
    {"project": [["A"]]},
    {"": "A"},
    {"project.": "A"},
]


@pytest.mark.parametrize("condition", BAD_FILTERS, ids=repr)
def test_a_filter_that_is_not_understood_is_refused(
    memory: Memory, condition: dict[str, Any]
) -> None:
    memory.learn([said("a", SECRET)], metadata={"project": "A"})
    memory.learn([said("b", SECRET)], metadata={"project": "B"})
    with invalid("filter"):
        memory.recall(SECRET, filter=condition)
    [answer] = memory.sidecar.stream(
        [memory.request(SECRET, filter=condition, request_id="x")]
    ).values()
    assert answer.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert list(answer.messages) == []


# ISO-8 ------------------------------------------------------------------------------------------

PROJECT_A = "the codename of project is bluebird"
PROJECT_B = "the codename of project is nightjar"
ONLY_A: list[dict[str, Any]] = [
    {"project": "A"},
    {"project": {"$eq": "A"}},
    {"project": ["A"]},
    {"project": {"$in": ["A", "C"]}},
    {"project": {"$ne": "B"}},
    {"project": {"$nin": ["B"]}},
    {"project": {"$not": {"$eq": "B"}}},
    {"$not": {"project": "B"}},
    {"project": {"$lt": "B"}},
    {"$and": [{"project": "A"}, {"project": {"$exists": True}}]},
    {"$or": [{"project": "A"}, {"project": "A"}]},
]


@pytest.fixture(scope="module")
def projects(sidecar: Sidecar) -> Memory:
    """Threads of projects A and B, one that mixes both, and one of neither."""
    memory = sidecar.memory("projects")
    memory.forget(everything=True)
    for thread, project, text in (("ta", "A", PROJECT_A), ("tb", "B", PROJECT_B)):
        messages = conversation([text] * 3, prefix=f"{thread}-")
        memory.learn(messages, thread=thread, metadata={"project": project})
    mixed = conversation([PROJECT_A, PROJECT_B] * 3, prefix="mix-")
    for i, message in enumerate(mixed):
        message.metadata.update({"project": "AB"[i % 2]})
    # A message's own field wins over the request's.
    memory.learn(mixed, thread="mix", metadata={"project": "B", "team": "x"})
    return memory


def client_routes(memory: Memory, condition: dict[str, Any]) -> dict[str, list[Any]]:
    """The same recall through the Python client: single call and session."""
    options: Any = {"filter": condition, "top_k": 100}
    with RecallClient(memory.sidecar.target) as client, client.recall_stream() as session:
        return {
            "client": list(client.recall(memory.resource_id, PROJECT_B, **options)),
            "session": list(session.recall(memory.resource_id, PROJECT_B, **options)),
        }


@pytest.mark.parametrize("condition", ONLY_A, ids=repr)
def test_a_filter_holds_for_hits_neighbours_and_context_on_every_route(
    projects: Memory, condition: dict[str, Any]
) -> None:
    only_a = {"ta-0", "ta-1", "ta-2", "mix-0", "mix-2", "mix-4"}
    fields: dict[str, Any] = {"filter": condition, "top_k": 100, "message_range": window(2, 2)}
    unary = projects.recall(PROJECT_B, **fields)
    [streamed] = projects.sidecar.stream(
        [projects.request(PROJECT_B, request_id="s", **fields)]
    ).values()
    for answer in (unary, streamed):
        assert set(ids(answer.messages)) == only_a
        assert "nightjar" not in answer.context_text
        assert "bluebird" in answer.context_text
    for messages in client_routes(projects, condition).values():
        assert set(ids(messages)) == only_a


@pytest.mark.asyncio
async def test_a_filter_holds_through_the_asynchronous_client(projects: Memory) -> None:
    async with AsyncRecallClient(projects.sidecar.target) as client:
        result = await client.recall(
            projects.resource_id, PROJECT_B, filter={"project": "A"}, top_k=2
        )
        assert all(m.message.metadata["project"] == "A" for m in result)
        assert len(result.hits) == 2


def test_a_filtered_out_neighbour_does_not_stand_beside_the_hit(projects: Memory) -> None:
    answer = projects.recall(
        PROJECT_A,
        filter={"project": "A"},
        scope=THREAD_ONLY,
        thread_id="mix",
        top_k=1,
        message_range=window(50, 50),
    )
    assert ids(answer.messages) == ["mix-0", "mix-2", "mix-4"]


# ISO-9 ------------------------------------------------------------------------------------------

COMBINATIONS = [
    {key: value for key, value in zip("abc", values, strict=True) if value is not None}
    for values in itertools.product((1, 2, None), (2, 9, None), (3, 4, None))
]
BRANCHES: list[tuple[dict[str, Any], Callable[[dict[str, int]], bool]]] = [
    (
        {"$or": [{"a": 1, "b": 2}, {"c": 3}]},
        lambda m: (m.get("a") == 1 and m.get("b") == 2) or m.get("c") == 3,
    ),
    (
        {"$or": [{"c": 3}, {"b": 2, "a": 1}]},
        lambda m: (m.get("a") == 1 and m.get("b") == 2) or m.get("c") == 3,
    ),
    (
        {"$or": [{"a": 1, "b": {"$ne": 9}}, {"c": {"$gt": 3}}]},
        lambda m: (m.get("a") == 1 and m.get("b") != 9) or m.get("c", 0) > 3,
    ),
    (
        {"a": 1, "$or": [{"b": 2, "c": 3}, {"b": 9, "c": 4}]},
        lambda m: m.get("a") == 1 and (m.get("b"), m.get("c")) in ((2, 3), (9, 4)),
    ),
    (
        {"$and": [{"$or": [{"a": 1, "b": 2}, {"c": 3}]}, {"$not": {"a": 2, "c": 3}}]},
        lambda m: (
            ((m.get("a") == 1 and m.get("b") == 2) or m.get("c") == 3)
            and not (m.get("a") == 2 and m.get("c") == 3)
        ),
    ),
    ({"$not": {"a": 1, "b": 2}}, lambda m: not (m.get("a") == 1 and m.get("b") == 2)),
    ({"a": 1, "b": 2}, lambda m: m.get("a") == 1 and m.get("b") == 2),
    ({"a": {"$gte": 1, "$lt": 2}, "b": [2, 9]}, lambda m: m.get("a") == 1 and "b" in m),
]


@pytest.fixture(scope="module")
def combinations(sidecar: Sidecar) -> Memory:
    memory = sidecar.memory("combinations")
    memory.forget(everything=True)
    memory.learn(
        [said(f"m{i}", f"words {i}", metadata=given) for i, given in enumerate(COMBINATIONS)]
    )
    return memory


@pytest.mark.parametrize(("condition", "holds"), BRANCHES, ids=lambda value: repr(value)[:60])
def test_keys_of_one_branch_are_anded(
    combinations: Memory, condition: dict[str, Any], holds: Callable[[dict[str, int]], bool]
) -> None:
    right = {f"m{i}" for i, given in enumerate(COMBINATIONS) if holds(given)}
    assert 0 < len(right) < len(COMBINATIONS)
    answer = combinations.recall("words", filter=condition, top_k=100, message_range=ALONE)
    assert set(hit_ids(answer)) == right
    assert answer.info.candidates == len(right)


def test_the_best_k_are_chosen_among_what_the_filter_allows(
    combinations: Memory, model: Model
) -> None:
    allowed = [m for m in combinations.listed() if m.metadata.fields["c"].number_value == 3]
    answer = combinations.recall(
        "words 4", filter={"c": 3}, top_k=4, message_range=ALONE, ranking=BY_COSINE
    )
    model.assert_best(answer, "words 4", allowed, 4)
