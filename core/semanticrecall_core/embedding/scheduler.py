"""Which text runs when: as many single runs at once as there are cores, on the callers' threads.

For graphs that must run one text at a time (int8: see `graph`). Queries and passages have slots of
their own, so that a thread of low priority never holds a slot that a query waits for; who gets
which share of the cores is the operating system's decision, by priority. Where all slots of a role
are taken, callers wait in the order they came. A slot that falls free is handed to the first who
waits, never to a newcomer.

What is promised of a queue, here and in `batching`: a lone caller does not wait; a full queue
refuses at once; whoever is cancelled or late leaves it, and has cost nothing if his text was not
begun.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..types.errors import EmbeddingFailedError, ResourceExhaustedError
from ..types.stats import (
    SchedulerStats,
)
from ..types.values import (
    CallBudget,
    EmbedRole,
)
from .single_flight import CANCEL_POLL_SECONDS
from .threads import worker_threads

if TYPE_CHECKING:
    from ..types.values import FloatRows, IntColumn

QUEUE_TEXTS_MAX_DEFAULT = 1_024
QUEUE_TOKENS_MAX_DEFAULT = 262_144
"""No load is meant to meet these: the server's lanes let fewer callers in."""

QUEUE_FULL_RETRY_MS = 500


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What an embedder may have in hand and waiting.

    Attributes:
        queue_texts_max: texts of one role that may wait, 1 or more.
        queue_tokens_max: their tokens, no less than a window.
        batch_tokens_max: tokens of one batch, padding included; a longer text runs alone. 0 is what
            the device gains from. Of no meaning where texts run one by one.
        runs_max: runs of one role at once; 0 is as many as the CPU quota allows. A GPU has one.
        one_session: queries and passages share the model's session, and its memory; a query may
            then wait for memory that a passage of low priority is just getting.
    """

    queue_texts_max: int = QUEUE_TEXTS_MAX_DEFAULT
    queue_tokens_max: int = QUEUE_TOKENS_MAX_DEFAULT
    batch_tokens_max: int = 0
    runs_max: int = 0
    one_session: bool = False

    def runs_at_once(self) -> int:
        """`runs_max`, or what the machine gives."""
        return self.runs_max or worker_threads()


DEFAULT_SCHEDULING = Scheduling()


class TextRunner(Protocol):
    """Runs one text; see `EncoderSession.run`."""

    def run(self, ids: IntColumn) -> FloatRows:
        """The unit vector of one text."""
        ...


class Scheduler(Protocol):
    """Decides when a text runs. Thread-safe."""

    @property
    def healthy(self) -> bool:
        """False once a thread that others wait for has died; every call fails from then on."""
        ...

    @property
    def passages_at_once(self) -> int:
        """How many callers with a passage each keep it busy."""
        ...

    def run(self, role: EmbedRole, ids: IntColumn, budget: CallBudget) -> FloatRows:
        """The unit vector of one text.

        Args:
            ids: int64, shape (tokens,), tokens >= 1.

        Raises EmbeddingFailedError, ResourceExhaustedError (QUEUE_FULL), UnavailableError when it
        is not healthy, DeadlineExceededError, CancelledError.
        """
        ...

    def run_all(
        self, role: EmbedRole, texts: Sequence[IntColumn], budget: CallBudget
    ) -> list[FloatRows | EmbeddingFailedError]:
        """The unit vector of each text, or why it has none, in the time of as few runs as may be.

        Args:
            texts: as in `run`.

        Raises as `run`, but for EmbeddingFailedError.
        """
        ...

    def stats(self) -> SchedulerStats:
        """What waits and what has run."""
        ...


class WaitingRoom:
    """Bounds of one queue. Every method is called under the queue's lock."""

    def __init__(self, limits: Scheduling) -> None:
        self._texts_max = limits.queue_texts_max
        self._tokens_max = limits.queue_tokens_max
        self.texts = 0
        self.tokens = 0
        self.refused = 0

    def enter(self, tokens: int) -> None:
        """One text more. Raises ResourceExhaustedError where it does not fit beside others."""
        is_full = self.texts >= self._texts_max or self.tokens + tokens > self._tokens_max
        if self.texts and is_full:
            self.refused += 1
            raise ResourceExhaustedError(
                "too many texts wait to be embedded; come back later",
                reason="QUEUE_FULL",
                retry_after_ms=QUEUE_FULL_RETRY_MS,
            )
        self.texts += 1
        self.tokens += tokens

    def leave(self, tokens: int) -> None:
        """One text less."""
        self.texts -= 1
        self.tokens -= tokens


class _Waiter:
    """A caller without a slot."""

    __slots__ = ("granted", "tokens")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.granted = threading.Event()


