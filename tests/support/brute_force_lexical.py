"""A `LexicalIndex` by brute force: it reads the record anew at every call and counts in Python.

Words are runs of letters, digits and hyphens, case-folded. A message's window is it and the one
before and after it, at equal weight; it asks if it ends in "?". BM25 with k1 1.2, b 0.75 and the
idf ln(1 + (N - df + 0.5) / (df + 0.5)). It sees every message that has text, vectors or none, as
soon as the record has it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semanticrecall_core.types.lexical import LexicalMatch, LexicalQuery
from semanticrecall_core.types.values import ListQuery, StoredMessage

K1, B = 1.2, 0.75
_WORD = re.compile(r"\w+(?:-\w+)*")


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def bm25(documents: list[list[str]], query: list[str]) -> list[float]:
    """The score of every document."""
    n = len(documents)
    mean_length = sum(map(len, documents)) / n if n else 1.0
    scores = []
    for document in documents:
        counts = Counter(document)
        score = 0.0
        for word in dict.fromkeys(query):
            df = sum(word in other for other in documents)
            idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
            tf = counts[word]
            length = len(document) / (mean_length or 1.0)
            score += idf * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length)) if tf else 0.0
        scores.append(score)
    return scores


class BruteForceLexicalIndex:
    """Words of a store's messages.

    Attributes:
        after_match: what is done after its next calls, before they return; one a call.
        queries: what it was asked.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self.after_match: list[Callable[[], object]] = []
        self.queries: list[LexicalQuery] = []

    def match(self, resource_id: str, query: LexicalQuery) -> LexicalMatch:
        self.queries.append(query)
        match = self._match(resource_id, query)
        if self.after_match:
            self.after_match.pop(0)()
        return match

    def _match(self, resource_id: str, query: LexicalQuery) -> LexicalMatch:
        rows = self._rows(resource_id)
        before, after = _neighbours(rows)
        own, context, names = [], [], []
        documents = [words_of(row.text) for row in rows]
        windows = [
            [word for near in (before[at], at, after[at]) if near >= 0 for word in documents[near]]
            for at in range(len(rows))
        ]
        for text in query.texts:
            words = words_of(text)
            own.append(bm25(documents, words))
            context.append(bm25(windows, words))
            names.append([float(bool(set(words_of(r.author)) & set(words))) for r in rows])
        allowed = [self._is_allowed(row, query, resource_id) for row in rows]
        best = [max(column) for column in zip(*context, strict=True)] if rows else []
        matched = [max(column) > 0 for column in zip(*own, strict=True)] if rows else []
        also = set() if query.also_seqs is None else set(query.also_seqs.tolist())
        worth = [at for at in range(len(rows)) if allowed[at] and best[at] > 0]
        worth.sort(key=lambda at: (-best[at], rows[at].seq))
        chosen = set(worth[: query.top_k])
        chosen |= {at for at, row in enumerate(rows) if allowed[at] and row.seq in also}
        given = sorted(
            chosen | {near for at in chosen for near in (before[at], after[at]) if near >= 0}
        )
        place = {at: position for position, at in enumerate(given)}

        def taken(values: list[list[float]]) -> NDArray[np.float32]:
            return np.array([[row[at] for at in given] for row in values], np.float32).reshape(
                len(query.texts), len(given)
            )

        def moment(values: list[list[float]], of: str) -> NDArray[np.float32]:
            found = [np.mean(v) if of == "mean" else np.std(v) for v in values] if rows else []
            if not rows:
                found = [0.0] * len(query.texts)
            return np.array([max(f, 1e-6) if of == "std" else f for f in found], np.float32)

        return LexicalMatch(
            seqs=np.array([rows[at].seq for at in given], np.int64),
            revisions=np.array([rows[at].revision for at in given], np.int64),
            times_ns=np.array([rows[at].create_time_ns for at in given], np.int64),
            is_candidate=np.array([at in chosen for at in given], np.bool_),
            own=taken(own),
            context=taken(context),
            context_mean=moment(context, "mean"),
            context_std=moment(context, "std"),
            names_author=taken(names),
            asks=np.array([rows[at].text.endswith("?") for at in given], np.bool_),
            before=np.array([place.get(before[at], -1) for at in given], np.int32),
            after=np.array([place.get(after[at], -1) for at in given], np.int32),
            matched=sum(a and m for a, m in zip(allowed, matched, strict=True)),
            searchable=len(rows),
        )

    def _rows(self, resource_id: str) -> list[StoredMessage]:
        query = ListQuery(resource_id, None, limit=100_000)
        rows = [row for row in self._store.list_messages(query) if words_of(row.text)]
        return sorted(rows, key=lambda row: row.seq)

    def _is_allowed(self, row: StoredMessage, query: LexicalQuery, resource_id: str) -> bool:
        thread_key = self._store.thread_key(resource_id, row.thread_id)
        return (
            (query.thread_key is None or query.thread_key == thread_key)
            and (not query.roles or row.role in query.roles)
            and (query.time_from_ns is None or row.create_time_ns >= query.time_from_ns)
            and (query.time_to_ns is None or row.create_time_ns < query.time_to_ns)
            and (query.allowed_seqs is None or row.seq in query.allowed_seqs.tolist())
            and (query.excluded_seqs is None or row.seq not in query.excluded_seqs.tolist())
        )

    def without_names(self, resource_id: str, text: str) -> str:
        names = {word for row in self._rows(resource_id) for word in words_of(row.author)}
        kept = " ".join(word for word in text.split() if word.casefold() not in names)
        return text if not kept or len(kept.split()) == len(text.split()) else kept

    def partition_seqs(self, resource_id: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = self._rows(resource_id)
        return (
            np.array([row.seq for row in rows], np.int64),
            np.array([row.revision for row in rows], np.int64),
        )

    def partitions_loaded(self) -> int:
        return 0

    def memory_bytes(self) -> int:
        return 0

    def texts_put(self, resource_id: str, rows: object) -> None:
        pass

    def texts_removed(self, resource_id: str, seqs: object) -> None:
        pass

    def resource_dropped(self, resource_id: str) -> None:
        pass


def _neighbours(rows: list[StoredMessage]) -> tuple[list[int], list[int]]:
    """Positions of the messages before and after each in its thread, -1 for none."""
    before, after = [-1] * len(rows), [-1] * len(rows)
    last: dict[str, int] = {}
    for at in sorted(range(len(rows)), key=lambda at: (rows[at].create_time_ns, rows[at].seq)):
        thread = rows[at].thread_id
        if thread in last:
            before[at], after[last[thread]] = last[thread], at
        last[thread] = at
    return before, after
