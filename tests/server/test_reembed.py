"""Reembed at the wire: what it streams, whom it holds up, and what statistics and answers say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_server.assembly import default_parts
from support.exchanging_engine import OtherWords, other_vector
from support.fake_embedder import FakeEmbedder, text_vector
from support.fake_engine import FakeEngine
from support.running_server import CALL_TIMEOUT_S, InProcessServer, error_detail, running

TEXTS = [f"note {i} about tea{i % 7}" for i in range(80)]


def reembed(server: InProcessServer) -> Iterator[admin_pb2.ReembedResponse]:
    answers: Iterator[admin_pb2.ReembedResponse]
    answers = server.admin.Reembed(admin_pb2.ReembedRequest(), timeout=CALL_TIMEOUT_S)
    return answers


def stats(server: InProcessServer) -> admin_pb2.GetStatsResponse:
    answer: admin_pb2.GetStatsResponse
    answer = server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=CALL_TIMEOUT_S)
    return answer


def recall(server: InProcessServer) -> recall_pb2.RecallResponse:
    request = recall_pb2.RecallRequest(resource_id="u", query="tea3", top_k=3)
    answer: recall_pb2.RecallResponse = server.recall.Recall(request, timeout=CALL_TIMEOUT_S)
    return answer


def test_what_the_engine_says_is_streamed(server: InProcessServer, engine: FakeEngine) -> None:
    common = {"total": 34, "from_index_identity": "fake@1/4", "to_index_identity": "next@1/8"}
    assert list(reembed(server)) == [
        admin_pb2.ReembedResponse(done=17, complete=False, **common),
        admin_pb2.ReembedResponse(done=34, complete=True, **common),
    ]
    found = stats(server)
    assert (found.next_index_identity, found.next_embedded) == ("next@1/8", 17)
    assert server.reading("next_embedded") == 17
    assert server.reading("reembed_running") == 1


def test_an_error_of_the_run_ends_the_stream(server: InProcessServer, engine: FakeEngine) -> None:
    engine.fail("reembed", UnavailableError("the next model has stopped; restart"))
    with pytest.raises(grpc.RpcError) as refused:
        list(reembed(server))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def exchanging(tmp_path: Path) -> Iterator[tuple[InProcessServer, FakeEmbedder, FakeEmbedder]]:
    """A real store behind a server with two models."""
    present, following = FakeEmbedder(64), OtherWords(48)
    parts = default_parts(lambda _: present, lambda _: following)
    with running(tmp_path, parts, next_model_dir=tmp_path / "next") as server:
        request = recall_pb2.IndexRequest(resource_id="u")
        for number, text in enumerate(TEXTS):
            request.messages.add(
                id=f"m{number}", thread_id="t", role=types_pb2.ROLE_USER, text=text
            )
        server.recall.Index(request, timeout=CALL_TIMEOUT_S)
        yield server, present, following
        following.heal()


def test_a_next_model_that_is_the_one_that_serves_is_said(tmp_path: Path) -> None:
    parts = default_parts(lambda _: FakeEmbedder(64), lambda _: FakeEmbedder(64))
    with running(tmp_path, parts, next_model_dir=tmp_path / "next") as server:
        events = [line["event"] for line in server.log_lines]
        assert "next_model_is_the_one_that_serves" in events
        assert stats(server).next_index_identity == ""
        with pytest.raises(grpc.RpcError) as refused:
            list(reembed(server))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        detail = error_detail(refused.value)
        assert detail.reason == "NO_NEXT_MODEL"
        assert "the next model is the one that serves" in detail.message


def test_followers_hold_no_thread_and_may_leave(
    exchanging: tuple[InProcessServer, FakeEmbedder, FakeEmbedder],
) -> None:
    server, present, following = exchanging
    held = following.block_on(TEXTS[-1])
    followers = [reembed(server) for _ in range(4)]  # the admin lane has two threads
    for follower in followers:
        assert not next(follower).complete
    assert held.entered.wait(CALL_TIMEOUT_S)
    found = stats(server)
    assert found.index_identity == present.index_identity
    assert found.next_index_identity == following.index_identity
    assert found.next_embedded > 0
    followers.pop().cancel()  # type: ignore[attr-defined]
    held.release.set()
    for follower in followers:
        assert list(follower)[-1].complete
    found = stats(server)
    assert (found.index_identity, found.next_index_identity) == (following.index_identity, "")
    assert f'model="{following.index_identity}"' in server.sidecar.metrics.text().decode()


def findings(server: InProcessServer) -> list[tuple[str, str]]:
    events = server.admin.Verify(admin_pb2.VerifyRequest(), timeout=CALL_TIMEOUT_S)
    return [(e.finding.kind, e.finding.detail) for e in events if e.HasField("finding")]


def exported(server: InProcessServer) -> dict[str, tuple[str, list[float]]]:
    """By message: which model its vector is of, and the vector."""
    request = admin_pb2.ExportRequest(resource_id="u", with_vectors=True)
    answers = list(server.admin.Export(request, timeout=CALL_TIMEOUT_S))
    return {
        a.vectors.message_id: (
            a.vectors.index_identity,
            np.frombuffer(a.vectors.data, "<f4").tolist(),
        )
        for a in answers
    }


def test_verify_export_and_snapshots_see_one_model_whenever_they_come(
    exchanging: tuple[InProcessServer, FakeEmbedder, FakeEmbedder],
) -> None:
    """In the middle of an exchange the present model's, afterwards the next one's."""
    server, present, following = exchanging
    held = following.block_on(TEXTS[-1])
    follower = reembed(server)
    next(follower)
    assert held.entered.wait(CALL_TIMEOUT_S)

    def look(model: FakeEmbedder, vector: Callable[[str], np.ndarray]) -> None:
        assert findings(server) == []
        expected = {f"m{n}": vector(text) for n, text in enumerate(TEXTS)}
        found = exported(server)
        assert found.keys() == expected.keys()
        for name, (identity, numbers) in found.items():
            assert identity == model.index_identity
            assert numbers == pytest.approx(expected[name].tolist(), abs=1e-6)
        request = admin_pb2.CreateSnapshotRequest()
        made = server.admin.CreateSnapshot(request, timeout=CALL_TIMEOUT_S).snapshot
        assert made.index_identity == model.index_identity
        assert made.messages == len(TEXTS)

    look(present, lambda text: text_vector(text, 64))
    held.release.set()
    assert list(follower)[-1].complete
    look(following, lambda text: other_vector(text, 48))


def test_no_answer_of_the_former_model_is_given_again(
    exchanging: tuple[InProcessServer, FakeEmbedder, FakeEmbedder],
) -> None:
    server, *_ = exchanging
    first, again = recall(server), recall(server)
    assert again.info.answer_cache_hit
    assert list(reembed(server))[-1].complete
    other = recall(server)
    assert not other.info.answer_cache_hit
    assert [m.score for m in other.messages] != [m.score for m in first.messages]
    assert recall(server).info.answer_cache_hit


def test_a_server_that_drains_waits_for_no_follower(tmp_path: Path) -> None:
    present, following = FakeEmbedder(64), OtherWords(48)
    parts = default_parts(lambda _: present, lambda _: following)
    with running(tmp_path, parts, next_model_dir=tmp_path / "next") as server:
        request = recall_pb2.IndexRequest(resource_id="u")
        request.messages.add(id="m", thread_id="t", role=types_pb2.ROLE_USER, text="held up")
        server.recall.Index(request, timeout=CALL_TIMEOUT_S)
        held = following.block_on("held up")
        follower = reembed(server)
        next(follower)
        assert held.entered.wait(CALL_TIMEOUT_S)
        stopped = threading.Thread(target=server.stop)
        stopped.start()
        with pytest.raises(grpc.RpcError) as refused:
            list(follower)
        assert error_detail(refused.value).reason == "DRAINING"
        stopped.join(CALL_TIMEOUT_S)
        assert not stopped.is_alive()