class RunSlots:
    """So many runs at once, the others in the order they came. Thread-safe.

    Args:
        runs_max: 1 or more.
        limits: of those who wait.
    """

    def __init__(self, runs_max: int, limits: Scheduling) -> None:
        self._lock = threading.Lock()
        self._runs_max = runs_max
        self._free = runs_max  # above 0 only while nobody waits
        self._room = WaitingRoom(limits)
        self._waiting: OrderedDict[_Waiter, None] = OrderedDict()
        self._ended = 0

    def enter(self, tokens: int, budget: CallBudget) -> None:
        """Take a slot; whoever gets one must `leave`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._room.enter(tokens)
            waiter = _Waiter(tokens)
            self._waiting[waiter] = None
        try:
            while not waiter.granted.wait(min(CANCEL_POLL_SECONDS, budget.remaining())):
                budget.check()
            budget.check()
        except BaseException:
            with self._lock:
                if waiter in self._waiting:
                    del self._waiting[waiter]
                    self._room.leave(tokens)
                else:
                    self._hand_on()
            raise

    def enter_if_free(self) -> bool:
        """Take a slot that nobody wants; False where there is none."""
        with self._lock:
            if not self._free:
                return False
            self._free -= 1
            return True

    def leave(self) -> None:
        """Give the slot to the first who waits."""
        with self._lock:
            self._ended += 1
            self._hand_on()

    def _hand_on(self) -> None:
        if self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            self._room.leave(waiter.tokens)
            waiter.granted.set()
        else:
            self._free += 1

    def stats(self) -> SchedulerStats:
        """What waits and what has run."""
        with self._lock:
            return SchedulerStats(
                queued_texts=self._room.texts,
                queued_tokens=self._room.tokens,
                running_texts=self._runs_max - self._free,
                batches=self._ended,
                batched_texts=self._ended,
                refused=self._room.refused,
            )


class _SharedTexts:
    """Texts of one caller, run by that caller and by helpers that find a free slot."""

    def __init__(self, session: TextRunner, slots: RunSlots, texts: Sequence[IntColumn]) -> None:
        self._session = session
        self._slots = slots
        self._texts = texts
        self._untaken = deque(range(len(texts)))
        self._results: dict[int, FloatRows | BaseException] = {}

    def run(
        self, budget: CallBudget, pool: ThreadPoolExecutor, helpers: int
    ) -> list[FloatRows | EmbeddingFailedError]:
        """The caller's share, until all is done."""
        helping: list[Future[None]] = []
        try:
            with suppress(RuntimeError):  # no thread to be had: the caller does all
                helping += [pool.submit(self._help, budget) for _ in range(helpers)]
            while len(self._results) < len(self._texts):
                budget.check()
                place = self._take()
                if place is None:  # in a helper's hands, who may give it back
                    wait_for(helping, min(CANCEL_POLL_SECONDS, budget.remaining()))
                    continue
                self._slots.enter(len(self._texts[place]), budget)
                self._run_in_slot(place)
        finally:
            self._untaken.clear()
            for help_ in helping:
                help_.cancel()
        ordered: list[FloatRows | EmbeddingFailedError] = []
        for place in range(len(self._texts)):
            result = self._results[place]
            if isinstance(result, BaseException) and not isinstance(result, EmbeddingFailedError):
                raise result
            ordered.append(result)
        return ordered

    def _help(self, budget: CallBudget) -> None:
        # A caller that has gone away may be late to say so.
        while not budget.cancelled() and (place := self._take()) is not None:
            if not self._slots.enter_if_free():
                self._untaken.appendleft(place)
                return
            self._run_in_slot(place)

    def _take(self) -> int | None:
        try:
            return self._untaken.popleft()
        except IndexError:
            return None

    def _run_in_slot(self, place: int) -> None:
        try:
            self._results[place] = self._session.run(self._texts[place])
        except BaseException as error:  # the caller's to raise, whoever met it
            self._results[place] = error
        finally:
            self._slots.leave()


class SlotScheduler:
    """Implements `Scheduler`: one text a run, on the calling thread. See the module.

    Args:
        sessions: what runs the texts of each role.
        limits: of those who run and wait.
    """

    def __init__(self, sessions: Mapping[EmbedRole, TextRunner], limits: Scheduling) -> None:
        self._sessions = dict(sessions)
        self._runs_max = limits.runs_at_once()
        self._slots = {role: RunSlots(self._runs_max, limits) for role in sessions}
        # Threads are started when they are first of use, and end with this object.
        self._helpers = ThreadPoolExecutor(max(1, self._runs_max - 1), "embed-helper")

    @property
    def healthy(self) -> bool:
        """Always: it has no thread of its own."""
        return True

    @property
    def passages_at_once(self) -> int:
        """See `Scheduler`."""
        return self._runs_max

    def run(self, role: EmbedRole, ids: IntColumn, budget: CallBudget) -> FloatRows:
        """See `Scheduler`."""
        slots = self._slots[role]
        slots.enter(len(ids), budget)
        try:
            return self._sessions[role].run(ids)
        finally:
            slots.leave()

    def run_all(
        self, role: EmbedRole, texts: Sequence[IntColumn], budget: CallBudget
    ) -> list[FloatRows | EmbeddingFailedError]:
        """See `Scheduler`. The texts run one by one; slots that are free help."""
        if len(texts) > 1:
            return _SharedTexts(self._sessions[role], self._slots[role], texts).run(
                budget, self._helpers, min(self._runs_max, len(texts)) - 1
            )
        try:
            return [self.run(role, ids, budget) for ids in texts]
        except EmbeddingFailedError as error:
            return [error]

    def stats(self) -> SchedulerStats:
        """See `Scheduler`."""
        return sum_of_stats([slots.stats() for slots in self._slots.values()])


def sum_of_stats(parts: list[SchedulerStats]) -> SchedulerStats:
    """The stats of several queues as those of one."""
    return SchedulerStats(
        queued_texts=sum(part.queued_texts for part in parts),
        queued_tokens=sum(part.queued_tokens for part in parts),
        running_texts=sum(part.running_texts for part in parts),
        batches=sum(part.batches for part in parts),
        batched_texts=sum(part.batched_texts for part in parts),
        refused=sum(part.refused for part in parts),
    )
