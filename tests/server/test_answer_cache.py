"""Answers kept for the same recall: given again only while they would be the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_server import answers, convert
from semanticrecall_server.answer_cache import (
    ANSWERS_OF_A_RESOURCE_MAX,
    RESOURCE_OVERHEAD_BYTES,
    AnswerCache,
    KeptAnswer,
    request_key,
)
from semanticrecall_server.assembly import default_parts
from support.fake_embedder import FakeEmbedder
from support.running_server import InProcessServer, running

QUERY = "what does the dog eat"
WORDS = ("dog", "turkey", "train", "Lisbon", "piano", "rain", "sister", "Tuesday")


def _recall(resource_id: str = "alice", query: str = QUERY, **fields: Any) -> Any:
    return recall_pb2.RecallRequest(resource_id=resource_id, query=query, **fields)


def _index(server: InProcessServer, message_id: str, text: str, resource_id: str = "alice") -> Any:
    return server.recall.Index(
        recall_pb2.IndexRequest(
            resource_id=resource_id,
            thread_id="t1",
            messages=[types_pb2.Message(id=message_id, role=types_pb2.ROLE_USER, text=text)],
        )
    )


def _ids(answer: Any) -> list[str]:
    return [recalled.message.id for recalled in answer.messages]


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[InProcessServer]:
    """A server with a store of its own and the deterministic embedder."""
    with running(tmp_path, default_parts(lambda _: FakeEmbedder())) as serving:
        _index(serving, "m1", "the dog eats turkey")
        yield serving


# At the wire ------------------------------------------------------------------------------------


def test_the_same_recall_is_answered_again_without_a_search(sidecar: InProcessServer) -> None:
    first = sidecar.recall.Recall(_recall(request_id="a", explain=True))
    again = sidecar.recall.Recall(_recall(request_id="b", explain=True, timeout_ms=5000))
    assert not first.info.answer_cache_hit
    assert again.info.answer_cache_hit
    assert again.info.cache_hit
    assert (first.request_id, again.request_id) == ("a", "b")
    assert _ids(again) == ["m1"]
    assert again.info.timings.search_us == 0
    for answer in (first, again):
        answer.ClearField("request_id")
        answer.info.ClearField("timings")
        answer.info.ClearField("cache_hit")
        answer.info.ClearField("answer_cache_hit")
    assert again == first


@pytest.mark.parametrize(
    "other",
    [
        {"query": "what does the cat eat"},
        {"top_k": 2},
        {"explain": True},
        {"resource_id": "bob"},
        {"context_format": types_pb2.CONTEXT_NONE},
        {"exclude_message_ids": ["m1"]},
        {"threshold": 0.5},
        {"thread_id": "t2"},
        {"ranking": {"mode": types_pb2.MODE_DENSE}},
        {"ranking": {"mode": types_pb2.MODE_HYBRID}},
        {"alternative_queries": ["what is its food"]},
        {"max_tokens": 100},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_another_request_is_another_answer(sidecar: InProcessServer, other: dict[str, Any]) -> None:
    sidecar.recall.Recall(_recall())
    assert not sidecar.recall.Recall(_recall(**other)).info.answer_cache_hit


def _added(server: InProcessServer) -> None:
    _index(server, "m2", "the dog eats fish on Tuesday")


def _edited(server: InProcessServer) -> None:
    _index(server, "m1", "the dog eats nothing")


def _forgotten(server: InProcessServer) -> None:
    ids = recall_pb2.MessageIds(ids=["m1"])
    server.recall.Forget(recall_pb2.ForgetRequest(resource_id="alice", message_ids=ids))


def _given_away(server: InProcessServer) -> None:
    server.recall.TransferThread(
        recall_pb2.TransferThreadRequest(resource_id="alice", thread_id="t1", to_resource_id="bob")
    )


@pytest.mark.parametrize("change", [_added, _edited, _forgotten, _given_away])
def test_a_change_of_the_resource_ends_its_answers(
    sidecar: InProcessServer, change: Callable[[InProcessServer], None]
) -> None:
    before = sidecar.recall.Recall(_recall())
    change(sidecar)
    after = sidecar.recall.Recall(_recall())
    assert not after.info.answer_cache_hit
    assert after.messages != before.messages


def test_an_answer_that_depends_on_the_clock_is_not_given_again(sidecar: InProcessServer) -> None:
    ranking = {"ranking": {"recency_weight": 0.5}}
    assert _ids(sidecar.recall.Recall(_recall(**ranking))) == ["m1"]
    assert not sidecar.recall.Recall(_recall(**ranking)).info.answer_cache_hit


def test_a_hit_by_words_alone_ends_when_its_vector_is_there(tmp_path: Path) -> None:
    embedder = FakeEmbedder()
    held = embedder.block_on("the dog eats fish")
    with running(tmp_path, default_parts(lambda _: embedder)) as server:
        message = types_pb2.Message(id="m2", role=types_pb2.ROLE_USER, text="the dog eats fish")
        index = recall_pb2.IndexRequest(
            resource_id="alice", thread_id="t1", messages=[message], wait=types_pb2.WAIT_DURABLE
        )
        token = server.recall.Index(index).read_token
        first, again = (server.recall.Recall(_recall()) for _ in range(2))
        assert (first.info.answer_cache_hit, again.info.answer_cache_hit) == (False, True)
        for answer in (first, again):
            (hit,) = answer.messages
            assert (hit.message.id, hit.lexical_only, hit.HasField("score")) == ("m2", True, False)
            assert answer.info.pending == 1
        held.release.set()
        (hit,) = server.recall.Recall(_recall(read_token=token)).messages
        assert (hit.message.id, hit.lexical_only, hit.HasField("score")) == ("m2", False, True)


def test_who_receives_a_thread_finds_it_at_once(sidecar: InProcessServer) -> None:
    assert _ids(sidecar.recall.Recall(_recall("bob"))) == []
    _given_away(sidecar)
    assert _ids(sidecar.recall.Recall(_recall("bob"))) == ["m1"]


def test_a_change_of_another_resource_ends_nothing(sidecar: InProcessServer) -> None:
    sidecar.recall.Recall(_recall())
    _index(sidecar, "m1", "the dog eats soap", "bob")
    assert sidecar.recall.Recall(_recall()).info.answer_cache_hit


def test_a_read_token_of_the_past_needs_no_search_and_a_foreign_one_is_refused(
    sidecar: InProcessServer,
) -> None:
    token = _index(sidecar, "m2", "the dog sleeps").read_token
    sidecar.recall.Recall(_recall())
    assert sidecar.recall.Recall(_recall(read_token=token)).info.answer_cache_hit
    foreign = _index(sidecar, "m1", "a cat", "bob").read_token
    with pytest.raises(Exception, match="read_token"):
        sidecar.recall.Recall(_recall(read_token=foreign))


def test_a_token_that_is_ready_by_now_gets_no_answer_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token's message becomes searchable while the request is looked at."""
    embedder = FakeEmbedder()
    held = embedder.block_on("the dog eats fish")
    looked_at = convert.envelope_faults
    dense: dict[str, Any] = {"ranking": {"mode": types_pb2.MODE_DENSE}}
    with running(tmp_path, default_parts(lambda _: embedder)) as server:

        def looked_at_slowly(request: recall_pb2.RecallRequest) -> Any:
            if request.read_token:
                held.release.set()
                server.wait_until(lambda: server.reading("pending_messages") == 0)
            return looked_at(request)

        index = recall_pb2.IndexRequest(
            resource_id="alice",
            thread_id="t1",
            messages=[
                types_pb2.Message(id="m2", role=types_pb2.ROLE_USER, text="the dog eats fish")
            ],
            wait=types_pb2.WAIT_DURABLE,
        )
        token = server.recall.Index(index).read_token
        assert _ids(server.recall.Recall(_recall(**dense))) == []
        monkeypatch.setattr(convert, "envelope_faults", looked_at_slowly)
        assert _ids(server.recall.Recall(_recall(read_token=token, **dense))) == ["m2"]


