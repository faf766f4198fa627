"""What a reader must know before the figures: each in a sentence, with the figures it follows from.

The most serious come first. Nothing here is a matter of taste of the reader: a finding says that a
figure is not what it seems to be, or that something failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from .measured import Operation
from .plan import LoadPlan, Loop
from .result import Finding, FindingCode, Percentiles, Schedule, StageResult, Target
from .target import is_local

# Of a whole core: beyond, a Python process has no time left for what comes next.
CPU_SHARE_MAX = 0.9
# What the sending side adds to a call is a considerable part of the median beyond this share, but
# never below two milliseconds: where cores are shared, timers are not better than that.
OWN_SHARE_MAX = 0.5
OWN_MS_MIN = 2.0
IN_FLIGHT_REACHED = 0.95
CODES_SHOWN_MAX = 5
DEVIATION_MAX = 0.01
EMPTY_SHARE_MAX = 0.5
CACHED_SHARE_MAX = 0.5
# Above what repeats by plan: a little more is chance.
CACHED_BEYOND_PLAN = 0.1

_MEANINGS = {
    "RESOURCE_EXHAUSTED": "the server had no room in a queue, or on its disk, and refused",
    "DEADLINE_EXCEEDED": "there was no answer within --timeout-ms",
    "UNAVAILABLE": "the server was not there, was draining, or dropped the connection",
    "UNAUTHENTICATED": "the server wants a token, or another one",
    "PERMISSION_DENIED": "the token may not do this",
    "INVALID_ARGUMENT": "a setting of this load is beyond a limit of this server",
    "FAILED_PRECONDITION": "the server's model or store was not in the state for it",
    "INTERNAL": "the server failed; its log knows more",
    "CANCELLED": "the server, or gRPC under too many calls at once, gave the call up",
}
_PERCENTILES = (("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99))


def findings_of(
    plan: LoadPlan, target: Target, stages: Sequence[StageResult], *, calls_max_reached: bool
) -> list[Finding]:
    """What there is to say of these stages, the most serious first."""
    found: list[Finding] = []
    for find in (_errors, _unfinished):
        found += [one for stage in stages for one in find(stage)]
    found += [one for stage in stages for one in _schedule_not_kept(plan, stage)]
    for find in (_saturated, _empty, _cached):
        found += [one for stage in stages for one in find(stage)]
    if calls_max_reached:
        found.append(_calls_max_reached(plan, stages))
    found += [one for stage in stages for one in _few_calls(stage)]
    if is_local(target.address):
        found.append(
            Finding(
                code=FindingCode.SHARED_MACHINE,
                text="The server is on this machine: it and the sending side share its cores, so "
                "that each is slower than it would be alone.",
            )
        )
    return found


def likewise(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Findings as a person reads them: the first of each kind, and which stages have it too."""
    first: dict[FindingCode, tuple[Finding, list[str]]] = {}
    for finding in findings:
        if finding.code in first:
            first[finding.code][1].append(finding.stage)
        else:
            first[finding.code] = (finding, [])
    return list(first.values())


def interrupted(text: str) -> Finding:
    """The load ended before its time."""
    return Finding(code=FindingCode.INTERRUPTED, text=text)


def not_cleaned_up(prefix: str, why: str) -> Finding:
    """Made-up resources are left in the store."""
    return Finding(
        code=FindingCode.NOT_CLEANED_UP,
        text=f"What this load wrote may be left in the store, in resources whose names begin with "
        f"{prefix!r}: {why}. `semanticrecall forget RESOURCE --everything` removes one.",
    )


def is_saturated(stage: StageResult) -> bool:
    """Whether the sending side was a bottleneck, so that figures are partly its own."""
    return bool(_busy(stage)) or bool(_own_delay(stage))


def in_flight_reached(stage: StageResult, in_flight_max: int) -> bool:
    """Whether calls of an open loop waited for a place among `in_flight_max`."""
    schedule = stage.schedule
    if schedule is None:
        return False
    if any(s.in_flight >= in_flight_max * IN_FLIGHT_REACHED for s in stage.timeline):
        return True
    waited, own = schedule.lateness_ms.p99, schedule.client_lateness_ms.p99
    return waited > 2 * own + OWN_MS_MIN


def _errors(stage: StageResult) -> Iterator[Finding]:
    codes: Counter[str] = Counter()
    for operation in stage.operations.values():
        codes.update(operation.errors)
    failed = codes.total()
    if not failed:
        return
    listed = codes.most_common(CODES_SHOWN_MAX)
    told = "; ".join(f"{code} {count:,}{_meaning(code)}" for code, count in listed)
    calls = sum(operation.calls for operation in stage.operations.values())
    yield Finding(
        code=FindingCode.ERRORS,
        stage=stage.name,
        text=f"{failed:,} of {calls:,} calls failed ({_share(failed, calls)}): {told}. The "
        "latencies are those of the calls that did not.",
    )


def _meaning(code: str) -> str:
    return f" ({_MEANINGS[code]})" if code in _MEANINGS else ""


def _unfinished(stage: StageResult) -> Iterator[Finding]:
    if stage.unfinished:
        yield Finding(
            code=FindingCode.UNFINISHED,
            stage=stage.name,
            text=f"{stage.unfinished:,} calls were still waiting or under way "
            f"{stage.drain_seconds:.1f} s after the last one was due, and were given up: no "
            "latency counts them, and it would be higher with them.",
        )


