"""Which messages of a view a query is about, by its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.partitions.conditions import allowed_rows, has_conditions
from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery

from .analysis import query_tokens, query_words
from .scoring import Scored, Scoring, scored
from .thread_order import DEAD_PLACE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .partition import Tuning, View
    from .scoring import FloatColumn
    from .thread_order import PlaceColumn

    BoolMask = NDArray[np.bool_]

_SAMPLE_STEP = 16


@dataclass(frozen=True, slots=True)
class _Phrasing:
    """One text of a query: its scores, and the authors that it names (by number, ascending)."""

    scored: Scored
    authors: NDArray[np.int32]


class ScoredView:
    """Implements `ScoredWords`, of one view."""

    __slots__ = ("_best", "_has_any", "_phrasings", "_texts", "_top_k", "_view")

    def __init__(
        self, view: View, texts: tuple[str, ...], scoring: Scoring, tuning: Tuning
    ) -> None:
        """Score all messages for the texts, one or more."""
        self._view = view
        self._texts = texts
        self._phrasings = [_phrasing(view, text, scoring, tuning) for text in texts]
        self._has_any = self._phrasings[0].scored.has_any
        for phrasing in self._phrasings[1:]:
            self._has_any = self._has_any | phrasing.scored.has_any
        self._top_k = 0
        self._best = np.empty(0, np.int64)

    def with_best(self, top_k: int) -> ScoredView:
        """The same, knowing already the best of all; before anyone else knows of it."""
        self._top_k, self._best = top_k, _best(self._view, self._phrasings, None, top_k)
        return self

    def match(self, query: LexicalQuery) -> LexicalMatch:
        """As `LexicalIndex.match` would have answered.

        Raises:
            InvalidArgumentError: the query is of other texts.
        """
        if query.texts != self._texts:
            raise InvalidArgumentError.of("texts", "must be those that were scored")
        view, allowed, has_any = self._view, _allowed(self._view, query), self._has_any
        if allowed is not None:
            has_any = has_any & allowed
        if allowed is None and query.top_k == self._top_k:
            best = self._best
        else:
            best = _best(view, self._phrasings, allowed, query.top_k)
        wanted = np.zeros(view.end, np.bool_)
        wanted[best] = True
        if query.also_seqs is not None:
            for part in view.parts:
                wanted[part.places[part.rows_of(query.also_seqs)]] = True
            if allowed is not None:
                wanted &= allowed
        return _rows(view, wanted, self._phrasings, int(np.count_nonzero(has_any)))


def _phrasing(view: View, text: str, scoring: Scoring, tuning: Tuning) -> _Phrasing:
    authors: set[int] = set()
    if view.authors:
        names = [name for word in query_words(text) for name in word.names]
        authors.update(*[view.authors[name] for name in names if name in view.authors])
    return _Phrasing(
        scored(view, query_tokens(text, view.languages), scoring, tuning),
        np.array(sorted(authors), np.int32),
    )


def _allowed(view: View, query: LexicalQuery) -> BoolMask | None:
    """By place, who meets every condition of a query; None: everyone."""
    if not has_conditions(query):
        return None
    allowed = np.zeros(view.end, np.bool_)
    for part in view.parts:
        rows = allowed_rows(part.columns, None, part.rows_of, query)
        allowed[part.places[rows]] = True
    allowed[DEAD_PLACE] = False
    return allowed


def _best(
    view: View, phrasings: list[_Phrasing], allowed: BoolMask | None, top_k: int
) -> PlaceColumn:
    """The places of the best allowed messages that have any word in their window.

    Of several phrasings the one counts for a message by which it stands out most.
    """
    if top_k < 1:
        return np.empty(0, np.int64)
    worth = phrasings[0].scored.context
    wanted = worth > 0
    if len(phrasings) > 1:
        worth = np.full(view.end, -np.inf, np.float32)
        for phrasing in phrasings:
            one = phrasing.scored
            above_mean = one.worth(one.context) - np.float32(one.mean)
            np.maximum(worth, above_mean / np.float32(one.std), out=worth)
            wanted |= one.context > 0
    if allowed is not None:
        wanted &= allowed
    at = _largest(worth, wanted, top_k)
    if len(at) > top_k:  # of equals at the border those that came first
        (seqs,) = view.columns_at(at, "seqs")
        at = at[np.lexsort((seqs, -worth[at]))[:top_k]]
    return at


def _largest(worth: FloatColumn, wanted: BoolMask, top_k: int) -> NDArray[np.intp]:
    """The places of the top_k largest wanted, and of all that equal the last of them.

    A sample says first which are too small to be among them.
    """
    rank = 2 * top_k // _SAMPLE_STEP + 4
    at: NDArray[np.intp] | None = None
    if len(worth) > 4 * rank * _SAMPLE_STEP:
        sample = worth[::_SAMPLE_STEP][wanted[::_SAMPLE_STEP]]
        if len(sample) > 4 * rank:
            bound = _nth_largest(sample, rank)
            (at,) = ((worth >= bound) & wanted).nonzero()
    if at is None or len(at) < top_k:
        (at,) = wanted.nonzero()
    if len(at) <= top_k:
        return at
    values = worth[at]
    largest: NDArray[np.intp] = at[values >= _nth_largest(values, top_k)]
    return largest


def _nth_largest(values: FloatColumn, n: int) -> np.float32:
    ordered = values.copy()
    ordered.partition(len(values) - n)
    nth: np.float32 = ordered[len(values) - n]
    return nth


def _rows(view: View, wanted: BoolMask, phrasings: list[_Phrasing], matched: int) -> LexicalMatch:
    """The answer with the candidates wanted, by place, and the questions before them; by seq."""
    shown = _with_questions(view, wanted)
    (places,) = shown.nonzero()
    (seqs,) = view.columns_at(places, "seqs")
    order = seqs.argsort()
    by_seq = places[order]
    revisions, times_ns, authors = view.columns_at(by_seq, "revisions", "times_ns", "authors")
    shape = len(phrasings), len(places)
    own, context, worth = (np.empty(shape, np.float32) for _ in range(3))
    names_author = np.zeros(shape, np.float32)
    for i, phrasing in enumerate(phrasings):
        one = phrasing.scored
        own[i] = one.own(places)[order]
        context[i] = one.context[by_seq]
        worth[i] = one.worth(context[i])
        if len(phrasing.authors):
            names_author[i] = np.isin(authors, phrasing.authors)
    return LexicalMatch(
        seqs=seqs[order].astype(np.int64, copy=False),
        revisions=revisions.astype(np.int64, copy=False),
        times_ns=times_ns,
        is_candidate=wanted[by_seq],
        own=own,
        context=context,
        worth=worth,
        worth_mean=np.array([phrasing.scored.mean for phrasing in phrasings], np.float32),
        context_std=np.array([phrasing.scored.std for phrasing in phrasings], np.float32),
        names_author=names_author,
        asks=view.frame().asks[by_seq],
        before=_before(shown, by_seq),
        matched=matched,
        searchable=view.searchable,
    )


def _with_questions(view: View, wanted: BoolMask) -> BoolMask:
    """By place, the messages wanted and those that ask something right before one."""
    before = wanted.nonzero()[0] - 1
    questions = before[view.frame().asks[before] & ~wanted[before]]
    if not len(questions):
        return wanted
    shown = wanted.copy()
    shown[questions] = True
    return shown


def _before(shown: BoolMask, by_seq: PlaceColumn) -> NDArray[np.int32]:
    """Positions of those right before, -1 for those who are not shown."""
    positions = np.empty(len(shown), np.int32)  # only read where it was written
    positions[by_seq] = np.arange(len(by_seq), dtype=np.int32)
    before = by_seq - 1
    return np.where(shown[before], positions[before], np.int32(-1))
