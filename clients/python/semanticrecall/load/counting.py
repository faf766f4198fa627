"""What one sending process counts in one stage: totals, and second by second while it runs.

All times are of `time.monotonic`, in seconds. A call counts in the second in which it ended, by its
own end time, however late the count hears of it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from google.protobuf.message import DecodeError

from ..v1 import recall_pb2, types_pb2
from .histograms import Histogram
from .measured import Operation, WorkerOperation, WorkerSecond, WorkerStage
from .workload import Call

# What grpc itself reports where an answer cannot be read.
UNREADABLE = "INTERNAL"
_STATUSES = {
    types_pb2.STATUS_INDEXED: "indexed",
    types_pb2.STATUS_REPLACED: "indexed",
    types_pb2.STATUS_NOT_EMBEDDED: "indexed",
    types_pb2.STATUS_UNCHANGED: "unchanged",
    types_pb2.STATUS_PENDING: "pending",
    types_pb2.STATUS_REJECTED: "rejected",
}
_DIGEST_MODULUS = 2**64
_HIT = attrgetter("hit")
_ID = attrgetter("message.id")


@dataclass(slots=True)
class Sent:
    """One call under way.

    Attributes:
        number: of the process's calls in this stage, in the order in which they were due, from 0.
        due_at: when it should have been sent; in a closed loop when it was.
    """

    number: int
    call: Call
    due_at: float
    sent_at: float


class _Operation:
    def __init__(self) -> None:
        self.latency = Histogram()
        self.second_latency = Histogram()
        self.service = Histogram()
        self.failed_latency = Histogram()
        self.errors: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def end_second(self) -> bytes:
        """The second's latencies, encoded; they are in `latency` then."""
        encoded = self.second_latency.encode()
        self.latency.add(self.second_latency)
        self.second_latency.clear()
        return encoded

    def measured(self) -> WorkerOperation:
        return WorkerOperation(
            latency=self.latency.encode(),
            service=self.service.encode(),
            failed_latency=self.failed_latency.encode(),
            errors=dict(self.errors),
            counts=dict(self.counts),
        )


