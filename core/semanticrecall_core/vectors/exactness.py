"""The exact top k messages of a view: approximate candidates, exact scores, and a proof.

1. Each part hands out its nearest rows by an approximate score (coded, or float32), its bound
   `slack` on the error of those scores, and `outside`: no row it kept back has a true cosine above
   that.
2. The k-th best message by approximate scores, less `slack`, is a floor: candidates that may reach
   it (score + slack) are scored exactly and ordered (`ranked`).
3. The k-th exact score is the next floor. Parts whose `outside` reaches it hand out four times as
   many. If none does, no row kept back can enter, not even by a tie: the answer is exact. Parts of
   which that cannot be said after some rounds (equal vectors, messages of very many chunks) are
   read whole.

Every answer is exact: no method in here leaves out a row without proof. Above a number of rows
parts are scanned by several threads (`parallel_scan`), which changes no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from semanticrecall_core.types.values import VectorAnswer, VectorHits, VectorQuery

from .codes import Probe, float_slack
from .parallel_scan import ScanThreads
from .partition import Tuning, View
from .ranked import joined, nothing, ranked
from .sources import Source, check_top_k, sources_of

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn

    from .ranked import Chosen, Scores

R = TypeVar("R")

SCANS_MAX = 3
WIDENING = 4


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of one source by approximate score.

    Attributes:
        source: whose rows they are.
        rows: positions in the part.
        scores: approximate cosines.
        slack: bound on |true - approximate|.
        outside: no allowed row kept back has a true cosine above it; -inf where none was.
    """

    source: Source
    rows: IntColumn
    scores: Scores
    slack: float
    outside: float

    def may_hide(self, floor: float) -> bool:
        """Whether a row that was kept back may have a score of `floor` or above."""
        return self.outside > -np.inf and self.outside >= floor


def search(
    view: View,
    query: VectorQuery,
    dimensions: int,
    tuning: Tuning,
    threads: ScanThreads | None = None,
) -> VectorAnswer:
    """The exact answer to `query` (see `VectorIndex.search`).

    Args:
        view: where to search.
        query: what for.
        dimensions: numbers in a vector.
        tuning: sizes.
        threads: help with large searches; None is none.

    Raises:
        InvalidArgumentError: top_k below 1, or a query vector that is not one.
    """
    check_top_k(query)
    probe = Probe(query.vector, dimensions)
    sources, candidates = sources_of(view, query, tuning)
    found = nothing()
    if sources:
        found = _Search(probe, query.top_k, tuning, threads).nearest(sources)
    return VectorAnswer(found, candidates, view.searchable, exact=True)


@dataclass(frozen=True, slots=True)
class _Search:
    """One search over the allowed rows of all parts."""

    probe: Probe
    top_k: int
    tuning: Tuning
    threads: ScanThreads | None

    def nearest(self, sources: Sequence[Source]) -> VectorHits:
        """The top k messages."""
        wanted = 2 * self.top_k + self.tuning.margin_rows
        # What has no codes is read whole in any case.
        if 2 * wanted >= _rows(sources) or not any(source.in_codes for source in sources):
            return self._ranked(self._read_whole(sources, -np.inf))
        found = self._scanned(sources, wanted)
        hits = self._best(found, wanted)
        floor = self._floor(hits)
        for _ in range(SCANS_MAX - 1):
            weak = [i for i, candidates in enumerate(found) if candidates.may_hide(floor)]
            if not weak:
                return hits
            wanted *= WIDENING
            weak_sources = [found[i].source for i in weak]
            if 2 * wanted >= _rows(weak_sources):
                break
            again = self._scanned(weak_sources, wanted)
            for i, candidates in zip(weak, again, strict=True):
                found[i] = candidates
            hits = self._ranked(_reaching(found, floor))
            floor = max(floor, self._floor(hits))
        weak_sources = [candidates.source for candidates in found if candidates.may_hide(floor)]
        if not weak_sources:
            return hits
        proven = [candidates for candidates in found if not candidates.may_hide(floor)]
        return self._ranked(_reaching(proven, floor) + self._read_whole(weak_sources, floor))

    def _scanned(self, sources: Sequence[Source], wanted: int) -> list[Candidates]:
        """The `wanted` best of each source, and its outliers."""
        if self.threads is None or len(sources) == 1:
            return [_candidates(source, self.probe, wanted) for source in sources]
        unknown = [s for s in sources if not _is_remembered(s, self.probe, wanted)]
        return self._spread(
            lambda source: _candidates(source, self.probe, wanted), sources, _rows(unknown)
        )

    def _spread(self, scan: Callable[[Source], R], sources: Sequence[Source], rows: int) -> list[R]:
        """`scan` of each source, on several threads if `rows` are worth it."""
        if self.threads is None or len(sources) == 1 or rows < self.tuning.parallel_rows_min:
            return [scan(source) for source in sources]
        return self.threads.map(scan, sources)

    def _best(self, found: Sequence[Candidates], wanted: int) -> VectorHits:
        """The top k of all candidates."""
        return self._ranked(_reaching(found, self._floor_of_codes(found, wanted)))

    def _floor_of_codes(self, found: Sequence[Candidates], wanted: int) -> float:
        """As `_floor`, from the approximate scores of the `wanted` best candidates alone.

        With no more candidates than that, it is quicker to score them all exactly.
        """
        total = sum(len(candidates.rows) for candidates in found)
        if total <= wanted:
            return -np.inf
        scores = joined([candidates.scores for candidates in found])
        best = np.argpartition(scores, total - wanted)[total - wanted :]
        best = best[np.argsort(-scores[best])]
        seqs = joined([c.source.part.block.seqs.take(c.rows) for c in found])[best]
        firsts = np.sort(np.unique(seqs, return_index=True)[1])
        if len(firsts) < self.top_k:
            return -np.inf
        kth = float(scores[best[firsts[self.top_k - 1]]])
        return _held(kth - max(candidates.slack for candidates in found))

    def _floor(self, best: VectorHits) -> float:
        """No message below this cosine is among the top k; -inf where that is not known."""
        return -np.inf if len(best.scores) < self.top_k else _held(float(best.scores[-1]))

    def _read_whole(self, sources: Sequence[Source], floor: float) -> list[Chosen]:
        scored = self._spread(lambda s: _float_scores(s, self.probe), sources, _rows(sources))
        slack = float_slack(len(self.probe.vector))
        return _all_that_may_count(sources, scored, self.top_k, floor, slack)

    def _ranked(self, chosen: Sequence[Chosen]) -> VectorHits:
        return ranked(chosen, self.top_k, self.probe.wide)


