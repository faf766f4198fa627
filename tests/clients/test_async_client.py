"""The client for asyncio, against the same fake sidecar as the one for threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

import semanticrecall as sr
from semanticrecall import AsyncRecallClient, IndexBatch, Scope, Status, user
from semanticrecall.v1 import types_pb2
from support.fake_sidecar import NOT_SERVING, Failure, Shelf, fake_sidecar

pytestmark = pytest.mark.asyncio


def client(address: str, **options: bool) -> AsyncRecallClient:
    return AsyncRecallClient(address, timeout=30, fail_open=options.get("fail_open", False))


async def test_index_and_recall(address: str) -> None:
    async with client(address) as memory:
        said = [user("red", id="a"), user("red green", id="b"), user("lost", id="")]
        result = await memory.index("u", "t", said)
        assert [o.status for o in result.outcomes] == [Status.INDEXED] * 2 + [Status.REJECTED]
        found = await memory.recall("u", "red green", top_k=1)
        assert [(m.message.id, m.score) for m in found] == [("b", 1.0)]


async def test_history_and_forgetting(address: str, shelf: Shelf) -> None:
    async with client(address) as memory:
        moment = datetime(2024, 1, 1, tzinfo=UTC)
        said = [user("x", id=str(n), create_time=moment) for n in range(8)]
        await memory.index("u", "t", said)
        listed = [m.id async for m in memory.list_messages("u")]
        assert listed == list("01234567")
        newest = memory.list_messages("u", newest_first=True, limit=4)
        assert [m.id async for m in newest] == list("7654")
        assert [t.messages async for t in memory.list_threads("u")] == [8]
        assert [m.id for m in await memory.get_messages("u", ["3", "1"])] == ["3", "1"]
        assert [m.id async for m in memory.export("u")] == list("01234567")
        assert (await memory.forget_messages("u", ["0"])).messages == 1
        assert await memory.transfer_thread("u", "t", "v") == 7
        assert (await memory.forget_before("v", moment)).messages == 0
        assert (await memory.forget_thread("v", "t")).messages == 7
        assert (await memory.forget_everything("v")).messages == 0
        assert shelf.messages == {}


async def test_index_stream_takes_both_kinds_of_iterables(address: str, shelf: Shelf) -> None:
    async def batches() -> AsyncIterator[IndexBatch]:
        yield IndexBatch("u", "t", [user("one", id="1")])
        yield IndexBatch("", "t", [user("lost", id="2")])

    async with client(address) as memory:
        answers = [a async for a in memory.index_stream(batches())]
        assert [len(a.outcomes) for a in answers] == [1, 0]
        assert isinstance(answers[1].error, sr.InvalidArgumentError)
        more = memory.index_stream([IndexBatch("u", "t", [user("three", id="3")])])
        assert [a.outcomes[0].status async for a in more] == [Status.INDEXED]
    assert {key[1] for key in shelf.messages} == {"1", "3"}


async def test_what_the_batches_raise_is_raised(address: str) -> None:
    async def batches() -> AsyncIterator[IndexBatch]:
        yield IndexBatch("u", "t", [user("one")])
        raise KeyError("the caller's own")

    async with client(address) as memory:
        with pytest.raises(KeyError, match="the caller's own"):
            _ = [a async for a in memory.index_stream(batches())]


async def test_embed_and_stats(address: str) -> None:
    async with client(address) as memory:
        await memory.index("u", "t", [user("broken", id="1")])
        assert (await memory.embed(["a b"])).embeddings[0].tokens == 4
        assert (await memory.stats()).messages == 1


async def test_health(address: str, shelf: Shelf) -> None:
    async with client(address) as memory:
        assert await memory.is_serving()
        shelf.health = NOT_SERVING
        assert not await memory.is_serving()


async def test_nothing_is_kept_between_recalls(address: str) -> None:
    async with client(address) as memory:
        await memory.index("u", "t1", [user("red one", id="a")])
        await memory.index("u", "t2", [user("red two", id="b")])
        first = await memory.recall("u", "red", thread_id="t1", scope=Scope.THREAD)
        second = await memory.recall("u", "red", thread_id="t2", scope=Scope.THREAD)
        assert [m.message.id for m in (*first, *second)] == ["a", "b"]


async def test_recall_fails_open_and_writing_does_not(tmp_path: Path) -> None:
    nobody = f"unix:{tmp_path}/nobody.sock"
    async with AsyncRecallClient(nobody, connect_timeout=0.1) as memory:
        assert (await memory.recall("u", "q")).degraded == "UNREACHABLE"
        async with memory.recall_stream() as session:
            assert (await session.recall("u", "q")).degraded == "UNREACHABLE"
        with pytest.raises(sr.UnavailableError, match="semanticrecall serve"):
            await memory.index("u", "t", [user("x")])
        assert not await memory.is_serving()


async def test_what_may_be_sent_twice_is(address: str, shelf: Shelf) -> None:
    detail = types_pb2.ErrorDetail(code=14, message="draining", reason="DRAINING")
    shelf.failures = [Failure(grpc.StatusCode.UNAVAILABLE, detail)]
    async with client(address) as memory:
        await memory.recall("u", "q")
        shelf.failures = [Failure(grpc.StatusCode.UNAVAILABLE, detail)]
        with pytest.raises(sr.UnavailableError):
            await memory.transfer_thread("u", "t", "v")
    assert [c.method for c in shelf.seen] == ["Recall", "Recall", "TransferThread"]


async def test_a_cancelled_task_cancels_its_call(address: str, shelf: Shelf) -> None:
    shelf.hold = threading.Event()
    async with client(address) as memory:
        task = asyncio.create_task(memory.stats())
        assert await asyncio.to_thread(shelf.entered.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(shelf.cancelled.wait, 10)
        shelf.hold.set()
        assert (await memory.stats()).messages == 0


async def test_a_call_ends_with_its_deadline(address: str, shelf: Shelf) -> None:
    shelf.hold = threading.Event()
    async with client(address) as memory:
        with pytest.raises(sr.DeadlineExceededError):
            await memory.stats(timeout=0.1)


async def test_recalls_on_one_stream(address: str) -> None:
    async with client(address) as memory:
        await memory.index("u", "t", [user("red", id="a"), user("green", id="b")])
        async with memory.recall_stream() as session:
            asked = [session.recall("u", word) for word in ("red", "green", "red")]
            found = [result[0].message.id for result in await asyncio.gather(*asked)]
            assert found == ["a", "b", "a"]
            with pytest.raises(sr.InvalidArgumentError, match="resource_id"):
                await session.recall("", "red")
            assert len(await session.recall("u", "green")) == 1


async def test_a_stream_that_broke_is_opened_anew(address: str, shelf: Shelf) -> None:
    detail = types_pb2.ErrorDetail(code=14, message="draining", reason="DRAINING")
    async with client(address) as memory:
        await memory.index("u", "t", [user("red", id="a")])
        async with memory.recall_stream() as session:
            assert len(await session.recall("u", "red")) == 1
            shelf.failures = [Failure(grpc.StatusCode.UNAVAILABLE, detail)]
            with pytest.raises(sr.UnavailableError):
                await session.recall("u", "red")
            assert len(await session.recall("u", "red")) == 1


async def test_closing_a_stream_ends_who_waits(address: str, shelf: Shelf) -> None:
    shelf.hold = threading.Event()
    async with client(address) as memory:
        session = memory.recall_stream()
        task = asyncio.create_task(session.recall("u", "q"))
        assert await asyncio.to_thread(shelf.entered.wait, 10)
        await session.close()
        with pytest.raises(sr.CancelledError):
            await task


async def test_a_client_may_be_made_before_its_loop(shelf: Shelf) -> None:
    def elsewhere(address: str) -> int:
        memory = client(address)

        async def ask() -> int:
            async with memory:
                return (await memory.stats()).messages

        return asyncio.run(ask())

    with fake_sidecar("127.0.0.1:0", shelf) as address:
        assert await asyncio.to_thread(elsewhere, address) == 0


async def test_recall_goes_on_after_damage_too(address: str, shelf: Shelf) -> None:
    detail = types_pb2.ErrorDetail(code=15, message="a page is damaged", reason="PAGE_DAMAGED")
    failure = Failure(grpc.StatusCode.DATA_LOSS, detail)
    shelf.failures = [failure] * 2
    async with client(address, fail_open=True) as memory:
        assert (await memory.recall("u", "q")).degraded == "DATA_LOSS"
        with pytest.raises(sr.DataLossError):
            await memory.index("u", "t", [user("x")])
    shelf.failures = [failure]
    async with client(address) as strict:
        with pytest.raises(sr.DataLossError):
            await strict.recall("u", "q")


@pytest.mark.timeout(30)
async def test_who_has_just_waited_in_vain_does_not_wait_again(tmp_path: Path) -> None:
    # Any further wait would go past the limit of this test.
    nobody = f"unix:{tmp_path}/nobody.sock"
    async with AsyncRecallClient(nobody, connect_timeout=100, timeout=200) as memory:
        with pytest.raises(sr.UnavailableError):
            await memory.wait_until_reachable(timeout=0.1)
        for _ in range(3):
            assert (await memory.recall("u", "q")).degraded == "UNREACHABLE"
        async with memory.recall_stream() as session:
            assert (await session.recall("u", "q")).degraded == "UNREACHABLE"
