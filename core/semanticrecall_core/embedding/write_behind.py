"""Cached vectors on their way to the disk: a bounded queue, and one thread that empties it.

Neither a recall nor the record's writer ever waits for this thread: it runs at the lowest priority
and writes a few seconds' entries at once, since each commit rewrites pages all over the index. What
is forgotten leaves the queue and the file before `forget` returns.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

import structlog

from .cache_file import CacheFile, FileStats

WRITE_DELAY_S = 3.0
QUEUE_ENTRIES_MAX = 4096
"""About 7 MiB. What does not fit is not kept on disk."""

QUEUE_ENTRIES_EARLY = 2048
"""So many are written without waiting for more."""

_USES_MAX = 4096
_USES_PERIOD_S = 60.0
_LOWEST_PRIORITY = 19

_log = structlog.get_logger(__name__)


class WriteBehind:
    """Entries of a `CacheFile`, written later. Thread-safe.

    Names and values are those of `CacheFile`.
    """

    def __init__(self, file: CacheFile, *, delay_s: float = WRITE_DELAY_S) -> None:
        """`delay_s`: how long an entry waits for others before it is written."""
        self._file = file
        self._delay_s = delay_s
        self._queue: dict[bytes, bytes] = {}
        self._used: set[bytes] = set()
        self._uses_written = time.monotonic()
        self._condition = threading.Condition()
        self._writing = threading.Lock()  # held from taking entries off the queue to their commit
        # What a process erased that was killed then may still be in the log.
        self._checkpoint_wanted = True
        self._checkpoint_at_once = True  # what was forgotten is not to wait for more to write
        self._write_is_due = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="embedding-cache", daemon=True)
        self._thread.start()

    @property
    def secret(self) -> bytes:
        """The key of all hashes."""
        return self._file.secret

    def get(self, name: bytes) -> bytes | None:
        """An entry's value; one indexed read, which never waits for the thread."""
        value = self._queue.get(name)
        if value is None:
            value = self._file.read(name)
            if value is not None:
                self.touch(name)
        return value

    def put(self, name: bytes, value: bytes) -> None:
        """Keep an entry, soon; not at all where the queue is full."""
        with self._condition:
            if self._closing or len(self._queue) >= QUEUE_ENTRIES_MAX:
                return
            self._queue[name] = value
            if len(self._queue) in (1, QUEUE_ENTRIES_EARLY):
                self._condition.notify()

    def touch(self, name: bytes) -> None:
        """An entry that may be in the file was used. Quick: it is noted, and written much later."""
        if name not in self._used and len(self._used) < _USES_MAX:
            with self._condition:
                self._used.add(name)

    def forget(self, names: Iterable[bytes]) -> set[bytes]:
        """Drop entries, queued and on disk; the names of those that were there.

        Raises UnavailableError where they cannot be removed from the disk.
        """
        names = list(names)
        with self._writing:
            gone = self._unqueue(names)
            gone |= self._file.erase(names)
        self._want_checkpoint()
        return gone

    def forget_owner(self, owner: bytes) -> set[bytes]:
        """Drop all entries of an owner's hash. As `forget`."""
        with self._writing:
            with self._condition:
                queued = [name for name in self._queue if name.startswith(owner)]
            gone = self._unqueue(queued)
            gone |= self._file.erase_owner(owner)
        self._want_checkpoint()
        return gone

    def erase_forgotten(self) -> bool:
        """As `CacheFile.erase_forgotten`, while nothing is written."""
        with self._writing:
            return self._file.erase_forgotten()

    def flush(self) -> None:
        """Write all that is queued, on this thread, and empty the log."""
        self._write(with_uses=True)
        self._file.checkpoint()

    def stats(self) -> FileStats:
        """State of the file."""
        return self._file.stats()

    def close(self) -> None:
        """Write all that is queued and let go of the file. Safe to call twice."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()
        self._write(with_uses=True)
        self._file.close()

    # ---- inside ----

    def _unqueue(self, names: Iterable[bytes]) -> set[bytes]:
        with self._condition:
            self._used.difference_update(names)
            return {name for name in names if self._queue.pop(name, None) is not None}

    def _want_checkpoint(self) -> None:
        with self._condition:
            self._checkpoint_wanted = self._checkpoint_at_once = True
            self._condition.notify()

    def _run(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        except OSError:
            _log.warning("embedding.cache_priority_not_lowered")
        while self._wait_for_work():
            try:
                if self._write_is_due:
                    self._write(with_uses=time.monotonic() - self._uses_written > _USES_PERIOD_S)
                self._checkpoint_if_wanted()
                self._file.learn_names()
            except Exception as error:
                # A bug here must cost no more than the entries in hand.
                _log.error("embedding.cache_write_raised", error_type=type(error).__name__)

    def _wait_for_work(self) -> bool:
        """Wait for entries and then for some more; False when closing."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._closing or self._queue or self._checkpoint_wanted
            )
            self._condition.wait_for(
                lambda: (
                    self._closing
                    or self._checkpoint_at_once
                    or len(self._queue) >= QUEUE_ENTRIES_EARLY
                ),
                self._delay_s,
            )
            # A log to be emptied is no reason to write what has not waited for others yet.
            self._write_is_due = (
                not self._checkpoint_at_once or len(self._queue) >= QUEUE_ENTRIES_EARLY
            )
            return not self._closing

    def _write(self, *, with_uses: bool) -> None:
        with self._writing:
            with self._condition:
                values, self._queue = self._queue, {}
                used: set[bytes] = set()
                if with_uses:
                    used, self._used = self._used, set()
                    self._uses_written = time.monotonic()
            if values or used:
                self._file.write(values, used)

    def _checkpoint_if_wanted(self) -> None:
        with self._condition:
            wanted, self._checkpoint_wanted = self._checkpoint_wanted, False
            self._checkpoint_at_once = False
        if wanted and not self._file.checkpoint():
            self._checkpoint_wanted = True  # a reader was in the way: again after a while
