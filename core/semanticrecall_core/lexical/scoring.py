"""BM25 of every message of a view at once, each with the messages around it.

For a query word with the terms t1, t2, ... that stand for it, a document counts it
tf = sum of its counts, and has of it

    idf x (k1 + 1) x tf / (tf + k1 x (1 - b + b x length / mean length)),
    idf = ln(1 + (N - df + 0.5) / (df + 0.5))

with the N living messages of the view, each as one document, df of which have the word. There are
two kinds of document for a message. "Own" is its words and those of its date. "Context" is the
window around it: counts and lengths of the two messages before and after it in its thread are added
with less weight, before the saturation, so that a word said twice in an exchange counts less than
two words said once. All messages have a context score; own scores are for those that are asked for.

(Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009; summing
counts before the saturation is their BM25F.)

Words in few messages are scored where they are; for the others whole arrays are computed, which is
quicker. Both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .blocks import COUNT_MAX
from .thread_order import DEAD_PLACE, REACH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .partition import Tuning, View
    from .thread_order import PlaceColumn

    Number = TypeVar("Number", np.uint16, np.float32)
    BoolMask = NDArray[np.bool_]
    FloatColumn = NDArray[np.float32]
    Hits = list[tuple[PlaceColumn, NDArray[np.uint8]]]
    Places = NDArray[np.intp]

STD_MIN = 1e-6
"""A smaller deviation comes from rounding; 1 is given instead."""
_ONE = 10
"""Weights of a window are whole tenths, so that counts stay whole numbers of 16 bits."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """All constants of the lexical scores. Chosen by cross-validation: docs/decisions/0019.

    Attributes:
        k1, b: as in the formula above.
        near_tenths, far_tenths: what the messages at distance 1 and 2 count in a window, in tenths
            of its own message; 0 to 10.
    """

    k1: float = 1.2
    b: float = 0.75
    near_tenths: int = 6
    far_tenths: int = 3


class Term:
    """A word of a query: how often each message has it.

    Attributes:
        df: messages that have it.
    """

    __slots__ = ("_counts", "_dense", "_places", "df")

    def __init__(self, view: View, hits: Hits, tuning: Tuning) -> None:
        """Sum what was found of the terms that stand for it."""
        size = sum(len(places) for places, _ in hits)
        is_rare = view.end >= tuning.sparse_places_min and size * tuning.sparse_share < view.end
        self._dense: NDArray[np.uint8] | None = None
        if is_rare:
            self._places, self._counts = _summed(hits)
            self.df = len(self._places)
            return
        dense = np.zeros(view.end, np.uint8)
        dense[hits[0][0]] = hits[0][1]
        for places, counts in hits[1:]:
            dense[places] = np.minimum(dense[places] + counts.astype(np.uint16), COUNT_MAX)
        dense[DEAD_PLACE] = 0
        self._dense = dense
        self.df = -1  # counted by `mark`

    def mark(self, has_any: BoolMask) -> None:
        """Set the places of those that have it."""
        if self._dense is None:
            has_any[self._places] = True
        else:
            here = self._dense > 0
            self.df = int(np.count_nonzero(here))
            has_any |= here

    def at(self, places: Places) -> FloatColumn:
        """The counts at these places."""
        if self._dense is not None:
            return self._dense[places].astype(np.float32)
        out = np.zeros(len(places), np.float32)
        if len(self._places):
            at = np.searchsorted(self._places, places)
            at[at == len(self._places)] = 0
            same = self._places[at] == places
            out[same] = self._counts[at[same]]
        return out

    def add(self, window: _Window) -> None:
        """What it is worth to every message's window."""
        if self._dense is not None:
            window.add_dense(self._dense)
        elif len(self._places):
            window.add_sparse(self._places, self._counts)


@dataclass(frozen=True, slots=True)
class Scored:
    """One query's scores by place, shape (places,): 0 where nobody is.

    Attributes:
        context: BM25 of each message's window.
        mean, std: of all messages; the deviation is above 0.
        has_any: whether the message itself has a word of the query.
    """

    context: FloatColumn
    mean: float
    std: float
    has_any: BoolMask
    _view: View
    _scoring: Scoring
    _terms: tuple[Term, ...]

    def own(self, places: PlaceColumn) -> FloatColumn:
        """BM25 of the messages' own words, at these places."""
        at = places.astype(np.intp)
        out = np.zeros(len(at), np.float32)
        if not len(at):
            return out
        k1, b = self._scoring.k1, self._scoring.b
        frame = self._view.frame()
        norms = frame.lengths[at] * np.float32(k1 * b / frame.mean_length)
        norms += np.float32(k1 * (1.0 - b))
        for term in self._terms:
            tf = term.at(at)
            out += tf / (tf + norms) * _factor(self._view.searchable, term.df, k1)
        return out


def scored(view: View, words: Sequence[Sequence[int]], scoring: Scoring, tuning: Tuning) -> Scored:
    """The scores of a query; one entry of `words` for each of its words, with its terms."""
    window = _Window(view, scoring)
    has_any = np.zeros(view.end, np.bool_)
    terms: list[Term] = []
    for hits in _hits(view, words):
        if hits:
            term = Term(view, hits, tuning)
            term.mark(has_any)
            term.add(window)
            terms.append(term)
    mean, std = window.moments()
    return Scored(window.sum, mean, std, has_any, view, scoring, tuple(terms))


