"""The deterministic embedder with the cache file that the real one keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semanticrecall_core.embedding.cache import CachedVector, VectorCache
from semanticrecall_core.embedding.cache_file import CacheFile, CacheFileOptions
from semanticrecall_core.embedding.write_behind import WriteBehind
from semanticrecall_core.types.stats import CacheStats
from semanticrecall_core.types.values import CallBudget
from support.fake_embedder import FakeEmbedder, words_of

MEMORY_BYTES = 64 << 20
DISK_BYTES = 64 << 20


class DiskCachedEmbedder(FakeEmbedder):
    """Every window that was computed is in memory and in the file `embeddings.db`."""

    def __init__(self, path: Path, dimensions: int = 64, *, key: bytes | None = None) -> None:
        """`key`: of the file's pages; None: they are plain."""
        super().__init__(dimensions)
        options = CacheFileOptions(path, DISK_BYTES, key=key)
        self._disk = WriteBehind(CacheFile(options, self.generation, dimensions))
        self._vectors = VectorCache(MEMORY_BYTES, self.generation, self._disk)

    def flush(self) -> None:
        """Write what waits to be written."""
        self._disk.flush()

    def _row(
        self, window: str, text: str, budget: CallBudget, owner: str
    ) -> tuple[NDArray[np.float32], bool]:
        key = self._vectors.key(owner, "", window)
        found = self._vectors.find(key)
        if found is not None:
            return found.vector, False
        mark = self._vectors.begin_miss()
        row = self._run(window, text, budget)
        self._vectors.put(key, CachedVector(row, len(words_of(window))), mark)
        return row, True

    def forget_texts(self, texts: Sequence[str], owner: str = "") -> int:
        """As the port says."""
        windows = {w for text in texts if words_of(text) for w in (text, *self._windows(text))}
        return self._vectors.forget(self._vectors.key(owner, "", window) for window in windows)

    def forget_owner(self, owner: str) -> int:
        """As the port says."""
        return self._vectors.forget_owner(owner)

    def erase_forgotten(self) -> bool:
        """As the port says."""
        return self._vectors.erase_forgotten()

    def cache_stats(self) -> CacheStats:
        """Those of the cache."""
        return self._vectors.stats()

    def close(self) -> None:
        """Let go of the file."""
        self._vectors.close()
