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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .blocks import COUNT_MAX
from .thread_order import DEAD_PLACE, REACH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .partition import Tuning, View
    from .thread_order import PlaceColumn

    Factor = Callable[[int], float]
    Number = TypeVar("Number", np.uint8, np.uint16, np.float32)
    BoolMask = NDArray[np.bool_]
    FloatColumn = NDArray[np.float32]
    Hits = list[tuple[PlaceColumn, NDArray[np.uint8]]]

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


class DenseWords:
    """Words that many messages have: how often, for every place.

    Attributes:
        counts: shape (words, places), uint8.
        dfs: messages that have each word.
    """

    __slots__ = ("counts", "dfs")

    def __init__(self, view: View, words: Sequence[Hits], has_any: BoolMask) -> None:
        """Sum what was found of the terms of each word; mark in `has_any` who has one."""
        self.counts = np.zeros((len(words), view.end), np.uint8)
        for counts, hits in zip(self.counts, words, strict=True):
            counts[hits[0][0]] = hits[0][1]
            for places, more in hits[1:]:
                counts[places] = np.minimum(counts[places] + more.astype(np.uint16), COUNT_MAX)
        self.counts[:, DEAD_PLACE] = 0
        has = self.counts > 0
        self.dfs = [int(np.count_nonzero(one)) for one in has]
        for one in has:
            has_any |= one

    def own(self, at: PlaceColumn, norms: FloatColumn, factor: Factor) -> FloatColumn:
        """What these words are worth to the messages at these places themselves."""
        tf = self.counts[:, at].astype(np.float32)
        tf /= tf + norms
        tf *= np.array([factor(df) for df in self.dfs], np.float32)[:, np.newaxis]
        total: FloatColumn = np.add.reduce(tf, axis=0)
        return total


class RareWord:
    """A word that few messages have.

    Attributes:
        places: of those who have it, ascending.
        counts: how often, float32.
    """

    __slots__ = ("counts", "places")

    def __init__(self, hits: Hits, has_any: BoolMask) -> None:
        """Sum what was found of its terms; mark in `has_any` who has it."""
        self.places, self.counts = _summed(hits)
        has_any[self.places] = True

    def own(self, at: PlaceColumn, norms: FloatColumn, factor: Factor) -> FloatColumn:
        """What this word is worth to the messages at these places themselves."""
        out = np.zeros(len(at), np.float32)
        if len(self.places):
            found = np.searchsorted(self.places, at)
            found[found == len(self.places)] = 0
            same = self.places[found] == at
            tf = self.counts[found[same]]
            out[same] = tf / (tf + norms[same]) * factor(len(self.places))
        return out


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
    _words: tuple[DenseWords | RareWord, ...]

    def own(self, at: PlaceColumn) -> FloatColumn:
        """BM25 of the messages' own words, at these places."""
        out = np.zeros(len(at), np.float32)
        if not len(at):
            return out
        k1, b = self._scoring.k1, self._scoring.b
        frame = self._view.frame()
        norms = frame.lengths[at] * np.float32(k1 * b / frame.mean_length)
        norms += np.float32(k1 * (1.0 - b))
        for words in self._words:
            out += words.own(at, norms, _factor(self._view, self._scoring))
        return out


