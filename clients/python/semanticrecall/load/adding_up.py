"""What the processes measured, as one stage: histograms added, seconds joined, shares taken.

All processes begin a stage at one agreed moment, so that the n-th second of each is the same one.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .findings import DEVIATION_MAX, is_saturated
from .histograms import Histogram
from .measured import Operation, WorkerOperation, WorkerSecond, WorkerStage
from .plan import Loop, Stage
from .result import Client, OperationResult, Percentiles, Schedule, Second, StageResult

# A stage that was ended at once is no time to take rates of.
SECONDS_MIN = 0.1
_SHARED_COUNTS = ("answer_cache_hits", "query_cache_hits", "repeated", "empty")


def stage_result(loop: Loop, stage: Stage, parts: Sequence[WorkerStage]) -> StageResult:
    """One stage of a load.

    Args:
        parts: what each of the processes measured; one at least.
    """
    parts = sorted(parts, key=lambda part: part.worker)
    seconds = max(SECONDS_MIN, *(part.wall_s for part in parts))
    timeline = joined([second for part in parts for second in part.seconds])
    result = StageResult(
        name=stage.name,
        loop=loop.value,
        rate_per_s=stage.rate_per_s,
        in_flight=stage.in_flight,
        seconds=seconds,
        drain_seconds=max(part.drain_s for part in parts),
        scheduled=sum(part.scheduled for part in parts),
        started=sum(part.started for part in parts),
        finished=sum(part.finished for part in parts),
        unfinished=sum(part.unfinished for part in parts),
        schedule=_schedule(parts, seconds) if loop is Loop.OPEN else None,
        operations=_operations(parts, seconds),
        client=_client(parts),
        timeline=timeline,
        answers_digest=_digest(parts),
    )
    return replace(result, client=replace(result.client, saturated=is_saturated(result)))


def joined(parts: Iterable[WorkerSecond]) -> list[Second]:
    """The seconds of all processes as one timeline, in order; a second in which nothing was, too.

    Percentiles of a second are those of all its answers.
    """
    by_second: dict[int, list[WorkerSecond]] = {}
    for part in parts:
        by_second.setdefault(part.second, []).append(part)
    return [second_of(n, by_second.get(n, [])) for n in range(max(by_second, default=-1) + 1)]


def second_of(number: int, parts: Sequence[WorkerSecond]) -> Second:
    """One second of all processes."""
    latencies = {
        operation: added(part.latencies[operation] for part in parts if operation in part.latencies)
        for operation in Operation
    }
    heard = {operation.value: h for operation, h in latencies.items() if len(h)}
    return Second(
        second=number,
        started_per_s=sum(part.started for part in parts),
        finished_per_s=sum(part.finished for part in parts),
        failed_per_s=sum(part.failed for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        errors=_summed(part.errors for part in parts),
        p50_ms={name: h.percentile_ms(50) for name, h in heard.items()},
        p99_ms={name: h.percentile_ms(99) for name, h in heard.items()},
    )


def added(encoded: Iterable[bytes]) -> Histogram:
    """All of them in one."""
    total = Histogram()
    for one in encoded:
        total.decode_and_add(one)
    return total


def _percentiles(encoded: Iterable[bytes]) -> Percentiles:
    return added(encoded).percentiles()


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


def _schedule(parts: Sequence[WorkerStage], seconds: float) -> Schedule:
    scheduled = sum(part.scheduled for part in parts)
    started = sum(part.started for part in parts)
    deviation = (scheduled - started) / scheduled if scheduled else 0.0
    return Schedule(
        scheduled_per_s=scheduled / seconds,
        started_per_s=started / seconds,
        deviation_share=deviation,
        kept=deviation <= DEVIATION_MAX,
        lateness_ms=_percentiles(part.lateness for part in parts),
        client_lateness_ms=_percentiles(part.client_lateness for part in parts),
    )


def _client(parts: Sequence[WorkerStage]) -> Client:
    return Client(
        processes=len(parts),
        cpu_shares=[part.cpu_s / max(SECONDS_MIN, part.wall_s) for part in parts],
        loop_lag_ms=_percentiles(part.loop_lag for part in parts),
        saturated=False,
    )


def _operations(parts: Sequence[WorkerStage], seconds: float) -> dict[str, OperationResult]:
    found: dict[str, OperationResult] = {}
    for operation in Operation:
        of_it = [part.operations[operation] for part in parts if operation in part.operations]
        result = _operation(of_it)
        if result.calls:
            in_time = result.ok - _answered_late(operation, parts, seconds)
            found[operation.value] = replace(result, per_s=in_time / seconds)
    return found


def _answered_late(operation: Operation, parts: Sequence[WorkerStage], seconds: float) -> int:
    """OK answers that came after the end of sending, to the second."""
    last = math.ceil(seconds - 1e-3)
    return len(
        added(
            second.latencies[operation]
            for part in parts
            for second in part.seconds
            if second.second >= last and operation in second.latencies
        )
    )


def _operation(parts: Sequence[WorkerOperation]) -> OperationResult:
    latency = _percentiles(part.latency for part in parts)
    errors = _summed(part.errors for part in parts)
    counts = _summed(part.counts for part in parts)
    ok = latency.count
    return OperationResult(
        calls=ok + sum(errors.values()),
        ok=ok,
        per_s=0.0,
        latency_ms=latency,
        service_ms=_percentiles(part.service for part in parts),
        failed_latency_ms=_percentiles(part.failed_latency for part in parts),
        errors=errors,
        counts=counts,
        shares={
            name: counts[name] / ok if ok else 0.0 for name in _SHARED_COUNTS if name in counts
        },
    )


def _digest(parts: Sequence[WorkerStage]) -> str:
    if len(parts) == 1:
        return parts[0].digest
    return hashlib.sha256("/".join(part.digest for part in parts).encode()).hexdigest()[:16]
