"""Rows whose text waits to be embedded, and the threads that embed them.

Promise: every pending row of the record is in here until its vectors are stored, it is replaced,
or it is forgotten. A row whose embedding fails is tried again, after 0.5 s, 1 s, 2 s, ... up to
60 s, for as long as the process lives, and at the next start. After a start they are read page by
page beside the calls, however many they are: who waits for a resource waits for that, too.
Nothing is dropped silently.

The model can be exchanged for another one (`switch`): what is in hand is then embedded anew, and
whoever waits goes on to wait.

The threads run at the lowest priority of the operating system, so that a turn's Recall is never
held up by an import (measured: recall p50 under a saturating import 7.8 ms, against 60 to 220 ms
where both share one queue).
"""

from __future__ import annotations

import heapq
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from semanticrecall_core.engine.embedded_vectors import check_vectors
from semanticrecall_core.engine.gathering import Gathering
from semanticrecall_core.engine.low_priority import lower_priority
from semanticrecall_core.engine.waiting import NO_WAIT, ResourceWatch, WaitReport, Watch
from semanticrecall_core.types.errors import (
    CorruptDataError,
    EmbeddingFailedError,
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
)
from semanticrecall_core.types.ports import Embedder, MessageStore
from semanticrecall_core.types.values import CallBudget, EmbeddedText, PendingRow, VectorRecord

RETRY_FIRST_SECONDS = 0.5
RETRY_MAX_SECONDS = 60.0
BATCH_ROWS_MAX = 128
# So many windows are embedded between two commits; what is left of a batch then is for anybody.
BATCH_COMPUTED_MAX = 16
TEXTS_HELD_MAX = 4096
START_PAGE_ROWS = 1000
PAUSE_CHECK_SECONDS = 0.1

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    resource_id: str
    seq: int
    revision: int
    number: int
    text: str | None = None
    attempts: int = 0
    error: SemanticRecallError | None = None
    is_settled: bool = False
    watches: list[Watch] = field(default_factory=list)


