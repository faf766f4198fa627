"""Each finding from a stage made by hand, and none where there is nothing to find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semanticrecall.load.findings import (
    findings_of,
    in_flight_reached,
    interrupted,
    likewise,
    not_cleaned_up,
)
from semanticrecall.load.plan import Loop, Stage
from semanticrecall.load.result import (
    Client,
    Finding,
    FindingCode,
    OperationResult,
    Percentiles,
    Schedule,
    Second,
    StageResult,
    Target,
)
from semanticrecall.load.target import is_local
from support.loads import plan

FAR = "recall.example:7650"
CALLS = 20_000


def times(count: int = CALLS, p50: float = 4.0, p99: float = 9.0) -> Percentiles:
    return Percentiles(count=count, mean=p50, p50=p50, p99=p99, max=2 * p99)


def operation(ok: int = CALLS, errors: dict[str, int] | None = None, **of: Any) -> OperationResult:
    failed = errors or {}
    return OperationResult(
        calls=ok + sum(failed.values()),
        ok=ok,
        per_s=float(ok),
        latency_ms=times(ok, **of),
        service_ms=times(ok, **of),
        failed_latency_ms=Percentiles(),
        errors=failed,
        counts={},
        shares={},
    )


def schedule(*, kept: bool = True, lateness: float = 0.1, client_lateness: float = 0.1) -> Schedule:
    return Schedule(
        scheduled_per_s=1_000.0,
        started_per_s=1_000.0 if kept else 950.0,
        deviation_share=0.0 if kept else 0.05,
        kept=kept,
        lateness_ms=times(p99=lateness),
        client_lateness_ms=times(p99=client_lateness),
    )


def second(in_flight: int) -> Second:
    return Second(
        second=0,
        started_per_s=0,
        finished_per_s=0,
        failed_per_s=0,
        in_flight=in_flight,
        errors={},
        p50_ms={},
        p99_ms={},
    )


def client(*cpu_shares: float, lag_ms: float = 0.2) -> Client:
    return Client(
        processes=len(cpu_shares),
        cpu_shares=cpu_shares,
        loop_lag_ms=times(p99=lag_ms),
        saturated=False,
    )


GOOD = StageResult(
    name="1000 calls/s",
    loop="open",
    rate_per_s=1_000,
    in_flight=0,
    seconds=20.0,
    drain_seconds=1.25,
    scheduled=CALLS,
    started=CALLS,
    finished=CALLS,
    unfinished=0,
    schedule=schedule(),
    operations={"recall": operation()},
    client=client(0.4),
    timeline=(second(12),),
    answers_digest="0" * 16,
)


def findings(*stages: StageResult, address: str = FAR, **given: Any) -> list[Finding]:
    target = Target(address=address, transport="tcp", tls=False, token=False)
    load = replace(plan("127.0.0.1:1"), stages=(Stage(rate_per_s=1_000),) * 3)
    return findings_of(load, target, stages, **({"calls_max_reached": False} | given))


def only(*stages: StageResult, **given: Any) -> Finding:
    (found,) = findings(*stages, **given)
    return found


def test_of_a_good_load_there_is_nothing_to_say() -> None:
    assert findings(GOOD, GOOD) == []


def test_errors_are_told_with_their_share_codes_and_meanings() -> None:
    stage = replace(
        GOOD,
        operations={
            "recall": operation(15_000, {"RESOURCE_EXHAUSTED": 4_000, "DEADLINE_EXCEEDED": 900}),
            "index": operation(19_000, {"RESOURCE_EXHAUSTED": 1_000, "DATA_LOSS": 100}),
        },
    )
    found = only(stage)
    assert (found.code, found.stage) == (FindingCode.ERRORS, "1000 calls/s")
    assert found.text.startswith(
        "6,000 of 40,000 calls failed (15.0%): RESOURCE_EXHAUSTED 5,000 (the server had no room"
    )
    assert "; DEADLINE_EXCEEDED 900 (there was no answer within --timeout-ms)" in found.text
    assert "; DATA_LOSS 100. " in found.text


@pytest.mark.parametrize(
    ("failed", "ok", "share"), [(1, 19_999, "0.005%"), (20, 19_980, "0.1%"), (5, 0, "100.0%")]
)
def test_a_share_of_errors_is_never_shown_as_none(failed: int, ok: int, share: str) -> None:
    stage = replace(GOOD, operations={"recall": operation(ok, {"INTERNAL": failed})})
    assert f"calls failed ({share})" in findings(stage)[0].text


def test_calls_that_were_given_up_are_told() -> None:
    found = only(replace(GOOD, finished=CALLS - 42, unfinished=42))
    assert found.code is FindingCode.UNFINISHED
    assert found.text.startswith("42 calls were still waiting or under way 1.2 s after")


def test_a_schedule_that_the_server_did_not_let_be_kept() -> None:
    stage = replace(
        GOOD,
        schedule=schedule(kept=False, lateness=900, client_lateness=0.4),
        timeline=(second(1_000),),
    )
    found = only(stage)
    assert found.code is FindingCode.SCHEDULE_NOT_KEPT
    assert "1,000.0 calls/s were scheduled and 950.0 were sent in time (5.0% less)" in found.text
    assert "the server was slower, so that 1,000 calls were under way" in found.text


def test_a_schedule_that_the_sending_side_did_not_keep() -> None:
    stage = replace(
        GOOD,
        schedule=schedule(kept=False, lateness=80, client_lateness=80),
        client=client(0.99),
    )
    found = findings(stage)
    assert [one.code for one in found] == [
        FindingCode.SCHEDULE_NOT_KEPT,
        FindingCode.CLIENT_SATURATED,
    ]
    assert "the sending side was too slow for it" in found[0].text


def test_a_process_without_time_left_is_named() -> None:
    found = only(replace(GOOD, client=client(0.5, 0.97, 0.91)))
    assert found.code is FindingCode.CLIENT_SATURATED
    assert "2 of 3 sending processes used a core up (process 2: 97%, process 3: 91%)" in found.text
    assert "--processes 6" in found.text


def test_delay_of_its_own_counts_from_half_the_fastest_median() -> None:
    operations = {"recall": operation(p50=4.0), "index": operation(p50=80.0)}
    late = replace(GOOD, operations=operations, schedule=schedule(client_lateness=2.1))
    found = only(late)
    assert found.code is FindingCode.CLIENT_SATURATED
    assert "it sent calls up to 2.1 ms late by itself (p99), beside a median" in found.text
    assert "latency of 4.0 ms. It was not busy itself (a process used 40% of a core" in found.text
    assert "--processes" not in found.text
    assert findings(replace(late, schedule=schedule(client_lateness=1.9))) == []
    lagging = replace(GOOD, operations=operations, client=client(0.4, lag_ms=2.1))
    assert "its event loops ran up to 2.1 ms late (p99)" in only(lagging).text


def test_delay_below_two_milliseconds_is_what_timers_are_like() -> None:
    fast = replace(
        GOOD,
        operations={"recall": operation(p50=0.3)},
        schedule=schedule(client_lateness=1.9),
        client=client(0.4, lag_ms=1.9),
    )
    assert findings(fast) == []
    assert len(findings(replace(fast, client=client(0.4, lag_ms=2.1)))) == 1


def recalled(**shares: float) -> StageResult:
    counts = {name: round(share * CALLS) for name, share in shares.items()}
    return replace(GOOD, operations={"recall": replace(operation(), shares=shares, counts=counts)})


def test_answers_that_found_nothing_are_told_from_one_half_on() -> None:
    found = only(recalled(empty=0.75))
    assert found.code is FindingCode.EMPTY_ANSWERS
    assert found.text.startswith("75.0% of the recalls found nothing")
    assert findings(recalled(empty=0.5)) == []


@pytest.mark.parametrize(
    ("cached", "repeated", "told"),
    [(0.98, 0.228, True), (0.51, 0.0, True), (0.5, 0.0, False), (0.9, 0.85, False)],
)
def test_a_load_of_the_cache_is_told_unless_it_was_planned(
    cached: float, repeated: float, told: bool
) -> None:
    found = findings(recalled(answer_cache_hits=cached, repeated=repeated))
    assert [one.code for one in found] == ([FindingCode.MOSTLY_CACHED] if told else [])
    if told:
        assert f"{cached:.1%} of the recalls" in found[0].text
        assert f"{repeated:.1%} repeat by plan" in found[0].text


def test_a_finding_of_several_stages_is_read_once() -> None:
    busy = replace(GOOD, client=client(0.95))
    stages = [replace(busy, name=name) for name in ("1 calls/s", "2 calls/s", "3 calls/s")]
    found = findings(*stages, address="unix:/s")
    assert [(one.code, one.stage, others) for one, others in likewise(found)] == [
        (FindingCode.CLIENT_SATURATED, "1 calls/s", ["2 calls/s", "3 calls/s"]),
        (FindingCode.SHARED_MACHINE, "", []),
    ]


def test_places_are_used_up_where_calls_waited_for_them() -> None:
    assert not in_flight_reached(GOOD, 1_000)
    assert in_flight_reached(replace(GOOD, timeline=(second(3), second(950))), 1_000)
    assert in_flight_reached(replace(GOOD, schedule=schedule(lateness=50)), 1_000)
    assert not in_flight_reached(replace(GOOD, schedule=None, timeline=(second(9),)), 9)


@pytest.mark.parametrize(
    ("calls", "upto"),
    [
        (9_999, "up to p99.9 for recall (9,999 calls)"),
        (1_000, "up to p99.9 for recall (1,000 calls)"),
        (999, "up to p99 for recall (999 calls)"),
        (99, "up to p90 for recall (99 calls)"),
        (9, "the median only for recall (9 calls)"),
    ],
)
def test_few_calls_say_how_far_percentiles_go(calls: int, upto: str) -> None:
    found = only(replace(GOOD, operations={"recall": operation(calls), "index": operation()}))
    assert found.code is FindingCode.FEW_CALLS
    assert found.text.startswith(f"Read percentiles {upto}: those beyond are single calls.")


def test_ten_thousand_calls_are_enough() -> None:
    assert findings(replace(GOOD, operations={"recall": operation(10_000)})) == []


def test_an_operation_without_answers_has_no_percentiles_to_read() -> None:
    stage = replace(GOOD, operations={"recall": operation(0, {"INTERNAL": 3})})
    assert [one.code for one in findings(stage)] == [FindingCode.ERRORS]


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:7650", True),
        ("127.8.9.10:1", True),
        ("localhost:7650", True),
        ("[::1]:7650", True),
        ("unix:/run/s.sock", True),
        ("10.0.0.7:7650", False),
        ("[2001:db8::1]:7650", False),
        ("localhost.example:7650", False),
        ("0.0.0.0:7650", False),
    ],
)
def test_a_server_on_this_machine_shares_its_cores(address: str, local: bool) -> None:
    assert is_local(address) is local
    codes = [one.code for one in findings(GOOD, address=address)]
    assert codes == ([FindingCode.SHARED_MACHINE] if local else [])


def test_the_most_calls_are_told_with_what_ran() -> None:
    found = only(GOOD, replace(GOOD, started=500), calls_max_reached=True)
    assert found.code is FindingCode.CALLS_MAX_REACHED
    assert "after 20,500 calls" in found.text
    assert "(--calls-max 1000000): 2 of 3 stages ran" in found.text


def test_failures_come_before_remarks() -> None:
    stage = replace(
        GOOD,
        unfinished=1,
        operations={"recall": operation(50, {"INTERNAL": 1})},
        schedule=schedule(kept=False),
        client=client(0.95),
    )
    assert [one.code for one in findings(stage, address="unix:/s", calls_max_reached=True)] == [
        FindingCode.ERRORS,
        FindingCode.UNFINISHED,
        FindingCode.SCHEDULE_NOT_KEPT,
        FindingCode.CLIENT_SATURATED,
        FindingCode.CALLS_MAX_REACHED,
        FindingCode.FEW_CALLS,
        FindingCode.SHARED_MACHINE,
    ]


def test_what_is_left_in_the_store_is_told_with_its_prefix() -> None:
    found = not_cleaned_up("load-1f-", "no answer")
    assert found.code is FindingCode.NOT_CLEANED_UP
    assert "names begin with 'load-1f-': no answer." in found.text
    assert interrupted("why").code is FindingCode.INTERRUPTED


def test_a_closed_loop_has_no_schedule_to_keep() -> None:
    stage = replace(GOOD, loop=Loop.CLOSED.value, schedule=None, client=client(0.2, 0.3))
    assert findings(stage) == []
