"""What processes measured, added up: the same as computed from the values themselves."""

from __future__ import annotations

import math
import random

import pytest

from semanticrecall.load.adding_up import joined, stage_result
from semanticrecall.load.measured import Operation
from semanticrecall.load.plan import Loop, Stage
from semanticrecall.load.result import Second
from support.loads import encoded, worker_operation, worker_second, worker_stage

STAGE = Stage(rate_per_s=100, duration_s=2.0)


def nearest_rank(values: list[int], percent: float) -> int:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def test_latencies_of_all_processes_are_one_series() -> None:
    draws = random.Random(7)
    shares = [[int(draws.lognormvariate(8, 1)) + 1 for _ in range(n)] for n in (700, 1, 1_300)]
    parts = [
        worker_stage(
            number, finished=len(us), operations={Operation.RECALL: worker_operation(us, [90_000])}
        )
        for number, us in enumerate(shares)
    ]
    found = stage_result(Loop.OPEN, STAGE, parts).operations["recall"]
    everything = [us for share in shares for us in share]
    assert found.latency_ms.count == found.ok == len(everything)
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("p99_9", 99.9), ("max", 100)):
        expected = nearest_rank(everything, percent) / 1e3
        assert getattr(found.latency_ms, name) == pytest.approx(expected, rel=2e-3)
    assert found.latency_ms.mean == pytest.approx(sum(everything) / 2_001 / 1e3, rel=1e-3)
    assert found.service_ms.p50 == pytest.approx(found.latency_ms.p50 / 2, rel=2e-3)
    assert found.failed_latency_ms.count == 3


def test_counts_errors_and_shares_are_sums() -> None:
    parts = [
        worker_stage(
            number,
            scheduled=30,
            started=28,
            finished=29,
            unfinished=1,
            operations={
                Operation.RECALL: worker_operation(
                    [1_000] * 8,
                    [2_000, 2_000],
                    errors={"UNAVAILABLE": 1, code: 1},
                    counts={"repeated": 2, "empty": number, "answer_cache_hits": 1, "hits": 32},
                )
            },
        )
        for number, code in enumerate(("INTERNAL", "DEADLINE_EXCEEDED"))
    ]
    found = stage_result(Loop.CLOSED, Stage(in_flight=4), parts)
    assert (found.scheduled, found.started, found.finished, found.unfinished) == (60, 56, 58, 2)
    assert found.schedule is None
    assert list(found.operations) == ["recall"]
    recall = found.operations["recall"]
    assert (recall.calls, recall.ok) == (20, 16)
    assert recall.errors == {"DEADLINE_EXCEEDED": 1, "INTERNAL": 1, "UNAVAILABLE": 2}
    assert recall.counts == {"repeated": 4, "empty": 1, "answer_cache_hits": 2, "hits": 64}
    assert recall.shares == {"repeated": 0.25, "empty": 0.0625, "answer_cache_hits": 0.125}


def test_an_operation_that_only_failed_is_there_and_one_that_was_not_called_is_not() -> None:
    operations = {
        Operation.RECALL: worker_operation((), [1_000], errors={"INTERNAL": 1}),
        Operation.INDEX: worker_operation(),
    }
    found = stage_result(Loop.OPEN, STAGE, [worker_stage(operations=operations)]).operations
    assert list(found) == ["recall"]
    assert (found["recall"].calls, found["recall"].ok, found["recall"].shares) == (1, 0, {})


def test_the_schedule_is_of_all_processes_and_its_time_the_longest() -> None:
    parts = [
        worker_stage(0, scheduled=100, started=99, wall_s=2.0, lateness=encoded([1_000] * 99)),
        worker_stage(1, scheduled=100, started=91, wall_s=1.5, client_lateness=encoded([500])),
    ]
    found = stage_result(Loop.OPEN, STAGE, parts)
    assert found.seconds == 2.0
    assert found.schedule is not None
    assert found.schedule.scheduled_per_s == 100
    assert found.schedule.started_per_s == 95
    assert found.schedule.deviation_share == pytest.approx(0.05)
    assert not found.schedule.kept
    assert found.schedule.lateness_ms.count == 99
    assert found.schedule.client_lateness_ms.max == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(("started", "kept"), [(990, True), (989, False)])
