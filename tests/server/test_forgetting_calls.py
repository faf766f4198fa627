"""Forget by condition, Purge and their statistics: what the server makes of them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.types.errors import ResourceExhaustedError
from semanticrecall_core.types.values import ForgetCondition, ForgetTarget, Role
from support.fake_engine import HOLDING, PURGE_DUE_NS, FakeEngine
from support.running_server import InProcessServer, error_detail


def forget(server: InProcessServer, **fields: Any) -> recall_pb2.ForgetResponse:
    request = recall_pb2.ForgetRequest(resource_id="alice", **fields)
    answer: recall_pb2.ForgetResponse = server.recall.Forget(request, timeout=20)
    return answer


def test_a_condition_comes_to_the_engine_as_it_was_sent(
    server: InProcessServer, engine: FakeEngine
) -> None:
    condition = recall_pb2.ForgetCondition(
        thread_id="t", authors=["Bob", "Ann", "Bob"], roles=[types_pb2.ROLE_TOOL]
    )
    condition.create_time_from.FromNanoseconds(5)
    condition.create_time_to.FromNanoseconds(6)
    forget(server, condition=condition)
    wanted = ForgetCondition("t", frozenset({"Ann", "Bob"}), 5, 6, frozenset({Role.TOOL}))
    assert engine.targets == [ForgetTarget(condition=wanted)]


def test_what_is_left_in_files_is_said(server: InProcessServer) -> None:
    answer = forget(server, everything=True)
    assert not answer.purged
    assert answer.purge_due_time.ToNanoseconds() == PURGE_DUE_NS
    assert list(answer.snapshots_holding) == [HOLDING]
    purged = forget(server, everything=True, purge=True)
    assert purged.purged
    assert not purged.HasField("purge_due_time")
    assert list(purged.snapshots_holding) == []


@pytest.mark.parametrize(
    ("fields", "lane"),
    [
        ({"everything": True}, "index"),
        ({"everything": True, "purge": True}, "admin"),
        ({"condition": recall_pb2.ForgetCondition(thread_id="t")}, "admin"),
        ({"thread_id": "t" * 300}, "index"),
    ],
)
def test_what_takes_long_keeps_no_write_waiting(
    server: InProcessServer, engine: FakeEngine, fields: dict[str, Any], lane: str
) -> None:
    held = engine.hold("forget")
    call = server.recall.Forget.future(
        recall_pb2.ForgetRequest(resource_id="alice", **fields), timeout=20
    )
    assert held.entered.wait(20)
    assert server.in_flight(lane) == 1
    held.release.set()
    call.result(20)


def test_a_purge_says_how_far_it_came(server: InProcessServer, engine: FakeEngine) -> None:
    answer = server.admin.Purge(admin_pb2.PurgeRequest(), timeout=20)
    assert (answer.revision, list(answer.snapshots_rewritten)) == (11, [HOLDING])
    engine.fail("purge", ResourceExhaustedError("the disk is full", reason="DISK_FULL"))
    with pytest.raises(grpc.RpcError) as caught:
        server.admin.Purge(admin_pb2.PurgeRequest(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_detail(caught.value).reason == "DISK_FULL"


def test_the_statistics_tell_of_purges_and_of_the_retention(server: InProcessServer) -> None:
    whole = server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20)
    assert (whole.purge_pending, whole.expired) == (True, 7)
    one = server.admin.GetStats(admin_pb2.GetStatsRequest(resource_id="alice"), timeout=20)
    assert (one.purge_pending, one.expired) == (False, 0)
    counted = {
        "purges_total": 5,
        "purge_failures_total": 6,
        "purge_pending": 1,
        "expired_messages_total": 7,
        "retention_failures_total": 8,
    }
    assert {name: server.reading(name) for name in counted} == counted
