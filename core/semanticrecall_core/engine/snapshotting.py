"""Snapshots in the background: when a partition's image is written anew, and when it must go.

Promises:
  - What is written is bounded: a resource is imaged again only when a tenth of its rows has changed
    (and not few), or when it has been left alone for a while after a twentieth has. A message is
    written about ten times on its way, however it came, and an import is not written while it runs.
  - After a Forget or a move, the images of that resource are gone from the disk before the caller
    is answered. Where that fails they are not used any more, and it is tried again until they are.
  - What a process forgot that ended before the images had gone is removed after the next start.
  - One thread of the lowest priority; it pauses as long as it works.

What happened before the process ended badly is not known here: whoever loads a partition tells how
many of its rows no image had (`rows_read`), and that counts as if they had changed just now. And
after a start every resource's images are compared with the record: one that has messages which the
record has not is forgotten.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import structlog

from semanticrecall_core.engine.low_priority import lower_priority
from semanticrecall_core.types.errors import SemanticRecallError, UnavailableError
from semanticrecall_core.types.generations import RecordedVectors
from semanticrecall_core.types.ports import SnapshotStore
from semanticrecall_core.types.stats import (
    SnapshotStats,
)
from semanticrecall_core.types.values import (
    CallBudget,
    PartitionImage,
    PartitionRows,
)

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn
    from semanticrecall_core.types.verifying import ImageCheck

RESOURCES_TRACKED_MAX = 200_000
MESSAGES_AT_ONCE = 2_000
RESOURCES_MAX = 10_000_000
FORGET_AT_ONCE = 64
REQUEST_CHECK_SECONDS = 0.1
GIVE_WAY_SECONDS = 0.05
GIVE_WAY_MAX = 100
COMPARE_PAUSE = 4
"""Pauses while images are compared with the record, in units of the work."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """When an image is written.

    Attributes:
        interval_s: how often it is looked for what is due; 0: nothing is ever written.
        rows_min: a resource of fewer rows is as quick to read from the record: no image.
        changed_rows_min, changed_share_min: due when so many rows have changed, and such a share.
        quiet_s, quiet_share_min: also due after so long without a change, with such a share.
        stop_seconds: how long `stop` may go on writing.
        rows_at_once: images of about so many rows become one file; bounds how long a Forget waits.
        mapped: an image that was written takes the place of the rows in memory.
    """

    interval_s: float = 60.0
    rows_min: int = 256
    changed_rows_min: int = 512
    changed_share_min: float = 0.1
    quiet_s: float = 300.0
    quiet_share_min: float = 0.05
    stop_seconds: float = 3.0
    rows_at_once: int = 65_536
    mapped: bool = False


class ImagedPartitions(Protocol):
    """The vector index as it is needed here."""

    def partition_image(self, resource_id: str, generation: str) -> PartitionImage | None:
        """The partition as it is in memory; None where it is not."""
        ...

    def image_of(self, resource_id: str, generation: str, rows: PartitionRows) -> PartitionImage:
        """Rows of the record as an image."""
        ...

    def reload(self, resource_id: str) -> bool:
        """Read a partition that is in memory anew, beside the one that serves."""
        ...


@dataclass(slots=True)
class _Changed:
    rows: int
    last: float


class Snapshotting:
    """A `CommitListener` that counts changes, and the thread that writes images of them."""

    def __init__(
        self,
        store: RecordedVectors,
        snapshots: SnapshotStore,
        partitions: ImagedPartitions,
        generation: str,
        plan: SnapshotPlan,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Subscribe it after the vector index.

        Args:
            store: the record, or a generation of its vectors.
            snapshots: closed when this stops.
            partitions: the vector index.
            generation: the embedder's.
            plan: when what is written.
            clock: seconds; tells how long ago something changed.
        """
        self._clock = clock
        self._store = store
        self._snapshots = snapshots
        self._partitions = partitions
        self._generation = generation
        self._plan = plan
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._requests: list[Future[None]] = []
        self._changed: dict[str, _Changed] = {}
        self._to_forget: set[str] = set()
        self._writing: set[str] = set()
        self._failures = 0
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    # ---- life ----

    def start(self) -> None:
        """Begin to write in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is worth it, within the plan's time, and end the thread."""
        self._end(self._plan.stop_seconds)
        self._snapshots.close()

    def retire(self) -> None:
        """End the thread and write nothing more: another one goes on over the same snapshots.

        `forget` works on. Requests that wait are answered with UnavailableError.
        """
        self._end(0.0)

    def _end(self, seconds: float) -> None:
        with self._lock:
            self._stop_at = time.monotonic() + seconds
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def create(self, budget: CallBudget) -> SnapshotStats:
        """Write images of everything that has none, or another one; returns what is there then.

        Raises:
            DeadlineExceededError, CancelledError: it goes on in the background.
            UnavailableError: the snapshots are closed, or the disk failed.
            ResourceExhaustedError: DISK_FULL.
        """
        done: Future[None] = Future()
        with self._lock:
            if self._stop_at is not None:
                raise UnavailableError("the snapshots are closed")
            self._requests.append(done)
        self._wake.set()
        while True:
            try:
                done.result(min(budget.remaining(), REQUEST_CHECK_SECONDS))
                return self.stats()
            except TimeoutError:
                budget.check()

    def stats(self) -> SnapshotStats:
        """What is on disk."""
        return self._snapshots.stats()

    def failures(self) -> int:
        """Writes and removals that failed since the start."""
        return self._failures

    # ---- what changes ----

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        """See CommitListener."""
        self.rows_changed(resource_id, len(rows.seqs))

    def vectors_removed(self, resource_id: str, seqs: IntColumn) -> None:
        """See CommitListener."""
        self.rows_changed(resource_id, len(seqs))

    def resource_dropped(self, resource_id: str) -> None:
        """See CommitListener. How much has changed is not told: enough."""
        self.rows_changed(resource_id, self._plan.changed_rows_min)

    def resource_changed(self, resource_id: str) -> None:
        """See CommitListener. Only vectors matter here."""

    def rows_read(self, resource_id: str, rows: int) -> None:
        """A load found so many rows in no image; see `PartitionLoader.tell_rows_read`."""
        if rows >= self._plan.rows_min:  # else there is nothing to be won
            self.rows_changed(resource_id, rows)

    def rows_changed(self, resource_id: str, rows: int) -> None:
        """So many rows of a resource are not as its image has them."""
        now = self._clock()
        with self._lock:
            known = self._changed.get(resource_id)
            if known is not None:
                known.rows += rows
                known.last = now
            elif len(self._changed) < RESOURCES_TRACKED_MAX:
                # Beyond that it is found by whoever loads the partition next.
                self._changed[resource_id] = _Changed(rows, now)

    def forget(self, resource_id: str) -> None:
        """Remove the images of a resource from the disk. What fails is logged and tried again."""
        with self._lock:
            # One that is read for a snapshot from now on has forgotten already.
            if resource_id not in self._writing and self._snapshots.rows_of(resource_id) is None:
                return
            self._to_forget.add(resource_id)
        if self._plan.mapped:
            # What is in memory is read anew from the record, so that nobody looks at the block.
            self._snapshots.withdraw([resource_id])
            self._reload(resource_id)
        try:
            self._forget_waiting()
        except SemanticRecallError as error:
            self._failed("snapshot_not_forgotten", error)
        if self._plan.mapped:
            self._wake.set()  # others may be mapped from a file that was rewritten

    def forget_all(self) -> None:
        """Remove every image there is: they are a former model's. Before `start`."""
        try:
            resources = sorted(self._snapshots.resources())
            for start in range(0, len(resources), FORGET_AT_ONCE):
                self._snapshots.forget(resources[start : start + FORGET_AT_ONCE])
        except SemanticRecallError as error:
            self._failed("snapshots_not_forgotten", error)

    # ---- Verify ----

    def examine(self, resource_id: str | None) -> Iterator[ImageCheck]:
        """See SnapshotStore.examine."""
        return self._snapshots.examine(resource_id)

    def forget_damaged_files(self) -> None:
        """Remove files of which nothing can be read. What fails is logged."""
        try:
            self._snapshots.forget([])
        except SemanticRecallError as error:
            self._failed("snapshot_not_forgotten", error)

    # ---- the thread ----

    def work(self) -> None:
        """Do all that is due now, on the calling thread; what fails is logged."""
        try:
            self._forget_waiting()
            self._answer_requests()
            if self._plan.mapped:
                self._map(self._snapshots.take_moved())
            if self._plan.interval_s:
                self._write(self._due(), self._plan.rows_min)
        except Exception as error:
            self._failed("snapshot_not_written", error)

    def _run(self) -> None:
        lower_priority()
        self._forget_unrecorded()
        last = False
        while not last:
            if not self._stopping():
                self._wake.wait(self._plan.interval_s or None)
            self._wake.clear()
            last = self._stopping()
            self.work()
        self._answer_requests()

    def _forget_unrecorded(self) -> None:
        """Forget images with messages that the record has not; what else is due goes first."""
        worked, forgotten = self._clock(), 0
        for resource_id in self._snapshots.resources():
            if self._stopping():
                break
            started = time.monotonic()
            try:
                if self._has_unrecorded(resource_id):
                    forgotten += 1
                    self.forget(resource_id)
                    self.rows_changed(resource_id, self._plan.changed_rows_min)
            except Exception as error:
                self._failed("snapshot_not_compared", error)
            overdue = 0 < self._plan.interval_s <= self._clock() - worked
            if self._wake.wait(COMPARE_PAUSE * (time.monotonic() - started)) or overdue:
                self._wake.clear()
                self.work()
                worked = self._clock()
        if forgotten:
            _log.info("snapshots_forgotten_after_start", partitions=forgotten)

    def _has_unrecorded(self, resource_id: str) -> bool:
        """Whether the disk has rows of messages that were forgotten, moved, or have no vector."""
        kept = self._snapshots.seqs_of(resource_id)
        return not bool(np.isin(kept, self._store.row_checksums(resource_id).seqs).all())

    def _answer_requests(self) -> None:
        with self._lock:
            requests, self._requests = self._requests, []
        if not requests:
            return
        try:
            self._write(self._all(), rows_min=1)
            if self._stopping():
                raise UnavailableError("the snapshots were closed before all was written")
        except SemanticRecallError as error:
            _answer(requests, error)
            raise
        except Exception:
            # Whatever it was is logged by who called; those who wait hear of it all the same.
            _answer(requests, UnavailableError("the snapshots could not be written"))
            raise
        _answer(requests, None)

    def _all(self) -> list[str]:
        """Resources without an image, or with one that is not known to be current."""
        imaged = self._snapshots.resources()
        everything = self._store.recent_resources(RESOURCES_MAX)
        with self._lock:
            wanted = [r for r in everything if r not in imaged or r in self._changed]
            return [r for r in wanted if r not in self._to_forget]

    def _stopping(self) -> bool:
        return self._stop_at is not None

    def _out_of_time(self) -> bool:
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    def _forget_waiting(self) -> None:
        with self._lock:
            waiting = sorted(self._to_forget)
        if waiting:
            self._snapshots.forget(waiting)
            with self._lock:
                self._to_forget.difference_update(waiting)

    def _due(self) -> list[str]:
        """Resources to be imaged now, the most changed first."""
        plan, now = self._plan, self._clock()
        with self._lock:  # for a moment: the record's writer counts changes under it
            all_changed = [
                (r, c.rows, c.last) for r, c in self._changed.items() if r not in self._to_forget
            ]
        found: list[tuple[int, str]] = []
        for resource_id, changed, last in all_changed:
            rows = self._snapshots.rows_of(resource_id) or 0
            if self._stopping() or now - last >= plan.quiet_s:
                due = changed >= plan.quiet_share_min * rows
            else:
                due = changed >= max(plan.changed_rows_min, plan.changed_share_min * rows)
            if due:
                found.append((-changed, resource_id))
        found.sort()
        return [resource_id for _, resource_id in found]

    def _write(self, due: Sequence[str], rows_min: int) -> None:
        """Write images of these, a file for every `rows_at_once` rows."""
        waiting = deque(due)
        given_way = 0
        while waiting and not self._out_of_time():
            taken: dict[str, int] = {}
            try:
                written = self._snapshots.write(self._images(waiting, taken, rows_min))
            except SemanticRecallError:
                for resource_id, rows in taken.items():
                    self.rows_changed(resource_id, rows)
                raise
            finally:
                with self._lock:
                    self._writing.clear()
            if not taken:
                given_way += 1
                if given_way > GIVE_WAY_MAX:
                    raise UnavailableError("a snapshot that is to be forgotten cannot be removed")
                self._stopped.wait(GIVE_WAY_SECONDS)
                continue
            _log.debug("snapshot_written", partitions=written)
            if self._plan.mapped:
                self._map([*taken, *self._snapshots.take_moved()])

    def _images(
        self, waiting: deque[str], taken: dict[str, int], rows_min: int
    ) -> Iterator[PartitionImage]:
        """Images of the next resources; how many changes each has goes to `taken`."""
        rows = 0
        while waiting and rows < self._plan.rows_at_once and not self._out_of_time():
            started = time.monotonic()
            with self._lock:
                if self._to_forget:  # who forgets waits for this file to be complete
                    return
                resource_id = waiting.popleft()
                self._writing.add(resource_id)
                changed = self._changed.pop(resource_id, None)
            # Counted before it is read: what changes meanwhile is counted once more.
            taken[resource_id] = 0 if changed is None else changed.rows
            try:
                image = self._image(resource_id, rows_min)
            except SemanticRecallError as error:
                self._failed("snapshot_not_read", error)
                continue
            if image is not None:
                rows += len(image.rows.seqs)
                yield image
            self._rest(started)

    def _image(self, resource_id: str, rows_min: int) -> PartitionImage | None:
        """The resource as it is now; None where it is too small to be worth it."""
        image = self._partitions.partition_image(resource_id, self._generation)
        if image is None:
            image = self._image_of_record(resource_id, rows_min)
        if image is None or len(image.rows.seqs) < rows_min:
            return None
        return image

    def _image_of_record(self, resource_id: str, rows_min: int) -> PartitionImage | None:
        """Read in slices: the record makes objects of each row, and recalls go on beside."""
        live = self._store.row_checksums(resource_id)
        if len(live.seqs) < rows_min:
            return None
        seqs = np.unique(live.seqs)
        pieces: list[PartitionRows] = []
        for start in range(0, len(seqs), MESSAGES_AT_ONCE):
            started = time.monotonic()
            chosen = seqs[start : start + MESSAGES_AT_ONCE]
            rows = self._store.load_rows(resource_id, chosen)
            if len(rows.seqs):
                pieces.append(rows)
            self._rest(started)
        if not pieces:
            return None
        names = PartitionRows.__slots__
        joined = {name: np.concatenate([getattr(p, name) for p in pieces]) for name in names}
        return self._partitions.image_of(resource_id, self._generation, PartitionRows(**joined))

    def _map(self, resource_ids: Sequence[str]) -> None:
        """Let the images take the place of the rows in memory."""
        for resource_id in resource_ids:
            if self._stopping():
                return
            started = time.monotonic()
            self._reload(resource_id)
            self._rest(started)

    def _reload(self, resource_id: str) -> None:
        try:
            self._partitions.reload(resource_id)
        except SemanticRecallError as error:
            self._failed("snapshot_not_mapped", error)

    def _rest(self, started: float) -> None:
        """As long as was worked, so that at most half of one core is used; not when stopping."""
        if not self._stopping():
            self._stopped.wait(time.monotonic() - started)

    def _failed(self, event: str, error: Exception) -> None:
        self._failures += 1
        reason = getattr(error, "reason", type(error).__name__)
        _log.warning(event, reason=reason)


def _answer(requests: Sequence[Future[None]], error: SemanticRecallError | None) -> None:
    for request in requests:
        if error is None:
            request.set_result(None)
        else:
            request.set_exception(error)
