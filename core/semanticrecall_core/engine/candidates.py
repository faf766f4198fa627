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

from semanticrecall_core.engine.nearness import HitColumns, NearRows, seqs_of
from semanticrecall_core.engine.words_ahead import WordsBegun
from semanticrecall_core.ranking.fusion import Cosines, FusedParts, Weights, best_first, fused
from semanticrecall_core.types.lexical import LexicalIndex, LexicalMatch, LexicalQuery
from semanticrecall_core.types.ports import VectorIndex
from semanticrecall_core.types.recalling import Hit, Mode, Parts
from semanticrecall_core.types.values import Role, VectorAnswer, VectorHit, VectorQuery

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
class Candidates:
    """Messages that may be hits, the best first: by (relevance descending, seq ascending).

    Attributes:
        seqs, revisions: shape (n,).
        times_ns: shape (n,); None in MODE_DENSE.
        cosines: shape (n,), float32. Of the nearest phrasing; NaN where there is none.
        chunks, chunk_counts: shape (n,). Which chunk that was, of how many.
        dense_ranks, lexical_ranks: shape (n,). Place among the best by meaning, and by words; 0
            where nobody wanted them.
        bm25, bm25_in_context: shape (n,). The largest over the phrasings.
        parts, relevance: what each is worth.
        best_cosine: among all allowed messages, or where nobody wanted that, those looked at; None
            where there is none.
        allowed: messages that passed the conditions; in MODE_LEXICAL, with a word of the query.
        searchable: messages that could have been found without conditions.
        exact: nothing that was not looked at could be among the best.
        lexical_us: what the words took.
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
    relevance: WideRows
    best_cosine: float | None
    allowed: int
    searchable: int
    exact: bool
    lexical_us: int = 0

    def __len__(self) -> int:
        """How many."""
        return len(self.seqs)

    def hit(self, position: int, recency: float = 0.0, diversity: float = 0.0) -> Hit:
        """One of them, with what recency and diversity add."""
        p, at = self.parts, position
        cosine = float(self.cosines[at])
        return Hit(
            seq=int(self.seqs[at]),
            revision=int(self.revisions[at]),
            relevance=float(self.relevance[at]) + recency + diversity,
            cosine=None if cosine != cosine else cosine,
            chunk=int(self.chunks[at]),
            chunks=int(self.chunk_counts[at]),
            dense_rank=int(self.dense_ranks[at]),
            lexical_rank=int(self.lexical_ranks[at]),
            bm25=float(self.bm25[at]),
            bm25_in_context=float(self.bm25_in_context[at]),
            parts=Parts(
                dense=float(p.dense[at]),
                lexical=float(p.lexical[at]),
                neighbour=float(p.neighbour[at]),
                author=float(p.author[at]),
                recency=recency,
                diversity=diversity,
            ),
        )

    def taken(self, positions: IntColumn | BoolColumn) -> Candidates:
        """Those at these positions, in this order."""
        return replace(
            self,
            seqs=self.seqs[positions],
            revisions=self.revisions[positions],
            times_ns=None if self.times_ns is None else self.times_ns[positions],
            cosines=self.cosines[positions],
            chunks=self.chunks[positions],
            chunk_counts=self.chunk_counts[positions],
            dense_ranks=self.dense_ranks[positions],
            lexical_ranks=self.lexical_ranks[positions],
            bm25=self.bm25[positions],
            bm25_in_context=self.bm25_in_context[positions],
            parts=self.parts.taken(positions),
            relevance=self.relevance[positions],
        )


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
            if not (gathered.is_short or gathered.changed.any()):
                break
        else:
            gathered = self._gather(asked, conditions, self._lexical)
        return self._ranked(asked, conditions, gathered)

    # ---- by meaning alone ----

    def _dense(self, asked: Asked, conditions: Conditions) -> Candidates:
        answers = self._searches(asked.vectors, asked, conditions)
        hits = answers[0].hits if len(answers) == 1 else self._best_of_all(asked, answers)
        return _of_vector_hits(hits, answers)

    def _searches(
        self, vectors: FloatRows | None, asked: Asked, conditions: Conditions
    ) -> list[VectorAnswer]:
        return [
            self._index.search(asked.resource_id, conditions.on_vectors(vector, asked.depth))
            for vector in (() if vectors is None else vectors)
        ]

    @staticmethod
    def _best_of_all(asked: Asked, answers: Sequence[VectorAnswer]) -> tuple[VectorHit, ...]:
        """Each message with the nearest phrasing: who is in the best of all is in one list's."""
        best: dict[int, VectorHit] = {}
        for answer in answers:
            for hit in answer.hits:
                other = best.get(hit.seq)
                if other is None or (hit.revision, hit.score) > (other.revision, other.score):
                    best[hit.seq] = hit
        ordered = sorted(best.values(), key=lambda hit: (-hit.score, hit.seq))
        return tuple(ordered[: asked.depth])

    # ---- by words too ----

    def _gather(self, asked: Asked, conditions: Conditions, lexical: LexicalIndex) -> _Gathered:
        hybrid = asked.mode is Mode.HYBRID
        answers = self._searches(asked.ranking_vectors, asked, conditions) if hybrid else []
        hits = [HitColumns.of(answer.hits) for answer in answers]
        also = seqs_of(hits) if hits else None
        started = time.perf_counter_ns()
        query = conditions.on_words(asked.texts, asked.depth, also)
        words = None if asked.words is None else asked.words.take()
        match = words.match(query) if words else lexical.match(asked.resource_id, query)
        lexical_us = (time.perf_counter_ns() - started) // 1000
        everyone = np.ones(len(match.seqs), dtype=np.bool_)
        ranked_by: NearRows | None = None
        if hybrid:
            ranked_by = self._cosines(asked.ranking_vectors, asked, match, everyone, hits)
        near = ranked_by
        if asked.vectors is None:
            near = None
        elif asked.vectors is not asked.ranking_vectors or not hybrid:
            near = self._cosines(asked.vectors, asked, match, match.is_candidate)
        is_short = bool(words is not None and also is not None and _lacks(match.seqs, also))
        return _Gathered(answers, also, match, ranked_by, near, is_short, lexical_us)

    def _cosines(
        self,
        vectors: FloatRows | None,
        asked: Asked,
        match: LexicalMatch,
        wanted: BoolColumn,
        found: Sequence[HitColumns] = (),
    ) -> NearRows:
        """Cosines of the wanted rows of a match with each vector; NaN for the others.

        Those among what a search with the vector has `found` are not computed again.
        """
        rows = NearRows.none(0 if vectors is None else len(vectors), len(wanted))
        for phrasing, vector in enumerate(() if vectors is None else vectors):
            unknown = wanted
            if found:
                known = rows.put_hits(phrasing, found[phrasing], match)
                unknown = wanted.copy()
                unknown[known] = False
            positions = np.flatnonzero(unknown)
            if len(positions):
                looked_up = self._index.cosines(asked.resource_id, match.seqs[positions], vector)
                rows.put(phrasing, positions, looked_up, match.revisions[positions])
        return rows

    def _ranked(self, asked: Asked, conditions: Conditions, gathered: _Gathered) -> Candidates:
        match = gathered.match
        parts = fused(match, self._what_counts(asked, gathered), self._weights)
        bm25 = match.own.max(axis=0)
        is_candidate = match.is_candidate & ~gathered.changed
        if asked.mode is Mode.LEXICAL:
            is_candidate &= bm25 > 0
        positions = np.flatnonzero(is_candidate)
        relevance = parts.relevance[positions]
        order = best_first(relevance, match.seqs[positions])
        positions, relevance = positions[order], relevance[order]
        parts = parts.taken(positions)
        seqs, in_context = match.seqs[positions], match.context.max(axis=0)[positions]
        cosines, chunks, chunk_counts = gathered.nearest(positions)
        dense_ranks = lexical_ranks = np.zeros(len(positions), dtype=np.int64)
        if asked.with_ranks:
            dense_ranks = gathered.dense_ranks(positions)
            lexical_ranks = _ranks(parts.lexical, in_context > 0, seqs)
        answers = gathered.answers
        return Candidates(
            seqs=seqs,
            revisions=match.revisions[positions],
            times_ns=match.times_ns[positions],
            cosines=cosines,
            chunks=chunks,
            chunk_counts=chunk_counts,
            dense_ranks=dense_ranks,
            lexical_ranks=lexical_ranks,
            bm25=bm25[positions],
            bm25_in_context=in_context,
            parts=parts,
            relevance=relevance,
            best_cosine=self._best_cosine(asked, conditions, cosines),
            allowed=answers[0].candidates if answers else match.matched,
            searchable=answers[0].searchable if answers else match.searchable,
            exact=gathered.is_everything(asked.depth),
            lexical_us=gathered.lexical_us,
        )

    def _what_counts(self, asked: Asked, gathered: _Gathered) -> Cosines | None:
        """The cosines that MODE_HYBRID ranks by; None in MODE_LEXICAL."""
        if gathered.ranked_by is None or asked.ranking_vectors is None:
            return None
        mean, std = self._index.moments(asked.resource_id, asked.ranking_vectors)
        return Cosines(gathered.ranked_by.cosines, mean, std)

    def _best_cosine(
        self, asked: Asked, conditions: Conditions, cosines: FloatRows
    ) -> float | None:
        if asked.vectors is None:
            return None
        if asked.best_cosine_wanted:
            answers = self._searches(asked.vectors, replace(asked, depth=1), conditions)
            return _best_score(answers)
        there = cosines[~np.isnan(cosines)]
        return float(there.max()) if len(there) else None


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What the indexes gave for one query.

    Attributes:
        answers, also: the best by meaning (MODE_HYBRID).
        match: the best by words, and those.
        ranked_by: cosines that count (MODE_HYBRID).
        near: cosines that are told; None: nobody asked.
        is_short: the words were scored before some of the best by meaning were there.
    """

    answers: list[VectorAnswer]
    also: IntColumn | None
    match: LexicalMatch
    ranked_by: NearRows | None
    near: NearRows | None
    is_short: bool
    lexical_us: int

    @property
    def changed(self) -> BoolColumn:
        """Shape (n,). The message changed between the looks."""
        changed = np.zeros(len(self.match.seqs), dtype=np.bool_)
        for rows in (self.ranked_by, self.near):
            if rows is not None:
                changed |= rows.changed
        return changed

    def nearest(self, positions: IntColumn) -> tuple[FloatRows, IntColumn, IntColumn]:
        """Cosine, chunk and chunks with the nearest phrasing, in the order of the positions."""
        return (self.near or NearRows.none(1, len(self.match.seqs))).nearest(positions)

    def dense_ranks(self, positions: IntColumn) -> IntColumn:
        """Places among the best by meaning; 0 for the others."""
        if self.ranked_by is None or self.also is None:
            return np.zeros(len(positions), dtype=np.int64)
        cosines, seqs = self.ranked_by.nearest(positions)[0], self.match.seqs[positions]
        return _ranks(cosines, np.isin(seqs, self.also) & ~np.isnan(cosines), seqs)

    def is_everything(self, depth: int) -> bool:
        """No allowed message with a vector, or with a word of the query around it, was left out."""
        by_words = self.match.is_candidate & (self.match.context > 0).any(axis=0)
        return int(by_words.sum()) < depth and all(a.candidates <= depth for a in self.answers)


def _of_vector_hits(hits: Sequence[VectorHit], answers: Sequence[VectorAnswer]) -> Candidates:
    """What was found by meaning alone, by (cosine descending, seq ascending)."""
    columns = HitColumns.of(hits)
    zeros = np.zeros(len(hits))
    wide = columns.scores.astype(np.float64)
    return Candidates(
        seqs=columns.seqs,
        revisions=columns.revisions,
        times_ns=None,
        cosines=columns.scores,
        chunks=columns.chunks,
        chunk_counts=columns.chunk_counts,
        dense_ranks=np.arange(1, len(hits) + 1),
        lexical_ranks=np.zeros(len(hits), dtype=np.int64),
        bm25=zeros.astype(np.float32),
        bm25_in_context=zeros.astype(np.float32),
        parts=FusedParts(wide, zeros, zeros, zeros),
        relevance=wide,
        best_cosine=_best_score(answers),
        allowed=answers[0].candidates,
        searchable=answers[0].searchable,
        exact=all(answer.exact for answer in answers),
    )


def _best_score(answers: Sequence[VectorAnswer]) -> float | None:
    return max((answer.hits[0].score for answer in answers if answer.hits), default=None)


def _lacks(seqs: IntColumn, wanted: IntColumn) -> bool:
    """Whether one that is wanted is not there; both are sorted and unique."""
    places = np.searchsorted(seqs, wanted)
    return bool((np.append(seqs, -1)[places] != wanted).any())


def _ranks(scores: FloatRows | WideRows, listed: BoolColumn, seqs: IntColumn) -> IntColumn:
    """Places from 1 by (score descending, seq ascending) among those listed; 0 for the others."""
    ranks = np.zeros(len(scores), dtype=np.int64)
    positions = np.flatnonzero(listed)
    order = np.lexsort((seqs[positions], -scores[positions]))
    ranks[positions[order]] = np.arange(1, len(positions) + 1)
    return ranks
