"""Micro-batches: a worker that falls free takes whatever waits.

For arithmetic in which a text's vector does not depend on its neighbours (fp32). Nothing waits for
a batch to fill: a lone text runs at once, and while it runs, others gather for the next batch.

The oldest text is always in the batch. It is filled with texts of the same length first, which
need no padding, then with those of near lengths, up to a number of tokens, padding included. Texts
of one role only: queries before passages, but after `QUERY_BATCHES_IN_A_ROW_MAX` batches of queries
passages that wait have one, so that they do not wait for ever.

A `Lane` is a queue with its workers and its session. A GPU has one lane with one worker for both
roles. The processor has two, with a worker a core each, the passages' at the lowest priority: a
query must not wait until a batch of passages has ended.

What fails, fails for itself: a batch that fails is run again text by text. A worker that dies takes
its lane along: all who wait there are told at once, and every later call.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import structlog

from ..types.errors import EmbeddingFailedError, UnavailableError
from ..types.stats import (
    SchedulerStats,
)
from ..types.values import (
    CallBudget,
    EmbedRole,
)
from .scheduler import Scheduling, TextRunner, WaitingRoom, sum_of_stats
from .single_flight import CANCEL_POLL_SECONDS
from .threads import lower_priority

if TYPE_CHECKING:
    from ..types.values import FloatRows, IntColumn

QUERY_BATCHES_IN_A_ROW_MAX = 8
BATCH_COSINE_MIN = 0.99999
"""Of a text's vector in a batch to the one it has alone; else nothing is batched."""
CPU_PASSAGES_PER_WORKER = 8
CUDA_PASSAGES = 64

_log = structlog.get_logger(__name__)


class BatchRunner(TextRunner, Protocol):
    """Runs several texts at once; see `EncoderSession`."""

    @property
    def takes_padding(self) -> bool:
        """Texts of different lengths can share a run."""
        ...

    def run_batch(self, texts: Sequence[IntColumn]) -> list[FloatRows | EmbeddingFailedError]:
        """The vector of each text, or why it has none."""
        ...


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a batch may hold.

    Attributes:
        tokens_max: rows times the longest row; a longer text runs alone.
        padding_max: padding, as a share of the tokens that are none.
        texts_max: rows.
    """

    tokens_max: int
    padding_max: float
    texts_max: int


CPU_SHAPE = BatchShape(tokens_max=256, padding_max=0.25, texts_max=32)
"""On one core batches stop gaining there (MiniLM, fp32, time against one by one): 16 texts of 16
tokens 0.52, 32 of them 0.68; 8 of 32 tokens 0.71, 32 of them 0.83; 4 of 64 tokens 0.82, 16 of them
1.06; 4 of 128 tokens 1.0. Eight of 12 to 16 tokens, padded, 0.65."""
CUDA_SHAPE = BatchShape(tokens_max=8_192, padding_max=1.0, texts_max=256)
"""Chosen, not measured: a short run there costs its start, whatever it holds."""


class _Request:
    """A text, and who waits for its vector."""

    __slots__ = ("budget", "ended", "error", "has_left", "ids", "vector")

    def __init__(self, ids: IntColumn, budget: CallBudget) -> None:
        self.ids = ids
        self.budget = budget
        self.ended = threading.Event()
        self.vector: FloatRows | None = None
        self.error: Exception | None = None
        self.has_left = False

    def succeed(self, vector: FloatRows) -> None:
        self.vector = vector
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ended.set()


class _Queue:
    """Texts of one role that wait, oldest first. Every method is called under the lane's lock."""

    def __init__(self, limits: Scheduling) -> None:
        self.room = WaitingRoom(limits)
        self._requests: OrderedDict[_Request, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: _Request) -> None:
        self.room.enter(len(request.ids))
        self._requests[request] = None

    def discard(self, request: _Request) -> None:
        if request in self._requests:
            del self._requests[request]
            self.room.leave(len(request.ids))

    def all(self) -> list[_Request]:
        return list(self._requests)

    def take(self, shape: BatchShape, takes_padding: bool, texts_max: int) -> list[_Request]:
        """The next batch, oldest text first; empty only if all who waited are gone.

        Args:
            texts_max: a share of what waits, so that other workers have the rest.
        """
        batch: list[_Request] = []
        while self._requests and not batch:
            oldest, _ = self._requests.popitem(last=False)
            self.room.leave(len(oldest.ids))
            if _is_there(oldest):
                batch.append(oldest)
        if not batch or len(batch) >= texts_max or not self._requests:
            return batch
        wanted = longest = filled = len(batch[0].ids)
        near = sorted(self._requests, key=lambda other: abs(len(other.ids) - wanted))
        for request in near:
            tokens = len(request.ids)
            if len(batch) >= min(texts_max, shape.texts_max):
                break
            if tokens != wanted and not takes_padding:
                break
            padded = (len(batch) + 1) * max(longest, tokens)
            if padded > min(shape.tokens_max, (filled + tokens) * (1 + shape.padding_max)):
                continue
            self.discard(request)
            if _is_there(request):
                batch.append(request)
                longest, filled = max(longest, tokens), filled + tokens
        return batch


