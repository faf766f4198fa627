"""A thread that embeds dies: everybody is told, and health says so."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from semanticrecall.v1 import recall_pb2
from semanticrecall_core.embedding.embedder import OnnxEmbedder
from semanticrecall_core.embedding.scheduler import Scheduling
from semanticrecall_core.embedding.session import EncoderSession
from semanticrecall_server.assembly import default_parts
from support import tiny_model
from support.fake_engine import FakeEngine
from support.running_server import error_detail, parts_of, running

WAIT = 30.0
CALLERS = 4


def test_a_dead_worker_ends_the_recalls_that_wait_and_turns_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, die = threading.Event(), threading.Event()
    run_batch = EncoderSession.run_batch
    armed = False

    def fatal(session: EncoderSession, texts: Sequence[object]) -> object:
        if not armed:
            return run_batch(session, texts)  # type: ignore[arg-type]
        begun.set()
        assert die.wait(WAIT)
        raise SystemExit(1)

    monkeypatch.setattr(EncoderSession, "run_batch", fatal)
    embedder = OnnxEmbedder(tiny_model.model(), device="cpu", scheduling=Scheduling(runs_max=1))
    parts = default_parts(lambda settings: embedder)
    with running(tmp_path, parts, recall_threads=CALLERS) as server:
        armed = True
        recalls = [
            server.recall.Recall.future(
                recall_pb2.RecallRequest(resource_id="u", query=f"hello {number}"), timeout=WAIT
            )
            for number in ("one", "two", "three", "four")
        ]
        assert begun.wait(WAIT)
        poll = threading.Event()
        for _ in range(int(WAIT * 100)):
            stats = embedder.scheduler_stats()
            if stats.queued_texts + stats.running_texts == CALLERS:
                break
            poll.wait(0.01)
        else:
            raise AssertionError("not all recalls came to the model")
        health = server.health.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT)
        assert next(health).status == health_pb2.HealthCheckResponse.SERVING
        die.set()
        for recall in recalls:
            error = recall.exception(WAIT)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert error_detail(error).reason == "EMBEDDING_STOPPED"
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        health.cancel()
        with pytest.raises(grpc.RpcError) as raised:
            server.recall.Recall(
                recall_pb2.RecallRequest(resource_id="u", query="hello"), timeout=WAIT
            )
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.reading("ready") == 0


def test_the_metrics_show_what_waits_for_the_model_and_what_has_run(tmp_path: Path) -> None:
    with running(tmp_path, parts_of(FakeEngine())) as server:
        lines = server.sidecar.metrics.text().decode().splitlines()
    for name, value in (
        ("queue_texts", 1),
        ("queue_tokens", 2),
        ("running_texts", 3),
        ("batches_total", 4),
        ("batched_texts_total", 5),
        ("refused_total", 6),
    ):
        assert f"semanticrecall_embed_{name} {value}.0" in lines
