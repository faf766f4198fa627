"""Results of loads, made by hand: no server, no clock, the same each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semanticrecall.load.result import (
    Client,
    Finding,
    FindingCode,
    LoadResult,
    OperationResult,
    Percentiles,
    Preparation,
    Schedule,
    Second,
    StageResult,
    Target,
)

CURVE = (0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.995, 100.0)
COMMAND = "semanticrecall load --rate 100,200 --seconds 30 --html 'a & b.html'"


def percentiles(count: int, p50: float, steepness: float = 0.3) -> Percentiles:
    """A series whose percentile p is p50 * (1 / (2 * (1 - p))) ** steepness."""

    def at(percent: float) -> float:
        share = min(percent / 100, 1 - 1 / max(count, 2))
        return float(p50 * (0.5 / (1 - share)) ** steepness)

    return Percentiles(
        count=count,
        mean=p50 * 1.2,
        min=at(0),
        p50=at(50),
        p75=at(75),
        p90=at(90),
        p95=at(95),
        p99=at(99),
        p99_9=at(99.9),
        p99_99=at(99.99),
        max=at(100),
        curve=tuple((percent, at(percent)) for percent in CURVE),
    )


def operation(
    ok: int, seconds: float, p50: float, errors: Mapping[str, int] | None = None
) -> OperationResult:
    """Answers of one operation, and errors."""
    failed = sum((errors or {}).values())
    return OperationResult(
        calls=ok + failed,
        ok=ok,
        per_s=ok / seconds,
        latency_ms=percentiles(ok, p50),
        service_ms=percentiles(ok, p50 * 0.9),
        failed_latency_ms=percentiles(failed, 100.0) if failed else Percentiles(),
        errors=dict(errors or {}),
        counts={"hits": 4 * ok, "messages": 9 * ok, "repeated": ok // 5},
        shares={"answer_cache_hits": 0.125, "query_cache_hits": 0.25, "repeated": 0.2},
    )


def timeline(seconds: int, rate: float, errors: Mapping[str, int]) -> list[Second]:
    """Seconds with a rate that wavers, and a stall in the middle."""
    found: list[Second] = []
    for second in range(seconds):
        stalled = second == seconds // 2
        wave = 1 + 0.1 * ((second * 7) % 5 - 2) / 2
        found.append(
            Second(
                second=second,
                started_per_s=rate * wave,
                finished_per_s=0.0 if stalled else rate * wave,
                failed_per_s=float(sum(errors.values())) if second % 3 == 0 else 0.0,
                in_flight=int(rate) if stalled else 3,
                errors=dict(errors) if second % 3 == 0 else {},
                p50_ms={} if stalled else {"recall": 2.5 * wave, "index": 5.0 * wave},
                p99_ms={} if stalled else {"recall": 9.0 * wave, "index": 22.0 * wave},
            )
        )
    return found


def stage(
    rate: float = 200.0,
    *,
    seconds: int = 30,
    errors: Mapping[str, int] | None = None,
    p50: float = 2.5,
    closed: bool = False,
) -> StageResult:
    """One stage; in a closed one `rate` callers."""
    calls = int(rate * seconds)
    recalls = int(calls * 0.8)
    kept = Schedule(
        scheduled_per_s=rate,
        started_per_s=rate * 0.998,
        deviation_share=0.002,
        kept=True,
        lateness_ms=percentiles(calls, 0.05),
        client_lateness_ms=percentiles(calls, 0.04),
    )
    return StageResult(
        name=f"{rate:g} in flight" if closed else f"{rate:g} calls/s",
        loop="closed" if closed else "open",
        rate_per_s=0.0 if closed else rate,
        in_flight=int(rate) if closed else 0,
        seconds=float(seconds),
        drain_seconds=0.01,
        scheduled=calls,
        started=calls,
        finished=calls,
        unfinished=0,
        schedule=None if closed else kept,
        operations={
            "recall": operation(recalls, seconds, p50, errors),
            "index": operation(calls - recalls, seconds, p50 * 2),
        },
        client=Client(
            processes=1,
            cpu_shares=(0.31,),
            loop_lag_ms=percentiles(seconds * 100, 0.06),
            saturated=False,
        ),
        timeline=timeline(seconds, rate, errors or {}),
        answers_digest="0123456789abcdef",
    )


def load_result(
    stages: Sequence[StageResult] | None = None, findings: Sequence[Finding] | None = None
) -> LoadResult:
    """The whole document."""
    return LoadResult(
        started_at="2026-01-02T03:04:05Z",
        version="0.1.0",
        command=COMMAND,
        machine="Example processor, 8 cores, Linux 6.1, Python 3.11.7",
        target=Target(
            address="127.0.0.1:50051",
            transport="tcp",
            tls=False,
            token=True,
            server={"version": "0.1.0", "messages": 1_000_000, "limits": {"top_k_max": 1000}},
        ),
        plan={
            "loop": "open",
            "arrivals": "poisson",
            "warm_up_s": 5.0,
            "ramp_s": 2.0,
            "timeout_ms": 10_000,
            "query_words": [6, 16],
            "top_k": [4],
            "existing_resources": 0,
        },
        preparation=Preparation(messages=2000, seconds=12.5, messages_per_s=160.0),
        stages=stages if stages is not None else [stage()],
        findings=findings
        if findings is not None
        else [
            Finding(code=FindingCode.SHARED_MACHINE, text="Client and sidecar share a machine."),
            Finding(
                code=FindingCode.FEW_CALLS,
                text="99.99 is the slowest call.",
                stage="200 calls/s",
            ),
        ],
    )
