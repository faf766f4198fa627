"""What a caller may write, and what a mistake is answered with: its argument's name and the fix."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest

import semanticrecall as sr
from semanticrecall import AsyncRecallClient, IndexBatch, Message, RecallClient, Role, user
from semanticrecall.v1 import recall_pb2, types_pb2
from support.fake_sidecar import Shelf


def test_enums_may_be_given_by_name_in_any_case(memory: RecallClient, shelf: Shelf) -> None:
    memory.recall(
        "u",
        "q",
        thread_id="t",
        scope="thread",
        roles=["user", "TOOL", Role.SYSTEM],
        context_format="Mastra",
        mode="dense",
    )
    memory.index("u", "t", [user("x")], wait="durable")
    list(memory.list_messages("u", roles=["assistant"]))
    assert shelf.seen[0].request == recall_pb2.RecallRequest(
        resource_id="u",
        query="q",
        thread_id="t",
        scope=types_pb2.SCOPE_THREAD,
        roles=[types_pb2.ROLE_USER, types_pb2.ROLE_TOOL, types_pb2.ROLE_SYSTEM],
        context_format=types_pb2.CONTEXT_MASTRA,
        ranking=recall_pb2.Ranking(mode=types_pb2.MODE_DENSE),
    )
    assert shelf.seen[1].request.wait == types_pb2.WAIT_DURABLE  # type: ignore[attr-defined]
    assert shelf.seen[2].request.roles == [types_pb2.ROLE_ASSISTANT]  # type: ignore[attr-defined]
    memory.embed(["x"], role="query")
    assert shelf.seen[3].request.role == recall_pb2.EMBED_ROLE_QUERY  # type: ignore[attr-defined]
    assert Message("User", "x").role is Role.USER  # type: ignore[arg-type]


def test_none_is_as_if_it_were_not_given(memory: RecallClient, shelf: Shelf) -> None:
    options: Any = dict.fromkeys(sr.RecallOptions.__annotations__)
    memory.recall("u", "q", **options)
    listing: Any = dict.fromkeys(sr.ListOptions.__annotations__)
    list(memory.list_messages("u", **listing))
    assert shelf.seen[0].request == recall_pb2.RecallRequest(resource_id="u", query="q")
    assert shelf.seen[1].request == recall_pb2.ListMessagesRequest(resource_id="u", page_size=200)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"scope": "everything"}, "scope: must be one of 'resource', 'thread' (or Scope.RESOURCE"),
        ({"scope": 2}, "scope: must be one of"),
        ({"scope": "unspecified"}, "scope: must be one of"),
        ({"roles": "user"}, "roles: must be a list of names, not one string"),
        ({"roles": ["user", "robot"]}, "roles[1]: must be one of 'user', 'assistant'"),
        ({"context_format": "xml"}, "context_format: must be one of 'default', 'mastra', 'none'"),
        ({"mode": "best"}, "mode: must be one of 'dense', 'lexical', 'hybrid'"),
        ({"alternative_queries": "best"}, "alternative_queries: must be a list of texts"),
        ({"alternative_queries": ["a", 1]}, "alternative_queries[1]: must be a string, not int"),
        ({"recency_weight": "1"}, "recency_weight: must be a number, not str"),
        ({"recency_half_life": 7}, "recency_half_life: must be a timedelta, e.g."),
        ({"diversity": True}, "diversity: must be a number, not bool"),
        ({"near_duplicate_cosine": [1]}, "near_duplicate_cosine: must be a number, not list"),
        ({"max_tokens": -1}, "max_tokens: must be 0 or more"),
        ({"top_k": -1}, "top_k: must be 1 or more"),
        ({"top_k": 2**40}, "top_k: must be at most 4,294,967,295"),
        ({"top_k": 2.5}, "top_k: must be a whole number, not float"),
        ({"top_k": True}, "top_k: must be a whole number, not bool"),
        ({"message_range": (-1, 0)}, "message_range[0]: must be 0 or more"),
        ({"message_range": 1}, "message_range: must be a pair (before, after), e.g. (1, 1)"),
        ({"message_range": (1, "1")}, "message_range[1]: must be a whole number, not str"),
        ({"threshold": "0.5"}, "threshold: must be a number, not str"),
        ({"filter": "project"}, "filter: must be a mapping"),
        ({"filter": {"a": {1: 2}}}, "filter.a: its keys must be strings, not int"),
        ({"create_time_from": "2024-01-01"}, "create_time_from: must be a datetime, e.g."),
        ({"create_time_to": date(2024, 1, 1)}, "create_time_to: must be a datetime, e.g."),
        ({"exclude_message_ids": "abc"}, "exclude_message_ids: must be a list of ids"),
        ({"exclude_message_ids": ["a", 1]}, "exclude_message_ids[1]: must be a string, not int"),
        ({"query_embedding": ["x"]}, "query_embedding[0]: must be a number, not str"),
        ({"thread_id": 7}, "thread_id: must be a string, not int"),
        ({"explain": 1}, "explain: must be True or False, not int"),
    ],
)
def test_a_wrong_option_of_recall(
    memory: RecallClient, shelf: Shelf, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(sr.InvalidArgumentError) as caught:
        memory.recall("u", "q", **options)
    assert str(caught.value).startswith(told)
    assert caught.value.violations[0].field == told.partition(":")[0]
    assert shelf.seen == []


WRONG_CALLS: list[tuple[Callable[[Any], object], str]] = [
    (lambda m: m.recall(42, "q"), "resource_id: must be a string, not int"),
    (lambda m: m.recall("u", None), "query: must be a string, not NoneType"),
    (lambda m: m.index(42, "t", [user("x")]), "resource_id: must be a string, not int"),
    (lambda m: m.index("u", "t", "hello"), "messages: must be a list of messages, e.g. [user("),
    (lambda m: m.index("u", "t", ["x"]), "messages[0]: must be a Message, e.g. user(...)"),
    (lambda m: m.index("u", "t", [{"role": "user", "content": "x"}]), "messages[0]: must be a"),
    (lambda m: m.index("u", "t", user("x")), "messages: must be a list; write [message] for one"),
    (lambda m: m.index("u", "t", None), "messages: must be a list of messages"),
    (lambda m: m.index("u", "t", [user("x")], metadata=[1]), "metadata: must be a mapping"),
    (lambda m: m.index("u", "t", [user("x")], metadata=[]), "metadata: must be a mapping"),
    (lambda m: m.index("u", "t", [user("x")], wait="now"), "wait: must be one of 'searchable'"),
    (lambda m: list(m.index_stream(["x"])), "batches: must be IndexBatch objects"),
    (lambda m: m.forget_messages("u", [1]), "message_ids[0]: must be a string, not int"),
    (lambda m: m.forget_thread("u", None), "thread_id: must be a string, not NoneType"),
    (lambda m: m.forget_before("u", "2024-01-01"), "create_time_before: must be a datetime"),
    (lambda m: list(m.list_messages("u", limit="5")), "limit: must be a whole number, not str"),
    (lambda m: list(m.list_messages("u", limit=0)), "limit: must be 1 or more"),
    (lambda m: list(m.list_threads(None)), "resource_id: must be a string, not NoneType"),
    (lambda m: m.transfer_thread("u", "t", 7), "to_resource_id: must be a string, not int"),
    (lambda m: m.embed([b"x"]), "texts[0]: must be a string, not bytes"),
    (lambda m: m.embed(["x"], role="answer"), "role: must be one of 'query', 'passage'"),
    (lambda m: m.stats(42), "resource_id: must be a string, not int"),
    (lambda m: list(m.verify(42)), "resource_id: must be a string, not int"),
    (lambda m: list(m.export(42)), "resource_id: must be a string, not int"),
]


@pytest.mark.parametrize(("call", "told"), WRONG_CALLS, ids=[told for _, told in WRONG_CALLS])
def test_a_wrong_argument_of_a_call(
    memory: RecallClient, shelf: Shelf, call: Callable[[Any], object], told: str
) -> None:
    with pytest.raises(sr.InvalidArgumentError) as caught:
        call(memory)
    assert str(caught.value).startswith(told)
    assert [seen for seen in shelf.seen if seen.method != "IndexStream"] == []


@pytest.mark.parametrize(
    ("arguments", "fields", "told"),
    [
        ((None,), {}, "text: must be a string, not NoneType"),
        (("x",), {"id": 7}, "id: must be a string, not int"),
        (("x",), {"metadata": [1]}, "metadata: must be a mapping"),
        (("x",), {"payload": "x"}, "payload: must be bytes, not str"),
        (("x",), {"create_time": "2024-01-01"}, "create_time: must be a datetime"),
    ],
)
def test_a_message_that_is_none(
    arguments: tuple[Any, ...], fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(sr.InvalidArgumentError) as caught:
        user(*arguments, **fields)
    assert str(caught.value).startswith(told)


def test_a_role_that_is_none() -> None:
    with pytest.raises(sr.InvalidArgumentError, match="role: must be one of 'user'"):
        Message("robot", "x")  # type: ignore[arg-type]


def test_numbers_of_other_libraries_are_numbers(memory: RecallClient, shelf: Shelf) -> None:
    numpy = pytest.importorskip("numpy")
    vector = numpy.array([0.5, 0.25], dtype=numpy.float32)
    memory.recall("u", top_k=numpy.int64(3), query_embedding=vector)
    request = shelf.seen[0].request
    assert isinstance(request, recall_pb2.RecallRequest)
    assert (request.top_k, list(request.query_embedding)) == (3, [0.5, 0.25])


def test_the_client_for_asyncio_says_the_same(address: str, shelf: Shelf) -> None:
    async def ask() -> None:
        async with AsyncRecallClient(address) as memory:
            with pytest.raises(sr.InvalidArgumentError, match=r"messages\[0\]: must be a Message"):
                await memory.index("u", "t", ["x"])  # type: ignore[list-item]
            with pytest.raises(sr.InvalidArgumentError, match="resource_id"):
                await memory.stats(42)  # type: ignore[arg-type]
            await memory.recall("u", "q", create_time_from=datetime(2024, 1, 1, tzinfo=UTC))
            batches = [IndexBatch("u", "t", [user("x")], "durable")]
            assert [len(r.outcomes) async for r in memory.index_stream(batches)] == [1]

    asyncio.run(ask())
    assert [seen.method for seen in shelf.seen] == ["Recall", "IndexStream"]
