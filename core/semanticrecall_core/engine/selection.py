"""Hits out of candidates: recency, near duplicates, diversity, top_k, threshold; in this order.

The threshold comes last and lets nobody move up: it only takes away, so that raising it never adds
a result. A near duplicate makes room: the candidates behind it move up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.engine.candidates import Candidates
from semanticrecall_core.ranking.diversity import diverse, near_duplicates
from semanticrecall_core.ranking.fusion import best_first
from semanticrecall_core.ranking.recency import recency, recency_parts, span_of
from semanticrecall_core.types.recalling import Excluded, ExcludedReason, Hit, RecallQuery

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    WideRows = NDArray[np.float64]

EXCLUDED_MAX = 20
DIVERSE_AMONG_MIN = 50
DIVERSE_AMONG_TIMES_TOP_K = 4

VectorsOf = Callable[["IntColumn", "IntColumn"], "FloatRows"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What became of the candidates of one recall.

    Attributes:
        hits: by rank; all meet the threshold.
        hit_ranks: the rank each had among all candidates, from 1; in the order of `hits`.
        excluded: the best that are no hits, by rank, at most 20; empty unless asked to explain.
        reached_top_k: how many there were before the threshold.
    """

    hits: tuple[Hit, ...]
    hit_ranks: tuple[int, ...]
    excluded: tuple[Excluded, ...]
    reached_top_k: int


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Positions of the top_k in their order, what diversity adds, and near duplicates.

    `instead` holds for each near duplicate the position of the one it is like, -1 for the others.
    """

    positions: IntColumn
    diversity: WideRows
    instead: IntColumn


def selected(
    query: RecallQuery,
    candidates: Candidates,
    barred: Candidates | None,
    vectors_of: VectorsOf,
    now_ns: int,
) -> Selection:
    """Choose the hits.

    Args:
        query: what was asked.
        candidates: what may be hits; `times_ns` are there where recency counts.
        barred: what the conditions do not allow, to be named among the excluded; None for none.
        vectors_of: the vectors of (seqs, chunks).
        now_ns: what age is counted from.
    """
    span = span_of(candidates.relevance) if query.recency_weight else (0.0, 1.0)
    recent = _recency_of(query, candidates, span, now_ns)
    if query.recency_weight:
        order = best_first(candidates.relevance + recent, candidates.seqs)
        candidates, recent = candidates.taken(order), recent[order]
    chosen = _chosen(query, candidates, candidates.relevance + recent, vectors_of)
    passing = _passing(query, candidates)
    hits = tuple(
        candidates.hit(at, float(recent[at]), part)
        for at, part in zip(chosen.positions.tolist(), chosen.diversity.tolist(), strict=True)
        if passing[at]
    )
    reached = len(chosen.positions)
    if not query.explain:
        return Selection(hits, (), (), reached)
    if barred is None:
        barred = candidates.taken(np.empty(0, dtype=np.int64))
    barred_recent = _recency_of(query, barred, span, now_ns)
    ranks = _ranks(candidates, recent, barred, barred_recent)
    excluded = _excluded(query, candidates, recent, chosen, ranks)
    excluded += _barred(barred, barred_recent, ranks[len(candidates) :])
    excluded.sort(key=lambda one: one.rank)
    hit_ranks = tuple(int(ranks[at]) for at in chosen.positions.tolist() if passing[at])
    return Selection(hits, hit_ranks, tuple(excluded[:EXCLUDED_MAX]), reached)


def _recency_of(
    query: RecallQuery, candidates: Candidates, span: tuple[float, float], now_ns: int
) -> WideRows:
    if not query.recency_weight or candidates.times_ns is None:
        return np.zeros(len(candidates))
    ages = recency(candidates.times_ns, now_ns, query.recency_half_life_s)
    return recency_parts(candidates.relevance, ages, query.recency_weight, span)


def _chosen(
    query: RecallQuery, candidates: Candidates, relevance: WideRows, vectors_of: VectorsOf
) -> _Chosen:
    n = len(candidates)
    instead = np.full(n, -1, dtype=np.int64)
    wanted = query.top_k
    if query.diversity:
        wanted = max(DIVERSE_AMONG_MIN, DIVERSE_AMONG_TIMES_TOP_K * query.top_k)
    kept = np.arange(min(n, wanted))
    if query.near_duplicate_cosine is not None and n:
        vectors = vectors_of(candidates.seqs, candidates.chunks)
        instead, looked_at = near_duplicates(vectors, query.near_duplicate_cosine, wanted)
        kept = np.flatnonzero(instead[:looked_at] < 0)
    if not query.diversity:
        return _Chosen(kept, np.zeros(len(kept)), instead)
    vectors = vectors_of(candidates.seqs[kept], candidates.chunks[kept])
    taken, parts = diverse(
        relevance[kept], vectors, query.diversity, span_of(relevance), query.top_k
    )
    return _Chosen(kept[taken], parts, instead)


def _passing(query: RecallQuery, candidates: Candidates) -> NDArray[np.bool_]:
    """Who reaches the threshold, compared as the cosines are: in float32."""
    if query.threshold is None:
        return np.ones(len(candidates), dtype=np.bool_)
    passing: NDArray[np.bool_] = candidates.cosines >= np.float32(query.threshold)
    return passing


def _ranks(
    candidates: Candidates, recent: WideRows, barred: Candidates, barred_recent: WideRows
) -> IntColumn:
    """Places from 1 of all candidates, and then of those barred, in one list."""
    relevance = np.concatenate([candidates.relevance + recent, barred.relevance + barred_recent])
    seqs = np.concatenate([candidates.seqs, barred.seqs])
    ranks = np.empty(len(seqs), dtype=np.int64)
    ranks[best_first(relevance, seqs)] = np.arange(1, len(seqs) + 1)
    return ranks


def _excluded(
    query: RecallQuery,
    candidates: Candidates,
    recent: WideRows,
    chosen: _Chosen,
    ranks: IntColumn,
) -> list[Excluded]:
    passing = _passing(query, candidates)
    diversity = dict(zip(chosen.positions.tolist(), chosen.diversity.tolist(), strict=True))
    found: list[Excluded] = []
    places = 0
    for at in range(len(candidates)):
        instead = int(chosen.instead[at])
        places += instead < 0
        if at in diversity and passing[at]:
            continue
        if at in diversity:
            lacks_vector = bool(np.isnan(candidates.cosines[at]))
            reason = ExcludedReason.NO_VECTOR if lacks_vector else ExcludedReason.BELOW_THRESHOLD
        elif instead >= 0:
            reason = ExcludedReason.NEAR_DUPLICATE
        else:
            by_diversity = query.diversity > 0 and places <= query.top_k
            reason = ExcludedReason.DIVERSITY if by_diversity else ExcludedReason.TOP_K
        found.append(
            Excluded(
                candidates.hit(at, float(recent[at]), diversity.get(at, 0.0)),
                reason,
                int(ranks[at]),
                int(candidates.seqs[instead]) if instead >= 0 else 0,
            )
        )
        if len(found) == EXCLUDED_MAX:
            break
    return found


def _barred(barred: Candidates, recent: WideRows, ranks: IntColumn) -> list[Excluded]:
    """The best that the conditions do not allow."""
    return [
        Excluded(barred.hit(at, float(recent[at])), ExcludedReason.CONDITIONS, int(ranks[at]))
        for at in np.argsort(ranks)[:EXCLUDED_MAX].tolist()
    ]
