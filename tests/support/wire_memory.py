"""One resource's memory at the wire, and what a brute-force model says it ought to answer.

The tests of `tests/cases` speak the contract itself (the generated stubs over a real socket), so
that they hold for a client in any language.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from semanticrecall.v1.admin_pb2_grpc import AdminServiceStub
from semanticrecall.v1.recall_pb2_grpc import RecallServiceStub
from semanticrecall_core.types.values import CallBudget
from support.fake_embedder import FakeEmbedder

USER = types_pb2.ROLE_USER
ASSISTANT = types_pb2.ROLE_ASSISTANT
SYSTEM = types_pb2.ROLE_SYSTEM
TOOL = types_pb2.ROLE_TOOL

INDEXED = types_pb2.STATUS_INDEXED
REPLACED = types_pb2.STATUS_REPLACED
UNCHANGED = types_pb2.STATUS_UNCHANGED
PENDING = types_pb2.STATUS_PENDING
NOT_EMBEDDED = types_pb2.STATUS_NOT_EMBEDDED
REJECTED = types_pb2.STATUS_REJECTED

DURABLE = types_pb2.WAIT_DURABLE

RESOURCE_WIDE = types_pb2.SCOPE_RESOURCE
THREAD_ONLY = types_pb2.SCOPE_THREAD

DEADLINE_SECONDS = 60.0
NOON_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
SCORE_TOLERANCE = 2e-6
ERROR_TRAILER = "semanticrecall-error-bin"
INDEX_MESSAGES_MAX = 1000


# Requests ---------------------------------------------------------------------------------------


def timestamp(time_ns: int) -> Timestamp:
    """Nanoseconds since 1970 as the wire has them."""
    return Timestamp(seconds=time_ns // SECOND_NS, nanos=time_ns % SECOND_NS)


def nanoseconds(stamp: Timestamp) -> int:
    """The way back."""
    return stamp.seconds * SECOND_NS + stamp.nanos


def said(
    message_id: str,
    text: str = "",
    *,
    at: int | None = None,
    role: types_pb2.Role = USER,
    metadata: Mapping[str, Any] | None = None,
    **fields: Any,
) -> types_pb2.Message:
    """A message to index; `at` in nanoseconds since 1970, None for none."""
    message = types_pb2.Message(id=message_id, text=text, role=role, **fields)
    if at is not None:
        message.create_time.CopyFrom(timestamp(at))
    if metadata is not None:
        message.metadata.update(metadata)
    return message


def conversation(texts: Iterable[str], *, prefix: str = "m", **fields: Any) -> list[Any]:
    """One message a text, a minute apart: m0, m1, ..."""
    return [
        said(f"{prefix}{i}", text, at=NOON_NS + i * 60 * SECOND_NS, **fields)
        for i, text in enumerate(texts)
    ]


def window(before: int, after: int) -> recall_pb2.MessageRange:
    """Neighbours to ask for."""
    return recall_pb2.MessageRange(before=before, after=after)


ALONE = window(0, 0)
BY_COSINE = recall_pb2.Ranking(mode=types_pb2.MODE_DENSE)
"""The ranking that `Model` knows."""


# Calls ------------------------------------------------------------------------------------------


class Sidecar:
    """The stubs of one server."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.channel = grpc.insecure_channel(target)
        self.service = RecallServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)

    def close(self) -> None:
        """Give the connection up."""
        self.channel.close()

    def memory(self, resource_id: str) -> Memory:
        """The memory of one resource."""
        return Memory(self, resource_id)

    def stats(self, resource_id: str = "") -> admin_pb2.GetStatsResponse:
        """Counts of the store, or of one resource."""
        request = admin_pb2.GetStatsRequest(resource_id=resource_id)
        return self.admin.GetStats(request, timeout=DEADLINE_SECONDS)

    def stream(
        self, requests: Sequence[recall_pb2.RecallRequest]
    ) -> dict[str, recall_pb2.RecallResponse]:
        """Recalls on one stream, answers by their request id."""
        answers = list(self.service.RecallStream(iter(requests), timeout=DEADLINE_SECONDS))
        assert sorted(a.request_id for a in answers) == sorted(r.request_id for r in requests)
        return {answer.request_id: answer for answer in answers}


