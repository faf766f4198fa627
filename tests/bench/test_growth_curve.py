"""Operations on one resource in stores of several sizes: the run, and that it spares the stores."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth_operations
from benchmarks.growth_curve import Side, Turns
from benchmarks.report import Digest, Result
from semanticrecall.v1 import recall_pb2, types_pb2
from support import smoke_runs

CALLS, IMPORTS, IMPORT_MESSAGES = 6, 2, 10
SIZES = {
    80: ("crowded-80-in-1-largest-80-seed-7", 1),
    400: ("crowded-400-in-20-largest-80-seed-7", 20),
}
EVERY_CALL = {
    "new query",
    "asked again",
    "turn, searchable",
    "turn, durable",
    "ListMessages, a page",
    "GetStats of the resource",
    "GetStats of the store",
}
FEW = {"import of a thread", "Forget of a thread"}


@pytest.mark.slow
def test_every_operation_is_measured_at_every_size(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    result, printed = smoke_runs.run(
        "growth_curve", tmp_path / "result.json", "--smoke", "--data-dir", str(stores)
    )
    assert f"answers {result['answers_digest']}" in printed
    smoke_runs.assert_charts_can_be_drawn(result)
    rows = {(row["operation"], row["messages"]): row for row in result["tables"]["latency"]}
    assert rows.keys() == {(name, size) for name in EVERY_CALL | FEW for size in SIZES}
    for (name, size), row in rows.items():
        latency = result["latencies_ms"][f"{name}, {size} messages"]
        assert latency["count"] == row["calls"] == (IMPORTS if name in FEW else CALLS)
        assert row["p50_ms"] == pytest.approx(latency["p50_ms"])
        smallest = result["latencies_ms"][f"{name}, 80 messages"]["p50_ms"]
        assert row["p50_to_smallest_store"] == pytest.approx(latency["p50_ms"] / smallest)
    rates = {(row["operation"], row["messages"]): row for row in result["tables"]["rates"]}
    assert len(rates) == 2 * len(SIZES)
    for size in SIZES:
        p50_ms = result["latencies_ms"][f"import of a thread, {size} messages"]["p50_ms"]
        row = rates[f"messages of an import of {IMPORT_MESSAGES}", size]
        assert row["per_second"] == pytest.approx(IMPORT_MESSAGES / (p50_ms / 1000))
        recalls = rates["recalls of new queries, 8 in flight", size]
        smallest = rates["recalls of new queries, 8 in flight", 80]["per_second"]
        assert recalls["to_smallest_store"] == pytest.approx(recalls["per_second"] / smallest)
    # What was written went into copies, and these are gone.
    assert {path.name for path in (stores / "smoke").iterdir()} == {
        name for name, _ in SIZES.values()
    }
    for size, (name, resources) in SIZES.items():
        smoke_runs.assert_store_is_as_built(stores / "smoke" / name, size, resources)


# ---- What an operation refuses ----


class Answering:
    """A client that gives one answer to every call."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    async def unary(self, method: str, request: bytes) -> bytes:
        return self.answer

    async def on_stream(self, method: str, request: bytes) -> bytes:
        raise AssertionError("no stream is used")

    async def close(self) -> None:
        raise AssertionError("whoever opened it closes it")


def sides_of(*answers: list[str]) -> list[Side]:
    """Stores of 10, 20, ... messages that answer every recall so."""
    return [
        Side(10 * number, "", Answering(recalled(ids).SerializeToString()))
        for number, ids in enumerate(answers, 1)
    ]


def recalled(ids: list[str]) -> recall_pb2.RecallResponse:
    return recall_pb2.RecallResponse(
        messages=[recall_pb2.RecalledMessage(message=types_pb2.Message(id=one)) for one in ids]
    )


QUERIES = growth_operations.recall("new query", "user", ["one", "two", "three"])


def test_stores_that_answer_differently_are_no_result() -> None:
    result = Result()
    with pytest.raises(RuntimeError, match="depend on the store's size"):
        asyncio.run(Turns(sides_of(["a", "b"], ["b", "a"]), result).run((QUERIES,), 1))


def test_every_store_is_asked_as_often_and_which_first_changes() -> None:
    result = Result()
    sides = sides_of(["a"], ["a"])
    order: list[int] = []
    for side in sides:
        before = side.client.unary

        async def unary(
            method: str, request: bytes, *, messages: int = side.messages, call: Any = before
        ) -> bytes:
            order.append(messages)
            answer: bytes = await call(method, request)
            return answer

        side.client.unary = unary  # type: ignore[method-assign]
    turns = Turns(list(sides), result)
    asyncio.run(turns.run((QUERIES,), 3))
    assert order == [10, 20, 20, 10, 10, 20]
    assert {name: len(seconds) for name, seconds in result.seconds.items()} == {
        "new query, 10 messages": 3,
        "new query, 20 messages": 3,
    }
    expected = Digest()
    for _ in range(3):
        expected.add(["a"])
    assert turns.digest.text() == expected.text()


@pytest.mark.parametrize(
    ("messages", "vectors", "whole"), [(10, 10, True), (9, 9, False), (10, 9, False)]
)
def test_a_thread_that_is_not_forgotten_whole_is_a_failure(
    messages: int, vectors: int, whole: bool
) -> None:
    forget = growth_operations.forget_thread("forget", "user", 10)
    answer = recall_pb2.ForgetResponse(messages=messages, vectors=vectors).SerializeToString()
    with nullcontext() if whole else pytest.raises(RuntimeError, match="not forgotten"):
        assert forget.ids(answer) == []


@pytest.mark.parametrize(
    ("status", "searchable", "durable"),
    [
        (types_pb2.STATUS_INDEXED, True, True),
        (types_pb2.STATUS_PENDING, False, True),
        (types_pb2.STATUS_UNCHANGED, False, False),
        (types_pb2.STATUS_REJECTED, False, False),
    ],
)
def test_a_turn_that_is_not_stored_as_asked_is_a_failure(
    status: types_pb2.Status, searchable: bool, durable: bool
) -> None:
    result = recall_pb2.IndexResult(message_id="u0", status=status)
    answer = recall_pb2.IndexResponse(results=[result]).SerializeToString()
    for turn, accepted in (
        (growth_operations.searchable_turn("turn", "user", ["said"]), searchable),
        (growth_operations.durable_turn("turn", "user", ["said"], 0), durable),
    ):
        with nullcontext() if accepted else pytest.raises(RuntimeError, match="not indexed"):
            assert turn.ids(answer) == ["u0"]


def test_a_thread_is_forgotten_as_it_was_imported() -> None:
    imported = growth_operations.import_of_thread("import", "user", 10, seed=1)
    forgotten = growth_operations.forget_thread("forget", "user", 10)
    for number in (0, 1):
        sent = recall_pb2.IndexRequest.FromString(imported.request(number))
        assert len(sent.messages) == 10
        threads = {message.thread_id for message in sent.messages}
        asked = recall_pb2.ForgetRequest.FromString(forgotten.request(number))
        assert threads == {asked.thread_id}
        assert sent.resource_id == asked.resource_id == "user"