def _result_of(request: _Request) -> FloatRows | EmbeddingFailedError:
    if isinstance(request.error, EmbeddingFailedError):
        return request.error
    if request.error is not None:
        raise request.error
    assert request.vector is not None
    return request.vector


def _is_there(request: _Request) -> bool:
    """Whether its caller still waits; one who does not is told so here."""
    try:
        request.budget.check()
    except Exception as error:  # also what a caller's own `cancelled` may raise: it is his
        request.fail(error)
        return False
    return True


class Lane:
    """See the module. Thread-safe.

    Args:
        roles: whose texts come here.
        session: runs them.
        shape: of a batch.
        workers: threads, 1 or more.
        limits: of those who wait, for each role.
    """

    def __init__(
        self,
        roles: Sequence[EmbedRole],
        session: BatchRunner,
        shape: BatchShape,
        workers: int,
        limits: Scheduling,
    ) -> None:
        self._session = session
        self._shape = shape
        self._work = threading.Condition()
        self._queues = {role: _Queue(limits) for role in roles}
        self._query_batches = 0
        self._running = 0
        self._batches = 0
        self._texts = 0
        self._stopping = False
        self._dead = False
        is_background = EmbedRole.QUERY not in roles
        self._threads = [
            threading.Thread(
                target=self._live, args=(is_background,), name=f"embed-batch-{n}", daemon=True
            )
            for n in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def healthy(self) -> bool:
        """Every worker lives."""
        return not self._dead and all(thread.is_alive() for thread in self._threads)

    def run(self, role: EmbedRole, ids: IntColumn, budget: CallBudget) -> FloatRows:
        """See `Scheduler.run`."""
        (result,) = self.run_all(role, [ids], budget)
        if isinstance(result, EmbeddingFailedError):
            raise result
        return result

    def run_all(
        self, role: EmbedRole, texts: Sequence[IntColumn], budget: CallBudget
    ) -> list[FloatRows | EmbeddingFailedError]:
        """See `Scheduler.run_all`. All of them wait before the first is taken."""
        requests, queue = [_Request(ids, budget) for ids in texts], self._queues[role]
        try:
            with self._work:
                if self._dead:
                    raise _stopped()
                for request in requests:
                    queue.add(request)
                self._work.notify(len(requests))
            for request in requests:
                while not request.ended.wait(min(CANCEL_POLL_SECONDS, budget.remaining())):
                    budget.check()
        except BaseException:
            with self._work:
                for request in requests:
                    request.has_left = True
                    queue.discard(request)
            raise
        return [_result_of(request) for request in requests]

    def stop(self) -> None:
        """End the workers after the batch in hand. For a lane that nobody can reach any more."""
        with self._work:
            self._stopping = True
            self._work.notify_all()

    def stats(self) -> SchedulerStats:
        """What waits and what has run."""
        with self._work:
            rooms = [queue.room for queue in self._queues.values()]
            return SchedulerStats(
                queued_texts=sum(room.texts for room in rooms),
                queued_tokens=sum(room.tokens for room in rooms),
                running_texts=self._running,
                batches=self._batches,
                batched_texts=self._texts,
                refused=sum(room.refused for room in rooms),
            )

    # ---- workers ----

    def _live(self, is_background: bool) -> None:
        batch: list[_Request] = []
        try:
            if is_background:
                lower_priority()
            while batch := self._take():
                self._run(batch)
                with self._work:
                    self._running -= len(batch)
        except BaseException as error:  # whatever it was: somebody waits
            _log.critical("embedding.worker_died", error_type=type(error).__name__)
            self._die(batch)

    def _die(self, batch: list[_Request]) -> None:
        with self._work:
            self._dead = True
            self._work.notify_all()
            self._running -= len(batch)
            waiting = [request for queue in self._queues.values() for request in queue.all()]
            for queue in self._queues.values():
                for request in queue.all():
                    queue.discard(request)
        for request in [*batch, *waiting]:
            if not request.ended.is_set():
                request.fail(_stopped())

    def _take(self) -> list[_Request]:
        """The next batch; waits for one; empty when it is time to end."""
        with self._work:
            while not (self._stopping or self._dead):
                queue = self._next_queue()
                if queue is None:
                    self._work.wait()
                    continue
                share = -(-len(queue) // len(self._threads))
                batch = queue.take(self._shape, self._session.takes_padding, share)
                if batch:
                    self._running += len(batch)
                    self._batches += 1
                    self._texts += len(batch)
                    return batch
            return []

    def _next_queue(self) -> _Queue | None:
        queries = self._queues.get(EmbedRole.QUERY)
        passages = self._queues.get(EmbedRole.PASSAGE)
        if queries and not (passages and self._query_batches >= QUERY_BATCHES_IN_A_ROW_MAX):
            self._query_batches += 1
            return queries
        self._query_batches = 0
        return passages or None

    def _run(self, batch: list[_Request]) -> None:
        alone = batch
        if len(batch) > 1:
            alone = []
            try:
                results = self._session.run_batch([request.ids for request in batch])
                pairs = list(zip(batch, results, strict=True))
            except MemoryError:
                raise
            except Exception as error:
                _log.warning(
                    "embedding.batch_failed", texts=len(batch), error_type=type(error).__name__
                )
                pairs, alone = [], batch
            for request, result in pairs:
                if isinstance(result, EmbeddingFailedError):
                    alone.append(request)
                else:
                    request.succeed(result)
        for request in alone:
            if not request.has_left:
                self._run_alone(request)

    def _run_alone(self, request: _Request) -> None:
        try:
            request.succeed(self._session.run(request.ids))
        except MemoryError:
            raise
        except EmbeddingFailedError as error:
            request.fail(error)
        except Exception as error:  # a bug for one text is not the others'
            request.fail(EmbeddingFailedError(f"the model failed: {type(error).__name__}"))


class BatchScheduler:
    """Implements `Scheduler` with lanes. Its threads end when nobody holds it any more.

    Args:
        lanes: of each role.
        passages_at_once: callers with a passage each that fill its batches.
    """

    def __init__(self, lanes: Mapping[EmbedRole, Lane], passages_at_once: int) -> None:
        self._by_role = dict(lanes)
        self._lanes = list(dict.fromkeys(lanes.values()))
        self._passages_at_once = passages_at_once
        for lane in self._lanes:
            weakref.finalize(self, lane.stop)

    @property
    def healthy(self) -> bool:
        """See `Scheduler`."""
        return all(lane.healthy for lane in self._lanes)

    @property
    def passages_at_once(self) -> int:
        """See `Scheduler`."""
        return self._passages_at_once

    def run(self, role: EmbedRole, ids: IntColumn, budget: CallBudget) -> FloatRows:
        """See `Scheduler`."""
        return self._by_role[role].run(role, ids, budget)

    def run_all(
        self, role: EmbedRole, texts: Sequence[IntColumn], budget: CallBudget
    ) -> list[FloatRows | EmbeddingFailedError]:
        """See `Scheduler`."""
        return self._by_role[role].run_all(role, texts, budget)

    def stats(self) -> SchedulerStats:
        """See `Scheduler`."""
        return sum_of_stats([lane.stats() for lane in self._lanes])


def batching_scheduler(
    sessions: Mapping[EmbedRole, BatchRunner], device: Literal["cpu", "cuda"], limits: Scheduling
) -> BatchScheduler:
    """The lanes of a device; see the module.

    Args:
        sessions: of each role; on cuda both are one.
    """
    shape = CUDA_SHAPE if device == "cuda" else CPU_SHAPE
    if limits.batch_tokens_max:
        shape = replace(shape, tokens_max=limits.batch_tokens_max)
    if device == "cuda":
        lane = Lane(tuple(EmbedRole), sessions[EmbedRole.QUERY], shape, 1, limits)
        lanes = dict.fromkeys(EmbedRole, lane)
        return BatchScheduler(lanes, min(CUDA_PASSAGES, limits.queue_texts_max))
    workers = limits.runs_at_once()
    lanes = {
        role: Lane((role,), session, shape, workers, limits) for role, session in sessions.items()
    }
    # No more than may wait: nobody should be refused by the bounds of his own queue.
    return BatchScheduler(lanes, min(workers * CPU_PASSAGES_PER_WORKER, limits.queue_texts_max))


def batches_agree(session: BatchRunner, texts: Sequence[IntColumn]) -> bool:
    """Whether texts that share a run get the vectors that they get alone.

    Not so in a graph that takes ranges over a batch, as int8 graphs do whatever their folder calls
    them, nor in one that is made for one text.

    Args:
        texts: token ids, of different lengths.
    """
    if not session.takes_padding:
        shortest = min(len(text) for text in texts)
        texts = [text[:shortest] for text in texts]
    try:
        together = session.run_batch(texts)
        for text, row in zip(texts, together, strict=True):
            if isinstance(row, EmbeddingFailedError):
                return False
            cosine = float(session.run(text).astype(np.float64) @ row.astype(np.float64))
            if not cosine >= BATCH_COSINE_MIN:
                return False
    except EmbeddingFailedError:
        return False
    return True


def _stopped() -> UnavailableError:
    return UnavailableError(
        "a thread that embeds has died; the server must be restarted", reason="EMBEDDING_STOPPED"
    )