def test_faults_beside_the_question_are_still_refused(sidecar: InProcessServer) -> None:
    sidecar.recall.Recall(_recall())
    for fault in ({"request_id": "a\nb"}, {"timeout_ms": 2**31}):
        with pytest.raises(Exception, match=next(iter(fault))):
            sidecar.recall.Recall(_recall(**fault))


def test_a_stream_gives_answers_again_with_the_ids_of_its_requests(
    sidecar: InProcessServer,
) -> None:
    requests = [_recall(request_id=str(number)) for number in range(20)]
    first = next(sidecar.recall.RecallStream(iter(requests[:1])))
    answers = list(sidecar.recall.RecallStream(iter(requests)))
    assert sorted(int(answer.request_id) for answer in answers) == list(range(20))
    assert all(answer.info.answer_cache_hit for answer in answers)
    assert all(answer.messages == first.messages for answer in answers)
    unnamed = next(sidecar.recall.RecallStream(iter([_recall()])))
    assert unnamed.error.reason == "FIELD_INVALID"


def test_no_room_keeps_nothing(tmp_path: Path) -> None:
    parts = default_parts(lambda _: FakeEmbedder())
    with running(tmp_path, parts, answer_cache_bytes_max=0) as server:
        _index(server, "m1", "the dog eats turkey")
        server.recall.Recall(_recall())
        assert not server.recall.Recall(_recall()).info.answer_cache_hit


