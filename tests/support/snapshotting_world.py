"""A store, an index and a snapshotting over a dictionary of images, whose clock stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.values import PartitionImage, VectorQuery, VectorRecord
from semanticrecall_core.vectors import FaissVectorIndex
from support.message_stores import append, draft, ticking_clock
from support.model_snapshots import ModelSnapshots
from support.model_store import ModelStore

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn

DIMENSIONS = 4
CLIP = 0.9
WAIT_S = 30
PLAN = SnapshotPlan(
    interval_s=3600.0,
    rows_min=4,
    changed_rows_min=10,
    changed_share_min=0.5,
    quiet_s=100.0,
    quiet_share_min=0.2,
    rows_at_once=1000,
)
ROW = np.eye(1, DIMENSIONS, dtype=np.float32)


class Snapshots(ModelSnapshots):
    """Remembers what each write had, and fails or waits on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[str]] = []
        self.error: SemanticRecallError | None = None
        self.at_image: Callable[[str], None] = lambda _: None
        self.at_seqs: Callable[[str], None] = lambda _: None

    def write(self, images: Iterable[PartitionImage]) -> int:
        taken = []
        for image in images:
            taken.append(image)
            self.at_image(image.resource_id)
        if self.error is not None:
            raise self.error
        self.writes.append([image.resource_id for image in taken])
        return super().write(taken)

    def seqs_of(self, resource_id: str) -> IntColumn:
        self.at_seqs(resource_id)
        return super().seqs_of(resource_id)

    def forget(self, resource_ids: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        super().forget(resource_ids)


class World:
    """A store, an index, and a snapshotting whose clock stands still."""

    def __init__(self, plan: SnapshotPlan = PLAN) -> None:
        self.store = ModelStore(generation="g", clock=ticking_clock())
        self.snapshots = Snapshots()
        self.now = 1000.0
        form = ImageForm("g", DIMENSIONS, CLIP, plan.mapped)
        self.loader = PartitionLoader(self.store, self.snapshots, form)
        self.index = FaissVectorIndex(DIMENSIONS, self.loader, scale_clip=CLIP)
        self.snapshotting = Snapshotting(
            self.store, self.snapshots, self.index, "g", plan, clock=lambda: self.now
        )
        self.store.subscribe(self.index)
        self.store.subscribe(self.snapshotting)
        self.loader.tell_rows_read(self.snapshotting.rows_read)
        self._added = 0

    def add(self, count: int, resource: str = "u") -> None:
        for _ in range(count):
            self._added += 1
            (outcome,) = append(self.store, draft(f"m{self._added}"), resource=resource)
            record = VectorRecord(resource, outcome.seq, outcome.revision, ROW)
            assert self.store.put_vectors([record]) == [True]

    def work(self) -> list[list[str]]:
        """What is written now."""
        self.snapshots.writes.clear()
        self.snapshotting.work()
        return self.snapshots.writes

    def written(self) -> list[str]:
        """The same, in one list."""
        return [resource_id for write in self.work() for resource_id in write]

    def load(self, resource: str = "u") -> int:
        return self.index.search(resource, VectorQuery(ROW[0], 1)).searchable

    def imaged(self, resource: str = "u") -> list[int]:
        image = self.snapshots.images.get(resource)
        return [] if image is None else image.rows.seqs.tolist()

    def recorded(self, resource: str = "u") -> list[int]:
        seqs: list[int] = self.store.load_partition(resource).seqs.tolist()
        return seqs
