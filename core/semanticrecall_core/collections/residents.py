"""Which collections are in memory: the most recently used ones, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from .loaded import LoadedCollection

Name = tuple[str, str]
"""A collection: (resource id, name)."""


class Residents:
    """Collections in memory. Thread-safe; who uses one that makes room meanwhile may go on."""

    def __init__(self, bytes_max: int) -> None:
        """None yet; `bytes_max` of them together, but for one that is larger alone."""
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._loaded: OrderedDict[Name, tuple[LoadedCollection, int]] = OrderedDict()
        self._bytes = 0
        self.loads = 0
        self.evictions = 0

    def get(self, name: Name) -> LoadedCollection | None:
        """A collection, used now; None where it is not in memory."""
        with self._lock:
            found = self._loaded.get(name)
            if found is None:
                return None
            self._loaded.move_to_end(name)
            return found[0]

    def make_room(self, bytes_needed: int) -> None:
        """Let others go until there is room for so many bytes, or nothing is left."""
        with self._lock:
            while self._loaded and self._bytes + bytes_needed > self._bytes_max:
                self._evict_oldest()

    def put(self, name: Name, loaded: LoadedCollection) -> None:
        """Keep a collection that was read."""
        with self._lock:
            self.loads += 1
            self._loaded[name] = (loaded, 0)
        self.measure(name)

    def measure(self, name: Name) -> None:
        """Take note of how large a collection has become; others may have to go."""
        with self._lock:
            found = self._loaded.get(name)
            if found is None:
                return
            loaded, before = found
            size = loaded.memory_bytes
            self._loaded[name] = (loaded, size)
            self._loaded.move_to_end(name)
            self._bytes += size - before
            while self._bytes > self._bytes_max and len(self._loaded) > 1:
                self._evict_oldest()

    def _evict_oldest(self) -> None:
        _, (_, size) = self._loaded.popitem(last=False)
        self._bytes -= size
        self.evictions += 1

    def drop(self, name: Name) -> None:
        """A collection is gone, or its file may be another than its memory."""
        with self._lock:
            found = self._loaded.pop(name, None)
            if found is not None:
                self._bytes -= found[1]

    def clear(self) -> None:
        """Let all go."""
        with self._lock:
            self._loaded.clear()
            self._bytes = 0

    def state(self) -> tuple[int, int]:
        """How many there are, and their bytes."""
        with self._lock:
            return len(self._loaded), self._bytes
