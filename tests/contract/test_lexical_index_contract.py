"""What every `LexicalIndex` must do, against BM25 by brute force."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.lexical.partition import Tuning
from semanticrecall_core.lexical.scoring import Scoring
from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.lexical import LexicalQuery, LexicalRows
from semanticrecall_core.types.values import Role
from support.lexical_model import DAY_NS, Corpus, Text, rows_of

SMALL = Tuning(tail_rows_max=4, tail_postings_max=40, segment_rows_max=16, loaded_rows_max=8)
SPARSE = replace(SMALL, sparse_places_min=1, sparse_share=0)
VOCABULARY = (
    "river stone garden lantern violin harbour orchard thunder candle marble the a of to and is "
    "was it you ZX-8841 bicycle kitchen mountain 2024 january painting reading letters"
).split()
AUTHORS = ("Nora Quist", "Bela", "", "Tariq", "user")
QUERIES = (
    "the river of stone",
    "did Nora read letters in January",
    "ZX-8841",
    "Bela",
    "a violin is in the kitchen and the garden was it",
    "nothingofthiskind",
    "",
)


class Record:
    """What a store would give."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[int, Text]] = {}
        self.reads: list[str] = []

    def load(self, resource_id: str) -> LexicalRows:
        self.reads.append(resource_id)
        return rows_of(self.texts.get(resource_id, {}).values())

    def put(self, index: InMemoryLexicalIndex, resource_id: str, *texts: Text) -> None:
        self.texts.setdefault(resource_id, {}).update({text.seq: text for text in texts})
        index.texts_put(resource_id, rows_of(texts))

    def remove(self, index: InMemoryLexicalIndex, resource_id: str, *seqs: int) -> None:
        for seq in seqs:
            self.texts[resource_id].pop(seq, None)
        index.texts_removed(resource_id, np.array(seqs, np.int64))

    def check(
        self, index: InMemoryLexicalIndex, query: LexicalQuery, scoring: Scoring | None = None
    ) -> None:
        match = index.match("r", query)
        corpus = Corpus(self.texts.get("r", {}).values(), scoring)
        corpus.check(match, query)
        for top_k in (query.top_k, query.top_k + 1):
            corpus.check(index.scored("r", query.texts, top_k).match(query), query)


def a_text(rng: random.Random, seq: int, threads: int = 3) -> Text:
    words = rng.choices(VOCABULARY, k=rng.randrange(1, 12))
    return Text(
        seq=seq,
        thread_key=rng.randrange(1, threads + 1),
        time_ns=rng.randrange(0, 400) * DAY_NS,
        revision=seq,
        role=rng.choice([1, 2, 3, 4]),
        text=" ".join(words) + rng.choice(["", "?", "."]),
        author=rng.choice(AUTHORS),
    )


def an_index(record: Record, tuning: Tuning = SMALL) -> InMemoryLexicalIndex:
    return InMemoryLexicalIndex(record.load, tuning=tuning)


@pytest.mark.parametrize("tuning", [SMALL, SPARSE, Tuning()], ids=["small", "sparse", "default"])
@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_brute_force_after_every_kind_of_change(
    seed: int, tuning: Tuning
) -> None:
    rng = random.Random(seed)
    record = Record()
    record.texts["r"] = {seq: a_text(rng, seq) for seq in range(1, 30)}
    index = an_index(record, tuning)
    seq = 30
    for step in range(25):
        record.check(index, LexicalQuery((rng.choice(QUERIES),), rng.choice([1, 5, 50])))
        known = sorted(record.texts["r"])
        change = rng.randrange(5)
        if change == 0 and known:
            record.remove(index, "r", *rng.sample(known, min(len(known), rng.randrange(1, 6))))
        elif change == 1 and known:
            old = rng.sample(known, min(len(known), 3))
            record.put(index, "r", *(replace(a_text(rng, s), revision=1000 + step) for s in old))
        elif change == 2 and known:  # edited where it stands
            old_text = record.texts["r"][rng.choice(known)]
            record.put(index, "r", replace(old_text, text="violin river", revision=2000 + step))
        else:
            count = rng.choice([1, 1, 2, 7])
            record.put(index, "r", *(a_text(rng, seq + i) for i in range(count)))
            seq += count
    assert record.reads == ["r"]


@pytest.mark.parametrize("seed", range(3))
def test_conditions_hold_before_the_best_are_chosen(seed: int) -> None:
    rng = random.Random(100 + seed)
    record = Record()
    record.texts["r"] = {seq: a_text(rng, seq) for seq in range(1, 60)}
    index = an_index(record)
    record.remove(index, "r", 3, 4, 50)
    plain = LexicalQuery(("the river and the kitchen",), 4)
    some = np.array(sorted(rng.sample(range(1, 70), 20)), np.int64)
    for query in (
        plain,
        replace(plain, thread_key=2),
        replace(plain, thread_key=99),
        replace(plain, roles=frozenset({Role.USER, Role.TOOL})),
        replace(plain, time_from_ns=100 * DAY_NS, time_to_ns=300 * DAY_NS),
        replace(plain, allowed_seqs=some),
        replace(plain, allowed_seqs=np.empty(0, np.int64)),
        replace(plain, excluded_seqs=some),
        replace(plain, also_seqs=some),
        replace(plain, also_seqs=some, thread_key=1, top_k=0),
        replace(plain, also_seqs=some, excluded_seqs=some[:5], roles=frozenset({Role.ASSISTANT})),
        replace(plain, texts=("the river", "Bela in the kitchen", "violin?")),
    ):
        record.check(index, query)


