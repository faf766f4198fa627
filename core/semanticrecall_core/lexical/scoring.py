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

Where the statistics are poor, words must not say more than they know:

- A function word counts `function_weight` of another: in a small resource it is as rare as any. In
  one of more than `function_messages_max` messages it counts nothing, unless the query has no other
  words: there it says next to nothing, and costs most.
- A number or a code is in the window only of a message that has it itself.
- The worth of a window is its BM25 x min(1, BM25 / full). `full` is `full_share` of the sum of the
  idf of all words of the query, of those that nobody has too; that sum is the BM25 of a message of
  mean length that has each of them once. In a small resource a window with little of the query
  stands out as well, where the others have nothing of it; so it counts for little.

(Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009; summing
counts before the saturation is their BM25F.)

Words in few messages are scored where they are; for the others whole arrays are computed, which is
quicker. Both give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .blocks import COUNT_MAX
from .thread_order import DEAD_PLACE, REACH
from .word_postings import WordPostings, summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .analysis import QueryToken
    from .partition import Tuning, View
    from .thread_order import PlaceColumn

    Number = TypeVar("Number", np.uint8, np.uint16, np.float32)
    BoolMask = NDArray[np.bool_]
    FloatColumn = NDArray[np.float32]
    Counted = tuple["DenseWords | RareWord", FloatColumn]

STD_MIN = 1e-6
"""A smaller deviation comes from rounding; 1 is given instead."""
_ONE = 10
"""Weights of a window are whole tenths, so that counts stay whole numbers of 16 bits."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """All constants of the lexical scores. Chosen by cross-validation: docs/decisions/0022.

    Attributes:
        k1, b: as in the formula above.
        near_tenths, far_tenths: what the messages at distance 1 and 2 count in a window, in tenths
            of its own message; 0 to 10.
        function_weight: what a function word counts; 0 to 1.
        function_messages_max: in a larger partition function words beside others do not count.
        full_share: from which share of what the query's words could give a window counts in full;
            0 or more.
    """

    k1: float = 1.2
    b: float = 0.75
    near_tenths: int = 6
    far_tenths: int = 3
    function_weight: float = 0.25
    function_messages_max: int = 4096
    full_share: float = 0.4

    def counted(self, words: Sequence[QueryToken], messages: int) -> Sequence[QueryToken]:
        """The words of a query that count in a partition of so many messages."""
        if messages <= self.function_messages_max:
            return words
        return [word for word in words if not word.is_function] or words


class DenseWords:
    """Words that many messages have: how often, for every place.

    Attributes:
        counts: shape (words, places), uint8.
    """

    __slots__ = ("counts",)

    def __init__(self, end: int, words: Sequence[int], postings: WordPostings) -> None:
        """Sum what was found of the terms of these words, in a view of so many places."""
        self.counts = np.zeros((len(words), end), np.uint8)
        postings.put_counts(words, self.counts)
        self.counts[:, DEAD_PLACE] = 0

    def own(self, at: PlaceColumn, norms: FloatColumn, factors: FloatColumn) -> FloatColumn:
        """What these words are worth to the messages at these places (ascending) themselves."""
        tf = self.counts.take(at, axis=1, mode="clip").astype(np.float32)
        tf /= tf + norms
        tf *= factors
        # Message by message: the order in which a message's words are added decides the last bits.
        total: FloatColumn = np.add.reduce(tf.T.copy(), axis=1)
        return total


class RareWord:
    """A word that few messages have.

    Attributes:
        places: of those who have it, each once.
        counts: how often, uint8.
    """

    __slots__ = ("counts", "places")

    def __init__(self, word: int, postings: WordPostings, spare: NDArray[np.uint8]) -> None:
        """Sum what was found of its terms.

        Args:
            spare: zeros by place; has the counts afterwards.
        """
        found: list[PlaceColumn] = []
        for places, counts, is_more in postings.of(word):
            known = spare[places]
            spare[places] = summed(known, counts) if is_more else counts
            found.append(places[known == 0] if is_more else places)
        self.places = np.concatenate(found)
        if spare[DEAD_PLACE]:
            spare[DEAD_PLACE] = 0
            self.places = self.places[self.places != DEAD_PLACE]
        self.counts = spare[self.places]

    def own(self, at: PlaceColumn, norms: FloatColumn, factors: FloatColumn) -> FloatColumn:
        """What this word is worth to the messages at these places (ascending) themselves."""
        out = np.zeros(len(at), np.float32)
        found = at.searchsorted(self.places)
        found[found == len(at)] = 0
        same = at[found] == self.places
        found, tf = found[same], self.counts[same].astype(np.float32)
        out[found] = tf / (tf + norms[found]) * factors[0, 0]
        return out


@dataclass(frozen=True, slots=True)
class Scored:
    """One query's scores by place, shape (places,): 0 where nobody is.

    Attributes:
        context: BM25 of each message's window.
        full: from which BM25 a window counts in full; above 0.
        mean: of what the windows of all messages are worth.
        std: of their BM25; above 0.
        has_any: whether the message itself has a word of the query.
    """

    context: FloatColumn
    full: float
    mean: float
    std: float
    has_any: BoolMask
    _view: View
    _scoring: Scoring
    _words: tuple[Counted, ...]

    def worth(self, context: FloatColumn) -> FloatColumn:
        """What windows of these BM25 are worth; the larger the BM25, the more."""
        worth: FloatColumn = context * np.minimum(context / np.float32(self.full), np.float32(1.0))
        return worth

    def own(self, at: PlaceColumn) -> FloatColumn:
        """BM25 of the messages' own words, at these places (ascending)."""
        out = np.zeros(len(at), np.float32)
        if not len(at):
            return out
        k1, b = self._scoring.k1, self._scoring.b
        frame = self._view.frame()
        norms = frame.lengths[at] * np.float32(k1 * b / frame.mean_length)
        norms += np.float32(k1 * (1.0 - b))
        for words, factors in self._words:
            out += words.own(at, norms, factors)
        return out


