"""The exact top k messages of a view: approximate candidates, exact scores, and a proof.

1. Each part hands out its nearest rows by an approximate score (coded, or float32), and `outside`:
   no row it kept back has a true cosine above that.
2. Candidates are scored exactly: float64 products and sums of float32 numbers, row by row, so that
   a score depends on its row and the query alone; rounded to float32 and held within [-1, 1].
3. Messages are ordered by (best score descending, seq ascending), a message's chunks by (score
   descending, chunk ascending). If the k-th score is above every part's `outside`, no row kept
   back can enter, not even by a tie: the answer is exact. Otherwise four times as many candidates
   are taken, and if that proves nothing either (equal vectors, messages of very many chunks), all
   allowed rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.values import VectorAnswer, VectorHit, VectorQuery

from .codes import Probe, float_slack
from .conditions import allowed_rows, has_conditions
from .partition import Tuning, View
from .segment import Part, packed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    from .rows import BoolMask

    Scores = NDArray[np.float32]

WIDENING = 4
RESCORED_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Source:
    """The allowed rows of one part.

    Attributes:
        part: where they are.
        allowed: mask over the part's rows; None is all.
        bits: `allowed` packed, where a coded scan needs it.
        chosen: positions of the allowed rows where they are few; None otherwise.
        rows: how many are allowed; above zero.
    """

    part: Part
    allowed: BoolMask | None
    bits: NDArray[np.uint8] | None
    chosen: IntColumn | None
    rows: int


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


def search(view: View, query: VectorQuery, dimensions: int, tuning: Tuning) -> VectorAnswer:
    """The exact answer to `query` (see `VectorIndex.search`).

    Raises:
        InvalidArgumentError: top_k below 1, or a query vector that is not one.
    """
    if query.top_k < 1:
        raise InvalidArgumentError.of("top_k", "must be at least 1")
    probe = Probe(query.vector, dimensions)
    sources, candidates = _sources(view, query, tuning)
    hits = _nearest(sources, probe, query.top_k, tuning)
    return VectorAnswer(tuple(hits), candidates, view.searchable)


def _sources(view: View, query: VectorQuery, tuning: Tuning) -> tuple[list[Source], int]:
    """Where the allowed rows are, and how many messages they make."""
    if not has_conditions(query):
        parts = view.parts
        return [Source(p, p.alive, p.alive_bits, None, p.rows) for p in parts], view.searchable
    sources: list[Source] = []
    messages = 0
    for part in view.parts:
        allowed = allowed_rows(part, query)
        rows = int(np.count_nonzero(allowed))
        if not rows:
            continue
        messages += int(np.count_nonzero(allowed & part.block.firsts))
        if rows == len(allowed):
            sources.append(Source(part, None, None, None, rows))
        elif rows <= tuning.gather_rows_max:
            sources.append(Source(part, allowed, None, np.flatnonzero(allowed), rows))
        else:
            bits = packed(allowed) if part.coded is not None else None
            sources.append(Source(part, allowed, bits, None, rows))
    return sources, messages


def _nearest(
    sources: Sequence[Source], probe: Probe, top_k: int, tuning: Tuning
) -> list[VectorHit]:
    if not sources:
        return []
    wanted = 2 * top_k + tuning.margin_rows
    for _ in range(2):
        if 2 * wanted >= sum(source.rows for source in sources):
            break
        found = [_candidates(source, probe, wanted) for source in sources]
        found, outside = _trimmed(found, wanted)
        hits = _ranked([(c.source.part, c.rows) for c in found], probe, top_k)
        if len(hits) == top_k and hits[-1].score > outside:
            return hits
        wanted *= WIDENING
    return _ranked(_all_that_may_count(sources, probe, top_k), probe, top_k)


def _candidates(source: Source, probe: Probe, wanted: int) -> Candidates:
    part = source.part
    if source.chosen is not None or part.coded is None:
        rows, scores = _float_scores(source, probe)
        slack, outside = float_slack(len(probe.vector)), -np.inf
        if len(rows) > wanted:
            best = np.argpartition(scores, len(scores) - wanted)[-wanted:]
            rows, scores = rows[best], scores[best]
            outside = float(scores.min()) + slack
        return Candidates(source, rows, scores, slack, outside)
    slack, outside = part.coded.error_bound(probe), -np.inf
    rows, scores = part.coded.scan(probe, min(wanted, len(part.coded)), source.bits)
    if len(rows) < source.rows:
        outside = float(scores[-1]) + slack
    outliers = part.coded.outliers
    if len(outliers):
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
    scores = np.vecdot(vectors, probe.vector)
    if source.allowed is None:
        return np.arange(len(scores)), scores
    rows = np.flatnonzero(source.allowed)
    return rows, scores[rows]


def _trimmed(found: list[Candidates], wanted: int) -> tuple[list[Candidates], float]:
    """The `wanted` best of all parts' candidates, and the bound for all that is left out."""
    outside = max(c.outside for c in found)
    total = sum(len(c.rows) for c in found)
    if len(found) == 1 or total <= wanted:
        return found, outside
    scores = np.concatenate([c.scores for c in found])
    floor = float(np.partition(scores, total - wanted)[total - wanted])
    kept: list[Candidates] = []
    for c in found:
        above = c.scores >= floor
        if not bool(above.all()):
            outside = max(outside, floor + c.slack)
        if bool(above.any()):
            kept.append(Candidates(c.source, c.rows[above], c.scores[above], c.slack, c.outside))
    return kept, outside


