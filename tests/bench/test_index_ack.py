"""Acknowledgements by wait and writers: the run, its table, and that its checks can fail."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from benchmarks.axes import Numbers, numbers
from benchmarks.index_ack import Config, Writer, measure
from benchmarks.measure import processor_seconds
from semanticrecall.v1 import recall_pb2, types_pb2
from support import smoke_runs

ROUNDS = 2
TURNS = {1: 24, 5: 25}
"""Turns of a round by writers: 24, rounded up to equal shares."""

WARM_UP_TURNS = 20


@pytest.mark.slow
def test_every_turn_is_acknowledged_stored_and_found(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result, printed = smoke_runs.run("index_ack", file, "--smoke")
    rows = result["tables"]["acknowledgements"]
    assert [(row["wait"], row["writers"]) for row in rows] == [
        ("durable", 1),
        ("durable", 5),
        ("searchable", 1),
        ("searchable", 5),
    ]
    for row in rows:
        assert row["turns"] == ROUNDS * TURNS[row["writers"]]
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        # Of two rounds the median is the mean, so that the seconds add up.
        seconds = row["turns"] / row["turns_per_s"] + ROUNDS * row["searchable_after_s"]
        assert row["searchable_turns_per_s"] == pytest.approx(row["turns"] / seconds)
        assert row["processor_ms_per_turn"] > 0
    written = WARM_UP_TURNS + sum(row["turns"] for row in rows)
    assert result["figures"]["messages stored and searchable in the end"] == 2 * written
    smoke_runs.assert_charts_can_be_drawn(result)
    assert f"answers {result['answers_digest']}" in printed
    again, _ = smoke_runs.run("index_ack", file, "--smoke")
    assert again["answers_digest"] == result["answers_digest"]


class _Client:
    """Gives the answers it is made of, whatever is asked."""

    def __init__(self, *answers: recall_pb2.IndexResponse | recall_pb2.RecallResponse) -> None:
        self._answers = [answer.SerializeToString() for answer in answers]
        self.requests: list[bytes] = []

    async def unary(self, method: str, request: bytes) -> bytes:
        self.requests.append(request)
        return self._answers.pop(0)

    async def on_stream(self, method: str, request: bytes) -> bytes:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def indexed(*statuses: types_pb2.Status) -> recall_pb2.IndexResponse:
    """An answer with a message of each status."""
    results = [
        recall_pb2.IndexResult(message_id=f"m{n}", status=one) for n, one in enumerate(statuses)
    ]
    return recall_pb2.IndexResponse(results=results, read_token="token")


def test_a_writer_s_turns_are_one_after_the_other_and_timed() -> None:
    answer = indexed(types_pb2.STATUS_PENDING, types_pb2.STATUS_INDEXED)
    client = _Client(answer, answer)
    writer = Writer("w", ["one", "two"], types_pb2.WAIT_DURABLE)
    asyncio.run(writer.write(client))
    sent = [recall_pb2.IndexRequest.FromString(raw) for raw in client.requests]
    assert [[m.id for m in request.messages] for request in sent] == [["u0", "a0"], ["u1", "a1"]]
    assert {request.wait for request in sent} == {types_pb2.WAIT_DURABLE}
    assert len(writer.acknowledged_s) == 2
    assert list(writer.stored()) == [["m0", "m1"], ["m0", "m1"]]


@pytest.mark.parametrize(
    ("wait", "statuses"),
    [
        (types_pb2.WAIT_DURABLE, (types_pb2.STATUS_INDEXED, types_pb2.STATUS_REJECTED)),
        (types_pb2.WAIT_DURABLE, ()),
        (types_pb2.WAIT_SEARCHABLE, (types_pb2.STATUS_INDEXED, types_pb2.STATUS_PENDING)),
    ],
)
def test_a_turn_that_is_not_as_it_was_acknowledged_is_an_error(
    wait: types_pb2.Wait, statuses: tuple[types_pb2.Status, ...]
) -> None:
    writer = Writer("w", ["one"], wait)
    asyncio.run(writer.write(_Client(indexed(*statuses))))
    with pytest.raises(RuntimeError, match="a message was"):
        list(writer.stored())


def test_a_last_turn_that_is_not_the_first_hit_is_an_error() -> None:
    writer = Writer("w", ["one", "two"], types_pb2.WAIT_DURABLE)

    def recalled(message_id: str) -> recall_pb2.RecallResponse:
        message = types_pb2.Message(id=message_id)
        hit = recall_pb2.RecalledMessage(message=message, hit=True, rank=1)
        neighbour = recall_pb2.RecalledMessage(message=types_pb2.Message(id="a1"))
        return recall_pb2.RecallResponse(messages=[hit, neighbour])

    assert asyncio.run(writer.find_last(_Client(recalled("u1")))) == ["u1", "a1"]
    for answer in (recalled("u0"), recall_pb2.RecallResponse()):
        with pytest.raises(RuntimeError, match="not found"):
            asyncio.run(writer.find_last(_Client(answer)))


@pytest.mark.parametrize(
    "config", [Config(writers=Numbers((0,))), Config(writers=Numbers((257,))), Config(turns=0)]
)
def test_what_cannot_be_measured_is_refused(config: Config) -> None:
    with pytest.raises(ValueError, match="must be"):
        measure(config)


def test_a_process_s_seconds_are_those_it_counts_itself() -> None:
    before = time.process_time()
    counted = processor_seconds(os.getpid())
    after = time.process_time()
    # The kernel counts in steps of 10 ms, of user and system time each.
    assert before - 0.02 <= counted <= after + 0.02


def test_numbers_are_written_as_they_are_read() -> None:
    assert numbers("1,4,16") == (1, 4, 16)
    assert str(numbers("1,4,16")) == "1,4,16"


@pytest.mark.parametrize("text", ["", "1,", "1,1", "-1", "a", "1.5", ",".join(map(str, range(21)))])
def test_other_lists_are_no_numbers(text: str) -> None:
    with pytest.raises(Exception, match="numbers"):
        numbers(text)