@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_keeps_answers_says_what_one_without_says(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folders = [tmp_path / "keeps", tmp_path / "plain"]
    for folder in folders:
        folder.mkdir()
    parts = [default_parts(lambda _: FakeEmbedder()) for _ in folders]
    with (
        running(folders[0], parts[0]) as keeps,
        running(folders[1], parts[1], answer_cache_bytes_max=0) as plain,
    ):
        repeated = 0
        for number in range(150):
            call = _random_call(chance, number)
            kept, found = call(keeps), call(plain)
            if isinstance(kept, recall_pb2.RecallResponse):
                repeated += kept.info.answer_cache_hit
                assert _comparable(kept) == _comparable(found)
        assert repeated > 0


def _random_call(chance: random.Random, number: int) -> Callable[[InProcessServer], Any]:
    resource, other = chance.sample(("alice", "bob", "Alice"), 2)
    kind = chance.random()
    text = " ".join(chance.sample(WORDS, 3))
    if kind < 0.6:
        request = _recall(resource, chance.choice(WORDS), top_k=2)
        return lambda server: server.recall.Recall(request)
    if kind < 0.9:
        message_id = f"{resource}-m{chance.randrange(12)}"
        stamp = 1_700_000_000 + number
        message = types_pb2.Message(id=message_id, role=types_pb2.ROLE_USER, text=text)
        message.create_time.seconds = stamp
        index = recall_pb2.IndexRequest(
            resource_id=resource, thread_id=f"{resource}-t{chance.randrange(2)}", messages=[message]
        )
        return lambda server: server.recall.Index(index)
    if kind < 0.97:
        ids = recall_pb2.MessageIds(ids=[f"{resource}-m{chance.randrange(12)}"])
        forget = recall_pb2.ForgetRequest(resource_id=resource, message_ids=ids)
        return lambda server: server.recall.Forget(forget)
    thread = f"{resource}-t{chance.randrange(2)}"
    return lambda server: _transferred(server, resource, thread, other)


def _transferred(server: InProcessServer, resource: str, thread: str, other: str) -> None:
    request = recall_pb2.TransferThreadRequest(
        resource_id=resource, thread_id=thread, to_resource_id=other
    )
    try:
        server.recall.TransferThread(request)
    except grpc.RpcError as error:
        status: Any = error
        assert status.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS)


def _comparable(answer: recall_pb2.RecallResponse) -> recall_pb2.RecallResponse:
    copy = recall_pb2.RecallResponse()
    copy.CopyFrom(answer)
    for name in ("timings", "cache_hit", "answer_cache_hit"):
        copy.info.ClearField(name)
    return copy


