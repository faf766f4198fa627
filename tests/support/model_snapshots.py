"""The snapshot store as a dictionary, and images to put into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.stats import (
    SnapshotStats,
)
from semanticrecall_core.types.values import (
    PartitionImage,
    PartitionRows,
)
from semanticrecall_core.types.verifying import ImageCheck

if TYPE_CHECKING:
    from semanticrecall_core.types.ports import SnapshotStore
    from semanticrecall_core.types.values import IntColumn

INT_COLUMNS = ("seqs", "thread_keys", "times_ns", "chunks", "revisions", "checksums")


class ModelSnapshots:
    """What `SnapshotStore` promises, in memory."""

    def __init__(self) -> None:
        self.images: dict[str, PartitionImage] = {}
        self.closed = False

    def read(self, resource_id: str) -> PartitionImage | None:
        return self.images.get(resource_id)

    def write(self, images: Iterable[PartitionImage]) -> int:
        if self.closed:
            raise UnavailableError("closed")
        taken = list(images)
        self.images.update({image.resource_id: image for image in taken})
        return len(taken)

    def forget(self, resource_ids: Sequence[str]) -> None:
        for resource_id in resource_ids:
            self.images.pop(resource_id, None)

    def withdraw(self, resource_ids: Sequence[str]) -> None:
        self.forget(resource_ids)

    def seqs_of(self, resource_id: str) -> IntColumn:
        image = self.images.get(resource_id)
        return np.unique(np.empty(0, np.int64) if image is None else image.rows.seqs)

    def examine(self, resource_id: str | None) -> Iterator[ImageCheck]:
        for name in sorted(self.images):
            if resource_id in (None, name):
                yield ImageCheck(name, self.images[name])

    def resources(self) -> dict[str, int]:
        return {name: len(image.rows.seqs) for name, image in self.images.items()}

    def take_moved(self) -> list[str]:
        return []

    def rows_of(self, resource_id: str) -> int | None:
        return self.resources().get(resource_id)

    def stats(self) -> SnapshotStats:
        rows = self.resources()
        return SnapshotStats(0, 0, len(rows), sum(rows.values()), 0)

    def close(self) -> None:
        self.closed = True
        self.images = {}


def image(
    resource_id: str,
    count: int = 3,
    *,
    seed: int = 0,
    dimensions: int = 5,
    generation: str = "g",
) -> PartitionImage:
    """An image of arbitrary content; another seed gives other bytes in every section."""
    random = np.random.default_rng([seed, count, dimensions, *resource_id.encode()])
    ints = {
        name: random.integers(-(2**63), 2**63 - 1, count, np.int64, endpoint=True)
        for name in INT_COLUMNS
    }
    return PartitionImage(
        resource_id=resource_id,
        generation=generation,
        rows=PartitionRows(
            **ints,
            roles=random.integers(0, 255, count, np.uint8, endpoint=True),
            vectors=random.standard_normal((count, dimensions), np.float32),
        ),
        codes=random.integers(0, 255, (count, dimensions), np.uint8, endpoint=True),
        errors=random.random(count, np.float32),
        scale_clip=float(random.random()),
    )


def same(one: PartitionImage | None, other: PartitionImage | None) -> bool:
    """Whether two images are equal in every bit; None equals None."""
    if one is None or other is None:
        return one is other
    return _bits(one) == _bits(other)


def is_exactly(snapshots: SnapshotStore, images: dict[str, PartitionImage]) -> bool:
    """Whether a store has these images and no others."""
    return set(snapshots.resources()) == set(images) and all(
        same(snapshots.read(name), one) for name, one in images.items()
    )


def _bits(image: PartitionImage) -> tuple[object, ...]:
    arrays = [getattr(image.rows, name) for name in (*INT_COLUMNS, "roles", "vectors")]
    arrays += [image.codes, image.errors]
    return (
        image.resource_id,
        image.generation,
        image.scale_clip,
        *((array.shape, array.dtype.str, array.tobytes()) for array in arrays),
    )
