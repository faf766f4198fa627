"""Any sequence of writes, forgets, restarts and damage leaves the dictionary's images, or fewer.

Merging starts at the third file, so that it is everywhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semanticrecall_core.snapshots import FileSnapshotStore, compaction, file_store, new_file
from semanticrecall_core.types.values import PartitionImage
from support.model_snapshots import ModelSnapshots, image, same

RESOURCES = ("a", "b", "é", "../a", "a.tmp")
resources = st.sampled_from(RESOURCES)
images = st.builds(
    lambda name, count, seed, dimensions: image(name, count, seed=seed, dimensions=dimensions),
    resources,
    st.integers(0, 12),
    st.integers(0, 10**6),
    st.sampled_from((1, 5, 64)),
)


class UnsyncedOs:
    """`os` without waiting for the disk, which no rule here cuts off."""

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        os.fstat(fd)


class Snapshots(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.patches = (
            mock.patch.object(compaction, "FILES_MAX", 2),
            mock.patch.object(file_store, "VIEW_WAIT_SECONDS", 0.0),
            mock.patch.object(new_file, "os", UnsyncedOs()),
        )
        for patch in self.patches:
            patch.start()
        self.model = ModelSnapshots()
        self.hurt = False
        self.ever: dict[str, list[PartitionImage]] = {name: [] for name in RESOURCES}
        self.given: list[tuple[PartitionImage | None, PartitionImage | None]] = []

    @initialize(kind=st.sampled_from(["mapped", "in memory", "encrypted"]))
    def start(self, kind: str) -> None:
        self.mapped = kind == "mapped"
        self.key = bytes(range(32)) if kind == "encrypted" else None
        self.snapshots = self.opened()

    def opened(self) -> FileSnapshotStore:
        return FileSnapshotStore(self.directory, store_id="s", mapped=self.mapped, key=self.key)

    @rule(batch=st.lists(images, max_size=4))
    def write(self, batch: list[PartitionImage]) -> None:
        for one in batch:
            self.ever[one.resource_id].append(one)
        assert self.snapshots.write(iter(batch)) == self.model.write(batch)

    @rule(names=st.lists(resources, max_size=3))
    def forget(self, names: list[str]) -> None:
        self.snapshots.forget(names)
        self.model.forget(names)
        left = b"".join(path.read_bytes() for path in self.directory.iterdir())
        gone = [one.rows.checksums.tobytes() for name in names for one in self.ever[name]]
        assert not any(canary in left for canary in gone if canary)
        for name in names:
            self.ever[name].clear()

    @rule(name=resources)
    def withdraw(self, name: str) -> None:
        self.snapshots.withdraw([name])
        self.snapshots.forget([name])
        self.model.withdraw([name])

    @rule(name=resources)
    def keep_an_image(self, name: str) -> None:
        self.given.append((self.snapshots.read(name), self.model.read(name)))

    @rule()
    def look_at_no_image_any_more(self) -> None:
        self.check_given()
        self.given.clear()

    @rule(closed=st.booleans())
    def restart(self, closed: bool) -> None:
        if closed:
            self.snapshots.close()
        (self.directory / f"{10**15:016d}.tmp").write_bytes(b"a leftover")
        self.snapshots = self.opened()
        if self.hurt:
            self.take_what_is_left()

    def take_what_is_left(self) -> None:
        """Damage may take an image away, or what replaced an older one; it never makes one up."""
        found = {name: self.snapshots.read(name) for name in RESOURCES}
        self.model.images = {name: one for name, one in found.items() if one is not None}
        for name, one in self.model.images.items():
            assert any(same(one, written) for written in self.ever[name])

    @precondition(lambda self: self.model.images)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """A byte of some file changes while nobody has it open; what it hits is lost."""
        self.check_given()
        self.given.clear()  # images that are mapped from the file change with it
        files = sorted(self.directory.iterdir())
        path = data.draw(st.sampled_from(files))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        self.snapshots.close()
        path.write_bytes(content)
        self.hurt = True
        self.snapshots = self.opened()
        self.take_what_is_left()

    @invariant()
    def gives_what_the_model_gives(self) -> None:
        assert self.snapshots.resources() == self.model.resources()
        for name in RESOURCES:
            right = self.model.read(name)
            assert same(self.snapshots.read(name), right)
            assert right is None or set(right.rows.seqs) <= set(self.snapshots.seqs_of(name))
        stats, right = self.snapshots.stats(), self.model.stats()
        assert (stats.partitions, stats.rows) == (right.partitions, right.rows)
        assert stats.files <= 2

    def check_given(self) -> None:
        assert all(same(one, other) for one, other in self.given)

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        shutil.rmtree(self.directory)
        self.check_given()


Snapshots.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSnapshots = Snapshots.TestCase
