"""Latency by size, top_k, scope and calls in flight: the points, the requests, the checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.axes import Numbers
from benchmarks.report import Digest
from benchmarks.topk_latency import Config, Point, checked_ids, points_of
from semanticrecall.v1 import recall_pb2, types_pb2
from support import smoke_runs

CALLS = 6
SMOKE_HITS = {
    (60, 4, "resource", 1, "hybrid"): 4,
    (60, 4, "resource", 1, "dense"): 4,
    (60, 4, "resource", 1, "lexical"): 4,
    (60, 4, "resource", 4, "hybrid"): 4,
    (60, 4, "thread", 1, "hybrid"): 4,
    (200, 4, "resource", 1, "hybrid"): 4,
    (200, 4, "resource", 1, "dense"): 4,
    (200, 4, "resource", 1, "lexical"): 4,
    (200, 4, "resource", 4, "hybrid"): 4,
    (200, 4, "thread", 1, "hybrid"): 4,
    (200, 100, "resource", 1, "hybrid"): 100,
}
"""Size, top_k, scope, calls in flight, mode; hits."""


@pytest.mark.slow
def test_every_point_is_asked_as_often_and_answers_are_the_same_in_every_run(
    tmp_path: Path,
) -> None:
    stores, file = tmp_path / "stores", tmp_path / "result.json"
    flags = ("--smoke", "--calls", str(CALLS), "--data-dir", str(stores))
    result, printed = smoke_runs.run("topk_latency", file, *flags)
    rows = result["tables"]["latency"]
    columns = ("resource_messages", "top_k", "scope", "in_flight", "mode")
    points = [tuple(row[name] for name in columns) for row in rows]
    assert dict(zip(points, (row["hits"] for row in rows), strict=True)) == SMOKE_HITS
    assert len(points) == len(SMOKE_HITS)
    for row in rows:
        assert row["calls"] == CALLS
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["recalls_per_s"] > 0
    same = result["figures"]["answers that were the same with another number in flight"]
    assert same == CALLS * len(points)
    smoke_runs.assert_charts_can_be_drawn(result)
    p50_ms = {point: row["p50_ms"] for point, row in zip(points, rows, strict=True)}
    assert result["figures"]["ms that hybrid adds at 200 messages, p50"] == pytest.approx(
        p50_ms[200, 4, "resource", 1, "hybrid"] - p50_ms[200, 4, "resource", 1, "dense"]
    )
    assert f"answers {result['answers_digest']}" in printed
    smoke_runs.assert_store_is_as_built(stores / "smoke/by_size", 260, 2)
    # The store is found again, with vectors of no query in it; the answers are those of before.
    again, _ = smoke_runs.run("topk_latency", file, *flags)
    assert again["answers_digest"] == result["answers_digest"]
    assert result["answers_digest"] != Digest().text()


def test_one_axis_varies_at_a_time_but_size_and_calls_in_flight_together() -> None:
    points = points_of(Config())
    assert len(points) == len(set(points)) == 21
    sizes, in_flight = (1_000, 10_000, 100_000), (1, 4, 16)
    of_all = {p for p in points if (p.top_k, p.scope) == (4, "resource")}
    assert {p for p in of_all if p.mode == "hybrid"} == {
        Point(size, 4, "resource", calls) for size in sizes for calls in in_flight
    }
    assert {p for p in points if p.mode != "hybrid"} == {
        Point(size, 4, "resource", 1, mode) for size in sizes for mode in ("dense", "lexical")
    }
    assert {p for p in points if p.scope == "thread"} == {
        Point(size, 4, "thread", 1) for size in sizes
    }
    assert {p for p in points if p.top_k != 4} == {
        Point(10_000, top_k, "resource", 1) for top_k in (1, 20, 100)
    }


@pytest.mark.parametrize(
    "config",
    [
        Config(centre_messages=99),
        Config(top_k=Numbers((0, 4))),
        Config(in_flight=Numbers((0,))),
        Config(calls=0),
    ],
)
def test_points_that_cannot_be_are_refused(config: Config) -> None:
    with pytest.raises(ValueError, match="must be"):
        points_of(config)


@pytest.mark.parametrize(
    ("point", "hits"),
    [
        (Point(1_000, 20, "resource", 1), 20),
        (Point(60, 100, "resource", 1), 60),
        (Point(1_000, 100, "thread", 1), 40),
        (Point(25, 100, "thread", 1), 25),
    ],
)
def test_no_more_hits_are_expected_than_messages_are_searched(point: Point, hits: int) -> None:
    assert point.hits == hits


def test_requests_ask_what_the_point_says() -> None:
    requests = [
        recall_pb2.RecallRequest.FromString(raw)
        for raw in Point(120, 20, "thread", 4).requests(["a", "b", "c", "d"], 2)
    ]
    assert [request.query for request in requests] == ["a", "b", "c", "d"]
    assert [request.thread_id for request in requests] == [
        "thread-0",
        "thread-1",
        "thread-2",
        "thread-0",
    ]
    for request in requests:
        assert request.resource_id == "size-120"
        assert request.top_k == 20
        assert request.scope == types_pb2.SCOPE_THREAD
        assert request.ranking.mode == types_pb2.MODE_HYBRID
        assert (request.message_range.before, request.message_range.after) == (2, 2)
    (whole,) = Point(120, 4, "resource", 1).requests(["a"], 0)
    request = recall_pb2.RecallRequest.FromString(whole)
    assert request.scope == types_pb2.SCOPE_RESOURCE
    assert request.HasField("message_range")
    assert not request.thread_id


def test_an_answer_with_other_hits_than_asked_for_is_an_error() -> None:
    answer = recall_pb2.RecallResponse(
        messages=[
            recall_pb2.RecalledMessage(message=types_pb2.Message(id="m1"), hit=True, rank=1),
            recall_pb2.RecalledMessage(message=types_pb2.Message(id="m2")),
        ]
    ).SerializeToString()
    one, two = Point(60, 1, "resource", 1), Point(60, 2, "resource", 1)
    assert checked_ids([answer, answer], one) == [["m1", "m2"], ["m1", "m2"]]
    with pytest.raises(RuntimeError, match="hits"):
        checked_ids([answer], two)
    # By words alone there may be fewer, never more.
    assert checked_ids([answer], replace(two, mode="lexical")) == [["m1", "m2"]]
    with pytest.raises(RuntimeError, match="hits"):
        checked_ids([answer], Point(0, 1, "resource", 1, "lexical"))
