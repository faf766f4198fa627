"""Named collections of vectors that callers bring themselves: values, and the port.

A collection belongs to one resource. It holds no messages, and nothing of it is found by Recall.
Metadata is what JSON can say: objects, lists, strings, finite numbers (doubles), booleans, null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from .values import CallBudget, Finding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = Sequence[float] | NDArray[np.float32]

COLLECTION_NOT_FOUND = "COLLECTION_NOT_FOUND"
"""Reason of NotFoundError: the resource has no collection of that name."""

VECTOR_NOT_FOUND = "VECTOR_NOT_FOUND"
"""Reason of NotFoundError: an id to update is not there."""

DIMENSIONS_DIFFER = "DIMENSIONS_DIFFER"
"""Reason of FailedPreconditionError: the collection is there with other dimensions."""

METRIC_DIFFERS = "METRIC_DIFFERS"
"""Reason of FailedPreconditionError: the collection is there with another metric."""

TOO_MANY_COLLECTIONS = "TOO_MANY_COLLECTIONS"
"""Reason of ResourceExhaustedError: the resource has as many collections as are allowed."""

COLLECTION_FULL = "COLLECTION_FULL"
"""Reason of ResourceExhaustedError: the collection would be larger than is allowed."""


class Metric(IntEnum):
    """How vectors are compared; a higher score is nearer. The numbers are on the wire and on disk.

    COSINE: the cosine, -1 to 1. EUCLIDEAN: 1 / (1 + distance). DOT_PRODUCT: the inner product.
    """

    COSINE = 1
    EUCLIDEAN = 2
    DOT_PRODUCT = 3


@dataclass(frozen=True, slots=True)
class CollectionLimits:
    """How large collections may grow.

    Attributes:
        collections_max: of one resource.
        vectors_max: in one collection.
        metadata_bytes_max: of one vector's metadata as compact JSON in UTF-8, after an update.
        bytes_max: of memory that collections take together while they are searched; the least
            recently used one makes room. One that is larger alone is held alone.
        collection_bytes_max: of memory that one collection takes when it was read from its file; no
            change makes one larger.
    """

    collections_max: int = 100
    vectors_max: int = 1_000_000
    metadata_bytes_max: int = 64 << 10
    bytes_max: int = 1 << 30
    collection_bytes_max: int = 1 << 30


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What a collection is, and how many vectors it holds."""

    name: str
    dimensions: int
    metric: Metric
    vectors: int


@dataclass(frozen=True, slots=True)
class VectorEntry:
    """A vector to keep.

    Attributes:
        id: unique in its collection.
        values: as many finite numbers as the collection has dimensions; kept as float32. With
            COSINE not all of them zero.
        metadata: an object of what JSON can say.
    """

    id: str
    values: Values
    metadata: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class VectorSelection:
    """Which vectors of a collection: exactly one of both is given.

    Attributes:
        ids: these.
        filter: those whose metadata match; `{}` is refused.
    """

    ids: Sequence[str] | None = None
    filter: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class VectorChange:
    """What an update sets; at least one of both.

    Attributes:
        values: the new vector; None: as it was.
        metadata: fields to set; others stay as they were. None: all as it was.
    """

    values: Values | None = None
    metadata: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """What to look for.

    Attributes:
        values: to compare with; None compares nothing: the first `top_k` by id, with score 0. A
            filter that is not empty is required then.
        top_k: 1 or more.
        filter: condition on the metadata; None or `{}` is none.
        score_min: least score, inclusive; None is none.
        include_values: give the vectors too.
    """

    values: Values | None
    top_k: int = 10
    filter: Mapping[str, object] | None = None
    score_min: float | None = None
    include_values: bool = False


@dataclass(frozen=True, slots=True)
class VectorMatch:
    """A vector that was found.

    Attributes:
        score: see Metric; a float32.
        metadata: as given.
        values: as given, where asked for.
    """

    id: str
    score: float
    metadata: dict[str, object]
    values: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class UpsertCounts:
    """What an upsert did: vectors that were not there, that were, and that `delete_filter` hit."""

    added: int
    replaced: int
    deleted: int


@dataclass(frozen=True, slots=True)
class CollectionCounts:
    """State, and counters since the start.

    Attributes:
        collections, vectors: of all resources.
        disk_bytes: of the file and its log.
        loaded: collections in memory, which take `memory_bytes`.
        loads: collections that were read into memory.
        evictions: collections that left memory for others.
        damaged: rows and pages that were found damaged.
    """

    collections: int = 0
    vectors: int = 0
    disk_bytes: int = 0
    loaded: int = 0
    memory_bytes: int = 0
    loads: int = 0
    evictions: int = 0
    damaged: int = 0