def test_constants_are_as_given() -> None:
    scoring = Scoring(k1=0.9, b=0.4, near_tenths=10, far_tenths=0)
    rng = random.Random(7)
    record = Record()
    record.texts["r"] = {seq: a_text(rng, seq) for seq in range(1, 40)}
    index = InMemoryLexicalIndex(record.load, scoring=scoring, tuning=SMALL)
    for text in QUERIES:
        record.check(index, LexicalQuery((text,), 10), scoring)


def test_many_more_words_than_are_counted_one_by_one() -> None:
    record = Record()
    record.put(
        an_index(record),
        "r",
        Text(1, 1, 0, 1, 1, "river " * 300),
        Text(2, 1, 0, 2, 1, " ".join(f"word{i}" for i in range(500))),
        Text(3, 2, 0, 3, 1, "stone"),
    )
    index = an_index(record)
    record.check(index, LexicalQuery(("river word7 stone",), 10))
    record.put(index, "r", Text(4, 2, 0, 4, 1, " ".join(f"word{i}" for i in range(100))))
    record.check(index, LexicalQuery(("river word7 stone",), 10))


def test_a_message_that_moves_to_another_resource_is_found_there_only() -> None:
    record = Record()
    rng = random.Random(5)
    texts = [a_text(rng, seq) for seq in range(1, 10)]
    record.texts = {"r": {}, "other": {}}
    index = an_index(record)
    record.texts["other"] = {text.seq: text for text in texts[:5]}
    record.texts["r"] = {text.seq: text for text in texts[5:]}
    query = LexicalQuery(("river stone the a of",), 20)
    record.check(index, query)
    index.match("other", query)
    moved = record.texts["other"].pop(2)
    index.texts_removed("other", np.array([2], np.int64))
    record.put(index, "r", replace(moved, thread_key=77))
    record.check(index, query)
    Corpus(record.texts["other"].values()).check(index.match("other", query), query)
    seqs, revisions = index.partition_seqs("r")
    assert seqs.tolist() == sorted(record.texts["r"])
    assert revisions.tolist() == [record.texts["r"][seq].revision for seq in sorted(seqs)]


def test_an_edit_beside_messages_that_come_before_it_in_its_thread() -> None:
    record = Record()
    record.texts["r"] = {seq: Text(seq, 1, seq * 10, seq, 1, f"river {seq}") for seq in range(1, 6)}
    index = an_index(record)
    query = LexicalQuery(("river stone garden",), 20)
    record.check(index, query)
    record.put(
        index,
        "r",
        replace(record.texts["r"][4], text="stone garden", revision=9),
        Text(7, 1, 15, 7, 1, "stone"),
        Text(8, 1, 16, 8, 1, "garden"),
        Text(9, 1, 17, 9, 1, "garden river"),
    )
    record.check(index, query)


def test_an_author_counts_only_as_long_as_there_are_messages_of_it() -> None:
    record = Record()
    index = an_index(record)
    record.texts["r"] = {1: Text(1, 1, 0, 1, 1, "a violin for Nora", "Bela")}
    query = LexicalQuery(("did Nora play the violin",), 5)
    record.check(index, query)
    record.put(index, "r", Text(2, 1, 1, 2, 1, "yes a violin", "Nora"))
    record.check(index, query)
    assert index.match("r", query).names_author.tolist() == [[0.0, 1.0]]
    assert index.names_in("r", "did Nora play") == ("Nora",)
    record.remove(index, "r", 2)
    record.check(index, query)
    assert index.match("r", query).names_author.tolist() == [[0.0]]
    assert index.names_in("r", "did Nora play") == ()


def test_words_of_another_language_are_looked_for_as_soon_as_it_is_seen() -> None:
    record = Record()
    index = an_index(record)
    record.texts["r"] = {1: Text(1, 1, 0, 1, 1, "we were reading about the gardens")}
    query = LexicalQuery(("Gärten",), 5)
    record.check(index, query)
    record.put(index, "r", Text(2, 1, 1, 2, 1, "ich habe die Gärten gesehen und das ist schön"))
    record.check(index, query)
    assert index.match("r", query).matched >= 1


def test_nothing_is_kept_for_names_without_messages() -> None:
    record = Record()
    index = an_index(record)
    for i in range(20):
        answer = index.match(f"nobody {i}", LexicalQuery(("river", "stone"), 5))
        assert answer.own.shape == (2, 0)
        assert answer.context_std.tolist() == [1.0, 1.0]
        assert (answer.searchable, answer.matched) == (0, 0)
    assert index.partitions_loaded() == 0
    assert index.memory_bytes() == 0


