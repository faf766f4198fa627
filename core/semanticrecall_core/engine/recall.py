"""The Recall use case: one embedding, one scan, one fetch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.engine.answer_size import (
    bytes_of,
    bytes_of_all,
    utf8_bytes,
    within_bytes,
)
from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.engine.read_token import read_revision
from semanticrecall_core.ranking.context import render_default, render_mastra
from semanticrecall_core.types.errors import (
    CorruptDataError,
    FieldViolation,
    InvalidArgumentError,
    UnimplementedError,
)
from semanticrecall_core.types.filters import Filter, filter_keys
from semanticrecall_core.types.ports import Embedder, MessageStore, VectorIndex
from semanticrecall_core.types.recalling import (
    ContextFormat,
    GroupState,
    Hit,
    Mode,
    RecallAnswer,
    RecalledMessage,
    RecallInfo,
    RecallQuery,
    Scope,
    WhyEmpty,
)
from semanticrecall_core.types.text import has_visible_text
from semanticrecall_core.types.values import (
    CallBudget,
    StoredMessage,
    VectorAnswer,
    VectorHit,
    VectorQuery,
)
from semanticrecall_core.types.windows import GroupQuery, MatchingRows, WindowQuery, WindowRows

if TYPE_CHECKING:
    from semanticrecall_core.types.values import FloatRows

GROUP_MESSAGES_MAX = 64
# A hit can be edited, moved or forgotten between the search and the fetch; what is asked is then
# asked anew, so that top_k is still filled. After so many rounds, during which someone changed
# hits without pause, those that changed in the last one are left out.
SEARCH_ROUNDS_MAX = 3


@dataclass(frozen=True, slots=True)
class RecallLimits:
    """Limits of one answer.

    Attributes:
        answer_bytes_max: most bytes of encoded messages and context in one answer.
        filter_keys: keys that a filter may name though no message carries them yet.
    """

    answer_bytes_max: int
    filter_keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a recall found: hits by rank, their windows, and the filter's rows."""

    hits: tuple[VectorHit, ...]
    windows: WindowRows
    matching: MatchingRows | None


_NO_ROWS = WindowRows((), ())


