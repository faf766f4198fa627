"""Labelled conversations as the product ranks them, in this process, with any constants.

Texts become terms by the product's analysis, words are scored by its lexical index, cosines and
their moments come from its vector index, names are left out by its rule, and its fusion adds all of
it up. Vectors are the installed model's, each text's once. Every message is ranked, unless a
setting says that only the best of each list are, as in a recall.

A conversation is a resource, a session a thread, as in `quality`. A session without a date is of
1970. Turns without text are no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.conversations import Conversation, Question, Turn
from benchmarks.quality import TOP_K
from semanticrecall_core.embedding.embedder import load_embedder
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.lexical.scoring import Scoring
from semanticrecall_core.ranking.fusion import Cosines, Weights, best_first, fused
from semanticrecall_core.ranking.names import turned_away
from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery, LexicalRows
from semanticrecall_core.types.values import CallBudget, PartitionRows, Role
from semanticrecall_core.vectors import FaissVectorIndex

FloatRows = NDArray[np.float32]
Wide = NDArray[np.float64]

FIGURES = ("recall_at_5", "recall_at_10", "reciprocal_rank", "evidence")
"""What is known of one question: the last is the share of it among the hits within the budget."""
RESOURCE = "conversation"
SECOND_NS = 10**9
EMBED_SECONDS_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What messages are ranked by.

    Attributes:
        scoring, weights: the product's constants, or others.
        leaves_names_out: the query's vector is turned away from names.
        knows_dates: False: all messages are of one day, so that its words tell nothing.
        depth: rank only so many of the best by cosine and of the best by words; None: all.
    """

    scoring: Scoring = field(default_factory=Scoring)
    weights: Weights = field(default_factory=Weights)
    leaves_names_out: bool = True
    knows_dates: bool = True
    depth: int | None = None


class Vectors:
    """The installed model's vectors, each text once."""

    def __init__(self) -> None:
        self._embedder = load_embedder(None, None, "cpu")
        self.dimensions = self._embedder.dimensions
        self._passages: dict[str, FloatRows] = {}
        self._queries: dict[str, FloatRows] = {}

    def passage(self, text: str) -> FloatRows:
        """Of a message, shape (chunks, dimensions)."""
        if text not in self._passages:
            budget = CallBudget.of_seconds(EMBED_SECONDS_MAX)
            self._passages[text] = self._embedder.embed_passage(text, budget).vectors
        return self._passages[text]

    def query(self, text: str) -> FloatRows:
        """Of a query, shape (dimensions,)."""
        if text not in self._queries:
            budget = CallBudget.of_seconds(EMBED_SECONDS_MAX)
            self._queries[text] = self._embedder.embed_query(text, budget).vectors[0]
        return self._queries[text]

    def close(self) -> None:
        """End the threads of the model."""
        self._embedder.close()


@dataclass(frozen=True, slots=True)
class Budget:
    """What an answer may be long.

    Attributes:
        tokens: at most.
        count: the tokens of a turn as it is shown.
    """

    tokens: int
    count: Callable[[Turn], int]


