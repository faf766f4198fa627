"""Waiting for embeddings without a thread: tickets of Index calls and read tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from semanticrecall_core.engine import Engine, EngineLimits, IndexTicket
from semanticrecall_core.engine import gathering as gathering_module
from semanticrecall_core.engine.backlog import BATCH_COMPUTED_MAX
from semanticrecall_core.types.errors import FailedPreconditionError, InvalidArgumentError
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetTarget,
    MessageDraft,
    Role,
    Status,
    Wait,
)
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder
from support.stored_messages import open_store

WAIT_SECONDS = 30.0
MARGIN_SECONDS = 0.05


class Running:
    """An engine with one embedding thread, which the text "slow" holds up."""

    def __init__(self, directory: Path) -> None:
        self.embedder = FakeEmbedder()
        self.slow = self.embedder.block_on("slow")
        self.store = open_store(directory, generation=self.embedder.generation)
        index = FaissVectorIndex(self.embedder.dimensions, self.store.load_partition)
        self.engine = Engine(self.store, self.embedder, index, EngineLimits(embed_threads=1))
        self.engine.start()

    def begin(
        self,
        *texts: str,
        resource: str = "u",
        wait: Wait = Wait.SEARCHABLE,
        seconds: float = WAIT_SECONDS,
    ) -> IndexTicket:
        """Index each text as the message of that id."""
        budget = CallBudget.of_seconds(seconds)
        return self.engine.begin_index(resource, drafts(texts), wait, budget)

    def hold_up(self) -> None:
        """Let the embedding thread be in the middle of a text of somebody else's."""
        self.begin("slow", resource="other", wait=Wait.DURABLE)
        assert self.slow.entered.wait(WAIT_SECONDS)


def drafts(texts: Sequence[str]) -> list[MessageDraft]:
    return [MessageDraft(id=text, thread_id="t", role=Role.USER, text=text) for text in texts]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "data")
    yield made
    made.embedder.heal()
    made.engine.stop()


def statuses(ticket: IndexTicket) -> list[Status]:
    return [result.status for result in ticket.answer().results]


def when_done(future: Future[None]) -> threading.Event:
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    return done


def test_a_ticket_comes_before_the_embedding_and_ends_with_it(running: Running) -> None:
    running.hold_up()
    ticket = running.begin("green tea", "black tea")
    assert [m.id for m in running.store.get("u", ["green tea", "black tea"])] == [
        "green tea",
        "black tea",
    ]
    done = when_done(ticket.ready)
    assert not done.is_set()
    running.slow.release.set()
    assert done.wait(WAIT_SECONDS)
    answer = ticket.answer()
    assert [r.status for r in answer.results] == [Status.INDEXED, Status.INDEXED]
    assert answer.embeddings_computed == 2


def test_an_early_answer_says_what_is_pending(running: Running) -> None:
    running.hold_up()
    ticket = running.begin("green tea")
    assert statuses(ticket) == [Status.PENDING]
    assert ticket.ready.cancelled()


def test_a_durable_ticket_is_ready_at_once(running: Running) -> None:
    running.hold_up()
    ticket = running.begin("green tea", wait=Wait.DURABLE)
    assert ticket.ready.done()
    assert statuses(ticket) == [Status.PENDING]