class StageCount:
    """Counts one stage. Answers are read when `read_answers` is called, or a second is over.

    Args:
        begin: when the stage begins. on_second: told of each second when it is over.
    """

    def __init__(self, begin: float, on_second: Callable[[WorkerSecond], None]) -> None:
        self.started = 0
        self.finished = 0
        self.last_end = begin
        self._begin = begin
        self._on_second = on_second
        self._operations = {operation: _Operation() for operation in Operation}
        self._lateness = Histogram()
        self._client_lateness = Histogram()
        self._loop_lag = Histogram()
        self._digest = 0
        self._in_flight = 0
        self._seconds: list[WorkerSecond] = []
        self._unread: list[tuple[Sent, float, bytes]] = []
        self._second = 0
        self._second_ends = begin + 1
        self._second_started = 0
        self._second_finished = 0
        self._second_errors: Counter[str] = Counter()

    def sent(self, sent: Sent, ready_at: float | None, in_time: bool) -> None:
        """A call was sent.

        Args:
            ready_at: open loop: when it was due and had a place. None in a closed loop.
            in_time: before the stage's time was over.
        """
        self.roll(sent.sent_at)
        self.started += in_time
        self._second_started += 1
        self._in_flight += 1
        if ready_at is not None:
            self._lateness.add_seconds(sent.sent_at - sent.due_at)
            self._client_lateness.add_seconds(sent.sent_at - ready_at)

    @property
    def unread(self) -> int:
        """How many answers wait to be read."""
        return len(self._unread)

    def answered(self, sent: Sent, end: float, answer: bytes) -> None:
        """A call ended OK."""
        self._unread.append((sent, end, answer))

    def read_answers(self) -> None:
        """Count the calls that ended OK, and what their answers say."""
        unread, self._unread = self._unread, []
        for sent, end, answer in unread:
            operation = self._operations[sent.call.operation]
            try:
                self._read(operation.counts, sent, answer)
            except DecodeError:
                self.failed(sent, end, UNREADABLE)
                continue
            self._ended(end)
            operation.second_latency.add_seconds(end - sent.due_at)
            operation.service.add_seconds(end - sent.sent_at)

    def failed(self, sent: Sent, end: float, code: str) -> None:
        """A call ended with an error, named by its gRPC code."""
        self._ended(end)
        operation = self._operations[sent.call.operation]
        operation.failed_latency.add_seconds(end - sent.due_at)
        operation.errors[code] += 1
        self._second_errors[code] += 1

    def given_up(self) -> None:
        """A call was under way when the time to wait for it was over."""
        self._in_flight -= 1

    def lagged(self, seconds: float) -> None:
        """A timer of the event loop ran so late."""
        self._loop_lag.add_seconds(seconds)

    def roll(self, now: float) -> None:
        """Close the seconds that are over."""
        if now >= self._second_ends:
            self.read_answers()
            while now >= self._second_ends:
                self._close_second()

    def close(self) -> None:
        """Close the last second, if anything happened in it."""
        self.read_answers()
        if self._second_started or self._second_finished or not self._seconds:
            self._close_second()

    def measured(self, worker: int, *, scheduled: int, unfinished: int) -> WorkerStage:
        """All of it but `wall_s`, `cpu_s` and `drain_s`, which are 0. After `close`."""
        return WorkerStage(
            worker=worker,
            scheduled=scheduled,
            started=self.started,
            finished=self.finished,
            unfinished=unfinished,
            wall_s=0.0,
            cpu_s=0.0,
            drain_s=0.0,
            lateness=self._lateness.encode(),
            client_lateness=self._client_lateness.encode(),
            loop_lag=self._loop_lag.encode(),
            digest=f"{self._digest:016x}",
            operations={name: counted.measured() for name, counted in self._operations.items()},
            seconds=tuple(self._seconds),
        )

    def _ended(self, end: float) -> None:
        self.roll(end)
        self.finished += 1
        self.last_end = max(self.last_end, end)
        self._second_finished += 1
        self._in_flight -= 1

    def _close_second(self) -> None:
        failed = self._second_errors.total()
        latencies = {
            name: counted.end_second()
            for name, counted in self._operations.items()
            if len(counted.second_latency)
        }
        second = WorkerSecond(
            second=self._second,
            started=self._second_started,
            finished=self._second_finished,
            failed=failed,
            in_flight=self._in_flight,
            errors=dict(self._second_errors),
            latencies=latencies,
        )
        self._second += 1
        self._second_ends = self._begin + self._second + 1
        self._second_started = self._second_finished = 0
        self._second_errors.clear()
        self._seconds.append(second)
        self._on_second(second)

    def _read(self, counts: Counter[str], sent: Sent, answer: bytes) -> None:
        if sent.call.operation is Operation.INDEX:
            results = recall_pb2.IndexResponse.FromString(answer).results
            counts["messages"] += len(results)
            for result in results:
                counts[_STATUSES.get(result.status, "rejected")] += 1
            return
        response = recall_pb2.RecallResponse.FromString(answer)
        messages = response.messages
        info = response.info
        counts["hits"] += sum(map(_HIT, messages))
        counts["messages"] += len(messages)
        counts["empty"] += not messages
        counts["answer_cache_hits"] += info.answer_cache_hit
        counts["query_cache_hits"] += info.cache_hit
        counts["repeated"] += sent.call.repeated
        counts["answer_bytes"] += len(answer)
        self._add_to_digest(sent.number, map(_ID, messages))

    def _add_to_digest(self, number: int, ids: Iterable[str]) -> None:
        # A sum of hashes, each of which covers the call's number: the same whatever the order in
        # which calls end, another one if two calls change their answers with each other.
        text = "\0".join((str(number), *ids))
        hashed = hashlib.blake2b(text.encode(), digest_size=8).digest()
        self._digest = (self._digest + int.from_bytes(hashed)) % _DIGEST_MODULUS
