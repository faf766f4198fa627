"""Brute-force BM25 over dictionaries: what the lexical index must answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from semanticrecall_core.lexical.analysis import (
    Analyser,
    QueryToken,
    date_terms,
    query_tokens,
    query_words,
    unpack,
)
from semanticrecall_core.lexical.scoring import Scoring
from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery, LexicalRows

TOLERANCE = 2e-4
"""Of scores and deviations: the index adds float32 numbers, the model float64."""
DAY_NS = 86_400_000_000_000
_ANALYSER = Analyser()
Scores = tuple[dict[int, float], float]


@dataclass(frozen=True)
class Text:
    """One message as the record has it."""

    seq: int
    thread_key: int
    time_ns: int
    revision: int
    role: int
    text: str
    author: str = ""


def rows_of(texts: Iterable[Text]) -> LexicalRows:
    """Messages as the record gives them, by seq."""
    ordered = sorted(texts, key=lambda text: text.seq)
    return LexicalRows(
        np.array([text.seq for text in ordered], np.int64),
        np.array([text.thread_key for text in ordered], np.int64),
        np.array([text.time_ns for text in ordered], np.int64),
        np.array([text.revision for text in ordered], np.int64),
        np.array([text.role for text in ordered], np.uint8),
        tuple(_ANALYSER.analyse(text.text, text.author) for text in ordered),
    )


class Document:
    """A message's counts, length and author."""

    def __init__(self, text: Text) -> None:
        """Analyse it and add its date."""
        columns = unpack([_ANALYSER.analyse(text.text, text.author)])
        dates = date_terms([text.time_ns])[0]
        self.text = text
        self.counts: Counter[int] = Counter(
            dict(zip(columns.terms.tolist(), columns.counts.tolist(), strict=True))
        )
        for term in dates:
            self.counts[term] += 1
        for term, count in self.counts.items():
            self.counts[term] = min(count, 255)
        self.length = int(columns.lengths[0]) + len(dates)
        self.author = frozenset(columns.author_terms.tolist())
        self.language = int(columns.languages[0])
        self.asks = bool(columns.asks[0])


@dataclass(frozen=True)
class ModelScores:
    """Of one phrasing, by seq; and the terms of authors that it names."""

    own: dict[int, float]
    context: dict[int, float]
    worth: dict[int, float]
    names: frozenset[int]


