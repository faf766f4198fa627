"""F30: what was forgotten and purged is in no byte of any file; what stays is still found.

Canaries lie between messages that stay, are forgotten in every way there is, and were saved in a
snapshot and in images before. The search looks for words, vectors in both precisions, and analyses.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2
from semanticrecall_server.assembly import default_parts
from support.canaries import Canary, Flock, Traces, found_in
from support.disk_cached_embedder import DiskCachedEmbedder
from support.fault_report import seeded
from support.fault_sizes import COLUMNS, size
from support.running_server import running
from support.wire_memory import ALONE, INDEXED, REPLACED, Memory, Sidecar, hit_ids, ids, timestamp

WAYS = ("ids", "thread", "before", "everything", "condition")
FIRST_NS, MIDDLE_NS = 1_700_000_000 * 10**9, 1_710_000_000 * 10**9
AT_ONCE = 40
RECALLED = 15
CALL_SECONDS = 120.0
FILES = {"recall.db", "embeddings.db"}


@dataclass
class Group:
    """One resource, forgotten in one way."""

    way: str
    resource: str
    thread: str
    author: str
    canaries: list[Canary] = field(default_factory=list)
    others: list[Canary] = field(default_factory=list)

    @property
    def own_words(self) -> tuple[str, ...]:
        """Names that only canaries have."""
        names = (self.thread, self.author)
        return (*names, self.resource) if self.way == "everything" else names

    def target(self) -> dict[str, object]:
        """What names the canaries, as fields of a Forget."""
        match self.way:
            case "ids":
                return {"message_ids": recall_pb2.MessageIds(ids=ids_of(self.canaries))}
            case "thread":
                return {"thread_id": self.thread}
            case "before":
                return {"create_time_before": timestamp(MIDDLE_NS)}
            case "everything":
                return {"everything": True}
        condition = recall_pb2.ForgetCondition(authors=[self.author, "nobody"])
        condition.create_time_to.CopyFrom(timestamp(MIDDLE_NS))
        return {"condition": condition}


def ids_of(canaries: list[Canary]) -> list[str]:
    return [canary.message.id for canary in canaries]


def group_of(way: str, number: int, flock: Flock) -> Group:
    """So many canaries, and as many others in between."""
    names = [flock.word(kind) for kind in ("resource", "thread", "author")]
    group = Group(way, *names)
    for position in range(number):
        group.canaries.append(flock.make(group.thread, group.author, FIRST_NS + position))
        if way != "everything":
            group.others.append(flock.make(f"stays-{way}", "Ann", MIDDLE_NS + position))
    return group


class World:
    """A running server, and its embedder with a cache file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.embedder: DiskCachedEmbedder

    @contextmanager
    def running(self) -> Iterator[Sidecar]:
        def load(_settings: object) -> DiskCachedEmbedder:
            self.embedder = DiskCachedEmbedder(self.data / "embeddings.db")
            return self.embedder

        with running(self.directory, default_parts(load), purge_interval_ms=0) as server:
            sidecar = Sidecar(server.sidecar.addresses[0].target)
            try:
                yield sidecar
            finally:
                sidecar.close()

    def found(self, traces: Traces) -> Counter[tuple[str, str]]:
        """What is in a copy of all files, made by a process that holds no locks on them."""
        copy = self.directory / "copy"
        subprocess.run(["rm", "-rf", str(copy)], check=True)
        subprocess.run(["cp", "-r", "--no-preserve=mode", str(self.data), str(copy)], check=True)
        return found_in([copy], traces)


def learn(memory: Memory, group: Group) -> None:
    """Index canaries and others in turn; what was edited is there in its first form before."""
    both = [c for pair in zip(group.canaries, group.others, strict=False) for c in pair]
    everyone = both if group.others else group.canaries
    for start in range(0, len(everyone), AT_ONCE):
        part = everyone[start : start + AT_ONCE]
        assert set(memory.index([c.before or c.message for c in part], thread="")) == {INDEXED}
        assert set(memory.index([c.message for c in part if c.before], thread="")) == {REPLACED}


def check_what_stays(sidecar: Sidecar, groups: list[Group]) -> None:
    for group in groups:
        memory = sidecar.memory(group.resource)
        assert ids(memory.listed()) == ids_of(group.others)
        for canary in group.others[:: max(1, len(group.others) // RECALLED)]:
            found = memory.recall(canary.message.text, top_k=1, message_range=ALONE)
            assert hit_ids(found) == [canary.message.id]
        for canary in group.canaries[:3]:
            # By a word of it: its whole text would be a query, and its vector cached as one.
            found = memory.recall(canary.words[-1], top_k=5, message_range=ALONE)
            assert canary.message.id not in hit_ids(found)


@pytest.mark.parametrize("column", COLUMNS)
def test_nothing_of_what_was_forgotten_is_in_any_byte(column: str, tmp_path: Path) -> None:
    with seeded("F30", tmp_path / "data") as run:
        wanted = run.fitted(size("F30_CANARIES", column), 200, a_second=20)
        number = wanted // len(WAYS)
        flock = Flock(run.seed)
        groups = [group_of(way, number, flock) for way in WAYS]
        world = World(tmp_path)
        with world.running() as sidecar:
            for group in groups:
                learn(sidecar.memory(group.resource), group)
            traces = traces_of(groups, world.embedder)
            run.count("canaries", number * len(WAYS))
            run.count("traces looked for", len(traces.kinds))
            saved = save_everything(sidecar, world)
            before = world.found(traces)
            assert {kind for kind, _ in before} >= {"words", "vectors", "codes", "analysis"}
            assert {name for _, name in before} >= FILES

            for group in groups:
                answer = sidecar.memory(group.resource).forget(**group.target())
                assert answer.messages == number
                assert answer.snapshots_holding == [saved]
                assert not answer.purged
                assert not answer.HasField("purge_due_time")
            assert sidecar.stats().purge_pending
            purged = sidecar.admin.Purge(admin_pb2.PurgeRequest(), timeout=CALL_SECONDS)
            assert purged.snapshots_rewritten == [saved]
            assert not sidecar.stats().purge_pending
            assert world.found(traces) == Counter(), "after the purge"
            check_what_stays(sidecar, groups)
        assert world.found(traces) == Counter(), "after the end"
        with world.running() as sidecar:
            check_what_stays(sidecar, groups)
        assert world.found(traces) == Counter(), "after another start"


def save_everything(sidecar: Sidecar, world: World) -> str:
    """Have images, a snapshot and the cache's file written; the snapshot's name."""
    for partitions_only in (True, False):
        request = admin_pb2.CreateSnapshotRequest(partitions_only=partitions_only)
        answer = sidecar.admin.CreateSnapshot(request, timeout=CALL_SECONDS)
    world.embedder.flush()
    return answer.snapshot.name


def traces_of(groups: list[Group], embedder: DiskCachedEmbedder) -> Traces:
    """What canaries leave, and nothing that others leave too."""
    traces, shared = Traces(), Traces()
    for group in groups:
        traces.add_words("names", group.own_words)
        for canary in group.canaries:
            traces.add_canary(canary, embedder)
        for canary in group.others:
            shared.add_canary(canary, embedder)
    traces.leave_out(shared.kinds)
    return traces
