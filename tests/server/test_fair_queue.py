"""Whose turn it is, who may take how many places, and whose an encoded request is.

Each is compared with a model in plain lists that counts everything anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from semanticrecall.v1 import admin_pb2, recall_pb2
from semanticrecall_server import fair_queue
from semanticrecall_server.endpoints import ADMIN_UNARY, RECALL_UNARY, VECTOR_UNARY, whose
from semanticrecall_server.fair_queue import (
    NOBODY,
    PLACES_OF_ONE_MIN,
    FairQueue,
    Hot,
    Shares,
    resource_of,
)
from semanticrecall_server.streams import ADMIN_STREAMS

NAMES = (b"a", b"b", b"c", b"d")

# ---- turns ----


@dataclass
class Rounds:
    """The model: what waits, as (resource, job), and who has had a turn in this round."""

    waiting: list[tuple[bytes, int]] = field(default_factory=list)
    this_round: list[bytes] = field(default_factory=list)
    next_round: list[bytes] = field(default_factory=list)
    served: list[bytes] = field(default_factory=list)

    def add(self, resource: bytes, job: int) -> None:
        self.waiting.append((resource, job))
        if resource not in self.this_round + self.next_round:
            (self.next_round if resource in self.served else self.this_round).append(resource)

    def take(self) -> int | None:
        if not self.waiting:
            return None
        if not self.this_round:
            self.this_round, self.next_round, self.served = self.next_round, [], []
        resource = self.this_round.pop(0)
        self.served.append(resource)
        first = next(one for one in self.waiting if one[0] == resource)
        self.waiting.remove(first)
        if any(one[0] == resource for one in self.waiting):
            self.next_round.append(resource)
        return first[1]

    def remove(self, resource: bytes, job: int) -> bool:
        if (resource, job) not in self.waiting:
            return False
        self.waiting.remove((resource, job))
        if all(one[0] != resource for one in self.waiting):
            for order in (self.this_round, self.next_round):
                if resource in order:
                    order.remove(resource)
        return True

    def copy(self) -> Rounds:
        return Rounds(
            list(self.waiting), list(self.this_round), list(self.next_round), list(self.served)
        )

    def ahead(self, resource: bytes) -> int:
        """How many are taken before a job that this resource adds now."""
        trial = self.copy()
        trial.add(resource, -1)
        taken = 0
        while trial.take() != -1:
            taken += 1
        return taken


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "take", "remove"]), st.sampled_from(NAMES)),
    max_size=40,
)


@given(STEPS, st.data())
@settings(max_examples=150, deadline=None)
def test_jobs_are_taken_as_the_model_takes_them(
    steps: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    queue: FairQueue[int] = FairQueue()
    model = Rounds()
    for number, (step, resource) in enumerate(steps):
        actual, bound = model.ahead(resource), queue.ahead(resource)
        assert actual <= bound <= len(model.waiting)
        if not any(one[0] == resource for one in model.waiting):
            assert bound == actual
        if step == "add":
            queue.add(resource, number)
            model.add(resource, number)
        elif step == "take":
            assert queue.take() == model.take()
        else:
            job = data.draw(st.integers(0, number))
            assert queue.remove(resource, job) == model.remove(resource, job)
        assert len(queue) == len(model.waiting)
    rest = [model.take() for _ in range(len(model.waiting) + 1)]
    assert [queue.take() for _ in rest] == rest
    assert rest[-1] is None


def test_a_quiet_resource_is_next_however_much_another_one_wants() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add(b"hot", "hot 0")
    assert queue.take() == "hot 0"
    for number in range(1, 100):
        queue.add(b"hot", f"hot {number}")
    queue.add(b"quiet", "quiet")
    assert queue.ahead(b"quieter") == 1
    assert [queue.take() for _ in range(3)] == ["quiet", "hot 1", "hot 2"]


def test_who_comes_again_and_again_starves_nobody() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.add(b"hot", f"hot {number}")
    queue.add(b"quiet", "quiet")
    order = []
    for _ in range(6):
        job = queue.take()
        order.append(job)
        if job == "quiet":
            queue.add(b"quiet", "quiet")
    assert order == ["hot 0", "quiet", "hot 1", "quiet", "hot 2", "quiet"]


def test_a_round_ends_though_new_resources_never_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "SERVED_MAX", 5)
    queue: FairQueue[bytes] = FairQueue()
    queue.add(b"hot", b"hot")
    assert queue.take() == b"hot"
    queue.add(b"hot", b"hot")
    order = []
    for number in range(20):
        queue.add(b"new %d" % number, b"new")
        order.append(queue.take())
    assert order.index(b"hot") == 4


# ---- shares ----


@dataclass
class Holdings:
    """The model: who took what and has not given it back."""

    places: int
    bytes_max: int
    held: list[tuple[bytes, int]] = field(default_factory=list)

    def has_room(self, resource: bytes, size: int, most: int | None) -> bool:
        own = [held for name, held in self.held if name == resource]
        free = self.places - len(self.held)
        free_bytes = self.bytes_max - sum(held for _, held in self.held)
        if free == 0 or size > free_bytes:
            return False
        if not own:
            return True
        is_below_share = len(own) < PLACES_OF_ONE_MIN or len(own) < free
        is_below_most = most is None or len(own) < most
        return is_below_share and is_below_most and sum(own) + size <= free_bytes


@given(
    st.integers(1, 40),
    st.lists(
        st.tuples(
            st.sampled_from(NAMES), st.integers(0, 30), st.sampled_from([None, 1, 3]), st.booleans()
        ),
        max_size=60,
    ),
)
@settings(max_examples=150, deadline=None)
def test_shares_are_those_of_the_model(
    places: int, steps: list[tuple[bytes, int, int | None, bool]]
) -> None:
    shares, model = Shares(places, 300), Holdings(places, 300)
    for resource, size, most, gives_back in steps:
        if gives_back and model.held:
            shares.give_back(*model.held.pop(size % len(model.held)))
        room = model.has_room(resource, size, most)
        assert shares.has_room(resource, size, most) == room
        if room:
            shares.take(resource, size)
            model.held.append((resource, size))
        assert shares.taken == len(model.held)
        assert shares.holds(resource) == any(name == resource for name, _ in model.held)


def filled(shares: Shares, resource: bytes, size: int = 0) -> int:
    """Take as many as the resource may; how many that were."""
    taken = 0
    while shares.has_room(resource, size):
        shares.take(resource, size)
        taken += 1
    return taken


def test_one_resource_gets_half_and_leaves_room_for_the_next() -> None:
    shares = Shares(256, 1_000)
    assert filled(shares, b"hot") == 128
    assert filled(shares, b"second") == 64
    assert shares.has_room(b"quiet", 0)


def test_bytes_are_shared_too_but_one_request_is_never_too_large() -> None:
    shares = Shares(256, 1_000)
    assert shares.has_room(b"hot", 1_000)
    assert not shares.has_room(b"hot", 1_001)
    assert filled(shares, b"hot", 100) == 5
    assert shares.has_room(b"quiet", 500)
    assert not shares.has_room(b"quiet", 501)


def test_hot_resources_are_forgotten_in_time_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "HOT_MAX", 2)
    hot = Hot(5.0)
    hot.add(b"a", 10.0)
    hot.add(b"b", 11.0)
    assert hot.has(b"a", 14.9)
    assert not hot.has(b"a", 15.0)
    hot.add(b"c", 15.0)
    hot.add(b"b", 15.5)
    hot.add(b"d", 15.6)
    assert [name for name in NAMES if hot.has(name, 15.7)] == [b"b", b"d"]


# ---- whose a request is ----

METHODS = (*RECALL_UNARY, *ADMIN_UNARY, *VECTOR_UNARY, *ADMIN_STREAMS)
REQUESTS: dict[str, type[Message]] = {method.name: method.request for method in METHODS}


@pytest.mark.parametrize("method", REQUESTS)
@pytest.mark.parametrize("name", ["alice", "ä" * 200, "x" * 127, "x" * 128, "x" * 512])
def test_an_encoded_request_is_its_resources(method: str, name: str) -> None:
    kind = REQUESTS[method]
    fields = kind.DESCRIPTOR.fields_by_name
    if "resource_id" not in fields:
        assert whose(kind)(kind().SerializeToString() + b"\x0a\x01x") == NOBODY
        return
    values: dict[str, Any] = {"resource_id": name}
    if "request_id" in fields:
        values["request_id"] = "r" * 200
    if "thread_id" in fields:
        values["thread_id"] = "t"
    assert whose(kind)(kind(**values).SerializeToString()) == name.encode()


def test_a_recall_without_an_id_and_one_of_a_stream_have_the_same_turn() -> None:
    plain = recall_pb2.RecallRequest(resource_id="alice", query="q").SerializeToString()
    streamed = recall_pb2.RecallRequest(request_id="1", resource_id="alice").SerializeToString()
    assert whose(recall_pb2.RecallRequest)(plain) == b"alice"
    assert whose(recall_pb2.RecallRequest)(streamed) == b"alice"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x0a",
        b"\x0a\x80",
        b"\x0a\x85\x80\x00alice",
        b"\x08\x05alice",
        b"\x12\x05alice\x0a\x01x",
        admin_pb2.ExportRequest(resource_id="x" * 513).SerializeToString(),
    ],
)
def test_what_begins_otherwise_is_nobodys(raw: bytes) -> None:
    assert resource_of(raw, 1) == NOBODY


@given(st.binary(max_size=40), st.integers(1, 15))
def test_any_bytes_have_a_turn(raw: bytes, number: int) -> None:
    found = resource_of(raw, number)
    assert found in raw
