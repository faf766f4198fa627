"""The engine: every use case behind plain values, in the one right order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog

from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.engine.change_watch import ChangeWatch
from semanticrecall_core.engine.index import IndexTicket, IndexUseCase
from semanticrecall_core.engine.read_token import read_revision
from semanticrecall_core.engine.recall import RecallLimits, RecallUseCase
from semanticrecall_core.engine.snapshotting import Snapshotting
from semanticrecall_core.engine.verification import Verification, VerifyReport
from semanticrecall_core.engine.warming import Warming, WarmingLimits
from semanticrecall_core.types.errors import NotFoundError, UnavailableError
from semanticrecall_core.types.lexical import LexicalIndex
from semanticrecall_core.types.ports import Embedder, MessageStore, VectorIndex
from semanticrecall_core.types.recalling import RecallAnswer, RecallQuery
from semanticrecall_core.types.stats import (
    CacheStats,
    SchedulerStats,
    SnapshotStats,
    StoreStats,
)
from semanticrecall_core.types.values import (
    CallBudget,
    EmbeddedText,
    EmbedRole,
    Finding,
    ForgetTarget,
    IndexAnswer,
    ListQuery,
    MessageDraft,
    StoredMessage,
    ThreadSummary,
    Wait,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits that the engine itself keeps.

    Attributes:
        embed_threads: threads that embed pending messages, 1 or more.
        backlog_rows_max: messages that may wait to be embedded before Index is refused.
        answer_bytes_max: most bytes of text, payload and metadata in one Recall answer.
        filter_keys: keys that a filter may name though no message carries them yet.
        warming: how much is read ahead at the start.
        partitions_bytes_max: size of all partitions in memory beyond which none is read ahead.
        lexical_bytes_max: the same of their words.
        cores: that recalls may use together; with 2 or more, a query's words can be scored while
            it is embedded.
    """

    embed_threads: int = 2
    backlog_rows_max: int = 200_000
    answer_bytes_max: int = 3 * 1024 * 1024
    filter_keys: frozenset[str] = frozenset()
    warming: WarmingLimits = field(default_factory=WarmingLimits)
    partitions_bytes_max: int = 2 * 2**30
    lexical_bytes_max: int = 2**30
    cores: int = 1


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """How much a Forget removed, per place."""

    messages: int
    vectors: int
    threads: int
    cache_entries: int


