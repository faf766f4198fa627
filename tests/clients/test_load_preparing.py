"""What goes into a store before a load and out of it afterwards; the sidecar is a dictionary."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from semanticrecall import RecallClient
from semanticrecall.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from semanticrecall.load import preparing
from semanticrecall.load.plan import Workload
from semanticrecall.load.preparing import Preparer, forget_all
from semanticrecall.load.result import Preparation
from semanticrecall.v1 import recall_pb2, types_pb2
from support.fake_sidecar import Shelf
from support.loads import PREFIX, plan, work

NAMES = [f"{PREFIX}{number}" for number in (1, 2, 3, 4, 5, 6, 7)]


def never() -> bool:
    return False


def nothing(done: int, total: int) -> None:
    pass


def full() -> types_pb2.ErrorDetail:
    return types_pb2.ErrorDetail(code=8, message="full", reason="QUEUE_FULL", retryable=True)


@pytest.fixture
def preparer(address: str) -> Callable[..., Preparer]:
    def make(stop: Callable[[], bool] = never, **fields: object) -> Preparer:
        workload: Workload = work(**({"resources": 7, "messages_before": 230} | fields))
        return Preparer(plan(address, workload=workload), stop)

    return make


def test_every_resource_gets_its_messages(preparer: Callable[..., Preparer], shelf: Shelf) -> None:
    told: list[tuple[int, int]] = []
    made = preparer()
    found = made.run(lambda done, total: told.append((done, total)))
    assert found.messages == 7 * 230
    assert found.messages_per_s == pytest.approx(found.messages / found.seconds)
    assert Counter(owner for owner, _ in shelf.messages) == dict.fromkeys(NAMES, 230)
    threads = {(m.resource_id, m.thread_id) for m in shelf.messages.values()}
    assert len(threads) == 14
    assert made.written == set(NAMES)
    assert told[-1] == (7 * 230, 7 * 230)
    sent = [seen.request for seen in shelf.seen]
    assert {seen.method for seen in shelf.seen} == {"IndexStream"}
    assert {request.wait for request in sent} == {types_pb2.WAIT_SEARCHABLE}


def test_there_is_nothing_to_do_for_existing_resources(
    preparer: Callable[..., Preparer], shelf: Shelf
) -> None:
    assert preparer(existing_resources=("a",), recall_share=1).run(nothing) == Preparation()
    assert preparer(messages_before=0).run(nothing) == Preparation()
    assert shelf.seen == []


def test_a_request_that_came_at_a_bad_time_is_sent_again(
    preparer: Callable[..., Preparer], shelf: Shelf
) -> None:
    shelf.batch_errors += [full(), full()]
    assert preparer().run(nothing).messages == 7 * 230
    assert len(shelf.messages) == 7 * 230
    again = [seen.request for seen in shelf.seen if seen.method == "Index"]
    assert len(again) == 2
    assert all(isinstance(request, recall_pb2.IndexRequest) for request in again)


def test_a_refused_request_ends_it(preparer: Callable[..., Preparer], shelf: Shelf) -> None:
    refused = types_pb2.ErrorDetail(code=8, message="the disk is full", reason="DISK_FULL")
    shelf.batch_errors.append(refused)
    made = preparer(resources=200)
    with pytest.raises(ResourceExhaustedError, match="the disk is full"):
        made.run(nothing)
    assert len(made.written) < 200


def test_a_refused_message_ends_it(
    preparer: Callable[..., Preparer], shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = shelf.put

    def refuse_one(request: recall_pb2.IndexRequest) -> recall_pb2.IndexResponse:
        answer = put(request)
        answer.results[-1].status = types_pb2.STATUS_REJECTED
        answer.results[-1].error.CopyFrom(
            types_pb2.ErrorDetail(code=3, message="messages[99].text: too long", reason="FIELD")
        )
        return answer

    monkeypatch.setattr(shelf, "put", refuse_one)
    with pytest.raises(InvalidArgumentError, match="too long"):
        preparer().run(nothing)


@pytest.fixture
def pending(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not wait until messages can be found: of each request, one cannot."""
    put = shelf.put

    def put_pending(request: recall_pb2.IndexRequest) -> recall_pb2.IndexResponse:
        answer = put(request)
        answer.results[0].status = types_pb2.STATUS_PENDING
        return answer

    monkeypatch.setattr(shelf, "put", put_pending)


@pytest.mark.usefixtures("pending")
def test_messages_that_are_pending_are_waited_for(
    preparer: Callable[..., Preparer], shelf: Shelf
) -> None:
    shelf.pending = {NAMES[1]: 3, NAMES[4]: 1}
    told: list[int] = []

    def advance(done: int, total: int) -> None:
        told.append(done)
        # Three requests of each resource: 21 messages are pending, and then 4, 2 and none.
        if done == 7 * 230 - 4:
            shelf.pending = {NAMES[1]: 2}
        elif done == 7 * 230 - 2:
            shelf.pending = {}

    made = preparer()
    assert made.run(advance).messages == 7 * 230
    assert made.pending == 0
    assert {7 * 230 - 21, 7 * 230 - 4, 7 * 230 - 2, 7 * 230} <= set(told)


