"""Vectors already computed, least recently used dropped first, bounded by bytes; and on disk.

An entry is named by 40 bytes: a hash of its owner, and a 256-bit hash of (generation, owner,
prompt, text). Both are BLAKE2b keyed with a secret of this cache. The parts are hashed with their
lengths, so that no joining of parts can meet another one's; who could find two texts of one name
could break the hash. The owner is part of it, so that nobody can learn from a hit, or from how
quick it was, that somebody else holds a text. Neither texts nor ids are kept.

What is in memory was put or found on disk since the start. The disk is asked only by `find`, which
the caller does before it runs the model.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import structlog

from ..types.stats import (
    CacheStats,
)
from .cache_file import CacheFile, CacheFileOptions, FileStats
from .cache_format import (
    KEY_BYTES,
    OWNER_BYTES,
    SECRET_BYTES,
    TOKENS_BYTES,
    delete_cache_file,
)
from .write_behind import WriteBehind

if TYPE_CHECKING:
    from ..types.values import FloatRows

ENTRY_OVERHEAD_BYTES = 224
"""Around one entry's value: two bytes objects, the name, dictionary slot, list node (measured)."""


_log = structlog.get_logger(__name__)


CacheKey = bytes
"""An entry's name: see `VectorCache.key`."""


class CachedVector(NamedTuple):
    """One text's vector: float32, shape (dimensions,), read-only; and its token count."""

    vector: FloatRows
    tokens: int


