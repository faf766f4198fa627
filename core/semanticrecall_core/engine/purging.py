"""Purge: what was forgotten leaves the files as well.

A Forget makes messages unreachable and overwrites them in the database. Until the database's log
was emptied, the log has them still, and so have snapshots that were saved before. A purge empties
the log of the record and that of the cache, and has those snapshots rewritten; then it is noted in
the record up to which change that is true; not where something lies beside the snapshots that
cannot be read as one of them and may hold it as well. Collections of vectors have a file of their
own, which knows by itself whether something is to be purged there.

One thread of the lowest priority. It purges when it is asked to, and by itself so that the bytes of
a Forget are gone `PurgePlan.interval_s` after it. What a process forgot that ended before its purge
is purged after the next start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from semanticrecall_core.engine.forgetting import Traces
from semanticrecall_core.engine.low_priority import lower_priority
from semanticrecall_core.types.errors import SemanticRecallError, UnavailableError
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.stats import PurgeStats
from semanticrecall_core.types.values import CallBudget

RUN_SECONDS_MAX = 3600.0
RETRY_SECONDS = 60.0
REQUEST_CHECK_SECONDS = 0.1
CACHE_RETRY_SECONDS = 0.02
NAMES_LOGGED_MAX = 10
STARTED_EARLY_SHARE = 0.5
"""Of the interval: a purge begins so early, since it takes its time."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """When it is purged.

    Attributes:
        interval_s: at the latest so long after a Forget; 0 only when asked.
    """

    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge did.

    Attributes:
        revision: all that was forgotten up to this change of the record has left the files.
        snapshots_rewritten: by name.
        snapshots_holding: what lies beside the snapshots and may hold it still, so that it cannot
            be said that the files are free of it; by name.
    """

    revision: int
    snapshots_rewritten: tuple[str, ...]
    snapshots_holding: tuple[str, ...] = ()