def _held(floor: float) -> float:
    """A floor as scores are: within 1, where lengths a little above 1 tie; -inf where at -1."""
    return min(floor, 1.0) if floor > -1.0 else -np.inf


def _rows(sources: Sequence[Source]) -> int:
    return sum(source.rows for source in sources)


def _is_remembered(source: Source, probe: Probe, wanted: int) -> bool:
    coded = source.part.coded
    if coded is None or not source.unconditional:
        return False
    return coded.remembers(probe, min(wanted, len(coded)), source.bits)


def _candidates(source: Source, probe: Probe, wanted: int) -> Candidates:
    part = source.part
    if part.coded is None or source.chosen is not None:
        rows, scores = _float_scores(source, probe)
        slack, outside = float_slack(len(probe.vector)), -np.inf
        if len(rows) > wanted:
            best = np.argpartition(scores, len(scores) - wanted)[-wanted:]
            rows, scores = rows[best], scores[best]
            outside = float(scores.min()) + slack
        return Candidates(source, rows, scores, slack, outside)
    slack, outside = part.coded.error_bound(probe), -np.inf
    rows, scores = part.coded.scan(
        probe, min(wanted, len(part.coded)), source.bits, remember=source.unconditional
    )
    if len(rows) < source.rows:
        outside = float(scores[-1]) + slack
    outliers = part.coded.outliers
    if len(outliers):  # their coded scores are not within the bound
        coded = ~np.isin(rows, outliers)
        rows, scores = rows[coded], scores[coded]
        if source.allowed is not None:
            outliers = outliers[source.allowed[outliers]]
        exact: Scores = np.vecdot(part.block.vectors[outliers], probe.vector)
        rows = np.concatenate((rows, outliers))
        scores = np.concatenate((scores, exact))
    return Candidates(source, rows, scores, slack, outside)


def _float_scores(source: Source, probe: Probe) -> tuple[IntColumn, Scores]:
    """Float32 cosines of the allowed rows. `vecdot` takes each row alone, on this thread only."""
    vectors = source.part.block.vectors
    if source.chosen is not None:
        return source.chosen, np.vecdot(vectors[source.chosen], probe.vector)
    return source.allowed_of(np.vecdot(vectors, probe.vector))


def _reaching(found: Sequence[Candidates], floor: float) -> list[Chosen]:
    """Candidates whose exact score may be `floor` or more, by row."""
    chosen: list[Chosen] = []
    for c in found:
        rows = np.sort(c.rows if floor == -np.inf else c.rows[c.scores >= floor - c.slack])
        if len(rows):
            chosen.append((c.source.part.block, rows))
    return chosen


def _all_that_may_count(
    sources: Sequence[Source],
    scored: Sequence[tuple[IntColumn, Scores]],
    top_k: int,
    floor: float,
    slack: float,
) -> list[Chosen]:
    """Every row that can be the best of one of the top k messages, by the scores of all rows.

    Where no floor is known: with T the k-th best message's float32 score and e the bound on its
    error (`slack`), k messages are truly at T - e or above.
    """
    if floor == -np.inf:
        best: list[Scores] = []
        for source, (rows, scores) in zip(sources, scored, strict=True):
            if source.part.rows > source.part.messages:
                starts = source.part.block.firsts[rows].nonzero()[0]
                scores = np.maximum.reduceat(scores, starts)
            best.append(scores)
        messages = joined(best)
        if len(messages) > top_k:
            kth = float(np.partition(messages, len(messages) - top_k)[len(messages) - top_k])
            floor = _held(_held(kth) - slack)
    chosen = [
        (source.part.block, rows[scores >= floor - slack])
        for source, (rows, scores) in zip(sources, scored, strict=True)
    ]
    return [(block, rows) for block, rows in chosen if len(rows)]