class VectorCache:
    """Thread-safe map of `CacheKey` to `CachedVector`. A caller makes a key once, with `key`.

    Args:
        bytes_max: vectors and overhead in memory together; 0 keeps nothing.
        generation: identity of the vectors.
        disk: keeps them across restarts; None for memory alone. Of entries without an owner
            nothing is given to it, since nobody could ask to forget them.
    """

    def __init__(
        self, bytes_max: int, generation: str = "", disk: WriteBehind | None = None
    ) -> None:
        if bytes_max < 0:
            raise ValueError("bytes_max must not be negative")
        self._bytes_max = bytes_max
        self._disk = disk
        self._secret = secrets.token_bytes(SECRET_BYTES) if disk is None else disk.secret
        # What every name begins with is hashed once.
        self._owner_hasher = hashlib.blake2b(
            digest_size=OWNER_BYTES, key=self._secret, person=b"owner"
        )
        self._text_hasher = hashlib.blake2b(
            _sized(generation), digest_size=KEY_BYTES, key=self._secret, person=b"text"
        )
        self._nobody = self._owner_hash("")
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0
        self._forgets = 0
        self._hits = 0
        self._disk_hits = 0
        self._misses = 0
        self._evictions = 0

    def key(self, owner: str, prompt: str, text: str) -> CacheKey:
        """The name of a vector: whose it is, and what it was made from; see the module."""
        of_owner, of_text = self._owner_hasher.copy(), self._text_hasher.copy()
        sized_owner = _sized(owner)
        of_owner.update(sized_owner)
        of_text.update(b"".join((sized_owner, _sized(prompt), _sized(text))))
        return of_owner.digest() + of_text.digest()

    def get(self, key: CacheKey) -> CachedVector | None:
        """The vector in memory, now the most recently used; None where there is none.

        Hits are counted.
        """
        with self._lock:
            value = self._entries.get(key)
            if value is None:
                return None
            self._entries.move_to_end(key)
            self._hits += 1
        if self._disk is not None:
            self._disk.touch(key)
        return _unpacked(value)

    def __contains__(self, key: CacheKey) -> bool:
        """Whether it is in memory; counts nothing, and is no use of it."""
        with self._lock:
            return key in self._entries

    def find(self, key: CacheKey) -> CachedVector | None:
        """As `get`, then from the disk; what is found there is in memory afterwards."""
        found = self.get(key)
        if found is not None or self._disk is None or key.startswith(self._nobody):
            return found
        mark = self._forgets
        value = self._disk.get(key)
        if value is None:
            return None
        with self._lock:
            self._hits += 1
            self._disk_hits += 1
            if mark == self._forgets:
                self._keep(key, value)
        return _unpacked(value)

    def begin_miss(self) -> int:
        """Count one miss; returns the mark that `put` wants, taken before the text is computed."""
        with self._lock:
            self._misses += 1
            return self._forgets

    def put(self, key: CacheKey, entry: CachedVector, mark: int) -> None:
        """Keep a vector; drop the least recently used ones that no longer fit.

        Not kept if anything was forgotten since `mark`: it may have been this text.
        """
        value = _packed(entry)
        with self._lock:
            if mark != self._forgets:
                return
            # Inside the lock: a forget that comes now finds it in the queue.
            if self._disk is not None and not key.startswith(self._nobody):
                self._disk.put(key, value)
            self._keep(key, value)

    def forget(self, keys: Iterable[CacheKey]) -> int:
        """Drop these keys, in memory and on disk; returns how many were there.

        Raises UnavailableError where they cannot be removed from the disk.
        """
        wanted = list(keys)
        gone = self._drop(wanted)
        # What has no owner is never written.
        on_disk = [key for key in wanted if not key.startswith(self._nobody)]
        if self._disk is not None and on_disk:
            gone |= self._disk.forget(on_disk)
            # What was read from the disk meanwhile may have come back to memory.
            self._drop(wanted)
        return len(gone)

    def forget_owner(self, owner: str) -> int:
        """Drop all that an owner has, in memory and on disk; returns how many there were.

        Raises UnavailableError as `forget`.
        """
        prefix = self._owner_hash(owner)
        gone = self._drop(self._names_of(prefix))
        if self._disk is not None:
            gone |= self._disk.forget_owner(prefix)
            self._drop(self._names_of(prefix))
        return len(gone)

    def erase_forgotten(self) -> bool:
        """Free the file of what was forgotten, log and free pages included.

        False where a reader is in the way. Raises UnavailableError where the disk fails.
        """
        return self._disk is None or self._disk.erase_forgotten()

    def stats(self) -> CacheStats:
        """State and counters since the start."""
        disk = FileStats() if self._disk is None else self._disk.stats()
        with self._lock:
            return CacheStats(
                len(self._entries),
                self._bytes,
                self._hits,
                self._misses,
                self._evictions,
                disk_entries=disk.entries,
                disk_bytes=disk.bytes,
                disk_hits=self._disk_hits,
                disk_evictions=disk.evictions,
                disk_damaged=disk.damaged,
            )

    def close(self) -> None:
        """Write to disk what is not there yet and let go of the file. Safe to call twice."""
        if self._disk is not None:
            self._disk.close()

    # ---- inside ----

    def _keep(self, name: bytes, value: bytes) -> None:
        size = _size(value)
        if size > self._bytes_max:
            return
        old = self._entries.pop(name, None)
        self._bytes += size - (_size(old) if old is not None else 0)
        self._entries[name] = value
        while self._bytes > self._bytes_max:
            _, evicted = self._entries.popitem(last=False)
            self._bytes -= _size(evicted)
            self._evictions += 1

    def _drop(self, names: Iterable[bytes]) -> set[bytes]:
        gone: set[bytes] = set()
        with self._lock:
            self._forgets += 1
            for name in names:
                value = self._entries.pop(name, None)
                if value is not None:
                    self._bytes -= _size(value)
                    gone.add(name)
        return gone

    def _names_of(self, prefix: bytes) -> list[bytes]:
        with self._lock:
            self._forgets += 1  # before looking: nothing begun earlier is kept afterwards
            names = list(self._entries)
        return [name for name in names if name.startswith(prefix)]

    def _owner_hash(self, owner: str) -> bytes:
        hasher = self._owner_hasher.copy()
        hasher.update(_sized(owner))
        return hasher.digest()


def open_vector_cache(
    bytes_max: int, file: CacheFileOptions | None, generation: str, dimensions: int
) -> VectorCache:
    """A cache in memory and, where a file is named and both bounds are above 0, on disk.

    A file that is not to be used is deleted: nothing in it could be forgotten any more. Never
    raises for the state of the file.
    """
    if file is None:
        return VectorCache(bytes_max, generation)
    if bytes_max == 0 or file.bytes_max == 0:
        try:
            delete_cache_file(file.path)
        except OSError:
            _log.warning("embedding.cache_file_not_deleted")
        return VectorCache(bytes_max, generation)
    disk = WriteBehind(CacheFile(file, generation, dimensions))
    return VectorCache(bytes_max, generation, disk)


def _sized(part: str) -> bytes:
    encoded = part.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "little") + encoded


def _packed(entry: CachedVector) -> bytes:
    return entry.vector.astype("<f4", copy=False).tobytes() + entry.tokens.to_bytes(
        TOKENS_BYTES, "little"
    )


def _unpacked(value: bytes) -> CachedVector:
    numbers = (len(value) - TOKENS_BYTES) // 4
    vector: FloatRows = np.frombuffer(value, np.float32, count=numbers)
    return CachedVector(vector, int.from_bytes(value[-TOKENS_BYTES:], "little"))


def _size(value: bytes) -> int:
    return len(value) + ENTRY_OVERHEAD_BYTES
