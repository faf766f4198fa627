"""An engine over everything that is kept on disk, whose files a test may damage while it is closed.

The record with vectors and words, images of the partitions. What is damaged by a statement is
damaged below the checksums of rows, and above those of pages.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from semanticrecall_core.engine import Engine, EngineLimits, VerifyReport
from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.engine.warming import WarmingLimits
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.messages import StoreOptions
from semanticrecall_core.messages.connection import connect
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.recalling import Mode, RecallQuery
from semanticrecall_core.types.values import CallBudget, Finding, ListQuery, Wait
from semanticrecall_core.types.verifying import VerifyProgress
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder
from support.running_engine import draft
from support.stored_messages import open_store

WAIT_S = 60.0
CLIP = 0.9
DIMENSIONS = 16
TEXTS = {
    "m0": "green tea from the mountains of Uji",
    "m1": "the harbour of Oslo has a white boat",
    "m2": "a cat sleeps on the warm roof",
    "m3": "the invoice says ZX-8841 was paid",
    "m4": "rain fell on the harbour all night",
}


class DamagedEngine:
    """Opened at once; `close` it before its files are damaged."""

    def __init__(self, home: Path, *, accept_loss: bool = False, key: bytes | None = None) -> None:
        self.home = home
        self.embedder = FakeEmbedder(DIMENSIONS)
        self.store = open_store(
            home,
            generation=self.embedder.generation,
            analyser=Analyser(),
            options=StoreOptions(accept_loss=accept_loss, key=key),
        )
        self.snapshots = FileSnapshotStore(
            home / "snapshots", store_id=self.store.store_id, mapped=False
        )
        form = ImageForm(self.embedder.generation, DIMENSIONS, CLIP, mapped=False)
        loader = PartitionLoader(self.store, self.snapshots, form)
        self.index = FaissVectorIndex(DIMENSIONS, loader, scale_clip=CLIP)
        self.lexical = InMemoryLexicalIndex(self.store.load_lexical)
        plan = SnapshotPlan(interval_s=3600.0, rows_min=1)
        snapshotting = Snapshotting(
            self.store, self.snapshots, self.index, self.embedder.generation, plan
        )
        loader.tell_rows_read(snapshotting.rows_read)
        limits = EngineLimits(warming=WarmingLimits(0.0, 0))
        self.engine = Engine(
            self.store, self.embedder, self.index, limits, snapshotting, self.lexical
        )
        self.engine.start()

    def add(self, resource: str, texts: dict[str, str], thread: str = "t") -> None:
        drafts = [draft(name, text, thread_id=thread) for name, text in texts.items()]
        self.engine.index(resource, drafts, Wait.SEARCHABLE, CallBudget.of_seconds(WAIT_S))

    def snapshot(self) -> None:
        self.engine.create_snapshot(CallBudget.of_seconds(WAIT_S))

    def verify(
        self, resource: str | None = None, *, repair: bool = False
    ) -> tuple[list[Finding], VerifyReport]:
        """The findings and the report; progress is left out."""
        budget = CallBudget.of_seconds(WAIT_S)
        events = [
            event
            for event in self.engine.verify(resource, budget, repair=repair)
            if not isinstance(event, VerifyProgress)
        ]
        findings = [event for event in events if isinstance(event, Finding)]
        report = events[-1]
        assert isinstance(report, VerifyReport)
        assert len(events) == len(findings) + 1
        assert report.findings == len(findings)
        assert report.repaired == sum(finding.repaired for finding in findings)
        return findings, report

    def kinds(self, resource: str | None = None, *, repair: bool = False) -> list[str]:
        """The kinds of the findings, sorted."""
        return sorted(finding.kind for finding in self.verify(resource, repair=repair)[0])

    def ids(self, resource: str) -> list[str]:
        """The history."""
        return [m.id for m in self.engine.list_messages(ListQuery(resource, None, 10_000))]

    def first(self, resource: str, text: str, mode: Mode = Mode.HYBRID) -> str | None:
        """The id of the best hit."""
        query = RecallQuery(resource, text, top_k=1, before=0, after=0, mode=mode)
        answer = self.engine.recall(query, CallBudget.of_seconds(WAIT_S))
        return answer.messages[0].message.id if answer.messages else None

    def settle(self) -> None:
        """Wait until nothing waits to be embedded."""
        for resource in self.store.recent_resources(1_000):
            watch = self.engine._backlog.when_embedded(resource, 1 << 60)
            watch.result(WAIT_S)

    def close(self) -> Path:
        """End it as a server is ended; returns the directory."""
        self.engine.stop()
        return self.home


def on_record(home: Path, statement: str, *values: object) -> None:
    """Change the closed record behind the store's back."""
    connection = connect((home / "recall.db").as_uri(), apsw.SQLITE_OPEN_READWRITE)
    connection.execute(statement, values)
    connection.close()
