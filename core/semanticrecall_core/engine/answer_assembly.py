"""An answer put together: groups made whole, what fits its size, and the context as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial

from semanticrecall_core.engine.answer_size import (
    bytes_of,
    bytes_of_all,
    utf8_bytes,
    within_bytes,
)
from semanticrecall_core.engine.token_budget import ToFit, TokenBudget
from semanticrecall_core.ranking.budget import Choice, Sides
from semanticrecall_core.ranking.context import ContextForm
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
    """A hit that is not in the answer: `reason` is TOKENS or ANSWER_SIZE.

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
        self._token_budget = TokenBudget(embedder, store.codec)
        self._bytes_max = bytes_max

    def __call__(
        self, query: RecallQuery, found: Found, info: RecallInfo, budget: CallBudget
    ) -> Assembled:
        """Put an answer together; `info` says how much was left out.

        Raises:
            DeadlineExceededError, CancelledError: the budget is over.
        """
        budget.check()
        whole = self._assemble(query, found, info)
        form = _context_form(query)
        for_tokens: frozenset[int] = frozenset()
        if query.tokens_max and whole:
            choice = _choice(query, found, whole)
            fitted = self._token_budget(
                ToFit(whole, choice, query.tokens_max, form, partial(self._bounded, info)), budget
            )
            messages, text, for_tokens = fitted.messages, fitted.context_text, fitted.left_out
            info.messages_dropped_for_tokens = len(for_tokens) + fitted.is_cut
            info.tokens, info.context_tokens = fitted.tokens, fitted.context_tokens
            info.context_did_not_fit = fitted.context_did_not_fit
        else:
            messages, text = self._bounded(info, whole, form)
        info.messages_dropped += len(whole) - len(for_tokens) - len(messages)
        info.absent_group_ids = _absent_groups(info.absent_group_ids, whole, messages)
        return Assembled(_ranked(messages), text, _left_out(found, messages, for_tokens))

    def _assemble(
        self, query: RecallQuery, found: Found, info: RecallInfo
    ) -> tuple[RecalledMessage, ...]:
        is_allowed = _condition_on_all(query, found.matching)
        rows = list(found.windows.messages)
        if is_allowed is not None:
            rows = [row for row in rows if is_allowed(row)]
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
        self, info: RecallInfo, messages: Sequence[RecalledMessage], form: ContextForm | None
    ) -> tuple[tuple[RecalledMessage, ...], str]:
        """Messages and context that fit the answer together; the best hit stays in any case."""
        room = limit = self._bytes_max
        while True:
            kept = within_bytes(messages, room)
            started = time.perf_counter_ns()
            text = form.render(kept) if form is not None else ""
            info.render_us += _microseconds_since(started)
            size = bytes_of_all(kept) + utf8_bytes(text)
            if size <= limit or len(kept) <= 1:
                return kept, text
            # Text stands in the context a second time, escaped: as much less of both.
            room = min(room, size) * limit // size - 1


def _context_form(query: RecallQuery) -> ContextForm | None:
    if query.context_format is ContextFormat.NONE:
        return None
    return ContextForm(
        query.context_format, query.thread_id, query.time_zone, query.context_other_threads_only
    )


def _choice(query: RecallQuery, found: Found, messages: Sequence[RecalledMessage]) -> Choice:
    """What a budget may take: hits by rank, whole groups, and each hit's window.

    The windows are those of the rows that were read: where a filter left out a neighbour, the
    window reaches as many rows further, to neighbours that another hit brought.
    """
    seqs = {recalled.message.seq for recalled in messages}
    groups: dict[tuple[str, str], list[int]] = {}
    for recalled in messages:
        if recalled.group_state is GroupState.WHOLE:
            key = (recalled.message.thread_id, recalled.message.group_id)
            groups.setdefault(key, []).append(recalled.message.seq)
    whole = {seq: tuple(members) for members in groups.values() for seq in members}
    threads: dict[str, list[int]] = {}
    for row in found.windows.messages:
        threads.setdefault(row.thread_id, []).append(row.seq)
    hits = frozenset(hit.seq for hit in found.hits)
    windows: dict[int, Sides] = {}
    for thread in threads.values():
        for place, seq in enumerate(thread):
            if seq in hits:
                earlier = thread[max(0, place - query.before) : place]
                later = thread[place + 1 : place + 1 + query.after]
                windows[seq] = (
                    [seq for seq in reversed(earlier) if seq in seqs],
                    [seq for seq in later if seq in seqs],
                )
    return Choice(tuple(hit.seq for hit in found.hits if hit.seq in seqs), whole, windows)


def _absent_groups(
    absent: tuple[str, ...], whole: Sequence[RecalledMessage], kept: Sequence[RecalledMessage]
) -> tuple[str, ...]:
    """Those absent before, and those that were whole and are not any more."""
    were = _whole_groups(whole)
    if not were:
        return absent
    still = _whole_groups(kept)
    return absent + tuple(key[1] for key in were if key not in still)


def _whole_groups(messages: Sequence[RecalledMessage]) -> dict[tuple[str, str], None]:
    return {
        (m.message.thread_id, m.message.group_id): None
        for m in messages
        if m.group_state is GroupState.WHOLE
    }


def _ranked(messages: tuple[RecalledMessage, ...]) -> tuple[RecalledMessage, ...]:
    """The same with ranks from 1 on without a gap."""
    hits = [m for m in messages if m.rank]
    if max([m.rank for m in hits], default=0) == len(hits):
        return messages
    hits.sort(key=lambda m: m.rank)
    ranks = {recalled.message.seq: rank for rank, recalled in enumerate(hits, 1)}
    return tuple(m._replace(rank=ranks.get(m.message.seq, 0)) for m in messages)


def _left_out(
    found: Found, messages: Sequence[RecalledMessage], for_tokens: Set[int]
) -> tuple[LeftOut, ...]:
    there = {recalled.message.seq for recalled in messages}
    missing = [hit for hit in found.hits if hit.seq not in there]
    if not missing:
        return ()
    rows = {row.seq: row for row in found.windows.messages}
    return tuple(
        LeftOut(
            hit,
            ExcludedReason.TOKENS if hit.seq in for_tokens else ExcludedReason.ANSWER_SIZE,
            rows.get(hit.seq),
        )
        for hit in missing
    )


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
