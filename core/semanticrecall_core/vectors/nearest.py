"""Which messages are nearest in a small view, where nobody asks for their order.

A recall scores those that it finds again, beside those that words have found, so that it needs to
know here who is among the best, and no more. With s a message's float32 cosine, e the bound on its
error (`float_slack`) and S the k-th best s, the k-th best exact cosine is within e of S. So who is
above S + 2e is among the best for certain, who is below S - 2e is not, and only those between are
scored exactly: mostly one.

The same cosines are what the moments of a small view are made of: its rows are read once for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from semanticrecall_core.types.values import VectorQuery

from .codes import Probe, float_slack
from .moments import SCAN_ROWS_MAX, means_and_stds, sums_of
from .partition import Tuning, View
from .ranked import joined, ranked
from .sources import Source, check_top_k, sources_of

if TYPE_CHECKING:
    from semanticrecall_core.types.values import FloatRows, IntColumn

    from .ranked import Chosen, Scores
    from .rows import BoolMask, RowBlock
    from .segment import Part


class WholeScan:
    """Float32 cosines of all rows of parts with one query; each part is read once.

    Attributes:
        probe: the query.
    """

    __slots__ = ("_scores", "probe")

    def __init__(self, vector: FloatRows, dimensions: int) -> None:
        """Check the query.

        Raises:
            InvalidArgumentError: as `Probe`.
        """
        self.probe = Probe(vector, dimensions)
        self._scores: dict[int, Scores] = {}

    def of(self, part: Part) -> Scores:
        """Of all rows of a part, dead ones too. `vecdot` takes each row alone."""
        scores = self._scores.get(id(part))
        if scores is None:
            scores = self._scores[id(part)] = np.vecdot(part.block.vectors, self.probe.vector)
        return scores


class _Messages(NamedTuple):
    """The allowed messages of a part.

    Attributes:
        block, rows: where they are; ascending.
        starts: where in `rows` each message begins; None where each has one.
        scores: of each message, within 1 as exact ones are.
    """

    block: RowBlock
    rows: IntColumn
    starts: IntColumn | None
    scores: Scores

    @classmethod
    def of(cls, source: Source, scan: WholeScan) -> _Messages:
        part = source.part
        rows, scores = source.allowed_of(scan.of(part))
        starts: IntColumn | None = None
        if part.rows > part.messages:
            starts = part.block.firsts[rows].nonzero()[0]
            scores = np.maximum.reduceat(scores, starts)
        return cls(part.block, rows, starts, np.maximum(np.minimum(scores, 1.0), -1.0))

    @property
    def seqs(self) -> IntColumn:
        return self.block.seqs.take(self.rows if self.starts is None else self.rows[self.starts])

    def rows_of(self, chosen: BoolMask) -> IntColumn:
        """The rows of some of the messages."""
        if self.starts is not None:
            chosen = np.repeat(chosen, np.diff(self.starts, append=len(self.rows)))
        return self.rows[chosen]


def is_small(view: View) -> bool:
    """Whether the moments of a view are those of all its rows, so that these are read anyway."""
    return sum(part.rows for part in view.parts) <= SCAN_ROWS_MAX


def nearest_seqs(
    view: View, query: VectorQuery, scan: WholeScan, tuning: Tuning
) -> tuple[IntColumn, int]:
    """The seqs of the messages that `search` finds, in any order; and how many are allowed.

    Args:
        view: where to look.
        query: what for.
        scan: of the query's vector.
        tuning: sizes.

    Raises:
        InvalidArgumentError: top_k below 1.
    """
    check_top_k(query)
    sources, candidates = sources_of(view, query, tuning)
    if not sources:
        return np.empty(0, np.int64), candidates
    messages = [_Messages.of(source, scan) for source in sources]
    seqs, scores = joined([own.seqs for own in messages]), joined([own.scores for own in messages])
    top_k, n = query.top_k, len(seqs)
    if n <= top_k:
        return seqs.astype(np.int64), candidates
    kth = float(np.partition(scores, n - top_k)[n - top_k])
    slack = 2.0 * float_slack(len(scan.probe.vector))
    reaching = scores >= kth - slack
    if int(np.count_nonzero(reaching)) == top_k:
        return seqs[reaching].astype(np.int64), candidates
    certain = scores > kth + slack
    unsure = _chosen(messages, reaching & ~certain)
    best = ranked(unsure, top_k - int(np.count_nonzero(certain)), scan.probe.wide)
    return np.concatenate((seqs[certain].astype(np.int64), best.seqs)), candidates


def spread_of_scans(view: View, scans: Sequence[WholeScan]) -> tuple[FloatRows, FloatRows]:
    """Mean and standard deviation of all cosines with each query; see `VectorIndex.moments`."""
    return means_and_stds(
        [
            sums_of(
                scan.of(part) if part.alive is None else scan.of(part)[part.alive]
                for part in view.parts
            )
            for scan in scans
        ]
    )


def _chosen(messages: list[_Messages], mask: BoolMask) -> list[Chosen]:
    """The rows of the messages in a mask over those of all parts."""
    chosen: list[Chosen] = []
    start = 0
    for own in messages:
        here = mask[start : start + len(own.scores)]
        start += len(own.scores)
        if here.any():
            chosen.append((own.block, own.rows_of(here)))
    return chosen
