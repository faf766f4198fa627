"""An engine with snapshots on disk, over a real record and index."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.engine.warming import WarmingLimits
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.recalling import RecallQuery
from semanticrecall_core.types.values import CallBudget, PartitionImage, Wait
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder
from support.running_engine import draft, hit_ids
from support.stored_messages import open_store

WAIT_S = 30.0
CLIP = 0.9
TEXTS = {"m1": "the dog is called Biscuit", "m2": "the boiler leaks", "m3": "a train to Lisbon"}


class WithSnapshots:
    """An engine over a directory, that reads nothing ahead and is not started."""

    def __init__(self, home: Path, *, mapped: bool = False) -> None:
        self.folder = home / "snapshots"
        embedder = FakeEmbedder()
        store = open_store(home / "data", generation=embedder.generation)
        self.rows_read: list[str] = []
        read = store.load_partition

        def load_partition(resource_id: str):  # type: ignore[no-untyped-def]
            self.rows_read.append(resource_id)
            return read(resource_id)

        store.load_partition = load_partition  # type: ignore[method-assign]
        self.store = store
        snapshots = FileSnapshotStore(self.folder, store_id=store.store_id, mapped=mapped)
        self.snapshots = snapshots
        form = ImageForm(embedder.generation, embedder.dimensions, CLIP, mapped=mapped)
        loader = PartitionLoader(store, snapshots, form)
        index = FaissVectorIndex(embedder.dimensions, loader, scale_clip=CLIP)
        plan = SnapshotPlan(interval_s=3600.0, rows_min=1, mapped=mapped)
        snapshotting = Snapshotting(store, snapshots, index, embedder.generation, plan)
        self.snapshotting = snapshotting
        loader.tell_rows_read(snapshotting.rows_read)
        limits = EngineLimits(warming=WarmingLimits(0.0, 0))
        self.engine = Engine(store, embedder, index, limits, snapshotting)

    def start(self) -> WithSnapshots:
        self.engine.start()
        return self

    def forgotten(self) -> threading.Semaphore:
        """Released whenever snapshots were forgotten."""
        done = threading.Semaphore(0)
        forget = self.snapshots.forget

        def forget_and_tell(resource_ids: Sequence[str]) -> None:
            forget(resource_ids)
            done.release()

        self.snapshots.forget = forget_and_tell  # type: ignore[method-assign]
        return done

    def add(self, resource: str = "u", texts: Mapping[str, str] = TEXTS) -> None:
        drafts = [draft(name, text, thread_id="t") for name, text in texts.items()]
        budget = CallBudget.of_seconds(WAIT_S)
        self.engine.index(resource, drafts, Wait.SEARCHABLE, budget)

    def imaged(self) -> int:
        stats = self.engine.snapshot_stats()
        assert stats is not None
        return stats.partitions

    def image(self, resource: str) -> PartitionImage:
        found = self.snapshots.read(resource)
        assert found is not None
        return copy.deepcopy(found)  # what is mapped may be overwritten by the next engine

    def on_disk(self, image: PartitionImage) -> bool:
        """Whether a snapshot file has the first row of an image, which is no other's."""
        content = b"".join(path.read_bytes() for path in self.folder.iterdir())
        columns = (image.rows.vectors, image.rows.checksums, image.codes)
        return any(column[0].tobytes() in content for column in columns)

    def recall(self, text: str, resource: str = "u") -> list[str]:
        query = RecallQuery(resource, text, top_k=1, before=0, after=0)
        return hit_ids(self.engine.recall(query, CallBudget.of_seconds(WAIT_S)))

    def snapshot(self) -> None:
        self.engine.create_snapshot(CallBudget.of_seconds(WAIT_S))
