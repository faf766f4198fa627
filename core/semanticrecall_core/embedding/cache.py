"""Vectors already computed, least recently used dropped first, bounded by bytes.

A key is (owner, prompt, text) and is compared by its whole text: no hash of it can collide into
another text's vector, and no joining of its parts can either. The owner is part of it, so that
nobody can learn from a hit, or from how quick it was, that somebody else holds a text.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..types.values import CacheStats

if TYPE_CHECKING:
    from ..types.values import FloatRows

ENTRY_OVERHEAD_BYTES = 512
"""Objects around one entry: two tuples, array header, dictionary slot, list node (measured)."""


class CacheKey(NamedTuple):
    """Whose vector it is, and what it was made from."""

    owner: str
    prompt: str
    text: str


class CachedVector(NamedTuple):
    """One text's vector: float32, shape (dimensions,), read-only; and its token count."""

    vector: FloatRows
    tokens: int


class VectorCache:
    """Thread-safe map of `CacheKey` to `CachedVector`.

    Args:
        bytes_max: keys, vectors and overhead together; 0 keeps nothing.
    """

    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 0:
            raise ValueError("bytes_max must not be negative")
        self._bytes_max = bytes_max
        self._entries: OrderedDict[CacheKey, CachedVector] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0
        self._forgets = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0

    def get(self, key: CacheKey) -> CachedVector | None:
        """The vector, now the most recently used; None where there is none. Hits are counted."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                self._hits += 1
            return found

    def begin_miss(self) -> int:
        """Count one miss; returns the mark that `put` wants, taken before the text is computed."""
        with self._lock:
            self._misses += 1
            return self._forgets

    def put(self, key: CacheKey, entry: CachedVector, mark: int) -> None:
        """Keep a vector; drop the least recently used ones that no longer fit.

        Not kept if anything was forgotten since `mark`: it may have been this text.
        """
        size = _size(key, entry)
        with self._lock:
            if mark != self._forgets or size > self._bytes_max:
                return
            old = self._entries.pop(key, None)
            self._bytes += size - (_size(key, old) if old is not None else 0)
            self._entries[key] = entry
            while self._bytes > self._bytes_max:
                evicted_key, evicted = self._entries.popitem(last=False)
                self._bytes -= _size(evicted_key, evicted)
                self._evictions += 1

    def forget(self, keys: Iterable[CacheKey]) -> int:
        """Drop these keys; returns how many were there."""
        gone = 0
        with self._lock:
            self._forgets += 1
            for key in keys:
                entry = self._entries.pop(key, None)
                if entry is not None:
                    self._bytes -= _size(key, entry)
                    gone += 1
        return gone

    def stats(self) -> CacheStats:
        """State and counters since the start."""
        with self._lock:
            return CacheStats(
                len(self._entries), self._bytes, self._hits, self._misses, self._evictions
            )


def _size(key: CacheKey, entry: CachedVector) -> int:
    return sys.getsizeof(key.text) + entry.vector.nbytes + ENTRY_OVERHEAD_BYTES
