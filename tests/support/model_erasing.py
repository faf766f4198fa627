"""What Forget, purge and retention do to a plain list of rows; a part of `ModelStore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semanticrecall_core.types.values import (
    CallBudget,
    ForgetCondition,
    ForgetOutcome,
    ForgetTarget,
    PurgeState,
    RowsToForget,
)
from support.model_rows import Row


def meets(row: Row, condition: ForgetCondition) -> bool:
    """Whether a message is one of those that a condition names."""
    begin, end = condition.time_from_ns, condition.time_to_ns
    return (
        condition.thread_id in (None, row.draft.thread_id)
        and (not condition.authors or row.draft.author in condition.authors)
        and (not condition.roles or row.draft.role in condition.roles)
        and (begin is None or row.time_ns >= begin)
        and (end is None or row.time_ns < end)
    )


def named(row: Row, target: ForgetTarget) -> bool:
    """Whether a target names a message of its resource."""
    if target.message_ids is not None:
        return row.draft.id in target.message_ids
    if target.rows is not None:
        return (row.seq, row.revision) in target.rows
    if target.thread_id is not None:
        return row.draft.thread_id == target.thread_id
    if target.create_time_before_ns is not None:
        return row.time_ns < target.create_time_before_ns
    if target.condition is not None:
        return row.revision > target.changed_after and meets(row, target.condition)
    return target.everything


class ModelErasing:
    """Everything goes at once; there are no files that could hold anything."""

    rows: list[Row]
    _revision: int
    _thread_keys: dict[tuple[str, str], int]
    _of: Callable[[str], list[Row]]
    _settle: Callable[[], None]
    _tell_gone: Callable[[str, Sequence[int]], None]
    _tell_dropped: Callable[[str], None]
    _tell_changed: Callable[..., None]
    _forgotten_revision = 0
    _erased_revision = 0
    _retention_time_ns = 0

    def forget(self, resource_id: str, target: ForgetTarget) -> ForgetOutcome:
        gone = [r for r in self._of(resource_id) if named(r, target)]
        if not gone:
            return ForgetOutcome((), 0, 0)
        self._revision += 1
        self._forgotten_revision = self._revision
        self.rows = [r for r in self.rows if r not in gone]
        threads = len(self._thread_keys)
        self._settle()
        seqs = tuple(sorted(r.seq for r in gone))
        if target.everything:
            self._tell_dropped(resource_id)
        else:
            self._tell_gone(resource_id, seqs)
        self._tell_changed(resource_id)
        return ForgetOutcome(
            seqs,
            sum(len(vectors) for row in gone for vectors in row.made.values()),
            threads - len(self._thread_keys),
            () if target.everything else tuple(r.draft.text for r in gone if r.draft.embeddable),
            texts_left_out=target.everything,
            revision=self._revision,
        )

    def rows_to_forget(
        self,
        resource_id: str,
        condition: ForgetCondition,
        after: tuple[int, int] | None,
        changed_after: int,
        budget: CallBudget,
    ) -> RowsToForget:
        budget.check()
        found = [
            (row.seq, row.revision)
            for row in sorted(self._of(resource_id), key=lambda r: (r.time_ns, r.seq))
            if meets(row, condition)
            and row.revision > changed_after
            and (after is None or (row.time_ns, row.seq) > after)
        ]
        return RowsToForget(tuple(found), self._revision, None)

    def purge_state(self) -> PurgeState:
        return PurgeState(self._forgotten_revision, self._erased_revision)

    def erase(self, budget: CallBudget) -> int:
        budget.check()
        return self._forgotten_revision

    def erased(self, revision: int) -> None:
        self._erased_revision = max(self._erased_revision, revision)

    def resources_older_than(
        self, before_ns: int, after: str, limit: int
    ) -> tuple[list[str], str | None]:
        every = sorted({r.resource_id for r in self.rows if r.resource_id > after}, key=str.encode)
        looked_at = every[:limit]
        old = {r.resource_id for r in self.rows if r.time_ns < before_ns}
        return [r for r in looked_at if r in old], looked_at[-1] if len(every) >= limit else None

    def oldest_rows(
        self, resource_id: str, before_ns: int | None, messages_max: int, limit: int
    ) -> tuple[tuple[int, int], ...]:
        rows = sorted(self._of(resource_id), key=lambda r: (r.time_ns, r.seq))
        too_many = len(rows) - messages_max if messages_max else 0
        return tuple(
            (row.seq, row.revision)
            for position, row in enumerate(rows)
            if position < too_many or (before_ns is not None and row.time_ns < before_ns)
        )[:limit]

    def retention_time_ns(self) -> int:
        return self._retention_time_ns

    def keep_retention_time(self, time_ns: int) -> None:
        self._revision += 1
        self._retention_time_ns = time_ns
