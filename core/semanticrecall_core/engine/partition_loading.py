"""Reading a partition: as much as possible from its snapshot, the rest from the record.

A snapshot says nothing by itself. The record's index of checksums says which rows are current, and
a message's rows are taken from the snapshot only if all of them are there, each with the checksum
that the record has, and no other. So whatever a snapshot has missed (messages edited, moved,
forgotten, embedded anew by another model, a record that was put back) costs a read of the record
for those messages, and is never searched.

The caller sees to it that what is committed meanwhile is applied afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import structlog

from semanticrecall_core.types.generations import RecordedVectors
from semanticrecall_core.types.ports import SnapshotStore
from semanticrecall_core.types.values import PartitionImage, RowChecksums
from semanticrecall_core.vectors.loaded import CurrentImage, LoadedPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import IntColumn

    BoolMask = NDArray[np.bool_]

STALE_SHARE_MAX = 0.3
"""Share of messages to be read from the record above which all of them are: one pass is quicker."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ImageForm:
    """What an image must be like to be of use.

    Attributes:
        generation: the embedder's.
        dimensions: numbers in a vector.
        scale_clip: the coder's.
        mapped: the images' vectors are mapped from files, and stay there.
    """

    generation: str
    dimensions: int
    scale_clip: float
    mapped: bool


class PartitionLoader:
    """Reads all current vectors of a resource. Thread-safe."""

    def __init__(self, store: RecordedVectors, snapshots: SnapshotStore, form: ImageForm) -> None:
        """Images of another form than `form` are not used."""
        self._store = store
        self._snapshots = snapshots
        self._form = form
        self._rows_read: Callable[[str, int], None] = _nobody

    def tell_rows_read(self, listener: Callable[[str, int], None]) -> None:
        """Tell of every load how many rows no image had: (resource id, rows above 0)."""
        self._rows_read = listener

    def __call__(self, resource_id: str) -> LoadedPartition:
        """The current vectors: what the record holds at some moment between call and return."""
        loaded = self._load(resource_id)
        if len(loaded.rows.seqs):
            self._rows_read(resource_id, len(loaded.rows.seqs))
        return loaded

    def _load(self, resource_id: str) -> LoadedPartition:
        image = self._snapshots.read(resource_id)
        if image is None or not self._fits(resource_id, image):
            return LoadedPartition(self._store.load_partition(resource_id))
        agreement = compared(image, self._store.row_checksums(resource_id))
        if len(agreement.others) > STALE_SHARE_MAX * agreement.messages and not self._form.mapped:
            return LoadedPartition(self._store.load_partition(resource_id))
        rows = self._store.load_rows(resource_id, agreement.others)
        if not bool(agreement.current.any()):
            return LoadedPartition(rows)
        return LoadedPartition(rows, CurrentImage(image, agreement.current, self._form.mapped))

    def _fits(self, resource_id: str, image: PartitionImage) -> bool:
        form, rows = self._form, image.rows
        if (image.generation, image.scale_clip) != (form.generation, form.scale_clip):
            return False  # another model or another version of the codes: nothing is wrong
        shape = (len(rows.seqs), form.dimensions)
        sound = (
            image.resource_id == resource_id
            and rows.vectors.shape == image.codes.shape == shape
            and image.errors.shape == shape[:1]
            and _is_ordered(rows.seqs, rows.chunks)
        )
        if not sound:
            _log.warning("snapshot_image_not_used", rows=len(rows.seqs))
        return sound


class Agreement(NamedTuple):
    """How an image compares with the record.

    Attributes:
        current: which of the image's rows the record holds now; whole messages only, shape (n,).
        others: messages that must be read from the record, sorted.
        messages: how many the record holds.
    """

    current: BoolMask
    others: IntColumn
    messages: int


def compared(image: PartitionImage, live: RowChecksums) -> Agreement:
    """Tell which rows of an image are current; both sides are by (seq, chunk)."""
    rows = image.rows
    seqs, starts, counts = _messages(live.seqs)
    if len(rows.seqs) == len(live.seqs) and all(
        np.array_equal(getattr(rows, name), getattr(live, name))
        for name in ("seqs", "chunks", "checksums")
    ):
        return Agreement(np.ones(len(live.seqs), np.bool_), seqs[:0], len(seqs))
    own_seqs, own_starts, own_counts = _messages(rows.seqs)
    if not len(seqs) or not len(own_seqs):
        return Agreement(np.zeros(len(rows.seqs), np.bool_), seqs, len(seqs))
    at = np.minimum(np.searchsorted(seqs, own_seqs), len(seqs) - 1)
    alike = (seqs[at] == own_seqs) & (counts[at] == own_counts)
    # Row by row: the record's row that would be this one, if the messages are the same at all.
    there = np.repeat(starts[at] - own_starts, own_counts) + np.arange(len(rows.seqs))
    there = np.minimum(there, len(live.seqs) - 1)
    equal = (live.chunks[there] == rows.chunks) & (live.checksums[there] == rows.checksums)
    alike &= np.logical_and.reduceat(equal, own_starts)
    others = np.setdiff1d(seqs, own_seqs[alike], assume_unique=True)
    return Agreement(np.repeat(alike, own_counts), others, len(seqs))


def _nobody(_resource_id: str, _rows: int) -> None:
    pass


def _messages(seqs: IntColumn) -> tuple[IntColumn, IntColumn, IntColumn]:
    """The messages of ordered rows: their seqs, first rows and numbers of rows."""
    firsts = np.ones(len(seqs), np.bool_)
    firsts[1:] = seqs[1:] != seqs[:-1]
    starts = np.flatnonzero(firsts)
    counts = np.append(starts[1:], len(seqs))[: len(starts)] - starts
    return seqs[starts], starts, counts


def _is_ordered(seqs: IntColumn, chunks: IntColumn) -> bool:
    """Rows are by (seq, chunk), no pair twice."""
    before, after = seqs[:-1], seqs[1:]
    ordered = (after > before) | ((after == before) & (chunks[1:] > chunks[:-1]))
    return bool(ordered.all())
