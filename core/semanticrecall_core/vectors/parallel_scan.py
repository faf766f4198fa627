"""Threads that take parts of a large search off the thread that makes it.

The calling thread takes parts from a list and so does every helper that is idle; nobody waits for
one that is busy with another search, so that a caller without help does all by itself. A part that
a helper has in hand when the list is empty is waited for as long as the caller took for a part of
its own, and then scanned by the caller too: a helper that lost its core costs little. FAISS and
numpy release the interpreter's lock while they scan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

HELPERS_MAX = 63


class ScanThreads:
    """At most so many helper threads for all searches of an index together. Thread-safe.

    Threads are started when they are first of use.
    """

    def __init__(self, helpers: int) -> None:
        """Allow `helpers` threads, 0 to 63: the cores that searches may use beside the caller's."""
        self._helpers = min(HELPERS_MAX, max(0, helpers))
        self._idle = threading.Semaphore(self._helpers)
        self._pool = ThreadPoolExecutor(max(1, self._helpers), thread_name_prefix="vector-scan")

    def map(self, scan: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """`scan` of every part, in their order.

        Args:
            scan: pure; may be called on any thread, and twice for one part.
            parts: what to scan.

        Raises:
            Exception: what `scan` raises.
        """
        work = _Work(scan, parts)
        for _ in range(min(self._helpers, len(parts) - 1)):
            if not self._idle.acquire(blocking=False):
                break
            try:
                self._pool.submit(self._help, work)
            except RuntimeError:  # closed, or no thread to be had
                self._idle.release()
                break
        return work.finish()

    def close(self) -> None:
        """End the threads, after the part each has in hand. Searches go on without them."""
        self._pool.shutdown(wait=True)

    def _help(self, work: _Work[T, R]) -> None:
        try:
            work.help()
        finally:
            self._idle.release()


class _Work(Generic[T, R]):
    """The parts of one search: what nobody has taken yet, and what was found."""

    __slots__ = ("_complete", "_found", "_lock", "_parts", "_scan", "_untaken")

    def __init__(self, scan: Callable[[T], R], parts: Sequence[T]) -> None:
        self._scan = scan
        self._parts = parts
        self._lock = threading.Lock()
        self._untaken = iter(range(len(parts)))
        self._found: dict[int, R] = {}
        self._complete = threading.Event()

    def help(self) -> int:
        """Scan until nothing is left to take; returns how many parts that were.

        A part whose scan raises stays without a result: the caller meets the error itself.
        """
        taken = 0
        while True:
            with self._lock:
                position = next(self._untaken, None)
            if position is None:
                return taken
            found = self._scan(self._parts[position])
            taken += 1
            with self._lock:
                self._found[position] = found
                if len(self._found) == len(self._parts):
                    self._complete.set()

    def finish(self) -> list[R]:
        """The caller's share: what is left to take, then what a helper does not end in time."""
        started = time.perf_counter()
        taken = self.help()
        if not self._complete.is_set():
            self._complete.wait((time.perf_counter() - started) / max(1, taken))
        with self._lock:
            found = dict(self._found)
        for position, part in enumerate(self._parts):
            if position not in found:
                found[position] = self._scan(part)
        return [found[position] for position in range(len(self._parts))]