class Purging:
    """The use case and its thread. Thread-safe."""

    def __init__(self, store: MessageStore, traces: Callable[[], Traces], plan: PurgePlan) -> None:
        """Nothing is done before `start`.

        Args:
            store: the record.
            traces: what else holds something now.
            plan: when to purge.
        """
        self._store = store
        self._traces = traces
        self._plan = plan
        self._condition = threading.Condition()
        self._requests: list[Future[PurgeReport]] = []
        self._before: list[Callable[[], None]] = []
        self._forgetting: dict[object, int] = {}
        self._due_at: float | None = None  # time.monotonic()
        self._stopping = False
        self._runs = 0
        self._failures = 0
        self._failed_in_turn = 0
        self._thread = threading.Thread(target=self._run, name="purging", daemon=True)

    # ---- life ----

    def start(self) -> None:
        """Begin; what an earlier process forgot and did not purge is taken up at once."""
        if self._plan.interval_s and self.pending():
            with self._condition:
                self._due_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Break off what is going on and end the thread; the next start takes it up."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # ---- for Forget and for people ----

    @contextmanager
    def forgetting(self) -> Generator[None]:
        """Something is forgotten inside: what a purge meanwhile does is not all of it."""
        mark = object()
        with self._condition:
            self._forgetting[mark] = 0
        try:
            before = self._store.purge_state().forgotten_revision
            with self._condition:
                self._forgetting[mark] = before
            yield
        finally:
            with self._condition:
                del self._forgetting[mark]

    def forgotten(self) -> None:
        """Something may have been forgotten just now."""
        if not self._plan.interval_s or not self.pending():
            return
        with self._condition:
            if self._due_at is None:
                self._due_at = time.monotonic() + STARTED_EARLY_SHARE * self._plan.interval_s
                self._condition.notify_all()

    def before_each(self, work: Callable[[], None]) -> None:
        """Do this in every purge, before snapshots are rewritten; one that raises fails it."""
        self._before.append(work)

    def due_time_ns(self) -> int | None:
        """When what is forgotten now will be gone by itself; None where that never happens.

        At the latest: that it goes earlier, since others forgot before, is not for who asks.
        """
        with self._condition:
            due_at = self._due_at
        if due_at is None:
            return None
        left = due_at - time.monotonic() + (1 - STARTED_EARLY_SHARE) * self._plan.interval_s
        return time.time_ns() + int(max(self._plan.interval_s, left) * 1e9)

    def pending(self) -> bool:
        """Whether anything forgotten may still be in the files."""
        return self._store.purge_state().pending or self._collections_pending()

    def _collections_pending(self) -> bool:
        collections = self._traces().collections
        try:
            return collections is not None and collections.purge_pending()
        except SemanticRecallError:
            return False  # nothing can be purged there; who uses the file is told why

    def erased_revision(self) -> int | None:
        """All that was removed up to there has left the files; None: all that ever was."""
        state = self._store.purge_state()
        return state.erased_revision if state.pending else None

    def purge(self, budget: CallBudget) -> PurgeReport:
        """Purge all that was forgotten before this was called.

        Raises:
            DeadlineExceededError, CancelledError: it goes on in the background.
            UnavailableError: it is closed, or the disk failed.
            ResourceExhaustedError: DISK_FULL.
        """
        done: Future[PurgeReport] = Future()
        with self._condition:
            if self._stopping:
                raise UnavailableError("the store is closed")
            self._requests.append(done)
            self._condition.notify_all()
        while True:
            try:
                return done.result(min(budget.remaining(), REQUEST_CHECK_SECONDS))
            except TimeoutError:
                budget.check()

    def stats(self) -> PurgeStats:
        """What was done since the start, and whether there is something to do."""
        return PurgeStats(self._runs, self._failures, self.pending())

    # ---- the thread ----

    def _run(self) -> None:
        lower_priority()
        while True:
            with self._condition:
                while not (self._stopping or self._requests or self._seconds_left() == 0):
                    self._condition.wait(self._seconds_left())
                requests, self._requests = self._requests, []
                if self._stopping:
                    break
                # What is forgotten from now on is due later.
                self._due_at = None
            self._answer(requests)
        refusal = UnavailableError("the store is closed")
        for request in requests:
            request.set_exception(refusal)

    def _seconds_left(self) -> float | None:
        return None if self._due_at is None else max(0.0, self._due_at - time.monotonic())

    def _answer(self, requests: list[Future[PurgeReport]]) -> None:
        try:
            report = self._purge(CallBudget(time.monotonic() + RUN_SECONDS_MAX, self._is_stopping))
        except Exception as error:
            self._failures += 1
            reason = getattr(error, "reason", type(error).__name__)
            _log.warning("purge_failed", reason=reason)
            known = isinstance(error, SemanticRecallError)
            told = error if known else UnavailableError("the purge failed")
            for request in requests:
                request.set_exception(told)
            with self._condition:
                self._failed_in_turn += 1
                pause_s = RETRY_SECONDS * 2 ** (self._failed_in_turn - 1)
                if self._plan.interval_s and self._due_at is None:
                    self._due_at = time.monotonic() + min(pause_s, self._plan.interval_s)
            return
        if report.snapshots_holding:
            with self._condition:
                if self._plan.interval_s and self._due_at is None:
                    self._due_at = time.monotonic() + self._plan.interval_s
        for request in requests:
            request.set_result(report)

    def _is_stopping(self) -> bool:
        return self._stopping

    def _purge(self, budget: CallBudget) -> PurgeReport:
        started = time.monotonic()
        revision = self._store.purge_state().forgotten_revision
        with self._condition:
            # What is removed while this goes on may still be in a cache when that is erased.
            revision = min([revision, *self._forgetting.values()])
        self._store.erase(budget)
        for work in self._before:
            work()
        traces = self._traces()
        waits = threading.Event()
        for embedder in traces.embedders:
            while not embedder.erase_forgotten():
                budget.check()
                waits.wait(CACHE_RETRY_SECONDS)
        rewritten = () if traces.saved is None else traces.saved.rewrite(budget)
        holding = () if traces.saved is None else traces.saved.left_out()
        if holding:
            revision = self._store.purge_state().erased_revision
            _log.warning(
                "purge_incomplete",
                snapshots_left_out=len(holding),
                names=holding[:NAMES_LOGGED_MAX],
            )
        else:
            self._store.erased(revision)
        if traces.collections is not None:
            traces.collections.purge(budget)
        self._runs += 1
        self._failed_in_turn = 0
        _log.info(
            "purged",
            revision=revision,
            snapshots_rewritten=len(rewritten),
            ms=round(1000 * (time.monotonic() - started)),
        )
        return PurgeReport(revision, rewritten, holding)
