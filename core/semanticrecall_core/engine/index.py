"""The Index use case: on disk first, then searchable."""

from __future__ import annotations

import time
from collections.abc import Sequence

from semanticrecall_core.engine.backlog import EmbeddingBacklog, WaitReport
from semanticrecall_core.engine.read_token import make_read_token
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    AppendOutcome,
    CallBudget,
    IndexAnswer,
    IndexResult,
    MessageDraft,
    PendingRow,
    Status,
    Wait,
)

# An Index call that waits for its vectors answers this long before its deadline, so that the
# caller still hears that the messages are on disk.
ANSWER_MARGIN_SECONDS = 0.05


class IndexUseCase:
    """Stores drafts and sees to it that they become searchable. Thread-safe."""

    def __init__(self, store: MessageStore, backlog: EmbeddingBacklog) -> None:
        self._store = store
        self._backlog = backlog

    def __call__(
        self, resource_id: str, drafts: Sequence[MessageDraft], wait: Wait, budget: CallBudget
    ) -> IndexAnswer:
        """See `Engine.index`."""
        started = time.perf_counter_ns()
        if not drafts:
            return IndexAnswer((), make_read_token(self._store.store_id, resource_id, 0), 0, 0, 0)
        self._backlog.check_room(sum(draft.embeddable for draft in drafts))
        outcomes = self._store.append(resource_id, drafts, budget)
        durable_us = (time.perf_counter_ns() - started) // 1000
        # A draft given twice in one call: only its last row is on record, so only that one waits.
        last = {outcome.seq: i for i, outcome in enumerate(outcomes)}
        pending = [
            PendingRow(resource_id, outcome.seq, outcome.revision, drafts[i].text)
            for i, outcome in enumerate(outcomes)
            if outcome.pending and last[outcome.seq] == i
        ]
        self._backlog.add(pending)
        seconds = budget.remaining() - ANSWER_MARGIN_SECONDS if wait is Wait.SEARCHABLE else 0.0
        report = self._backlog.wait([(r.seq, r.revision) for r in pending], max(0.0, seconds))
        return IndexAnswer(
            results=tuple(
                _result(draft, outcome, report)
                for draft, outcome in zip(drafts, outcomes, strict=True)
            ),
            read_token=make_read_token(
                self._store.store_id, resource_id, max(o.revision for o in outcomes)
            ),
            embeddings_computed=report.computed,
            embeddings_cached=report.cached,
            durable_us=durable_us,
        )


def _result(draft: MessageDraft, outcome: AppendOutcome, report: WaitReport) -> IndexResult:
    if outcome.seq in report.pending and draft.embeddable:
        return IndexResult(Status.PENDING, report.pending[outcome.seq])
    if not draft.embeddable and outcome.status is not Status.UNCHANGED:
        return IndexResult(Status.NOT_EMBEDDED)
    return IndexResult(outcome.status)