def test_a_schedule_is_kept_to_one_percent(started: int, kept: bool) -> None:
    part = worker_stage(scheduled=1_000, started=started)
    found = stage_result(Loop.OPEN, STAGE, [part])
    assert found.schedule is not None
    assert found.schedule.kept is kept


def test_shares_of_a_core_are_by_process_in_their_order() -> None:
    parts = [
        worker_stage(1, wall_s=2.0, cpu_s=1.9, loop_lag=encoded([100])),
        worker_stage(0, wall_s=2.0, cpu_s=0.5, loop_lag=encoded([300])),
    ]
    client = stage_result(Loop.OPEN, STAGE, parts).client
    assert client.processes == 2
    assert client.cpu_shares == [0.25, 0.95]
    assert client.loop_lag_ms.count == 2
    assert client.saturated


def test_seconds_of_all_processes_are_joined_and_gaps_are_there() -> None:
    parts = [
        worker_second(0, [1_000, 2_000], in_flight=3, failed=1, errors={"INTERNAL": 1}),
        worker_second(2, [5_000], started=7),
        worker_second(0, [3_000], [9_000], in_flight=2, errors={"INTERNAL": 2, "UNAVAILABLE": 1}),
    ]
    first, second, third = joined(parts)
    assert (first.second, first.started_per_s, first.finished_per_s) == (0, 4, 4)
    assert (first.in_flight, first.failed_per_s) == (5, 1)
    assert first.errors == {"INTERNAL": 3, "UNAVAILABLE": 1}
    assert first.p50_ms == pytest.approx({"recall": 2.0, "index": 9.0}, rel=1e-3)
    assert first.p99_ms == pytest.approx({"recall": 3.0, "index": 9.0}, rel=1e-3)
    nothing: dict[str, float] = {}
    assert second == Second(
        second=1,
        started_per_s=0,
        finished_per_s=0,
        failed_per_s=0,
        in_flight=0,
        errors={},
        p50_ms=nothing,
        p99_ms=nothing,
    )
    assert (third.second, third.started_per_s, third.finished_per_s) == (2, 7, 1)
    assert joined([]) == []


def test_answers_after_the_end_of_sending_are_no_rate() -> None:
    us = [1_000] * 12
    part = worker_stage(
        wall_s=2.0,
        operations={Operation.INDEX: worker_operation(us)},
        seconds=(
            worker_second(0, (), us[:4]),
            worker_second(1, (), us[:2]),
            worker_second(2, (), us[:6]),
        ),
    )
    found = stage_result(Loop.OPEN, STAGE, [part]).operations["index"]
    assert found.ok == 12
    assert found.per_s == 3


def test_a_digest_of_one_process_is_its_own_and_of_several_depends_on_their_order() -> None:
    one = stage_result(Loop.OPEN, STAGE, [worker_stage(digest="0123456789abcdef")])
    assert one.answers_digest == "0123456789abcdef"
    ab = [worker_stage(0, digest="a" * 16), worker_stage(1, digest="b" * 16)]
    ba = [worker_stage(0, digest="b" * 16), worker_stage(1, digest="a" * 16)]
    found = {stage_result(Loop.OPEN, STAGE, parts).answers_digest for parts in (ab, ba, ab[::-1])}
    assert len(found) == 2
    assert all(len(digest) == 16 for digest in found)


def test_a_stage_that_was_ended_at_once_has_finite_rates() -> None:
    part = worker_stage(wall_s=0.0, cpu_s=0.01, scheduled=1, started=1)
    found = stage_result(Loop.OPEN, STAGE, [part])
    assert found.schedule is not None
    assert found.schedule.scheduled_per_s == 10
    assert found.client.cpu_shares == [pytest.approx(0.1)]
    assert not found.client.saturated