def scored(view: View, words: Sequence[QueryToken], scoring: Scoring, tuning: Tuning) -> Scored:
    """The scores of a query with these words."""
    words = scoring.counted(words, view.searchable)
    postings = WordPostings(view, [word.terms for word in words])
    window = _Window(view, scoring)
    has_any = np.zeros(view.end, np.bool_)
    spare = np.zeros(view.end, np.uint8)
    counted: list[Counted] = []
    many: list[int] = []
    for i, (word, size) in enumerate(zip(words, postings.sizes, strict=True)):
        if not size:
            window.add_absent(word)
        elif view.end < tuning.sparse_places_min or size * tuning.sparse_share >= view.end:
            many.append(i)
        else:
            rare = RareWord(i, postings, spare)
            has_any[rare.places] = True
            window.add_rare(word, rare.places, spare)
            spare[rare.places] = 0
            counted.append((rare, _factors(view, scoring, [word], [len(rare.places)])))
    if many:
        dense = DenseWords(view.end, many, postings)
        has_any |= np.bitwise_or.reduce(dense.counts, axis=0) > 0
        common = [words[i] for i in many]
        window.add_dense(common, dense.counts, tuning.numbers_at_once)
        if postings.are_messages:
            dfs = [postings.sizes[i] for i in many]
        else:
            dfs = [int(np.count_nonzero(counts)) for counts in dense.counts]
        counted.append((dense, _factors(view, scoring, common, dfs)))
    full, mean, std = window.moments()
    return Scored(window.sum, full, mean, std, has_any, view, scoring, tuple(counted))


def _weighted_idf(
    view: View, scoring: Scoring, words: Sequence[QueryToken], dfs: Sequence[int]
) -> list[float]:
    """Of words that so many messages have: what each counts x idf x (k1 + 1)."""
    n, more, less = view.searchable, scoring.k1 + 1.0, scoring.function_weight
    return [
        (less if word.is_function else 1.0) * (math.log1p((n - df + 0.5) / (df + 0.5)) * more)
        for word, df in zip(words, dfs, strict=True)
    ]


def _factors(
    view: View, scoring: Scoring, words: Sequence[QueryToken], dfs: Sequence[int]
) -> FloatColumn:
    """What the saturated counts of words are multiplied by; shape (words, 1)."""
    return np.array(_weighted_idf(view, scoring, words, dfs), np.float32)[:, np.newaxis]