class Corpus:
    """The messages of one resource at one time."""

    def __init__(self, texts: Iterable[Text], scoring: Scoring | None = None) -> None:
        """Put them in the order of their threads."""
        self.scoring = scoring or Scoring()
        self.documents = {text.seq: Document(text) for text in texts}
        self.threads: dict[int, list[int]] = {}
        ordered = sorted(self.documents.values(), key=lambda d: (d.text.time_ns, d.text.seq))
        for document in ordered:
            self.threads.setdefault(document.text.thread_key, []).append(document.text.seq)

    def neighbour(self, seq: int, distance: int) -> int | None:
        """The message so many after this one in its thread."""
        thread = self.threads[self.documents[seq].text.thread_key]
        at = thread.index(seq) + distance
        return thread[at] if 0 <= at < len(thread) else None

    def scores(self, near: float, far: float, words: Sequence[QueryToken]) -> Scores:
        """BM25 of every message, those around it with these weights, by seq.

        Also what a message of mean length would have that has each word once.
        """
        kind = self.scoring
        if len(self.documents) > kind.function_messages_max:
            words = [word for word in words if not word.is_function] or words
        possible = 0.0
        weights = {0: 1.0, 1: near, 2: far}
        around = {
            seq: [
                (weights[abs(distance)], self.documents[other])
                for distance in range(-2, 3)
                if weights[abs(distance)] and (other := self.neighbour(seq, distance)) is not None
            ]
            for seq in self.documents
        }
        lengths = {seq: sum(w * d.length for w, d in docs) for seq, docs in around.items()}
        n = len(self.documents)
        mean = sum(lengths.values()) / n
        out = dict.fromkeys(self.documents, 0.0)
        for word in words:
            tf = {
                seq: sum(w * sum(d.counts[term] for term in word.terms) for w, d in docs)
                for seq, docs in around.items()
            }
            if word.is_exact:
                own = {s: sum(d.counts[t] for t in word.terms) for s, d in self.documents.items()}
                tf = {seq: value if own[seq] else 0.0 for seq, value in tf.items()}
            df = sum(value > 0 for value in tf.values())
            idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
            idf *= kind.function_weight if word.is_function else 1.0
            possible += idf
            for seq, value in tf.items():
                norm = kind.k1 * (1 - kind.b + kind.b * lengths[seq] / mean)
                out[seq] += idf * (kind.k1 + 1) * value / (value + norm)
        return out, possible

    def words(self, text: str) -> tuple[tuple[QueryToken, ...], frozenset[int]]:
        """What a query looks for, and the terms that name authors."""
        tokens = query_tokens(text, {document.language for document in self.documents.values()})
        known = frozenset(term for d in self.documents.values() for term in d.author)
        names = {name for word in query_words(text) for name in word.names}
        return tokens, known & names

    def is_allowed(self, seq: int, query: LexicalQuery) -> bool:
        """Whether a message meets every condition."""
        text = self.documents[seq].text
        return (
            (query.thread_key is None or text.thread_key == query.thread_key)
            and (not query.roles or text.role in {int(role) for role in query.roles})
            and (query.time_from_ns is None or text.time_ns >= query.time_from_ns)
            and (query.time_to_ns is None or text.time_ns < query.time_to_ns)
            and (query.allowed_seqs is None or seq in query.allowed_seqs.tolist())
            and (query.excluded_seqs is None or seq not in query.excluded_seqs.tolist())
        )

    def check(self, match: LexicalMatch, query: LexicalQuery) -> None:
        """Assert that an answer is what these messages give."""
        assert match.searchable == len(self.documents)
        scored = [self.scored(text) for text in query.texts]
        allowed = {seq for seq in self.documents if self.is_allowed(seq, query)}
        matched = {seq for seq in allowed if any(one.own[seq] > 0 for one in scored)}
        assert match.matched == len(matched)
        self._check_candidates(match, query, scored, allowed)
        seqs = match.seqs.tolist()
        assert seqs == sorted(set(seqs))
        for i, one in enumerate(scored):
            columns = (match.own, one.own), (match.context, one.context), (match.worth, one.worth)
            for got, want in columns:
                np.testing.assert_allclose(got[i], [want[seq] for seq in seqs], atol=TOLERANCE)
            mean_worth = np.mean(list(one.worth.values()) or [0.0])
            assert abs(float(match.worth_mean[i]) - mean_worth) <= TOLERANCE
            want_std = float(np.std(list(one.context.values()) or [0.0]))
            assert match.context_std[i] > 0
            if want_std > 0.01:
                assert abs(float(match.context_std[i]) - want_std) <= TOLERANCE
            want_names = [float(bool(self.documents[seq].author & one.names)) for seq in seqs]
            assert match.names_author[i].tolist() == want_names
        position = {seq: i for i, seq in enumerate(seqs)} | {None: -1}
        for i, seq in enumerate(seqs):
            text = self.documents[seq].text
            assert bool(match.asks[i]) == self.documents[seq].asks
            assert (match.revisions[i], match.times_ns[i]) == (text.revision, text.time_ns)
            assert match.before[i] == position.get(self.neighbour(seq, -1), -1)

    def scored(self, text: str) -> ModelScores:
        """What every message has for a query."""
        words, names = self.words(text)
        if not self.documents:
            return ModelScores({}, {}, {}, names)
        own, _ = self.scores(0.0, 0.0, words)
        near, far = self.scoring.near_tenths / 10, self.scoring.far_tenths / 10
        context, possible = self.scores(near, far, words)
        full = self.scoring.full_share * possible
        worth = {
            seq: value * value / full if value < full else value for seq, value in context.items()
        }
        return ModelScores(own, context, worth, names)

    def _check_candidates(
        self,
        match: LexicalMatch,
        query: LexicalQuery,
        scored: list[ModelScores],
        allowed: set[int],
    ) -> None:
        worth = {
            seq: max(standing_out(one, seq) for one in scored)
            for seq in allowed
            if any(one.context[seq] > 0 for one in scored)
        }
        also = set() if query.also_seqs is None else set(query.also_seqs.tolist()) & allowed
        got = set(match.seqs[match.is_candidate].tolist())
        chosen = got & worth.keys()
        assert got <= chosen | also
        assert also <= got
        best = sorted(worth, key=lambda seq: (-worth[seq], seq))[: query.top_k]
        # Who is clearly better than the last of the best is there; who is clearly worse is not.
        if len(worth) <= query.top_k:
            assert set(worth) <= got
        elif best:
            border = worth[best[-1]]
            assert {seq for seq, value in worth.items() if value > border + 0.01} <= got
            assert {seq for seq in chosen - also if worth[seq] < border - 0.01} == set()
            assert len(got) >= query.top_k
        else:
            assert got == also
        want = set(got)
        for seq in got:
            before = self.neighbour(seq, -1)
            if before is not None and self.documents[before].asks:
                want.add(before)
        assert set(match.seqs.tolist()) == want


def standing_out(scores: ModelScores, seq: int) -> float:
    """How far above the mean a message is worth, in standard deviations of BM25."""
    std = float(np.std(list(scores.context.values())))
    above_mean = scores.worth[seq] - float(np.mean(list(scores.worth.values())))
    return above_mean / (std if std > 1e-6 else 1.0)
