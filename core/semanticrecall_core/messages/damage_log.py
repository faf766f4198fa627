"""What was found damaged since the start: logged once, counted once, however often it is met."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from ..types.values import PendingRow

KNOWN_MAX = 100_000
"""Rows that are remembered; damage of others is counted whenever it is met."""

_LOGGED_AT_ONCE_MAX = 100
_PAGES_LOGGED_EVERY_S = 10.0
_EVENTS = {
    "message": "store_row_corrupt",
    "vector": "store_vectors_corrupt",
    "words": "store_analyses_corrupt",
}
_log = structlog.get_logger(__name__)


class DamageLog:
    """Thread-safe. Kinds are "message", "vector", "words", "page" and "mark"."""

    def __init__(self, marks: int = 0) -> None:
        """Nothing is damaged yet, but for so many of the two marks of MARK, which are logged."""
        self._lock = threading.Lock()
        self._known: set[tuple[str, int]] = set()
        self._counts: Counter[str] = Counter(mark=marks)
        self._page_logged = 0.0
        self._requeued: Callable[[list[PendingRow]], None] = _nobody

    def tell_requeued(self, listener: Callable[[list[PendingRow]], None]) -> None:
        """Tell of messages that are to be embedded again, on the writer thread."""
        self._requeued = listener

    def requeued(self, rows: list[PendingRow]) -> None:
        """Damaged vectors of these messages are gone, and they wait to be embedded."""
        if rows:
            self._requeued(rows)

    def found(self, kind: str, seqs: Iterable[int]) -> None:
        """What these messages have of this kind is damaged, and was not served."""
        with self._lock:
            new = [seq for seq in seqs if (kind, seq) not in self._known]
            self._counts[kind] += len(new)
            if len(self._known) + len(new) <= KNOWN_MAX:
                self._known.update((kind, seq) for seq in new)
        if new:
            _log.error(_EVENTS[kind], seqs=tuple(new[:_LOGGED_AT_ONCE_MAX]), rows=len(new))

    def page_found(self, reason: str) -> None:
        """A read met a page that cannot be read; which one SQLite does not say."""
        with self._lock:
            self._counts["page"] += 1
            now = time.monotonic()
            quiet = self._page_logged and now - self._page_logged < _PAGES_LOGGED_EVERY_S
            if not quiet:
                self._page_logged = now
        if not quiet:
            _log.error("store_page_damaged", reason=reason, reads=self._counts["page"])

    def known(self, kind: str) -> list[int]:
        """The messages of which something of this kind is known to be damaged, and not mended."""
        with self._lock:
            return sorted(seq for its_kind, seq in self._known if its_kind == kind)

    def mended(self) -> None:
        """All that is known was mended: what is found from here on is new damage."""
        with self._lock:
            self._known.clear()

    def written_anew(self, kind: str, seqs: Iterable[int]) -> None:
        """Of these messages, what was known of this kind is not there any more."""
        with self._lock:
            self._known.difference_update((kind, seq) for seq in seqs)

    def counts(self) -> dict[str, int]:
        """How much was found since the start, by kind."""
        with self._lock:
            kinds = dict.fromkeys((*_EVENTS, "page", "mark"), 0)
            return {**kinds, **self._counts}


def _nobody(_rows: list[PendingRow]) -> None:
    pass
