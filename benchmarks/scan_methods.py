"""Ways to search one partition, side by side: how long, and how many of the true top k are found.

Usage: python -m benchmarks.scan_methods [--rows 10000,100000] [--kinds clustered,random] ...

Every size and kind of vectors is searched by

  search, 1 thread     the index of the sidecar, no helper thread
  search, N threads    the same with N - 1 helper threads
  int8, one index      one FAISS index of int8 codes; the best `candidates` scored exactly; no proof
  rabitq-B             FAISS's fast-scan RaBitQ of B bits, the best `rerank_rows` scored exactly

in turns of `block_calls` queries. `cold` is the first call of a turn: `evict_mib` of other memory
were written before it, as other work of the machine would. `loop` are the others. `found` is the
share of the true top k (float64) among what was answered; `bytes` is what the scan reads of a row.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import timed
from benchmarks.report import Bar, Digest, Result, flag, run_script
from semanticrecall_core.types.values import PartitionRows, VectorQuery
from semanticrecall_core.vectors import FaissVectorIndex
from semanticrecall_core.vectors.codes import CodedRows, Coder, Probe

DIMENSIONS = 384
SCALE_CLIP = 0.30
MADE_AT_ONCE = 20_000
TRAINED_ROWS = 20_000
RABITQ_BLOCK_ROWS = 32
THEMES = 24
TOPIC_ROWS = 250

Vectors = NDArray[np.float32]
Method = Callable[[Vectors], list[int]]


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    rows: str = flag("10000,30000,100000,300000", "sizes of the partition", str)
    kinds: str = flag("clustered,random", "vectors: clustered like sentences, or random", str)
    calls: int = flag(60, "queries of each method")
    block_calls: int = flag(4, "queries of one method at a time")
    evict_mib: int = flag(96, "other memory written before each turn")
    top_k: int = flag(4, "messages asked for")
    threads: int = flag(2, "threads of the search that has helpers")
    candidates: int = flag(32, "rows of int8 codes scored exactly")
    rerank_rows: int = flag(200, "rows of RaBitQ codes scored exactly")
    bits: str = flag("1,2,4", "bits of the RaBitQ codes", str)
    seed: int = flag(7, "of the vectors")


def clustered(rng: np.random.Generator, rows: int, queries: int) -> Vectors:
    """Unit rows in topics inside themes, with few strong directions, as sentence vectors lie.

    The last `queries` rows are of the same topics.
    """
    strength = 1.0 / np.sqrt(np.arange(1, DIMENSIONS + 1) + 8.0)
    themes = rng.standard_normal((THEMES, DIMENSIONS)) * strength
    topics = max(THEMES, rows // TOPIC_ROWS)
    centres = 0.6 * themes[rng.integers(0, THEMES, topics)]
    centres += 0.6 * rng.standard_normal((topics, DIMENSIONS)) * strength
    rotation = np.linalg.qr(rng.standard_normal((DIMENSIONS, DIMENSIONS)))[0]
    popular = 1.0 / np.arange(1, topics + 1) ** 0.5

    def made(count: int) -> Vectors:
        topic = rng.choice(topics, count, p=popular / popular.sum())
        spread = rng.uniform(0.3, 0.9, (count, 1))
        noise = spread * rng.standard_normal((count, DIMENSIONS)) * strength
        return _units((centres[topic] + noise) @ rotation)

    return _in_pieces(made, rows + queries)


def random(rng: np.random.Generator, rows: int, queries: int) -> Vectors:
    """Unit rows of no structure: all are about as far from a query."""
    return _in_pieces(
        lambda count: _units(rng.standard_normal((count, DIMENSIONS))), rows + queries
    )


KINDS = {"clustered": clustered, "random": random}


def _units(rows: NDArray[np.float64]) -> Vectors:
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _in_pieces(made: Callable[[int], Vectors], total: int) -> Vectors:
    starts = range(0, total, MADE_AT_ONCE)
    return np.concatenate([made(min(MADE_AT_ONCE, total - start)) for start in starts])


def _best(vectors: Vectors, rows: NDArray[np.int64], query: Vectors, top_k: int) -> list[int]:
    """The nearest of some rows by float64 products; the lowest position of equals."""
    scores = vectors[rows].astype(np.float64) @ query.astype(np.float64)
    return [int(rows[at]) for at in np.lexsort((rows, -scores))[:top_k]]


def true_nearest(vectors: Vectors, queries: Vectors, top_k: int) -> list[list[int]]:
    """The nearest rows of each query, by all products."""
    scores = vectors @ queries.T
    few = min(len(vectors), 4 * top_k + 64)
    near = np.argpartition(scores, len(vectors) - few, axis=0)[len(vectors) - few :]
    return [_best(vectors, near[:, i], query, top_k) for i, query in enumerate(queries)]


def _partition(vectors: Vectors) -> PartitionRows:
    numbers = np.arange(len(vectors))
    return PartitionRows(
        seqs=numbers,
        thread_keys=numbers % 50 + 1,
        times_ns=numbers,
        roles=np.ones(len(vectors), np.uint8),
        chunks=np.zeros(len(vectors), np.int64),
        revisions=numbers,
        vectors=vectors,
        checksums=numbers,
    )


def _searched(index: FaissVectorIndex, top_k: int, query: Vectors) -> list[int]:
    return [hit.seq for hit in index.search("bench", VectorQuery(query, top_k)).hits]


def _coded(coded: CodedRows, vectors: Vectors, config: Config, query: Vectors) -> list[int]:
    wanted = min(config.candidates, len(coded))
    rows, _ = coded.scan(Probe(query, DIMENSIONS), wanted, None)
    return _best(vectors, rows, query, config.top_k)


def _rabitq(index: Any, vectors: Vectors, config: Config, query: Vectors) -> list[int]:
    rows = index.search(query[np.newaxis], config.rerank_rows)[1][0]
    return _best(vectors, rows[rows >= 0], query, config.top_k)


def _rabitq_index(vectors: Vectors, bits: int) -> Any:
    codes = faiss.IndexRaBitQFastScan(
        DIMENSIONS, faiss.METRIC_INNER_PRODUCT, RABITQ_BLOCK_ROWS, bits
    )
    index = faiss.IndexPreTransform(faiss.RandomRotationMatrix(DIMENSIONS, DIMENSIONS), codes)
    index.train(vectors[:TRAINED_ROWS])
    index.add(vectors)
    return index


def methods(vectors: Vectors, config: Config) -> dict[str, tuple[Method, int, Callable[[], None]]]:
    """By name: how to search, bytes a row that the scan reads, how to end it."""
    rows = _partition(vectors)
    made: dict[str, tuple[Method, int, Callable[[], None]]] = {}
    for threads in (1, config.threads):
        index = FaissVectorIndex(
            DIMENSIONS, lambda _: rows, scale_clip=SCALE_CLIP, scan_threads=threads
        )
        name = f"search, {threads} thread" + ("s" if threads > 1 else "")
        made[name] = (partial(_searched, index, config.top_k), DIMENSIONS, index.close)
    coder = Coder(DIMENSIONS, SCALE_CLIP)
    coded = CodedRows(coder, *coder.encode(vectors))
    made["int8, one index"] = (partial(_coded, coded, vectors, config), DIMENSIONS, _nothing)
    for bits in map(int, filter(None, config.bits.split(","))):
        rabitq = _rabitq_index(vectors, bits)
        made[f"rabitq-{bits}"] = (
            partial(_rabitq, rabitq, vectors, config),
            int(rabitq.index.sa_code_size()),
            _nothing,
        )
    return made


def _nothing() -> None:
    return None


def _measure_one(result: Result, title: str, vectors: Vectors, config: Config) -> Digest:
    """All methods over one set of vectors; a digest of the exact answers."""
    kept, queries = vectors[: -config.calls], vectors[-config.calls :]
    right = true_nearest(kept, queries, config.top_k)
    searched = methods(kept, config)
    found = dict.fromkeys(searched, 0)
    other = np.zeros(max(1, config.evict_mib << 20), np.uint8)
    for method, _, _ in searched.values():
        method(kept[0])
    names = list(searched)
    for start in range(0, config.calls, config.block_calls):
        turn = start // config.block_calls % len(names)
        for name in names[turn:] + names[:turn]:
            other += 1
            for at in range(start, min(start + config.block_calls, config.calls)):
                seconds, answer = timed(partial(searched[name][0], queries[at]))
                state = "cold" if at == start else "loop"
                result.seconds.setdefault(f"{title} {name} {state}", []).append(seconds)
                found[name] += len(set(answer) & set(right[at]))
    digest = Digest()
    for nearest in right:
        digest.add(map(str, nearest))
    total = config.top_k * config.calls
    for name, (_, nbytes, close) in searched.items():
        close()
        result.figures[f"{title} {name} found"] = found[name] / total
        result.figures[f"{title} {name} bytes"] = nbytes
    return digest


def measure(config: Config) -> Result:
    """Every kind and size."""
    result = Result()
    sizes = [int(size) for size in config.rows.split(",")]
    digest = Digest()
    for kind in config.kinds.split(","):
        for rows in sizes:
            vectors = KINDS[kind](np.random.default_rng(config.seed), rows, config.calls)
            title = f"{kind} {rows}"
            digest.add([_measure_one(result, title, vectors, config).text()])
        exact = [
            result.figures[f"{kind} {rows} search, {threads} thread{'s' * (threads > 1)} found"]
            for rows in sizes
            for threads in (1, config.threads)
        ]
        result.bars.append(
            Bar(f"{kind}: share of the true top k that a search finds", min(exact), 1.0, False)
        )
    result.digest = digest.text()
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure)