def _all_that_may_count(
    sources: Sequence[Source], probe: Probe, top_k: int
) -> list[tuple[Part, IntColumn]]:
    """Every row that can be the best of one of the top k messages, by a scan of all rows.

    With T the k-th best message's float32 score and e the bound on its error, k messages are
    truly at T - e or above; a row below T - 2e is truly below that.
    """
    scored = [_float_scores(source, probe) for source in sources]
    best: list[Scores] = []
    for source, (rows, scores) in zip(sources, scored, strict=True):
        first_rows = source.part.block.firsts[rows]
        best.append(np.maximum.reduceat(scores, np.flatnonzero(first_rows)))
    messages = np.concatenate(best)
    floor = -np.inf
    if len(messages) > top_k:
        kth = float(np.partition(messages, len(messages) - top_k)[len(messages) - top_k])
        # Scores are held within 1, so that lengths a little above 1 tie there.
        floor = min(kth, 1.0) - 2.0 * float_slack(len(probe.vector))
    return [
        (source.part, rows[scores >= floor])
        for source, (rows, scores) in zip(sources, scored, strict=True)
    ]


def _ranked(chosen: Sequence[tuple[Part, IntColumn]], probe: Probe, top_k: int) -> list[VectorHit]:
    """The top k messages among these rows, by exact scores."""
    scores = _joined([_exact(part.block.vectors, rows, probe) for part, rows in chosen])
    seqs = _joined([part.block.seqs[rows] for part, rows in chosen])
    chunks = _joined([part.block.chunks[rows] for part, rows in chosen])
    counts = _joined([part.block.chunk_counts[rows] for part, rows in chosen])
    revisions = _joined([part.block.revisions[rows] for part, rows in chosen])
    hits: list[VectorHit] = []
    seen: set[int] = set()
    for position in np.lexsort((chunks, seqs, -scores)):
        seq = int(seqs[position])
        if seq in seen:
            continue
        seen.add(seq)
        score, revision = float(scores[position]), int(revisions[position])
        hits.append(VectorHit(seq, score, int(chunks[position]), int(counts[position]), revision))
        if len(hits) == top_k:
            break
    return hits


def _joined(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _exact(vectors: FloatRows, rows: IntColumn, probe: Probe) -> Scores:
    """Exact cosines of some rows, shape (len(rows),)."""
    if len(rows) <= RESCORED_ROWS_AT_ONCE:
        exact: Scores = np.vecdot(vectors[rows].astype(np.float64), probe.wide).astype(np.float32)
        np.minimum(exact, 1.0, out=exact)
        np.maximum(exact, -1.0, out=exact)
        return exact
    pieces = range(0, len(rows), RESCORED_ROWS_AT_ONCE)
    return np.concatenate(
        [_exact(vectors, rows[start : start + RESCORED_ROWS_AT_ONCE], probe) for start in pieces]
    )
