"""Making all vectors anew with another model, while the present one answers.

Promises:
  - Until the next model has every message that is searchable, the present one answers; then the
    next one does, at once, from one commit of the record on. No answer is of both.
  - What has been made stays: after a restart, however the process ended, the next call goes on with
    what lacks. Edits and new messages are covered, those that come meanwhile too.
  - It gives way: its threads have the lowest priority, and pause while messages wait to be embedded
    by the present model.
  - A message that the next model cannot embed does not hold up the others: it is pending
    afterwards, and tried again as any. If the model fails on many, nothing is switched.
  - Nothing of the former model stays: its vectors are deleted a few at a time, after a restart too.

In the end, for as long as it takes to embed a few messages, nothing is embedded by the present
model: what comes in meanwhile waits a moment, and is embedded by the next one. Where that takes too
long the present one goes on, and the end is tried again later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import structlog

from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.engine.embedded_vectors import check_vectors
from semanticrecall_core.engine.low_priority import lower_priority
from semanticrecall_core.engine.serving import Bundle, ServedModel, Serving
from semanticrecall_core.types.errors import (
    EmbeddingFailedError,
    FailedPreconditionError,
    InvalidArgumentError,
    SemanticRecallError,
    UnavailableError,
)
from semanticrecall_core.types.generations import (
    GenerationVectors,
    LackingRows,
    ModelIdentity,
    ReembedProgress,
)
from semanticrecall_core.types.ports import Embedder, MessageStore
from semanticrecall_core.types.values import CallBudget, PendingRow, VectorQuery, VectorRecord

BATCH_ROWS = 64
BATCH_CHARS_MAX = 200_000
LAST_ROWS_MAX = 64
"""When a look at the whole record finds no more than these, the end begins."""

ROUNDS_MAX = 50
PAUSED_MAX_S = 2.0
"""So long at most nothing is embedded by the present model, at a time."""

ATTEMPTS = 3
ATTEMPT_PAUSE_S = 0.2
UNAVAILABLE_PAUSE_S = 0.5
GIVE_WAY_S = 0.02
GIVE_WAY_MAX_S = 0.25
"""A batch waits so long at most for the present model's own work."""

FAILED_FEW = 10
FAILED_SHARE_MAX = 0.01
DROP_ROWS = 256
DROP_PAUSE_SHARE = 3
"""Pauses between deletions, in times of the work."""

RESOURCES_WARMED_MAX = 1_000
CHECK_S = 0.5
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NextModel:
    """The model that is to take the place of the one that answers.

    Attributes:
        embedder: of the next model.
        assemble: all that is made of its vectors; nothing of it is started.
        has_room: whether another partition fits into memory, beside so many bytes of its own.
        discard_former: done after the other was closed: what it kept on disk goes.
    """

    embedder: Embedder
    assemble: Callable[[GenerationVectors], ServedModel]
    has_room: Callable[[int], bool]
    discard_former: Callable[[], None]

    @property
    def identity(self) -> ModelIdentity:
        """Its vectors'."""
        return ModelIdentity(self.embedder.generation, self.embedder.index_identity)


class UnusedVectors:
    """Deletes the vectors of former models, a few at a time; waits between for as long."""

    def __init__(self, store: MessageStore, stopped: threading.Event) -> None:
        """`stopped` breaks it off; the next start goes on."""
        self._store = store
        self._stopped = stopped

    def delete(self) -> None:
        """On the calling thread, until none is left. What fails is logged; the next start goes on.

        Raises nothing.
        """
        place: tuple[int, int] | None = (0, 0)
        try:
            while place is not None and not self._stopped.is_set():
                started = time.monotonic()
                place = self._store.drop_unused_vectors(place, DROP_ROWS)
                self._stopped.wait(DROP_PAUSE_SHARE * (time.monotonic() - started))
        except SemanticRecallError as error:
            _log.warning("former_vectors_not_deleted", reason=error.reason)


