"""The Recall use case: one embedding, one scan, one fetch."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.engine.answer_assembly import AnswerAssembly, Found
from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.engine.read_token import read_revision
from semanticrecall_core.types.errors import (
    CorruptDataError,
    FieldViolation,
    InvalidArgumentError,
    UnimplementedError,
)
from semanticrecall_core.types.filters import Filter, filter_keys
from semanticrecall_core.types.ports import Embedder, MessageStore, VectorIndex
from semanticrecall_core.types.recalling import (
    Hit,
    Mode,
    RecallAnswer,
    RecallInfo,
    RecallQuery,
    Scope,
    WhyEmpty,
)
from semanticrecall_core.types.text import has_visible_text
from semanticrecall_core.types.values import (
    CallBudget,
    VectorAnswer,
    VectorHit,
    VectorQuery,
)
from semanticrecall_core.types.windows import MatchingRows, WindowQuery, WindowRows

if TYPE_CHECKING:
    from semanticrecall_core.types.values import FloatRows

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
        self._assembly = AnswerAssembly(store, embedder, limits.answer_bytes_max)

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
        found = self._find(query, vector, info, budget)
        answer = self._assembly(query, found, info, budget)
        return RecallAnswer(answer.messages, answer.context_text, info)

    def _find(
        self, query: RecallQuery, vector: FloatRows, info: RecallInfo, budget: CallBudget
    ) -> Found:
        """Hits and their windows; each hit is of the revision that was found and met all."""
        found = Found((), _NO_ROWS, None)
        for _ in range(SEARCH_ROUNDS_MAX):
            budget.check()
            conditions, matching = self._conditions(query, vector, info, budget)
            hits = self._search(query, conditions, info)
            windows = self._fetch(query, hits, matching, info)
            there = {row.seq: row.revision for row in windows.messages}
            dropped = frozenset(windows.dropped)
            kept = [h for h in hits if there.get(h.seq) == h.revision or h.seq in dropped]
            found = Found(tuple(kept), windows, matching)
            if len(kept) == len(hits):
                return found
        info.best_score = found.hits[0].cosine if found.hits else None
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
    ) -> tuple[Hit, ...]:
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
        return tuple(map(_dense_hit, hits))

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
        hits: tuple[Hit, ...],
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


def _dense_hit(found: VectorHit) -> Hit:
    return Hit(found.seq, found.revision, found.score, found.score, found.chunk, found.chunks)


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