def test_the_least_recently_used_are_forgotten_beyond_the_limit() -> None:
    record = Record()
    rng = random.Random(3)
    for name in ("a", "b", "c"):
        record.texts[name] = {seq: a_text(rng, seq) for seq in range(1, 20)}
    query = LexicalQuery(("river",), 3)
    first = an_index(record)
    first.match("a", query)
    limit = int(2.5 * first.memory_bytes())
    index = InMemoryLexicalIndex(record.load, bytes_max=limit, tuning=SMALL)
    record.reads.clear()
    for name in ("a", "b", "a", "c", "a", "b"):
        index.match(name, query)
    assert record.reads == ["a", "b", "c", "b"]
    assert index.partitions_loaded() == 2
    assert 0 < index.memory_bytes() <= limit


def test_what_changes_while_it_is_read_is_there_at_the_first_search() -> None:
    record = Record()
    rng = random.Random(8)
    record.texts["r"] = {seq: a_text(rng, seq) for seq in range(1, 20)}
    reading, go_on = threading.Event(), threading.Event()

    def load(resource_id: str) -> LexicalRows:
        rows = record.load(resource_id)
        reading.set()
        assert go_on.wait(30)
        return rows

    index = InMemoryLexicalIndex(load, tuning=SMALL)
    query = LexicalQuery(("river stone the",), 50)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(index.match("r", query)))
    thread.start()
    assert reading.wait(30)
    record.put(index, "r", a_text(rng, 20), a_text(rng, 5))
    record.remove(index, "r", 1, 2)
    go_on.set()
    thread.join(30)
    Corpus(record.texts["r"].values()).check(answers[0], query)
    assert record.reads == ["r"]


def test_a_resource_that_is_dropped_while_it_is_read_is_read_again() -> None:
    record = Record()
    rng = random.Random(9)
    record.texts["r"] = {seq: a_text(rng, seq) for seq in range(1, 10)}

    def load(resource_id: str) -> LexicalRows:
        rows = record.load(resource_id)
        if len(record.reads) == 1:
            record.texts["r"] = {30: a_text(rng, 30)}
            index.resource_dropped("r")
        return rows

    index = InMemoryLexicalIndex(load, tuning=SMALL)
    record.check(index, LexicalQuery(("river stone the",), 50))
    assert record.reads == ["r", "r"]


def test_a_search_sees_a_change_whole_or_not_at_all() -> None:
    """Every commit puts one message in each of two threads; no answer has only one of them."""
    record = Record()
    index = an_index(record)
    record.texts["r"] = {}
    record.texts["r"] = {1: Text(1, 1, 0, 1, 1, "river"), 2: Text(2, 2, 0, 2, 1, "river")}
    query = LexicalQuery(("river stone",), 5000)
    index.match("r", query)
    stop = threading.Event()
    wrong: list[tuple[int, ...]] = []

    def search() -> None:
        while not stop.is_set():
            answer = index.match("r", query)
            shape = (len(answer.seqs), answer.searchable, answer.matched)
            odd = np.count_nonzero(answer.seqs % 2)
            pairs = 2 * odd == len(answer.seqs)
            chains = np.count_nonzero(answer.before < 0) == 2
            same = np.allclose(answer.own[0], answer.own[0, 0])
            if not (len(set(shape)) == 1 and pairs and chains and same):
                wrong.append(shape)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(2, 150):
        seq = 2 * i - 1
        record.put(
            index,
            "r",
            Text(seq, 1, i, seq, 1, "river"),
            Text(seq + 1, 2, i, seq + 1, 1, "river"),
        )
        if i % 5 == 0:
            record.remove(index, "r", seq - 2, seq - 1)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    record.check(index, replace(query, top_k=3))


@pytest.mark.parametrize("query", [LexicalQuery((), 3), LexicalQuery(("a",), -1)])
def test_a_query_out_of_range_is_refused(query: LexicalQuery) -> None:
    index = an_index(Record())
    with pytest.raises(InvalidArgumentError):
        index.match("r", query)
    with pytest.raises(InvalidArgumentError):
        index.scored("r", query.texts, query.top_k)
    with pytest.raises(InvalidArgumentError):
        index.scored("r", ("a", "b"), 3).match(query)


def test_what_was_scored_stays_as_it_was() -> None:
    rng, record = random.Random(5), Record()
    index = an_index(record)
    record.put(index, "r", *(a_text(rng, seq) for seq in range(1, 30)))
    before = Corpus(list(record.texts["r"].values()))
    query = LexicalQuery(("the river of stone",), 5, also_seqs=np.array([3, 7, 40]))
    scored = index.scored("r", query.texts, query.top_k)
    record.put(index, "r", *(a_text(rng, seq) for seq in range(25, 60)))
    record.remove(index, "r", 3, 4, 5)
    before.check(scored.match(query), query)
    record.check(index, query)


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        InMemoryLexicalIndex(Record().load, bytes_max=0)
