"""The client for threads, against a sidecar made of a dictionary."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import grpc
import pytest

import semanticrecall as sr
from semanticrecall import (
    IndexBatch,
    Message,
    RecallClient,
    Role,
    Scope,
    Status,
    WhyEmpty,
    assistant,
    user,
)
from semanticrecall.answers import recall_result
from semanticrecall.v1 import recall_pb2, types_pb2
from support.fake_sidecar import NOT_SERVING, Failure, Shelf, explained, fake_sidecar

EVERYTHING = Message(
    role=Role.TOOL,
    text="caf\u00e9 \U0001f415",
    id="m1",
    author="Kim",
    create_time=datetime(2024, 2, 29, 23, 59, 59, 123456, UTC),
    extra_ns=789,
    metadata={
        "n": 3,
        "x": 0.5,
        "yes": True,
        "none": None,
        "list": [1, "a", {"deep": []}],
        "object": {"empty": {}},
        "big": 2**53,
    },
    payload=b"\x00\xff",
    payload_type="application/octet-stream",
    group_id="g1",
)


def test_five_lines_from_import_to_recalled_message(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEMANTICRECALL_ADDRESS", address)
    lines = sr.__doc__.split("\n\n", 1)[1] if sr.__doc__ else ""
    assert len(lines.strip().splitlines()) == 5
    exec(lines)
    assert capsys.readouterr().out == "0.20000000298023224 My dog Rex is allergic to chicken\n"


def test_a_message_comes_back_as_it_went(memory: RecallClient) -> None:
    memory.index("u", "t", [EVERYTHING])
    (back,) = memory.get_messages("u", ["m1"])
    assert back == Message(
        role=EVERYTHING.role,
        text=EVERYTHING.text,
        id="m1",
        author="Kim",
        create_time=EVERYTHING.create_time,
        extra_ns=789,
        metadata=EVERYTHING.metadata,
        payload=EVERYTHING.payload,
        payload_type=EVERYTHING.payload_type,
        group_id="g1",
        thread_id="t",
        resource_id="u",
    )
    assert type(back.metadata["n"]) is int


@pytest.mark.parametrize(
    ("moment", "seconds", "nanos"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0, 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), -1, 999_999_000),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0, 0),
        (datetime(2261, 12, 31, 23, 59, 59, tzinfo=UTC), 9_214_646_399, 0),
        (datetime(1678, 1, 1, tzinfo=UTC), -9_214_560_000, 0),
    ],
)
def test_times_are_exact(
    memory: RecallClient, shelf: Shelf, moment: datetime, seconds: int, nanos: int
) -> None:
    memory.index("u", "t", [user("x", id="a", create_time=moment)])
    stored = shelf.messages[("u", "a")].create_time
    assert (stored.seconds, stored.nanos) == (seconds, nanos)
    (back,) = memory.get_messages("u", ["a"])
    assert back.create_time == moment


def test_an_id_is_made_once_for_an_object(memory: RecallClient, shelf: Shelf) -> None:
    said = user("once")
    first = memory.index("u", "t", [said])
    again = memory.index("u", "t", [said])
    assert [o.status for o in first.outcomes + again.outcomes] == [
        Status.INDEXED,
        Status.UNCHANGED,
    ]
    assert len(shelf.messages) == 1
    assert user("once").id != said.id


def test_every_option_of_recall_reaches_the_wire(memory: RecallClient, shelf: Shelf) -> None:
    memory.recall(
        "u",
        "q",
        thread_id="t",
        scope=Scope.THREAD,
        top_k=7,
        message_range=(2, 3),
        threshold=-0.25,
        filter={"a": {"$in": [1, 2]}},
        roles=[Role.USER, Role.TOOL],
        create_time_from=datetime(2024, 1, 1, tzinfo=UTC),
        create_time_to=datetime(2024, 1, 2, tzinfo=UTC),
        exclude_message_ids=["x", "y"],
        mode=sr.Mode.DENSE,
        recency_weight=0.5,
        recency_half_life=timedelta(days=1),
        diversity=0.25,
        near_duplicate_cosine=0.75,
        max_tokens=100,
        context_format=sr.ContextFormat.NONE,
        context_other_threads_only=True,
        time_zone="Europe/Berlin",
        explain=True,
        read_token="r",
        query_embedding=[0.5, 0.25],
        alternative_queries=["p"],
    )
    expected = recall_pb2.RecallRequest(
        resource_id="u",
        query="q",
        thread_id="t",
        scope=types_pb2.SCOPE_THREAD,
        top_k=7,
        message_range=recall_pb2.MessageRange(before=2, after=3),
        threshold=-0.25,
        roles=[types_pb2.ROLE_USER, types_pb2.ROLE_TOOL],
        exclude_message_ids=["x", "y"],
        ranking=recall_pb2.Ranking(
            mode=types_pb2.MODE_DENSE,
            recency_weight=0.5,
            diversity=0.25,
            near_duplicate_cosine=0.75,
        ),
        max_tokens=100,
        context_format=types_pb2.CONTEXT_NONE,
        context_other_threads_only=True,
        time_zone="Europe/Berlin",
        explain=True,
        read_token="r",
        query_embedding=[0.5, 0.25],
        alternative_queries=["p"],
    )
    expected.ranking.recency_half_life.seconds = 86_400
    expected.filter.update({"a": {"$in": [1, 2]}})
    expected.create_time_from.seconds = 1_704_067_200
    expected.create_time_to.seconds = 1_704_153_600
    assert shelf.seen[0].request == expected
    named = {descriptor.name for descriptor, _ in expected.ListFields()}
    not_options = {"request_id", "timeout_ms"}
    assert named | not_options == {f.name for f in recall_pb2.RecallRequest.DESCRIPTOR.fields}
    ranked = {descriptor.name for descriptor, _ in expected.ranking.ListFields()}
    assert ranked == {f.name for f in recall_pb2.Ranking.DESCRIPTOR.fields}


def test_everything_of_an_answer_is_read() -> None:
    """Every field that an answer has on the wire is set, and comes out where it belongs."""
    explain = explained(0.5, 7)
    wire = recall_pb2.RecallResponse(
        request_id="r",
        context_text="context",
        messages=[
            recall_pb2.RecalledMessage(
                message=types_pb2.Message(id="m", role=types_pb2.ROLE_USER, text="x"),
                hit=True,
                score=0.5,
                rank=1,
                explain=explain,
                group_state=types_pb2.GROUP_STATE_WHOLE,
                relevance=2.5,
                lexical_only=True,
                text_cut=True,
            )
        ],
        excluded=[
            recall_pb2.ExcludedCandidate(
                message_id="e",
                thread_id="t",
                reason=recall_pb2.EXCLUDED_REASON_NEAR_DUPLICATE,
                rank=9,
                relevance=1.5,
                explain=explain,
                near_duplicate_of="m",
            )
        ],
    )
    for number, field in enumerate(recall_pb2.RecallTimings.DESCRIPTOR.fields, 1):
        setattr(wire.info.timings, field.name, number)
    for name in ("tokens", "context_tokens", "messages_dropped_for_tokens"):
        setattr(wire.info, name, len(name))
    wire.info.context_did_not_fit = True
    result = recall_result(wire)
    (hit,), (excluded,) = result.messages, result.excluded
    assert (hit.score, hit.rank, hit.relevance) == (0.5, 1, 2.5)
    assert (hit.lexical_only, hit.text_cut, hit.group_state) == (True, True, sr.GroupState.WHOLE)
    named = {f.name: getattr(explain, f.name) for f in recall_pb2.Explain.DESCRIPTOR.fields}
    assert hit.explain is not None
    assert dataclasses.asdict(hit.explain) == named
    assert dataclasses.asdict(excluded) == {
        "message_id": "e",
        "thread_id": "t",
        "reason": sr.ExcludedReason.NEAR_DUPLICATE,
        "rank": 9,
        "relevance": 1.5,
        "explain": named,
        "near_duplicate_of": "m",
    }
    assert dataclasses.asdict(result.info.timings) == {
        field.name: number
        for number, field in enumerate(recall_pb2.RecallTimings.DESCRIPTOR.fields, 1)
    }
    info = result.info
    assert (info.tokens, info.context_tokens, info.messages_dropped_for_tokens) == (6, 14, 27)
    assert info.context_did_not_fit
    bare = recall_result(recall_pb2.RecallResponse(messages=[recall_pb2.RecalledMessage()]))
    assert (bare[0].score, bare[0].relevance, bare[0].explain) == (None, None, None)
    assert bare.excluded == ()


def test_what_the_sidecar_explains_arrives_by_every_way(memory: RecallClient) -> None:
    memory.index("u", "t", [user("red", id="a"), user("red green", id="b")])
    with memory.recall_stream() as session:
        answers = [
            memory.recall("u", "red green", top_k=1, explain=True),
            session.recall("u", "red green", top_k=1, explain=True),
        ]
    for result in answers:
        assert [(m.message.id, m.relevance) for m in result.hits] == [("b", 2.0)]
        assert [(e.message_id, e.rank, e.relevance) for e in result.excluded] == [("a", 2, 1.0)]
        assert result.hits[0].explain is not None
        assert (result.hits[0].explain.bm25, result.excluded[0].explain.bm25) == (2.5, 2.5)
    assert memory.recall("u", "red green", top_k=1).excluded == ()


def test_options_that_are_not_given_are_not_sent(memory: RecallClient, shelf: Shelf) -> None:
    memory.recall("u", "q")
    assert shelf.seen[0].request == recall_pb2.RecallRequest(resource_id="u", query="q")


def test_a_misspelt_option_is_a_type_error(memory: RecallClient) -> None:
    with pytest.raises(TypeError, match="topk"):
        memory.recall("u", "q", topk=3)  # type: ignore[call-arg]


def test_hits_by_rank_and_messages_in_order(memory: RecallClient) -> None:
    memory.index("u", "t", [user("red", id="a"), user("red green", id="b"), user("blue", id="c")])
    result = memory.recall("u", "red green")
    assert [(m.message.id, m.score, m.rank) for m in result.hits] == [("b", 1.0, 1), ("a", 0.5, 2)]
    assert [m.message.id for m in result] == [m.message.id for m in result.messages]
    assert (len(result), result[0].hit, result.degraded) == (2, True, "")
    assert result.info.timings.total_us == 1500
    assert memory.recall("u", "").info.why_empty is WhyEmpty.NO_QUERY


def test_nothing_is_kept_between_recalls(memory: RecallClient) -> None:
    memory.index("u", "t1", [user("red one", id="a")])
    memory.index("u", "t2", [user("red two", id="b")])
    before = dict(vars(memory))
    first = memory.recall("u", "red", thread_id="t1", scope=Scope.THREAD)
    second = memory.recall("u", "red", thread_id="t2", scope=Scope.THREAD)
    assert [m.message.id for m in first] == ["a"]
    assert [m.message.id for m in second] == ["b"]
    assert vars(memory) == before


def test_a_rejected_message_is_told(memory: RecallClient, caplog: pytest.LogCaptureFixture) -> None:
    result = memory.index("u", "t", [user("secret words", id=""), user("fine", id="b")])
    assert [o.status for o in result.outcomes] == [Status.REJECTED, Status.INDEXED]
    assert "messages[0].id" in caplog.text
    assert "secret" not in caplog.text
    with pytest.raises(sr.InvalidArgumentError, match=r"messages\[0\]\.id") as caught:
        result.raise_for_rejected()
    assert caught.value.violations == (sr.FieldViolation("messages[0].id", "must not be empty"),)


def test_index_carries_metadata_for_all_and_wait(memory: RecallClient, shelf: Shelf) -> None:
    memory.index("u", "t", [user("x")], wait=sr.Wait.DURABLE, metadata={"project": "A"})
    request = shelf.seen[0].request
    assert isinstance(request, recall_pb2.IndexRequest)
    assert request.wait == types_pb2.WAIT_DURABLE
    assert dict(request.metadata) == {"project": "A"}


def test_index_stream_answers_each_batch_in_order(memory: RecallClient, shelf: Shelf) -> None:
    batches = [
        IndexBatch("u", "t", [user("one", id="1"), user("two", id="2")]),
        IndexBatch("", "t", [user("lost", id="3")]),
        IndexBatch("u", "t", [assistant("three", id="4")]),
    ]
    answers = list(memory.index_stream(iter(batches)))
    assert [len(a.outcomes) for a in answers] == [2, 0, 1]
    assert isinstance(answers[1].error, sr.InvalidArgumentError)
    with pytest.raises(sr.InvalidArgumentError):
        answers[1].raise_for_rejected()
    assert {key[1] for key in shelf.messages} == {"1", "2", "4"}


def test_what_the_batches_raise_is_raised(memory: RecallClient) -> None:
    def batches() -> Iterator[IndexBatch]:
        yield IndexBatch("u", "t", [user("one")])
        raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        list(memory.index_stream(batches()))


def test_forget_in_four_ways(memory: RecallClient, shelf: Shelf) -> None:
    for number in range(6):
        moment = datetime(2024, 1, 1 + number, tzinfo=UTC)
        memory.index("u", f"t{number % 2}", [user("x", id=str(number), create_time=moment)])
    memory.index("v", "t0", [user("x", id="foreign")])
    assert memory.forget_messages("u", ["0", "unknown"]).messages == 1
    assert memory.forget_thread("u", "t1").messages == 3
    assert memory.forget_before("u", datetime(2024, 1, 4, tzinfo=UTC)).messages == 1
    assert memory.forget_everything("u").messages == 1
    assert list(shelf.messages) == [("v", "foreign")]


def test_listing_goes_through_all_pages(memory: RecallClient, shelf: Shelf) -> None:
    memory.index("u", "t", [user("x", id=str(n)) for n in range(8)])
    shelf.seen.clear()
    assert [m.id for m in memory.list_messages("u")] == list("01234567")
    assert len(shelf.seen) == 3
    newest = memory.list_messages("u", newest_first=True, limit=4, thread_id="t")
    assert [m.id for m in newest] == list("7654")


def test_listing_fetches_no_page_that_nobody_reads(memory: RecallClient, shelf: Shelf) -> None:
    memory.index("u", "t", [user("x", id=str(n)) for n in range(8)])
    shelf.seen.clear()
    listing = memory.list_messages("u")
    assert shelf.seen == []
    assert next(listing).id == "0"
    assert len(shelf.seen) == 1


def test_threads_through_all_pages(memory: RecallClient) -> None:
    for number in range(5):
        memory.index("u", f"t{number}", [user("x")])
    assert [t.thread_id for t in memory.list_threads("u")] == ["t0", "t1", "t2", "t3", "t4"]


def test_transfer_and_export(memory: RecallClient) -> None:
    memory.index("u", "t", [user("one", id="1"), user("two", id="2")])
    assert memory.transfer_thread("u", "t", "v") == 2
    assert list(memory.export("u")) == []
    assert [(m.resource_id, m.id) for m in memory.export("v")] == [("v", "1"), ("v", "2")]


def test_embed_and_stats(memory: RecallClient) -> None:
    memory.index("u", "t", [user("fine", id="1"), user("broken", id="2")])
    vectors = memory.embed(["a b", "c"], role=sr.EmbedRole.QUERY)
    assert [(e.values, e.tokens) for e in vectors.embeddings] == [((1.0, 0.0), 4), ((1.0, 0.0), 3)]
    assert (vectors.dimensions, vectors.index_identity) == (2, "fake@1/2")
    assert (memory.stats().messages, memory.stats("v").messages) == (2, 0)
    assert memory.stats().cache.hits == 5


def test_what_the_server_lacks_says_so(memory: RecallClient, shelf: Shelf) -> None:
    shelf.failures = [Failure(grpc.StatusCode.UNIMPLEMENTED)]
    with pytest.raises(sr.UnimplementedError):
        memory.list_snapshots()


def test_one_string_is_not_a_list_of_ids(memory: RecallClient) -> None:
    for call in (memory.forget_messages, memory.get_messages):
        with pytest.raises(sr.InvalidArgumentError, match="not one string"):
            call("u", "m1")
    with pytest.raises(sr.InvalidArgumentError, match="not one string"):
        memory.embed("text")


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"n": float("nan")}, "metadata.n"),
        ({"n": [1, float("inf")]}, r"metadata.n\[1\]"),
        ({"id": 2**53 + 1}, "metadata.id"),
        ({"a": {"b": object()}}, "metadata.a.b"),
    ],
)
def test_metadata_that_would_not_come_back_is_refused(
    memory: RecallClient, shelf: Shelf, metadata: dict[str, sr.values.JsonValue], path: str
) -> None:
    with pytest.raises(sr.InvalidArgumentError, match=rf"^messages\[1\]: {path}: "):
        memory.index("u", "t", [user("fine"), user("x", metadata=metadata)])
    assert shelf.seen == []


def test_text_that_utf8_cannot_carry_is_refused(memory: RecallClient) -> None:
    with pytest.raises(sr.InvalidArgumentError, match=r"messages\[0\].*surrogate"):
        memory.index("u", "t", [user("half \ud83d")])
    with pytest.raises(sr.InvalidArgumentError, match="surrogate"):
        memory.recall("u", "half \ud83d")
    with pytest.raises(sr.InvalidArgumentError, match="top_k: must be 1 or more"):
        memory.recall("u", "q", top_k=-1)


def test_a_time_without_a_zone_is_refused(memory: RecallClient) -> None:
    naive = datetime(2024, 1, 1)
    with pytest.raises(sr.InvalidArgumentError, match="create_time: needs a time zone"):
        user("x", create_time=naive)
    with pytest.raises(sr.InvalidArgumentError, match="create_time_from: needs a time zone"):
        memory.recall("u", "q", create_time_from=naive)
    with pytest.raises(sr.InvalidArgumentError, match="create_time_before: needs a time zone"):
        memory.forget_before("u", naive)


def test_a_deadline_for_the_client_and_for_a_call(memory: RecallClient, shelf: Shelf) -> None:
    memory.stats()
    memory.stats(timeout=60)
    # The server counts from its own clock, rounded up.
    assert 25 < shelf.seen[0].seconds_left < 31
    assert 55 < shelf.seen[1].seconds_left < 61
    with pytest.raises(sr.InvalidArgumentError, match="timeout"):
        memory.stats(timeout=0)


def test_a_call_ends_with_its_deadline(memory: RecallClient, shelf: Shelf) -> None:
    shelf.hold = threading.Event()
    with pytest.raises(sr.DeadlineExceededError) as caught:
        memory.stats(timeout=0.1)
    assert caught.value.retryable
    assert shelf.cancelled.wait(10)


def test_the_token_goes_with_every_call(address: str, shelf: Shelf) -> None:
    with RecallClient(address, token="t0ken") as memory:
        memory.recall("u", "q")
        list(memory.export("u"))
        list(memory.index_stream([IndexBatch("u", "t", [user("x")])]))
        with memory.recall_stream() as session:
            session.recall("u", "q")
    assert [call.metadata["authorization"] for call in shelf.seen] == ["Bearer t0ken"] * 4


def test_a_stream_left_half_way_is_cancelled(memory: RecallClient, shelf: Shelf) -> None:
    memory.index("u", "t", [user("x", id=str(n)) for n in range(3)])
    shelf.cancelled.clear()
    export = memory.export("u")
    assert next(export).id == "0"
    export.close()  # type: ignore[attr-defined]
    assert shelf.cancelled.wait(10)


def test_health(memory: RecallClient, shelf: Shelf) -> None:
    assert memory.is_serving()
    shelf.health = NOT_SERVING
    assert not memory.is_serving()


def test_tcp_works_as_well(shelf: Shelf) -> None:
    with fake_sidecar("127.0.0.1:0", shelf) as address, RecallClient(address) as memory:
        assert memory.address == address
        assert memory.index("u", "t", [user("x")]).outcomes[0].status is Status.INDEXED
