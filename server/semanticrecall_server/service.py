"""RecallService: requests to the engine and back, on plain threads.

Every method is synchronous, takes a decoded request and returns an answer, or raises a class of
`types.errors`. Lanes, deadlines and the error table are the callers' business (`endpoints`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from google.protobuf.message import Message

from semanticrecall.v1 import recall_pb2
from semanticrecall_core.engine import Engine
from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.recalling import RecallAnswer, RecallQuery
from semanticrecall_core.types.values import (
    CallBudget,
    EmbedRole,
    IndexAnswer,
    ListQuery,
    Role,
    StoredMessage,
)

from . import answers, convert, forgetting_calls
from .answer_cache import AnswerCache, AnswerCacheStats, request_key
from .answers import Clock, microseconds
from .checks import PAGE_TOKEN_BYTES_MAX, Violations
from .convert import RequestLimits
from .errors import AnswerTooLargeError
from .given_vectors import given_vectors
from .page_tokens import PageTokens

PAGE_READ_MESSAGES = 128
"""Messages read at once while a page is filled: bounds memory where messages are large."""

MESSAGE_FRAME_BYTES = 16
"""Bytes of framing of one message inside an answer, at most."""


class RecallObserver(Protocol):
    """Is told of every recall answered."""

    def recalled(self, answer: RecallAnswer, queue_us: int, total_us: int) -> None:
        """One recall's answer. Called on a worker thread."""
        ...

    def recalled_again(self, total_us: int) -> None:
        """An answer was given again. Called on the event loop."""
        ...


@dataclass(slots=True)
class Call:
    """One accepted request.

    Attributes:
        budget: how long it may go on.
        clock: when it came.
        key: identity of what a recall asks (`request_key`), where it is known already.
    """

    budget: CallBudget
    clock: Clock
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Later:
    """The rest of a call that waits for embeddings, so that no thread is held meanwhile.

    Attributes:
        ready: ends the wait; cancelled by a caller that waits no longer.
        patience: seconds to wait at most.
        finish: makes the answer.
        is_optional: the answer may come before `ready`, and `finish` is quick and runs on the
            event loop. Otherwise `ready` must have ended, and `finish` runs on the lane.
    """

    ready: Future[None]
    patience: Callable[[], float]
    finish: Callable[[], Message | bytes]
    is_optional: bool


