"""The vector cache in memory: bounded by bytes, least recently used first out, exact keys."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semanticrecall_core.embedding.cache import (
    ENTRY_OVERHEAD_BYTES,
    CachedVector,
    VectorCache,
)

DIMENSIONS = 4


def entry(value: float) -> CachedVector:
    return CachedVector(np.full(DIMENSIONS, value, dtype=np.float32), 3)


TOKEN_COUNT_BYTES = 4
ENTRY_BYTES = 4 * DIMENSIONS + TOKEN_COUNT_BYTES + ENTRY_OVERHEAD_BYTES


def put(cache: VectorCache, text: str, value: float, prompt: str = "") -> None:
    cache.put(cache.key("u", prompt, text), entry(value), cache.begin_miss())


def value_of(cache: VectorCache, text: str, prompt: str = "") -> float | None:
    found = cache.get(cache.key("u", prompt, text))
    return None if found is None else float(found.vector[0])


def test_bytes_bound_and_order_of_eviction() -> None:
    cache = VectorCache(2 * ENTRY_BYTES)
    put(cache, "a", 1)
    put(cache, "b", 2)
    assert value_of(cache, "a") == 1  # "b" is the least recently used now
    put(cache, "c", 3)
    assert [value_of(cache, text) for text in "abc"] == [1, None, 3]
    stats = cache.stats()
    assert (stats.entries, stats.bytes, stats.evictions) == (2, 2 * ENTRY_BYTES, 1)
    assert (stats.hits, stats.misses) == (3, 3)


def test_replacing_an_entry_does_not_count_it_twice() -> None:
    cache = VectorCache(10_000)
    put(cache, "a", 1)
    put(cache, "a", 2)
    assert value_of(cache, "a") == 2
    assert (cache.stats().entries, cache.stats().bytes) == (1, ENTRY_BYTES)


def test_an_entry_above_the_bound_is_not_kept() -> None:
    cache = VectorCache(ENTRY_BYTES - 1)
    put(cache, "a", 1)
    assert value_of(cache, "a") is None
    assert (cache.stats().entries, cache.stats().bytes, cache.stats().evictions) == (0, 0, 0)


def test_what_comes_out_is_what_went_in_and_cannot_be_written_to() -> None:
    cache = VectorCache(10_000)
    vector = np.array([0.1, -2.5, np.pi, 1e-30], dtype=np.float32)
    cache.put(cache.key("u", "", "a"), CachedVector(vector, 70_000), cache.begin_miss())
    found = cache.get(cache.key("u", "", "a"))
    assert found is not None
    assert found.vector.tolist() == vector.tolist()
    assert found.vector.dtype == np.float32
    assert found.tokens == 70_000
    assert not found.vector.flags.writeable


def test_an_entry_costs_what_is_counted_for_it() -> None:
    cache = VectorCache(10**9)
    vector = np.zeros(384, dtype=np.float32)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(5_000):
            key = cache.key(f"user {n % 7}", "", f"what was said at {n}, word for word")
            cache.put(key, CachedVector(vector, 9), cache.begin_miss())
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The dictionary grows in steps; the allocator's rounding is not in what is traced.
    assert 0.85 < (after - before) / cache.stats().bytes <= 1.05


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


def test_each_of_a_thousand_texts_has_its_own() -> None:
    cache = VectorCache(1_000 * ENTRY_BYTES)
    for number in range(1_000):
        put(cache, f"text {number}", number)
    assert [value_of(cache, f"text {number}") for number in range(1_000)] == list(range(1_000))


def test_prompt_and_text_are_not_joined() -> None:
    cache = VectorCache(10_000)
    put(cache, "b c", 1, prompt="a ")
    assert value_of(cache, "c", prompt="a b ") is None


def test_what_was_forgotten_while_it_was_computed_is_not_kept() -> None:
    cache = VectorCache(10_000)
    key = cache.key("u", "", "secret")
    mark = cache.begin_miss()
    assert cache.forget([key]) == 0
    cache.put(key, entry(1), mark)
    assert cache.get(key) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "", "b"), ("ab", "", "")),
        (("a", "", "b"), ("", "a", "b")),
        (("a", "b", ""), ("a", "", "b")),
        (("a\0", "b", "c"), ("a", "\0b", "c")),
        (("a", "b\x00\x00", "c"), ("a", "b", "\x00\x00c")),
        (("a", "", "\ud800"), ("a", "", "\udfff")),
        (("a", "", "\u00e9"), ("a", "", "e\u0301")),
    ],
)
def test_parts_are_not_joined(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    cache = VectorCache(10_000)
    cache.put(cache.key(*one), entry(1), cache.begin_miss())
    assert cache.get(cache.key(*other)) is None
    assert cache.get(cache.key(*one)) is not None


def test_an_owner_is_forgotten_as_a_whole_and_alone() -> None:
    cache = VectorCache(100_000)
    for owner in ("ada", "bob", ""):
        for text in ("x", "y"):
            cache.put(cache.key(owner, "", text), entry(1), cache.begin_miss())
    mark = cache.begin_miss()
    assert cache.forget_owner("ada") == 2
    assert cache.forget_owner("ada") == 0
    cache.put(cache.key("ada", "", "z"), entry(1), mark)  # begun before it was forgotten
    assert [
        cache.get(cache.key(owner, "", text)) is not None
        for owner in ("ada", "bob", "")
        for text in ("x", "y", "z")
    ] == [False, False, False, True, True, False, True, True, False]
    assert cache.stats().bytes == 4 * ENTRY_BYTES


def test_the_share_of_hits() -> None:
    cache = VectorCache(10_000)
    assert cache.stats().hit_ratio == 0
    put(cache, "a", 1)
    for _ in range(3):
        value_of(cache, "a")
    assert cache.stats().hit_ratio == 0.75


@given(
    st.lists(st.tuples(st.sampled_from(("put", "get", "forget")), st.integers(0, 7)), max_size=60)
)
def test_agrees_with_a_list_in_order_of_use(steps: list[tuple[str, int]]) -> None:
    texts = [str(n) * (20 * n + 1) for n in range(8)]
    room = 3
    cache = VectorCache(room * ENTRY_BYTES)
    model: list[int] = []  # least recently used first
    for action, n in steps:
        if action == "put":
            put(cache, texts[n], n)
            model = [*(m for m in model if m != n), n][-room:]
        elif action == "get":
            assert value_of(cache, texts[n]) == (n if n in model else None)
            model = [m for m in model if m != n] + [n] * (n in model)
        else:
            assert cache.forget([cache.key("u", "", texts[n])]) == (n in model)
            model = [m for m in model if m != n]
        assert cache.stats().entries == len(model)
        assert cache.stats().bytes == len(model) * ENTRY_BYTES
