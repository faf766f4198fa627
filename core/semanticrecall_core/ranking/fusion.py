"""What a message is worth for a query, from its meaning, its words and its place in the thread.

For each phrasing of the query, with z(x) = (x - mean) / standard deviation over the partition:

    alone       dense x max(z(cosine), DENSE_FLOOR) + lexical x (worth of its window - mean worth)
                / standard deviation of BM25 + author x [the query names it]
    relevance   alone + neighbour x the previous message's alone, where that one asks a question

and the mean of that over the phrasings. The window of a message holds its words and, with less
weight, those around it in the thread (`LexicalMatch`). It is worth its BM25, or less where it has
little of the query. An answer often shares no word with what it answers: a question hands over a
share of its own worth. The weights are in `Weights`; where they come from is in docs/decisions.
Means and deviations are those of the whole partition, so that a condition (a thread, a filter)
changes no relevance, and a score says how far a message stands out among all that could have been
found.

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
    BoolColumn = NDArray[np.bool_]

WEIGHT_MAX = 4.0
DENSE_FLOOR = -1.0
"""What a cosine counts at least: a code in a message says which it is, and no vector knows it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What each part counts, from 0 to 4.

    Attributes:
        dense: of a cosine one standard deviation above the mean of the partition.
        lexical: of a window's BM25 one standard deviation above the mean.
        author: of a query that names the message's author.
        neighbour: share of a question's worth that the message after it gets.
    """

    dense: float = 1.0
    lexical: float = 1.0
    author: float = 1.0
    neighbour: float = 0.25

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
    neighbour: WideRows
    author: WideRows

    @property
    def columns(self) -> tuple[WideRows, ...]:
        """All of them, in this order."""
        return self.dense, self.lexical, self.neighbour, self.author

    @property
    def relevance(self) -> WideRows:
        """Their sum, added in this order."""
        return self.dense + self.lexical + self.neighbour + self.author


def fused(match: LexicalMatch, near: Cosines | None, weights: Weights) -> FusedParts:
    """The parts of every message of a match, questions before candidates too.

    Args:
        match: messages with the scores of their words.
        near: cosines in the order of `match.seqs`; None ranks by words alone.
        weights: what each part counts.
    """
    after_question = (match.before >= 0) & match.asks[match.before]
    of_phrasings: list[FusedParts] = []
    for phrasing in range(len(match.worth)):
        dense = _dense(near, phrasing, weights)
        if dense is None:
            dense = np.zeros(len(match.seqs))
        lexical = _z(match.worth, match.worth_mean, match.context_std, phrasing)
        lexical *= weights.lexical
        author = np.multiply(match.names_author[phrasing], weights.author, dtype=np.float64)
        # A question hands over a share of its own worth.
        before = (dense + lexical + author)[match.before]
        neighbour = weights.neighbour * np.where(after_question, before, 0.0)
        of_phrasings.append(FusedParts(dense, lexical, neighbour, author))
    if len(of_phrasings) == 1:  # nearly always, and the mean of one costs as much as of many
        return of_phrasings[0]
    columns = zip(*(parts.columns for parts in of_phrasings), strict=True)
    return FusedParts(*(np.mean(column, axis=0) for column in columns))


def best_first(relevance: WideRows, seqs: IntColumn) -> IntColumn:
    """Positions by (relevance descending, seq ascending): equal inputs give one order."""
    return np.lexsort((seqs, -relevance))


def _dense(near: Cosines | None, phrasing: int, weights: Weights) -> WideRows | None:
    """What the cosines with one phrasing count; None where there are none."""
    if near is None:
        return None
    dense = _z(near.cosines, near.mean, near.std, phrasing)
    np.maximum(dense, DENSE_FLOOR, out=dense)
    dense *= weights.dense
    dense[np.isnan(dense)] = 0.0
    return dense


def _z(values: FloatRows, mean: FloatRows, std: FloatRows, phrasing: int) -> WideRows:
    """How many deviations each is above the mean, in float64."""
    # One column and two numbers: broadcasting rows of phrasings takes twice as long.
    z: WideRows = np.subtract(values[phrasing], float(mean[phrasing]), dtype=np.float64)
    z /= float(std[phrasing])
    return z
