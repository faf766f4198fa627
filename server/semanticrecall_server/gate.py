"""The gate every call passes: is the server starting, serving or draining, and who is inside.

Everything here belongs to the event loop. Draining means: no new calls, open streams are told to
end, and `wait_until_empty` returns when the last accepted call has been answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from semanticrecall_core.types.errors import UnavailableError

from .admin import AdminService
from .service import RecallService

RETRY_WHILE_STARTING_MS = 1_000
RETRY_WHILE_DRAINING_MS = 500


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


class Gate:
    """Counts calls in flight and refuses those that come too early or too late."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._services: Services | None = None
        self._inside = 0
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
    def enter(self) -> Generator[Services]:
        """Hold a place for one call.

        Raises:
            UnavailableError: reason STARTING or DRAINING.
        """
        services = self._services
        if self._phase is not Phase.SERVING or services is None:
            raise self.refusal()
        self._inside += 1
        self._empty.clear()
        try:
            yield services
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()

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