class EmbeddingBacklog:
    """See the module."""

    def __init__(
        self, store: MessageStore, embedder: Embedder, *, threads: int, rows_max: int
    ) -> None:
        self._store = store
        self._embedder = embedder  # replaced as a whole: whoever embeds keeps to the one it took
        self._rows_max = rows_max
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._entries: dict[int, _Entry] = {}
        self._by_resource: dict[str, dict[int, _Entry]] = {}
        self._watched: dict[str, list[ResourceWatch]] = {}
        self._added = 0
        self._ready: deque[_Entry] = deque()
        self._later: list[tuple[float, int, _Entry]] = []
        self._gathering: Gathering[_Entry] = Gathering(BATCH_COMPUTED_MAX)
        self._in_hand = 0
        self._paused = False
        self._stopping = False
        self._stopped = threading.Event()
        self._read_to = 0
        self._reading = False
        self._unread: list[Watch] = []
        self._reader = threading.Thread(target=self._read_on, name="backlog-reader", daemon=True)
        self._failures = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"embed-{i}", daemon=True)
            for i in range(threads)
        ]

    # ---- life ----

    def start(self) -> None:
        """Begin to take up what the record says is pending, and to embed it."""
        try:
            self._reading = self._read_page()
        except CorruptDataError as error:  # a repair has it taken up
            _log.error("backlog_not_read", reason=error.reason)
        for thread in self._threads:
            thread.start()
        if self._reading:
            self._reader.start()

    def stop(self) -> None:
        """Finish the rows in hand, leave the others pending, end the threads."""
        self._stopped.set()
        with self._lock:
            self._stopping = True
            self._work.notify_all()
            for entry in self._entries.values():
                self._release(entry)
            self._end_reading()
        for thread in (*self._threads, self._reader):
            if thread.is_alive():
                thread.join()

    def healthy(self) -> bool:
        """Every thread lives."""
        return all(thread.is_alive() for thread in self._threads)

    # ---- another model ----

    @contextmanager
    def paused(self, given_up: Callable[[], bool]) -> Generator[None]:
        """Inside nothing is embedded and no vectors are stored; what comes in waits.

        Args:
            given_up: the caller does not wait any longer for what is in hand.
        """
        with self._lock:
            self._paused = True
            while self._in_hand and not self._stopping and not given_up():
                self._work.wait(PAUSE_CHECK_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._paused = False
                self._work.notify_all()

    def switch(self, embedder: Embedder) -> None:
        """Embed with another model from now on. Called at once when its vectors are searched."""
        self._embedder = embedder

    def take_up(self) -> None:
        """Take up rows that became pending without having been added, as after a switch."""
        after = 0
        while rows := self._store.pending(after, START_PAGE_ROWS):
            self.add(rows)
            after = rows[-1].seq

    def busy(self) -> bool:
        """Whether rows are embedded now, or could be."""
        return bool(self._in_hand or self._ready)

    # ---- callers ----

    def check_room(self, rows: int) -> None:
        """Raise ResourceExhaustedError if `rows` more would not fit. Called before the commit."""
        if len(self._entries) + rows > self._rows_max:
            raise ResourceExhaustedError(
                f"more than {self._rows_max} messages wait to be embedded; come back later",
                reason="BACKLOG_FULL",
                retry_after_ms=1000,
            )

    def add(self, rows: Iterable[PendingRow], *, gather: bool = False) -> None:
        """Take over rows that are on disk and pending; a newer revision replaces an older one.

        Args:
            gather: nobody waits for them, so that they wait for others (`Gathering`).
        """
        with self._lock:
            before = self._added
            began = self._gathering.until
            for row in rows:
                known = self._entries.get(row.seq)
                if (
                    known is not None
                    and known.resource_id == row.resource_id
                    and known.revision >= row.revision
                ):
                    continue
                self._added += 1
                entry = _Entry(row.resource_id, row.seq, row.revision, self._added)
                if self._held() < TEXTS_HELD_MAX:
                    entry.text = row.text
                if known is not None:
                    self._remove(known)
                self._entries[row.seq] = entry
                self._by_resource.setdefault(row.resource_id, {})[row.seq] = entry
                for waits in self._watched.get(row.resource_id, ()):
                    if waits.covers(entry.revision, entry.number):
                        waits.watch.expect(1)
                if gather:
                    self._gathering.add(entry)
                else:
                    self._ready.append(entry)
            if not gather:
                self._work.notify(self._added - before)
            elif self._gathering.is_full:
                self._begin_gathered()
            elif self._gathering.until < began:  # who waits for work is to wait so long at most
                self._work.notify()

    def _held(self) -> int:
        return len(self._ready) + len(self._later) + len(self._gathering)

    def pending(self, resource_id: str) -> int:
        """Rows of a resource that are known not to be searchable yet."""
        with self._lock:
            return len(self._by_resource.get(resource_id, ()))

    def total(self) -> int:
        """Rows of all resources that are known not to be searchable yet."""
        return len(self._entries)

    def failures(self) -> int:
        """Failed attempts since the start."""
        return self._failures

    def watch(self, rows: Mapping[int, int]) -> Watch:
        """Wait until each row (seq to revision) is searchable, gone, or has failed once."""
        if not rows:
            return NO_WAIT
        watch = Watch()
        with self._lock:
            for seq, revision in rows.items() if not self._stopping else ():
                entry = self._entries.get(seq)
                if entry and entry.revision == revision and not entry.is_settled:
                    entry.watches = [w for w in entry.watches if not w.done.cancelled()]
                    entry.watches.append(watch)
                    watch.expect(1)
                    self._begin_gathered(entry.resource_id)
            watch.end_if_empty()
        return watch

    def report(self, rows: Mapping[int, int], watch: Watch) -> WaitReport:
        """What became of the rows of a watch, which ends here."""
        with self._lock:
            watch.done.cancel()
            pending = {
                seq: entry.error
                for seq, revision in rows.items()
                if (entry := self._entries.get(seq)) and entry.revision == revision
            }
            return WaitReport(pending, watch.computed, watch.cached)

    def when_embedded(self, resource_id: str, revision: int) -> Future[None]:
        """Ends when all rows of a resource up to `revision` are searchable or have failed once.

        See `Watch.done` for what its callbacks may do.
        """
        watch = Watch()
        with self._lock:
            waits = ResourceWatch(revision, sys.maxsize if self._reading else self._added, watch)
            if self._reading:
                watch.expect(1)
                self._unread = [*(w for w in self._unread if not w.done.done()), watch]
            if not self._stopping:
                entries = self._by_resource.get(resource_id, {}).values()
                unsettled = (e for e in entries if not e.is_settled)
                watch.expect(sum(waits.covers(e.revision, e.number) for e in unsettled))
            watch.end_if_empty()
            if not watch.done.done():
                self._begin_gathered(resource_id)
                others = self._watched.get(resource_id, ())
                live = [other for other in others if not other.watch.done.done()]
                self._watched[resource_id] = [*live, waits]
        return watch.done

    def wait_for_resource(self, resource_id: str, revision: int, budget: CallBudget) -> None:
        """Wait for `when_embedded` on this thread.

        Raises DeadlineExceededError when the budget ends first.
        """
        done = self.when_embedded(resource_id, revision)
        try:
            done.result(min(budget.remaining(), threading.TIMEOUT_MAX))
        except TimeoutError:
            done.cancel()
            budget.check()

    def _begin_gathered(self, resource_id: str | None = None) -> None:
        """Embed what has gathered, of one resource or of all. Locked."""
        begun = self._gathering.take(resource_id)
        self._ready.extend(begun)
        self._work.notify(len(begun))

    # ---- threads ----

    def _read_page(self) -> bool:
        """Take up the next pending rows; False: there are no more."""
        rows = self._store.pending(self._read_to, START_PAGE_ROWS)
        if not rows:
            return False
        self._read_to = rows[-1].seq
        self.add(rows)
        return True

    def _read_on(self) -> None:
        lower_priority()
        while not self._stopping:
            started = time.monotonic()
            try:
                if not self._read_page():
                    break
                pause = time.monotonic() - started
            except SemanticRecallError as error:
                _log.error("backlog_not_read", reason=error.reason)
                if isinstance(error, CorruptDataError):
                    break
                pause = RETRY_FIRST_SECONDS
            self._stopped.wait(pause)
        with self._lock:
            self._end_reading()

    def _end_reading(self) -> None:
        """All that was pending is known, or nobody will read it any more."""
        self._reading = False
        waiting, self._unread = self._unread, []
        for watch in waiting:
            watch.count_down()

    def _run(self) -> None:
        lower_priority()
        while batch := self._take():
            try:
                self._embed(batch)
            except Exception as error:
                _log.error("embed_batch_failed", error_type=type(error).__name__, rows=len(batch))
                for entry in batch:
                    self._failed(entry, EmbeddingFailedError("the embedding could not be stored"))
            finally:
                with self._lock:
                    self._in_hand -= 1
                    if self._paused:
                        self._work.notify_all()

    def _take(self) -> list[_Entry]:
        """The next rows; waits for some; empty when stopping."""
        with self._lock:
            while True:
                if self._stopping:
                    return []
                now = time.monotonic()
                while self._later and self._later[0][0] <= now:
                    self._ready.append(heapq.heappop(self._later)[2])
                if self._gathering.until <= now:
                    self._begin_gathered()
                if self._ready and not self._paused:
                    share = -(-len(self._ready) // len(self._threads))
                    count = min(share, BATCH_ROWS_MAX)
                    taken = [self._ready.popleft() for _ in range(count)]
                    live = [e for e in taken if self._entries.get(e.seq) is e]
                    if live:
                        self._in_hand += 1
                        return live
                    continue
                due = min(self._gathering.until, self._later[0][0] if self._later else math.inf)
                self._work.wait(None if due == math.inf else due - now)

    def _embed(self, batch: list[_Entry]) -> None:
        done: list[tuple[_Entry, EmbeddedText]] = []
        embedder = self._embedder
        computed = 0
        budget = self._budget()
        for position, entry in enumerate(batch):
            if computed >= BATCH_COMPUTED_MAX:
                self._give_back(batch[position:])
                break
            if entry.text is None:
                entry.text = self._read_text(entry)
            if entry.text is None:
                self._came_too_late(entry)
                self._finished(entry, None)
                continue
            try:
                embedded = embedder.embed_passage(entry.text, budget, entry.resource_id)
                computed += embedded.computed
                check_vectors(embedded, embedder.dimensions)
                done.append((entry, embedded))
            except SemanticRecallError as error:
                self._failed(entry, error)
            except Exception as error:
                # A bug for one text must not hold up the others of its batch.
                _log.error("embed_raised", seq=entry.seq, error_type=type(error).__name__)
                self._failed(entry, EmbeddingFailedError("the model failed on this text"))
        if done:
            self._store_vectors(done, embedder)

    def _give_back(self, entries: list[_Entry]) -> None:
        """Let others have what was taken and not begun."""
        with self._lock:
            self._ready.extendleft(reversed(entries))
            self._work.notify(len(entries))

    def _store_vectors(self, done: list[tuple[_Entry, EmbeddedText]], embedder: Embedder) -> None:
        records = [
            VectorRecord(entry.resource_id, entry.seq, entry.revision, embedded.vectors)
            for entry, embedded in done
        ]
        try:
            stored = self._store.put_vectors(records, embedder.generation)
        except SemanticRecallError as error:
            for entry, _ in done:
                self._failed(entry, error)
            return
        if self._embedder is not embedder:  # whether they were stored in time is not known
            self._give_back([entry for entry, _ in done])
            return
        for (entry, embedded), accepted in zip(done, stored, strict=True):
            if not accepted:
                self._came_too_late(entry)
            self._finished(entry, embedded)

    def _came_too_late(self, entry: _Entry) -> None:
        """The row was replaced, forgotten or moved while its text was embedded.

        Its text leaves the cache again (it may just have been forgotten), and a row that is still
        pending, now as another revision or another resource's, is taken up.
        """
        if entry.text is not None:
            self._embedder.forget_texts((entry.text,), entry.resource_id)
        rows = self._store.pending(entry.seq - 1, 1)
        if rows and rows[0].seq == entry.seq:
            self.add(rows)

    def _budget(self) -> CallBudget:
        return CallBudget(float("inf"), lambda: self._stopping)

    def _read_text(self, entry: _Entry) -> str | None:
        rows = self._store.pending(entry.seq - 1, 1)
        if rows and rows[0].seq == entry.seq and rows[0].revision == entry.revision:
            return rows[0].text
        return None

    def _finished(self, entry: _Entry, embedded: EmbeddedText | None) -> None:
        with self._lock:
            if embedded is not None:
                for watch in entry.watches:
                    watch.computed += embedded.computed
                    watch.cached += embedded.cached
            self._remove(entry)

    def _failed(self, entry: _Entry, error: SemanticRecallError) -> None:
        with self._lock:
            if self._entries.get(entry.seq) is not entry or self._stopping:
                self._release(entry)
                return
            entry.attempts += 1
            entry.error = error
            self._failures += 1
            delay = min(RETRY_FIRST_SECONDS * 2 ** min(entry.attempts - 1, 16), RETRY_MAX_SECONDS)
            heapq.heappush(self._later, (time.monotonic() + delay, entry.number, entry))
            self._release(entry)
            self._work.notify()
        level = _log.error if isinstance(error, UnavailableError) else _log.warning
        level("embed_failed", seq=entry.seq, attempts=entry.attempts, reason=error.reason)

    def _remove(self, entry: _Entry) -> None:
        if self._entries.get(entry.seq) is entry:
            del self._entries[entry.seq]
        rows = self._by_resource.get(entry.resource_id)
        if rows is not None and rows.get(entry.seq) is entry:
            del rows[entry.seq]
            if not rows:
                del self._by_resource[entry.resource_id]
        self._release(entry)

    def _release(self, entry: _Entry) -> None:
        """Nobody waits for this row any more."""
        watches, entry.watches = entry.watches, []
        for watch in watches:
            watch.count_down()
        if entry.is_settled:
            return
        entry.is_settled = True
        waiting = self._watched.pop(entry.resource_id, None)
        if waiting is None:
            return
        for waits in waiting:
            if waits.covers(entry.revision, entry.number):
                waits.watch.count_down()
        live = [waits for waits in waiting if not waits.watch.done.done()]
        if live:
            self._watched[entry.resource_id] = live
