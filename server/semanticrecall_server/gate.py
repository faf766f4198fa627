"""The gate every call passes: is the server starting, serving or draining, and who is inside.

Calls, open streams and open exports have places of their own: streams on which nothing happens
never keep calls out, nor the other way round. gRPC's own limit is not used: it refuses without
saying when to come back, and health checks too.

Everything here belongs to the event loop. Draining means: no new calls, open streams are told to
end, and `wait_until_empty` returns when the last accepted call has been answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from semanticrecall_core.types.errors import (
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
)

from .admin import AdminService
from .lanes import QUEUE_FULL
from .service import RecallService
from .vector_calls import VectorService

RETRY_WHILE_STARTING_MS = 1_000
RETRY_WHILE_DRAINING_MS = 500
RETRY_WHILE_FULL_MS = 200
HELD_BACK_FROM_MS = 1_000
HELD_BACK_MAX = 1_000
RETRY_AFTER_HOLD_MS = 50
LEAVING_MAX = 128
"""Streams that have ended here but not at their clients, which do not read; see `leaving`."""


class Phase(Enum):
    """Where the server is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Services:
    """The use cases, once there is an engine."""

    recall: RecallService
    admin: AdminService
    vectors: VectorService


class Kind(Enum):
    """What takes a place: one of a kind never takes another kind's. The value is its name."""

    CALL = "calls"
    STREAM = "open streams"
    EXPORT = "open Export and Verify calls"


class Places:
    """So many of a kind at once."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._taken = 0

    @contextmanager
    def hold(self) -> Generator[None]:
        """Hold a place.

        Raises:
            ResourceExhaustedError: all are taken.
        """
        if self._taken >= self._limit:
            raise _full(self._name)
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class Unread:
    """Bytes of answers on all streams that wait for their clients to read. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._room = bytes_max

    def take(self, size: int) -> None:
        """Take room for one answer, until it is written.

        Raises:
            ResourceExhaustedError: there is none.
        """
        if size > self._room:
            raise _full("answers that wait for clients to read them")
        self._room -= size

    def give_back(self, size: int) -> None:
        """Give back what `take` took."""
        self._room += size


class HeldBack:
    """Refusals in a flood, told when their callers are to come back and not at once.

    Who asks again as soon as it is refused keeps the event loop busy with refusals, while others
    wait for it: so the advice to come back much later is not left to callers' good will. A held
    call has no place, and one of `HELD_BACK_MAX` at most: beyond these it is told at once. For one
    event loop.
    """

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._held: set[asyncio.Future[bool]] = set()
        self._is_over = False

    @property
    def held(self) -> int:
        """Calls whose refusal is held back now."""
        return len(self._held)

    async def hold(
        self, error: SemanticRecallError, remaining_s: float | None
    ) -> SemanticRecallError:
        """Wait as long as the error says, but not for most of the caller's time; what to say then.

        Args:
            error: any; only a full queue that says to come back much later is held back.
            remaining_s: until the caller's deadline; None: it has none.
        """
        if error.retry_after_ms < HELD_BACK_FROM_MS or error.reason != QUEUE_FULL:
            return error
        seconds = min(error.retry_after_ms / 1000, self._seconds_max)
        if remaining_s is not None:
            seconds = min(seconds, remaining_s / 2)
        if self._is_over or seconds <= 0 or len(self._held) >= HELD_BACK_MAX:
            return error
        if not await self._wait(seconds):
            return error
        rest_ms = error.retry_after_ms - round(seconds * 1000)
        return ResourceExhaustedError(
            error.message,
            reason=QUEUE_FULL,
            retry_after_ms=max(rest_ms, RETRY_AFTER_HOLD_MS),
        )

    async def _wait(self, seconds: float) -> bool:
        """Wait so long; False where `end` came first."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(seconds, _set, over, True)
        self._held.add(over)
        try:
            return await over
        finally:
            timer.cancel()
            self._held.discard(over)

    def end(self) -> None:
        """Hold nobody back any more."""
        self._is_over = True
        for over in self._held:
            _set(over, False)


def _set(over: asyncio.Future[bool], is_in_time: bool) -> None:
    if not over.done():
        over.set_result(is_in_time)


def _full(name: str) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"the server has as many {name} as it takes on; come back later",
        reason=QUEUE_FULL,
        retry_after_ms=RETRY_WHILE_FULL_MS,
    )


class Gate:
    """Counts who is inside and refuses those that come too early, too late or are too many."""

    def __init__(self, limits: Mapping[Kind, int], hold_back_max_s: float = 0.0) -> None:
        self.held_back = HeldBack(hold_back_max_s)
        self._places = {kind: Places(limit, kind.value) for kind, limit in limits.items()}
        self._phase = Phase.STARTING
        self._services: Services | None = None
        self._inside = 0
        self._leaving = 0
        self._draining = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._streams: set[Callable[[], None]] = set()

    @property
    def phase(self) -> Phase:
        """Where the server is in its life."""
        return self._phase

    @property
    def inside(self) -> int:
        """Calls in flight, open streams included."""
        return self._inside

    def open(self, services: Services) -> None:
        """Begin to let calls in, unless the server is already draining."""
        if self._phase is Phase.STARTING:
            self._services = services
            self._phase = Phase.SERVING

    def drain(self) -> None:
        """Let nobody in any more and ask open streams to end."""
        self._phase = Phase.DRAINING
        self._draining.set()
        self.held_back.end()
        for end_stream in tuple(self._streams):
            end_stream()

    async def wait_until_draining(self, timeout_s: float) -> None:
        """Wait for draining to begin, at most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._draining.wait(), timeout_s)

    async def wait_until_empty(self) -> None:
        """Wait for the last call inside to end."""
        await self._empty.wait()

    @contextmanager
    def enter(self, kind: Kind) -> Generator[Services]:
        """Hold a place for one call or stream.

        Raises:
            UnavailableError: reason STARTING or DRAINING.
            ResourceExhaustedError: as many of this kind are inside as the server takes on.
        """
        services = self._services
        if self._phase is not Phase.SERVING or services is None:
            raise self.refusal()
        if kind is not Kind.CALL and self._leaving >= LEAVING_MAX:
            raise _full("streams whose clients do not read")
        with self._places[kind].hold():
            self._inside += 1
            self._empty.clear()
            try:
                yield services
            finally:
                self._inside -= 1
                if self._inside == 0:
                    self._empty.set()

    @contextmanager
    def leaving(self) -> Generator[None]:
        """Tell a client how its call ended: it has no place any more, but perhaps memory.

        gRPC sends the end after the answer before it, and that waits for a client to read: nothing
        but the end of its connection helps. So no more streams are opened where many leave.
        """
        self._leaving += 1
        try:
            yield
        finally:
            self._leaving -= 1

    @contextmanager
    def on_drain(self, end_stream: Callable[[], None]) -> Generator[None]:
        """Call `end_stream` when draining begins."""
        self._streams.add(end_stream)
        try:
            yield
        finally:
            self._streams.discard(end_stream)

    def refusal(self) -> UnavailableError:
        """Why nobody gets in now."""
        if self._phase is Phase.DRAINING:
            return UnavailableError(
                "the server is shutting down",
                reason="DRAINING",
                retry_after_ms=RETRY_WHILE_DRAINING_MS,
            )
        return UnavailableError(
            "the server is starting", reason="STARTING", retry_after_ms=RETRY_WHILE_STARTING_MS
        )