class _Window:
    """Adds up the context scores, word by word. Counts are in tenths, and so are the norms."""

    __slots__ = ("_marks", "_norms", "_possible", "_scoring", "_view", "sum")

    def __init__(self, view: View, scoring: Scoring) -> None:
        self._view, self._scoring = view, scoring
        self._norms = _norms(view, scoring)
        self._marks = np.zeros(view.end, np.bool_)
        self._possible = 0.0
        self.sum = np.zeros(view.end, np.float32)

    def add_absent(self, word: QueryToken) -> None:
        """A word that nobody has."""
        self._factors([word], [0])

    def add_dense(
        self, words: Sequence[QueryToken], counts: NDArray[np.uint8], numbers_at_once: int
    ) -> None:
        """Some words, their counts by place: shape (words, places)."""
        near, far = self._scoring.near_tenths, self._scoring.far_tenths
        most = int(counts.max()) * (_ONE + 2 * near + 2 * far)
        # End to end: the places between the words of one and the next are free.
        flat = counts.reshape(-1)
        windows: NDArray[np.uint8] | NDArray[np.uint16]
        if most <= COUNT_MAX:
            windows = _around(flat, near, far).reshape(counts.shape)
        else:
            windows = _around(flat.astype(np.uint16), near, far).reshape(counts.shape)
        for i, word in enumerate(words):
            if word.is_exact:
                windows[i] *= counts[i] > 0
        has = windows > 0
        has &= self._view.frame().here
        factors = self._factors(words, [int(np.count_nonzero(one)) for one in has])
        step = max(1024, numbers_at_once // len(counts))  # what a core's cache holds
        for start in range(0, self._view.end, step):
            some = slice(start, start + step)
            tf = windows[:, some].astype(np.float32)
            tf /= tf + self._norms[some]
            tf *= factors
            self.sum[some] += np.add.reduce(tf, axis=0)

    def add_rare(self, word: QueryToken, places: PlaceColumn, counts: NDArray[np.uint8]) -> None:
        """One word that only these messages have; `counts` by place, 0 at all others."""
        near, far = self._scoring.near_tenths, self._scoring.far_tenths
        reach = 0 if word.is_exact else REACH
        at = (places + np.arange(-reach, reach + 1)[:, np.newaxis]).ravel()
        here = self._view.frame().here
        at = at[here[at]]
        tf = counts[at] * np.float32(_ONE)
        tf += (counts[at - 1].astype(np.float32) + counts[at + 1]) * np.float32(near)
        tf += (counts[at - 2].astype(np.float32) + counts[at + 2]) * np.float32(far)
        in_window = at[tf > 0]
        self._marks[in_window] = True
        df = int(np.count_nonzero(self._marks))
        self._marks[in_window] = False
        tf /= tf + self._norms[at]
        tf *= self._factors([word], [df])[0]
        # A place that is named again has the same sum again: the last one stays.
        self.sum[at] = self.sum[at] + tf

    def moments(self) -> tuple[float, float, float]:
        """From where a window counts in full, the mean worth, and the standard deviation."""
        full = self._scoring.full_share * self._possible
        if full <= 0.0:  # all count in full
            full = STD_MIN
        n = self._view.searchable
        if not n:
            return full, 0.0, 1.0
        wide = self.sum.astype(np.float64)
        mean = float(np.add.reduce(wide)) / n
        std = max(0.0, float(np.vecdot(wide, wide)) / n - mean * mean) ** 0.5
        worth = float(np.vecdot(wide, np.minimum(wide, full))) / (full * n)
        return full, worth, std if std > STD_MIN else 1.0

    def _factors(self, words: Sequence[QueryToken], dfs: Sequence[int]) -> FloatColumn:
        """As `_factors`; called once for each word, it knows what all together could give."""
        factors = _weighted_idf(self._view, self._scoring, words, dfs)
        for factor in factors:
            self._possible += factor / (self._scoring.k1 + 1.0)
        return np.array(factors, np.float32)[:, np.newaxis]


def _around(values: NDArray[Number], near: int, far: int) -> NDArray[Number]:
    """Each place's value and those around it, weighted. The first and last places are free."""
    out = np.empty_like(values)
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
        lengths = _around(frame.lengths, scoring.near_tenths, scoring.far_tenths)
        total = float(np.add.reduce(lengths, dtype=np.float64, where=frame.here))
        mean = total / view.searchable if total else 1.0
        norms = lengths * np.float32(_ONE * scoring.k1 * scoring.b / mean)
        norms += np.float32(_ONE * scoring.k1 * (1.0 - scoring.b))
        norms[~frame.here] = np.inf
        frame.norms[scoring] = norms
    return norms
