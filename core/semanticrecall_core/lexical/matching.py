"""Which messages of a view a query is about, by its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.partitions.conditions import allowed_rows, has_conditions
from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery

from .analysis import query_terms
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
            candidates = self._best
        else:
            candidates = _best(view, self._phrasings, allowed, query.top_k)
        if query.also_seqs is not None and len(query.also_seqs):
            also = [part.places[part.rows_of(query.also_seqs)] for part in view.parts]
            wanted = np.concatenate([candidates, *also])
            candidates = wanted if allowed is None else wanted[allowed[wanted]]
        return _rows(view, candidates, self._phrasings, int(np.count_nonzero(has_any)))


def _phrasing(view: View, text: str, scoring: Scoring, tuning: Tuning) -> _Phrasing:
    terms = query_terms(text, view.languages)
    numbers = {number for term in terms.author_terms for number in view.authors.get(term, ())}
    return _Phrasing(
        scored(view, terms.tokens, scoring, tuning),
        np.array(sorted(numbers), np.int32),
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
    sample = worth[::_SAMPLE_STEP][wanted[::_SAMPLE_STEP]]
    rank = 2 * top_k // _SAMPLE_STEP + 4
    at: NDArray[np.intp] | None = None
    if len(sample) > 4 * rank:
        bound = np.partition(sample, len(sample) - rank)[len(sample) - rank]
        at = np.flatnonzero((worth >= bound) & wanted)
    if at is None or len(at) < top_k:
        at = np.flatnonzero(wanted)
    if len(at) <= top_k:
        return at
    values = worth[at]
    border = np.partition(values, len(values) - top_k)[len(values) - top_k]
    largest: NDArray[np.intp] = at[values >= border]
    return largest


def _rows(
    view: View, candidates: PlaceColumn, phrasings: list[_Phrasing], matched: int
) -> LexicalMatch:
    """The answer with these candidates and the questions before them, by seq."""
    places, is_candidate = _with_questions(view, _ascending(candidates))
    seqs, revisions, times_ns, asks, authors = view.columns_at(
        places, "seqs", "revisions", "times_ns", "asks", "authors"
    )
    order = np.argsort(seqs)
    scores = [phrasing.scored for phrasing in phrasings]
    contexts = [one.context[places[order]] for one in scores]
    return LexicalMatch(
        seqs=seqs[order].astype(np.int64),
        revisions=revisions[order].astype(np.int64),
        times_ns=times_ns[order],
        is_candidate=is_candidate[order],
        own=np.stack([one.own(places)[order] for one in scores]),
        context=np.stack(contexts),
        worth=np.stack([one.worth(some) for one, some in zip(scores, contexts, strict=True)]),
        worth_mean=np.array([one.mean for one in scores], np.float32),
        context_std=np.array([one.std for one in scores], np.float32),
        names_author=np.stack([_named(authors[order], one.authors) for one in phrasings]),
        asks=asks[order],
        before=_before(places, order),
        matched=matched,
        searchable=view.searchable,
    )


def _with_questions(view: View, candidates: PlaceColumn) -> tuple[PlaceColumn, BoolMask]:
    """Candidates (ascending) and messages that ask something right before one, ascending.

    Also which of them are candidates.
    """
    new = np.ones(len(candidates), np.bool_)  # not right behind another candidate
    np.not_equal(candidates[1:] - 1, candidates[:-1], out=new[1:])
    before = candidates[new] - 1
    before = before[view.frame().here[before]]
    (asks,) = view.columns_at(before, "asks")
    questions = before[asks]
    if not len(questions):
        return candidates, np.ones(len(candidates), np.bool_)
    places = np.sort(np.concatenate([candidates, questions]))
    is_candidate = np.ones(len(places), np.bool_)
    is_candidate[np.searchsorted(places, questions)] = False
    return places, is_candidate


def _ascending(places: PlaceColumn) -> PlaceColumn:
    """Each place once; for as few as these quicker than `np.unique`."""
    ordered = np.sort(places)
    firsts = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=firsts[1:])
    return ordered[firsts]


def _named(authors: NDArray[np.int32], named: NDArray[np.int32]) -> FloatColumn:
    if not len(named):
        return np.zeros(len(authors), np.float32)
    return np.isin(authors, named).astype(np.float32)


def _before(places: PlaceColumn, order: NDArray[np.intp]) -> NDArray[np.int32]:
    """Positions of those right before, all in `order`; `places` are ascending."""
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    before = np.full(len(places), -1, np.int32)
    adjoin = places[1:] - places[:-1] == 1
    before[1:][adjoin] = rank[:-1][adjoin]
    return before[order]
