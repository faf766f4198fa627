"""The writer thread: many callers, one commit.

Callers hand in operations and wait. The thread takes all that wait (up to a limit), runs each in a
savepoint of its own inside one transaction, commits once, moves the high-water mark, tells the
listeners in commit order, and only then answers the callers.

Promises:
  - A caller whose budget is over before its operation begins is answered and nothing happens. Once
    it has begun it is never given up half way: the caller waits for the commit.
  - An operation that fails leaves no trace and harms no other of its batch.
  - When a commit fails to reach the disk, nothing is acknowledged until the database was opened
    anew, its whole log was copied into the file and synced, and a probe commit succeeded. SQLite
    itself would go on, although the kernel has then dropped the pages it could not write.
  - When the thread ends for any reason, every caller is answered and later ones are refused.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

import apsw
import structlog

from ..encryption.checksum_layer import is_page_damage
from ..types.errors import ResourceExhaustedError, SemanticRecallError, UnavailableError
from ..types.lexical import LexicalListener
from ..types.ports import CommitListener
from ..types.values import CallBudget
from .connection import is_over_limit, translated

if TYPE_CHECKING:
    from .salvage import Salvaged, SalvageOf

T = TypeVar("T")
Notice = Callable[[CommitListener], None]
LexicalNotice = Callable[[LexicalListener], None]

_BATCH_OPERATIONS_MAX = 256
_BATCH_BYTES_MAX = 32 << 20
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What an operation did.

    Attributes:
        result: the caller's answer.
        changed: something was written; False costs no commit.
        notices: what each listener is told, in order.
        lexical_notices: what each lexical listener is told, in order.
        resources: those that changed; each listener is told of them after all notices.
        next_operation: queued once this one is on disk; nobody waits for it.
        committed: called once this one is on disk, before anybody is told of later ones.
    """

    result: T
    changed: bool = True
    notices: tuple[Notice, ...] = ()
    lexical_notices: tuple[LexicalNotice, ...] = ()
    resources: tuple[str, ...] = ()
    next_operation: Callable[[apsw.Connection, int], Change[None]] | None = None
    committed: Callable[[], None] | None = None


Operation = Callable[[apsw.Connection, int], Change[T]]


class Journal(Protocol):
    """The database as the writer thread sees it (journal.py)."""

    @property
    def revision(self) -> int:
        """The last durable revision."""
        ...

    @property
    def trusted(self) -> bool:
        """False from a failed sync until the database was verified anew. Any thread may ask."""
        ...

    def begin(self) -> apsw.Connection:
        """Start a transaction; SemanticRecallError where the database cannot be used now."""
        ...

    def commit(self, revision: int) -> None:
        """Make the transaction durable as this revision."""
        ...

    def rollback(self) -> None:
        """Undo the transaction, if there is one."""
        ...

    def distrust(self) -> None:
        """Open and verify anew before the next transaction."""
        ...

    def make_room(self) -> None:
        """Free what can be freed on a full disk."""
        ...

    def tend(self, idle_s: float) -> float | None:
        """Housekeeping after `idle_s` without work; returns when to be called again."""
        ...

    def empty_log(self) -> bool:
        """Copy the log into the file and cut it to nothing; False where a reader is in the way."""
        ...

    def write_anew(self) -> None:
        """Write every page anew, so that none holds what is not in a table."""
        ...

    def mend_file(
        self, salvage: SalvageOf, paused: Callable[[], AbstractContextManager[None]]
    ) -> Salvaged:
        """Write what can be believed into a new database, which takes the place of this one."""
        ...

    def close(self) -> None:
        """Close the database."""
        ...


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait for the writer thread."""

    operations_max: int = 4_096
    bytes_max: int = 256 << 20


class _Job:
    """One caller's operation on its way."""

    __slots__ = (
        "alone",
        "answered",
        "budget",
        "bytes",
        "change",
        "error",
        "finished",
        "frees_space",
        "operation",
    )

    def __init__(
        self,
        operation: Operation[object],
        budget: CallBudget | None,
        size_bytes: int,
        frees_space: bool,
    ) -> None:
        self.operation = operation
        self.budget = budget
        self.bytes = size_bytes
        self.frees_space = frees_space
        self.alone: Callable[[], object] | None = None
        self.change: Change[object] | None = None
        self.error: BaseException | None = None
        self.finished = False
        self.answered = threading.Lock()
        self.answered.acquire()

    def answer(self) -> None:
        self.finished = True
        self.answered.release()

    def fail(self, error: BaseException) -> None:
        self.change, self.error = None, error
        self.answer()


