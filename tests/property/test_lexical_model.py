"""The lexical index under any order of changes and searches, against BM25 by brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.lexical.partition import Tuning
from semanticrecall_core.types.lexical import LexicalQuery, LexicalRows
from semanticrecall_core.types.values import Role
from support.lexical_model import DAY_NS, Corpus, Text, rows_of

SMALL = Tuning(
    tail_rows_max=3,
    tail_postings_max=30,
    segment_rows_max=12,
    loaded_rows_max=5,
    authors_max=64,
    sparse_places_min=60,
    sparse_share=12,
    numbers_at_once=100,
)
RESOURCES = st.sampled_from(["a", "b"])
WORDS = st.lists(
    st.sampled_from("the river stone garden candles Nora ZX-8841 january 3".split()),
    min_size=1,
    max_size=6,
).map(" ".join)
QUERIES = st.lists(WORDS, min_size=1, max_size=2).map(tuple)
SEQS = st.integers(1, 40)


@st.composite
def texts(draw: st.DrawFn, seqs: st.SearchStrategy[int] = SEQS) -> Text:
    """Any message."""
    return Text(
        seq=draw(seqs),
        thread_key=draw(st.integers(1, 3)),
        time_ns=draw(st.integers(0, 6)) * DAY_NS,
        revision=draw(st.integers(1, 1000)),
        role=draw(st.integers(1, 4)),
        text=draw(WORDS) + draw(st.sampled_from(["", "?"])),
        author=draw(st.sampled_from(["", "Nora", "Bela Q", "user"])),
    )


class LexicalModel(RuleBasedStateMachine):
    """Two resources in memory for one and a half of them, and what the record has of them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, dict[int, Text]] = {"a": {}, "b": {}}
        self.next_seq = 41
        self.index = InMemoryLexicalIndex(self.load, bytes_max=16_000, tuning=SMALL)

    def load(self, resource_id: str) -> LexicalRows:
        return rows_of(self.texts[resource_id].values())

    @rule(resource=RESOURCES, some=st.lists(texts(), min_size=1, max_size=4))
    def put(self, resource: str, some: list[Text]) -> None:
        unique = {text.seq: text for text in some}
        other = "b" if resource == "a" else "a"
        moved = [seq for seq in unique if seq in self.texts[other]]
        if moved:
            for seq in moved:
                del self.texts[other][seq]
            self.index.texts_removed(other, np.array(moved, np.int64))
        self.texts[resource].update(unique)
        self.index.texts_put(resource, rows_of(unique.values()))

    @rule(resource=RESOURCES, text=texts(), count=st.integers(1, 5))
    def append(self, resource: str, text: Text, count: int) -> None:
        new = [
            replace(text, seq=self.next_seq + i, time_ns=(self.next_seq + i) * DAY_NS)
            for i in range(count)
        ]
        self.next_seq += count
        self.texts[resource].update({one.seq: one for one in new})
        self.index.texts_put(resource, rows_of(new))

    @rule(resource=RESOURCES, words=WORDS, data=st.data())
    def edit(self, resource: str, words: str, data: st.DataObject) -> None:
        if self.texts[resource]:
            seq = data.draw(st.sampled_from(sorted(self.texts[resource])))
            old = self.texts[resource][seq]
            self.texts[resource][seq] = replace(old, text=words, revision=old.revision + 1)
            self.index.texts_put(resource, rows_of([self.texts[resource][seq]]))

    @rule(resource=RESOURCES, seqs=st.lists(SEQS, min_size=1, max_size=12))
    def remove(self, resource: str, seqs: list[int]) -> None:
        for seq in seqs:
            self.texts[resource].pop(seq, None)
        self.index.texts_removed(resource, np.array(seqs, np.int64))

    @rule(resource=RESOURCES)
    def drop(self, resource: str) -> None:
        self.index.resource_dropped(resource)

    @rule(resource=RESOURCES)
    def reload(self, resource: str) -> None:
        self.index.reload(resource)

    @rule(
        resource=RESOURCES,
        queries=QUERIES,
        top_k=st.integers(0, 8),
        thread_key=st.none() | st.integers(1, 4),
        roles=st.frozensets(st.sampled_from(list(Role)), max_size=2),
        also=st.none() | st.frozensets(SEQS, max_size=5),
        excluded=st.none() | st.frozensets(SEQS, max_size=5),
    )
    def match(
        self,
        resource: str,
        queries: tuple[str, ...],
        top_k: int,
        thread_key: int | None,
        roles: frozenset[Role],
        also: frozenset[int] | None,
        excluded: frozenset[int] | None,
    ) -> None:
        query = LexicalQuery(
            queries,
            top_k,
            thread_key=thread_key,
            roles=roles,
            also_seqs=None if also is None else np.array(sorted(also), np.int64),
            excluded_seqs=None if excluded is None else np.array(sorted(excluded), np.int64),
        )
        corpus = Corpus(self.texts[resource].values())
        corpus.check(self.index.match(resource, query), query)
        corpus.check(self.index.scored(resource, queries, top_k).match(query), query)

    @invariant()
    def memory_is_counted(self) -> None:
        assert (self.index.memory_bytes() > 0) == (self.index.partitions_loaded() > 0)


TestLexicalModel = LexicalModel.TestCase
TestLexicalModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
