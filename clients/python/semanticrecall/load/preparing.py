"""What is in the store before a load begins, and what is not any more when it has ended.

Messages go in on a few IndexStreams, each with so many requests ahead of its answers and no more.
What a load wrote goes out again resource by resource, so that nothing else is touched.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any

import grpc

from ..client import RecallClient
from ..errors import (
    DeadlineExceededError,
    SemanticRecallError,
    error_from_call,
    error_from_detail,
)
from ..v1 import admin_pb2, recall_pb2, types_pb2
from ..v1.admin_pb2_grpc import AdminServiceStub
from ..v1.recall_pb2_grpc import RecallServiceStub
from .plan import LoadPlan
from .result import Preparation
from .target import channel_of
from .workload import prepared

STREAMS = 4
REQUESTS_AHEAD_MAX = 16
STREAM_SECONDS_MAX = 86_400.0
SILENCE_SECONDS_MAX = 120.0
FORGETS_AT_ONCE = 8
FORGETS_IN_A_ROW = 256
FAILURES_MAX = 3
SWEEPS_MAX = 5
SWEEP_PAUSE_SECONDS = 0.2
POLL_SECONDS = 0.1
# For how long answers are waited for once the load shall end: what is ahead may take a minute.
STOP_SECONDS_MAX = 3.0

Advance = Callable[[int, int], None]


class Preparer:
    """Indexes what a plan wants in the store before anything is measured.

    Args:
        stop: whether to end before all is in; what was sent is waited for then, for 3 s.

    Attributes:
        written: resources for which anything was sent.
        cut_off: requests were sent whose answers were not waited for.
        pending: messages that are stored and cannot be found yet, though they were waited for.
    """

    def __init__(self, plan: LoadPlan, stop: Callable[[], bool]) -> None:
        self._plan = plan
        self._stop = stop
        self._over = False
        self._answered = 0
        self._found = 0
        self._lock = threading.Lock()
        self._calls: list[Any] = []
        self._pending: Counter[str] = Counter()
        self.written: set[str] = set()
        self.cut_off = False

    def run(self, advance: Advance) -> Preparation:
        """Index all of it; returns when it can be found, or none of what is pending moves.

        The messages of its answer are those that can be found.

        Args:
            advance: called now and then with the messages that are in, and those there will be.

        Raises:
            SemanticRecallError: the server refused something, failed, or said nothing for long.
        """
        workload = self._plan.workload
        total = workload.messages_before * workload.resources
        if workload.existing_resources or not total:
            return Preparation()
        start = time.monotonic()
        channel = channel_of(self._plan.connection)
        pool = ThreadPoolExecutor(STREAMS, "preparing")
        try:
            streams = [pool.submit(self._stream, channel, number) for number in range(STREAMS)]
            self._wait(streams, lambda: advance(self._found, total))
            self._wait_for_pending(channel, lambda: advance(self._found, total))
        finally:
            self._over = True
            for call in self._calls:
                call.cancel()
            channel.close()
            pool.shutdown(wait=False)
        seconds = time.monotonic() - start
        return Preparation(
            messages=self._found, seconds=seconds, messages_per_s=self._found / seconds
        )

    @property
    def pending(self) -> int:
        """See the class."""
        return self._pending.total()

    def _wait(self, streams: list[Future[None]], tick: Callable[[], None]) -> None:
        heard, heard_at = 0, time.monotonic()
        stop_by = math.inf
        while True:
            done, pending = wait(streams, POLL_SECONDS, FIRST_EXCEPTION)
            for stream in done:
                stream.result()
            tick()
            if not pending:
                return
            if self._stop():
                stop_by = min(stop_by, time.monotonic() + STOP_SECONDS_MAX)
            if time.monotonic() > stop_by:
                self.cut_off = True
                return
            if self._answered != heard:
                heard, heard_at = self._answered, time.monotonic()
            elif time.monotonic() - heard_at > SILENCE_SECONDS_MAX:
                raise DeadlineExceededError(
                    f"no message was indexed for {SILENCE_SECONDS_MAX:.0f} s while the load was "
                    "prepared",
                    retryable=True,
                )

    def _wait_for_pending(self, channel: grpc.Channel, tick: Callable[[], None]) -> None:
        """A server waits for some time until messages can be found, and then says that they wait.

        Gives up where none has come for `SILENCE_SECONDS_MAX`.
        """
        stub: Any = AdminServiceStub(channel)
        settings = self._plan.connection
        moved_at = time.monotonic()
        # Streams that were not waited for may still count, but then it is over.
        while not self.over and self._pending and time.monotonic() - moved_at < SILENCE_SECONDS_MAX:
            before = self.pending
            for resource_id, messages in list(self._pending.items()):
                if self.over:
                    return
                asked = admin_pb2.GetStatsRequest(resource_id=resource_id)
                try:
                    found = stub.GetStats(
                        asked, timeout=settings.timeout_seconds, metadata=settings.metadata
                    )
                except grpc.RpcError as failure:
                    raise error_from_call(failure, settings.address) from None
                left = min(messages, found.pending)
                self._found += messages - left
                self._pending[resource_id] = left
                tick()
            self._pending = +self._pending
            if self.pending != before:
                moved_at = time.monotonic()
            elif self._pending:
                time.sleep(POLL_SECONDS)

    def _stream(self, channel: grpc.Channel, number: int) -> None:
        stub: Any = RecallServiceStub(channel)
        settings = self._plan.connection
        metadata = settings.metadata
        feed = _Feed(self, number)
        call = stub.IndexStream(iter(feed), timeout=STREAM_SECONDS_MAX, metadata=metadata)
        self._calls.append(call)
        try:
            for answer in call:
                request = feed.answered()
                if answer.error.code and answer.error.retryable:
                    # It came at a bad time. As a call of its own it is retried by the channel.
                    seconds = settings.timeout_seconds
                    answer = stub.Index(request, timeout=seconds, metadata=metadata)
                self._count(answer, request.resource_id)
        except grpc.RpcError as failure:
            if feed.failure is not None:
                raise feed.failure from None
            raise error_from_call(failure, settings.address) from None

    def requests(self, number: int) -> Iterator[recall_pb2.IndexRequest]:
        """What one of the streams sends; ends early where the load does."""
        for request in prepared(self._plan.workload, number, STREAMS):
            if self.over:
                return
            request.wait = types_pb2.WAIT_SEARCHABLE
            with self._lock:
                self.written.add(request.resource_id)
            yield request

    @property
    def over(self) -> bool:
        """Nothing more shall be sent."""
        return self._over or self._stop()

    def _count(self, answer: recall_pb2.IndexResponse, resource_id: str) -> None:
        if answer.error.code:
            raise error_from_detail(answer.error)
        for outcome in answer.results:
            if outcome.status == types_pb2.STATUS_REJECTED:
                raise error_from_detail(outcome.error)
        pending = sum(one.status == types_pb2.STATUS_PENDING for one in answer.results)
        with self._lock:
            self._answered += len(answer.results)
            self._found += len(answer.results) - pending
            if pending:
                self._pending[resource_id] += pending


class _Feed:
    """The requests of one stream, a limited number of them ahead of the answers."""

    def __init__(self, preparer: Preparer, number: int) -> None:
        self._preparer = preparer
        self._number = number
        self._places = threading.Semaphore(REQUESTS_AHEAD_MAX)
        self._sent: deque[recall_pb2.IndexRequest] = deque()
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[recall_pb2.IndexRequest]:
        # Runs on a thread of grpc, which would swallow what is raised here.
        try:
            for request in self._preparer.requests(self._number):
                while not self._places.acquire(timeout=POLL_SECONDS):
                    if self._preparer.over:
                        return
                self._sent.append(request)
                yield request
        except Exception as error:
            self.failure = error
            raise

    def answered(self) -> recall_pb2.IndexRequest:
        """The oldest request without an answer, which has one now."""
        self._places.release()
        return self._sent.popleft()


@dataclass(frozen=True, slots=True)
class Swept:
    """What became of made-up resources: all gone, or why not."""

    messages: int
    problem: str = ""


def forget_all(
    memory: RecallClient, resources: Callable[[], Collection[str]], advance: Advance, *, again: bool
) -> Swept:
    """Forget everything of these resources.

    Args:
        resources: their ids.
        advance: called ten times a second with how many are done, and how many there are.
        again: calls may have been cut off, so that the server may still be storing what they
            brought: look again until there is nothing.
    """
    gone = 0
    for sweep in range(SWEEPS_MAX if again else 1):
        if sweep:
            time.sleep(SWEEP_PAUSE_SECONDS)
        found, problem = _sweep(memory, resources(), advance)
        gone += found
        if problem or (sweep and not found):
            return Swept(gone, problem)
    return Swept(gone, "calls that were cut off went on to store messages" if again else "")


def _sweep(memory: RecallClient, resources: Collection[str], advance: Advance) -> tuple[int, str]:
    messages, done, failed, problem = 0, 0, 0, ""
    listed = iter(resources)
    pool = ThreadPoolExecutor(FORGETS_AT_ONCE, "forgetting")
    try:
        while failed < FAILURES_MAX and (some := list(islice(listed, FORGETS_IN_A_ROW))):
            pending = {pool.submit(_forget, memory, resource_id) for resource_id in some}
            while pending and failed < FAILURES_MAX:
                ended, pending = wait(pending, POLL_SECONDS)
                for forgotten in (future.result() for future in ended):
                    if isinstance(forgotten, SemanticRecallError):
                        failed, problem = failed + 1, forgotten.message
                    else:
                        messages, done = messages + forgotten, done + 1
                advance(done, len(resources))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return messages, problem


def _forget(memory: RecallClient, resource_id: str) -> int | SemanticRecallError:
    try:
        return memory.forget_everything(resource_id).messages
    except SemanticRecallError as error:
        return error
