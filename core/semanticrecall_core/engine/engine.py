"""The engine: every use case behind plain values, in the one right order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import structlog

from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.engine.change_watch import ChangeWatch
from semanticrecall_core.engine.forgetting import ForgetReport, Forgetting, Traces
from semanticrecall_core.engine.index import IndexTicket, IndexUseCase
from semanticrecall_core.engine.limits import EngineLimits
from semanticrecall_core.engine.model_exchange import ModelExchange
from semanticrecall_core.engine.purging import PurgeReport, Purging
from semanticrecall_core.engine.read_token import read_revision
from semanticrecall_core.engine.recall import RecallLimits, RecallUseCase
from semanticrecall_core.engine.retention import Retention
from semanticrecall_core.engine.saving import Saving
from semanticrecall_core.engine.serving import Bundle, ServedModel, Serving
from semanticrecall_core.engine.snapshotting import Snapshotting
from semanticrecall_core.engine.stored_vectors import StoredVectors
from semanticrecall_core.engine.verification import (
    Verification,
    VerifiedParts,
    VerifyEvent,
)
from semanticrecall_core.engine.warming import Warming
from semanticrecall_core.types.collections import VectorCollections
from semanticrecall_core.types.errors import NotFoundError, UnavailableError
from semanticrecall_core.types.generations import Embedding
from semanticrecall_core.types.given_vectors import GivenVectors
from semanticrecall_core.types.lexical import LexicalIndex
from semanticrecall_core.types.ports import Embedder, MessageStore, VectorIndex
from semanticrecall_core.types.recalling import RecallAnswer, RecallQuery
from semanticrecall_core.types.stats import (
    CacheStats,
    PurgeStats,
    SchedulerStats,
    SnapshotStats,
    StoreStats,
)
from semanticrecall_core.types.values import (
    CallBudget,
    EmbedRole,
    ForgetTarget,
    IndexAnswer,
    ListQuery,
    MessageDraft,
    StoredMessage,
    ThreadSummary,
    Wait,
)

_log = structlog.get_logger(__name__)


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
        self.saving: Saving | None = None
        """Snapshots of the whole store; set before `start`, None keeps none."""
        self.collections: VectorCollections | None = None
        """Named collections of vectors; set before `start`, None keeps none."""
        self._store = store
        self._lexical = lexical
        self._limits = limits
        self._backlog = EmbeddingBacklog(
            store, embedder, threads=limits.embed_threads, rows_max=limits.backlog_rows_max
        )
        self._serving = Serving(self._bundle(ServedModel(embedder, index, snapshotting)))
        self.vectors = StoredVectors(store, self._serving)
        self.exchange = ModelExchange(store, self._serving, self._backlog, self._bundle)
        """Another model in the place of the one that answers."""
        self._warming = Warming(
            store,
            index,
            embedder.dimensions,
            limits.warming,
            lambda: _has_room(index, lexical, limits),
            lexical,
        )
        self._verification = Verification(store, self._verified_parts)
        store.tell_requeued(self._backlog.add)
        self._index_messages = IndexUseCase(store, self._serving, self._backlog)
        self._purging = Purging(store, self._traces, limits.purging)
        self._forgetting = Forgetting(store, self._traces, self._purging)
        self._retention = Retention(store, self._forgetting.forget_rows, limits.retention)
        store.subscribe(self._serving)
        if lexical is not None:
            store.subscribe_lexical(lexical)

    def _bundle(self, model: ServedModel) -> Bundle:
        """Recalls over a model."""
        limits = self._limits
        recall = RecallUseCase(
            self._store,
            model.embedder,
            model.index,
            self._backlog,
            RecallLimits(limits.answer_bytes_max, limits.filter_keys, limits.cores),
            self._lexical,
        )
        return Bundle(model, recall)

    def start(self) -> None:
        """Recover: read the most recent resources, take up what is pending, begin to embed it.

        Takes a moment, however large the store is: the rest goes on beside the first calls.
        """
        if self.saving is not None:
            self.saving.start()
        warmed = self._warming.start()
        self._backlog.start()
        self.exchange.start()
        if (snapshotting := self._serving.model.snapshotting) is not None:
            snapshotting.start()
        if self.collections is not None:
            self.collections.tell_removed(self._purging.forgotten)
        self._purging.start()
        self._retention.start()
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
        self.recall(RecallQuery(nobody, text), budget)
        self._serving.model.index.resource_dropped(nobody)
        if self._lexical is not None:
            self._lexical.resource_dropped(nobody)
        self._serving.forget_texts([text], nobody)

    def stop(self) -> None:
        """Finish what is in hand and close the record. Later calls raise UnavailableError."""
        self._warming.stop()
        self._retention.stop()
        self._purging.stop()
        self.exchange.stop()
        self._backlog.stop()
        self._serving.close()
        self.exchange.close()
        if self.collections is not None:
            self.collections.close()
        self._store.close()

    def _verified_parts(self) -> VerifiedParts:
        """What is compared with the record now."""
        model = self._serving.model
        return VerifiedParts(
            model.index,
            self._lexical,
            model.snapshotting,
            self.saving,
            model.embedder.dimensions,
            self.recall,
            self.take_up_pending,
            self.collections,
        )

    def _traces(self) -> Traces:
        """What holds something of messages now, for those who make it forget them."""
        return Traces(self._serving.embedders(), self._serving, self.saving, self.collections)

    def healthy(self) -> bool:
        """The store accepts writes, and everything that embeds lives."""
        embedder = self._serving.model.embedder
        return self._store.healthy and self._backlog.healthy() and embedder.healthy

    # ---- the two calls that matter ----

    def recall(self, query: RecallQuery, budget: CallBudget) -> RecallAnswer:
        """Find the messages that matter to a query, with their neighbours; writes nothing.

        Among those that scope, filter, roles, times and exclusions allow, the hits are the top_k by
        relevance: in MODE_DENSE by cosine, and exact; `info.exact` says so in the other modes.
        """
        if query.read_token:
            # Before a model is chosen: what it waits for may be embedded by the next one.
            revision = read_revision(query.read_token, self._store.store_id, query.resource_id)
            self._backlog.wait_for_resource(query.resource_id, revision, budget)
        with self._serving.use() as bundle:
            return bundle.recall(query, budget)

    def index(
        self, resource_id: str, drafts: Sequence[MessageDraft], wait: Wait, budget: CallBudget
    ) -> IndexAnswer:
        """Store drafts durably, then make them searchable.

        Raises only where nothing was stored. Once the messages are on disk the call answers, with
        PENDING for those that are not searchable when the budget ends.
        """
        return self._index_messages(resource_id, drafts, wait, budget)

    def begin_index(
        self,
        resource_id: str,
        drafts: Sequence[MessageDraft],
        wait: Wait,
        budget: CallBudget,
        given: GivenVectors | None = None,
    ) -> IndexTicket:
        """`index` up to the commit: who cannot spare a thread waits for the ticket's `ready`.

        Vectors that are given need not be computed.
        """
        return self._index_messages.begin(resource_id, drafts, wait, budget, given)

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

    def forget(
        self,
        resource_id: str,
        target: ForgetTarget,
        budget: CallBudget | None = None,
        *,
        purge: bool = False,
    ) -> ForgetReport:
        """Remove messages from every answer, and what was made from them; see forgetting.py.

        Args:
            resource_id: whose.
            target: see there.
            budget: of the search for what a condition names, and of a purge; None: no limit.
            purge: return when nothing of them is left in the files either.
        """
        budget = budget or CallBudget(math.inf)
        return self._forgetting(resource_id, target, budget, purge=purge)

    def purge(self, budget: CallBudget) -> PurgeReport:
        """Remove from the files what was forgotten; see `Purging.purge`."""
        return self._purging.purge(budget)

    def purge_stats(self) -> PurgeStats:
        """What purges did, and whether there is something to do."""
        return self._purging.stats()

    def expired(self) -> int:
        """Messages that the retention has forgotten since the start."""
        return self._retention.expired()

    def retention_failures(self) -> int:
        """Looks for what is to expire that failed since the start."""
        return self._retention.failures()

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
        self._serving.forget(resource_id)
        self._serving.forget_owner(resource_id)
        return moved

    def embed(self, texts: Sequence[str], role: EmbedRole, budget: CallBudget) -> Embedding:
        """One vector per text, that of its first window, all by one model."""
        with self._serving.use() as bundle:
            embedder = bundle.model.embedder
            embedded = tuple(embedder.embed_window(text, role, budget) for text in texts)
            return Embedding(embedded, embedder.dimensions, embedder.index_identity)

    # ---- for the people who run it ----

    @property
    def store_id(self) -> str:
        """Identity of the data directory."""
        return self._store.store_id

    @property
    def index_identity(self) -> str:
        """Model, revision and dimension of the vectors."""
        return self._serving.model.embedder.index_identity

    @property
    def device(self) -> str:
        """Where the model runs."""
        return self._serving.model.embedder.device

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        return self._serving.model.embedder.dimensions

    def stats(self, resource_id: str | None) -> StoreStats:
        """Counts of one resource, or of all."""
        return self._store.stats(resource_id)

    def cache_stats(self) -> CacheStats:
        """State of the embedding cache."""
        return self._serving.model.embedder.cache_stats()

    def scheduler_stats(self) -> SchedulerStats:
        """What waits to be embedded, in whichever call, and what has run."""
        return self._serving.model.embedder.scheduler_stats()

    def snapshot_stats(self) -> SnapshotStats | None:
        """What the snapshots hold; None where none are kept."""
        snapshotting = self._serving.model.snapshotting
        return None if snapshotting is None else snapshotting.stats()

    def create_snapshot(self, budget: CallBudget) -> SnapshotStats:
        """Write snapshots of everything that has none, or another one; returns what is there then.

        Raises DeadlineExceededError or CancelledError soon after the budget is over: the writing
        goes on in the background.
        """
        if (snapshotting := self._serving.model.snapshotting) is None:
            raise UnavailableError("no snapshots are kept here")
        return snapshotting.create(budget)

    def snapshot_failures(self) -> int:
        """Snapshots that could not be written or removed since the start."""
        snapshotting = self._serving.model.snapshotting
        return 0 if snapshotting is None else snapshotting.failures()

    def partitions_loaded(self) -> int:
        """Partitions in memory."""
        return self._serving.model.index.partitions_loaded()

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

    def take_up_pending(self) -> None:
        """Have the messages embedded that a restore brought without vectors."""
        self._backlog.take_up()

    # ---- failures and damage ----

    def embed_failures(self) -> int:
        """Failed embedding attempts since the start."""
        return self._backlog.failures()

    def verify(
        self,
        resource_id: str | None,
        budget: CallBudget | None = None,
        *,
        repair: bool = False,
    ) -> Iterator[VerifyEvent]:
        """Compare the record with itself and with all that was made from it; ends with a report.

        Args:
            resource_id: this one alone; None is everything.
            budget: raises DeadlineExceededError or CancelledError soon after it is over. None: no
                limit.
            repair: mend what is found; see verification.py. UnavailableError (REPAIR_RUNNING)
                beside another one.
        """
        return self._verification(resource_id, budget, repair=repair)

    def damaged(self) -> dict[str, int]:
        """How much was found damaged since the start, by kind.

        See `RecordCare.counts` and `SavedSnapshots.damaged`; "collection" are rows and pages of
        collections.
        """
        saved = {} if self.saving is None else self.saving.damaged()
        own = {} if self.collections is None else {"collection": self.collections.damaged()}
        return {**self._store.care.counts(), **saved, **own}


def _has_room(index: VectorIndex, lexical: LexicalIndex | None, limits: EngineLimits) -> bool:
    """Whether another partition fits into memory; reading on would evict better ones."""
    if index.memory_bytes() >= 0.9 * limits.partitions_bytes_max:
        return False
    return lexical is None or lexical.memory_bytes() < 0.9 * limits.lexical_bytes_max