def _schedule_not_kept(plan: LoadPlan, stage: StageResult) -> Iterator[Finding]:
    schedule = stage.schedule
    if schedule is None or schedule.kept:
        return
    if in_flight_reached(stage, plan.in_flight_max):
        why = (
            f"the server was slower, so that {plan.in_flight_max:,} calls were under way and the "
            "others waited for a place. The wait is in their latency"
        )
    elif is_saturated(stage):
        why = "the sending side was too slow for it. Its own delay is in the latency"
    else:
        why = "calls of the last moments were sent after the time was over"
    yield Finding(
        code=FindingCode.SCHEDULE_NOT_KEPT,
        stage=stage.name,
        text=f"{schedule.scheduled_per_s:,.1f} calls/s were scheduled and "
        f"{schedule.started_per_s:,.1f} were sent in time ({schedule.deviation_share:.1%} less): "
        f"{why}.",
    )


def _saturated(stage: StageResult) -> Iterator[Finding]:
    client = stage.client
    busy, delay = _busy(stage), _own_delay(stage)
    if busy:
        which = ", ".join(f"process {n + 1}: {client.cpu_shares[n]:.0%}" for n in busy)
        why = (
            "The sending side was a bottleneck, so that the figures are partly its own: "
            f"{len(busy)} of {client.processes} sending processes used a core up ({which})"
        )
        if delay:
            why += f", and {delay}"
        cure = (
            f"More processes (--processes {client.processes * 2}) help where cores are idle; else "
            "send from another machine, or fewer calls."
        )
    elif delay:
        share = max(client.cpu_shares)
        why = (
            f"The sending side was late, so that the figures are partly its own: {delay}. It was "
            f"not busy itself (a process used {share:.0%} of a core at most)"
        )
        cure = (
            "Its cores were taken by others, the server perhaps: send from another machine, from "
            "a quiet one, or fewer calls."
        )
    else:
        return
    yield Finding(
        code=FindingCode.CLIENT_SATURATED,
        stage=stage.name,
        text=f"{why}. {cure}",
    )


def _empty(stage: StageResult) -> Iterator[Finding]:
    recall = stage.operations.get(Operation.RECALL)
    if recall is not None and recall.shares.get("empty", 0.0) > EMPTY_SHARE_MAX:
        yield Finding(
            code=FindingCode.EMPTY_ANSWERS,
            stage=stage.name,
            text=f"{_share(recall.counts['empty'], recall.ok)} of the recalls found nothing, which "
            "is quicker than finding something. Are these users known to this server, and do they "
            "hold messages?",
        )


def _cached(stage: StageResult) -> Iterator[Finding]:
    recall = stage.operations.get(Operation.RECALL)
    if recall is None:
        return
    cached = recall.shares.get("answer_cache_hits", 0.0)
    by_plan = recall.shares.get("repeated", 0.0)
    if cached > max(CACHED_SHARE_MAX, by_plan + CACHED_BEYOND_PLAN):
        yield Finding(
            code=FindingCode.MOSTLY_CACHED,
            stage=stage.name,
            text=f"{cached:.1%} of the recalls were answered from the cache of answers, though "
            f"{by_plan:.1%} repeat by plan: the same few queries came again while nothing of their "
            "users changed. The latencies are those of the cache.",
        )


def _busy(stage: StageResult) -> list[int]:
    shares = stage.client.cpu_shares
    return [number for number, share in enumerate(shares) if share > CPU_SHARE_MAX]


def _own_delay(stage: StageResult) -> str:
    """What delays of the sending side make up a considerable part of a median, or nothing."""
    medians = [o.latency_ms.p50 for o in stage.operations.values() if o.latency_ms.count]
    if not medians:
        return ""
    most = max(OWN_MS_MIN, OWN_SHARE_MAX * min(medians))
    found: list[str] = []
    if stage.client.loop_lag_ms.p99 > most:
        found.append(f"its event loops ran up to {stage.client.loop_lag_ms.p99:.1f} ms late (p99)")
    late = _client_lateness(stage.schedule)
    if late.p99 > most:
        found.append(f"it sent calls up to {late.p99:.1f} ms late by itself (p99)")
    if not found:
        return ""
    return f"{' and '.join(found)}, beside a median latency of {min(medians):.1f} ms"


def _client_lateness(schedule: Schedule | None) -> Percentiles:
    return Percentiles() if schedule is None else schedule.client_lateness_ms


def _calls_max_reached(plan: LoadPlan, stages: Sequence[StageResult]) -> Finding:
    sent = sum(stage.started for stage in stages)
    loop = "calls" if plan.loop is Loop.OPEN else "calls of all callers"
    return Finding(
        code=FindingCode.CALLS_MAX_REACHED,
        text=f"The load ended after {sent:,} {loop}, the most that it may send "
        f"(--calls-max {plan.calls_max}): {len(stages)} of {len(plan.stages)} stages ran, the last "
        "one perhaps in part.",
    )


def _few_calls(stage: StageResult) -> Iterator[Finding]:
    told: list[str] = []
    for name, operation in stage.operations.items():
        sound = [label for label, p in _PERCENTILES if operation.ok >= _needed(p)]
        if operation.ok and len(sound) < len(_PERCENTILES):
            upto = f"up to {sound[-1]}" if sound else "the median only"
            told.append(f"{upto} for {name} ({operation.ok:,} calls)")
    if told:
        yield Finding(
            code=FindingCode.FEW_CALLS,
            stage=stage.name,
            text=f"Read percentiles {', '.join(told)}: those beyond are single calls. One call in "
            "1,000 is slower than p99.9, one in 10,000 slower than p99.99.",
        )


def _needed(percentile: float) -> int:
    """Calls of which one at least is beyond a percentile."""
    return round(100 / (100 - percentile))


def _share(part: int, whole: int) -> str:
    percent = 100 * part / whole if whole else 100.0
    return f"{percent:.1f}%" if percent >= 0.1 else f"{percent:.1g}%"
