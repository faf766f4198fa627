"""Recalls under a flood: the run, its series and figures, and that its checks can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.overload import Config, ask, measure
from semanticrecall.v1 import recall_pb2, types_pb2
from support import smoke_runs

CALLS = 10
CODES = grpc.StatusCode


@pytest.mark.slow
def test_accepted_recalls_those_of_others_and_recovery_are_measured(tmp_path: Path) -> None:
    result, printed = smoke_runs.run("overload", tmp_path / "result.json", "--smoke")
    counts = {name: latency["count"] for name, latency in result["latencies_ms"].items()}
    assert counts["idle"] == counts["after"] == CALLS
    assert counts["accepted"] > 0
    assert counts["other"] > 0
    figures = result["figures"]
    # Forty callers do not fill the queue.
    assert figures["recalls of the flood refused"] == 0
    assert figures["tries of the other resource refused"] == 0
    assert figures["recalls accepted a second"] == pytest.approx(counts["accepted"] / 1.0)
    assert figures["recovered_after_s"] > 0
    bars = {bar["name"]: bar["measured"] for bar in result["bars"]}
    latencies = result["latencies_ms"]
    ratio = latencies["other"]["p99_ms"] / latencies["idle"]["p99_ms"]
    assert bars["p99 other / p99 idle"] == pytest.approx(ratio, rel=0.01)
    assert bars["seconds until recovery"] == figures["recovered_after_s"]
    assert f"answers {result['answers_digest']}" in printed


class _Channel:
    """Answers with the resource it is made of, or fails as it is told."""

    def __init__(self, resource_id: str = "", error: grpc.aio.AioRpcError | None = None) -> None:
        message = types_pb2.Message(id="m", resource_id=resource_id)
        self._answer = recall_pb2.RecallResponse(messages=[{"message": message}])
        self._error = error

    def unary_unary(self, method: str) -> Any:
        async def call(request: bytes, timeout: float) -> bytes:
            if self._error is not None:
                raise self._error
            return self._answer.SerializeToString()

        return call


def refusal(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


def test_an_answer_of_another_resource_is_an_error() -> None:
    channel: Any = _Channel("mine")
    assert asyncio.run(ask(channel, "mine", "q")) is None
    with pytest.raises(RuntimeError, match="another resource"):
        asyncio.run(ask(channel, "yours", "q"))


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED],
)
def test_a_refusal_without_advice_is_an_error(code: grpc.StatusCode) -> None:
    channel: Any = _Channel(error=refusal(code))
    with pytest.raises(RuntimeError, match="without advice"):
        asyncio.run(ask(channel, "mine", "q"))


@pytest.mark.parametrize(
    "config",
    [
        Config(callers=1, connections=2),
        Config(connections=0),
        Config(seconds=0.0),
        Config(calls=0),
        Config(patience=-1.0),
    ],
)
def test_what_cannot_be_measured_is_refused(config: Config) -> None:
    with pytest.raises(ValueError, match="must be"):
        measure(config)
