"""Isolation: random operations of many resources with hostile ids, on a real server and socket.

Changes of different resources run beside each other, then reads do. Every answer, every error,
`/metrics` and the log are searched for canaries of resources other than the caller's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semanticrecall.v1 import admin_pb2
from support.fault_report import seeded
from support.fault_sizes import COLUMNS, size
from support.isolation_reads import READS
from support.isolation_world import Operation, World
from support.isolation_writes import WRITES, transfer

RESOURCES = 40
WRITES_AT_ONCE = 8
READS_AT_ONCE = 56
THREADS = 8
ROUNDS_OF_A_LIFE = 40
Step = Callable[[Operation], None]


class Driver:
    """Chooses operations, numbers them, and runs those that may run at once."""

    def __init__(self, world: World, pool: ThreadPoolExecutor) -> None:
        self._world = world
        self._pool = pool
        self._rng = random.Random(world.seed + 1)
        self._numbers = itertools.count(1)

    def _operation(self, resource: str) -> Operation:
        return Operation(self._world, next(self._numbers), resource)

    def _choose(self, table: Sequence[tuple[Step, int]]) -> Step:
        steps, weights = zip(*table, strict=True)
        step: Step = self._rng.choices(steps, weights)[0]
        return step

    def round(self) -> None:
        """Changes, a thread that changes hands, reads; then what all may see."""
        world = self._world
        names = sorted(world.memories)
        writers = self._rng.sample(names, WRITES_AT_ONCE)
        self._run([(self._choose(WRITES), self._operation(name)) for name in writers])
        giver, receiver = self._rng.sample(names, 2)
        transfer(self._operation(giver), world.memories[receiver])
        readers = self._rng.choices(names, k=READS_AT_ONCE)
        self._run([(self._choose(READS), self._operation(name)) for name in readers])
        world.look_through("/metrics", world.server.sidecar.metrics.text())

    def _run(self, steps: Sequence[tuple[Step, Operation]]) -> None:
        for done in [self._pool.submit(step, operation) for step, operation in steps]:
            done.result()

    def save(self) -> None:
        """Images, from which the next start reads, and a snapshot, whose answer says no names."""
        for images in (True, False):
            request = admin_pb2.CreateSnapshotRequest(partitions_only=images)
            self._world.ask("", "CreateSnapshot", request)
        self._world.ask("", "ListSnapshots", admin_pb2.ListSnapshotsRequest())


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("column", COLUMNS)
def test_no_operation_shows_or_counts_anything_of_another_resource(
    tmp_path: Path, column: str
) -> None:
    calls = size("F23_OPERATIONS", column)
    with (
        seeded("F23 isolation", tmp_path / "data", calls=calls) as run,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        world = World(tmp_path, run.seed, RESOURCES)
        driver = Driver(world, pool)
        world.start()
        try:
            for cycle in run.cycles(calls, is_bound=True):  # of many calls each
                driver.round()
                if cycle % ROUNDS_OF_A_LIFE == ROUNDS_OF_A_LIFE - 1:
                    driver.save()
                    world.restart()
                    run.count("restarts")
                if world.calls >= calls:
                    break
        finally:
            world.stop()
            run.achieved(world.calls, calls)
