"""The Recall use case: one embedding, a look at both indexes, one fetch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.engine.answer_assembly import AnswerAssembly, Found, LeftOut
from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.engine.candidates import Asked, Candidates, CandidateSearch, Conditions
from semanticrecall_core.engine.selection import EXCLUDED_MAX, Selection, selected
from semanticrecall_core.engine.words_ahead import WordsAhead, WordsBegun
from semanticrecall_core.ranking.fusion import Weights
from semanticrecall_core.ranking.names import turned_away
from semanticrecall_core.types.errors import (
    CorruptDataError,
    FieldViolation,
    InvalidArgumentError,
    UnimplementedError,
)
from semanticrecall_core.types.filters import Filter, filter_keys
from semanticrecall_core.types.lexical import LexicalIndex
from semanticrecall_core.types.ports import Embedder, MessageStore, VectorIndex
from semanticrecall_core.types.recalling import (
    Excluded,
    ExcludedReason,
    Hit,
    Mode,
    RecallAnswer,
    RecallInfo,
    RecallQuery,
    Scope,
    WhyEmpty,
)
from semanticrecall_core.types.text import has_visible_text
from semanticrecall_core.types.values import CallBudget, EmbeddedText, StoredMessage
from semanticrecall_core.types.windows import MatchingRows, WindowQuery, WindowRows

if TYPE_CHECKING:
    from semanticrecall_core.types.values import FloatRows, IntColumn

# A hit can be edited, moved or forgotten between the search and the fetch; what is asked is then
# asked anew, so that top_k is still filled. After so many rounds, during which someone changed
# hits without pause, those that changed in the last one are left out.
SEARCH_ROUNDS_MAX = 3
# How many of the best are taken from each index: many more than are wanted, because what is far
# down in one list may be first in the sum. More than these find nothing more (docs/decisions).
DEPTH_MIN = 100
DEPTH_TIMES_TOP_K = 4
DEPTH_FACTOR_LEXICAL = 2
DEPTH_MAX = 10_000


@dataclass(frozen=True, slots=True)
class RecallLimits:
    """Limits of one answer.

    Attributes:
        answer_bytes_max: most bytes of encoded messages and context in one answer.
        filter_keys: keys that a filter may name though no message carries them yet.
        cores: that recalls may use together.
        now_ns: the clock that ages are counted by.
    """

    answer_bytes_max: int
    filter_keys: frozenset[str]
    cores: int = 1
    now_ns: Callable[[], int] = time.time_ns


@dataclass(frozen=True, slots=True)
class _Round:
    """One look at the indexes and the record: what was found, and hits that changed meanwhile."""

    found: Found
    selection: Selection
    changed: tuple[Hit, ...]


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
        lexical: LexicalIndex | None = None,
    ) -> None:
        """`lexical`: the index of words; None answers MODE_DENSE only."""
        self._store = store
        self._embedder = embedder
        self._index = index
        self._backlog = backlog
        self._limits = limits
        self._lexical = lexical
        self._words = WordsAhead(lexical, limits.cores)
        self._candidates = CandidateSearch(index, lexical, Weights())
        self._assembly = AnswerAssembly(store, embedder, limits.answer_bytes_max)

    def __call__(self, query: RecallQuery, budget: CallBudget) -> RecallAnswer:
        """See `Engine.recall`."""
        info = RecallInfo(query.scope, self._mode(query))
        info.pending = self._backlog.pending(query.resource_id)
        with self._words.recalling():
            return self._answer(query, info, budget)

    def _answer(self, query: RecallQuery, info: RecallInfo, budget: CallBudget) -> RecallAnswer:
        asked = self._asked(query, info, budget)
        if asked is None:
            info.why_empty = WhyEmpty.NO_QUERY
            return RecallAnswer((), "", info)
        try:
            budget.check()
            round_ = self._find(query, asked, info, budget)
        finally:
            if asked.words is not None:
                asked.words.abandon()
        answer = self._assembly(query, round_.found, info, budget)
        excluded: tuple[Excluded, ...] = ()
        if query.explain:
            excluded = self._excluded(query, round_, answer.left_out)
        return RecallAnswer(answer.messages, answer.context_text, info, excluded)

    def close(self) -> None:
        """End the threads. Later recalls do without."""
        self._words.close()

    # ---- what is asked ----

    def _mode(self, query: RecallQuery) -> Mode:
        """The mode that is used: without words to look for there are only vectors."""
        if self._lexical is None:
            if query.mode not in (None, Mode.DENSE):
                raise UnimplementedError("ranking.mode: only MODE_DENSE is available here")
            return Mode.DENSE
        mode = query.mode or Mode.HYBRID
        without_words = query.embedding is not None and not has_visible_text(query.text)
        return Mode.DENSE if mode is Mode.HYBRID and without_words else mode

    def _asked(self, query: RecallQuery, info: RecallInfo, budget: CallBudget) -> Asked | None:
        """The query for the indexes; None where there is nothing to look for."""
        mode = info.mode_used
        has_words = has_visible_text(query.text)
        if not has_words and (query.embedding is None or mode is Mode.LEXICAL):
            return None
        others = (text for text in query.alternative_texts if has_visible_text(text))
        texts = tuple(dict.fromkeys(((query.text,) if has_words else ()) + tuple(others)))
        asked = Asked(
            query.resource_id,
            mode,
            texts,
            None,
            None,
            _depth(query, mode),
            best_cosine_wanted=query.threshold is not None,
            with_ranks=query.explain,
        )
        if mode is Mode.LEXICAL and not _needs_cosines(query):
            return asked
        return self._with_vectors(asked, query, info, budget)

    def _with_vectors(
        self, asked: Asked, query: RecallQuery, info: RecallInfo, budget: CallBudget
    ) -> Asked:
        """With one vector for each phrasing: as they are, and as MODE_HYBRID ranks by.

        All in one run, names that were not met before too, while the words are scored. The caller's
        own vector stands in for the query's, and is turned away from its names as well.
        """
        texts = asked.texts
        own: list[FloatRows] = []
        if query.embedding is not None:
            own.append(_unit(query.embedding, self._embedder.dimensions))
            texts = tuple(text for text in texts if text != query.text)
        names: list[tuple[str, ...]] = []
        if info.mode_used is Mode.HYBRID:
            started = time.perf_counter_ns()
            names = self._names_in(query.resource_id, asked.texts, budget)
            info.lexical_us = _microseconds_since(started)
            info.search_us += info.lexical_us
        embedding = tuple(dict.fromkeys(texts + tuple(name for one in names for name in one)))
        words = self._words_begun(asked, embedding)
        try:
            embedded = self._embedded(embedding, query, info, budget)
        except BaseException:
            if words is not None:
                words.abandon()
            raise
        info.query_tokens = sum(embedded[text].tokens for text in texts)
        info.query_truncated = any(embedded[text].truncated for text in texts)
        vectors = np.array(own + [embedded[text].vectors[0] for text in texts], np.float32)
        ranking_vectors = vectors
        if any(names):
            turned = [
                turned_away(vector, [embedded[name].vectors[0] for name in one])
                for vector, one in zip(vectors, names, strict=True)
            ]
            ranking_vectors = np.array(turned, np.float32)
        return replace(asked, vectors=vectors, ranking_vectors=ranking_vectors, words=words)

    def _words_begun(self, asked: Asked, embedding: tuple[str, ...]) -> WordsBegun | None:
        """The words, if the model takes its time: nobody waits for what is known already."""
        if asked.mode is not Mode.HYBRID:
            return None
        resource_id = asked.resource_id
        unknown = self._embedder.queries_to_compute(embedding, resource_id)
        if not unknown:
            return None
        return self._words.begin(resource_id, asked.texts, asked.depth, embedding=unknown)

    def _names_in(
        self, resource_id: str, texts: tuple[str, ...], budget: CallBudget
    ) -> list[tuple[str, ...]]:
        """Of each phrasing."""
        if self._lexical is None:
            return []
        names: list[tuple[str, ...]] = []
        for text in texts:
            budget.check()
            names.append(self._lexical.names_in(resource_id, text))
        return names

    def _embedded(
        self, texts: tuple[str, ...], query: RecallQuery, info: RecallInfo, budget: CallBudget
    ) -> dict[str, EmbeddedText]:
        if not texts:
            return {}
        started = time.perf_counter_ns()
        embedded = (
            [self._embedder.embed_query(texts[0], budget, query.resource_id)]
            if len(texts) == 1
            else self._embedder.embed_queries(texts, budget, query.resource_id)
        )
        info.embed_us = _microseconds_since(started)
        info.cache_hit = not any(one.computed for one in embedded)
        return dict(zip(texts, embedded, strict=True))

    def _conditions(
        self, query: RecallQuery, info: RecallInfo, budget: CallBudget
    ) -> tuple[Conditions | None, MatchingRows | None]:
        """What hits must fulfil (None: the thread asked for does not exist), and the filter."""
        started = time.perf_counter_ns()
        thread_key: int | None = None
        if query.scope is Scope.THREAD:
            thread_key = self._store.thread_key(query.resource_id, query.thread_id)
            if thread_key is None:
                return None, None
        conditions = Conditions(thread_key, query.roles, query.time_from_ns, query.time_to_ns)
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
                        "it with --filter-keys (a setting of serve)",
                    )
                    for key in refused
                ]
            )

    # ---- what is found ----

    def _find(
        self, query: RecallQuery, asked: Asked, info: RecallInfo, budget: CallBudget
    ) -> _Round:
        """Hits and their windows; each hit is of the revision that was found and met all."""
        damaged: frozenset[int] = frozenset()
        for _ in range(SEARCH_ROUNDS_MAX - 1):
            round_ = self._look(query, asked, info, budget, damaged)
            if not round_.changed:
                return round_
            # What does not match its checksum is not looked for again.
            damaged |= frozenset(round_.found.windows.damaged)
        round_ = self._look(query, asked, info, budget, damaged)
        if round_.changed:
            cosines = [hit.cosine for hit in round_.found.hits if hit.cosine is not None]
            info.best_score = max(cosines, default=None)
            if not round_.found.hits:
                info.why_empty = WhyEmpty.FILTERED
        return round_

    def _look(
        self,
        query: RecallQuery,
        asked: Asked,
        info: RecallInfo,
        budget: CallBudget,
        damaged: frozenset[int],
    ) -> _Round:
        budget.check()
        conditions, matching = self._conditions(query, info, budget)
        if damaged and conditions is not None:
            excluded = np.array(sorted(damaged), np.int64)
            if conditions.excluded_seqs is not None:
                excluded = np.union1d(excluded, conditions.excluded_seqs)
            conditions = replace(conditions, excluded_seqs=excluded)
        selection = self._select(query, asked, conditions, info)
        windows = self._fetch(query, selection.hits, matching, info)
        there = {row.seq: row.revision for row in windows.messages}
        dropped = frozenset(windows.dropped)
        kept: list[Hit] = []
        changed: list[Hit] = []
        for hit in selection.hits:
            unchanged = there.get(hit.seq) == hit.revision or hit.seq in dropped
            (kept if unchanged else changed).append(hit)
        return _Round(Found(tuple(kept), windows, matching), selection, tuple(changed))

    def _select(
        self,
        query: RecallQuery,
        asked: Asked,
        conditions: Conditions | None,
        info: RecallInfo,
    ) -> Selection:
        started = time.perf_counter_ns()
        candidates = self._timed(query, self._candidates(asked, conditions or _NOWHERE))
        barred: Candidates | None = None
        if query.explain and (conditions is None or conditions.any):
            everything = self._timed(query, self._candidates(asked, Conditions()))
            barred = everything.taken(np.isin(everything.seqs, candidates.seqs, invert=True))
        selection = selected(
            query, candidates, barred, self._vectors_of(query), self._limits.now_ns()
        )
        info.candidates, info.searchable = candidates.allowed, candidates.searchable
        # Age can bring forward what is far down in the list of an index.
        all_aged = not query.recency_weight or candidates.allowed <= asked.depth
        info.exact, info.best_score = candidates.exact and all_aged, candidates.best_cosine
        info.why_empty = (
            WhyEmpty.NO_MESSAGES
            if conditions is None
            else _why_empty(selection, candidates, asked.mode)
        )
        info.lexical_us += candidates.lexical_us
        info.search_us += _microseconds_since(started)
        return selection

    def _timed(self, query: RecallQuery, candidates: Candidates) -> Candidates:
        """With the times that recency needs; vectors are searched without them."""
        columns = candidates.columns
        if not query.recency_weight or columns.times_ns is not None:
            return candidates
        rows = self._store.load_rows(query.resource_id, np.sort(columns.seqs))
        times = dict(zip(rows.seqs.tolist(), rows.times_ns.tolist(), strict=True))
        # Who is not there any more is found out when the hits are fetched.
        times_ns = [times.get(seq, 0) for seq in columns.seqs.tolist()]
        return candidates.with_times(np.array(times_ns, dtype=np.int64))

    def _vectors_of(self, query: RecallQuery) -> Callable[[IntColumn, IntColumn], FloatRows]:
        return lambda seqs, chunks: self._index.vectors_of(query.resource_id, seqs, chunks)

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
        _check_resource(windows.messages, query.resource_id)
        info.fetch_us += _microseconds_since(started)
        return windows

    # ---- what is left out, and why ----

    def _excluded(
        self, query: RecallQuery, round_: _Round, left_out: tuple[LeftOut, ...]
    ) -> tuple[Excluded, ...]:
        """The best candidates that are not in the answer, with their messages."""
        selection = round_.selection
        ranks = {
            hit.seq: rank for hit, rank in zip(selection.hits, selection.hit_ranks, strict=True)
        }
        out = [
            Excluded(one.hit, one.reason, ranks[one.hit.seq], 0, one.message) for one in left_out
        ]
        out += [Excluded(hit, ExcludedReason.CHANGED, ranks[hit.seq]) for hit in round_.changed]
        best = sorted([*selection.excluded, *out], key=lambda one: one.rank)[:EXCLUDED_MAX]
        hits = tuple(one.hit for one in best if one.message is None)
        messages = self._messages(query, hits)
        return tuple(
            one if one.message is not None else replace(one, message=messages.get(one.hit.seq))
            for one in best
        )

    def _messages(self, query: RecallQuery, hits: tuple[Hit, ...]) -> dict[int, StoredMessage]:
        if not hits:
            return {}
        rows = self._store.windows(
            WindowQuery(
                resource_id=query.resource_id,
                hits=tuple((hit.seq, hit.revision) for hit in hits),
                before=0,
                after=0,
                bytes_max=self._limits.answer_bytes_max,
            )
        ).messages
        _check_resource(rows, query.resource_id)
        return {row.seq: row for row in rows}


def _needs_cosines(query: RecallQuery) -> bool:
    return (
        query.threshold is not None
        or query.diversity > 0
        or query.near_duplicate_cosine is not None
    )


def _depth(query: RecallQuery, mode: Mode) -> int:
    """How many candidates an index gives: by cosine alone, no more than what is asked."""
    chosen_among_more = (
        query.recency_weight > 0 or query.diversity > 0 or query.near_duplicate_cosine is not None
    )
    if mode is Mode.DENSE and not chosen_among_more:
        return query.top_k + (EXCLUDED_MAX if query.explain else 0)
    depth = max(DEPTH_MIN, DEPTH_TIMES_TOP_K * query.top_k)
    # Of the best by the words around them, MODE_LEXICAL leaves out those with none of their own.
    return min(DEPTH_MAX, depth * DEPTH_FACTOR_LEXICAL if mode is Mode.LEXICAL else depth)


_NOWHERE = Conditions(allowed_seqs=np.zeros(0, np.int64))
"""Of a thread that does not exist; what is counted beside is counted all the same."""


def _why_empty(selection: Selection, candidates: Candidates, mode: Mode) -> WhyEmpty:
    if selection.hits:
        return WhyEmpty.NOT_EMPTY
    if selection.reached_top_k:
        return WhyEmpty.BELOW_THRESHOLD
    if not candidates.searchable:
        return WhyEmpty.NO_MESSAGES
    return WhyEmpty.NO_WORDS if mode is Mode.LEXICAL else WhyEmpty.FILTERED


def _check_resource(rows: tuple[StoredMessage, ...], resource_id: str) -> None:
    """The store reads one resource only; this is the second lock on the same door."""
    if any(row.resource_id != resource_id for row in rows):
        raise CorruptDataError("the record returned a message of another resource")


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
