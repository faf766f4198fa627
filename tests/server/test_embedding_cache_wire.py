"""What is embedded once is not embedded again: across calls, roles, ids and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall_core.embedding.embedder import OnnxEmbedder
from semanticrecall_core.types.ports import Embedder
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.config import Settings
from semanticrecall_server.lifecycle import Parts
from support import tiny_model
from support.running_server import CALL_TIMEOUT_S, InProcessServer, running

HISTORY = ["hello world", "dark mode is on", "meet at nine", "the harbour is blue"]
QUERY = "turn dark mode off"


def parts() -> Parts:
    """The real parts, with a model that is small enough to be loaded in no time."""

    def load(settings: Settings) -> Embedder:
        return OnnxEmbedder(
            tiny_model.model(),
            device="cpu",
            cache_bytes_max=settings.cache_bytes_max,
        )

    return default_parts(load)


def index(
    server: InProcessServer, texts: Sequence[str], prefix: str = "m", resource: str = "ada"
) -> recall_pb2.IndexResponse:
    messages = [
        types_pb2.Message(id=f"{prefix}{n}", thread_id="t", role="ROLE_USER", text=text)
        for n, text in enumerate(texts)
    ]
    request = recall_pb2.IndexRequest(resource_id=resource, messages=messages)
    return server.recall.Index(request, timeout=CALL_TIMEOUT_S)


def recall(server: InProcessServer, query: str, resource: str = "ada") -> recall_pb2.RecallInfo:
    request = recall_pb2.RecallRequest(resource_id=resource, query=query)
    return server.recall.Recall(request, timeout=CALL_TIMEOUT_S).info


def forget(server: InProcessServer, **target: Any) -> recall_pb2.ForgetResponse:
    request = recall_pb2.ForgetRequest(resource_id="ada", **target)
    return server.recall.Forget(request, timeout=CALL_TIMEOUT_S)


def cache(server: InProcessServer) -> admin_pb2.CacheStats:
    request = admin_pb2.GetStatsRequest()
    return server.admin.GetStats(request, timeout=CALL_TIMEOUT_S).cache


def test_what_recall_embedded_is_not_embedded_again_by_index(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        assert not recall(server, QUERY).cache_hit
        answer = index(server, [QUERY])
        assert (answer.info.embeddings_computed, answer.info.embeddings_cached) == (0, 1)
        other = index(server, [QUERY], resource="bob")
        assert (other.info.embeddings_computed, other.info.embeddings_cached) == (1, 0)


def test_a_history_sent_again_costs_no_embedding(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        assert index(server, HISTORY).info.embeddings_computed == len(HISTORY)
        again = index(server, HISTORY)
        assert {result.status for result in again.results} == {types_pb2.STATUS_UNCHANGED}
        assert (again.info.embeddings_computed, again.info.embeddings_cached) == (0, 0)
        renamed = index(server, HISTORY, "n")
        assert (renamed.info.embeddings_computed, renamed.info.embeddings_cached) == (0, 4)


def test_after_a_restart_nothing_is_embedded_again(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        recall(server, QUERY)
        index(server, HISTORY)
    with running(tmp_path, parts()) as server:
        before = cache(server)
        assert before.disk_entries == len(HISTORY) + 1
        assert recall(server, QUERY).cache_hit
        renamed = index(server, HISTORY, "n")
        assert (renamed.info.embeddings_computed, renamed.info.embeddings_cached) == (0, 4)
        after = cache(server)
        assert after.disk_hits - before.disk_hits == len(HISTORY) + 1
        assert after.disk_bytes > 0
        assert after.hit_ratio == pytest.approx(after.hits / (after.hits + after.misses))


def test_forgotten_messages_leave_the_disk_and_others_stay(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        index(server, HISTORY)
        index(server, ["hello world"], resource="bob")
    with running(tmp_path, parts()) as server:
        gone = forget(server, message_ids=recall_pb2.MessageIds(ids=["m0", "m2"]))
        assert (gone.messages, gone.cache_entries) == (2, 2)
    with running(tmp_path, parts()) as server:
        renamed = index(server, HISTORY, "n")
        assert (renamed.info.embeddings_computed, renamed.info.embeddings_cached) == (2, 2)
        other = index(server, ["hello world"], "n", resource="bob")
        assert (other.info.embeddings_computed, other.info.embeddings_cached) == (0, 1)


def test_forgetting_everything_drops_queries_too(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        recall(server, QUERY)
        index(server, HISTORY)
        recall(server, QUERY, resource="bob")
        gone = forget(server, everything=True)
        assert (gone.messages, gone.cache_entries) == (4, 5)
        assert not recall(server, QUERY).cache_hit
    with running(tmp_path, parts()) as server:
        assert cache(server).disk_entries == 2
        gone = forget(server, everything=True)  # again, and of no message: the query of ada
        assert (gone.messages, gone.cache_entries) == (0, 1)
        assert recall(server, QUERY, resource="bob").cache_hit


def test_a_forget_sent_again_drops_what_the_first_may_have_left(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        recall(server, QUERY)
        assert cache(server).entries == 1
        gone = forget(server, message_ids=recall_pb2.MessageIds(ids=["m0"]))
        assert (gone.messages, gone.cache_entries) == (0, 0)
        assert cache(server).entries == 0


def test_a_thread_given_away_leaves_nothing_in_its_first_owners_cache(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        index(server, HISTORY)
        request = recall_pb2.TransferThreadRequest(
            resource_id="ada", thread_id="t", to_resource_id="bob"
        )
        server.recall.TransferThread(request, timeout=CALL_TIMEOUT_S)
        assert cache(server).entries == 0
        assert not recall(server, HISTORY[0]).cache_hit
    with running(tmp_path, parts()) as server:
        assert cache(server).disk_entries == 1  # that question


@pytest.mark.parametrize("bound", ["cache_disk_bytes_max", "cache_bytes_max"])
def test_without_a_cache_on_disk_no_file_is_left(tmp_path: Path, bound: str) -> None:
    with running(tmp_path, parts()) as server:
        recall(server, QUERY)
    assert (tmp_path / "data/embeddings.db").exists()
    with running(tmp_path, parts(), **{bound: 0}) as server:
        recall(server, QUERY)
        assert cache(server).disk_bytes == 0
    assert not (tmp_path / "data/embeddings.db").exists()


def test_a_cache_without_its_record_is_deleted(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        recall(server, QUERY)
    for path in (tmp_path / "data").iterdir():
        if path.is_file() and path.name != "embeddings.db":
            path.unlink()
    with running(tmp_path, parts()) as server:
        assert cache(server).disk_entries == 0
        assert not recall(server, QUERY).cache_hit


def test_a_damaged_file_delays_no_start_and_no_recall(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        recall(server, QUERY)
    file = tmp_path / "data/embeddings.db"
    file.write_bytes(file.read_bytes()[:5000] + b"\0" * 5000)
    with running(tmp_path, parts()) as server:
        assert not recall(server, QUERY).cache_hit
        assert recall(server, QUERY).cache_hit
    with running(tmp_path, parts()) as server:
        assert recall(server, QUERY).cache_hit


def test_the_metrics_show_memory_and_disk(tmp_path: Path) -> None:
    with running(tmp_path, parts()) as server:
        recall(server, QUERY)
    with running(tmp_path, parts()) as server:
        recall(server, QUERY)
        lines = dict(
            line.rsplit(" ", 1)
            for line in server.sidecar.metrics.text().decode().splitlines()
            if line.startswith("semanticrecall_cache_")
        )
        stats = cache(server)
    assert float(lines["semanticrecall_cache_disk_entries"]) == 1
    assert float(lines["semanticrecall_cache_disk_hits_total"]) == 1
    assert float(lines["semanticrecall_cache_disk_evictions_total"]) == 0
    assert float(lines["semanticrecall_cache_disk_damaged_total"]) == 0
    assert float(lines["semanticrecall_cache_hit_ratio"]) == pytest.approx(stats.hit_ratio)
    assert float(lines["semanticrecall_cache_disk_bytes"]) > 8192


def test_a_record_that_cannot_be_opened_lets_go_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data/recall.db").write_bytes(b"not a database, but long enough" * 1000)
    with pytest.raises(Exception, match="damaged"), running(tmp_path, parts()):
        raise AssertionError("it started")
    assert not list((tmp_path / "data").glob("embeddings.db-*"))