class RankedConversation:
    """One conversation and its questions that have evidence."""

    def __init__(
        self, conversation: Conversation, vectors: Vectors, budget: Budget, *, with_authors: bool
    ) -> None:
        """Analyse and embed the turns.

        Args:
            with_authors: messages name their authors.
        """
        self.questions = [one for one in conversation.questions if one.evidence]
        turns = [turn for turn in conversation.turns() if turn.full_text.strip()]
        self._ids = [turn.id for turn in turns]
        self._budget_tokens = budget.tokens
        self._tokens = np.array([budget.count(turn) for turn in turns], np.int64)
        place = {turn.id: at for at, turn in enumerate(turns)}
        self._is_evidence = np.zeros((len(self.questions), len(turns)), np.bool_)
        for number, one in enumerate(self.questions):
            self._is_evidence[number, [place[id_] for id_ in one.evidence if id_ in place]] = True
        self._rows = _lexical_rows(conversation, with_authors=with_authors)
        self._index = _vector_index(self._rows, turns, vectors)
        self._vectors = vectors
        names = self._words(Scoring(), knows_dates=True)
        self._names = [names.names_in(RESOURCE, one.text) for one in self.questions]
        self._near: dict[tuple[str, tuple[str, ...]], Cosines] = {}

    def figures(self, settings: Sequence[Setting]) -> Wide:
        """Of each question with each setting, shape (settings, questions, FIGURES)."""
        out = np.empty((len(settings), len(self.questions), len(FIGURES)))
        for number, at, order in self._orders(settings):
            out[number, at] = self._figures_of(at, order)
        return out

    def hits(self, setting: Setting) -> list[list[str]]:
        """Ids of the best `TOP_K` of each question, best first."""
        orders = self._orders([setting])
        return [[self._ids[place] for place in order[:TOP_K]] for _, _, order in orders]

    def _orders(self, settings: Sequence[Setting]) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Which setting, which question, and its messages, best first; questions in order."""
        groups: dict[tuple[Scoring, bool], list[int]] = {}
        for number, one in enumerate(settings):
            groups.setdefault((one.scoring, one.knows_dates), []).append(number)
        for (scoring, knows_dates), numbers in groups.items():
            words = self._words(scoring, knows_dates=knows_dates)
            for at, question in enumerate(self.questions):
                match = self._match(words, question)
                for number in numbers:
                    setting = settings[number]
                    without = self._names[at] if setting.leaves_names_out else ()
                    near = self._cosines(question.text, without)
                    relevance = fused(match, near, setting.weights).relevance
                    order = best_first(relevance, match.seqs)
                    if setting.depth is not None:
                        order = order[_is_listed(match, near, setting.depth)[order]]
                    yield number, at, order

    def _words(self, scoring: Scoring, *, knows_dates: bool) -> InMemoryLexicalIndex:
        rows = self._rows
        if not knows_dates:
            rows = _of_one_day(rows)
        return InMemoryLexicalIndex(lambda _: rows, scoring=scoring)

    def _match(self, words: InMemoryLexicalIndex, question: Question) -> LexicalMatch:
        """Every message, by seq: as they are here."""
        return words.match(RESOURCE, LexicalQuery((question.text,), 0, self._rows.seqs))

    def _cosines(self, text: str, names: tuple[str, ...]) -> Cosines:
        key = text, names
        if key not in self._near:
            vector = self._vectors.query(text)
            vector = turned_away(vector, [self._vectors.query(name) for name in names])
            vectors = vector[np.newaxis]
            found = self._index.cosines(RESOURCE, self._rows.seqs, vectors).cosines
            self._near[key] = Cosines(found, *self._index.moments(RESOURCE, vectors))
        return self._near[key]

    def _figures_of(self, question: int, order: NDArray[np.int64]) -> tuple[float, ...]:
        """As `evidence` tells them, of the best `TOP_K`."""
        hits = order[:TOP_K]
        ranks = np.flatnonzero(self._is_evidence[question, hits])
        spent = np.cumsum(self._tokens[hits])
        fitting = int(np.searchsorted(spent, self._budget_tokens, side="right"))
        wanted = len(self.questions[question].evidence)
        return (
            int((ranks < 5).sum()) / wanted,
            int((ranks < 10).sum()) / wanted,
            1 / (1 + int(ranks[0])) if len(ranks) else 0.0,
            int((ranks < fitting).sum()) / wanted,
        )


def _lexical_rows(conversation: Conversation, *, with_authors: bool) -> LexicalRows:
    """As the record gives them: seqs from 1, in order."""
    keys, times, analysed = [], [], []
    analyser = Analyser()
    for key, session in enumerate(conversation.sessions, 1):
        started = 0 if session.started is None else int(session.started.timestamp())
        for number, turn in enumerate(session.turns):
            if turn.full_text.strip():
                keys.append(key)
                times.append((started + number) * SECOND_NS)
                author = turn.speaker if with_authors else ""
                analysed.append(analyser.analyse(turn.full_text, author))
    count = len(analysed)
    return LexicalRows(
        np.arange(1, count + 1, dtype=np.int64),
        np.array(keys, np.int64),
        np.array(times, np.int64),
        np.ones(count, np.int64),
        np.full(count, int(Role.USER), np.uint8),
        tuple(analysed),
    )


def _is_listed(match: LexicalMatch, near: Cosines, depth: int) -> NDArray[np.bool_]:
    """Whether each message is among the best by cosine, or by words if there are any around it."""
    listed = np.zeros(len(match.seqs), np.bool_)
    by_words = best_first(match.context[0].astype(np.float64), match.seqs)[:depth]
    listed[by_words] = match.context[0, by_words] > 0
    listed[best_first(near.cosines[0].astype(np.float64), match.seqs)[:depth]] = True
    return listed


def _of_one_day(rows: LexicalRows) -> LexicalRows:
    """All at one time: those of a thread stay in the order of their seqs."""
    return LexicalRows(
        rows.seqs,
        rows.thread_keys,
        np.zeros_like(rows.times_ns),
        rows.revisions,
        rows.roles,
        rows.analysed,
    )


def _vector_index(rows: LexicalRows, turns: Sequence[Turn], vectors: Vectors) -> FaissVectorIndex:
    chunks = [vectors.passage(turn.full_text) for turn in turns]
    counts = [len(one) for one in chunks]
    partition = PartitionRows(
        seqs=np.repeat(rows.seqs, counts),
        thread_keys=np.repeat(rows.thread_keys, counts),
        times_ns=np.repeat(rows.times_ns, counts),
        roles=np.repeat(rows.roles, counts),
        chunks=np.concatenate([np.arange(count, dtype=np.int64) for count in counts]),
        revisions=np.repeat(rows.revisions, counts),
        vectors=np.concatenate(chunks),
        checksums=np.zeros(sum(counts), np.int64),
    )
    return FaissVectorIndex(vectors.dimensions, lambda _: partition)
