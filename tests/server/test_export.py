"""Export: everything once and in order, and little memory however slowly it is read."""

from __future__ import annotations

from typing import Any

import pytest

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.types.errors import CancelledError
from semanticrecall_core.types.values import CallBudget, StoredMessage
from semanticrecall_server.admin import AdminService
from support.fake_engine import MESSAGE, FakeEngine
from support.stored_messages import changed

MEBIBYTE = 1024 * 1024
SECONDS = 60.0


def history(sizes: list[int]) -> list[StoredMessage]:
    """Messages with payloads of these sizes, oldest first."""
    return [
        changed(MESSAGE, seq=i, id=f"m{i}", create_time_ns=i, payload=b"x" * size)
        for i, size in enumerate(sizes)
    ]


def batches(engine: FakeEngine, budget: CallBudget | None = None) -> list[list[bytes]]:
    service = AdminService(cast_engine(engine))
    request = admin_pb2.ExportRequest(resource_id="alice")
    return list(service.export(request, budget or CallBudget.of_seconds(SECONDS)))


def cast_engine(engine: FakeEngine) -> Any:
    return engine


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([], id="none"),
        pytest.param([0], id="one"),
        pytest.param([0] * 4, id="as many as are read first"),
        pytest.param([10] * 333, id="small"),
        pytest.param([MEBIBYTE] * 9, id="large"),
        pytest.param([10] * 100 + [MEBIBYTE] * 20 + [10] * 100, id="mixed"),
        pytest.param([MEBIBYTE // 3] * 50, id="a few a batch"),
        pytest.param([0, MEBIBYTE, 0, 0], id="large among the first"),
    ],
)
def test_batches_are_small_and_hold_everything_once(engine: FakeEngine, sizes: list[int]) -> None:
    engine.history = history(sizes)
    made = batches(engine)
    answers = [admin_pb2.ExportResponse.FromString(raw) for batch in made for raw in batch]
    assert [answer.message.id for answer in answers] == [m.id for m in engine.history]
    assert [len(answer.message.payload) for answer in answers] == sizes
    largest = max(sizes, default=0) + 1_000
    assert max(sum(map(len, batch)) for batch in made) < MEBIBYTE + largest


def test_large_messages_are_not_read_by_the_dozen(engine: FakeEngine) -> None:
    engine.history = history([MEBIBYTE] * 20)
    batches(engine)
    assert [query.limit for query in engine.lists] == [4] + [1] * 20


def test_small_messages_are_read_by_the_dozen(engine: FakeEngine) -> None:
    engine.history = history([10] * 100)
    batches(engine)
    assert [query.limit for query in engine.lists] == [4, 32, 32, 32, 32]


def test_a_reader_that_left_costs_no_more_reads(engine: FakeEngine) -> None:
    engine.history = history([10] * 100)
    with pytest.raises(CancelledError):
        batches(engine, CallBudget(float("inf"), lambda: len(engine.lists) == 2))
    assert len(engine.lists) == 2
