"""Pages of a mapped file that a search has touched, and how they are given back.

A mapped page that was read counts as this process's resident memory until the kernel needs it. The
kernel also maps the pages around it, so that after one search of a small partition all of it
counts. What is given back stays in the system's cache: the next search finds it there, at a few
microseconds for each place that it reads.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

AROUND_BYTES = 65_536
"""How far around a page that is read Linux maps others (`fault_around_bytes` in debugfs)."""


class MappedPages:
    """The stretch of a mapped file that some arrays lie in. Thread-safe."""

    __slots__ = ("_length", "_map", "_start")

    def __init__(self, mapped: mmap.mmap, start: int, stop: int) -> None:
        """`start` and `stop` are offsets in the map."""
        self._map = mapped
        self._start = max(0, start - AROUND_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        self._length = stop + AROUND_BYTES - self._start

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> MappedPages | None:
        """The stretch from the first to the last of these; None where one is no mapped file's."""
        maps = [_map_of(array) for array in arrays]
        mapped = maps[0]
        if mapped is None or any(other is not mapped for other in maps):
            return None
        zero = _address(np.frombuffer(mapped, np.uint8, 1))
        start = min(_address(array) for array in arrays) - zero
        stop = max(_address(array) + array.nbytes for array in arrays) - zero
        return cls(mapped, start, stop)

    def release(self) -> None:
        """These pages need not be resident. Whoever reads them has them again."""
        self._map.madvise(mmap.MADV_DONTNEED, self._start, self._length)


def _map_of(array: NDArray[Any]) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
