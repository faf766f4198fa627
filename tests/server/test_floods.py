"""What a flood of one resource does to others, on the wire; and refusals that are held back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.types.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    SemanticRecallError,
)
from semanticrecall_server import gate, lifecycle
from semanticrecall_server.errors import AnswerTooLargeError, trailers
from semanticrecall_server.gate import HELD_BACK_FROM_MS, RETRY_AFTER_HOLD_MS, Gate, HeldBack, Kind
from support.fake_engine import FakeEngine
from support.running_server import InProcessServer, error_detail, parts_of, running

PLACES = 24
SHARE = PLACES // 2
SECONDS = 20.0


@pytest.fixture
def narrow(engine: FakeEngine, tmp_path: Path) -> Iterator[InProcessServer]:
    """One thread and few places for recalls, and for writes."""
    with running(
        tmp_path,
        parts_of(engine),
        recall_threads=1,
        recalls_in_flight_max=PLACES,
        index_threads=1,
        index_in_flight_max=PLACES,
        answer_cache_bytes_max=0,
    ) as serving:
        yield serving


def recall(resource_id: str, request_id: str) -> recall_pb2.RecallRequest:
    return recall_pb2.RecallRequest(resource_id=resource_id, query="q", request_id=request_id)


def index(resource_id: str) -> recall_pb2.IndexRequest:
    return recall_pb2.IndexRequest(
        resource_id=resource_id,
        thread_id="t",
        messages=[{"id": "m", "role": 1, "text": "x"}],
        wait=types_pb2.WAIT_DURABLE,
    )


def assert_full(error: grpc.RpcError) -> None:
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    detail = error_detail(error)
    assert (detail.reason, detail.retryable) == ("QUEUE_FULL", True)
    assert detail.retry_after_ms > 0


def test_a_flood_of_one_resource_lets_another_one_in(
    narrow: InProcessServer, engine: FakeEngine
) -> None:
    held = engine.hold("recall")
    hot = [narrow.recall.Recall.future(recall("hot", f"{n}"), timeout=60) for n in range(SHARE)]
    assert held.entered.wait(SECONDS)
    narrow.wait_until(lambda: narrow.in_flight("recall") == SHARE)
    with pytest.raises(grpc.RpcError) as refused:
        narrow.recall.Recall(recall("hot", "one more"), timeout=SECONDS)
    assert_full(refused.value)
    quiet = narrow.recall.Recall.future(recall("quiet", "q"), timeout=60)
    narrow.wait_until(lambda: narrow.in_flight("recall") == SHARE + 1)
    held.release.set()
    assert quiet.result(SECONDS).request_id == "q"
    assert {call.result(SECONDS).request_id for call in hot} == {f"{n}" for n in range(SHARE)}
    # The one that was worked on already, then the quiet one.
    assert [query.resource_id for query in engine.queries] == ["hot", "quiet"] + ["hot"] * (
        SHARE - 1
    )


def test_recalls_of_a_stream_count_for_their_resource(
    narrow: InProcessServer, engine: FakeEngine
) -> None:
    """The unary recalls beside it too: turns and shares know no streams."""
    held = engine.hold("recall")
    sent = [recall("hot", f"{n}") for n in range(SHARE + 8)]
    answers = narrow.recall.RecallStream(iter(sent), timeout=60)
    assert held.entered.wait(SECONDS)
    assert [next(answers).error.reason for _ in range(8)] == ["QUEUE_FULL"] * 8
    with pytest.raises(grpc.RpcError) as refused:
        narrow.recall.Recall(recall("hot", "one more"), timeout=SECONDS)
    assert_full(refused.value)
    quiet = narrow.recall.RecallStream(iter([recall("quiet", "q")]), timeout=60)
    narrow.wait_until(lambda: narrow.in_flight("recall") == SHARE + 1)
    held.release.set()
    assert [answer.request_id for answer in quiet] == ["q"]
    assert [answer.error.reason for answer in answers] == [""] * SHARE
    assert [query.resource_id for query in engine.queries][:3] == ["hot", "quiet", "hot"]


def test_writes_of_one_resource_let_others_write(
    narrow: InProcessServer, engine: FakeEngine
) -> None:
    held = engine.hold("index")
    hot = [narrow.recall.Index.future(index("hot"), timeout=60) for _ in range(SHARE)]
    narrow.wait_until(lambda: narrow.in_flight("index") == SHARE)
    with pytest.raises(grpc.RpcError) as refused:
        narrow.recall.Index(index("hot"), timeout=SECONDS)
    assert_full(refused.value)
    quiet = narrow.recall.Index.future(index("quiet"), timeout=60)
    narrow.wait_until(lambda: narrow.in_flight("index") == SHARE + 1)
    held.release.set()
    for call in (quiet, *hot):
        assert len(call.result(SECONDS).results) == 1


def test_who_leaves_gives_its_share_back(narrow: InProcessServer, engine: FakeEngine) -> None:
    held = engine.hold("recall")
    first = narrow.recall.Recall.future(recall("hot", "first"), timeout=60)
    assert held.entered.wait(SECONDS)
    hot = [narrow.recall.Recall.future(recall("hot", f"{n}"), timeout=60) for n in range(1, SHARE)]
    narrow.wait_until(lambda: narrow.in_flight("recall") == SHARE)
    for call in hot:
        call.cancel()
    narrow.wait_until(lambda: narrow.in_flight("recall") == 1)
    again = narrow.recall.Recall.future(recall("hot", "again"), timeout=60)
    narrow.wait_until(lambda: narrow.in_flight("recall") == 2)
    held.release.set()
    assert first.result(SECONDS).request_id == "first"
    assert again.result(SECONDS).request_id == "again"


# ---- refusals that are held back ----


def full(retry_after_ms: int) -> ResourceExhaustedError:
    return ResourceExhaustedError("full", retry_after_ms=retry_after_ms)


async def later(held: HeldBack, error: SemanticRecallError, remaining_s: float | None) -> Any:
    """What is said in the end, and how long that took by the loop's clock."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    said = await held.hold(error, remaining_s)
    return said, loop.time() - started