class RecallService:
    """The use cases of RecallService. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        limits: RequestLimits,
        answer_bytes_max: int,
        answer_cache_bytes_max: int,
        observer: RecallObserver,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._answer_bytes_max = answer_bytes_max
        self._observer = observer
        self._answers = AnswerCache(answer_cache_bytes_max)
        engine.on_change(self._answers.resource_changed)
        engine.exchange.on_switch(self._answers.everything_changed)
        self._page_tokens = PageTokens(engine.store_id)

    def recall_again(self, request: recall_pb2.RecallRequest, key: bytes) -> bytes | None:
        """The answer to a request that was asked before, while nothing of its resource changed.

        Quick, for the event loop. None where it must be found by `recall`, which also says what is
        wrong with a request. `key` is the request's `request_key`.
        """
        arrived = time.monotonic()
        resource_id = request.resource_id
        if not self._answers.has(resource_id, key) or not self._may_repeat(request):
            return None
        # Taken after the read token was looked at: what it waited for may have ended the answer.
        kept = self._answers.get(resource_id, key)
        if kept is None:
            return None
        total_us = microseconds(time.monotonic() - arrived)
        self._observer.recalled_again(total_us)
        now = answers.repeated_info(self._engine.pending(resource_id), total_us)
        return answers.recall_bytes(request.request_id, kept, now)

    def _may_repeat(self, request: recall_pb2.RecallRequest) -> bool:
        """Whether the fields that are no part of a request's identity allow an answer at once."""
        if convert.envelope_faults(request).found:
            return False
        if not request.read_token:
            return True
        try:
            ready = self._engine.when_readable(request.resource_id, request.read_token)
        except SemanticRecallError:
            return False
        return ready.done() or not ready.cancel()

    def recall(self, request: recall_pb2.RecallRequest, call: Call) -> bytes | Later:
        """Find the messages that matter to a query; an encoded RecallResponse."""
        query = convert.recall_query(request, self._limits)
        call.budget.check()
        if not query.read_token:
            return self._recalled(request, query, call)
        ready = self._engine.when_readable(query.resource_id, query.read_token)
        query = replace(query, read_token="")
        if ready.done():
            return self._recalled(request, query, call)
        return Later(
            ready,
            call.budget.remaining,
            lambda: self._recalled(request, query, call),
            is_optional=False,
        )

    def _recalled(self, request: recall_pb2.RecallRequest, query: RecallQuery, call: Call) -> bytes:
        place = self._answers.begin(query.resource_id)
        answer = self._engine.recall(query, call.budget)
        info = answer.info
        kept = answers.kept_answer(answer, request.explain, self._engine.index_identity)
        if not query.recency_weight:  # else it would be another as soon as the clock has moved
            self._answers.put(place, call.key or request_key(request), kept)
        timings = answers.timings_of(info)
        timings.queue_us = call.clock.queue_us
        timings.total_us = call.clock.total_us(time.monotonic())
        self._observer.recalled(answer, timings.queue_us, timings.total_us)
        now = recall_pb2.RecallInfo(cache_hit=info.cache_hit, pending=info.pending, timings=timings)
        return answers.recall_bytes(request.request_id, kept, now.SerializeToString())

    def answer_cache_stats(self) -> AnswerCacheStats:
        """State of the answers kept."""
        return self._answers.stats()

    def index(
        self, request: recall_pb2.IndexRequest, call: Call
    ) -> recall_pb2.IndexResponse | Later:
        """Store messages and make them searchable."""
        batch = convert.index_batch(request, self._limits)
        given = None
        if request.vectors:
            batch, given = given_vectors(request, batch, self._engine.vectors.form)
        call.budget.check()

        def answered(answer: IndexAnswer) -> recall_pb2.IndexResponse:
            response = answers.index_response(request, batch, answer, call.clock)
            response.info.total_us = call.clock.total_us(time.monotonic())
            return response

        if not batch.drafts:
            return answered(IndexAnswer((), "", 0, 0, 0))
        ticket = self._engine.begin_index(
            batch.resource_id, batch.drafts, batch.wait, call.budget, given
        )
        if ticket.ready.done():
            return answered(ticket.answer())
        return Later(
            ticket.ready, ticket.patience, lambda: answered(ticket.answer()), is_optional=True
        )

    def forget(self, request: recall_pb2.ForgetRequest, call: Call) -> recall_pb2.ForgetResponse:
        """Remove messages from every answer."""
        target = forgetting_calls.checked_target(request, self._limits)
        call.budget.check()
        report = self._engine.forget(request.resource_id, target, call.budget, purge=request.purge)
        return forgetting_calls.forget_response(report)

    def list_messages(
        self, request: recall_pb2.ListMessagesRequest, call: Call
    ) -> recall_pb2.ListMessagesResponse:
        """One page of history."""
        query = self._list_query(request)
        page_query = _described(query)
        position = self._page_tokens.read(page_query, request.page_token)
        response = recall_pb2.ListMessagesResponse()
        room = self._answer_bytes_max - PAGE_TOKEN_BYTES_MAX
        last: StoredMessage | None = None
        for message in self._messages(replace(query, after=position), call.budget):
            target = response.messages.add()
            answers.fill_message(target, message)
            room -= target.ByteSize() + MESSAGE_FRAME_BYTES
            is_full = len(response.messages) > query.limit or room < 0
            if is_full and last is not None:
                del response.messages[-1]
                position = (last.create_time_ns, last.seq)
                response.next_page_token = self._page_tokens.make(page_query, position)
                break
            last = message
        return response

    def _messages(self, query: ListQuery, budget: CallBudget) -> Iterator[StoredMessage]:
        """Messages of a list, one more than its limit where there are more; read in steps."""
        left = query.limit + 1
        while left > 0:
            budget.check()
            step = min(left, PAGE_READ_MESSAGES)
            rows = self._engine.list_messages(replace(query, limit=step))
            yield from rows
            if len(rows) < step:
                return
            left -= step
            query = replace(query, after=(rows[-1].create_time_ns, rows[-1].seq))

    def _list_query(self, request: recall_pb2.ListMessagesRequest) -> ListQuery:
        v = Violations()
        v.identifier("resource_id", request.resource_id)
        v.optional_identifier("thread_id", request.thread_id)
        limit = convert.page_size(v, request.page_size, self._limits)
        v.size("page_token", request.page_token, PAGE_TOKEN_BYTES_MAX)
        time_from, time_to = convert.time_range(v, request)
        roles = v.roles("roles", request.roles, Role)
        v.raise_if_found()
        return ListQuery(
            resource_id=request.resource_id,
            thread_id=request.thread_id or None,
            limit=limit,
            newest_first=request.newest_first,
            time_from_ns=time_from,
            time_to_ns=time_to,
            roles=roles,
        )

    def get_messages(
        self, request: recall_pb2.GetMessagesRequest, call: Call
    ) -> recall_pb2.GetMessagesResponse:
        """Messages by id."""
        v = Violations()
        v.identifier("resource_id", request.resource_id)
        v.identifiers("message_ids", request.message_ids, 1, self._limits.page_size_max)
        v.raise_if_found()
        call.budget.check()
        unique = list(dict.fromkeys(request.message_ids))
        found = {m.id: m for m in self._engine.get_messages(request.resource_id, unique)}
        response = recall_pb2.GetMessagesResponse()
        room = self._answer_bytes_max
        for message_id in request.message_ids:
            target = response.messages.add()
            answers.fill_message(target, found[message_id])
            room -= target.ByteSize() + MESSAGE_FRAME_BYTES
            if room < 0:
                raise AnswerTooLargeError(
                    f"the answer would be larger than {self._answer_bytes_max} bytes; "
                    "ask for fewer messages"
                )
        return response

    def list_threads(
        self, request: recall_pb2.ListThreadsRequest, call: Call
    ) -> recall_pb2.ListThreadsResponse:
        """One page of the resource's threads."""
        v = Violations()
        v.identifier("resource_id", request.resource_id)
        limit = convert.page_size(v, request.page_size, self._limits)
        v.size("page_token", request.page_token, PAGE_TOKEN_BYTES_MAX)
        v.raise_if_found()
        page_query = ("threads", request.resource_id)
        position = self._page_tokens.read(page_query, request.page_token)
        call.budget.check()
        threads = self._engine.list_threads(request.resource_id, limit + 1, position)
        response = recall_pb2.ListThreadsResponse()
        for thread in threads[:limit]:
            answers.fill_thread(response.threads.add(), thread)
        if len(threads) > limit:
            last = threads[limit - 1]
            position = (last.last_create_time_ns, last.last_seq)
            response.next_page_token = self._page_tokens.make(page_query, position)
        return response

    def transfer_thread(
        self, request: recall_pb2.TransferThreadRequest, call: Call
    ) -> recall_pb2.TransferThreadResponse:
        """Give a thread to another resource."""
        v = Violations()
        v.identifier("resource_id", request.resource_id)
        v.identifier("thread_id", request.thread_id)
        v.identifier("to_resource_id", request.to_resource_id)
        if request.resource_id and request.resource_id == request.to_resource_id:
            v.add("to_resource_id", "must be another resource than resource_id")
        v.raise_if_found()
        call.budget.check()
        moved = self._engine.transfer_thread(
            request.resource_id, request.thread_id, request.to_resource_id
        )
        return recall_pb2.TransferThreadResponse(messages=moved)

    def embed(self, request: recall_pb2.EmbedRequest, call: Call) -> recall_pb2.EmbedResponse:
        """Texts to unit vectors."""
        texts, role = convert.embed_texts(request, self._limits)
        call.budget.check()
        embedding = self._engine.embed(texts, role, call.budget)
        return answers.embed_response(
            embedding.texts, embedding.dimensions, embedding.index_identity
        )


def is_query_embedding(request: recall_pb2.EmbedRequest) -> bool:
    """Whether an Embed call belongs with the recalls."""
    return request.role == int(EmbedRole.QUERY)


def _described(query: ListQuery) -> tuple[str, ...]:
    """What a page token of this list is bound to; the page's size may change."""
    roles = ",".join(str(int(role)) for role in sorted(query.roles))
    thread = "all" if query.thread_id is None else f"one:{query.thread_id}"
    times = f"{query.time_from_ns}-{query.time_to_ns}"
    return ("messages", query.resource_id, thread, str(query.newest_first), times, roles)


def require_resource(resource_id: str) -> None:
    """Raise unless it is a usable resource id."""
    v = Violations()
    v.identifier("resource_id", resource_id)
    v.raise_if_found()