@pytest.fixture
def gathers_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what somebody waits for, or what fills a batch, is embedded."""
    monkeypatch.setattr(gathering_module, "GATHER_SECONDS", 3_600.0)


@pytest.mark.usefixtures("gathers_long")
def test_rows_that_nobody_waits_for_gather_and_hold_up_nobody(running: Running) -> None:
    later = running.begin("green tea", wait=Wait.DURABLE)
    sooner = running.begin("white tea", resource="other")
    sooner.ready.result(WAIT_SECONDS)
    assert statuses(sooner) == [Status.INDEXED]
    assert statuses(later) == [Status.PENDING]
    assert running.engine.pending() == 1


@pytest.mark.usefixtures("gathers_long")
def test_who_waits_for_a_resource_waits_for_no_others(running: Running) -> None:
    running.begin("black tea", resource="other", wait=Wait.DURABLE)
    token = running.begin("green tea", wait=Wait.DURABLE).answer().read_token
    running.engine.when_readable("u", token).result(WAIT_SECONDS)
    assert running.embedder.texts_run == ["green tea"]
    assert running.engine.pending() == 1


@pytest.mark.usefixtures("gathers_long")
def test_who_waits_for_a_row_that_gathers_does_not_wait_for_more(running: Running) -> None:
    running.begin("green tea", wait=Wait.DURABLE)
    again = running.begin("green tea")
    again.ready.result(WAIT_SECONDS)
    assert statuses(again) == [Status.UNCHANGED]


@pytest.mark.usefixtures("gathers_long")
def test_a_whole_batch_gathers_no_longer(running: Running) -> None:
    texts = [f"tea {i}" for i in range(BATCH_COMPUTED_MAX)]
    first = running.embedder.block_on(texts[0])
    for text in texts[:-1]:
        running.begin(text, wait=Wait.DURABLE)
    assert running.engine.pending() == BATCH_COMPUTED_MAX - 1
    running.begin(texts[-1], wait=Wait.DURABLE)
    assert first.entered.wait(WAIT_SECONDS)
    first.release.set()
    running.begin("coffee").ready.result(WAIT_SECONDS)
    assert running.embedder.texts_run == [*texts, "coffee"]


@pytest.mark.usefixtures("gathers_long")
def test_a_row_that_is_replaced_while_it_gathers_is_not_embedded(running: Running) -> None:
    running.begin("green tea", wait=Wait.DURABLE)
    newer = MessageDraft(id="green tea", thread_id="t", role=Role.USER, text="white tea")
    budget = CallBudget.of_seconds(WAIT_SECONDS)
    running.engine.begin_index("u", [newer], Wait.SEARCHABLE, budget).ready.result(WAIT_SECONDS)
    running.begin("black tea").ready.result(WAIT_SECONDS)
    assert running.embedder.texts_run == ["white tea", "black tea"]


def test_the_embedding_of_what_is_on_disk_begins_by_itself(running: Running) -> None:
    token = running.begin("green tea", wait=Wait.DURABLE).answer().read_token
    running.engine.when_readable("u", token).result(WAIT_SECONDS)
    assert running.embedder.texts_run == ["green tea"]


def test_a_ticket_without_messages_is_ready(running: Running) -> None:
    ticket = running.begin()
    assert ticket.ready.done()
    assert ticket.answer().results == ()


def test_patience_ends_before_the_deadline(running: Running) -> None:
    assert 20 < running.begin(seconds=WAIT_SECONDS).patience() <= WAIT_SECONDS - MARGIN_SECONDS
    assert running.begin(seconds=MARGIN_SECONDS / 2).patience() == 0


def test_tickets_of_the_same_message_all_end(running: Running) -> None:
    running.hold_up()
    given_up = running.begin("green tea")
    given_up.ready.cancel()
    tickets = [running.begin("green tea") for _ in range(3)]
    running.slow.release.set()
    for ticket in tickets:
        ticket.ready.result(WAIT_SECONDS)
    assert [statuses(ticket) for ticket in tickets] == [[Status.UNCHANGED]] * 3


def test_a_failed_text_ends_the_wait(running: Running) -> None:
    running.embedder.fail_on("bad")
    running.hold_up()
    ticket = running.begin("bad", "good")
    token = ticket.answer().read_token
    readable = running.engine.when_readable("u", token)
    running.slow.release.set()
    readable.result(WAIT_SECONDS)
    assert running.engine.pending() == 1


@pytest.mark.parametrize("how", ["forgotten", "replaced", "moved", "stopped"])
def test_a_row_that_goes_ends_the_wait(running: Running, how: str) -> None:
    running.hold_up()
    ticket = running.begin("green tea")
    readable = running.engine.when_readable("u", ticket.answer().read_token)
    assert not readable.done()
    match how:
        case "forgotten":
            running.engine.forget("u", ForgetTarget(everything=True))
        case "replaced":
            newer = MessageDraft(id="green tea", thread_id="t", role=Role.USER, text="white tea")
            running.engine.begin_index(
                "u", [newer], Wait.DURABLE, CallBudget.of_seconds(WAIT_SECONDS)
            )
        case "moved":
            running.engine.transfer_thread("u", "t", "v")
        case _:
            running.embedder.heal()
            running.engine.stop()
    running.slow.release.set()
    readable.result(WAIT_SECONDS)


def test_a_token_waits_for_what_it_stands_for_and_for_no_more(running: Running) -> None:
    gates = [running.embedder.block_on(text) for text in ("first", "second")]
    tokens = []
    running.hold_up()
    for text in ("first", "second"):
        tokens.append(running.begin(text, wait=Wait.DURABLE).answer().read_token)
    other = running.begin("third", resource="v", wait=Wait.DURABLE).answer().read_token
    waits = [running.engine.when_readable("u", token) for token in tokens]
    given_up = running.engine.when_readable("u", tokens[1])
    given_up.cancel()
    theirs = running.engine.when_readable("v", other)
    assert not any(wait.done() for wait in (*waits, theirs))
    running.slow.release.set()
    gates[0].release.set()
    assert gates[1].entered.wait(WAIT_SECONDS)
    assert not waits[1].done()
    gates[1].release.set()
    for wait in (*waits, theirs):
        wait.result(WAIT_SECONDS)
    assert running.engine.when_readable("u", tokens[1]).done()


def test_rows_that_come_later_do_not_end_a_wait_early(running: Running) -> None:
    running.hold_up()
    gate = running.embedder.block_on("first")
    token = running.begin("first", wait=Wait.DURABLE).answer().read_token
    readable = running.engine.when_readable("u", token)
    running.begin("later", wait=Wait.DURABLE)
    running.engine.forget("u", ForgetTarget(message_ids=("later",)))
    running.slow.release.set()
    assert gate.entered.wait(WAIT_SECONDS)
    assert not readable.done()
    gate.release.set()
    readable.result(WAIT_SECONDS)


def test_a_token_of_elsewhere_is_refused(running: Running) -> None:
    token = running.begin("green tea", wait=Wait.DURABLE).answer().read_token
    with pytest.raises(InvalidArgumentError, match="read_token"):
        running.engine.when_readable("v", token)
    with pytest.raises(InvalidArgumentError, match="read_token"):
        running.engine.when_readable("u", "nonsense")
    version, _, digest, revision = token.split(".")
    with pytest.raises(FailedPreconditionError, match="read_token"):
        running.engine.when_readable("u", f"{version}.{'0' * 32}.{digest}.{revision}")
