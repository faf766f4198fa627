"""Finding messages of one resource by their words: the sidecar's index beside what else there is.

Usage: python -m benchmarks.lexical_latency [--rows 1000,10000,100000] [--calls 200] [--json FILE]

Every size of a resource is asked for its best `top_k` messages by

  ours             the index of the sidecar: context scores and their moments of every message, own
                   scores of those given, the questions before them
  ours, changed    the same, each query after a message was added (whose time is `ours, put`)
  fts5             SQLite FTS5, one table for each resource
  fts5, prefixed   SQLite FTS5, one table for all resources, each word prefixed with its resource
  bm25s            arrays in memory for each resource; nothing can be added
  tantivy          one index of all resources, the resource as a filter, scores of all of them

in turns of `block_calls` queries. Besides the resource, what all resources share holds `others`
messages in resources of 100. Texts are words that are drawn by Zipf's law; a query has four of the
20 most common words and four others. What is not installed is left out. Each method tells words
apart in its own way and ranks by its own statistics: only their times are compared.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from benchmarks.axes import Numbers, numbers
from benchmarks.measure import timed
from benchmarks.report import Bar, Digest, Result, flag, run_script
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.types.lexical import LexicalQuery, LexicalRows

WORDS = 30_000
COMMON = 20
OTHER_ROWS = 100
STEP_NS = 600 * 10**9
BARS_MS = {10_000: 1.0, 100_000: 3.0}
RESOURCE = "r0"
Search = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    rows: Numbers = flag(  # noqa: RUF009
        Numbers((1_000, 10_000, 100_000)), "messages of the resource", numbers
    )
    others: int = flag(50_000, "messages of other resources")
    words: int = flag(20, "words of a message")
    threads: int = flag(100, "threads of the resource")
    top_k: int = flag(200, "messages asked for")
    calls: int = flag(200, "queries of each method")
    block_calls: int = flag(10, "queries of one method at a time")
    seed: int = flag(7, "of texts and queries")


SMOKE = {"rows": Numbers((200, 1500)), "others": 300, "calls": 20, "block_calls": 5}


class Texts:
    """Words by Zipf's law, and messages and queries of them."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        syllables = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
        self._words = ["".join(three) for three in product(syllables, repeat=3)]
        self._rng.shuffle(self._words)
        self._words = self._words[:WORDS]
        share = 1.0 / np.arange(1, WORDS + 1)
        self._share: NDArray[np.float64] = share / share.sum()

    def messages(self, count: int, words: int) -> list[str]:
        """Texts of so many words."""
        drawn = self._rng.choice(WORDS, (count, words), p=self._share)
        return [" ".join(self._words[at] for at in row) for row in drawn]

    def query(self) -> str:
        """Eight different words, half of them among the most common."""
        common = self._rng.choice(COMMON, 4, replace=False)
        share = self._share[COMMON:] / self._share[COMMON:].sum()
        others = COMMON + self._rng.choice(WORDS - COMMON, 4, replace=False, p=share)
        return " ".join(self._words[at] for at in [*common, *others])


class Ours:
    """The sidecar's index over some texts, to which more can be added."""

    def __init__(self, texts: Sequence[str], config: Config) -> None:
        self._config = config
        self._next = 1
        rows = self.rows(texts)
        self.index = InMemoryLexicalIndex(lambda _: rows)

    def rows(self, texts: Sequence[str]) -> LexicalRows:
        """The texts as the next messages."""
        seqs = np.arange(self._next, self._next + len(texts))
        self._next += len(texts)
        analyser = Analyser()
        return LexicalRows(
            seqs=seqs,
            thread_keys=seqs % self._config.threads + 1,
            times_ns=seqs * STEP_NS,
            revisions=seqs,
            roles=np.ones(len(seqs), np.uint8),
            analysed=tuple(analyser.analyse(text, "") for text in texts),
        )

    def put(self, rows: LexicalRows) -> None:
        """Add what `rows` made."""
        self.index.texts_put(RESOURCE, rows)

    def found(self, query: str) -> list[int]:
        """The best messages, by seq."""
        match = self.index.match(RESOURCE, LexicalQuery((query,), self._config.top_k))
        seqs: list[int] = match.seqs[match.is_candidate].tolist()
        return seqs

    def search(self, query: str) -> int:
        """How many were found."""
        return len(self.found(query))


def _fts5(texts: Iterator[str], prefix: str, top_k: int) -> Search:
    """Texts in one FTS5 table; words of a query are looked for with a prefix."""
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(text, content='', detail=full)")
    with connection:
        connection.executemany("INSERT INTO t(text) VALUES (?)", ((text,) for text in texts))
    connection.execute("INSERT INTO t(t) VALUES ('optimize')")

    def search(query: str) -> int:
        wanted = " OR ".join(prefix + word for word in query.split())
        sql = "SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?"
        return len(connection.execute(sql, (wanted, top_k)).fetchall())

    return search