def document_frequency(view: View, terms: Sequence[int], tuning: Tuning) -> int:
    """How many messages have one of these terms."""
    hits = _hits(view, [terms])[0]
    if not hits:
        return 0
    has_any = np.zeros(view.end, np.bool_)
    Term(view, hits, tuning).mark(has_any)
    return int(np.count_nonzero(has_any))


def _hits(view: View, words: Sequence[Sequence[int]]) -> list[Hits]:
    """For each word of a query who has it, of each term and part one entry."""
    out: list[Hits] = [[] for _ in words]
    wanted = np.array(sorted({term for terms in words for term in terms}), np.uint32)
    number = {term: i for i, term in enumerate(wanted.tolist())}
    for part in view.parts:
        found = part.postings.find(wanted)
        for i, terms in enumerate(words):
            for term in terms:
                postings = found[number[term]]
                if postings is not None:
                    out[i].append((part.places[postings.rows], postings.counts))
    return out


def _summed(hits: Hits) -> tuple[Places, FloatColumn]:
    """Places ascending, each once and alive, with their counts."""
    places = np.concatenate([places for places, _ in hits]).astype(np.intp)
    counts = np.concatenate([counts for _, counts in hits])
    order = np.argsort(places)
    places = places[order]
    firsts = np.flatnonzero(np.append(True, places[1:] != places[:-1]))
    sums = np.minimum(np.add.reduceat(counts[order], firsts, dtype=np.int64), COUNT_MAX)
    places = places[firsts]
    alive = places != DEAD_PLACE
    return places[alive], sums[alive].astype(np.float32)


def _factor(searchable: int, df: int, k1: float) -> np.float32:
    """What the saturated count of a word is multiplied by."""
    return np.float32(np.log1p((searchable - df + 0.5) / (df + 0.5)) * (k1 + 1.0))


class _Window:
    """Adds up the context scores, word by word. Counts are in tenths, and so are the norms."""

    __slots__ = ("_norms", "_scoring", "_spare", "_view", "_wide", "sum")

    def __init__(self, view: View, scoring: Scoring) -> None:
        self._view, self._scoring = view, scoring
        self._norms = _norms(view, scoring)
        self.sum = np.zeros(view.end, np.float32)
        self._spare = np.empty(view.end, np.float32)
        self._wide = np.empty(view.end, np.uint16)

    def add_dense(self, counts: NDArray[np.uint8]) -> None:
        """One word, its counts by place."""
        near, far = self._scoring.near_tenths, self._scoring.far_tenths
        tf = _around(counts.astype(np.uint16), near, far, self._wide)
        part = np.add(tf, self._norms, out=self._spare)
        np.divide(tf, part, out=part)
        df = int(np.count_nonzero(part > 0))
        part *= _factor(self._view.searchable, df, self._scoring.k1)
        self.sum += part

    def add_sparse(self, places: Places, counts: FloatColumn) -> None:
        """One word that these messages (ascending) have, and no others."""
        weights = (self._scoring.far_tenths, self._scoring.near_tenths, _ONE)
        distances = range(-REACH, REACH + 1)
        at = np.concatenate([places + distance for distance in distances])
        tf = np.concatenate([counts * weights[REACH - abs(d)] for d in distances])
        order = np.argsort(at, kind="stable")
        at = at[order]
        firsts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
        tf = np.add.reduceat(tf[order], firsts)
        at = at[firsts]
        tf /= tf + self._norms[at]
        df = int(np.count_nonzero(tf))
        self.sum[at] += tf * _factor(self._view.searchable, df, self._scoring.k1)

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation over all messages."""
        n = self._view.searchable
        if not n:
            return 0.0, 1.0
        mean = float(np.add.reduce(self.sum, dtype=np.float64)) / n
        squares = float(np.vecdot(self.sum, self.sum)) / n
        std = max(0.0, squares - mean * mean) ** 0.5
        return mean, std if std > STD_MIN else 1.0


def _around(values: NDArray[Number], near: int, far: int, out: NDArray[Number]) -> NDArray[Number]:
    """Each place's value and those around it, weighted. The first and last places are free."""
    np.multiply(values, _ONE, out=out)
    for distance, weight in ((1, near), (2, far)):
        if weight:
            both = values[: -2 * distance] + values[2 * distance :]
            both *= weight
            out[distance:-distance] += both
    return out


def _norms(view: View, scoring: Scoring) -> FloatColumn:
    """Ten times k1 x (1 - b + b x length / mean length) by place; infinite where nobody is."""
    frame = view.frame()
    norms = frame.norms.get(scoring)
    if norms is None:
        lengths = _around(
            frame.lengths, scoring.near_tenths, scoring.far_tenths, np.empty_like(frame.lengths)
        )
        total = float(np.add.reduce(lengths, dtype=np.float64, where=frame.here))
        mean = total / view.searchable if total else 1.0
        norms = lengths * np.float32(_ONE * scoring.k1 * scoring.b / mean)
        norms += np.float32(_ONE * scoring.k1 * (1.0 - scoring.b))
        norms[~frame.here] = np.inf
        frame.norms[scoring] = norms
    return norms
