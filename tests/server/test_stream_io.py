"""How a stream is read and written: one write at a time, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from semanticrecall_core.types.errors import ResourceExhaustedError
from semanticrecall_server.gate import Unread
from semanticrecall_server.stream_io import AnswerWriter, RequestReader


class Wire:
    """What gRPC is to a stream: reads and writes that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.writes: list[asyncio.Future[None]] = []
        self.reads: list[asyncio.Future[Any]] = []

    async def write(self, answer: bytes) -> None:
        self.begun.append(answer)
        self.writes.append(asyncio.get_running_loop().create_future())
        await self.writes[-1]

    async def read(self) -> Any:
        self.reads.append(asyncio.get_running_loop().create_future())
        return await self.reads[-1]


class Written:
    """A writer on a wire, and what it told."""

    def __init__(self, room: int = 100) -> None:
        self.wire = Wire()
        self.moves = 0
        self.failures: list[Exception] = []
        self.unread = Unread(room)
        self.writer = AnswerWriter(
            self.wire,  # type: ignore[arg-type]
            self.unread,
            self._moved,
            self.failures.append,
        )

    def _moved(self) -> None:
        self.moves += 1

    def room(self) -> int:
        """Bytes that may still be taken."""
        free = 0
        while True:
            try:
                self.unread.take(1)
            except ResourceExhaustedError:
                self.unread.give_back(free)
                return free
            free += 1


def in_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


# ---- writing ----


def test_the_first_is_written_at_once_and_the_others_one_after_the_other() -> None:
    async def test() -> None:
        made = Written()
        for answer in (b"1", b"22", b"333"):
            made.writer.put(answer)
        assert made.wire.begun == [b"1"]
        assert (made.writer.unwritten, made.room()) == (3, 94)
        for number, begun in ((1, [b"1", b"22"]), (2, [b"1", b"22", b"333"])):
            made.wire.writes[-1].set_result(None)
            await asyncio.sleep(0)
            assert (made.wire.begun, made.moves) == (begun, number)
        made.wire.writes[-1].set_result(None)
        await asyncio.sleep(0)
        assert (made.writer.unwritten, made.moves, made.room()) == (0, 3, 100)
        made.writer.put(b"later")
        assert made.wire.begun[-1] == b"later"

    in_a_loop(test)


def test_what_has_no_room_is_refused_and_its_refusal_takes_none() -> None:
    async def test() -> None:
        made = Written(room=3)
        made.writer.put(b"333")
        with pytest.raises(ResourceExhaustedError):
            made.writer.put(b"1")
        made.writer.refuse(b"refused")
        made.writer.repeat(b"again")
        assert (made.writer.unwritten, made.writer.repeats) == (3, 1)
        for _ in range(3):
            made.wire.writes[-1].set_result(None)
            await asyncio.sleep(0)
        assert made.wire.begun == [b"333", b"refused", b"again"]
        assert (made.writer.unwritten, made.writer.repeats, made.room()) == (0, 0, 3)

    in_a_loop(test)


def test_a_write_that_fails_is_told_and_the_next_one_is_tried() -> None:
    async def test() -> None:
        made = Written()
        made.writer.put(b"1")
        made.writer.put(b"2")
        gone = grpc.aio.UsageError("gone")
        made.wire.writes[-1].set_exception(gone)
        await asyncio.sleep(0)
        assert made.failures == [gone]
        assert (made.wire.begun, made.moves) == ([b"1", b"2"], 1)
        assert (made.writer.unwritten, made.room()) == (1, 99)

    in_a_loop(test)


def test_a_closed_writer_drops_what_waits_and_gives_its_room_back() -> None:
    async def test() -> None:
        made = Written()
        made.writer.put(b"1")
        made.writer.put(b"2")
        made.writer.repeat(b"3")
        made.writer.close()
        assert (made.writer.unwritten, made.writer.repeats, made.room()) == (0, 0, 100)
        # gRPC ends the write that was under way later.
        made.wire.writes[-1].set_result(None)
        await asyncio.sleep(0)
        assert (made.wire.begun, made.moves, made.failures) == ([b"1"], 0, [])

    in_a_loop(test)


def test_a_write_that_fails_when_the_writer_is_closed_is_no_error_of_the_loop() -> None:
    """A client that vanishes leaves nothing in the log."""
    told: list[object] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["message"]))
        made = Written()
        made.writer.put(b"1")
        made.writer.close()
        made.wire.writes.pop().set_exception(grpc.aio.BaseError("gone"))
        await asyncio.sleep(0)
        gc.collect()
        assert (told, made.failures) == ([], [])

    in_a_loop(test)


# ---- reading ----


def test_a_drained_reader_gives_up_the_read_that_is_under_way_and_reads_no_more() -> None:
    async def test() -> None:
        wire = Wire()
        reader = RequestReader(wire)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(reader.end)
        assert await reader.next() is None
        assert wire.reads[0].cancelled()
        assert await reader.next() is None
        assert len(wire.reads) == 1
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling(), "nothing else of the stream is cancelled"

    in_a_loop(test)


def test_what_was_read_before_the_drain_is_answered() -> None:
    async def test() -> None:
        wire = Wire()
        reader = RequestReader(wire)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(lambda: wire.reads[0].set_result(b"request"))
        assert await reader.next() == b"request"
        reader.end()
        assert await reader.next() is None

    in_a_loop(test)


@pytest.mark.parametrize("is_drained", [False, True])
def test_a_stream_that_is_cancelled_is_cancelled_also_while_it_is_drained(is_drained: bool) -> None:
    async def test() -> None:
        reader = RequestReader(Wire())  # type: ignore[arg-type]
        stream = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        if is_drained:
            reader.end()
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream

    in_a_loop(test)


def test_the_end_of_the_client_is_none() -> None:
    async def test() -> None:
        wire = Wire()
        reader = RequestReader(wire)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(lambda: wire.reads[0].set_result(grpc.aio.EOF))
        assert await reader.next() is None
        assert not reader.drained

    in_a_loop(test)