@pytest.mark.usefixtures("pending")
def test_messages_that_stay_pending_are_counted_apart(
    preparer: Callable[..., Preparer], shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SILENCE_SECONDS_MAX", 1.0)
    shelf.pending = {NAMES[1]: 2}
    made = preparer()
    assert made.run(nothing).messages == 7 * 230 - 2
    assert made.pending == 2


def test_it_ends_early_where_the_load_does(preparer: Callable[..., Preparer], shelf: Shelf) -> None:
    made = preparer(lambda: len(shelf.seen) >= 5, resources=2_000)
    found = made.run(nothing)
    assert 0 < found.messages == len(shelf.messages) < 2_000 * 230
    assert {owner for owner, _ in shelf.messages} <= made.written
    assert not made.cut_off


def test_answers_are_not_waited_for_long_once_the_load_shall_end(
    preparer: Callable[..., Preparer], shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "STOP_SECONDS_MAX", 0.3)
    shelf.hold = threading.Event()
    made = preparer(lambda: bool(made.written))
    assert made.run(nothing).messages == 0
    assert made.cut_off
    shelf.hold.set()


def test_a_server_that_says_nothing_is_not_waited_for(
    preparer: Callable[..., Preparer], shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SILENCE_SECONDS_MAX", 0.3)
    shelf.hold = threading.Event()
    with pytest.raises(DeadlineExceededError, match="no message was indexed for"):
        preparer().run(nothing)
    shelf.hold.set()


def test_not_more_than_so_many_requests_are_ahead_of_their_answers(
    preparer: Callable[..., Preparer], shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SILENCE_SECONDS_MAX", 0.5)
    shelf.hold = threading.Event()
    made = preparer(resources=5_000, messages_before=1, message_words=work().query_words)
    with pytest.raises(DeadlineExceededError):
        made.run(nothing)
    shelf.hold.set()
    # One more of each stream is drawn, and waits for a place.
    most = preparing.STREAMS * (preparing.REQUESTS_AHEAD_MAX + 1)
    assert len(made.written) == most


def stored(shelf: Shelf, *owners: str) -> None:
    for owner in owners:
        for number in range(3):
            message = types_pb2.Message(id=str(number), resource_id=owner)
            shelf.messages[(owner, message.id)] = message


def test_forgetting_takes_what_is_named_and_nothing_else(
    memory: RecallClient, shelf: Shelf
) -> None:
    stored(shelf, *NAMES, "of somebody")
    done: list[tuple[int, int]] = []
    swept = forget_all(memory, lambda: NAMES, lambda *d: done.append(d), again=False)
    assert (swept.messages, swept.problem) == (21, "")
    assert {owner for owner, _ in shelf.messages} == {"of somebody"}
    assert done[-1] == (7, 7)
    assert len(shelf.seen) == 7


def test_what_arrives_late_is_found_by_looking_again(memory: RecallClient, shelf: Shelf) -> None:
    stored(shelf, *NAMES)
    late = iter([None, NAMES[2], NAMES[2], None])

    def names() -> list[str]:
        if owner := next(late):
            stored(shelf, owner)
        return NAMES

    swept = forget_all(memory, names, nothing, again=True)
    assert swept.problem == ""
    assert swept.messages == 21 + 3 + 3
    assert not shelf.messages


def test_it_gives_up_on_what_never_ends(memory: RecallClient, shelf: Shelf) -> None:
    def names() -> list[str]:
        stored(shelf, NAMES[0])
        return NAMES[:1]

    swept = forget_all(memory, names, nothing, again=True)
    assert swept.messages == 3 * preparing.SWEEPS_MAX
    assert "went on to store" in swept.problem


def test_one_that_cannot_be_forgotten_keeps_no_other(
    memory: RecallClient, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(shelf, *NAMES)
    forget = memory.forget_everything

    def refuse_one(resource_id: str) -> object:
        if resource_id == NAMES[3]:
            raise UnavailableError("not now")
        return forget(resource_id)

    monkeypatch.setattr(memory, "forget_everything", refuse_one)
    swept = forget_all(memory, lambda: NAMES, nothing, again=False)
    assert (swept.messages, swept.problem) == (18, "not now")
    assert {owner for owner, _ in shelf.messages} == {NAMES[3]}


def test_a_server_that_answers_none_is_not_asked_for_all(
    memory: RecallClient, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(resource_id: str) -> object:
        asked.append(resource_id)
        raise UnavailableError("not now")

    monkeypatch.setattr(memory, "forget_everything", refuse)
    names = [f"{PREFIX}{number}" for number in range(100_000)]
    assert forget_all(memory, lambda: names, nothing, again=True).problem == "not now"
    assert len(asked) < preparing.FORGETS_IN_A_ROW + 1