def _prefixed(resource: str, text: str) -> str:
    return " ".join(f"{resource}{word}" for word in text.split())


def _bm25s(texts: Sequence[str], top_k: int) -> Search:
    bm25s: Any = importlib.import_module("bm25s")
    index = bm25s.BM25()
    index.index([text.split() for text in texts], show_progress=False)

    def search(query: str) -> int:
        found = index.retrieve([query.split()], k=min(top_k, len(texts)), show_progress=False)
        return int(np.count_nonzero(found.scores))

    return search


def _tantivy(texts: Sequence[tuple[str, str]], top_k: int) -> Search:
    """Pairs of resource and text."""
    tantivy: Any = importlib.import_module("tantivy")
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("resource", tokenizer_name="raw")
    builder.add_text_field("text", tokenizer_name="whitespace")
    schema = builder.build()
    index = tantivy.Index(schema)
    writer = index.writer(num_threads=1)
    for resource, text in texts:
        writer.add_document(tantivy.Document(resource=[resource], text=[text]))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    here = tantivy.Query.term_query(schema, "resource", RESOURCE)
    filtered = tantivy.Query.const_score_query(here, 0.0)

    def search(query: str) -> int:
        words = [
            (tantivy.Occur.Should, tantivy.Query.term_query(schema, "text", word))
            for word in query.split()
        ]
        any_word = tantivy.Query.boolean_query(words)
        both = [(tantivy.Occur.Must, filtered), (tantivy.Occur.Must, any_word)]
        return len(searcher.search(tantivy.Query.boolean_query(both), top_k).hits)

    return search


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def others_of(texts: Texts, config: Config) -> list[tuple[str, str]]:
    """Resource and text of the messages of other resources."""
    made = texts.messages(config.others, config.words)
    return [(f"r{at // OTHER_ROWS + 1}", text) for at, text in enumerate(made)]


def searches(
    mine: Sequence[str], others: Sequence[tuple[str, str]], ours: Ours, config: Config
) -> dict[str, Search]:
    """By name, how to search."""
    shared = [*((RESOURCE, text) for text in mine), *others]
    prefixed = (_prefixed(*pair) for pair in shared)
    made = {
        "ours": ours.search,
        "fts5": _fts5(iter(mine), "", config.top_k),
        "fts5, prefixed": _fts5(prefixed, RESOURCE, config.top_k),
    }
    if _installed("bm25s"):
        made["bm25s"] = _bm25s(mine, config.top_k)
    if _installed("tantivy"):
        made["tantivy"] = _tantivy(shared, config.top_k)
    return made


def _measure_one(result: Result, rows: int, texts: Texts, config: Config) -> str:
    """All methods over one size; a digest of our answers."""
    mine = texts.messages(rows, config.words)
    ours = Ours(mine, config)
    methods = searches(mine, others_of(texts, config), ours, config)
    queries = [texts.query() for _ in range(config.calls)]
    digest = Digest()
    for query in queries:
        digest.add(map(str, ours.found(query)))
    for method in methods.values():
        method(queries[0])
    result.figures[f"{rows} ours bytes of a message"] = ours.index.memory_bytes() / rows
    names = list(methods)
    for start in range(0, config.calls, config.block_calls):
        turn = start // config.block_calls % len(names)
        for name in names[turn:] + names[:turn]:
            for query in queries[start : start + config.block_calls]:
                seconds, found = timed(partial(methods[name], query))
                result.seconds.setdefault(f"{rows} {name}", []).append(seconds)
                key = f"{rows} {name} found"
                result.figures[key] = result.figures.get(key, 0) + found
    for query in queries:
        added = ours.rows(texts.messages(1, config.words))
        put_s, _ = timed(partial(ours.put, added))
        search_s, _ = timed(partial(ours.search, query))
        result.seconds.setdefault(f"{rows} ours, put", []).append(put_s)
        result.seconds.setdefault(f"{rows} ours, changed", []).append(search_s)
    return digest.text()


def measure(config: Config) -> Result:
    """Every size."""
    result = Result()
    digest = Digest()
    texts = Texts(config.seed)
    for rows in config.rows:
        digest.add([_measure_one(result, rows, texts, config)])
        if rows in BARS_MS:
            p50_ms = 1000 * result.p50_s(f"{rows} ours")
            result.bars.append(Bar(f"p50 of {rows} messages (ms)", p50_ms, BARS_MS[rows]))
    for package in ("bm25s", "tantivy"):
        if not _installed(package):
            result.figures[package] = "not installed"
    result.digest = digest.text()
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke=SMOKE)
