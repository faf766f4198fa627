"""Partitions by resource: loaded on first use, kept current by commits, evicted by size.

Commits arrive on one thread, in the record's order, and never wait for a load: changes of a
resource that is being read are queued and applied before its partition can be searched. A change
that the load has seen already is applied again, which changes nothing, because a put replaces all
rows of its messages. A partition that is read anew goes on to serve and to be changed until the
other takes its place. A resource that is not in memory needs no change: the record has it. One
without vectors is not kept in memory, so that asking for names that do not exist fills nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.errors import (
    CorruptDataError,
    EmbeddingFailedError,
    InvalidArgumentError,
    UnavailableError,
)
from semanticrecall_core.types.values import (
    CosineRows,
    PartitionImage,
    PartitionRows,
    VectorAnswer,
    VectorQuery,
)

from . import lookup
from .codes import Coder
from .exactness import search
from .loaded import LoadedPartition
from .parallel_scan import ScanThreads
from .partition import Partition, Tuning, View
from .rows import RowBlock, as_partition_rows, checked_block

if TYPE_CHECKING:
    from semanticrecall_core.types.values import FloatRows, IntColumn

    from .codes import CodeRows
    from .codes import ErrorColumn as Errors

Loader = Callable[[str], PartitionRows | LoadedPartition]
Change = Callable[[Partition], None]

DIMENSIONS_MAX = 8192
PARTITIONS_BYTES_MAX = 4 * 2**30
QUEUED_CHANGES_MAX = 4096
LOAD_ATTEMPTS_MAX = 10


_DONE = threading.Event()
_DONE.set()


class _Slot:
    """One resource: being read, at first while `partition` is None, as long as `loading`.

    What was read takes its place if no change made it `stale`.
    """

    __slots__ = ("done", "error", "loading", "nbytes", "partition", "queue", "stale")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.loading = True
        self.partition: Partition | None = None
        self.error: BaseException | None = None
        self.queue: list[Change] = []
        self.stale = False
        self.nbytes = 0


class FaissVectorIndex:
    """The exact `VectorIndex` over FAISS codes and float32 rows. Thread-safe.

    The CommitListener methods are for one thread at a time (the record's writer).
    """

    def __init__(
        self,
        dimensions: int,
        loader: Loader,
        *,
        scale_clip: float = 0.30,
        partitions_bytes_max: int = PARTITIONS_BYTES_MAX,
        tuning: Tuning | None = None,
        scan_threads: int = 1,
    ) -> None:
        """Make an empty index.

        Args:
            dimensions: numbers in a vector, 1 to 8192.
            loader: reads all current vectors of a resource, from the record or from an image
                and the record.
            scale_clip: coordinates beyond it are clipped in the codes; above 0. Decides speed only.
            partitions_bytes_max: memory beyond which the least recently used are forgotten.
            tuning: sizes; None is the measured ones.
            scan_threads: cores that one search of a large partition may use, its caller's included.

        Raises:
            InvalidArgumentError: an argument out of its range.
        """
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            raise InvalidArgumentError.of("dimensions", f"must be 1 to {DIMENSIONS_MAX}")
        if not 0.0 < scale_clip <= 1.0:
            raise InvalidArgumentError.of("scale_clip", "must be above 0 and at most 1")
        if partitions_bytes_max < 1:
            raise InvalidArgumentError.of("partitions_bytes_max", "must be positive")
        self._dimensions = dimensions
        self._loader = loader
        self._coder = Coder(dimensions, scale_clip)
        self._tuning = tuning or Tuning()
        self._scan_threads = ScanThreads(scan_threads - 1)
        self._bytes_max = partitions_bytes_max
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._bytes = 0

    def search(self, resource_id: str, query: VectorQuery) -> VectorAnswer:
        """The exact top_k messages by cosine of their best chunk, among those allowed.

        Raises:
            InvalidArgumentError: top_k below 1; a query vector of another shape or dtype, not
                finite or not of unit length.
            CorruptDataError: the record gave rows that are no vectors.
        """
        view = self._partition(resource_id).view
        answer = search(view, query, self._dimensions, self._tuning, self._scan_threads)
        _release_pages(view)
        return answer

    def cosines(self, resource_id: str, seqs: IntColumn, vector: FloatRows) -> CosineRows:
        """The exact cosines of these messages (sorted, unique), as `search` gives them.

        Raises:
            InvalidArgumentError, CorruptDataError: as `search`.
        """
        view = self._partition(resource_id).view
        found = lookup.cosines(view, seqs, vector, self._dimensions)
        _release_pages(view)
        return found

    def moments(self, resource_id: str, vectors: FloatRows) -> tuple[FloatRows, FloatRows]:
        """Mean and standard deviation of the cosines of all rows with each vector; see `moments`.

        Raises:
            InvalidArgumentError, CorruptDataError: as `search`.
        """
        partition = self._partition(resource_id)
        view, nbytes = partition.view, partition.nbytes
        found = partition.moments.of(view, vectors)
        _release_pages(view)
        if partition.nbytes != nbytes:
            self._resized(resource_id, partition)
        return found

    def vectors_of(self, resource_id: str, seqs: IntColumn, chunks: IntColumn) -> FloatRows:
        """The vector of each (seq, chunk), in any order, shape (n, dimensions); zeros for none.

        Raises:
            CorruptDataError: as `search`.
        """
        view = self._partition(resource_id).view
        found = lookup.vectors_of(view, seqs, chunks, self._dimensions)
        _release_pages(view)
        return found

    def close(self) -> None:
        """End the threads that help with large searches; searches still work, without them."""
        self._scan_threads.close()

    def partition_rows(self, resource_id: str) -> PartitionRows:
        """What the partition holds now, by (seq, chunk); for Verify."""
        return as_partition_rows(self._partition(resource_id).rows())

    @property
    def scale_clip(self) -> float:
        """The parameter of the codes; those of an image made with another one are of no use."""
        return self._coder.scale_clip

    def partition_image(self, resource_id: str, generation: str) -> PartitionImage | None:
        """The partition as it is in memory now; None where it is not loaded."""
        with self._lock:
            slot = self._slots.get(resource_id)
            partition = None if slot is None else slot.partition
        if partition is None:
            return None
        block, coded = partition.coded_rows()
        return self._image(resource_id, generation, block, coded)

    def image_of(self, resource_id: str, generation: str, rows: PartitionRows) -> PartitionImage:
        """Rows of the record as an image.

        Raises:
            CorruptDataError: rows that are no vectors.
        """
        block = checked_block(rows, self._dimensions, CorruptDataError)
        return self._image(resource_id, generation, block, self._coder.encode(block.vectors))

    def _image(
        self, resource_id: str, generation: str, block: RowBlock, coded: tuple[CodeRows, Errors]
    ) -> PartitionImage:
        return PartitionImage(
            resource_id,
            generation,
            as_partition_rows(block),
            codes=coded[0],
            errors=coded[1],
            scale_clip=self._coder.scale_clip,
        )

    def reload(self, resource_id: str) -> bool:
        """Read a loaded partition anew, beside the one that serves until then; False if it was not.

        Not either if it was dropped or evicted meanwhile, or changed faster than it was read.

        Raises:
            SemanticRecallError: what the loader raises; the partition stays as it is.
        """
        with self._lock:
            slot = self._slots.get(resource_id)
            if slot is None or slot.loading:
                return False
            slot.loading = True
        try:
            return self._published(resource_id, slot, self._read(resource_id))
        finally:
            with self._lock:
                slot.loading, slot.stale = False, False
                slot.queue.clear()

    def partitions_loaded(self) -> int:
        """How many partitions are in memory."""
        with self._lock:
            return sum(slot.partition is not None for slot in self._slots.values())

    def memory_bytes(self) -> int:
        """Bytes of all partitions in memory: vectors, codes, columns and a fixed overhead each."""
        with self._lock:
            return self._bytes

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        """These rows are the only vectors of their messages now.

        Raises:
            EmbeddingFailedError: rows that are no vectors; nothing has changed.
        """
        block = checked_block(rows, self._dimensions, EmbeddingFailedError)
        self._change(resource_id, lambda partition: partition.put(block))

    def vectors_removed(self, resource_id: str, seqs: IntColumn) -> None:
        """These messages have no vectors now."""
        gone = np.unique(seqs)
        self._change(resource_id, lambda partition: partition.remove(gone))

    def resource_dropped(self, resource_id: str) -> None:
        """Forget the partition; whoever asks next reads the record."""
        with self._lock:
            slot = self._slots.get(resource_id)
            if slot is None:
                return
            if slot.partition is None:
                slot.stale = True
                slot.queue.clear()
            else:  # a reload in progress finds it gone
                self._forget(resource_id, slot)

    def resource_changed(self, resource_id: str) -> None:
        """Nothing: what matters here was told before."""

    def _change(self, resource_id: str, change: Change) -> None:
        with self._lock:
            slot = self._slots.get(resource_id)
            if slot is None:
                return
            partition = slot.partition
            if slot.loading:
                slot.queue.append(change)
                if len(slot.queue) > QUEUED_CHANGES_MAX:
                    slot.queue.clear()
                    slot.stale = True
            if partition is None:
                return
        change(partition)
        self._resized(resource_id, partition)

    def _resized(self, resource_id: str, partition: Partition) -> None:
        """Take note of a partition's memory, unless another one has its place."""
        with self._lock:
            slot = self._slots.get(resource_id)
            if slot is not None and slot.partition is partition:
                self._account(slot, partition)
                self._evict(resource_id)

    def _partition(self, resource_id: str) -> Partition:
        with self._lock:
            slot = self._slots.get(resource_id)
            mine = slot is None
            if slot is None:
                slot = self._slots[resource_id] = _Slot()
            else:
                self._slots.move_to_end(resource_id)
                if slot.partition is not None:
                    return slot.partition
        if mine:
            return self._load(resource_id, slot)
        slot.done.wait()
        if slot.partition is None:
            raise slot.error or UnavailableError("the vectors could not be read; try again")
        return slot.partition

    def _load(self, resource_id: str, slot: _Slot) -> Partition:
        try:
            for _ in range(LOAD_ATTEMPTS_MAX):
                partition = self._read(resource_id)
                if self._published(resource_id, slot, partition):
                    return partition
            raise UnavailableError("the resource changed faster than it could be read; try again")
        except BaseException as error:
            with self._lock:
                del self._slots[resource_id]
                slot.error = error
            slot.done.set()
            raise

    def _read(self, resource_id: str) -> Partition:
        loaded = self._loader(resource_id)
        if isinstance(loaded, PartitionRows):
            loaded = LoadedPartition(loaded)
        block = checked_block(loaded.rows, self._dimensions, CorruptDataError)
        partition = Partition(self._coder, self._tuning, block, loaded.imaged)
        _release_pages(partition.view)
        return partition

    def _published(self, resource_id: str, slot: _Slot, partition: Partition) -> bool:
        """Apply what was queued, then let everyone have the partition; False: read it anew."""
        while True:
            with self._lock:
                if slot.stale or self._slots.get(resource_id) is not slot:
                    slot.stale = False
                    return False
                changes, slot.queue = slot.queue, []
                if not changes:
                    slot.partition, slot.loading = partition, False
                    if partition.view.searchable:
                        self._account(slot, partition)
                        self._evict(resource_id)
                    else:  # those who wait have it from the slot; later ones read the record
                        self._forget(resource_id, slot)
                    slot.done.set()
                    slot.done = _DONE
                    return True
            for change in changes:
                change(partition)

    def _account(self, slot: _Slot, partition: Partition) -> None:
        nbytes = partition.nbytes
        self._bytes += nbytes - slot.nbytes
        slot.nbytes = nbytes

    def _forget(self, resource_id: str, slot: _Slot) -> None:
        del self._slots[resource_id]
        self._bytes -= slot.nbytes

    def _evict(self, kept_id: str) -> None:
        """Forget the least recently used beyond the limit; never `kept_id`, nor what is loading."""
        if self._bytes <= self._bytes_max:
            return
        for resource_id, slot in list(self._slots.items()):
            if self._bytes <= self._bytes_max:
                break
            if slot.partition is not None and resource_id != kept_id:
                self._forget(resource_id, slot)


def _release_pages(view: View) -> None:
    if view.pages is not None:
        view.pages.release()