class Engine:
    """Index, Recall and the housekeeping around them. Thread-safe.

    Raises the classes of `types.errors` and nothing else on purpose. Arguments are checked by the
    caller (the service): the engine checks only what it alone can know.
    """

    def __init__(
        self,
        store: MessageStore,
        embedder: Embedder,
        index: VectorIndex,
        limits: EngineLimits,
        snapshotting: Snapshotting | None = None,
        lexical: LexicalIndex | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            store, embedder, index: the record, the model and the vectors.
            limits: see there.
            snapshotting: keeps images of the partitions; None keeps none.
            lexical: the words of the partitions; without it recalls are MODE_DENSE.
        """
        self._store = store
        self._embedder = embedder
        self._index = index
        self._lexical = lexical
        self._backlog = EmbeddingBacklog(
            store, embedder, threads=limits.embed_threads, rows_max=limits.backlog_rows_max
        )
        self._snapshotting = snapshotting
        self._warming = Warming(
            store,
            index,
            embedder.dimensions,
            limits.warming,
            lambda: _has_room(index, lexical, limits),
            lexical,
        )
        self._recall = RecallUseCase(
            store,
            embedder,
            index,
            self._backlog,
            RecallLimits(limits.answer_bytes_max, limits.filter_keys, limits.cores),
            lexical,
        )
        self._verification = Verification(store, index, lexical)
        self._index_messages = IndexUseCase(store, embedder, self._backlog)
        store.subscribe(index)
        if snapshotting is not None:
            store.subscribe(snapshotting)
        if lexical is not None:
            store.subscribe_lexical(lexical)

    def start(self) -> None:
        """Recover: read the most recent resources, take up what is pending, begin to embed it.

        Takes a moment, however large the store is: the rest goes on beside the first calls.
        """
        warmed = self._warming.start()
        self._backlog.start()
        if self._snapshotting is not None:
            self._snapshotting.start()
        snapshots = self.snapshot_stats()
        _log.info(
            "engine_started",
            pending=self._backlog.total(),
            partitions_warmed=warmed,
            partitions_in_snapshots=0 if snapshots is None else snapshots.partitions,
        )

    def warm_up(self, text: str, budget: CallBudget) -> None:
        """Recall from nobody's memory, so that the first real recall is as fast as the next."""
        nobody = ""  # no resource has an empty id
        self._recall(RecallQuery(nobody, text), budget)
        self._index.resource_dropped(nobody)
        if self._lexical is not None:
            self._lexical.resource_dropped(nobody)
        self._embedder.forget_texts([text], nobody)

    def stop(self) -> None:
        """Finish what is in hand and close the record. Later calls raise UnavailableError."""
        self._warming.stop()
        self._recall.close()
        self._backlog.stop()
        if self._snapshotting is not None:
            self._snapshotting.stop()
        self._embedder.close()
        self._index.close()
        self._store.close()

    def healthy(self) -> bool:
        """The store accepts writes, and everything that embeds lives."""
        return self._store.healthy and self._backlog.healthy() and self._embedder.healthy

    # ---- the two calls that matter ----

    def recall(self, query: RecallQuery, budget: CallBudget) -> RecallAnswer:
        """Find the messages that matter to a query, with their neighbours; writes nothing.

        Among those that scope, filter, roles, times and exclusions allow, the hits are the top_k by
        relevance: in MODE_DENSE by cosine, and exact; `info.exact` says so in the other modes.
        """
        return self._recall(query, budget)

    def index(
        self, resource_id: str, drafts: Sequence[MessageDraft], wait: Wait, budget: CallBudget
    ) -> IndexAnswer:
        """Store drafts durably, then make them searchable.

        Raises only where nothing was stored. Once the messages are on disk the call answers, with
        PENDING for those that are not searchable when the budget ends.
        """
        return self._index_messages(resource_id, drafts, wait, budget)

    def begin_index(
        self, resource_id: str, drafts: Sequence[MessageDraft], wait: Wait, budget: CallBudget
    ) -> IndexTicket:
        """`index` up to the commit: who cannot spare a thread waits for the ticket's `ready`."""
        return self._index_messages.begin(resource_id, drafts, wait, budget)

    def when_readable(self, resource_id: str, read_token: str) -> Future[None]:
        """Ends when Recall sees what an Index call accepted; `recall` waits for the same.

        Its callbacks run on a thread that embeds: they must be quick and must not call the engine.
        Cancel it to wait no longer.

        Raises:
            InvalidArgumentError, FailedPreconditionError: the token is not one of this resource,
                or of this store.
        """
        revision = read_revision(read_token, self._store.store_id, resource_id)
        return self._backlog.when_embedded(resource_id, revision)

    # ---- housekeeping ----

    def forget(self, resource_id: str, target: ForgetTarget) -> ForgetReport:
        """Remove messages from every answer, and their vectors from the cache and from snapshots.

        All that before this returns, but for a snapshot file that cannot be removed from the disk:
        that is logged and tried again.

        Where it is not known which vectors those are, all of the resource leave the cache: they
        are all meant, they are too many to be named, or the messages are gone already, as after a
        call that was broken off in between.
        """
        outcome = self._store.forget(resource_id, target)
        if self._snapshotting is not None:
            self._snapshotting.forget(resource_id)
        if target.everything or outcome.texts_left_out:
            cache_entries = self._embedder.forget_owner(resource_id)
        elif not outcome.seqs:
            # Nothing of what was named is there to be counted.
            self._embedder.forget_owner(resource_id)
            cache_entries = 0
        else:
            cache_entries = self._embedder.forget_texts(outcome.texts, resource_id)
        return ForgetReport(
            messages=len(outcome.seqs),
            vectors=outcome.vectors,
            threads=outcome.threads,
            cache_entries=cache_entries,
        )

    def list_messages(self, query: ListQuery) -> list[StoredMessage]:
        """One page of history by (create_time, seq)."""
        return self._store.list_messages(query)

    def get_messages(self, resource_id: str, message_ids: Sequence[str]) -> list[StoredMessage]:
        """Messages in the order of their ids.

        Raises NotFoundError if one is not this resource's; it does not say which, nor whether it
        is somebody else's.
        """
        found = self._store.get(resource_id, message_ids)
        if len(found) != len(message_ids):
            raise NotFoundError("message_ids: not all of them are messages of this resource")
        return found

    def list_threads(
        self, resource_id: str, limit: int, after: tuple[int, int] | None
    ) -> list[ThreadSummary]:
        """Threads, most recently active first."""
        return self._store.list_threads(resource_id, limit, after)

    def transfer_thread(self, resource_id: str, thread_id: str, to_resource_id: str) -> int:
        """Give a thread to another resource; returns its messages.

        The first one's cache is dropped: the other could not forget what is in there.
        """
        moved = self._store.transfer_thread(resource_id, thread_id, to_resource_id)
        if self._snapshotting is not None:
            self._snapshotting.forget(resource_id)
        self._embedder.forget_owner(resource_id)
        return moved

    def embed(
        self, texts: Sequence[str], role: EmbedRole, budget: CallBudget
    ) -> list[EmbeddedText]:
        """One vector per text: that of its first window."""
        return [self._embedder.embed_window(text, role, budget) for text in texts]

    # ---- for the people who run it ----

    @property
    def store_id(self) -> str:
        """Identity of the data directory."""
        return self._store.store_id

    @property
    def index_identity(self) -> str:
        """Model, revision and dimension of the vectors."""
        return self._embedder.index_identity

    @property
    def device(self) -> str:
        """Where the model runs."""
        return self._embedder.device

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        return self._embedder.dimensions

    def stats(self, resource_id: str | None) -> StoreStats:
        """Counts of one resource, or of all."""
        return self._store.stats(resource_id)

    def cache_stats(self) -> CacheStats:
        """State of the embedding cache."""
        return self._embedder.cache_stats()

    def scheduler_stats(self) -> SchedulerStats:
        """What waits to be embedded, in whichever call, and what has run."""
        return self._embedder.scheduler_stats()

    def snapshot_stats(self) -> SnapshotStats | None:
        """What the snapshots hold; None where none are kept."""
        return None if self._snapshotting is None else self._snapshotting.stats()

    def create_snapshot(self, budget: CallBudget) -> SnapshotStats:
        """Write snapshots of everything that has none, or another one; returns what is there then.

        Raises DeadlineExceededError or CancelledError soon after the budget is over: the writing
        goes on in the background.
        """
        if self._snapshotting is None:
            raise UnavailableError("no snapshots are kept here")
        return self._snapshotting.create(budget)

    def snapshot_failures(self) -> int:
        """Snapshots that could not be written or removed since the start."""
        return 0 if self._snapshotting is None else self._snapshotting.failures()

    def partitions_loaded(self) -> int:
        """Partitions in memory."""
        return self._index.partitions_loaded()

    def lexical_partitions_loaded(self) -> int:
        """Partitions whose words are in memory."""
        return 0 if self._lexical is None else self._lexical.partitions_loaded()

    def lexical_bytes(self) -> int:
        """Bytes of memory that their words take."""
        return 0 if self._lexical is None else self._lexical.memory_bytes()

    def pending(self, resource_id: str | None = None) -> int:
        """Messages that wait to be embedded, of one resource or of all."""
        return self._backlog.total() if resource_id is None else self._backlog.pending(resource_id)

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with the id of every resource that a commit changed.

        It is called on the record's writer thread before whoever made the change is answered, and
        must be quick. Commits that ended before this returns may not be told.
        """
        self._store.subscribe(ChangeWatch(changed))

    def embed_failures(self) -> int:
        """Failed embedding attempts since the start."""
        return self._backlog.failures()

    def verify(
        self, resource_id: str | None, budget: CallBudget | None = None
    ) -> Iterator[Finding | VerifyReport]:
        """Compare the record with itself and with what is searchable; ends with a report.

        Raises DeadlineExceededError or CancelledError soon after the budget is over. None: no
        limit.
        """
        return self._verification(resource_id, budget)


def _has_room(index: VectorIndex, lexical: LexicalIndex | None, limits: EngineLimits) -> bool:
    """Whether another partition fits into memory; reading on would evict better ones."""
    if index.memory_bytes() >= 0.9 * limits.partitions_bytes_max:
        return False
    return lexical is None or lexical.memory_bytes() < 0.9 * limits.lexical_bytes_max
