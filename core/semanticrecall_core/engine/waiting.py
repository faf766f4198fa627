"""Waiting, without a thread, for rows to become searchable."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from semanticrecall_core.types.errors import SemanticRecallError


@dataclass(slots=True, eq=False)
class Watch:
    """Rows that somebody waits for, without a thread.

    Attributes:
        done: ends when each row is searchable, gone, or has failed once. Its callbacks run on the
            thread that embeds: they must be quick and must not come back here. Cancelled by who
            waits no longer.
        computed: windows embedded for these rows so far.
        cached: windows found in the cache.
    """

    done: Future[None] = field(default_factory=Future)
    computed: int = 0
    cached: int = 0
    _left: int = 0

    def expect(self, rows: int) -> None:
        """So many rows more."""
        self._left += rows

    def count_down(self) -> None:
        """One row less."""
        self._left -= 1
        self.end_if_empty()

    def end_if_empty(self) -> None:
        """End the wait if no row is left."""
        if self._left or self.done.done():
            return
        if self.done.set_running_or_notify_cancel():
            self.done.set_result(None)


NO_WAIT = Watch()
"""A wait for no rows, over from the beginning; everybody's."""
NO_WAIT.end_if_empty()


@dataclass(frozen=True, slots=True)
class ResourceWatch:
    """Waits for the rows of a resource up to a revision that were there when it came.

    Counted, not listed: a resource can have very many rows. `newest` is the number of the last row
    that counts; while the record is still read, rows that are met count as well.
    """

    revision: int
    newest: int
    watch: Watch

    def covers(self, revision: int, number: int) -> bool:
        """Whether a row of this revision and number counts."""
        return revision <= self.revision and number <= self.newest


@dataclass(frozen=True, slots=True)
class WaitReport:
    """What became of rows: those still pending, with the cause where one is known."""

    pending: dict[int, SemanticRecallError | None]
    computed: int
    cached: int
