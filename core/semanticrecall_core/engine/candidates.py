"""What a recall chooses from: the best by meaning and the best by words, each scored by both.

The two indexes follow the same commits, but each is looked at for itself, so that a message may
change between the looks. The words of a message are known with the commit that stores it, its
vectors later: a vector of an older revision than its words is a vector of another text and does
not count (the message waits for its own); one of a newer revision means that it changed just now,
and everything is looked at anew. So it is where the words were scored before the vectors were
searched (`engine.words_ahead`) and a message was found that they did not have yet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.engine.nearness import NearRows, nearest_of
from semanticrecall_core.engine.words_ahead import WordsBegun
from semanticrecall_core.ranking.fusion import Cosines, FusedParts, Weights, fused
from semanticrecall_core.types.lexical import LexicalIndex, LexicalMatch, LexicalQuery
from semanticrecall_core.types.ports import VectorIndex
from semanticrecall_core.types.recalling import Hit, Mode, Parts
from semanticrecall_core.types.values import (
    NearestMessages,
    Role,
    VectorAnswer,
    VectorHits,
    VectorQuery,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    WideRows = NDArray[np.float64]
    BoolColumn = NDArray[np.bool_]

GATHERINGS_MAX = 3


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a message must fulfil to be a hit; the attributes are those of `VectorQuery`."""

    thread_key: int | None = None
    roles: frozenset[Role] = frozenset()
    time_from_ns: int | None = None
    time_to_ns: int | None = None
    allowed_seqs: IntColumn | None = None
    excluded_seqs: IntColumn | None = None

    @property
    def any(self) -> bool:
        """Whether anything is asked."""
        columns = (self.allowed_seqs, self.excluded_seqs)
        return bool(self.roles) or any(
            value is not None
            for value in (self.thread_key, self.time_from_ns, self.time_to_ns, *columns)
        )

    def on_vectors(self, vector: FloatRows, top_k: int) -> VectorQuery:
        """The best by one vector."""
        return VectorQuery(
            vector,
            top_k,
            self.thread_key,
            self.roles,
            self.time_from_ns,
            self.time_to_ns,
            self.allowed_seqs,
            self.excluded_seqs,
        )

    def on_words(
        self, texts: tuple[str, ...], top_k: int, also_seqs: IntColumn | None
    ) -> LexicalQuery:
        """The best by words, and these messages."""
        return LexicalQuery(
            texts,
            top_k,
            also_seqs,
            self.thread_key,
            self.roles,
            self.time_from_ns,
            self.time_to_ns,
            self.allowed_seqs,
            self.excluded_seqs,
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A query as the indexes are asked it.

    Attributes:
        texts: the phrasings, one or more; not used by MODE_DENSE.
        vectors: shape (phrasings, dimensions). What a message's cosine is with; None: nobody asked
            for cosines (MODE_LEXICAL only).
        ranking_vectors: shape (phrasings, dimensions). What MODE_HYBRID ranks by: the phrasings
            turned away from names; the same array as `vectors` where there are none.
        depth: how many of the best are taken from each index.
        best_cosine_wanted: tell the best cosine of all, not only of those looked at.
        with_ranks: tell the place in each list.
        words: the words of `texts`, scored meanwhile; None: not begun.
    """

    resource_id: str
    mode: Mode
    texts: tuple[str, ...]
    vectors: FloatRows | None
    ranking_vectors: FloatRows | None
    depth: int
    best_cosine_wanted: bool = False
    with_ranks: bool = False
    words: WordsBegun | None = None


@dataclass(frozen=True, slots=True)
class CandidateColumns:
    """What is known of the messages that were looked at, candidates or not, in any order.

    Attributes:
        seqs, revisions: shape (n,).
        times_ns: shape (n,); None in MODE_DENSE.
        cosines: shape (n,), float32. Of the nearest phrasing; NaN where there is none.
        chunks, chunk_counts: shape (n,). Which chunk that was, of how many.
        dense_ranks, lexical_ranks: shape (n,). Place among the best by meaning, and by words; 0
            where nobody wanted them.
        bm25, bm25_in_context: shape (n,). The largest over the phrasings.
        parts: what each is worth.
    """

    seqs: IntColumn
    revisions: IntColumn
    times_ns: IntColumn | None
    cosines: FloatRows
    chunks: IntColumn
    chunk_counts: IntColumn
    dense_ranks: IntColumn
    lexical_ranks: IntColumn
    bm25: FloatRows
    bm25_in_context: FloatRows
    parts: FusedParts


@dataclass(frozen=True, slots=True)
class Candidates:
    """Messages that may be hits, the best first: by (relevance descending, seq ascending).

    Attributes:
        columns: of them and others.
        order: where in the columns each is, shape (n,).
        relevance: of each, shape (n,).
        best_cosine: among all allowed messages, or where nobody wanted that, those looked at; None
            where there is none.
        allowed: messages that passed the conditions; in MODE_LEXICAL, with a word of the query.
        searchable: messages that could have been found without conditions.
        exact: nothing that was not looked at could be among the best.
        lexical_us: what the words took.
    """

    columns: CandidateColumns
    order: IntColumn
    relevance: WideRows
    best_cosine: float | None
    allowed: int
    searchable: int
    exact: bool
    lexical_us: int = 0

    def __len__(self) -> int:
        """How many."""
        return len(self.order)

    @property
    def seqs(self) -> IntColumn:
        """Shape (n,)."""
        return self.columns.seqs[self.order]

    @property
    def times_ns(self) -> IntColumn | None:
        """Shape (n,); None in MODE_DENSE."""
        times_ns = self.columns.times_ns
        return None if times_ns is None else times_ns[self.order]

    @property
    def cosines(self) -> FloatRows:
        """Shape (n,); NaN where there is none."""
        return self.columns.cosines[self.order]

    @property
    def chunks(self) -> IntColumn:
        """Shape (n,)."""
        return self.columns.chunks[self.order]

    def hit(self, position: int, recency: float = 0.0, diversity: float = 0.0) -> Hit:
        """One of them, with what recency and diversity add."""
        of, at = self.columns, int(self.order[position])
        parts, cosine = of.parts, float(of.cosines[at])
        return Hit(
            seq=int(of.seqs[at]),
            revision=int(of.revisions[at]),
            relevance=float(self.relevance[position]) + recency + diversity,
            cosine=None if cosine != cosine else cosine,
            chunk=int(of.chunks[at]),
            chunks=int(of.chunk_counts[at]),
            dense_rank=int(of.dense_ranks[at]),
            lexical_rank=int(of.lexical_ranks[at]),
            bm25=float(of.bm25[at]),
            bm25_in_context=float(of.bm25_in_context[at]),
            parts=Parts(
                dense=float(parts.dense[at]),
                lexical=float(parts.lexical[at]),
                neighbour=float(parts.neighbour[at]),
                author=float(parts.author[at]),
                recency=recency,
                diversity=diversity,
            ),
        )

    def taken(self, positions: IntColumn | BoolColumn) -> Candidates:
        """Those at these positions, in this order."""
        return replace(self, order=self.order[positions], relevance=self.relevance[positions])

    def with_times(self, times_ns: IntColumn) -> Candidates:
        """The same with times, in the order of `columns`."""
        return replace(self, columns=replace(self.columns, times_ns=times_ns))


class CandidateSearch:
    """Gathers candidates from both indexes. Thread-safe."""

    def __init__(self, index: VectorIndex, lexical: LexicalIndex | None, weights: Weights) -> None:
        """`lexical`: None answers MODE_DENSE only."""
        self._index = index
        self._lexical = lexical
        self._weights = weights

    def __call__(self, asked: Asked, conditions: Conditions) -> Candidates:
        """The best messages that fulfil the conditions.

        Raises:
            SemanticRecallError: what the indexes raise.
        """
        if asked.mode is Mode.DENSE or self._lexical is None:
            return self._dense(asked, conditions)
        for _ in range(GATHERINGS_MAX - 1):
            gathered = self._gather(asked, conditions, self._lexical)
            if not gathered.is_stale:
                break
        else:
            gathered = self._gather(asked, conditions, self._lexical)
        return self._ranked(asked, conditions, gathered)

    # ---- by meaning alone ----

    def _dense(self, asked: Asked, conditions: Conditions) -> Candidates:
        answers = self._searches(asked.vectors, asked, conditions)
        return _of_hits(nearest_of(answers, asked.depth), answers)

    def _searches(
        self, vectors: FloatRows | None, asked: Asked, conditions: Conditions
    ) -> list[VectorAnswer]:
        return [
            self._index.search(asked.resource_id, conditions.on_vectors(vector, asked.depth))
            for vector in (() if vectors is None else vectors)
        ]

    # ---- by words too ----

    def _gather(self, asked: Asked, conditions: Conditions, lexical: LexicalIndex) -> _Gathered:
        nearest = self._nearest(asked, conditions)
        also = None if nearest is None else nearest.seqs
        started = time.perf_counter_ns()
        query = conditions.on_words(asked.texts, asked.depth, also)
        words = None if asked.words is None else asked.words.take()
        match = words.match(query) if words else lexical.match(asked.resource_id, query)
        lexical_us = (time.perf_counter_ns() - started) // 1000
        is_short = bool(words is not None and also is not None and _lacks(match.seqs, also))
        near, ranked_by, changed = self._near(asked, match)
        return _Gathered(nearest, match, ranked_by, near, changed, is_short, lexical_us)

    def _nearest(self, asked: Asked, conditions: Conditions) -> NearestMessages | None:
        """The best by meaning; None in MODE_LEXICAL."""
        if asked.mode is not Mode.HYBRID or asked.ranking_vectors is None:
            return None
        queries = [conditions.on_vectors(vector, asked.depth) for vector in asked.ranking_vectors]
        return self._index.nearest(asked.resource_id, queries)

    def _near(
        self, asked: Asked, match: LexicalMatch
    ) -> tuple[NearRows | None, NearRows | None, BoolColumn | None]:
        """`near`, `ranked_by` and `changed` of `_Gathered`: all vectors are looked up at once."""
        vectors, ranking_vectors = asked.vectors, asked.ranking_vectors
        if vectors is None or ranking_vectors is None:
            return None, None, None
        hybrid, told = asked.mode is Mode.HYBRID, len(vectors)
        if hybrid and ranking_vectors is not vectors:
            vectors = np.concatenate((vectors, ranking_vectors))
        found = self._index.cosines(asked.resource_id, match.seqs, vectors)
        rows = NearRows.of(found, match.revisions)
        changed = found.revisions > match.revisions
        return (
            rows.phrasings(0, told),
            rows.phrasings(len(vectors) - told, len(vectors)) if hybrid else None,
            changed if changed.any() else None,
        )

    def _ranked(self, asked: Asked, conditions: Conditions, gathered: _Gathered) -> Candidates:
        match, nearest = gathered.match, gathered.nearest
        parts = fused(match, gathered.what_counts, self._weights)
        bm25 = _largest(match.own)
        is_candidate = match.is_candidate
        if gathered.changed is not None:
            is_candidate = is_candidate & ~gathered.changed
        if asked.mode is Mode.LEXICAL:
            is_candidate = is_candidate & (bm25 > 0)
        order = is_candidate.nonzero()[0]
        relevance = parts.relevance[order]
        # Those of a match are by seq: a sort that is stable needs not look at it.
        by_relevance = (-relevance).argsort(kind="stable")
        order, relevance = order[by_relevance], relevance[by_relevance]
        columns = self._columns(asked, gathered, parts, bm25, is_candidate)
        return Candidates(
            columns=columns,
            order=order,
            relevance=relevance,
            best_cosine=self._best_cosine(asked, conditions, columns.cosines[order]),
            allowed=nearest.candidates if nearest else match.matched,
            searchable=nearest.searchable if nearest else match.searchable,
            exact=gathered.is_everything(asked.depth),
            lexical_us=gathered.lexical_us,
        )

    @staticmethod
    def _columns(
        asked: Asked,
        gathered: _Gathered,
        parts: FusedParts,
        bm25: FloatRows,
        is_candidate: BoolColumn,
    ) -> CandidateColumns:
        match, near, in_context = gathered.match, gathered.near, _largest(gathered.match.context)
        zeros: IntColumn = np.zeros(len(bm25), dtype=np.int64)
        cosines, chunks = (
            near.nearest() if near else (np.full(len(bm25), np.nan, np.float32), zeros)
        )
        dense_ranks = lexical_ranks = zeros
        if asked.with_ranks:
            dense_ranks = gathered.dense_ranks(is_candidate)
            lexical_ranks = _ranks(parts.lexical, is_candidate & (in_context > 0), match.seqs)
        return CandidateColumns(
            seqs=match.seqs,
            revisions=match.revisions,
            times_ns=match.times_ns,
            cosines=cosines,
            chunks=chunks,
            chunk_counts=near.chunk_counts if near else zeros,
            dense_ranks=dense_ranks,
            lexical_ranks=lexical_ranks,
            bm25=bm25,
            bm25_in_context=in_context,
            parts=parts,
        )

    def _best_cosine(
        self, asked: Asked, conditions: Conditions, cosines: FloatRows
    ) -> float | None:
        if asked.vectors is None:
            return None
        if asked.best_cosine_wanted:
            answers = self._searches(asked.vectors, replace(asked, depth=1), conditions)
            return _best_score(answers)
        best = float(np.fmax.reduce(cosines, initial=-np.inf))  # passes over NaN
        return best if best > -np.inf else None


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What the indexes gave for one query.

    Attributes:
        nearest: the best by meaning (MODE_HYBRID).
        match: the best by words, and those.
        ranked_by: cosines that count (MODE_HYBRID).
        near: cosines that are told; None: nobody asked.
        changed: shape (n,). The message changed between the looks; None: none did.
        is_short: the words were scored before some of the best by meaning were there.
    """

    nearest: NearestMessages | None
    match: LexicalMatch
    ranked_by: NearRows | None
    near: NearRows | None
    changed: BoolColumn | None
    is_short: bool
    lexical_us: int

    @property
    def is_stale(self) -> bool:
        """Something changed between the looks: look anew."""
        return self.is_short or self.changed is not None

    @property
    def what_counts(self) -> Cosines | None:
        """The cosines that MODE_HYBRID ranks by; None in MODE_LEXICAL."""
        if self.ranked_by is None or self.nearest is None:
            return None
        return Cosines(self.ranked_by.cosines, self.nearest.mean, self.nearest.std)

    def dense_ranks(self, listed: BoolColumn) -> IntColumn:
        """Places among the best by meaning, of those listed; 0 for the others."""
        seqs = self.match.seqs
        if self.ranked_by is None or self.nearest is None:
            return np.zeros(len(seqs), dtype=np.int64)
        cosines, found = self.ranked_by.nearest()[0], np.isin(seqs, self.nearest.seqs)
        return _ranks(cosines, listed & found & ~np.isnan(cosines), seqs)

    def is_everything(self, depth: int) -> bool:
        """No allowed message with a vector, or with a word of the query around it, was left out."""
        if self.nearest is not None and self.nearest.candidates > depth:
            return False
        by_words = self.match.is_candidate & (self.match.context > 0).any(axis=0)
        return int(by_words.sum()) < depth


def _of_hits(found: VectorHits, answers: Sequence[VectorAnswer]) -> Candidates:
    """What was found by meaning alone, by (cosine descending, seq ascending)."""
    n = len(found.seqs)
    zeros, none = np.zeros(n), np.zeros(n, dtype=np.float32)
    wide = found.scores.astype(np.float64)
    places = np.arange(n)
    columns = CandidateColumns(
        seqs=found.seqs,
        revisions=found.revisions,
        times_ns=None,
        cosines=found.scores,
        chunks=found.chunks,
        chunk_counts=found.chunk_counts,
        dense_ranks=places + 1,
        lexical_ranks=np.zeros(n, dtype=np.int64),
        bm25=none,
        bm25_in_context=none,
        parts=FusedParts(wide, zeros, zeros, zeros),
    )
    return Candidates(
        columns=columns,
        order=places,
        relevance=wide,
        best_cosine=_best_score(answers),
        allowed=answers[0].candidates,
        searchable=answers[0].searchable,
        exact=all(answer.exact for answer in answers),
    )


def _best_score(answers: Sequence[VectorAnswer]) -> float | None:
    best = (float(answer.found.scores[0]) for answer in answers if len(answer.found.scores))
    return max(best, default=None)


def _largest(of_phrasings: FloatRows) -> FloatRows:
    """The largest over the phrasings; nearly always there is one, which needs no look."""
    largest: FloatRows = of_phrasings[0] if len(of_phrasings) == 1 else of_phrasings.max(axis=0)
    return largest


def _lacks(seqs: IntColumn, wanted: IntColumn) -> bool:
    """Whether one that is wanted is not there; both are sorted and unique."""
    if not len(seqs):
        return len(wanted) > 0
    places = np.minimum(seqs.searchsorted(wanted), len(seqs) - 1)
    return bool((seqs[places] != wanted).any())


def _ranks(scores: FloatRows | WideRows, listed: BoolColumn, seqs: IntColumn) -> IntColumn:
    """Places from 1 by (score descending, seq ascending) among those listed; 0 for the others."""
    ranks = np.zeros(len(scores), dtype=np.int64)
    positions = np.flatnonzero(listed)
    order = np.lexsort((seqs[positions], -scores[positions]))
    ranks[positions[order]] = np.arange(1, len(positions) + 1)
    return ranks
