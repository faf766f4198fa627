"""The exact vector index: one partition of FAISS codes and float32 rows for each resource.

Which partitions are in memory, and how commits reach them: `partitions.resident`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.partitions.resident import ResidentPartitions
from semanticrecall_core.types.errors import (
    CorruptDataError,
    EmbeddingFailedError,
    InvalidArgumentError,
)
from semanticrecall_core.types.values import (
    CosineRows,
    NearestMessages,
    PartitionImage,
    PartitionRows,
    VectorAnswer,
    VectorQuery,
)

from . import lookup
from .codes import Coder, checked
from .exactness import search
from .loaded import LoadedPartition
from .nearest import WholeScan, is_small, nearest_seqs, spread_of_scans
from .parallel_scan import ScanThreads
from .partition import Partition, Tuning, View
from .rows import RowBlock, as_partition_rows, checked_block

if TYPE_CHECKING:
    from semanticrecall_core.types.values import FloatRows, IntColumn

    from .codes import CodeRows
    from .codes import ErrorColumn as Errors

Loader = Callable[[str], PartitionRows | LoadedPartition]

DIMENSIONS_MAX = 8192
PARTITIONS_BYTES_MAX = 4 * 2**30


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
        self._partitions = ResidentPartitions(self._read, partitions_bytes_max)

    def search(self, resource_id: str, query: VectorQuery) -> VectorAnswer:
        """The exact top_k messages by cosine of their best chunk, among those allowed.

        Raises:
            InvalidArgumentError: top_k below 1; a query vector of another shape or dtype, not
                finite or not of unit length.
            CorruptDataError: the record gave rows that are no vectors.
        """
        view = self._partitions.get(resource_id).view
        answer = search(view, query, self._dimensions, self._tuning, self._scan_threads)
        _release_pages(view)
        return answer

    def cosines(self, resource_id: str, seqs: IntColumn, vectors: FloatRows) -> CosineRows:
        """The exact cosines of these messages (sorted, unique) with each vector, as of `search`.

        Raises:
            InvalidArgumentError, CorruptDataError: as `search`.
        """
        view = self._partitions.get(resource_id).view
        found = lookup.cosines(view, seqs, checked(vectors, self._dimensions))
        _release_pages(view)
        return found

    def nearest(self, resource_id: str, queries: Sequence[VectorQuery]) -> NearestMessages:
        """Whom `search` finds for queries that differ in their vectors, and `moments` of these.

        Raises:
            InvalidArgumentError, CorruptDataError: as `search`.
        """
        view = self._partitions.get(resource_id).view
        if not is_small(view):
            return self._nearest_of_many(resource_id, queries)
        scans = [WholeScan(query.vector, self._dimensions) for query in queries]
        found = [
            nearest_seqs(view, query, scan, self._tuning)
            for query, scan in zip(queries, scans, strict=True)
        ]
        spread = spread_of_scans(view, scans)
        _release_pages(view)
        return NearestMessages(
            _united([seqs for seqs, _ in found]), found[0][1], view.searchable, *spread
        )

    def _nearest_of_many(self, resource_id: str, queries: Sequence[VectorQuery]) -> NearestMessages:
        answers = [self.search(resource_id, query) for query in queries]
        first = answers[0]
        seqs = _united([answer.found.seqs for answer in answers])
        spread = self.moments(resource_id, np.array([query.vector for query in queries]))
        return NearestMessages(seqs, first.candidates, first.searchable, *spread)

    def moments(self, resource_id: str, vectors: FloatRows) -> tuple[FloatRows, FloatRows]:
        """Mean and standard deviation of the cosines of all rows with each vector; see `moments`.

        Raises:
            InvalidArgumentError, CorruptDataError: as `search`.
        """
        partition = self._partitions.get(resource_id)
        view, nbytes = partition.view, partition.nbytes
        found = partition.moments.of(view, vectors)
        _release_pages(view)
        if partition.nbytes != nbytes:
            self._partitions.resized(resource_id, partition)
        return found

    def vectors_of(self, resource_id: str, seqs: IntColumn, chunks: IntColumn) -> FloatRows:
        """The vector of each (seq, chunk), in any order, shape (n, dimensions); zeros for none.

        Raises:
            CorruptDataError: as `search`.
        """
        view = self._partitions.get(resource_id).view
        found = lookup.vectors_of(view, seqs, chunks, self._dimensions)
        _release_pages(view)
        return found

    def close(self) -> None:
        """End the threads that help with large searches; searches still work, without them."""
        self._scan_threads.close()

    def partition_rows(self, resource_id: str) -> PartitionRows:
        """What the partition holds now, by (seq, chunk); for Verify."""
        return as_partition_rows(self._partitions.get(resource_id).rows())

    @property
    def scale_clip(self) -> float:
        """The parameter of the codes; those of an image made with another one are of no use."""
        return self._coder.scale_clip

    def partition_image(self, resource_id: str, generation: str) -> PartitionImage | None:
        """The partition as it is in memory now; None where it is not loaded."""
        partition = self._partitions.loaded(resource_id)
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
        return self._partitions.reload(resource_id)

    def resources_loaded(self) -> list[str]:
        """The resources whose partitions are in memory."""
        return self._partitions.names()

    def partitions_loaded(self) -> int:
        """How many partitions are in memory."""
        return self._partitions.count()

    def memory_bytes(self) -> int:
        """Bytes of all partitions in memory: vectors, codes, columns and a fixed overhead each."""
        return self._partitions.nbytes()

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        """These rows are the only vectors of their messages now.

        Raises:
            EmbeddingFailedError: rows that are no vectors; nothing has changed.
        """
        block = checked_block(rows, self._dimensions, EmbeddingFailedError)
        self._partitions.change(resource_id, lambda partition: partition.put(block))

    def vectors_removed(self, resource_id: str, seqs: IntColumn) -> None:
        """These messages have no vectors now."""
        gone = np.unique(seqs)
        self._partitions.change(resource_id, lambda partition: partition.remove(gone))

    def resource_dropped(self, resource_id: str) -> None:
        """Forget the partition; whoever asks next reads the record."""
        self._partitions.drop(resource_id)

    def resource_changed(self, resource_id: str) -> None:
        """Nothing: what matters here was told before."""

    def _read(self, resource_id: str) -> Partition:
        loaded = self._loader(resource_id)
        if isinstance(loaded, PartitionRows):
            loaded = LoadedPartition(loaded)
        block = checked_block(loaded.rows, self._dimensions, CorruptDataError)
        partition = Partition(self._coder, self._tuning, block, loaded.imaged)
        _release_pages(partition.view)
        return partition


def _release_pages(view: View) -> None:
    if view.pages is not None:
        view.pages.release()


def _united(sets: Sequence[IntColumn]) -> IntColumn:
    """The seqs in one set at least, sorted, unique; each is in a set once."""
    return np.sort(sets[0]) if len(sets) == 1 else np.unique(np.concatenate(sets))