@dataclass(frozen=True)
class Memory:
    """The memory of one resource, through the stubs."""

    sidecar: Sidecar
    resource_id: str

    def index(
        self,
        messages: Sequence[types_pb2.Message],
        *,
        thread: str = "t",
        wait: types_pb2.Wait = types_pb2.WAIT_SEARCHABLE,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[types_pb2.Status]:
        """Index and give what became of each message."""
        return [r.status for r in self.index_answer(messages, thread, wait, metadata).results]

    def index_answer(
        self,
        messages: Sequence[types_pb2.Message],
        thread: str = "t",
        wait: types_pb2.Wait = types_pb2.WAIT_SEARCHABLE,
        metadata: Mapping[str, Any] | None = None,
    ) -> recall_pb2.IndexResponse:
        """The whole answer of one Index call."""
        request = recall_pb2.IndexRequest(
            resource_id=self.resource_id, thread_id=thread, messages=messages, wait=wait
        )
        if metadata is not None:
            request.metadata.update(metadata)
        answer = self.sidecar.service.Index(request, timeout=DEADLINE_SECONDS)
        assert [r.message_id for r in answer.results] == [m.id for m in messages]
        return answer

    def learn(self, messages: Sequence[types_pb2.Message], **fields: Any) -> None:
        """Index any number of messages; all of them must be stored."""
        for start in range(0, len(messages), INDEX_MESSAGES_MAX):
            statuses = self.index(messages[start : start + INDEX_MESSAGES_MAX], **fields)
            assert set(statuses) <= {INDEXED, NOT_EMBEDDED}

    def request(
        self, query: str = "", *, filter: Mapping[str, Any] | None = None, **fields: Any
    ) -> recall_pb2.RecallRequest:
        """A Recall request of this resource."""
        request = recall_pb2.RecallRequest(resource_id=self.resource_id, query=query, **fields)
        if filter is not None:
            request.filter.update(filter)
        return request

    def recall(self, query: str = "", **fields: Any) -> recall_pb2.RecallResponse:
        """One unary Recall."""
        request = self.request(query, **fields)
        return self.sidecar.service.Recall(request, timeout=DEADLINE_SECONDS)

    def listed(self, thread: str = "", **fields: Any) -> list[types_pb2.Message]:
        """Every message of a thread or of the resource, over all pages."""
        request = recall_pb2.ListMessagesRequest(
            resource_id=self.resource_id, thread_id=thread, **fields
        )
        messages: list[types_pb2.Message] = []
        while True:
            page = self.sidecar.service.ListMessages(request, timeout=DEADLINE_SECONDS)
            messages += page.messages
            if not page.next_page_token:
                return messages
            request.page_token = page.next_page_token

    def got(self, *message_ids: str) -> list[types_pb2.Message]:
        """Messages by id."""
        request = recall_pb2.GetMessagesRequest(
            resource_id=self.resource_id, message_ids=message_ids
        )
        answer = self.sidecar.service.GetMessages(request, timeout=DEADLINE_SECONDS)
        return list(answer.messages)

    def threads(self) -> list[recall_pb2.Thread]:
        """The resource's threads (at most one page of 1,000)."""
        request = recall_pb2.ListThreadsRequest(resource_id=self.resource_id, page_size=1000)
        answer = self.sidecar.service.ListThreads(request, timeout=DEADLINE_SECONDS)
        return list(answer.threads)

    def exported(self) -> list[types_pb2.Message]:
        """Every message, through Export."""
        request = admin_pb2.ExportRequest(resource_id=self.resource_id)
        answers = self.sidecar.admin.Export(request, timeout=DEADLINE_SECONDS)
        return [answer.message for answer in answers]

    def forget(self, *message_ids: str, **target: Any) -> recall_pb2.ForgetResponse:
        """Forget messages, or the target given."""
        if message_ids:
            target = {"message_ids": recall_pb2.MessageIds(ids=message_ids)}
        request = recall_pb2.ForgetRequest(resource_id=self.resource_id, **target)
        return self.sidecar.service.Forget(request, timeout=DEADLINE_SECONDS)

    def transfer(self, thread: str, to: str) -> int:
        """Give a thread away."""
        request = recall_pb2.TransferThreadRequest(
            resource_id=self.resource_id, thread_id=thread, to_resource_id=to
        )
        return self.sidecar.service.TransferThread(request, timeout=DEADLINE_SECONDS).messages

    def stats(self) -> admin_pb2.GetStatsResponse:
        """Counts of this resource."""
        return self.sidecar.stats(self.resource_id)


# Answers ----------------------------------------------------------------------------------------


def hits(answer: recall_pb2.RecallResponse) -> list[recall_pb2.RecalledMessage]:
    """The hits by rank; ranks run from 1 without a gap, or the test fails."""
    found = sorted((m for m in answer.messages if m.hit), key=lambda m: m.rank)
    assert [m.rank for m in found] == list(range(1, len(found) + 1))
    return found


def hit_ids(answer: recall_pb2.RecallResponse) -> list[str]:
    """Ids of the hits, best first."""
    return [hit.message.id for hit in hits(answer)]


def scores(answer: recall_pb2.RecallResponse) -> list[float]:
    """Scores of the hits, best first."""
    return [hit.score for hit in hits(answer)]


def ids(messages: Iterable[Any]) -> list[str]:
    """Ids in the order given, of messages or of recalled messages."""
    return [m.message.id if hasattr(m, "message") else m.id for m in messages]


@dataclass
class Refusal:
    """What `refused` caught."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    detail: types_pb2.ErrorDetail = field(default_factory=types_pb2.ErrorDetail)

    @property
    def fields(self) -> list[str]:
        """Paths of the fields at fault."""
        return [violation.field for violation in self.detail.field_violations]

    def keep(self, error: grpc.RpcError) -> None:
        """Read a failed call."""
        call: Any = error
        self.code = call.code()
        self.details = call.details() or ""
        for key, value in call.trailing_metadata() or ():
            if key == ERROR_TRAILER:
                self.detail = types_pb2.ErrorDetail.FromString(value)


@contextmanager
def refused(code: grpc.StatusCode, fields: str = "") -> Iterator[Refusal]:
    """The call inside must fail with this code, naming a field that begins with `fields`."""
    refusal = Refusal()
    with pytest.raises(grpc.RpcError) as caught:
        yield refusal
    refusal.keep(caught.value)
    assert refusal.code is code, refusal
    if fields:
        assert any(name.startswith(fields) for name in refusal.fields), refusal


def invalid(fields: str) -> Any:
    """The call inside must be INVALID_ARGUMENT, naming a field that begins with `fields`."""
    return refused(grpc.StatusCode.INVALID_ARGUMENT, fields)


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Ask again and again until it holds; fail when the time is over."""
    give_up = time.monotonic() + seconds
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < give_up, "it did not come about in time"
        pause.wait(0.02)


# The model --------------------------------------------------------------------------------------


class Model:
    """Exact ranking by comparing a query with every chunk of every message.

    It shares nothing with the server but the words-to-vectors function of the fake embedder.
    """

    def __init__(self) -> None:
        self._embedder = FakeEmbedder()
        self._budget = CallBudget.of_seconds(3600)

    def vector(self, text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The query's vector."""
        vectors = self._embedder.embed_query(text, self._budget).vectors
        return np.asarray(vectors[0], dtype=np.float64)

    def score(self, query: str, text: str) -> float:
        """The cosine of a text's best chunk."""
        rows = self._embedder.embed_passage(text, self._budget).vectors.astype(np.float64)
        return float((rows @ self.vector(query)).max())

    def ranked(self, query: str, messages: Iterable[types_pb2.Message]) -> list[tuple[str, float]]:
        """(id, score) of every message with words, best first; equal scores by arrival."""
        scored = [(m.id, self.score(query, m.text)) for m in messages if m.text.strip()]
        return sorted(scored, key=lambda pair: -round(pair[1], 7))

    def ids(self, query: str, messages: Iterable[types_pb2.Message], k: int) -> list[str]:
        """Ids of the k best messages."""
        return [message_id for message_id, _ in self.ranked(query, messages)[:k]]

    def assert_best(
        self,
        answer: recall_pb2.RecallResponse,
        query: str,
        allowed: Iterable[types_pb2.Message],
        k: int,
    ) -> None:
        """The hits are the k best of what is allowed, with their scores."""
        expected = self.ranked(query, allowed)[:k]
        assert hit_ids(answer) == [message_id for message_id, _ in expected]
        for found, (_, score) in zip(scores(answer), expected, strict=True):
            assert math.isclose(found, score, abs_tol=SCORE_TOLERANCE)
