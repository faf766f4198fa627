"""Vectors of more than one model beside each other: what is said about them, and the ports.

A generation is what one model makes of texts, told apart by `Embedder.generation`: two generations
are the same only where their vectors are. One is searched at any time. Another may be made beside
it, and takes its place as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .values import EmbeddedText, PartitionRows, PendingRow, RowChecksums, VectorRecord

if TYPE_CHECKING:
    from .values import IntColumn


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A model as the record knows it.

    Attributes:
        generation: `Embedder.generation`.
        index_identity: `Embedder.index_identity`, for people; "" where it is not known.
    """

    generation: str
    index_identity: str = ""

    @property
    def shown(self) -> str:
        """The readable form, or what there is."""
        return self.index_identity or self.generation


@dataclass(frozen=True, slots=True)
class Embedding:
    """Texts as one model embeds them.

    Attributes:
        texts: in the order given.
        dimensions: numbers in a vector.
        index_identity: the model's.
    """

    texts: tuple[EmbeddedText, ...]
    dimensions: int
    index_identity: str


@dataclass(frozen=True, slots=True)
class LackingRows:
    """A stretch of the record.

    Attributes:
        rows: its messages without vectors of a generation, by seq.
        damaged: messages without such vectors whose text cannot be read.
        read_to: the seq that it ends with; None where nothing comes after it.
    """

    rows: tuple[PendingRow, ...]
    damaged: tuple[int, ...]
    read_to: int | None


@dataclass(frozen=True, slots=True)
class ReembedProgress:
    """How far all vectors are made anew.

    Attributes:
        done: messages that have vectors of the next model.
        total: messages that will have some.
        before: index identity of the model that served when it was asked for.
        after: that of the next model.
        complete: the next model serves.
    """

    done: int
    total: int
    before: str
    after: str
    complete: bool


class RecordedVectors(Protocol):
    """The vectors of one generation as a partition is read from them. Thread-safe."""

    def load_partition(self, resource_id: str) -> PartitionRows:
        """All vectors of a resource, by (seq, chunk)."""
        ...

    def row_checksums(self, resource_id: str) -> RowChecksums:
        """Which rows `load_partition` would give, without their vectors; reads an index only."""
        ...

    def load_rows(self, resource_id: str, seqs: IntColumn) -> PartitionRows:
        """The vectors of these messages (sorted, unique), by (seq, chunk)."""
        ...

    def recent_resources(self, limit: int) -> list[str]:
        """Resources by the time of their newest message, newest first."""
        ...


class GenerationVectors(RecordedVectors, Protocol):
    """The vectors of one generation, whether it is searched or is still being made."""

    def lacking(self, after_seq: int, limit: int) -> LackingRows:
        """Messages beyond a seq with something to embed and no vectors of this generation.

        It looks at a bounded stretch of the record: there may be some later where there are none.
        """
        ...

    def lacking_among(self, seqs: Sequence[int]) -> LackingRows:
        """Those of these messages that have none."""
        ...

    def put(self, records: Sequence[VectorRecord]) -> list[bool]:
        """Store vectors whose row still has that revision and resource; False for the others.

        All are False once another generation has taken the place of this one.
        """
        ...


class GenerationStore(Protocol):
    """A record that may hold vectors of several generations."""

    @property
    def generation(self) -> str:
        """The one that is searched: `pending` and the reads without one are of it."""
        ...

    def embedded(self, generation: str) -> int:
        """Messages that have vectors of a generation; 0 for one that is not known."""
        ...

    def vectors_of(self, model: ModelIdentity) -> GenerationVectors:
        """The vectors of a generation, which may have none yet.

        Of those that are not searched only the one asked for last is kept.
        """
        ...

    def serve(
        self, generation: str, without: Collection[int], switched: Callable[[], None]
    ) -> tuple[int, ...]:
        """Search another generation from now on, if it has all messages that are searchable.

        Args:
            generation: one that `vectors_of` was asked for.
            without: messages that may lack: they are pending afterwards.
            switched: called once on the writer thread, after the commit and before whatever was
                committed later is told to anybody. Must be quick and must not call the store.

        Returns:
            Messages that are searchable now and lack vectors of that generation, not all if they
            are many; nothing has changed then. Empty: it is searched.
        """
        ...

    def drop_unused_vectors(self, after: tuple[int, int], rows_max: int) -> tuple[int, int] | None:
        """Delete some of the vectors that no generation in use has.

        Args:
            after: (0, 0), then what the last call returned.
            rows_max: how many at most.

        Returns:
            Where to go on; None where none are left.
        """
        ...