def scored(view: View, words: Sequence[Sequence[int]], scoring: Scoring, tuning: Tuning) -> Scored:
    """The scores of a query; one entry of `words` for each of its words, with its terms."""
    window = _Window(view, scoring)
    has_any = np.zeros(view.end, np.bool_)
    counted: list[DenseWords | RareWord] = []
    many: list[Hits] = []
    for hits in _hits(view, words):
        size = sum(len(places) for places, _ in hits)
        if view.end < tuning.sparse_places_min or size * tuning.sparse_share >= view.end:
            many += [hits] if hits else []
        elif hits:
            rare = RareWord(hits, has_any)
            window.add_rare(rare)
            counted.append(rare)
    at_once = max(1, tuning.numbers_at_once // view.end)
    for start in range(0, len(many), at_once):
        dense = DenseWords(view, many[start : start + at_once], has_any)
        window.add_dense(dense.counts)
        counted.append(dense)
    mean, std = window.moments()
    return Scored(window.sum, mean, std, has_any, view, scoring, tuple(counted))


def document_frequency(view: View, terms: Sequence[int]) -> int:
    """How many messages have one of these terms."""
    hits = _hits(view, [terms])[0]
    if not hits:
        return 0
    return len(_summed(hits)[0])


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
                    places = part.places.take(postings.rows, mode="clip")  # none is out of range
                    out[i].append((places, postings.counts))
    return out


def _summed(hits: Hits) -> tuple[PlaceColumn, FloatColumn]:
    """Places ascending, each once and alive, with their counts."""
    places = np.concatenate([places for places, _ in hits])
    counts = np.concatenate([counts for _, counts in hits])
    order = np.argsort(places)
    places = places[order]
    firsts = np.flatnonzero(np.append(True, places[1:] != places[:-1]))
    sums = np.minimum(np.add.reduceat(counts[order], firsts, dtype=np.int64), COUNT_MAX)
    places = places[firsts]
    alive = places != DEAD_PLACE
    return places[alive], sums[alive].astype(np.float32)


def _factor(view: View, scoring: Scoring) -> Factor:
    """What the saturated count of a word is multiplied by, from the messages that have it."""
    n, k1 = view.searchable, scoring.k1
    return lambda df: math.log1p((n - df + 0.5) / (df + 0.5)) * (k1 + 1.0)


class _Window:
    """Adds up the context scores, word by word. Counts are in tenths, and so are the norms."""

    __slots__ = ("_factor", "_norms", "_scoring", "_view", "sum")

    def __init__(self, view: View, scoring: Scoring) -> None:
        self._view, self._scoring = view, scoring
        self._norms = _norms(view, scoring)
        self._factor = _factor(view, scoring)
        self.sum = np.zeros(view.end, np.float32)

    def add_dense(self, counts: NDArray[np.uint8]) -> None:
        """Some words, their counts by place: shape (words, places)."""
        near, far = self._scoring.near_tenths, self._scoring.far_tenths
        most = int(counts.max()) * (_ONE + 2 * near + 2 * far)
        if most <= COUNT_MAX:
            tf = _around(counts, near, far).astype(np.float32)
        else:
            tf = _around(counts.astype(np.uint16), near, far).astype(np.float32)
        tf /= tf + self._norms
        for one, has in zip(tf, tf > 0, strict=True):
            one *= self._factor(int(np.count_nonzero(has)))
            self.sum += one

    def add_rare(self, word: RareWord) -> None:
        """One word."""
        places, counts = word.places, word.counts
        if not len(places):
            return
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
        self.sum[at] += tf * np.float32(self._factor(int(np.count_nonzero(tf))))

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation over all messages."""
        n = self._view.searchable
        if not n:
            return 0.0, 1.0
        mean = float(np.add.reduce(self.sum)) / n
        squares = float(np.vecdot(self.sum, self.sum)) / n
        std = max(0.0, squares - mean * mean) ** 0.5
        return mean, std if std > STD_MIN else 1.0


def _around(values: NDArray[Number], near: int, far: int) -> NDArray[Number]:
    """Each place's value and those around it, weighted. The first and last places are free."""
    out = np.empty_like(values)
    np.multiply(values, _ONE, out=out)
    for distance, weight in ((1, near), (2, far)):
        if weight:
            both = values[..., : -2 * distance] + values[..., 2 * distance :]
            both *= weight
            out[..., distance:-distance] += both
    return out


def _norms(view: View, scoring: Scoring) -> FloatColumn:
    """Ten times k1 x (1 - b + b x length / mean length) by place; infinite where nobody is."""
    frame = view.frame()
    norms = frame.norms.get(scoring)
    if norms is None:
        lengths = _around(frame.lengths, scoring.near_tenths, scoring.far_tenths)
        total = float(np.add.reduce(lengths, dtype=np.float64, where=frame.here))
        mean = total / view.searchable if total else 1.0
        norms = lengths * np.float32(_ONE * scoring.k1 * scoring.b / mean)
        norms += np.float32(_ONE * scoring.k1 * (1.0 - scoring.b))
        norms[~frame.here] = np.inf
        frame.norms[scoring] = norms
    return norms
