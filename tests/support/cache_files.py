"""Vector caches over a file in a test's folder, which write when the test says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semanticrecall_core.embedding.cache import CachedVector, VectorCache
from semanticrecall_core.embedding.cache_file import CacheFile, CacheFileOptions
from semanticrecall_core.embedding.write_behind import WriteBehind

DIMENSIONS = 384
NEVER_S = 3600.0
ROOMY = 64 << 20
TEXTS = [f"what was said at {n}" for n in range(40)]


def vector_of(owner: str, text: str) -> NDArray[np.float32]:
    """The unit vector that stands for a text of an owner; float32, shape (DIMENSIONS,)."""
    seed = hashlib.sha256(f"{owner}/{text}".encode()).digest()
    row = np.random.Generator(np.random.PCG64(list(seed))).standard_normal(DIMENSIONS)
    return (row / np.linalg.norm(row)).astype(np.float32)


class FiledCache:
    """A cache with its file; writes to it when flushed or closed, and not by itself."""

    def __init__(
        self,
        folder: Path,
        *,
        memory: int = 1 << 20,
        disk: int = ROOMY,
        generation: str = "g",
        vfs: str = "unix-excl",
        free_bytes: Callable[[Path], int] = lambda folder: 1 << 40,
        key: bytes | None = None,
    ) -> None:
        self.path = folder / "embeddings.db"
        options = CacheFileOptions(self.path, disk, vfs, free_bytes, key)
        self.file = CacheFile(options, generation, DIMENSIONS)
        self.behind = WriteBehind(self.file, delay_s=NEVER_S)
        self.cache = VectorCache(memory, generation, self.behind)

    def put(self, text: str, owner: str = "u") -> None:
        entry = CachedVector(vector_of(owner, text), len(text))
        self.cache.put(self.cache.key(owner, "", text), entry, self.cache.begin_miss())

    def find(self, text: str, owner: str = "u") -> bool:
        """Whether it is there; what is found must be right."""
        found = self.cache.find(self.cache.key(owner, "", text))
        if found is None:
            return False
        assert found.vector.tobytes() == vector_of(owner, text).tobytes()
        assert found.tokens == len(text)
        return True

    def forget(self, *texts: str, owner: str = "u") -> int:
        return self.cache.forget([self.cache.key(owner, "", text) for text in texts])

    def flush(self) -> None:
        self.behind.flush()

    def close(self) -> None:
        self.cache.close()

    def bytes_on_disk(self) -> bytes:
        """The database and its log."""
        return b"".join(path.read_bytes() for path in files_of(self.path))


def files_of(path: Path) -> list[Path]:
    """The database and what SQLite keeps beside it, so far as they are there."""
    return sorted(path.parent.glob(f"{path.name}*"))


def reopened(cache: FiledCache, **options: Any) -> FiledCache:
    """Another over the same file, as after a restart."""
    cache.close()
    return FiledCache(cache.path.parent, **options)


def filled(folder: Path) -> Path:
    """A sound file with TEXTS in it, closed."""
    cache = FiledCache(folder)
    for text in TEXTS:
        cache.put(text)
    cache.close()
    assert not [path for path in files_of(cache.path) if path != cache.path]
    return cache.path
