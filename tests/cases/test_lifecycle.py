"""Lifecycle: one writer, warm before it serves, no stale answer, work that stops when asked."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from semanticrecall import RecallClient
from semanticrecall.v1 import recall_pb2
from semanticrecall_core.types.errors import StoreLockedError
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.config import Settings
from support.fake_embedder import FakeEmbedder
from support.running_server import InProcessServer, ServerProcess
from support.wire_memory import (
    ALONE,
    BY_COSINE,
    DEADLINE_SECONDS,
    DURABLE,
    INDEXED,
    PENDING,
    SCORE_TOLERANCE,
    Memory,
    Model,
    Sidecar,
    conversation,
    eventually,
    hit_ids,
    ids,
    refused,
    said,
    scores,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# LIFE-2 -----------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize("same_socket", [False, True], ids=["own socket", "same socket"])
def test_a_second_process_is_refused_and_the_first_one_serves_on(
    real: Any, fresh: str, tmp_path: Path, same_socket: bool
) -> None:
    memory = real.memory(fresh)
    memory.learn([said("m", "the first process keeps this")])
    directory = Path(real.target.removeprefix("unix:")).parent
    socket = real.target if same_socket else f"unix:{tmp_path}/s.sock"
    with ServerProcess(("--listen", socket, "--data-dir", f"{directory}/data")) as second:
        status, log = second.wait(60)
    assert status == 2
    last = log.strip().splitlines()[-1]
    assert last.startswith("semanticrecall: ")
    assert f"{real.process.pid}" in last
    assert "Traceback" not in log
    assert hit_ids(memory.recall("which process keeps this?")) == ["m"]
    assert memory.index([said("n", "and goes on writing")]) == [INDEXED]
    if not same_socket:
        assert not (tmp_path / "s.sock").exists()


def test_a_second_server_in_one_process_is_refused_too(start: Any, tmp_path: Path) -> None:
    with start(tmp_path / "a") as server:
        memory = server.sidecar.memory("u")
        memory.learn([said("m", "words")])
        with (
            pytest.raises(StoreLockedError),
            start(tmp_path / "b", data_dir=tmp_path / "a" / "data"),
        ):
            pass
        assert hit_ids(memory.recall("words")) == ["m"]
        assert memory.index([said("n", "words")]) == [INDEXED]


@pytest.mark.model
def test_kill_9_loses_nothing_acknowledged_and_leaves_no_lock(
    start_process: Any, tmp_path: Path
) -> None:
    acknowledged: list[str] = []

    def write(sidecar: Sidecar, writer: int) -> None:
        memory = sidecar.memory("u")
        for number in range(10_000):
            name = f"{writer}-{number}"
            try:
                memory.index([said(name, f"note number {name}")], wait=DURABLE)
            except grpc.RpcError:
                return
            acknowledged.append(name)

    with start_process(tmp_path) as first:
        memory = first.memory("u")
        memory.learn([said("fact", "The red kite nests in the old oak")])
        writers = [threading.Thread(target=write, args=(first, n)) for n in range(3)]
        for writer in writers:
            writer.start()
        eventually(lambda: len(acknowledged) >= 60)
        first.kill()
        for writer in writers:
            writer.join()
    with start_process(tmp_path) as second:
        memory = second.memory("u")
        kept = {*ids(memory.listed())}
        assert {*acknowledged, "fact"} <= kept
        # At most one message of each writer was on its way.
        assert len(kept) <= len(acknowledged) + 1 + 3
        assert hit_ids(memory.recall("Where does the red kite nest?", top_k=1)) == ["fact"]
        assert memory.index([said("after", "the lock was free")], wait=DURABLE) == [PENDING]


# LIFE-4 -----------------------------------------------------------------------------------------


def health_of(target: str) -> Any:
    with grpc.insecure_channel(target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        return stub.Check(request, timeout=DEADLINE_SECONDS).status


def test_health_is_not_serving_until_model_and_partitions_are_warm(
    start: Any, tmp_path: Path
) -> None:
    resources = [f"u{i}" for i in range(5)]
    with start(tmp_path) as server:
        for name in resources:
            server.sidecar.memory(name).learn(conversation(["oak tree", "pine cone"]))
    may_load, embedder = threading.Event(), FakeEmbedder()

    def load(_: Settings) -> FakeEmbedder:
        assert may_load.wait(60)
        return embedder

    settings = Settings(listen=(f"unix:{tmp_path}/s.sock",), data_dir=tmp_path / "data")
    server = InProcessServer(settings, default_parts(load), 2)
    server.start(wait=False)
    target = f"unix:{tmp_path}/s.sock"
    sidecar = Sidecar(target)
    try:
        assert health_of(target) == NOT_SERVING
        with refused(grpc.StatusCode.UNAVAILABLE) as refusal:
            sidecar.memory("u0").recall("oak")
        assert refusal.detail.retryable
        assert embedder.runs == 0
        may_load.set()
        eventually(lambda: health_of(target) == SERVING)
        assert embedder.runs > 0
        loaded = sidecar.stats().partitions_loaded
        assert loaded >= len(resources)
        for name in resources:
            assert hit_ids(sidecar.memory(name).recall("oak tree", top_k=1)) == ["m0"]
        # None of them had to be read first.
        assert sidecar.stats().partitions_loaded == loaded
    finally:
        may_load.set()
        sidecar.close()
        server.stop()


# LIFE-5 -----------------------------------------------------------------------------------------

COLLISIONS = [
    ("msg-4246", "msg-268273"),  # xxHash32
    ("plumless", "buckeroo"),  # CRC-32
    ("codding", "gnu"),  # CRC-32
    ("costarring", "liquid"),  # FNV-1a, 32 bits
    ("declinate", "macallums"),  # FNV-1a, 32 bits
    ("hetairas", "mentioner"),  # djb2
    ("heliotropes", "neurospora"),  # djb2
    ("Aa", "BB"),  # Java's hashCode
    ("AaAa", "BBBB"),  # Java's hashCode
    ("ab", "ba"),  # sums of characters
]


def test_the_collisions_are_ones() -> None:
    for one, other in COLLISIONS[1:3]:
        assert zlib.crc32(one.encode()) == zlib.crc32(other.encode())


@pytest.mark.model
@pytest.mark.parametrize("role", [recall_pb2.EMBED_ROLE_QUERY, recall_pb2.EMBED_ROLE_PASSAGE])
def test_texts_whose_short_hashes_collide_have_vectors_of_their_own(real: Any, role: Any) -> None:
    for pair in COLLISIONS:
        together = embedded(real, pair, role)
        alone = [embedded(real, [text], role)[0] for text in pair]
        assert (together == np.stack(alone)).all()
        assert float(together[0] @ together[1]) < 0.98


@pytest.mark.model
def test_messages_whose_short_hashes_collide_are_found_each_by_itself(real_memory: Memory) -> None:
    texts = [text for pair in COLLISIONS for text in pair]
    real_memory.learn([said(text, text) for text in texts])
    for text in texts:
        answer = real_memory.recall(text, top_k=1, message_range=ALONE)
        assert hit_ids(answer) == [text]
        assert scores(answer)[0] >= 0.999


def embedded(sidecar: Sidecar, texts: Any, role: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    request = recall_pb2.EmbedRequest(texts=texts, role=role)
    answer = sidecar.service.Embed(request, timeout=DEADLINE_SECONDS)
    return np.array([e.values for e in answer.embeddings], dtype=np.float32)


# LIFE-6 and LIFE-7 ------------------------------------------------------------------------------

NEAR_PAIRS = [
    ("turn on dark mode", "turn off dark mode"),
    ("I like my boss", "I don't like my boss"),
    ("meeting at 9", "meeting at 10"),
    ("Transfer 100 to Ann", "Transfer 100 to Bob"),
    ("yes", "Yes!"),
]


@pytest.mark.model
@pytest.mark.parametrize("pair", NEAR_PAIRS, ids=lambda pair: pair[0])
def test_no_cached_answer_of_a_near_query_serves_another(
    real_memory: Memory, pair: tuple[str, str]
) -> None:
    stored = ["dark mode is on", "dark mode is off", "my boss is great", "the meeting is at ten"]
    real_memory.learn(conversation(stored))
    passages = embedded(real_memory.sidecar, stored, recall_pb2.EMBED_ROLE_PASSAGE)
    for query in (*pair, *pair):
        answer = real_memory.recall(query, top_k=4, message_range=ALONE, ranking=BY_COSINE)
        [vector] = embedded(real_memory.sidecar, [query], recall_pb2.EMBED_ROLE_QUERY)
        right = sorted((float(passage @ vector) for passage in passages), reverse=True)
        assert scores(answer) == pytest.approx(right, abs=SCORE_TOLERANCE)


@pytest.mark.parametrize("route", ["unary", "stream", "client"])
def test_a_better_match_indexed_meanwhile_is_in_the_next_answer(
    memory: Memory, model: Model, route: str
) -> None:
    query = "where is the spare key"
    memory.learn(conversation(["blue key", "rare time", "where are you"]))
    known = memory.listed()
    with RecallClient(memory.sidecar.target) as client, client.recall_stream() as session:

        def best() -> str:
            if route == "unary":
                return hit_ids(memory.recall(query, ranking=BY_COSINE))[0]
            recall = session.recall if route == "stream" else client.recall
            found = recall(memory.resource_id, query, mode="dense")
            return str(found.hits[0].message.id)

        assert best() == model.ids(query, known, 1)[0]
        words = query.split()
        for number in range(2, 6):
            better = said(f"better{number}", " ".join(words[:number]))
            assert memory.index([better]) == [INDEXED]
            known.append(better)
            assert best() == model.ids(query, known, 1)[0]
        assert best() == "better5"
        memory.forget("better5")
        assert best() == model.ids(query, known[:-1], 1)[0] == "better4"
        memory.index([said("better4", "nothing of the kind")])
        assert best() == model.ids(query, known[:-2], 1)[0]


# LIFE-8 -----------------------------------------------------------------------------------------

STUCK = "a query that never ends"


@pytest.fixture
def narrow(start: Any, tmp_path: Path) -> Iterator[Any]:
    """A server with one recall thread and room for two recalls: whoever stays blocks everybody."""
    with start(tmp_path, recall_threads=1, recalls_in_flight_max=2, index_in_flight_max=32) as made:
        made.sidecar.memory("u").learn(conversation(["oak tree", "pine cone"]))
        yield made


def assert_served(server: Any) -> None:
    """The next recall gets through. A place is given back when the work has really ended."""
    memory = server.sidecar.memory("u")

    def served() -> bool:
        try:
            return hit_ids(memory.recall("oak tree", top_k=1)) == ["m0"]
        except grpc.RpcError as error:
            call: Any = error
            assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return False

    eventually(served)


def test_a_cancelled_recall_stops_and_leaves_the_server_free(narrow: Any) -> None:
    memory = narrow.sidecar.memory("u")
    for number in range(5):
        query = f"{STUCK} {number}"
        gate = narrow.embedder.block_on(query)
        future = narrow.sidecar.service.Recall.future(memory.request(query))
        assert gate.entered.wait(30)
        assert future.cancel()
        assert_served(narrow)
        assert not gate.release.is_set()


def test_a_recall_whose_deadline_passes_stops_and_leaves_the_server_free(narrow: Any) -> None:
    memory = narrow.sidecar.memory("u")
    for number in range(5):
        query = f"{STUCK} {number}"
        narrow.embedder.block_on(query)
        with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
            narrow.sidecar.service.Recall(memory.request(query), timeout=0.2)
        assert_served(narrow)


def test_a_query_that_was_cut_off_can_be_asked_again(narrow: Any) -> None:
    memory = narrow.sidecar.memory("u")
    gate = narrow.embedder.block_on(STUCK)
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        narrow.sidecar.service.Recall(memory.request(STUCK), timeout=0.2)
    gate.release.set()
    assert_served(narrow)
    assert sorted(hit_ids(memory.recall(STUCK))) == ["m0", "m1"]


def test_a_recall_that_waits_its_turn_is_dropped_when_its_caller_leaves(narrow: Any) -> None:
    memory = narrow.sidecar.memory("u")
    gate = narrow.embedder.block_on(STUCK)
    first = narrow.sidecar.service.Recall.future(memory.request(STUCK))
    assert gate.entered.wait(30)
    runs = narrow.embedder.runs
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        narrow.sidecar.service.Recall(memory.request("waits in vain"), timeout=0.2)
    gate.release.set()
    assert len(first.result(timeout=30).messages) == 2
    assert_served(narrow)
    assert "waits in vain" not in narrow.embedder.texts_run[runs:]


def test_one_late_recall_of_a_stream_does_not_hold_up_or_end_it(narrow: Any) -> None:
    memory = narrow.sidecar.memory("u")
    narrow.embedder.block_on(STUCK)
    answers = narrow.sidecar.stream(
        [
            memory.request(STUCK, request_id="late", timeout_ms=200),
            memory.request("oak tree", request_id="fine", top_k=1),
        ]
    )
    assert answers["late"].error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert hit_ids(answers["fine"]) == ["m0"]


def test_a_stream_given_up_stops_its_recalls(narrow: Any) -> None:
    memory = narrow.sidecar.memory("u")
    gate = narrow.embedder.block_on(STUCK)
    never = threading.Event()

    def requests() -> Iterator[recall_pb2.RecallRequest]:
        yield memory.request(STUCK, request_id="1")
        never.wait(30)

    stream = narrow.sidecar.service.RecallStream(requests())
    assert gate.entered.wait(30)
    stream.cancel()
    never.set()
    assert_served(narrow)


def test_an_index_call_whose_deadline_passes_says_what_is_on_disk(narrow: Any) -> None:
    memory = narrow.sidecar.memory("u")
    gate = narrow.embedder.block_on("slow words")
    request = recall_pb2.IndexRequest(
        resource_id="u", thread_id="t", messages=[said("slow", "slow words")]
    )
    answer = narrow.sidecar.service.Index(request, timeout=2)
    assert [r.status for r in answer.results] == [PENDING]
    assert ids(memory.got("slow")) == ["slow"]
    gate.release.set()
    eventually(lambda: memory.stats().pending == 0)
    assert hit_ids(memory.recall("slow words", top_k=1)) == ["slow"]


def test_an_index_call_cancelled_after_the_commit_still_becomes_searchable(narrow: Any) -> None:
    memory = narrow.sidecar.memory("u")
    gate = narrow.embedder.block_on("slow words")
    request = recall_pb2.IndexRequest(
        resource_id="u", thread_id="t", messages=[said("slow", "slow words")]
    )
    future = narrow.sidecar.service.Index.future(request)
    assert gate.entered.wait(30)
    future.cancel()
    assert_served(narrow)
    gate.release.set()
    eventually(lambda: memory.stats().pending == 0)
    assert hit_ids(memory.recall("slow words", top_k=1)) == ["slow"]


# LIFE-9 -----------------------------------------------------------------------------------------


def test_eight_identical_queries_at_once_compute_one_embedding(
    memory: Memory, embedder: FakeEmbedder
) -> None:
    memory.learn(conversation(["oak tree", "pine cone"]))
    query = f"oak {memory.resource_id}"
    gate, runs = embedder.block_on(query), embedder.runs
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(memory.recall, query) for _ in range(8)]
        assert gate.entered.wait(30)
        gate.release.set()
        answers = [future.result(timeout=30) for future in waiting]
    assert embedder.runs == runs + 1
    assert sum(not answer.info.cache_hit for answer in answers) == 1
    assert len({answer.context_text for answer in answers}) == 1


@pytest.mark.model
@pytest.mark.parametrize("route", ["unary", "stream"])
def test_eight_identical_queries_at_once_compute_one_embedding_of_the_real_model(
    real_memory: Memory, route: str
) -> None:
    real_memory.learn(conversation(["oak tree", "pine cone"]))
    for attempt in range(3):
        query = f"where is the oak tree {route} {attempt} {time.time_ns()} " * 8
        if route == "unary":
            request = real_memory.request(query)
            calls = [real_memory.sidecar.service.Recall.future(request) for _ in range(8)]
            answers = [call.result(timeout=DEADLINE_SECONDS) for call in calls]
        else:
            batch = [real_memory.request(query, request_id=f"{i}") for i in range(8)]
            answers = [*real_memory.sidecar.stream(batch).values()]
        assert sum(not answer.info.cache_hit for answer in answers) == 1
        assert len({tuple(scores(answer)) for answer in answers}) == 1