class Reembedding:
    """One background run at a time, that any number of callers follow. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        serving: Serving,
        backlog: EmbeddingBacklog,
        following: NextModel,
        bundle: Callable[[ServedModel], Bundle],
        switched: Callable[[], None],
    ) -> None:
        """Nothing runs yet.

        Args:
            store, serving, backlog: of the engine.
            following: the next model.
            bundle: recalls over a model.
            switched: called on the record's writer thread, once the next model answers.
        """
        self._store = store
        self._serving = serving
        self._backlog = backlog
        self._following = following
        self._bundle = bundle
        self._tell_switched = switched
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: SemanticRecallError | None = None
        self._failed: dict[int, int] = {}
        self._made: Bundle | None = None
        self._complete = False
        self._before = serving.model.embedder.index_identity
        self._done: int | None = None
        self._total = 0

    # ---- callers ----

    @property
    def running(self) -> bool:
        """Vectors are made, or those of the former model deleted."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    @property
    def complete(self) -> bool:
        """The next model answers."""
        return self._complete

    def embedded(self) -> int:
        """Messages that have vectors of the next model."""
        if self._done is None:
            self._count()
        return self._done or 0

    def follow(self, budget: CallBudget) -> Iterator[ReembedProgress]:
        """Begin, or join what runs; then how far it is, as often as asked, to the end.

        Never waits. The last has `complete` set.

        Raises:
            DeadlineExceededError, CancelledError: the budget is over; it goes on.
            SemanticRecallError: why it ended without the next model in place.
        """
        self._begin()
        self.embedded()
        while not self._complete:
            budget.check()
            with self._lock:
                failure, running = self._failure, self.running
            if self._complete:
                break
            if failure is not None:
                raise failure
            if not running or self._stopped.is_set():
                raise UnavailableError("the server is stopping; ask again when it is back")
            yield self._progress(complete=False)
        with suppress(SemanticRecallError):  # it is complete, whatever has become of the counts
            self._count()
        yield self._progress(complete=True)

    @property
    def index_identity(self) -> str:
        """The next model's."""
        return self._following.embedder.index_identity

    def close(self) -> None:
        """Let go of a model that was not begun with."""
        if self._made is None:
            self._following.embedder.close()

    def stop(self) -> None:
        """End it where it is."""
        self._stopped.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _progress(self, *, complete: bool) -> ReembedProgress:
        total = self._total
        done = min(self._done or 0, total)
        after = self._following.embedder.index_identity
        return ReembedProgress(done, total, self._before, after, complete)

    # ---- the run ----

    def _begin(self) -> None:
        with self._lock:
            if self._complete or self.running or self._stopped.is_set():
                return
            self._failure = None
            self._failed.clear()
            self._thread = threading.Thread(target=self._run, name="reembed", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        lower_priority()
        try:
            self._make_and_switch()
        except SemanticRecallError as error:
            _log.warning("reembed_ended", reason=error.reason)
            self._failure = error
        except Exception as error:
            _log.error("reembed_failed", error_type=type(error).__name__)
            self._failure = UnavailableError("making the vectors anew failed; see the log")
        if self._complete:
            self._clean_up()

    def _make_and_switch(self) -> None:
        vectors = self._vectors()
        bundle = self._made
        if bundle is None:
            bundle = self._made = self._bundle(self._following.assemble(vectors))
            self._serving.prepare(bundle)
        _log.info("reembed_began", before=self._before, after=self._following.identity.shown)
        embedder = self._following.embedder
        with ThreadPoolExecutor(
            max(1, embedder.passages_at_once), "reembed", initializer=lower_priority
        ) as threads:
            making = _Making(embedder, vectors, threads, self._stopped, self._failed)
            for _ in range(ROUNDS_MAX):
                if self._look_at_all(making, vectors) <= LAST_ROWS_MAX:
                    break
            self._check_failures()
            self._warm(bundle)
            while not self._finish(making, bundle, vectors):
                self._look_at_all(making, vectors)
        self._backlog.take_up()
        self._count()
        self._complete = True

    def _look_at_all(self, making: _Making, vectors: GenerationVectors) -> int:
        """Embed what lacks, from the first message to the last; returns how many there were."""
        self._count()
        found, place = 0, 0
        while True:
            self._give_way()
            lacking = vectors.lacking(place, BATCH_ROWS)
            found += self._make(making, lacking)
            if lacking.read_to is None:
                return found
            place = lacking.read_to

    def _make(self, making: _Making, lacking: LackingRows, until: float = float("inf")) -> int:
        """Embed these but those that failed; returns how many there were."""
        self._failed.update(dict.fromkeys(lacking.damaged, 0))
        rows = [row for row in lacking.rows if self._failed.get(row.seq) != row.revision]
        stored = making.make(rows, until)
        self._done = (self._done or 0) + stored
        self._check_stopped()
        return len(rows)

    def _finish(self, making: _Making, bundle: Bundle, vectors: GenerationVectors) -> bool:
        """Embed the last ones, while the present model embeds none, and switch.

        False: that took too long.
        """
        generation = self._following.embedder.generation
        with self._backlog.paused(self._stopped.is_set):
            self._check_stopped()
            until = time.monotonic() + PAUSED_MAX_S
            while lacking := self._store.serve(generation, tuple(self._failed), self._switched):
                rows = vectors.lacking_among(lacking[:BATCH_ROWS])
                self._make(making, rows, until)
                for resource_id in {row.resource_id for row in rows.rows}:
                    bundle.model.index.resource_dropped(resource_id)
                self._check_failures()
                if time.monotonic() >= until:
                    return False
        return True

    def _switched(self) -> None:
        """On the record's writer thread: from here on the next model answers."""
        self._serving.switch()
        self._backlog.switch(self._following.embedder)
        self._tell_switched()

    def _warm(self, bundle: Bundle) -> None:
        """Read the recent partitions, so that the first recalls need not."""
        model = bundle.model
        query = VectorQuery(np.eye(1, model.embedder.dimensions, dtype=np.float32)[0], top_k=1)
        for resource_id in self._store.recent_resources(RESOURCES_WARMED_MAX):
            self._check_stopped()
            if not self._following.has_room(model.index.memory_bytes()):
                return
            model.index.search(resource_id, query)

    def _clean_up(self) -> None:
        """Let go of the former model, its images and its vectors."""
        try:
            _log.info("reembed_complete", messages=self._done, pending=self._backlog.total())
            if self._retire_former():
                UnusedVectors(self._store, self._stopped).delete()
        except Exception as error:
            _log.error("former_model_not_closed", error_type=type(error).__name__)

    def _retire_former(self) -> bool:
        """Close the former model, once nobody uses it; False where the engine stops before."""
        former = self._serving.former
        if former is None:
            return True
        images, own = former.model.snapshotting, self._serving.model.snapshotting
        if images is not None:
            images.retire()
        while not self._serving.wait_until_unused(CHECK_S):
            if self._stopped.is_set():
                return False
        former.close()
        self._following.discard_former()
        self._serving.retired()
        if own is not None:
            own.forget_all()
            own.start()
        return True

    # ---- inside ----

    def _vectors(self) -> GenerationVectors:
        return self._store.vectors_of(self._following.identity)

    def _count(self) -> None:
        pending = self._store.stats(None).pending
        searchable = self._store.embedded(self._store.generation)
        self._done = self._store.embedded(self._following.embedder.generation)
        self._total = max(searchable + pending, self._done)

    def _give_way(self) -> None:
        """Let the present model have the processor for what waits for it, for a moment."""
        until = time.monotonic() + GIVE_WAY_MAX_S
        while self._backlog.busy() and time.monotonic() < until:
            if self._stopped.wait(GIVE_WAY_S):
                break
        self._check_stopped()

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise UnavailableError("the server is stopping; ask again when it is back")

    def _check_failures(self) -> None:
        if len(self._failed) > max(FAILED_FEW, FAILED_SHARE_MAX * self._total):
            raise FailedPreconditionError(
                f"the next model fails on {len(self._failed)} of {self._total} messages; the "
                "present one goes on to answer",
                reason="NEXT_MODEL_FAILS",
            )


class _Making:
    """Vectors of rows, on some threads."""

    def __init__(
        self,
        embedder: Embedder,
        vectors: GenerationVectors,
        threads: ThreadPoolExecutor,
        stopped: threading.Event,
        failed: dict[int, int],
    ) -> None:
        """`failed`: rows that cannot be embedded go there, seq -> revision."""
        self._embedder = embedder
        self._vectors = vectors
        self._threads = threads
        self._stopped = stopped
        self._failed = failed

    def make(self, rows: Sequence[PendingRow], until: float) -> int:
        """Embed and store, up to a time (of time.monotonic); returns how many were stored."""
        return sum(self._make(batch, until) for batch in _batches(rows))

    def _make(self, batch: Sequence[PendingRow], until: float) -> int:
        made = list(self._threads.map(self._record, batch, repeat(until)))
        pairs = [(row, record) for row, record in zip(batch, made, strict=True) if record]
        stored = self._vectors.put([record for _, record in pairs])
        for (row, _), accepted in zip(pairs, stored, strict=True):
            if not accepted and row.text is not None:  # changed meanwhile, perhaps forgotten
                self._embedder.forget_texts((row.text,), row.resource_id)
        return sum(stored)

    def _record(self, row: PendingRow, until: float) -> VectorRecord | None:
        """None for what was not embedded: it failed, or the time or all is over."""
        attempts = 0
        budget = CallBudget(until, self._stopped.is_set)
        while row.text is not None and not self._stopped.is_set() and budget.remaining() > 0:
            try:
                return self._embedded(row, row.text, budget)
            except (EmbeddingFailedError, InvalidArgumentError):
                attempts, pause_s = attempts + 1, ATTEMPT_PAUSE_S
            except SemanticRecallError as error:  # busy, or over
                if not self._embedder.healthy:
                    raise UnavailableError("the next model has stopped; restart") from error
                pause_s = UNAVAILABLE_PAUSE_S
            except Exception as error:
                # A bug for one text must not hold up the others.
                _log.error("embed_raised", seq=row.seq, error_type=type(error).__name__)
                attempts, pause_s = ATTEMPTS, 0.0
            if attempts == ATTEMPTS:
                _log.warning("reembed_row_failed", seq=row.seq)
                self._failed[row.seq] = row.revision
                return None
            self._stopped.wait(min(pause_s, max(0.0, budget.remaining())))
        return None

    def _embedded(self, row: PendingRow, text: str, budget: CallBudget) -> VectorRecord:
        embedded = self._embedder.embed_passage(text, budget, row.resource_id)
        check_vectors(embedded, self._embedder.dimensions)
        return VectorRecord(row.resource_id, row.seq, row.revision, embedded.vectors)


def _batches(rows: Sequence[PendingRow]) -> Iterator[Sequence[PendingRow]]:
    """In pieces of limited size: a long text has many vectors."""
    start, chars = 0, 0
    for place, row in enumerate(rows):
        chars += len(row.text or "")
        if chars >= BATCH_CHARS_MAX:
            yield rows[start : place + 1]
            start, chars = place + 1, 0
    if start < len(rows):
        yield rows[start:]