class VectorCollections(Protocol):
    """Named collections of vectors. Thread-safe.

    A change is on disk when its method returns, as a whole; where it raises, nothing was changed
    (but see UnavailableError and `delete_vectors`). Names and ids are checked by the caller. All
    methods may raise:

        NotFoundError: COLLECTION_NOT_FOUND, where `name` is of no collection of the resource.
        InvalidArgumentError: what only a collection can tell: `values`, `entries[i].values`,
            `filter`, `delete_filter`, `selection.filter`, `metadata`.
        DeadlineExceededError, CancelledError: the budget is over; nothing was changed.
        ResourceExhaustedError: DISK_FULL.
        CorruptDataError: a page or a row that is needed is damaged. Nothing is left out for it.
        UnavailableError: it is closed; or the disk failed, and the change may be there or not.
    """

    def create(
        self, resource_id: str, name: str, dimensions: int, metric: Metric
    ) -> tuple[CollectionInfo, bool]:
        """Make a collection; returns it, and whether it was not there before.

        Raises:
            FailedPreconditionError: it is there: DIMENSIONS_DIFFER, METRIC_DIFFERS.
            ResourceExhaustedError: TOO_MANY_COLLECTIONS.
        """
        ...

    def list(self, resource_id: str) -> Sequence[CollectionInfo]:
        """The collections of a resource, by name."""
        ...

    def describe(self, resource_id: str, name: str) -> CollectionInfo:
        """One collection."""
        ...

    def delete(self, resource_id: str, name: str, budget: CallBudget | None = None) -> int | None:
        """Remove a collection; returns how many vectors it had, None where there is none.

        It is gone for everybody at once; its rows leave the file by and by, or with a purge.

        Args:
            resource_id, name: of the collection.
            budget: of waiting for others that change it.
        """
        ...

    def upsert(
        self,
        resource_id: str,
        name: str,
        entries: Sequence[VectorEntry],
        delete_filter: Mapping[str, object] | None,
        budget: CallBudget,
    ) -> UpsertCounts:
        """Add vectors or replace those of the same ids; of two with one id the later one counts.

        Args:
            resource_id, name: of the collection.
            entries: all of them are kept, or none.
            delete_filter: what matches it is removed before; None or `{}` removes nothing.
            budget: of all of it; when it is over nothing was changed.

        Raises:
            ResourceExhaustedError: COLLECTION_FULL.
        """
        ...

    def query(
        self, resource_id: str, name: str, query: VectorQuery, budget: CallBudget
    ) -> Sequence[VectorMatch]:
        """The nearest vectors among those that match, exactly; of equal scores the lower id."""
        ...

    def update(
        self,
        resource_id: str,
        name: str,
        selection: VectorSelection,
        change: VectorChange,
        budget: CallBudget,
    ) -> int:
        """Change the vectors chosen; returns how many they are.

        Args:
            resource_id, name: of the collection.
            selection: which.
            change: what to.
            budget: of all of it; when it is over nothing was changed.

        Raises:
            NotFoundError: VECTOR_NOT_FOUND, where one of the ids is not there.
            ResourceExhaustedError: COLLECTION_FULL.
        """
        ...

    def delete_vectors(
        self, resource_id: str, name: str, selection: VectorSelection, budget: CallBudget
    ) -> int:
        """Remove the vectors chosen; returns how many were there.

        A thousand at a time: where it raises, some may be gone. It can be repeated.
        """
        ...

    def forget_resource(self, resource_id: str) -> int:
        """Remove all collections of a resource; returns how many vectors they had."""
        ...

    def purge(self, budget: CallBudget) -> None:
        """Leave nothing of vectors and collections that were removed in the file or its log.

        What was replaced goes with it where something was removed.
        """
        ...

    def purge_pending(self) -> bool:
        """Whether something that was removed may still be in the file."""
        ...

    def tell_removed(self, told: Callable[[], None]) -> None:
        """Call this after each change that removed something; it must be quick."""
        ...

    def damaged(self) -> int:
        """Rows and pages that were found damaged since the start."""
        ...

    def verify(self, resource_id: str | None, budget: CallBudget) -> Iterator[Finding]:
        """Read everything and give what does not agree: PAGE_DAMAGED, COLLECTION_DAMAGED or
        VECTOR_ROW_DAMAGED (`message_id` is the vector's id then).

        Args:
            resource_id: of one alone; None is everything.
            budget: of the reading.
        """
        ...

    def counts(self) -> CollectionCounts:
        """State, and counters since the start."""
        ...

    def close(self) -> None:
        """Let go of the file. Safe to call twice; later calls raise UnavailableError."""
        ...
