"""What one sending process measured, as it hands it to the process that adds all of them up.

Latencies travel as HdrHistograms in their own compressed encoding (`HdrHistogram.encode`), which
adds up without loss. All histograms count microseconds, from 1 to 1 hour, to 3 significant digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

HISTOGRAM_US_MAX = 3_600 * 10**6
SIGNIFICANT_DIGITS = 3


class Operation(StrEnum):
    """What is called."""

    RECALL = "recall"
    INDEX = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOperation:
    """One operation in one stage.

    Attributes:
        latency, service: encoded histograms of the calls that were answered OK: from when the call
            was due (closed loop: sent), and from when it was sent.
        failed_latency: the same as `latency` for calls that failed.
        errors: calls by gRPC code, e.g. {"DEADLINE_EXCEEDED": 3}; OK is not among them.
        counts: what the answers said, by name: recall: "hits", "messages", "empty",
            "answer_cache_hits", "query_cache_hits", "repeated" (asked again by plan),
            "answer_bytes"; index: "messages", "indexed", "unchanged", "pending", "rejected".
    """

    latency: bytes
    service: bytes
    failed_latency: bytes
    errors: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSecond:
    """One second of a stage, also sent while it runs.

    Attributes:
        second: from the stage's begin, from 0. Calls count in the second in which they ended.
        latencies: encoded histograms of the second, by operation.
    """

    second: int
    started: int
    finished: int
    failed: int
    in_flight: int
    errors: Mapping[str, int]
    latencies: Mapping[Operation, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStage:
    """One process's part of one stage.

    No call is lost: scheduled = finished + unfinished, and those of the scheduled that are not
    `started` had no place among `in_flight_max` in time; `loops` says what becomes of them.

    Attributes:
        scheduled: calls that were due before the end of sending; closed loop: calls that were sent.
        started: of these, calls that were sent before the end of sending.
        finished: calls that ended, with whatever result, whenever they were sent.
        unfinished: calls that were under way or waiting when the time to wait for them was over.
        wall_s: from the stage's begin to the end of sending: the stage's time, or less where its
            last call or a stop came before. cpu_s: of this process meanwhile.
        drain_s: from the end of sending to the last answer.
        lateness: encoded histogram: from due to sent, of every call sent (open loop).
        client_lateness: encoded histogram: from the moment at which a call was due and had a place
            among `in_flight_max` to when it was sent: what this process itself is to blame for.
        loop_lag: encoded histogram: how late the event loop ran a timer of 10 ms.
        digest: 16 hexadecimal digits over the ids recalled, in order of the plan's calls.
        resources_written: numbers of the resources, from 0, to which this process sent an Index
            call for the first time, whatever became of it: each is in one stage of a process, the
            warm-up included.
    """

    worker: int
    scheduled: int
    started: int
    finished: int
    unfinished: int
    wall_s: float
    cpu_s: float
    drain_s: float
    lateness: bytes
    client_lateness: bytes
    loop_lag: bytes
    digest: str
    operations: Mapping[Operation, WorkerOperation]
    seconds: Sequence[WorkerSecond] = ()
    resources_written: Sequence[int] = ()
