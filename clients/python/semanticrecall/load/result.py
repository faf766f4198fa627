"""What a load came to: the JSON of `semanticrecall load --json`, attribute by attribute.

`dataclasses.asdict(LoadResult)` is the document; its schema is `SCHEMA`, and docs/load.md explains
it. Attributes are added, never renamed or given another meaning, within one number of the schema.
Times of calls are milliseconds. No text, query, resource id or token is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = "semanticrecall.load/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Milliseconds of one series, from an HdrHistogram; all 0 where `count` is 0.

    Attributes:
        curve: (percentile, ms) pairs from 0 to 100, closer together towards the end; for a plot.
    """

    count: int = 0
    mean: float = 0.0
    min: float = 0.0
    p50: float = 0.0
    p75: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p99_9: float = 0.0
    p99_99: float = 0.0
    max: float = 0.0
    curve: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResult:
    """One operation in one stage.

    Attributes:
        calls: that ended; ok: of them, with an answer.
        per_s: OK answers a second, while calls were sent.
        latency_ms: of OK answers, from when the call was due: what a caller waits. In a closed
            loop the same as `service_ms`.
        service_ms: of OK answers, from when the call was sent.
        failed_latency_ms: of failed calls, from when they were due.
        errors: failed calls by gRPC code.
        counts: what the answers said; names as in measured.WorkerOperation.
        shares: for recall "answer_cache_hits", "query_cache_hits", "repeated", "empty": of OK
            answers.
    """

    calls: int
    ok: int
    per_s: float
    latency_ms: Percentiles
    service_ms: Percentiles
    failed_latency_ms: Percentiles
    errors: Mapping[str, int]
    counts: Mapping[str, int]
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How well an open loop kept its schedule.

    Attributes:
        scheduled_per_s, started_per_s: calls due, and calls sent in time.
        deviation_share: 1 - started / scheduled.
        kept: `deviation_share` is at most 0.01.
        lateness_ms: from due to sent; client_lateness_ms: the part of it that the sending process
            is to blame for (see measured.WorkerStage), which is in `latency_ms` too.
    """

    scheduled_per_s: float
    started_per_s: float
    deviation_share: float
    kept: bool
    lateness_ms: Percentiles
    client_lateness_ms: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How the sending side did.

    Attributes:
        processes: that sent.
        cpu_shares: processor time / time, of each process; 1.0 is a whole core.
        loop_lag_ms: how late event loops ran.
        saturated: the sending side was a bottleneck, so that figures are partly its own.
    """

    processes: int
    cpu_shares: Sequence[float]
    loop_lag_ms: Percentiles
    saturated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of a stage. Latencies: of OK answers that came in it, where there were any."""

    second: int
    started_per_s: float
    finished_per_s: float
    failed_per_s: float
    in_flight: int
    errors: Mapping[str, int]
    p50_ms: Mapping[str, float]
    p99_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """One stage.

    Attributes:
        name: "200 calls/s", "16 in flight".
        seconds: while calls were sent; drain_seconds: to the last answer after that.
        scheduled, started, finished, unfinished: calls; see measured.WorkerStage.
        schedule: of an open loop, else None.
        operations: by "recall" and "index".
        answers_digest: over the ids recalled; comparable between runs of one plan with one
            process and without writes.
    """

    name: str
    loop: str
    rate_per_s: float
    in_flight: int
    seconds: float
    drain_seconds: float
    scheduled: int
    started: int
    finished: int
    unfinished: int
    schedule: Schedule | None
    operations: Mapping[str, OperationResult]
    client: Client
    timeline: Sequence[Second]
    answers_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What was indexed before: messages, and how long it took."""

    messages: int = 0
    seconds: float = 0.0
    messages_per_s: float = 0.0


class FindingCode(StrEnum):
    """What a reader must know before the figures."""

    CLIENT_SATURATED = "CLIENT_SATURATED"
    SCHEDULE_NOT_KEPT = "SCHEDULE_NOT_KEPT"
    ERRORS = "ERRORS"
    UNFINISHED = "UNFINISHED"
    EMPTY_ANSWERS = "EMPTY_ANSWERS"
    MOSTLY_CACHED = "MOSTLY_CACHED"
    FEW_CALLS = "FEW_CALLS"
    SHARED_MACHINE = "SHARED_MACHINE"
    INTERRUPTED = "INTERRUPTED"
    NOT_CLEANED_UP = "NOT_CLEANED_UP"
    CALLS_MAX_REACHED = "CALLS_MAX_REACHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One of them, in a sentence. `stage` is a stage's name, or empty."""

    code: FindingCode
    text: str
    stage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the load went. `server` holds what its GetStats said, where the token allows it."""

    address: str
    transport: str
    tls: bool
    token: bool
    server: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The document.

    Attributes:
        started_at: ISO 8601, UTC.
        command: the command line that repeats it, without token.
        plan: the plan's settings, units in their names; `queries` and `existing_resources` as
            counts.
        machine: of the sending side.
    """

    schema: str = SCHEMA
    started_at: str
    version: str
    command: str
    machine: str
    target: Target
    plan: Mapping[str, Any]
    preparation: Preparation
    stages: Sequence[StageResult]
    findings: Sequence[Finding]
