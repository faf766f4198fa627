"""How many texts a second the model's graph takes on all cores, with nothing of ours around it.

Tokenizing is part of it. Measured in every way that could be the quickest: as many threads as
cores, each with a text a run, or with batches of texts of equal length (the int8 graph takes no
padding).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.raw_parts import RawEmbed
from semanticrecall_core.embedding.threads import worker_threads

BATCHES = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The quickest way, and its texts per second."""

    way: str
    texts_per_second: float


def raw_throughput(embed: RawEmbed, texts: Sequence[str]) -> Throughput:
    """Embed all texts in each way.

    Texts are sorted by length beforehand and untimed, so that batches are as large as can be.
    """
    ordered = sorted(texts, key=lambda text: len(embed.token_ids(text)))
    threads = worker_threads()
    ways: dict[str, float] = {}
    with ThreadPoolExecutor(threads) as pool:
        for batch in BATCHES:
            jobs = [ordered[i : i + batch] for i in range(0, len(ordered), batch)]
            started = time.perf_counter()
            done = sum(pool.map(embed.count_embedded, jobs))
            seconds = time.perf_counter() - started
            if done != len(texts):
                raise RuntimeError("not all texts were embedded")
            ways[f"{threads} threads, batches of {batch}"] = done / seconds
    way = max(ways, key=lambda name: ways[name])
    return Throughput(way, ways[way])
