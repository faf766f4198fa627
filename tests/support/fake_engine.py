"""An engine that remembers what it was asked, blocks or fails on demand, and stores nothing.

For tests of the server alone: that it converts, limits, refuses, and maps errors. What it
answers are constants below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from semanticrecall_core.engine import ForgetReport, PurgeReport, VerifyReport
from semanticrecall_core.engine.verification import VerifyEvent
from semanticrecall_core.types.generations import Embedding, ReembedProgress
from semanticrecall_core.types.given_vectors import GivenVectors, VectorForm
from semanticrecall_core.types.recalling import (
    Excluded,
    GroupState,
    Hit,
    Mode,
    Parts,
    RecallAnswer,
    RecalledMessage,
    RecallInfo,
    RecallQuery,
)
from semanticrecall_core.types.stats import (
    CacheStats,
    PurgeStats,
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
    IndexResult,
    ListQuery,
    MessageDraft,
    PartitionRows,
    Role,
    Status,
    StoredMessage,
    ThreadSummary,
    Wait,
)
from semanticrecall_core.types.verifying import VerifyProgress
from support.fake_collections import FakeCollections
from support.stored_messages import stored

MESSAGE = stored(
    MessageDraft(
        id="m1",
        thread_id="t1",
        role=Role.USER,
        author="Alice",
        text="Rex eats turkey",
        metadata_json='{"age":3,"tags":["a",null,true,{"x":0.5}],"project":"A"}',
        payload=b"\x00\xff",
        payload_type="test/bytes",
        group_id="g1",
    ),
    1_700_000_000_123_456_789,
    seq=7,
    resource="alice",
    revision=9,
)
SCORE = 0.75
HIT = Hit(
    seq=7,
    revision=9,
    relevance=2.5,
    cosine=SCORE,
    chunk=2,
    chunks=5,
    dense_rank=3,
    lexical_rank=4,
    bm25=6.5,
    bm25_in_context=7.25,
    parts=Parts(0.5, 0.25, 0.125, 0.625, 0.75, -0.75),
)
"""Found by its vector and its words; every number is exact in float32."""

BY_WORDS = Hit(seq=8, revision=10, relevance=-0.5, cosine=None, lexical_rank=1, bm25=1.5)
TOKEN = "1.x.y.9"
PURGE_DUE_NS = 1_800_000_000_123_456_789
HOLDING = "20260101T000000Z-7-abcdef"


@dataclass(slots=True)
class Hold:
    """Keeps a call inside until released; `entered` tells that it is there."""

    entered: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def wait(self, budget: CallBudget) -> None:
        self.entered.set()
        while not self.release.wait(0.01):
            if budget.cancelled():
                self.cancelled.set()
            budget.check()


class FakeTicket:
    """An Index call after its commit; `embedding` ends when its vectors are there."""

    def __init__(self, count: int, embedding: Future[None], wait: Wait, budget: CallBudget) -> None:
        self.ready: Future[None] = Future()
        self._count = count
        self._embedding = embedding
        self._budget = budget
        if wait is Wait.DURABLE:
            self.ready.set_result(None)
        else:
            follow(embedding, self.ready)

    def patience(self) -> float:
        return max(0.0, self._budget.remaining() - 0.05)

    def answer(self) -> IndexAnswer:
        status = Status.INDEXED if self._embedding.done() else Status.PENDING
        return IndexAnswer(tuple(IndexResult(status) for _ in range(self._count)), TOKEN, 1, 2, 30)


def follow(leader: Future[None], follower: Future[None]) -> None:
    """End the follower, unless it is cancelled, when the leader ends."""

    def end(_: Future[None]) -> None:
        if follower.set_running_or_notify_cancel():
            follower.set_result(None)

    leader.add_done_callback(end)


class FakeVectors:
    """Says what vectors are here, and has none."""

    form = VectorForm("fake", "fake@1/4", 4)

    def of(self, resource_id: str, seqs: Sequence[int]) -> PartitionRows:
        none = np.empty(0, np.int64)
        vectors = np.empty((0, 4), np.float32)
        return PartitionRows(none, none, none, none.astype(np.uint8), none, none, vectors, none)


class FakeExchange:
    """A next model that is half made whenever it is asked, and then takes its place."""

    next_index_identity = "next@1/8"

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.switched: list[Callable[[], None]] = []

    def embedded(self) -> int:
        return 17

    def running(self) -> bool:
        return True

    def on_switch(self, switched: Callable[[], None]) -> None:
        self.switched.append(switched)

    def reembed(self, budget: CallBudget) -> Iterator[ReembedProgress]:
        self._engine.on_call("reembed", budget)
        for done, complete in ((17, False), (34, True)):
            yield ReembedProgress(
                done, 34, self._engine.index_identity, self.next_index_identity, complete
            )


class FakeEngine:
    """See the module. `on_call` runs first in every call, on its thread."""

    store_id = "5" * 32
    index_identity = "fake@1/4"
    device = "cpu"
    dimensions = 4

    def __init__(self) -> None:
        self.queries: list[RecallQuery] = []
        self.read_tokens: list[str] = []
        self.drafts: list[MessageDraft] = []
        self.given: list[GivenVectors | None] = []
        self.vectors = FakeVectors()
        self.waits: list[Wait] = []
        self.targets: list[ForgetTarget] = []
        self.lists: list[ListQuery] = []
        self.recalled = MESSAGE
        self.excluded: tuple[Excluded, ...] = ()
        self.history: list[StoredMessage] = [MESSAGE]
        self.threads: list[ThreadSummary] = []
        self.is_healthy = True
        self.changed: Callable[[str], None] = lambda resource_id: None
        self.stopped = threading.Event()
        self.on_call: Callable[[str, CallBudget], None] = lambda name, budget: None
        self.embedding: Future[None] = Future()
        self.embedding.set_result(None)
        self.exchange = FakeExchange(self)
        self.collections = FakeCollections(lambda name, budget: self.on_call(name, budget))

    def hold_embedding(self) -> Future[None]:
        """Embed nothing until the result of what this returns is set."""
        self.embedding = Future()
        return self.embedding

    def hold(self, method: str) -> Hold:
        """Keep every call of this method inside until released."""
        held = Hold()

        def on_call(name: str, budget: CallBudget) -> None:
            if name == method:
                held.wait(budget)

        self.on_call = on_call
        return held

    def fail(self, method: str, error: BaseException) -> None:
        """Raise from every call of this method."""

        def on_call(name: str, budget: CallBudget) -> None:
            if name == method:
                raise error

        self.on_call = on_call

    def stop(self) -> None:
        self.stopped.set()

    def healthy(self) -> bool:
        return self.is_healthy

    def recall(self, query: RecallQuery, budget: CallBudget) -> RecallAnswer:
        self.queries.append(query)
        self.on_call("recall", budget)
        hit = RecalledMessage(self.recalled, 1, HIT, GroupState.WHOLE)
        neighbour = RecalledMessage(self.recalled, 0, None, GroupState.NO_GROUP)
        by_words = RecalledMessage(self.recalled, 2, BY_WORDS, GroupState.HIT_ONLY, text_cut=True)
        info = RecallInfo(
            query.scope,
            Mode.HYBRID,
            best_score=SCORE,
            candidates=2,
            searchable=3,
            pending=1,
            exact=False,
            tokens=11,
            context_tokens=12,
            messages_dropped_for_tokens=13,
            context_did_not_fit=True,
            lexical_us=14,
        )
        return RecallAnswer((hit, neighbour, by_words), "context", info, self.excluded)

    def begin_index(
        self,
        resource_id: str,
        drafts: Sequence[MessageDraft],
        wait: Wait,
        budget: CallBudget,
        given: GivenVectors | None = None,
    ) -> FakeTicket:
        self.given.append(given)
        self.drafts.extend(drafts)
        self.waits.append(wait)
        self.on_call("index", budget)
        return FakeTicket(len(drafts), self.embedding, wait, budget)

    def when_readable(self, resource_id: str, read_token: str) -> Future[None]:
        self.read_tokens.append(read_token)
        self.on_call("when_readable", CallBudget.of_seconds(60))
        readable: Future[None] = Future()
        follow(self.embedding, readable)
        return readable

    def forget(
        self,
        resource_id: str,
        target: ForgetTarget,
        budget: CallBudget,
        *,
        purge: bool = False,
    ) -> ForgetReport:
        self.targets.append(target)
        self.on_call("forget", budget)
        due = None if purge else PURGE_DUE_NS
        holding = () if purge else (HOLDING,)
        return ForgetReport(1, 2, 3, 4, purge, due, holding)

    def purge(self, budget: CallBudget) -> PurgeReport:
        self.on_call("purge", budget)
        return PurgeReport(11, (HOLDING,))

    def purge_stats(self) -> PurgeStats:
        return PurgeStats(5, 6, True)

    def expired(self) -> int:
        return 7

    def retention_failures(self) -> int:
        return 8

    def list_messages(self, query: ListQuery) -> list[StoredMessage]:
        self.lists.append(query)
        self.on_call("list_messages", CallBudget.of_seconds(60))
        rows = sorted(self.history, key=lambda m: (m.create_time_ns, m.seq))
        if query.newest_first:
            rows.reverse()
        if query.after is not None:
            after = query.after
            rows = [
                m
                for m in rows
                if ((m.create_time_ns, m.seq) < after) == query.newest_first
                and (m.create_time_ns, m.seq) != after
            ]
        return rows[: query.limit]

    def get_messages(self, resource_id: str, message_ids: Sequence[str]) -> list[StoredMessage]:
        self.on_call("get_messages", CallBudget.of_seconds(60))
        by_id = {m.id: m for m in self.history}
        return [by_id[i] for i in message_ids]

    def list_threads(
        self, resource_id: str, limit: int, after: tuple[int, int] | None
    ) -> list[ThreadSummary]:
        self.on_call("list_threads", CallBudget.of_seconds(60))
        rows = [
            t for t in self.threads if after is None or (t.last_create_time_ns, t.last_seq) < after
        ]
        return rows[:limit]

    def transfer_thread(self, resource_id: str, thread_id: str, to_resource_id: str) -> int:
        self.on_call("transfer_thread", CallBudget.of_seconds(60))
        return 11

    def embed(self, texts: Sequence[str], role: EmbedRole, budget: CallBudget) -> Embedding:
        self.on_call("embed", budget)
        row = np.array([[0.5, 0.5, 0.5, 0.5]], dtype=np.float32)
        embedded = tuple(EmbeddedText(row, 6, role is EmbedRole.QUERY, 1, 0) for _ in texts)
        return Embedding(embedded, self.dimensions, self.index_identity)

    def stats(self, resource_id: str | None) -> StoreStats:
        self.on_call("stats", CallBudget.of_seconds(60))
        return StoreStats(1, 2, 3, 4, 5, 6)

    def cache_stats(self) -> CacheStats:
        return CacheStats(1, 2, 3, 4, 5)

    def scheduler_stats(self) -> SchedulerStats:
        return SchedulerStats(1, 2, 3, 4, 5, 6)

    def snapshot_stats(self) -> SnapshotStats:
        return SnapshotStats(11, 12, 13, 14, 15)

    def snapshot_failures(self) -> int:
        return 16

    saving = None

    def create_snapshot(self, budget: CallBudget) -> SnapshotStats:
        self.on_call("create_snapshot", budget)
        return self.snapshot_stats()

    def lexical_partitions_loaded(self) -> int:
        return 10

    def lexical_bytes(self) -> int:
        return 11

    def partitions_loaded(self) -> int:
        return 9

    def on_change(self, changed: Callable[[str], None]) -> None:
        self.changed = changed

    def pending(self, resource_id: str | None = None) -> int:
        return 3

    def embed_failures(self) -> int:
        return 0

    def verify(
        self, resource_id: str | None, budget: CallBudget, *, repair: bool = False
    ) -> Iterator[VerifyEvent]:
        self.on_call("verify", budget)
        yield VerifyProgress("messages", 1, 2)
        yield Finding("VECTOR_MISSING", "alice", "m1", "row 7", repaired=repair)
        yield VerifyReport(1, 2, 1, int(repair), 3, 4, 5, 6, 7)

    def damaged(self) -> dict[str, int]:
        return {"message": 1, "vector": 2, "words": 3, "page": 0}
