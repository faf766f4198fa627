"""The vector cache: bounded by bytes, least recently used first out, exact keys."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semanticrecall_core.embedding.cache import (
    ENTRY_OVERHEAD_BYTES,
    CachedVector,
    CacheKey,
    VectorCache,
)

DIMENSIONS = 4


def entry(value: float) -> CachedVector:
    return CachedVector(np.full(DIMENSIONS, value, dtype=np.float32), 3)


def size_of(text: str) -> int:
    return sys.getsizeof(text) + 4 * DIMENSIONS + ENTRY_OVERHEAD_BYTES


def put(cache: VectorCache, text: str, value: float, prompt: str = "") -> None:
    cache.put(CacheKey("u", prompt, text), entry(value), cache.begin_miss())


def value_of(cache: VectorCache, text: str, prompt: str = "") -> float | None:
    found = cache.get(CacheKey("u", prompt, text))
    return None if found is None else float(found.vector[0])


def test_bytes_bound_and_order_of_eviction() -> None:
    cache = VectorCache(2 * size_of("a"))
    put(cache, "a", 1)
    put(cache, "b", 2)
    assert value_of(cache, "a") == 1  # "b" is the least recently used now
    put(cache, "c", 3)
    assert [value_of(cache, text) for text in "abc"] == [1, None, 3]
    stats = cache.stats()
    assert (stats.entries, stats.bytes, stats.evictions) == (2, 2 * size_of("a"), 1)
    assert (stats.hits, stats.misses) == (3, 3)


def test_replacing_an_entry_does_not_count_it_twice() -> None:
    cache = VectorCache(10_000)
    put(cache, "a", 1)
    put(cache, "a", 2)
    assert value_of(cache, "a") == 2
    assert (cache.stats().entries, cache.stats().bytes) == (1, size_of("a"))


def test_an_entry_above_the_bound_is_not_kept_and_drops_nothing() -> None:
    cache = VectorCache(size_of("a"))
    put(cache, "a", 1)
    put(cache, "long" * 1000, 2)
    assert value_of(cache, "a") == 1
    assert value_of(cache, "long" * 1000) is None


def test_a_bound_of_zero_keeps_nothing() -> None:
    cache = VectorCache(0)
    put(cache, "a", 1)
    assert (cache.stats().entries, cache.stats().bytes) == (0, 0)


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        VectorCache(-1)


def test_texts_whose_short_hashes_collide_stay_apart() -> None:
    # Equal under xxHash32.
    cache = VectorCache(10_000)
    put(cache, "msg-4246", 1)
    assert value_of(cache, "msg-268273") is None


def test_prompt_and_text_are_not_joined() -> None:
    cache = VectorCache(10_000)
    put(cache, "b c", 1, prompt="a ")
    assert value_of(cache, "c", prompt="a b ") is None


def test_what_was_forgotten_while_it_was_computed_is_not_kept() -> None:
    cache = VectorCache(10_000)
    key = CacheKey("u", "", "secret")
    mark = cache.begin_miss()
    assert cache.forget([key]) == 0
    cache.put(key, entry(1), mark)
    assert cache.get(key) is None


@given(
    st.lists(st.tuples(st.sampled_from(("put", "get", "forget")), st.integers(0, 7)), max_size=60)
)
def test_agrees_with_a_list_in_order_of_use(steps: list[tuple[str, int]]) -> None:
    texts = [str(n) * (20 * n + 1) for n in range(8)]
    bound = 3 * size_of(texts[3])
    cache = VectorCache(bound)
    model: list[int] = []  # least recently used first
    for action, n in steps:
        if action == "put":
            put(cache, texts[n], n)
            model = [m for m in model if m != n] + [n]
            while sum(size_of(texts[m]) for m in model) > bound:
                model.pop(0)
        elif action == "get":
            assert value_of(cache, texts[n]) == (n if n in model else None)
            model = [m for m in model if m != n] + [n] * (n in model)
        else:
            assert cache.forget([CacheKey("u", "", texts[n])]) == (n in model)
            model = [m for m in model if m != n]
        assert cache.stats().entries == len(model)
        assert cache.stats().bytes == sum(size_of(texts[m]) for m in model)
