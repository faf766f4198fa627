"""An answer put together: groups made whole, what fits its size, and the context as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from semanticrecall_core.engine.answer_size import (
    bytes_of,
    bytes_of_all,
    utf8_bytes,
    within_bytes,
)
from semanticrecall_core.ranking.context import render_default, render_mastra
from semanticrecall_core.types.ports import Embedder, MessageStore
from semanticrecall_core.types.recalling import (
    ContextFormat,
    ExcludedReason,
    GroupState,
    Hit,
    RecalledMessage,
    RecallInfo,
    RecallQuery,
)
from semanticrecall_core.types.values import CallBudget, StoredMessage
from semanticrecall_core.types.windows import GroupQuery, MatchingRows, WindowRows

GROUP_MESSAGES_MAX = 64


@dataclass(frozen=True, slots=True)
class Found:
    """What a recall found: hits by rank, their windows, and the filter's rows."""

    hits: tuple[Hit, ...]
    windows: WindowRows
    matching: MatchingRows | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A hit that is not in the answer: `reason` is TOKENS, ANSWER_SIZE or CHANGED.

    `message` is None where the record did not give it.
    """

    hit: Hit
    reason: ExcludedReason
    message: StoredMessage | None


@dataclass(frozen=True, slots=True)
class Assembled:
    """An answer: its messages in their order, the context, and the hits left out, by rank."""

    messages: tuple[RecalledMessage, ...]
    context_text: str
    left_out: tuple[LeftOut, ...]


class AnswerAssembly:
    """Puts answers together. Thread-safe; reads only."""

    def __init__(self, store: MessageStore, embedder: Embedder, bytes_max: int) -> None:
        """`bytes_max`: of encoded messages and context in one answer."""
        self._store = store
        self._embedder = embedder
        self._bytes_max = bytes_max

    def __call__(
        self, query: RecallQuery, found: Found, info: RecallInfo, budget: CallBudget
    ) -> Assembled:
        """Put an answer together; `info` says how much was left out.

        Raises:
            DeadlineExceededError, CancelledError: the budget is over.
        """
        budget.check()
        messages, text = self._bounded(query, self._assemble(query, found, info), info)
        there = {recalled.message.seq for recalled in messages}
        rows = {row.seq: row for row in found.windows.messages}
        left_out = tuple(
            LeftOut(hit, ExcludedReason.ANSWER_SIZE, rows.get(hit.seq))
            for hit in found.hits
            if hit.seq not in there
        )
        return Assembled(messages, text, left_out)

    def _assemble(
        self, query: RecallQuery, found: Found, info: RecallInfo
    ) -> tuple[RecalledMessage, ...]:
        is_allowed = _condition_on_all(query, found.matching)
        rows = [row for row in found.windows.messages if is_allowed is None or is_allowed(row)]
        hits, by_seq = found.hits, {hit.seq: hit for hit in found.hits}
        states: dict[int, GroupState] = {}
        dropped = set(found.windows.dropped)
        if any(row.group_id for row in rows):
            rows, too_large = self._complete_groups(by_seq, rows, states, info, is_allowed)
            dropped |= too_large
        present = {row.seq for row in rows}
        info.messages_dropped = len(dropped - present)
        ranks = {hit.seq: i for i, hit in enumerate((h for h in hits if h.seq in present), 1)}
        return tuple(
            [
                RecalledMessage(
                    row,
                    ranks.get(row.seq, 0),
                    by_seq.get(row.seq),
                    states.get(row.seq, GroupState.NO_GROUP),
                )
                for row in rows
            ]
        )

    def _complete_groups(
        self,
        by_seq: dict[int, Hit],
        rows: list[StoredMessage],
        states: dict[int, GroupState],
        info: RecallInfo,
        is_allowed: Callable[[StoredMessage], bool] | None,
    ) -> tuple[list[StoredMessage], set[int]]:
        """Make every group whole, or absent but for its hits.

        Absent is a group that is too large, or has a member that is not allowed, or changed after
        the windows were read. Groups of better hits come first, should the room not do for all.

        Returns:
            Rows in answer order, and the seqs of all members of groups the room did not do for.
        """
        kept = {row.seq: row for row in rows}
        absent: list[str] = []
        dropped: set[int] = set()
        room = self._bytes_max
        ranks = {seq: rank for rank, seq in enumerate(by_seq)}
        groups: dict[tuple[str, str], list[StoredMessage]] = {}
        for row in sorted(rows, key=lambda row: ranks.get(row.seq, len(ranks))):
            if row.group_id:
                groups.setdefault((row.thread_id, row.group_id), []).append(row)
        for (thread_id, group_id), present in groups.items():
            group = self._store.group(
                GroupQuery(rows[0].resource_id, thread_id, group_id, GROUP_MESSAGES_MAX, room)
            )
            members = group.messages
            if (
                members is not None
                and (is_allowed is None or all(map(is_allowed, members)))
                and _unchanged(members, present, by_seq)
            ):
                for member in members:
                    if member.seq not in kept:
                        room = max(0, room - bytes_of(member))
                    kept[member.seq] = member
                    states[member.seq] = GroupState.WHOLE
                continue
            dropped.update(group.dropped)
            for row in present:
                if row.seq in by_seq:
                    states[row.seq] = GroupState.HIT_ONLY
                else:
                    del kept[row.seq]
            absent.append(group_id)
        info.absent_group_ids = tuple(absent)
        return _answer_order(kept.values()), dropped

    def _bounded(
        self, query: RecallQuery, messages: tuple[RecalledMessage, ...], info: RecallInfo
    ) -> tuple[tuple[RecalledMessage, ...], str]:
        """Messages and context that fit the answer together; the best hit stays in any case."""
        room = limit = self._bytes_max
        while True:
            kept = within_bytes(messages, room)
            text = self._render(query, kept, info)
            size = bytes_of_all(kept) + utf8_bytes(text)
            if size <= limit or len(kept) <= 1:
                info.messages_dropped += len(messages) - len(kept)
                return kept, text
            # Text stands in the context a second time, escaped: as much less of both.
            room = min(room, size) * limit // size - 1

    def _render(
        self, query: RecallQuery, messages: tuple[RecalledMessage, ...], info: RecallInfo
    ) -> str:
        if query.context_format is ContextFormat.NONE or not messages:
            return ""
        started = time.perf_counter_ns()
        if query.context_other_threads_only:
            messages = tuple(m for m in messages if m.message.thread_id != query.thread_id)
        if query.context_format is ContextFormat.MASTRA:
            text = render_mastra(messages, thread_id=query.thread_id)
        else:
            text = render_default(messages, thread_id=query.thread_id, time_zone=query.time_zone)
        info.render_us = _microseconds_since(started)
        return text


def _answer_order(rows: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Threads by their first message here; inside a thread by (create_time, arrival)."""
    ordered = sorted(rows, key=lambda row: (row.create_time_ns, row.seq))
    first: dict[str, int] = {}
    for position, row in enumerate(ordered):
        first.setdefault(row.thread_id, position)
    return sorted(ordered, key=lambda row: first[row.thread_id])


def _unchanged(
    members: Sequence[StoredMessage], present: list[StoredMessage], by_seq: dict[int, Hit]
) -> bool:
    """Whether a group is as it was when its hits were found and their windows read."""
    revisions = {member.seq: member.revision for member in members}
    return all(revisions.get(row.seq) == row.revision for row in present) and all(
        by_seq[seq].revision == revision for seq, revision in revisions.items() if seq in by_seq
    )


def _condition_on_all(
    query: RecallQuery, matching: MatchingRows | None
) -> Callable[[StoredMessage], bool] | None:
    """What any message of the answer must fulfil: not excluded, and the filter matches.

    None where nothing is asked of it.
    """
    excluded = frozenset(query.excluded_ids)
    if matching is None:
        return (lambda row: row.id not in excluded) if excluded else None
    return lambda row: row.id not in excluded and matching.allow(row.seq, row.revision)


def _microseconds_since(started_ns: int) -> int:
    return (time.perf_counter_ns() - started_ns) // 1000
