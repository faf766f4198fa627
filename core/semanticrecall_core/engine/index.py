"""The Index use case: on disk first, then searchable."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.engine.read_token import make_read_token
from semanticrecall_core.engine.waiting import WaitReport, Watch
from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.given_vectors import GivenVectors
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    AppendOutcome,
    CallBudget,
    IndexAnswer,
    IndexResult,
    MessageDraft,
    PendingRow,
    Status,
    VectorRecord,
    Wait,
)

# An Index call that waits for its vectors answers this long before its deadline, so that the
# caller still hears that the messages are on disk.
ANSWER_MARGIN_SECONDS = 0.05

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Committed:
    """What the commit of an Index call said."""

    outcomes: Sequence[AppendOutcome]
    embeddable: Sequence[bool]
    rows: dict[int, int]
    read_token: str
    durable_us: int


class IndexTicket:
    """An Index call whose messages are on disk; it holds none of their text. Thread-safe."""

    def __init__(
        self, backlog: EmbeddingBacklog, committed: _Committed, watch: Watch, budget: CallBudget
    ) -> None:
        self._backlog = backlog
        self._committed = committed
        self._watch = watch
        self._budget = budget

    @property
    def ready(self) -> Future[None]:
        """Ends when the call can be answered as asked.

        That is at once for `Wait.DURABLE`, else when every message is searchable, gone, or has
        failed once. Callbacks run on a thread that embeds: they must be quick and must not call
        the engine.
        """
        return self._watch.done

    def patience(self) -> float:
        """Seconds to wait for `ready` at most, so that an answer still comes in time."""
        return max(0.0, self._budget.remaining() - ANSWER_MARGIN_SECONDS)

    def answer(self) -> IndexAnswer:
        """The answer as of now, PENDING for what is not searchable; quick."""
        committed = self._committed
        report = self._backlog.report(committed.rows, self._watch)
        return IndexAnswer(
            results=tuple(
                _result(embeddable, outcome, report)
                for embeddable, outcome in zip(
                    committed.embeddable, committed.outcomes, strict=True
                )
            ),
            read_token=committed.read_token,
            embeddings_computed=report.computed,
            embeddings_cached=report.cached,
            durable_us=committed.durable_us,
        )


class TextsKept(Protocol):
    """Whatever keeps vectors of texts, told by the texts: the embedders' caches."""

    def forget_texts(self, texts: Sequence[str], owner: str = "") -> int:
        """Drop the owner's vectors of these texts; see Embedder."""
        ...


class IndexUseCase:
    """Stores drafts and sees to it that they become searchable. Thread-safe."""

    def __init__(
        self, store: MessageStore, texts_kept: TextsKept, backlog: EmbeddingBacklog
    ) -> None:
        self._store = store
        self._texts_kept = texts_kept
        self._backlog = backlog

    def __call__(
        self, resource_id: str, drafts: Sequence[MessageDraft], wait: Wait, budget: CallBudget
    ) -> IndexAnswer:
        """See `Engine.index`."""
        ticket = self.begin(resource_id, drafts, wait, budget)
        # On disk in any case: where time runs out the answer says what is pending.
        with suppress(TimeoutError):
            ticket.ready.result(min(ticket.patience(), threading.TIMEOUT_MAX))
        return ticket.answer()

    def begin(
        self,
        resource_id: str,
        drafts: Sequence[MessageDraft],
        wait: Wait,
        budget: CallBudget,
        given: GivenVectors | None = None,
    ) -> IndexTicket:
        """See `Engine.begin_index`."""
        started = time.perf_counter_ns()
        if drafts:
            self._backlog.check_room(sum(draft.embeddable for draft in drafts))
        outcomes = self._store.append(resource_id, drafts, budget) if drafts else []
        durable_us = (time.perf_counter_ns() - started) // 1000
        # A draft given twice in one call: only its last row is on record, so only that one waits.
        last = {outcome.seq: i for i, outcome in enumerate(outcomes)}
        pending = [
            PendingRow(resource_id, outcome.seq, outcome.revision, drafts[i].text)
            for i, outcome in enumerate(outcomes)
            if outcome.pending and last[outcome.seq] == i
        ]
        if given is not None:
            pending = self._without_given(resource_id, drafts, outcomes, pending, given)
        self._backlog.add(pending, gather=wait is Wait.DURABLE)
        self._drop_replaced(resource_id, outcomes)
        revision = max((outcome.revision for outcome in outcomes), default=0)
        committed = _Committed(
            outcomes=outcomes,
            embeddable=[draft.embeddable for draft in drafts],
            rows={row.seq: row.revision for row in pending},
            read_token=make_read_token(self._store.store_id, resource_id, revision),
            durable_us=durable_us,
        )
        watch = self._backlog.watch(committed.rows if wait is Wait.SEARCHABLE else {})
        return IndexTicket(self._backlog, committed, watch, budget)

    def _without_given(
        self,
        resource_id: str,
        drafts: Sequence[MessageDraft],
        outcomes: Sequence[AppendOutcome],
        pending: list[PendingRow],
        given: GivenVectors,
    ) -> list[PendingRow]:
        """Store the vectors that came with messages; returns what is still to be embedded.

        They are of the row's revision, as embedded ones are. The messages are on disk: where this
        fails they are embedded.
        """
        ids = {outcome.seq: draft.id for draft, outcome in zip(drafts, outcomes, strict=True)}
        with_vectors = [row for row in pending if ids[row.seq] in given.by_id]
        records = [
            VectorRecord(resource_id, row.seq, row.revision, given.by_id[ids[row.seq]])
            for row in with_vectors
        ]
        if not records:
            return pending
        try:
            stored = self._store.put_vectors(records, given.generation)
        except SemanticRecallError as error:
            _log.warning("given_vectors_not_stored", messages=len(records), reason=error.reason)
            return pending
        done = {row.seq for row, taken in zip(with_vectors, stored, strict=True) if taken}
        return [row for row in pending if row.seq not in done]

    def _drop_replaced(self, resource_id: str, outcomes: Sequence[AppendOutcome]) -> None:
        """Take what was made from replaced texts out of the cache.

        The messages are on disk, and their caller hears so even where this fails: what is left
        then leaves with the resource, or when the cache makes room.
        """
        replaced = [o.replaced_text for o in outcomes if o.replaced_text is not None]
        if not replaced:
            return
        try:
            self._texts_kept.forget_texts(replaced, resource_id)
        except SemanticRecallError as error:
            _log.error("replaced_texts_not_dropped", texts=len(replaced), reason=error.reason)


def _result(embeddable: bool, outcome: AppendOutcome, report: WaitReport) -> IndexResult:
    if outcome.seq in report.pending and embeddable:
        return IndexResult(Status.PENDING, report.pending[outcome.seq])
    if not embeddable and outcome.status is not Status.UNCHANGED:
        return IndexResult(Status.NOT_EMBEDDED)
    return IndexResult(outcome.status)
