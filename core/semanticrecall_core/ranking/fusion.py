"""What a message is worth for a query, from its meaning, its words and its place in the thread.

For each phrasing of the query, with z(x) = (x - mean) / standard deviation over the partition:

    own words etc.  s = dense x z(cosine) + lexical x z(BM25 of its own words)
                      + context x z(BM25 of the previous message and it) + author x [it is named]
    relevance       s + neighbour x the larger s of its two neighbours in the thread

and the mean of that over the phrasings. The weights are in `Weights`. Means and deviations are
those of the whole partition, so that a condition (a thread, a filter) changes no relevance, and a
score says how far a message stands out among all that could have been found.

A message without a vector has nothing to be z of: its dense part is 0, that of an average message.
It neither gains nor loses by waiting, and its words alone decide where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.lexical import LexicalMatch
    from semanticrecall_core.types.values import FloatRows, IntColumn

    WideRows = NDArray[np.float64]

WEIGHT_MAX = 4.0


@dataclass(frozen=True, slots=True)
class Weights:
    """What each part counts, from 0 to 4.

    Attributes:
        dense: of a cosine one standard deviation above the mean of the partition.
        lexical: of a BM25 of the own words one standard deviation above the mean.
        context: of a BM25 of the previous message and this one, likewise.
        author: of a query that names the message's author.
        neighbour: share of the better neighbour's worth that comes on top.
    """

    dense: float = 1.0
    lexical: float = 0.4
    context: float = 0.4
    author: float = 0.5
    neighbour: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what is out of bounds (ValueError)."""
        for field in fields(self):
            if not 0.0 <= getattr(self, field.name) <= WEIGHT_MAX:
                raise ValueError(f"{field.name} must be 0 to {WEIGHT_MAX:g}")


@dataclass(frozen=True, slots=True)
class Cosines:
    """How near messages are to each phrasing of a query.

    Attributes:
        cosines: shape (queries, n). NaN where a message has no vector.
        mean, std: shape (queries,). Over all vectors of the partition; a deviation is above 0.
    """

    cosines: FloatRows
    mean: FloatRows
    std: FloatRows


@dataclass(frozen=True, slots=True)
class FusedParts:
    """What relevance is made of, each shape (n,), float64: the mean over the phrasings."""

    dense: WideRows
    lexical: WideRows
    context: WideRows
    neighbour: WideRows
    author: WideRows

    @property
    def columns(self) -> tuple[WideRows, ...]:
        """All of them, in this order."""
        return self.dense, self.lexical, self.context, self.neighbour, self.author

    @property
    def relevance(self) -> WideRows:
        """Their sum, added in this order."""
        return self.dense + self.lexical + self.context + self.neighbour + self.author


def fused(match: LexicalMatch, near: Cosines | None, weights: Weights) -> FusedParts:
    """The parts of every message of a match, neighbours of candidates too.

    Args:
        match: messages with the scores of their words.
        near: cosines in the order of `match.seqs`; None ranks by words alone.
        weights: what each part counts.
    """
    dense: WideRows = np.zeros(match.own.shape)
    if near is not None:
        dense = weights.dense * _z(near.cosines, near.mean, near.std)
        dense[np.isnan(dense)] = 0.0
    lexical = weights.lexical * _z(match.own, match.own_mean, match.own_std)
    context = weights.context * _z(match.context, match.context_mean, match.context_std)
    author = weights.author * match.names_author.astype(np.float64)
    alone = dense + lexical + context + author
    neighbour = weights.neighbour * _better_neighbour(match, alone)
    return FusedParts(*(part.mean(axis=0) for part in (dense, lexical, context, neighbour, author)))


def best_first(relevance: WideRows, seqs: IntColumn) -> IntColumn:
    """Positions by (relevance descending, seq ascending): equal inputs give one order."""
    return np.lexsort((seqs, -relevance))


def _z(values: FloatRows, mean: FloatRows, std: FloatRows) -> WideRows:
    scores: WideRows = (values - mean[:, np.newaxis].astype(np.float64)) / std[:, np.newaxis]
    return scores


def _better_neighbour(match: LexicalMatch, alone: WideRows) -> WideRows:
    """The larger worth of the neighbours that are there; 0 where there is none."""
    # A column of -inf at the end is what position -1 finds.
    padded = np.concatenate([alone, np.full((len(alone), 1), -np.inf)], axis=1)
    better: WideRows = np.maximum(padded[:, match.before], padded[:, match.after])
    better[np.isneginf(better)] = 0.0
    return better