class RecallUseCase:
    """Answers RecallQuery. Thread-safe; reads only."""

    def __init__(
        self,
        store: MessageStore,
        embedder: Embedder,
        index: VectorIndex,
        backlog: EmbeddingBacklog,
        limits: RecallLimits,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._index = index
        self._backlog = backlog
        self._limits = limits

    def __call__(self, query: RecallQuery, budget: CallBudget) -> RecallAnswer:
        """See `Engine.recall`."""
        if query.mode not in (None, Mode.DENSE):
            raise UnimplementedError("ranking.mode: only MODE_DENSE is in this version")
        info = RecallInfo(query.scope)
        if query.read_token:
            revision = read_revision(query.read_token, self._store.store_id, query.resource_id)
            self._backlog.wait_for_resource(query.resource_id, revision, budget)
        info.pending = self._backlog.pending(query.resource_id)
        vector = self._query_vector(query, info, budget)
        if vector is None:
            info.why_empty = WhyEmpty.NO_QUERY
            return RecallAnswer((), "", info)
        budget.check()
        messages = self._assemble(query, self._find(query, vector, info, budget), info)
        budget.check()
        return RecallAnswer(*self._bounded(query, messages, info), info)

    def _find(
        self, query: RecallQuery, vector: FloatRows, info: RecallInfo, budget: CallBudget
    ) -> _Found:
        """Hits and their windows; each hit is of the revision that was found and met all."""
        found = _Found((), _NO_ROWS, None)
        for _ in range(SEARCH_ROUNDS_MAX):
            budget.check()
            conditions, matching = self._conditions(query, vector, info, budget)
            hits = self._search(query, conditions, info)
            windows = self._fetch(query, hits, matching, info)
            there = {row.seq: row.revision for row in windows.messages}
            dropped = frozenset(windows.dropped)
            kept = [h for h in hits if there.get(h.seq) == h.revision or h.seq in dropped]
            found = _Found(tuple(kept), windows, matching)
            if len(kept) == len(hits):
                return found
        info.best_score = found.hits[0].score if found.hits else None
        if not found.hits:
            info.why_empty = WhyEmpty.FILTERED
        return found

    def _query_vector(
        self, query: RecallQuery, info: RecallInfo, budget: CallBudget
    ) -> FloatRows | None:
        if query.embedding is not None:
            return _unit(query.embedding, self._embedder.dimensions)
        if not has_visible_text(query.text):
            return None
        started = time.perf_counter_ns()
        embedded = self._embedder.embed_query(query.text, budget, query.resource_id)
        info.embed_us = _microseconds_since(started)
        info.query_tokens = embedded.tokens
        info.query_truncated = embedded.truncated
        info.cache_hit = embedded.computed == 0
        vector: FloatRows = embedded.vectors[0]
        return vector

    def _search(
        self, query: RecallQuery, conditions: VectorQuery | None, info: RecallInfo
    ) -> tuple[VectorHit, ...]:
        started = time.perf_counter_ns()
        answer = (
            self._index.search(query.resource_id, conditions)
            if conditions is not None
            else VectorAnswer((), 0, 0)
        )
        hits = answer.hits
        info.candidates, info.searchable = answer.candidates, answer.searchable
        info.exact = answer.exact
        info.best_score = hits[0].score if hits else None
        if query.threshold is not None:
            least = float(np.float32(query.threshold))
            hits = tuple(hit for hit in hits if hit.score >= least)
        info.why_empty = _why_empty(hits, answer)
        info.search_us += _microseconds_since(started)
        return hits

    def _conditions(
        self, query: RecallQuery, vector: FloatRows, info: RecallInfo, budget: CallBudget
    ) -> tuple[VectorQuery | None, MatchingRows | None]:
        """The search to make (None where the thread asked for does not exist), and the filter."""
        started = time.perf_counter_ns()
        thread_key: int | None = None
        if query.scope is Scope.THREAD:
            thread_key = self._store.thread_key(query.resource_id, query.thread_id)
            if thread_key is None:
                return None, None
        conditions = VectorQuery(
            vector=vector,
            top_k=query.top_k,
            thread_key=thread_key,
            roles=query.roles,
            time_from_ns=query.time_from_ns,
            time_to_ns=query.time_to_ns,
        )
        matching: MatchingRows | None = None
        if query.filter is not None:
            self._check_filter_keys(query.resource_id, query.filter, info, budget)
            matching = self._store.seqs_matching(query.resource_id, query.filter, budget)
            conditions = replace(conditions, allowed_seqs=matching.seqs)
        if query.excluded_ids:
            excluded = self._store.seqs_of_ids(query.resource_id, query.excluded_ids)
            conditions = replace(conditions, excluded_seqs=excluded)
        info.search_us += _microseconds_since(started)
        return conditions, matching

    def _check_filter_keys(
        self, resource_id: str, condition: Filter, info: RecallInfo, budget: CallBudget
    ) -> None:
        """Refuse a key that nothing carries: a misspelt `$ne` would otherwise allow everything."""
        unknown = self._store.unknown_metadata_keys(resource_id, filter_keys(condition), budget)
        info.unknown_filter_keys = unknown
        strict = filter_keys(condition, with_exists=False) - self._limits.filter_keys
        refused = [key for key in unknown if key in strict]
        if refused and self._store.stats(resource_id).messages:
            raise InvalidArgumentError(
                [
                    FieldViolation(
                        "filter",
                        f"no message of this resource has the key {key!r}; correct it, or declare "
                        "it with --filter-keys",
                    )
                    for key in refused
                ]
            )

    def _fetch(
        self,
        query: RecallQuery,
        hits: tuple[VectorHit, ...],
        matching: MatchingRows | None,
        info: RecallInfo,
    ) -> WindowRows:
        if not hits:
            return _NO_ROWS
        started = time.perf_counter_ns()
        windows = self._store.windows(
            WindowQuery(
                resource_id=query.resource_id,
                hits=tuple((hit.seq, hit.revision) for hit in hits),
                before=query.before,
                after=query.after,
                bytes_max=self._limits.answer_bytes_max,
                excluded_ids=query.excluded_ids,
                matching=matching,
            )
        )
        # The store reads one resource only; this is the second lock on the same door.
        if any(row.resource_id != query.resource_id for row in windows.messages):
            raise CorruptDataError("the record returned a message of another resource")
        info.fetch_us += _microseconds_since(started)
        return windows

    def _assemble(
        self, query: RecallQuery, found: _Found, info: RecallInfo
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
                    _as_hit(by_seq.get(row.seq)),
                    states.get(row.seq, GroupState.NO_GROUP),
                )
                for row in rows
            ]
        )

    def _complete_groups(
        self,
        by_seq: dict[int, VectorHit],
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
        room = self._limits.answer_bytes_max
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
        room = limit = self._limits.answer_bytes_max
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


def _as_hit(found: VectorHit | None) -> Hit | None:
    if found is None:
        return None
    seq, score, chunk, chunks, revision = (
        found.seq,
        found.score,
        found.chunk,
        found.chunks,
        found.revision,
    )
    return Hit(seq, revision, score, score, chunk, chunks)


def _answer_order(rows: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Threads by their first message here; inside a thread by (create_time, arrival)."""
    ordered = sorted(rows, key=lambda row: (row.create_time_ns, row.seq))
    first: dict[str, int] = {}
    for position, row in enumerate(ordered):
        first.setdefault(row.thread_id, position)
    return sorted(ordered, key=lambda row: first[row.thread_id])


def _unchanged(
    members: Sequence[StoredMessage], present: list[StoredMessage], by_seq: dict[int, VectorHit]
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


def _why_empty(hits: tuple[VectorHit, ...], answer: VectorAnswer) -> WhyEmpty:
    if hits:
        return WhyEmpty.NOT_EMPTY
    if answer.hits:
        return WhyEmpty.BELOW_THRESHOLD
    return WhyEmpty.FILTERED if answer.searchable else WhyEmpty.NO_MESSAGES


def _unit(vector: FloatRows, dimensions: int) -> FloatRows:
    """A caller's query vector, checked and normalised in double precision."""
    if vector.shape != (dimensions,):
        raise InvalidArgumentError.of(
            "query_embedding", f"has {vector.size} numbers; the model has {dimensions} dimensions"
        )
    wide = vector.astype(np.float64)
    length = float(np.sqrt(wide @ wide))
    if not np.isfinite(length) or length == 0.0:
        raise InvalidArgumentError.of(
            "query_embedding", "must hold finite numbers that are not all zero"
        )
    unit: FloatRows = (wide / length).astype(np.float32)
    return unit


def _microseconds_since(started_ns: int) -> int:
    return (time.perf_counter_ns() - started_ns) // 1000
