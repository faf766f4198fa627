"""The harness's own cost: the same server and bytes on both sides, and bars from what is shown."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

import pytest

from benchmarks.echo_server import HITS, WINDOW, index_answer, recall_answer
from benchmarks.load_harness import DEVIATION_BAR, IN_FLIGHT, check, report_open
from benchmarks.report import Result
from semanticrecall.load.result import Finding, FindingCode, LoadResult
from semanticrecall.v1 import recall_pb2, types_pb2
from support import load_results, smoke_runs

BARE, LOAD = "bare gRPC loop", "semanticrecall load"


@pytest.mark.slow
def test_both_loops_are_measured_in_turns_and_the_open_loop_as_a_whole(tmp_path: Path) -> None:
    result, printed = smoke_runs.run("load_harness", tmp_path / "result.json", "--smoke")
    smoke_runs.assert_charts_can_be_drawn(result)
    bars = {bar["name"]: bar for bar in result["bars"]}
    assert len(bars) == 3
    rows = result["tables"]["rounds"]
    rounds = result["config"]["rounds"]
    assert len(rows) == len(IN_FLIGHT) * rounds * 2
    for in_flight in IN_FLIGHT:
        of_it = [row for row in rows if row["in flight"] == in_flight]
        p50 = {
            who: {row["round"]: row["p50 ms"] for row in of_it if row["sender"] == who}
            for who in (BARE, LOAD)
        }
        assert sorted(p50[BARE]) == sorted(p50[LOAD]) == list(range(1, rounds + 1))
        ratio = statistics.median(p50[LOAD][n] / p50[BARE][n] for n in p50[BARE])
        bar = bars[f"p50 of the load tool / bare gRPC loop, {in_flight} in flight"]
        assert bar["measured"] == pytest.approx(ratio)
        assert (bar["limit"], bar["rule"]) == (1.1, "at most")
    figures = result["figures"]
    scheduled = figures["open loop: scheduled calls/s"]
    sent = figures["open loop: sent in time, calls/s"]
    # A Poisson process of 2 s at 1,000 calls/s: 2,000 calls, give or take 5 standard deviations.
    assert scheduled == pytest.approx(1000, abs=5 * 2000**0.5 / 2)
    deviation = bars["|scheduled - sent in time| / scheduled, 1,000 calls/s"]
    assert deviation["measured"] == pytest.approx(1 - sent / scheduled)
    codes = {row["code"] for row in result["tables"]["findings of the open loop"]}
    assert ("SCHEDULE_NOT_KEPT" in codes) is (deviation["measured"] > DEVIATION_BAR)
    assert "A smoke run" in printed
    assert len(result["answers_digest"]) == 16


def test_the_echo_server_s_answers_are_those_of_a_sidecar() -> None:
    recalled = recall_pb2.RecallResponse.FromString(recall_answer())
    assert len(recalled.messages) == HITS * WINDOW
    assert [one.rank for one in recalled.messages if one.hit] == [1, 2, 3, 4]
    assert len({one.message.id for one in recalled.messages}) == HITS * WINDOW
    indexed = recall_pb2.IndexResponse.FromString(index_answer())
    assert [one.status for one in indexed.results] == [types_pb2.STATUS_INDEXED] * 2


def test_a_call_that_failed_ends_the_benchmark() -> None:
    stage = load_results.stage(10, seconds=1)
    recall = dataclasses.replace(
        stage.operations["recall"], ok=8, counts={"hits": 8 * HITS}, errors={}
    )
    sound = dataclasses.replace(stage, operations={"recall": recall})
    check(sound, 8)
    with pytest.raises(RuntimeError, match="8 of 9 calls"):
        check(sound, 9)
    with pytest.raises(RuntimeError):
        check(dataclasses.replace(sound, unfinished=1), 8)
    fewer_hits = dataclasses.replace(recall, counts={"hits": 8 * HITS - 1})
    with pytest.raises(RuntimeError):
        check(dataclasses.replace(stage, operations={"recall": fewer_hits}), 8)


def open_loop(deviation: float, *codes: FindingCode) -> LoadResult:
    """A load that sent so many too few, and says so or not."""
    stage = load_results.stage(1000, seconds=10)
    assert stage.schedule is not None
    schedule = dataclasses.replace(
        stage.schedule, deviation_share=deviation, kept=deviation <= DEVIATION_BAR
    )
    findings = [Finding(code=code, text="words") for code in codes]
    return load_results.load_result([dataclasses.replace(stage, schedule=schedule)], findings)


@pytest.mark.parametrize(
    ("deviation", "codes", "met"),
    [
        (0.0, (), True),
        (0.01, (FindingCode.SHARED_MACHINE,), True),
        (0.011, (FindingCode.SCHEDULE_NOT_KEPT,), False),
    ],
)
def test_the_schedule_is_kept_or_said_not_to_be(
    deviation: float, codes: tuple[FindingCode, ...], met: bool
) -> None:
    result = Result()
    report_open(open_loop(deviation, *codes), result)
    assert [(bar.measured, bar.met) for bar in result.bars] == [(deviation, met)]
    assert result.tables["findings of the open loop"] == [
        {"code": code.value, "text": "words"} for code in codes
    ]
    assert result.figures["open loop: deviation"] == deviation


@pytest.mark.parametrize(
    ("deviation", "codes"), [(0.0, (FindingCode.SCHEDULE_NOT_KEPT,)), (0.02, ())]
)
def test_a_load_tool_that_says_the_wrong_thing_ends_the_benchmark(
    deviation: float, codes: tuple[FindingCode, ...]
) -> None:
    with pytest.raises(RuntimeError, match="does not say"):
        report_open(open_loop(deviation, *codes), Result())
