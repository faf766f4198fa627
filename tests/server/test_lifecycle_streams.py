"""RecallStream and IndexStream: many at once, in order, with back-pressure, and cancelled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from semanticrecall.v1 import recall_pb2
from semanticrecall_core.types.values import CallBudget
from semanticrecall_server import endpoints, wire
from support.fake_engine import FakeEngine
from support.running_server import InProcessServer

LIMIT = 64


def recall(request_id: str, query: str = "q", **fields: Any) -> recall_pb2.RecallRequest:
    return recall_pb2.RecallRequest(
        request_id=request_id, resource_id="alice", query=query, **fields
    )


class Feed:
    """Requests given to a stream one by one."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()

    def send(self, request: Any) -> None:
        self._queue.put(request)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[Any]:
        while (request := self._queue.get(timeout=60)) is not None:
            yield request


class GateByQuery:
    """Holds up the recalls whose query says so."""

    def __init__(self, engine: FakeEngine) -> None:
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)
        self._engine = engine
        engine.on_call = self._on_call

    def _on_call(self, name: str, budget: CallBudget) -> None:
        if name == "recall" and self._engine.queries[-1].text == "slow":
            self.entered.release()
            while not self.release.wait(0.01):
                budget.check()


def test_answers_come_as_they_are_ready(server: InProcessServer, engine: FakeEngine) -> None:
    gate = GateByQuery(engine)
    feed = Feed()
    answers = server.recall.RecallStream(iter(feed), timeout=60)
    feed.send(recall("slow", "slow"))
    assert gate.entered.acquire(timeout=20)
    feed.send(recall("quick"))
    assert next(answers).request_id == "quick"
    gate.release.set()
    assert next(answers).request_id == "slow"
    feed.end()
    assert list(answers) == []


def test_every_request_is_answered_once(server: InProcessServer) -> None:
    sent = [recall(f"r{i}") for i in range(500)]
    answers = list(server.recall.RecallStream(iter(sent), timeout=60))
    assert sorted(a.request_id for a in answers) == sorted(r.request_id for r in sent)
    assert all(not a.error.code for a in answers)


def test_at_most_64_of_a_stream_are_worked_on(server: InProcessServer, engine: FakeEngine) -> None:
    held = engine.hold("recall")
    feed = Feed()
    for i in range(LIMIT + 20):
        feed.send(recall(f"r{i}"))
    feed.end()
    answers = server.recall.RecallStream(iter(feed), timeout=60)
    server.wait_until(lambda: server.in_flight("recall") == LIMIT)
    assert held.entered.is_set()
    assert server.in_flight("recall") == LIMIT
    held.release.set()
    assert len(list(answers)) == LIMIT + 20


def test_an_id_in_use_is_refused_and_free_again_afterwards(
    server: InProcessServer, engine: FakeEngine
) -> None:
    gate = GateByQuery(engine)
    feed = Feed()
    answers = server.recall.RecallStream(iter(feed), timeout=60)
    feed.send(recall("same", "slow"))
    assert gate.entered.acquire(timeout=20)
    feed.send(recall("same"))
    refused = next(answers)
    assert refused.error.field_violations[0].field == "request_id"
    gate.release.set()
    assert not next(answers).error.code
    feed.send(recall("same"))
    assert not next(answers).error.code
    feed.end()


def test_a_recall_has_a_deadline_of_its_own(server: InProcessServer, engine: FakeEngine) -> None:
    GateByQuery(engine)
    feed = Feed()
    answers = server.recall.RecallStream(iter(feed), timeout=60)
    feed.send(recall("late", "slow", timeout_ms=50))
    late = next(answers)
    assert (late.request_id, late.error.reason) == ("late", "DEADLINE_EXCEEDED")
    feed.send(recall("next"))
    assert next(answers).request_id == "next"
    feed.end()


def test_a_cancelled_stream_stops_its_work(server: InProcessServer, engine: FakeEngine) -> None:
    held = engine.hold("recall")
    feed = Feed()
    answers = server.recall.RecallStream(iter(feed), timeout=60)
    for i in range(10):
        feed.send(recall(f"r{i}"))
    assert held.entered.wait(20)
    answers.cancel()
    feed.end()
    server.wait_until(lambda: server.in_flight("recall") == 0)
    assert held.cancelled.is_set()
    held.release.set()
    assert server.recall.Recall(recall("after"), timeout=20).request_id == "after"
    assert "internal_error" not in {line["event"] for line in server.log_lines}


def index(message_id: str) -> recall_pb2.IndexRequest:
    return recall_pb2.IndexRequest(
        resource_id="alice", thread_id="t", messages=[{"id": message_id, "role": 1, "text": "x"}]
    )


def test_an_index_stream_answers_one_by_one_in_order(
    server: InProcessServer, engine: FakeEngine
) -> None:
    held = engine.hold("index")
    feed = Feed()
    for i in range(50):
        feed.send(index(f"m{i}"))
    feed.end()
    answers = server.recall.IndexStream(iter(feed), timeout=60)
    assert held.entered.wait(20)
    assert server.in_flight("index") == 1
    held.release.set()
    ids = [result.message_id for answer in answers for result in answer.results]
    assert ids == [f"m{i}" for i in range(50)]
    assert [draft.id for draft in engine.drafts] == ids


def test_open_streams_do_not_hold_up_calls(server: InProcessServer) -> None:
    feeds = [Feed() for _ in range(50)]
    streams = [server.recall.RecallStream(iter(feed), timeout=60) for feed in feeds]
    assert server.recall.Recall(recall("r"), timeout=20).request_id == "r"
    for feed in feeds:
        feed.end()
    assert [list(stream) for stream in streams] == [[]] * 50


def test_a_stream_of_a_client_that_died_ends(server: InProcessServer, engine: FakeEngine) -> None:
    held = engine.hold("recall")
    feed = Feed()
    with grpc.insecure_channel(server.sidecar.addresses[0].target) as channel:
        stream = channel.stream_stream("/semanticrecall.v1.RecallService/RecallStream")
        answers = stream(iter(feed), timeout=60)
        feed.send(recall("r").SerializeToString())
        assert held.entered.wait(20)
        assert answers is not None
    feed.end()
    server.wait_until(lambda: server.in_flight("recall") == 0)
    held.release.set()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(recall("r").SerializeToString() + b"\x12\x01\xff", id="malformed"),
        pytest.param(b"\x7a\x01a" * 40_000 + b"\x12\x01\xff", id="large and malformed"),
        pytest.param(recall("r", "long " * 10_000).SerializeToString(), id="large"),
    ],
)
def test_the_event_loop_reads_small_and_sound_requests_only(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    """To read the others takes so long that everybody would wait."""
    read_on: list[str] = []

    def recorded(raw: bytes, kind: type[Any]) -> Any:
        read_on.append(threading.current_thread().name)
        return wire.decode(raw, kind)

    monkeypatch.setattr(endpoints, "decode", recorded)
    stream = server.channel.stream_stream("/semanticrecall.v1.RecallService/RecallStream")
    answers = [recall_pb2.RecallResponse.FromString(a) for a in stream(iter([raw]), timeout=60)]
    faulty = raw.endswith(b"\xff")
    assert [bool(answer.error.code) for answer in answers] == [faulty]
    assert len(read_on) == 1, "once is enough"
    assert read_on[0].startswith("recall-lane")