class GroupCommit:
    """Queue and writer thread over a journal."""

    def __init__(self, journal: Journal, limits: QueueLimits) -> None:
        """The thread starts at once."""
        self._journal = journal
        self._limits = limits
        self._listeners: list[CommitListener] = []
        self._lexical_listeners: list[LexicalListener] = []
        self._queue: deque[_Job] = deque()
        self._queued_bytes = 0
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether the thread lives, takes work, and trusts its database."""
        return (
            self._failure is None
            and not self._closing
            and self._thread.is_alive()
            and self._journal.trusted
        )

    def subscribe(self, listener: CommitListener) -> None:
        """Register a listener; they are told in the order they came."""
        self._listeners.append(listener)

    def subscribe_lexical(self, listener: LexicalListener) -> None:
        """Register a listener for words; they are told in the order they came."""
        self._lexical_listeners.append(listener)

    def submit(
        self,
        operation: Operation[T],
        budget: CallBudget | None = None,
        *,
        size_bytes: int = 0,
        frees_space: bool = False,
    ) -> T:
        """Run an operation; returns once its commit is on disk and the listeners were told.

        Args:
            operation: called on the writer thread with the connection and the revision it makes.
            budget: checked until the operation begins.
            size_bytes: what it roughly writes; bounds queue and batch.
            frees_space: may use the ballast on a full disk.

        Raises:
            ResourceExhaustedError: QUEUE_FULL or DISK_FULL.
            DeadlineExceededError, CancelledError: before it began.
            UnavailableError: closed, stopped, or the disk failed.
        """
        if budget is not None:
            budget.check()
        job = _Job(cast("Operation[object]", operation), budget, size_bytes, frees_space)
        return cast("T", self._answer_of(job))

    def caught_up(self, budget: CallBudget | None = None) -> None:
        """Return when the listeners were told of every commit up to now. Raises as `submit`."""
        self._alone(lambda: None, budget)

    def _answer_of(self, job: _Job) -> object:
        budget = job.budget
        self._enqueue(job)
        timeout = -1.0 if budget is None else min(budget.remaining(), threading.TIMEOUT_MAX)
        if not job.answered.acquire(timeout=timeout):
            if budget is not None and self._withdrawn(job):
                budget.check()
            job.answered.acquire()
        if job.error is not None:
            raise job.error
        return cast("Change[object]", job.change).result

    def post(self, operation: Operation[None]) -> None:
        """Queue an operation nobody waits for; dropped where the queue is full or closed."""
        try:
            self._enqueue(_Job(cast("Operation[object]", operation), None, 0, False))
        except SemanticRecallError:
            _log.warning("store_repair_dropped")

    def empty_log(self) -> bool:
        """Copy the log into the file and cut it to nothing, between two transactions.

        False where a reader is in the way. Raises UnavailableError where the database cannot be
        used now, and as `submit`.
        """
        return self._alone(self._journal.empty_log)

    def write_anew(self) -> None:
        """Write every page of the database anew; others who write wait. Raises as `empty_log`."""
        self._alone(self._journal.write_anew)

    def mend_file(
        self, salvage: SalvageOf, paused: Callable[[], AbstractContextManager[None]]
    ) -> Salvaged:
        """Put what can be believed of the database in its place; others who write wait.

        Args:
            salvage: reads the old one and fills the new one.
            paused: keeps readers away for the moment in which they change places.

        Raises as `empty_log`; where it raises, nothing has changed.
        """
        return self._alone(lambda: self._journal.mend_file(salvage, paused))

    def _alone(self, work: Callable[[], T], budget: CallBudget | None = None) -> T:
        job = _Job(_no_operation, budget, 0, False)
        job.alone = work
        return cast("T", self._answer_of(job))

    def close(self) -> None:
        """Finish what was accepted, refuse more, end the thread. Safe to call twice."""
        with self._mutex:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _enqueue(self, job: _Job) -> None:
        with self._mutex:
            if self._failure is not None:
                raise UnavailableError("the store stopped after a fault", reason="STORE_STOPPED")
            if self._closing:
                raise UnavailableError("the store is closed")
            full = len(self._queue) >= self._limits.operations_max or (
                self._queue and self._queued_bytes + job.bytes > self._limits.bytes_max
            )
            if full:
                raise ResourceExhaustedError("too many writes wait for the disk")
            self._queue.append(job)
            self._queued_bytes += job.bytes
            self._wake.notify()

    def _withdrawn(self, job: _Job) -> bool:
        """Take back a job that waits; False where it has been taken up."""
        with self._mutex:
            try:
                self._queue.remove(job)
            except ValueError:
                return False
            self._queued_bytes -= job.bytes
            return True

    def _run(self) -> None:
        batch: Sequence[_Job] = ()
        try:
            pause = self._journal.tend(0.0)
            idle_since = time.monotonic()
            while True:
                batch = self._take(pause)
                if batch:
                    self._process(batch)
                    batch = ()
                    idle_since = time.monotonic()
                elif self._closing:
                    break
                pause = self._journal.tend(time.monotonic() - idle_since)
        except BaseException as error:
            self._stop(error, batch)
        finally:
            self._journal.close()

    def _take(self, pause: float | None) -> list[_Job]:
        """What waits, up to the batch's limits; nothing after `pause` seconds or at the end."""
        with self._mutex:
            if not self._queue and not self._closing:
                self._wake.wait(pause)
            batch: list[_Job] = []
            total = 0
            while self._queue and len(batch) < _BATCH_OPERATIONS_MAX:
                if batch and total + self._queue[0].bytes > _BATCH_BYTES_MAX:
                    break
                if batch and (self._queue[0].alone or batch[0].alone):
                    break
                job = self._queue.popleft()
                total += job.bytes
                batch.append(job)
            self._queued_bytes -= total
            return batch

    def _stop(self, error: BaseException, batch: Sequence[_Job]) -> None:
        with self._mutex:
            self._failure = error
            waiting = [*batch, *self._queue]
            self._queue.clear()
            self._queued_bytes = 0
        _log.critical("store_writer_stopped", error=type(error).__name__, waiting=len(waiting))
        refusal = UnavailableError("the store stopped after a fault", reason="STORE_STOPPED")
        _fail_all([job for job in waiting if not job.finished], refusal)

    def _process(self, batch: Sequence[_Job], *, room_made: bool = False) -> None:
        """Commit a batch and answer every caller in it."""
        if batch[0].alone is not None:
            self._perform_alone(batch[0], batch[0].alone)
            return
        try:
            self._transact(batch)
        except apsw.FullError as error:
            self._journal.rollback()
            _log.error("store_disk_full", operations=len(batch))
            freeing = [] if room_made else [job for job in batch if job.frees_space]
            _fail_all([job for job in batch if job not in freeing], translated(error))
            if freeing:
                self._journal.make_room()
                self._process(freeing, room_made=True)
        except SemanticRecallError as error:
            self._journal.rollback()
            _fail_all(batch, error)
        except (apsw.Error, OSError, MemoryError) as error:
            if is_page_damage(error):
                self._journal.rollback()
                self._process_apart(batch, error)
                return
            _log.error("store_commit_failed", error=type(error).__name__, operations=len(batch))
            self._journal.rollback()
            self._journal.distrust()
            _fail_all(batch, translated(error))
        else:
            for job in batch:
                self._tell(job)
            for job in batch:
                job.answer()

    def _perform_alone(self, job: _Job, work: Callable[[], object]) -> None:
        """Do what needs the database for itself, outside of transactions."""
        try:
            job.change = Change(work(), changed=False)
        except SemanticRecallError as error:
            job.fail(error)
        except (apsw.Error, OSError, MemoryError) as error:
            self._journal.distrust()
            job.fail(translated(error))
        else:
            job.answer()

    def _process_apart(self, batch: Sequence[_Job], error: Exception) -> None:
        """One of a batch met a damaged page: it fails, and no other; the disk itself works.

        What it began is undone, and the database is as it was acknowledged.
        """
        if len(batch) == 1:
            _fail_all(batch, translated(error))
            return
        for job in batch:
            self._process([job])

    def _transact(self, batch: Sequence[_Job]) -> None:
        """Run the operations in one transaction; whatever this raises, nothing was done."""
        connection = self._journal.begin()
        revision = self._journal.revision
        try:
            for job in batch:
                revision += self._perform(connection, job, revision + 1)
            if revision == self._journal.revision:
                self._journal.rollback()
            else:
                self._journal.commit(revision)
        except apsw.IOError as error:
            if is_over_limit(error, connection):
                raise apsw.FullError from error
            raise

    def _perform(self, connection: apsw.Connection, job: _Job, revision: int) -> int:
        """Run one operation in its savepoint; 1 if it changed something."""
        job.change = job.error = None
        try:
            if job.budget is not None:
                job.budget.check()
        except SemanticRecallError as error:
            job.error = error
            return 0
        connection.execute("SAVEPOINT operation")
        try:
            job.change = job.operation(connection, revision)
        except (apsw.FullError, apsw.IOError, apsw.CorruptError):
            raise  # the transaction as a whole cannot be trusted
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO operation")
            connection.execute("RELEASE operation")
            foreign = isinstance(error, (apsw.Error, MemoryError))
            job.error = translated(error) if foreign else error
            return 0
        connection.execute("RELEASE operation")
        return int(job.change.changed)

    def _tell(self, job: _Job) -> None:
        if job.change is None:
            return
        for notice in job.change.notices:
            for listener in self._listeners:
                notice(listener)
        for lexical_notice in job.change.lexical_notices:
            for lexical_listener in self._lexical_listeners:
                lexical_notice(lexical_listener)
        for resource_id in job.change.resources:
            for listener in self._listeners:
                listener.resource_changed(resource_id)
        if job.change.committed is not None:
            job.change.committed()
        if job.change.next_operation is not None:
            self.post(job.change.next_operation)


def _no_operation(_connection: apsw.Connection, _revision: int) -> Change[object]:
    return Change(None, changed=False)


def _fail_all(jobs: Sequence[_Job], error: SemanticRecallError) -> None:
    for job in jobs:
        job.fail(copy.copy(error))  # each caller's traceback is its own