def test_a_recall_after_an_index_sees_it_however_many_ask(sidecar: InProcessServer) -> None:
    """Readers repeat one recall while a writer forgets and indexes: no answer is out of date."""
    stop = threading.Event()
    wrong: list[str] = []

    def ask() -> None:
        while not stop.is_set():
            sidecar.recall.Recall(_recall())

    readers = [threading.Thread(target=ask) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(40):
            _index(sidecar, "m1", f"the dog eats turkey {number}")
            answer = sidecar.recall.Recall(_recall())
            if answer.messages[0].message.text != f"the dog eats turkey {number}":
                wrong.append(f"index {number}")
            _forgotten(sidecar)
            if _ids(sidecar.recall.Recall(_recall())):
                wrong.append(f"forget {number}")
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []


# The cache by itself ----------------------------------------------------------------------------

ANSWER = KeptAnswer(b"messages", b"info")


def test_an_answer_begun_before_a_change_is_not_kept() -> None:
    cache = AnswerCache(1 << 20)
    place = cache.begin("alice")
    cache.resource_changed("alice")
    cache.put(place, b"k", ANSWER)
    assert cache.get("alice", b"k") is None
    assert cache.stats().bytes == 0


def test_room_is_kept_by_dropping_the_resources_used_least_recently() -> None:
    size = RESOURCE_OVERHEAD_BYTES + ANSWER.nbytes()
    cache = AnswerCache(20 * size)
    for number in range(20):
        cache.put(cache.begin(f"r{number}"), b"k", ANSWER)
    assert cache.get("r0", b"k") == ANSWER
    cache.put(cache.begin("r20"), b"k", ANSWER)
    assert cache.get("r0", b"k") == ANSWER
    assert cache.get("r1", b"k") is None
    assert cache.stats().bytes <= 20 * size


def test_a_resource_keeps_so_many_answers() -> None:
    cache = AnswerCache(1 << 20)
    place = cache.begin("alice")
    for number in range(ANSWERS_OF_A_RESOURCE_MAX + 1):
        cache.put(place, b"%d" % number, ANSWER)
    assert cache.stats().answers == ANSWERS_OF_A_RESOURCE_MAX
    assert cache.get("alice", b"0") is None


def test_a_large_answer_is_not_kept() -> None:
    cache = AnswerCache(1 << 20)
    cache.put(cache.begin("alice"), b"k", KeptAnswer(bytes(1 << 18), b""))
    assert cache.get("alice", b"k") is None


def _leaves(descriptor: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the fields that hold a value."""
    for field in descriptor.fields:
        if field.message_type is None:
            yield (*path, field.name)
        elif field.message_type.full_name != "google.protobuf.Struct":
            yield from _leaves(field.message_type, (*path, field.name))


@pytest.mark.parametrize("path", list(_leaves(recall_pb2.RecallRequest.DESCRIPTOR)), ids=".".join)
def test_every_field_that_may_change_an_answer_is_in_the_key(path: tuple[str, ...]) -> None:
    request = recall_pb2.RecallRequest()
    target: Any = request
    for name in path[:-1]:
        target = getattr(target, name)
    value = getattr(target, path[-1])
    if isinstance(value, str | bool | int | float):
        setattr(target, path[-1], type(value)(1))
    else:
        field = target.DESCRIPTOR.fields_by_name[path[-1]]
        value.append("1" if field.cpp_type == field.CPPTYPE_STRING else 1)
    beside = path[0] in ("request_id", "timeout_ms", "read_token")
    assert (request_key(request) == request_key(recall_pb2.RecallRequest())) == beside


def test_a_key_leaves_out_what_says_nothing_about_the_answer_and_the_request_as_it_was() -> None:
    request = _recall(request_id="x", timeout_ms=9, read_token="t")
    copy = recall_pb2.RecallRequest.FromString(request.SerializeToString())
    assert request_key(request) == request_key(_recall())
    assert request == copy
    assert request_key(_recall(query="other")) != request_key(_recall())
    request.filter.update({"a": 1})
    assert request_key(request) != request_key(_recall())


@pytest.mark.parametrize("pending", [0, 1, 127, 128, 2**40])
@pytest.mark.parametrize("total_us", [0, 5, 300, 2**32 - 1])
@pytest.mark.parametrize("request_id", ["", "r", "\u00e9" * 100])
def test_an_answer_put_together_by_hand_is_read_as_it_is_meant(
    request_id: str, total_us: int, pending: int
) -> None:
    kept = KeptAnswer(
        recall_pb2.RecallResponse(context_text="context").SerializeToString(),
        recall_pb2.RecallInfo(candidates=3).SerializeToString(),
    )
    again = answers.recall_bytes(request_id, kept, answers.repeated_info(pending, total_us))
    assert recall_pb2.RecallResponse.FromString(again) == recall_pb2.RecallResponse(
        request_id=request_id,
        context_text="context",
        info=recall_pb2.RecallInfo(
            candidates=3,
            cache_hit=True,
            answer_cache_hit=True,
            pending=pending,
            timings=recall_pb2.RecallTimings(total_us=total_us),
        ),
    )
