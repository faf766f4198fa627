"""The calls that care for a store, by both clients: what is sent, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

import semanticrecall as sr
from semanticrecall import AsyncRecallClient, MessageVectors, RecallClient, user
from semanticrecall.v1 import recall_pb2, types_pb2
from support.fake_sidecar import PURGE_DUE_SECONDS, Failure, Shelf

DUE = datetime.fromtimestamp(PURGE_DUE_SECONDS, UTC)
DAY = datetime(2024, 5, 1, tzinfo=UTC)

Call = Callable[..., Any]


@pytest.fixture(params=["for threads", "for asyncio"])
def call(request: pytest.FixtureRequest, address: str) -> Call:
    """Calls a method of a client by name; what it streams comes as a list."""

    def of_threads(name: str, *arguments: object, **options: object) -> Any:
        with RecallClient(address, timeout=30, fail_open=False) as memory:
            answer = getattr(memory, name)(*arguments, **options)
            return list(answer) if hasattr(answer, "__next__") else answer

    async def awaited(name: str, *arguments: object, **options: object) -> Any:
        async with AsyncRecallClient(address, timeout=30, fail_open=False) as memory:
            answer = getattr(memory, name)(*arguments, **options)
            if hasattr(answer, "__anext__"):
                return [item async for item in answer]
            return await answer

    def of_asyncio(name: str, *arguments: object, **options: object) -> Any:
        return asyncio.run(awaited(name, *arguments, **options))

    return of_threads if request.param == "for threads" else of_asyncio


# --- forgetting --------------------------------------------------------------------------------


def test_forget_sends_all_conditions(call: Call, shelf: Shelf) -> None:
    until = datetime(2024, 5, 8, tzinfo=UTC)
    call(
        "forget",
        "u",
        thread_id="t",
        authors=["Mallory", "Eve"],
        create_time_from=DAY,
        create_time_to=until,
        roles=["user", sr.Role.TOOL],
        purge=True,
    )
    expected = recall_pb2.ForgetRequest(resource_id="u", purge=True)
    expected.condition.thread_id = "t"
    expected.condition.authors.extend(["Mallory", "Eve"])
    expected.condition.create_time_from.FromDatetime(DAY)
    expected.condition.create_time_to.FromDatetime(until)
    expected.condition.roles.extend([types_pb2.ROLE_USER, types_pb2.ROLE_TOOL])
    assert [seen.request for seen in shelf.seen] == [expected]


def test_what_is_forgotten_and_when_it_is_gone(call: Call, shelf: Shelf) -> None:
    said = [user("a", id="1", author="Mallory"), user("b", id="2", author="Kim")]
    call("index", "u", "t", said)
    call("create_snapshot")
    assert call("forget", "u", authors=["Mallory"]) == sr.ForgetResult(
        messages=1,
        vectors=1,
        threads=0,
        cache_entries=0,
        purged=False,
        purge_due_time=DUE,
        snapshots_holding=("saved-0",),
    )
    assert [m.id for m in call("export", "u")] == ["2"]
    assert call("forget", "u", authors=["mallory"], purge=True) == sr.ForgetResult(
        messages=0, vectors=0, threads=0, cache_entries=0, purged=True
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("forget_messages", (["1"],)),
        ("forget_thread", ("t",)),
        ("forget_everything", ()),
        ("forget_before", (DAY,)),
    ],
)
def test_every_forget_may_purge(
    call: Call, shelf: Shelf, name: str, arguments: tuple[object, ...]
) -> None:
    call(name, "u", *arguments)
    call(name, "u", *arguments, purge=True)
    sent = [seen.request for seen in shelf.seen]
    assert [request.purge for request in sent] == [False, True]  # type: ignore[attr-defined]
    assert sent[0].WhichOneof("target") == sent[1].WhichOneof("target") is not None


@pytest.mark.parametrize(
    ("conditions", "field"),
    [
        ({}, "condition"),
        ({"authors": []}, "authors"),
        ({"authors": None}, "authors"),
        ({"thread_id": ""}, "thread_id"),
        ({"thread_id": "t", "roles": ()}, "roles"),
        ({"thread_id": "t", "create_time_to": None}, "create_time_to"),
        ({"authors": "Mallory"}, "authors"),
        ({"authors": [1]}, "authors[0]"),
        ({"roles": ["robot"]}, "roles[0]"),
        ({"create_time_from": datetime(2024, 5, 1)}, "create_time_from"),
        ({"purge": 1, "thread_id": "t"}, "purge"),
    ],
)
def test_a_condition_that_says_nothing_never_forgets_more(
    call: Call, shelf: Shelf, conditions: dict[str, Any], field: str
) -> None:
    with pytest.raises(sr.InvalidArgumentError) as caught:
        call("forget", "u", **conditions)
    assert [v.field for v in caught.value.violations] == [field]
    assert shelf.seen == []


def test_a_misspelt_condition_is_a_type_error(call: Call, shelf: Shelf) -> None:
    with pytest.raises(TypeError, match="author"):
        call("forget", "u", thread_id="t", author=["Mallory"])
    assert shelf.seen == []


def test_purge(call: Call, shelf: Shelf) -> None:
    call("create_snapshot")
    assert call("purge") == sr.PurgeResult(revision=71, snapshots_rewritten=("saved-0",))
    assert shelf.seen[-1].seconds_left > 3000


# --- snapshots ---------------------------------------------------------------------------------


def test_snapshots_from_the_first_to_the_last(call: Call, shelf: Shelf) -> None:
    call("index", "u", "t", [user("a", id="1"), user("b", id="2")])
    made = call("create_snapshot")
    call("forget_messages", "u", ["1"])
    listed = sr.Snapshot(
        name="saved-0",
        create_time=DUE,
        bytes=3072,
        messages=2,
        vectors=51,
        revision=52,
        digest="ab",
        index_identity="fake@1/2",
        server_version="0.0.1",
        format=4,
        encrypted=True,
        forgotten=1,
    )
    assert made.forgotten == 0
    assert call("list_snapshots") == (listed,)
    assert call("restore_snapshot", "saved-0") == sr.RestoreResult(
        messages=2, vectors=61, forgotten=62
    )
    assert call("delete_snapshot", "saved-0") is None
    assert call("list_snapshots") == ()
    for name in ("delete_snapshot", "restore_snapshot"):
        with pytest.raises(sr.NotFoundError):
            call(name, "saved-0")


def test_only_images(call: Call, shelf: Shelf) -> None:
    made = call("create_snapshot", partitions_only=True)
    assert (made.name, made.bytes, made.vectors) == ("", 2048, 7)
    assert shelf.snapshots == {}


def test_what_reads_a_whole_store_may_take_an_hour(call: Call, shelf: Shelf) -> None:
    call("create_snapshot")
    call("restore_snapshot", "saved-0")
    call("create_snapshot", timeout=60)
    assert [seen.seconds_left > 3000 for seen in shelf.seen] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("create_snapshot", ()), ("restore_snapshot", ("n",)), ("delete_snapshot", ("n",))],
)
def test_what_must_not_be_done_twice_is_not_sent_twice(
    call: Call, shelf: Shelf, name: str, arguments: tuple[str, ...]
) -> None:
    detail = types_pb2.ErrorDetail(code=14, message="draining", reason="DRAINING")
    shelf.failures = [Failure(grpc.StatusCode.UNAVAILABLE, detail)]
    with pytest.raises(sr.UnavailableError):
        call(name, *arguments)
    assert len(shelf.seen) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.DATA_LOSS, sr.DataLossError),
        (grpc.StatusCode.FAILED_PRECONDITION, sr.FailedPreconditionError),
    ],
)
def test_errors_of_a_restore(
    call: Call, shelf: Shelf, code: grpc.StatusCode, kind: type[sr.SemanticRecallError]
) -> None:
    detail = types_pb2.ErrorDetail(code=code.value[0], message="no", reason="STORE_NOT_EMPTY")
    shelf.failures = [Failure(code, detail)]
    with pytest.raises(kind) as caught:
        call("restore_snapshot", "n")
    assert type(caught.value) is kind
    assert caught.value.reason == "STORE_NOT_EMPTY"


# --- verify and re-embedding -------------------------------------------------------------------


def test_verify_gives_findings_progress_and_a_summary(call: Call, shelf: Shelf) -> None:
    call("index", "u", "t", [user("fine", id="1"), user("broken", id="2")])
    progress = sr.VerifyProgress("messages", 1, 2)
    found = sr.Finding("VECTOR_MISSING", "u", "2", "no vector")
    summary = sr.VerifySummary(2, 0, 1, analyses=41, images=42)
    assert call("verify", "u") == [progress, found, summary]
    assert not summary.is_sound
    mended = sr.Finding("VECTOR_MISSING", "u", "2", "no vector", repaired=True)
    summary = sr.VerifySummary(2, 0, 1, 1, 41, 42, 0, self_test_recalls=5)
    assert call("verify", repair=True) == [progress, mended, summary]
    assert summary.is_sound
    shelf.mendable = False
    last = call("verify", repair=True)[-1]
    assert (last.repaired, last.self_test_failures) == (0, 1)
    assert not last.is_sound


def test_a_failed_self_test_is_not_sound() -> None:
    assert sr.VerifySummary(1, 1, 0, self_test_recalls=5).is_sound
    assert not sr.VerifySummary(1, 1, 0, self_test_recalls=5, self_test_failures=1).is_sound


def test_reembed(call: Call, shelf: Shelf) -> None:
    call("index", "u", "t", [user("a", id="1")])
    assert call("reembed") == [
        sr.ReembedProgress(0, 1, "fake@1/2", "next@1/3"),
        sr.ReembedProgress(1, 1, "fake@1/2", "next@1/3", complete=True),
    ]


def test_stats_have_every_field(call: Call) -> None:
    found = call("stats")
    assert (found.index_identity, found.next_index_identity) == ("fake@1/2", "next@1/3")
    assert (found.next_embedded, found.expired, found.damaged) == (31, 32, 33)
    assert found.purge_pending
    assert found.encrypted


# --- vectors -----------------------------------------------------------------------------------


def test_vectors_go_out_and_come_back(call: Call, shelf: Shelf) -> None:
    given = MessageVectors("1", "fake@1/2", bytes(range(16)))
    call("index", "u", "t", [user("a", id="1"), user("b", id="2")], vectors=[given])
    wire = types_pb2.MessageVectors(
        message_id="1", index_identity="fake@1/2", data=bytes(range(16))
    )
    assert list(shelf.seen[0].request.vectors) == [wire]  # type: ignore[attr-defined]
    exported = call("export_with_vectors", "u")
    assert [(e.message.id, e.vectors) for e in exported] == [("1", given), ("2", None)]
    assert [m.id for m in call("export", "u")] == ["1", "2"]
    asked = [seen.request.with_vectors for seen in shelf.seen[1:]]  # type: ignore[attr-defined]
    assert asked == [True, False]


@pytest.mark.parametrize(
    ("vectors", "field"),
    [("x", "vectors"), ([b"1234"], "vectors[0]"), (MessageVectors("1", "m", b""), "vectors")],
)
def test_vectors_that_are_none(call: Call, shelf: Shelf, vectors: Any, field: str) -> None:
    with pytest.raises(sr.InvalidArgumentError) as caught:
        call("index", "u", "t", [user("a", id="1")], vectors=vectors)
    assert [v.field for v in caught.value.violations] == [field]
    assert shelf.seen == []


def test_half_a_number_is_no_vector() -> None:
    with pytest.raises(sr.InvalidArgumentError, match="4 bytes"):
        MessageVectors("1", "m", b"12345")
    with pytest.raises(sr.InvalidArgumentError, match="data: must be bytes"):
        MessageVectors("1", "m", "1234")  # type: ignore[arg-type]


def test_a_misspelt_option_of_index_is_a_type_error(call: Call, shelf: Shelf) -> None:
    with pytest.raises(TypeError, match="vector"):
        call("index", "u", "t", [user("a")], vector=[])
    assert shelf.seen == []
