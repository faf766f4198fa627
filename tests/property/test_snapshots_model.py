"""Whatever happens to messages and snapshots, every search equals one over the record.

Messages come, change, move and are forgotten; snapshots are written at any time, damaged, cut,
deleted and put back from earlier; the process ends well or badly. The record is asked afterwards
and searched by brute force: nothing that a snapshot says may show.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.errors import AlreadyExistsError, NotFoundError
from semanticrecall_core.types.generations import ModelIdentity
from semanticrecall_core.types.values import ForgetTarget, Role, VectorQuery, VectorRecord
from semanticrecall_core.vectors import FaissVectorIndex, Tuning
from support.brute_force import answer, grouped
from support.message_stores import append, draft
from support.stored_messages import open_store

DIMENSIONS = 4
CLIP = 0.9
TINY = Tuning(tail_rows_max=3, coded_rows_min=3, segment_rows_max=8, margin_rows=1)
PLAN = SnapshotPlan(
    interval_s=3600.0,
    rows_min=1,
    changed_rows_min=1,
    changed_share_min=0.0,
    quiet_s=0.0,
    quiet_share_min=0.0,
    rows_at_once=6,
)
RESOURCES = ("a", "b")
THREADS = ("t1", "t2", "t3")
IDS = tuple(f"m{number}" for number in range(12))

resources = st.sampled_from(RESOURCES)
threads = st.sampled_from(THREADS)
message_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=5, unique=True)
chunk_counts = st.integers(1, 3)
seeds = st.integers(0, 2**32 - 1)


class SnapshotsMachine(RuleBasedStateMachine):
    """A record on disk, its index, and its snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self._home = tempfile.TemporaryDirectory()
        self.directory = Path(self._home.name)
        self.earlier: Path | None = None
        self.forgotten: list[bytes] = []
        self._copies = 0

    @property
    def folder(self) -> Path:
        return self.directory / "data" / "snapshots"

    @initialize(mapped=st.booleans(), generation=st.sampled_from("gh"))
    def open(self, mapped: bool, generation: str) -> None:
        self.store = open_store(self.directory / "data", generation=generation)
        self.snapshots = FileSnapshotStore(self.folder, store_id=self.store.store_id, mapped=mapped)
        loader = PartitionLoader(
            self.store, self.snapshots, ImageForm(generation, DIMENSIONS, CLIP, mapped)
        )
        self.index = FaissVectorIndex(DIMENSIONS, loader, scale_clip=CLIP, tuning=TINY)
        self.store.subscribe(self.index)
        plan = replace(PLAN, mapped=mapped)
        self.snapshotting = Snapshotting(self.store, self.snapshots, self.index, generation, plan)
        self.store.subscribe(self.snapshotting)
        loader.tell_rows_read(self.snapshotting.rows_read)

    # -- messages --

    @rule(resource=resources, thread=threads, ids=message_ids, chunks=chunk_counts, seed=seeds)
    def add(self, resource: str, thread: str, ids: list[str], chunks: int, seed: int) -> None:
        """New messages, or others in the place of those that are there."""
        rng = np.random.default_rng(seed)
        drafts = [draft(i, thread=thread, text=f"{seed}", role=Role(1 + seed % 4)) for i in ids]
        outcomes = append(self.store, *drafts, resource=resource)
        self.store.put_vectors(
            [
                VectorRecord(resource, o.seq, o.revision, units(rng, chunks))
                for o in outcomes
                if o.pending
            ]
        )

    @rule(resource=resources, ids=message_ids, time_ns=st.integers(0, 3))
    def edit(self, resource: str, ids: list[str], time_ns: int) -> None:
        """Other columns, the same vectors."""
        known = self.store.get(resource, ids)
        drafts = [
            draft(m.id, thread="t1", text=m.text, role=Role.TOOL, create_time_ns=time_ns)
            for m in known
        ]
        if drafts:
            append(self.store, *drafts, resource=resource)

    @rule(resource=resources, ids=message_ids, text=st.sampled_from("xy"))
    def wait_to_be_embedded(self, resource: str, ids: list[str], text: str) -> None:
        append(self.store, *(draft(i, text=text) for i in ids), resource=resource)

    @rule(resource=resources, thread=threads)
    def transfer(self, resource: str, thread: str) -> None:
        other = RESOURCES[1 - RESOURCES.index(resource)]
        try:
            self.store.transfer_thread(resource, thread, other)
        except (AlreadyExistsError, NotFoundError):
            return
        self.snapshotting.forget(resource)

    @rule(
        resource=resources,
        ids=message_ids,
        everything=st.booleans(),
        killed=st.booleans(),
        mapped=st.booleans(),
    )
    def forget(
        self, resource: str, ids: list[str], everything: bool, killed: bool, mapped: bool
    ) -> None:
        """Killed: the process ends before the images are removed; the next start ends it."""
        before = self._vectors(resource)
        target = ForgetTarget(everything=True) if everything else ForgetTarget(tuple(ids))
        self.store.forget(resource, target)
        if killed:
            self.restart(mapped, None, False)
            self.snapshotting._forget_unrecorded()
            if self.snapshots.stats().damaged:
                return  # of a file that nobody can read it is not known what it has
        else:
            self.snapshotting.forget(resource)
        self.forgotten = [row for row in before if row not in self._all_vectors()]
        self._forgotten_is_gone()

    # -- snapshots --

    @rule()
    def write_snapshots(self) -> None:
        self.snapshotting.work()
        assert self.snapshotting.failures() == 0

    @rule(resource=resources)
    def read_anew(self, resource: str) -> None:
        self.index.reload(resource)

    @rule(resource=resources)
    def drop(self, resource: str) -> None:
        self.index.resource_dropped(resource)

    @rule()
    def keep_a_copy(self) -> None:
        self._copies += 1
        self.earlier = self.directory / f"earlier{self._copies}"
        shutil.copytree(self.folder, self.earlier)

    # -- the process --

    @rule(
        mapped=st.booleans(),
        damage=st.one_of(st.none(), st.none(), seeds),
        from_earlier=st.booleans(),
    )
    def restart(self, mapped: bool, damage: int | None, from_earlier: bool) -> None:
        generation = self.snapshotting._generation
        self.store.close()
        self.snapshots.close()
        if from_earlier and self.earlier is not None:
            shutil.rmtree(self.folder)
            shutil.copytree(self.earlier, self.folder)
        if damage is not None:
            damaged(self.folder, np.random.default_rng(damage))
        self.open(mapped, generation)

    @rule()
    def another_model(self) -> None:
        """The record is switched to it; images are of the former one until they are written."""
        model = ModelIdentity("h" if self.snapshotting._generation == "g" else "g")
        vectors = self.store.vectors_of(model)
        rows = vectors.lacking(0, 10_000).rows
        vectors.put(
            [
                VectorRecord(
                    row.resource_id,
                    row.seq,
                    row.revision,
                    units(np.random.default_rng(row.seq), 1),
                )
                for row in rows
            ]
        )
        assert self.store.serve(model.generation, (), lambda: None) == ()
        self.store.close()
        self.snapshots.close()
        self.open(False, model.generation)

    # -- what must hold --

    @invariant()
    @precondition(lambda self: hasattr(self, "index"))
    def every_search_is_one_over_the_record(self) -> None:
        for resource in RESOURCES:
            record = self.store.load_partition(resource)
            for vector in units(np.random.default_rng(len(record.seqs)), 2):
                query = VectorQuery(vector, 5)
                right = answer(grouped(record).values(), query)
                assert self.index.search(resource, query) == right
            told = self.index.partition_rows(resource)
            for name in ("seqs", "chunks", "checksums", "revisions", "times_ns", "roles"):
                assert getattr(told, name).tolist() == getattr(record, name).tolist()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.snapshots.close()
        self._home.cleanup()

    def _vectors(self, resource: str) -> list[bytes]:
        return [row.tobytes() for row in self.store.load_partition(resource).vectors]

    def _all_vectors(self) -> set[bytes]:
        return {row for resource in RESOURCES for row in self._vectors(resource)}

    def _forgotten_is_gone(self) -> None:
        content = b"".join(path.read_bytes() for path in self.folder.iterdir())
        assert not any(row in content for row in self.forgotten)


def units(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    rows = rng.normal(size=(count, DIMENSIONS))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def damaged(folder: Path, rng: np.random.Generator) -> None:
    """Flip a byte of some files, cut others, remove others."""
    for path in sorted(folder.glob("*.snapshot")):
        content = bytearray(path.read_bytes())
        place = int(rng.integers(len(content)))
        match int(rng.integers(4)):
            case 0:
                content[place] ^= 1 << int(rng.integers(8))
                path.write_bytes(content)
            case 1:
                path.write_bytes(content[:place])
            case 2:
                path.unlink()


TestSnapshots = SnapshotsMachine.TestCase
TestSnapshots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