@pytest.mark.parametrize(
    ("error", "seconds_max"),
    [
        (full(HELD_BACK_FROM_MS - 1), 5.0),
        (full(HELD_BACK_FROM_MS), 0.0),
        (ResourceExhaustedError("full", reason="DISK_FULL", retry_after_ms=5_000), 5.0),
        (InvalidArgumentError.of("a", "b"), 5.0),
        (AnswerTooLargeError("large", retry_after_ms=5_000), 5.0),
    ],
)
def test_what_is_no_flood_is_told_at_once(error: SemanticRecallError, seconds_max: float) -> None:
    async def test() -> None:
        holding = HeldBack(seconds_max).hold(error, None)
        with pytest.raises(StopIteration) as told:
            holding.send(None)  # it ends without having waited for anything
        assert told.value.value is error

    asyncio.run(test())


@pytest.mark.parametrize(
    ("told_ms", "seconds_max", "remaining_s", "held_s", "rest_ms"),
    [
        (1_000, 0.01, None, 0.01, 990),
        (1_000, 5.0, 0.04, 0.02, 980),
        (1_000, 5.0, None, 1.0, RETRY_AFTER_HOLD_MS),
    ],
)
def test_a_refusal_is_held_back_as_long_as_it_says(
    told_ms: int, seconds_max: float, remaining_s: float | None, held_s: float, rest_ms: int
) -> None:
    said, took_s = asyncio.run(later(HeldBack(seconds_max), full(told_ms), remaining_s))
    assert took_s >= held_s - 0.001
    assert (said.message, said.reason, said.retry_after_ms) == ("full", "QUEUE_FULL", rest_ms)


def in_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(SECONDS):
            await test()

    asyncio.run(run())


def test_so_many_are_held_and_the_others_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HELD_BACK_MAX", 2)

    async def test() -> None:
        held = HeldBack(1_000.0)
        error = full(5_000)
        waiting = [asyncio.create_task(held.hold(error, None)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await held.hold(error, None) is error
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        waiting.append(asyncio.create_task(held.hold(error, None)))
        await asyncio.sleep(0)
        assert not waiting[2].done()
        held.end()
        assert await asyncio.gather(*waiting[1:]) == [error, error]
        assert await held.hold(error, None) is error

    in_a_loop(test)


def test_draining_holds_nobody_back() -> None:
    async def test() -> None:
        made = Gate({Kind.CALL: 1, Kind.STREAM: 1, Kind.EXPORT: 1}, 1_000.0)
        waiting = asyncio.create_task(made.held_back.hold(full(5_000), None))
        await asyncio.sleep(0)
        made.drain()
        assert (await waiting).retry_after_ms == 5_000

    in_a_loop(test)


def test_a_held_call_has_no_place_and_may_leave(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RECALL_RETRY_MS", 5_000)
    with running(
        tmp_path,
        parts_of(engine),
        recall_threads=1,
        recalls_in_flight_max=PLACES,
        refusal_hold_ms_max=60_000,
    ) as server:
        held = engine.hold("recall")
        hot = [server.recall.Recall.future(recall("hot", f"{n}"), timeout=60) for n in range(SHARE)]
        server.wait_until(lambda: server.in_flight("recall") == SHARE)
        waiting = server.recall.Recall.future(recall("hot", "held"), timeout=60)
        server.wait_until(lambda: server.reading("refusals_held") == 1)
        assert server.sidecar.calls_inside == SHARE
        assert not waiting.done()
        waiting.cancel()
        server.wait_until(lambda: server.reading("refusals_held") == 0)
        told = server.recall.Recall.future(recall("hot", "told"), timeout=60)
        server.wait_until(lambda: server.reading("refusals_held") == 1)
        held.release.set()
        for call in hot:
            call.result(SECONDS)
        server.begin_stop()
        with pytest.raises(grpc.RpcError) as refused:
            told.result(SECONDS)
        assert_full(refused.value)
        server.wait_stopped()


# ---- refusals are encoded once ----


def test_the_trailers_of_refusals_are_those_of_each() -> None:
    """Encoded once for all that are alike: never one's words for another."""
    seen = set()
    for message in ("a", "b"):
        for reason in ("QUEUE_FULL", "OTHER"):
            for retry_after_ms in (50, 100):
                error = ResourceExhaustedError(
                    message, reason=reason, retry_after_ms=retry_after_ms
                )
                (_, _), (_, raw) = trailers(error)
                detail = types_pb2.ErrorDetail.FromString(raw)
                assert (detail.message, detail.reason) == (message, reason)
                assert detail.retry_after_ms == retry_after_ms
                assert trailers(error) == trailers(error)
                seen.add(trailers(error))
    assert len(seen) == 8
    (_, _), (_, raw) = trailers(AnswerTooLargeError("a", retry_after_ms=50))
    assert not types_pb2.ErrorDetail.FromString(raw).retryable
