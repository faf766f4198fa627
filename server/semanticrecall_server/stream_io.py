"""How a stream is read and written, and how long it may stand still."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from semanticrecall_core.types.errors import UnavailableError

from .endpoints import Context
from .gate import Unread

END = grpc.aio.EOF


class Idle:
    """Ends a stream on which nothing moves though the server waits for the client only.

    A client that neither sends nor reads would otherwise keep its place for ever. What moves is
    noted and looked at when the time is over: to move the end of an asyncio timeout with every
    request costs as much as writing an answer.
    """

    def __init__(self, limit: asyncio.Timeout, idle_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._idle_s = idle_s
        self._works = 0
        self._since = self._loop.time()
        self._timer = self._loop.call_later(idle_s, self._look)

    def moved(self) -> None:
        """A request came or an answer left."""
        self._since = self._loop.time()

    def begins(self) -> None:
        """The server begins to work, and the client waits for it."""
        self._works += 1

    def ends(self) -> None:
        """What began has ended."""
        self._works -= 1
        self.moved()

    @contextmanager
    def working(self) -> Generator[None]:
        """The server works inside."""
        self.begins()
        try:
            yield
        finally:
            self.ends()

    def close(self) -> None:
        """The stream has ended."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        end = now + self._idle_s if self._works else self._since + self._idle_s
        if end > now:
            self._timer = self._loop.call_at(end, self._look)
        elif not self._limit.expired():
            self._limit.reschedule(now)


@asynccontextmanager
async def ended_when_idle(idle_s: float) -> AsyncGenerator[Idle]:
    """Run a stream until it is done, or nothing has moved on it for so many seconds.

    Raises:
        UnavailableError: reason STREAM_IDLE.
    """
    limit = asyncio.timeout(None)
    try:
        async with limit:
            idle = Idle(limit, idle_s)
            try:
                yield idle
            finally:
                idle.close()
    except TimeoutError:
        if not limit.expired():
            raise
        raise UnavailableError(
            f"nothing moved on this stream for {idle_s:g} seconds; open a new one when needed",
            reason="STREAM_IDLE",
            retry_after_ms=0,
        ) from None


class RequestReader:
    """Reads requests until the client is done or the server drains. For one task."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reading: asyncio.Task[Any] | None = None
        self.drained = False

    def end(self) -> None:
        """Read no more."""
        self.drained = True
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def next(self) -> bytes | None:
        """The next request, or None at the end."""
        if self.drained:
            return None
        # To have a task of its own for each read, which could be cancelled by itself, takes two
        # more turns of the loop.
        reader = asyncio.current_task()
        self._reading = reader
        try:
            raw = await self._context.read()
        except asyncio.CancelledError:
            # Not where the stream itself was cancelled, also: its reading is then still to be.
            if reader is None or self._reading is not None or reader.uncancel():
                raise
            return None
        finally:
            self._reading = None
        return None if raw is END else raw


@dataclass(slots=True)
class _Outgoing:
    """An answer on its way to the client, and the room that it holds."""

    answer: bytes
    held: int
    is_repeat: bool


class AnswerWriter:
    """Writes a stream's answers one after the other, the first of them at once.

    gRPC has one write of a stream under way at a time. A task for them would begin in the loop's
    next turn, and each turn may have to wait for a thread that holds the interpreter: so the
    coroutine that writes is moved on by hand, when an answer comes and when gRPC has written one.

    Attributes:
        unwritten: answers given to it and not yet written.
        repeats: those of them that came from `repeat`.
    """

    def __init__(
        self,
        context: Context,
        unread: Unread,
        moved: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Make it for one stream.

        Args:
            context: where it is written to.
            unread: room for what the client does not read.
            moved: called after each answer, whether it was written or could not be.
            failed: called before that, where it could not be.
        """
        self._context = context
        self._unread = unread
        self._moved = moved
        self._failed = failed
        self._ready: deque[_Outgoing] = deque()
        self._writing: Coroutine[asyncio.Future[None], None, None] | None = None
        self.unwritten = 0
        self.repeats = 0

    def put(self, answer: bytes) -> None:
        """Write an answer when those before it are written.

        Raises:
            ResourceExhaustedError: there is no room for one more that nobody reads.
        """
        self._unread.take(len(answer))
        self._put(_Outgoing(answer, len(answer), is_repeat=False))

    def refuse(self, refusal: bytes) -> None:
        """Write what is said instead of an answer for which there was no room; it needs none."""
        self._put(_Outgoing(refusal, 0, is_repeat=False))

    def repeat(self, answer: bytes) -> None:
        """Write an answer that was there before; it takes no room, and whoever brings one waits."""
        self.repeats += 1
        self._put(_Outgoing(answer, 0, is_repeat=True))

    def close(self) -> None:
        """Write no more; what waits is dropped."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()
        while self._ready:
            self._ended(self._ready.popleft())

    def _put(self, outgoing: _Outgoing) -> None:
        self.unwritten += 1
        self._ready.append(outgoing)
        if self._writing is None:
            self._writing = self._write_all()
            self._go_on()

    async def _write_all(self) -> None:
        while self._ready:
            outgoing = self._ready.popleft()
            try:
                await self._context.write(outgoing.answer)
            except Exception as failure:
                self._failed(failure)
            finally:
                self._ended(outgoing)
            self._moved()

    def _go_on(self, written: asyncio.Future[None] | None = None) -> None:
        """Move the writing on until gRPC has a write under way, or nothing is left."""
        if self._writing is None:  # closed meanwhile
            if written is not None and not written.cancelled():
                written.exception()  # else asyncio logs a failure that nobody has asked for
            return
        try:
            under_way = self._writing.send(None)
        except StopIteration:
            self._writing = None
        else:
            # What a coroutine gives whoever moves it on is the future that it waits for.
            under_way.add_done_callback(self._go_on)

    def _ended(self, outgoing: _Outgoing) -> None:
        self.unwritten -= 1
        self.repeats -= outgoing.is_repeat
        self._unread.give_back(outgoing.held)
