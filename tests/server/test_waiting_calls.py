"""Calls that wait for embeddings hold no thread: those that can act at once always do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.errors import InvalidArgumentError
from support.fake_engine import TOKEN, FakeEngine
from support.running_server import InProcessServer, error_detail, parts_of, running

THREADS = 2
PLACES = 8
WAITERS = 6
LARGE = "word " * 20_000
"""A query that is not decoded on the event loop."""


@pytest.fixture
def small(engine: FakeEngine, tmp_path: Path) -> Iterator[InProcessServer]:
    """A server of few threads and places."""
    with running(
        tmp_path,
        parts_of(engine),
        recall_threads=THREADS,
        index_threads=THREADS,
        index_in_flight_max=PLACES,
        recalls_in_flight_max=PLACES,
    ) as serving:
        yield serving


def recall(request_id: str = "r", **fields: Any) -> recall_pb2.RecallRequest:
    values = {"resource_id": "alice", "query": "q", "request_id": request_id, **fields}
    return recall_pb2.RecallRequest(**values)


def index(wait: types_pb2.Wait = types_pb2.WAIT_SEARCHABLE) -> recall_pb2.IndexRequest:
    return recall_pb2.IndexRequest(
        resource_id="alice",
        thread_id="t",
        messages=[{"id": "m", "role": 1, "text": "x"}],
        wait=wait,
    )


def acts_at_once(server: InProcessServer) -> None:
    """Every call that waits for nothing is answered."""
    everything = recall_pb2.ForgetRequest(resource_id="alice", everything=True)
    assert server.recall.Forget(everything, timeout=20).messages == 1
    moved = recall_pb2.TransferThreadRequest(
        resource_id="alice", thread_id="t", to_resource_id="bob"
    )
    assert server.recall.TransferThread(moved, timeout=20).messages == 11
    assert len(server.recall.Index(index(types_pb2.WAIT_DURABLE), timeout=20).results) == 1
    assert server.recall.Recall(recall("now"), timeout=20).request_id == "now"
    page = recall_pb2.ListMessagesRequest(resource_id="alice")
    assert len(server.recall.ListMessages(page, timeout=20).messages) == 1


def waiting(server: InProcessServer, lane: str) -> int:
    return server.reading(f'waiting{{lane="{lane}"}}')


def test_index_calls_that_wait_hold_nobody_up(small: InProcessServer, engine: FakeEngine) -> None:
    embedding = engine.hold_embedding()
    calls = [small.recall.Index.future(index(), timeout=60) for _ in range(WAITERS)]
    small.wait_until(lambda: waiting(small, "index") == WAITERS)
    assert small.in_flight("index") == 0
    acts_at_once(small)
    embedding.set_result(None)
    statuses = {result.status for call in calls for result in call.result(20).results}
    assert statuses == {types_pb2.STATUS_INDEXED}
    small.wait_until(lambda: waiting(small, "index") == 0)


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(b"", id="small"),
        pytest.param(recall_pb2.RecallRequest(query=LARGE).SerializeToString(), id="large"),
        # The tag of read_token with a byte more than needed; gRPC peers may write it so.
        pytest.param(b"\xaa\x81\x00\x07" + TOKEN.encode(), id="odd tag"),
    ],
)
def test_recalls_with_a_read_token_hold_nobody_up(
    small: InProcessServer, engine: FakeEngine, extra: bytes
) -> None:
    embedding = engine.hold_embedding()
    token = "" if extra.startswith(b"\xaa") else TOKEN
    raw = recall(read_token=token).SerializeToString() + extra
    send = small.channel.unary_unary("/semanticrecall.v1.RecallService/Recall")
    calls = [send.future(raw, timeout=60) for _ in range(WAITERS)]
    small.wait_until(lambda: waiting(small, "recall") == WAITERS)
    assert engine.queries == []
    acts_at_once(small)
    engine.queries.clear()
    embedding.set_result(None)
    for call in calls:
        assert recall_pb2.RecallResponse.FromString(call.result(20)).request_id == "r"
    # What has been waited for is not waited for again, on a thread.
    assert [query.read_token for query in engine.queries] == [""] * WAITERS


def test_recalls_of_a_stream_wait_without_a_thread(
    small: InProcessServer, engine: FakeEngine
) -> None:
    embedding = engine.hold_embedding()
    sent = [recall(f"r{i}", read_token=TOKEN) for i in range(WAITERS)]
    answers = small.recall.RecallStream(iter(sent), timeout=60)
    small.wait_until(lambda: waiting(small, "recall") == WAITERS)
    acts_at_once(small)
    embedding.set_result(None)
    assert {answer.request_id for answer in answers} == {f"r{i}" for i in range(WAITERS)}


def test_more_waiters_than_places(small: InProcessServer, engine: FakeEngine) -> None:
    """A recall is told to come back; an Index call is on disk and says what it is not yet."""
    embedding = engine.hold_embedding()
    indexing = [small.recall.Index.future(index(), timeout=60) for _ in range(PLACES)]
    recalls = [
        small.recall.Recall.future(recall(read_token=TOKEN), timeout=60) for _ in range(PLACES)
    ]
    small.wait_until(
        lambda: (waiting(small, "index"), waiting(small, "recall")) == (PLACES, PLACES)
    )
    one_more = small.recall.Index(index(), timeout=20)
    assert [r.status for r in one_more.results] == [types_pb2.STATUS_PENDING]
    with pytest.raises(grpc.RpcError) as refused:
        small.recall.Recall(recall(read_token=TOKEN), timeout=20)
    detail = error_detail(refused.value)
    assert (detail.reason, detail.retryable) == ("QUEUE_FULL", True)
    assert detail.retry_after_ms > 0
    acts_at_once(small)
    embedding.set_result(None)
    for call in (*indexing, *recalls):
        call.result(20)


def test_a_recall_that_has_waited_is_not_refused_afterwards(
    small: InProcessServer, engine: FakeEngine
) -> None:
    embedding = engine.hold_embedding()
    waiters = [
        small.recall.Recall.future(recall("w", read_token=TOKEN), timeout=60) for _ in range(PLACES)
    ]
    small.wait_until(lambda: waiting(small, "recall") == PLACES)
    held = engine.hold("recall")
    others = [small.recall.Recall.future(recall("o"), timeout=60) for _ in range(PLACES)]
    small.wait_until(lambda: small.in_flight("recall") == PLACES)
    embedding.set_result(None)
    small.wait_until(lambda: small.in_flight("recall") == 2 * PLACES)
    with pytest.raises(grpc.RpcError) as refused:
        small.recall.Recall(recall(), timeout=20)
    assert error_detail(refused.value).reason == "QUEUE_FULL"
    held.release.set()
    assert {call.result(20).request_id for call in waiters} == {"w"}
    assert {call.result(20).request_id for call in others} == {"o"}


def test_index_answers_pending_before_its_deadline(
    server: InProcessServer, engine: FakeEngine
) -> None:
    engine.hold_embedding()
    answer = server.recall.Index(index(), timeout=1)
    assert [r.status for r in answer.results] == [types_pb2.STATUS_PENDING]


def test_a_recall_that_waits_too_long_is_late(server: InProcessServer, engine: FakeEngine) -> None:
    engine.hold_embedding()
    late = recall("late", read_token=TOKEN, timeout_ms=50)
    answers = list(server.recall.RecallStream(iter([late]), timeout=60))
    assert [(a.request_id, a.error.reason) for a in answers] == [("late", "DEADLINE_EXCEEDED")]
    assert engine.queries == []
    server.wait_until(lambda: waiting(server, "recall") == 0)


def test_a_waiter_that_leaves_gives_its_place_back(
    server: InProcessServer, engine: FakeEngine
) -> None:
    engine.hold_embedding()
    calls = [
        server.recall.Index.future(index(), timeout=60),
        server.recall.Recall.future(recall(read_token=TOKEN), timeout=60),
    ]
    server.wait_until(lambda: (waiting(server, "index"), waiting(server, "recall")) == (1, 1))
    for call in calls:
        call.cancel()
    server.wait_until(lambda: (waiting(server, "index"), waiting(server, "recall")) == (0, 0))


def test_a_bad_token_is_refused_at_once(server: InProcessServer, engine: FakeEngine) -> None:
    engine.hold_embedding()
    engine.fail("when_readable", InvalidArgumentError.of("read_token", "is not a read token"))
    with pytest.raises(grpc.RpcError) as refused:
        server.recall.Recall(recall(read_token="nonsense"), timeout=20)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert engine.queries == []


def test_waiting_calls_are_answered_during_the_drain(tmp_path: Path, engine: FakeEngine) -> None:
    with running(tmp_path, parts_of(engine)) as server:
        embedding = engine.hold_embedding()
        call = server.recall.Index.future(index(), timeout=60)
        server.wait_until(lambda: waiting(server, "index") == 1)
        server.begin_stop()
        server.wait_for_log("draining")
        embedding.set_result(None)
        assert [r.status for r in call.result(20).results] == [types_pb2.STATUS_INDEXED]
        server.wait_stopped()
