"""The ports: what the engine needs of each part, and what each part promises.

One contract suite per port runs over every implementation (`tests/contract`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from .erasing import ErasableStore
from .filters import Filter
from .generations import GenerationStore
from .lexical import LexicalListener, LexicalRows
from .nearest import CosineRows, NearestMessages, VectorAnswer, VectorQuery
from .stats import (
    CacheStats,
    SchedulerStats,
    SnapshotStats,
    StoreStats,
)
from .stored_message import MessageBody
from .values import (
    AppendOutcome,
    CallBudget,
    EmbeddedText,
    EmbedRole,
    ListQuery,
    MessageDraft,
    PartitionImage,
    PartitionRows,
    PendingRow,
    RowChecksums,
    StoredMessage,
    ThreadSummary,
    VectorRecord,
)
from .verifying import ImageCheck, RecordCare
from .windows import GroupQuery, GroupRows, MatchingRows, WindowQuery, WindowRows

if TYPE_CHECKING:
    from .values import FloatRows, IntColumn


class CommitListener(Protocol):
    """Told of every change of the record, in commit order, before the caller is answered.

    Called on the store's writer thread, one call at a time: it must be quick and must not call
    the store's writing methods. What it raises is a bug: the store logs it and stops.
    """

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        """These rows are the only vectors of their messages now (older ones are replaced)."""
        ...

    def vectors_removed(self, resource_id: str, seqs: IntColumn) -> None:
        """These messages have no vectors now: edited, forgotten or moved away."""
        ...

    def resource_dropped(self, resource_id: str) -> None:
        """Nothing of this resource in memory may be used any more; read it anew."""
        ...

    def resource_changed(self, resource_id: str) -> None:
        """Anything of this resource changed: a message, a thread, a vector, or what is pending.

        Told once for each resource that a commit changed, after all else that is told of it.
        """
        ...


class MessageCodec(Protocol):
    """How the record writes a whole message, ready to be sent. Pure functions; thread-safe."""

    @property
    def name(self) -> str:
        """Identity of the form; a record written in one form is not opened with another."""
        ...

    def encode(self, resource_id: str, draft: MessageDraft, create_time_ns: int) -> bytes:
        """The message complete: equal messages give equal bytes."""
        ...

    def decode(self, encoded: bytes) -> MessageBody:
        """What `encode` was given, but for what the record keeps beside.

        Raises CorruptDataError.
        """
        ...


class MessageStore(ErasableStore, GenerationStore, Protocol):
    """Keeps every message durably. Thread-safe. Reads never wait for writes.

    Every method that changes something returns after the change is on disk (or raises, and then
    nothing has changed). Raises ResourceExhaustedError (reason DISK_FULL) on a full disk,
    UnavailableError after a failed sync until the store is reopened, CorruptDataError for what
    cannot be read. A message that does not match its checksum is left out of every answer, logged
    and counted (`care.counts`); where it was asked for by its id, CorruptDataError.
    """

    @property
    def store_id(self) -> str:
        """Identity of this data directory; made once."""
        ...

    @property
    def codec(self) -> MessageCodec:
        """The form in which it keeps messages, and gives them."""
        ...

    @property
    def healthy(self) -> bool:
        """False after the writer died or a sync failed and the store was not yet reopened."""
        ...

    def subscribe(self, listener: CommitListener) -> None:
        """Register a listener, before the first write; each is told, in the order they came."""
        ...

    def subscribe_lexical(self, listener: LexicalListener) -> None:
        """Register the lexical index, before the first write.

        It is told of a message with the commit that stores it, before it has vectors.
        """
        ...

    def load_lexical(self, resource_id: str) -> LexicalRows:
        """All messages of a resource that have something to embed, by seq, their analysis current.

        Empty where the store was made without an analyser.
        """
        ...

    def append(
        self, resource_id: str, drafts: Sequence[MessageDraft], budget: CallBudget
    ) -> list[AppendOutcome]:
        """Store drafts in one transaction, idempotent by (resource, id); later drafts win.

        A draft equal to its row is UNCHANGED and writes nothing (a missing create_time equals any);
        otherwise the row is replaced in place: it keeps its seq, and its create_time where the
        draft has none; its vectors are gone in the same commit. New rows without create_time get
        the clock's. Calls of many threads share a commit. The budget is checked until the
        transaction begins, never after.
        """
        ...

    def put_vectors(
        self, records: Sequence[VectorRecord], generation: str | None = None
    ) -> list[bool]:
        """Store vectors whose row still has that revision and resource; False for the others.

        All are False if their generation (None: that of now) is not the one searched any more.
        """
        ...

    def pending(self, after_seq: int, limit: int) -> list[PendingRow]:
        """Rows with embeddable text and no vectors of the current generation, by seq."""
        ...

    def load_partition(self, resource_id: str) -> PartitionRows:
        """All current vectors of a resource, by (seq, chunk)."""
        ...

    def row_checksums(self, resource_id: str) -> RowChecksums:
        """Which rows `load_partition` would give, without their vectors; reads an index only."""
        ...

    def load_rows(self, resource_id: str, seqs: IntColumn) -> PartitionRows:
        """The current vectors of these messages (sorted, unique), by (seq, chunk)."""
        ...

    def thread_key(self, resource_id: str, thread_id: str) -> int | None:
        """The key of a thread, None where there is none."""
        ...

    def seqs_matching(
        self, resource_id: str, condition: Filter, budget: CallBudget
    ) -> MatchingRows:
        """The resource's messages whose metadata match.

        The cost of a filter is its caller's choice: raises DeadlineExceededError or CancelledError
        soon after the budget is over.
        """
        ...

    def unknown_metadata_keys(
        self, resource_id: str, keys: frozenset[str], budget: CallBudget
    ) -> tuple[str, ...]:
        """Those of `keys` (dotted) that no message of the resource carries, sorted.

        Raises as `seqs_matching`.
        """
        ...

    def seqs_of_ids(self, resource_id: str, message_ids: Sequence[str]) -> IntColumn:
        """Sorted seqs of those ids that are there."""
        ...

    def windows(self, query: WindowQuery) -> WindowRows:
        """Hits and neighbours, each once, all as they are at one time.

        A hit that is gone, or has another revision, or is not among the matching, is left out with
        its window; so is a neighbour that is not among the matching.
        """
        ...

    def group(self, query: GroupQuery) -> GroupRows:
        """A group, whole or not at all.

        A group that is not there, and the one of the empty id, has no messages.
        """
        ...

    def get(self, resource_id: str, message_ids: Sequence[str]) -> list[StoredMessage]:
        """The messages that are there, in the order of the ids."""
        ...

    def list_messages(self, query: ListQuery) -> list[StoredMessage]:
        """One page of history."""
        ...

    def list_threads(
        self, resource_id: str, limit: int, after: tuple[int, int] | None
    ) -> list[ThreadSummary]:
        """Threads by (last_create_time, last_seq) descending; `after` is the last one seen."""
        ...

    def transfer_thread(self, resource_id: str, thread_id: str, to_resource_id: str) -> int:
        """Move a thread; returns its messages. Rows keep their seq, vectors move with them.

        Raises NotFoundError, AlreadyExistsError.
        """
        ...

    def recent_resources(self, limit: int) -> list[str]:
        """Resources by the time of their newest message, newest first."""
        ...

    def stats(self, resource_id: str | None) -> StoreStats:
        """Counts of one resource or of all."""
        ...

    @property
    def care(self) -> RecordCare:
        """Verifies the record and mends it."""
        ...

    def tell_requeued(self, listener: Callable[[list[PendingRow]], None]) -> None:
        """Tell of messages whose vectors were found damaged when they were read, and are gone.

        Called on the record's writer thread: it must be quick.
        """
        ...

    def close(self) -> None:
        """Finish accepted writes and let go of the directory."""
        ...


class Embedder(Protocol):
    """Texts to unit vectors. Thread-safe; the calling thread waits for its vector.

    Promise: the same text in the same role always gives the same vector, whatever runs beside it:
    to the bit where texts run one by one, and within 1e-5 of each number where they share a run.
    What is returned is finite and has unit length, else EmbeddingFailedError.

    A full queue raises ResourceExhaustedError (QUEUE_FULL) at once; an embedder that is not
    healthy raises UnavailableError.
    """

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        ...

    @property
    def generation(self) -> str:
        """Identity of the vectors: model, digest, dimension, pooling, prompts, quantisation."""
        ...

    @property
    def index_identity(self) -> str:
        """Short readable form, `<model>@<revision>/<dimensions>` and what else tells it apart."""
        ...

    @property
    def device(self) -> str:
        """Where it runs: "cpu" or "cuda"."""
        ...

    @property
    def healthy(self) -> bool:
        """False once it needs a restart; every call fails from then on."""
        ...

    @property
    def passages_at_once(self) -> int:
        """How many callers with a passage each keep it busy; 1 or more."""
        ...

    def embed_query(self, text: str, budget: CallBudget, owner: str = "") -> EmbeddedText:
        """One vector; text longer than the window is cut. Identical texts at once cost one run.

        Args:
            text: what to embed.
            budget: ends the wait.
            owner: whose text it is: what is cached for one owner is never used for another, so
                that nobody learns what somebody else said from what is quick.
        """
        ...

    def embed_queries(
        self, texts: Sequence[str], budget: CallBudget, owner: str = ""
    ) -> list[EmbeddedText]:
        """As `embed_query` for each, to the same vectors; what is computed shares the time."""
        ...

    def queries_to_compute(self, texts: Sequence[str], owner: str = "") -> int:
        """How many of these `embed_queries` would probably run the model for. Takes no time."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens of the model each text is, without those around a text."""
        ...

    def cut_to_tokens(self, text: str, tokens_max: int) -> str:
        """The longest beginning of a text that has at most so many tokens; whole characters."""
        ...

    def embed_window(
        self, text: str, role: EmbedRole, budget: CallBudget, owner: str = ""
    ) -> EmbeddedText:
        """The vector of a text's first window, in either role; `truncated` if there is more."""
        ...

    def embed_passage(self, text: str, budget: CallBudget, owner: str = "") -> EmbeddedText:
        """One vector per chunk of the window's size, chunks overlapping."""
        ...

    def forget_texts(self, texts: Sequence[str], owner: str = "") -> int:
        """Drop the owner's cached vectors of these texts and their chunks; returns how many.

        They are gone from memory and disk when this returns. Raises UnavailableError where they
        cannot be removed from the disk.
        """
        ...

    def forget_owner(self, owner: str) -> int:
        """Drop all that is cached for an owner, queries too. As `forget_texts`."""
        ...

    def close(self) -> None:
        """Let go of files, what is to be kept on disk written. Nothing is embedded afterwards."""
        ...

    def erase_forgotten(self) -> bool:
        """Free the cache's files of what was forgotten; False where a reader is in the way.

        Raises UnavailableError where the disk fails.
        """
        ...

    def cache_stats(self) -> CacheStats:
        """State of the cache."""
        ...

    def scheduler_stats(self) -> SchedulerStats:
        """What waits and what has run."""
        ...


class VectorIndex(CommitListener, Protocol):
    """Nearest messages inside one partition (a resource). Thread-safe; exact.

    Partitions are read through the loader it was made with, on first use.
    """

    def search(self, resource_id: str, query: VectorQuery) -> VectorAnswer:
        """The exact top_k messages by cosine of their best chunk, among those allowed."""
        ...

    def cosines(self, resource_id: str, seqs: IntColumn, vectors: FloatRows) -> CosineRows:
        """The exact cosines of these messages (sorted, unique) with each vector, as of `search`."""
        ...

    def nearest(self, resource_id: str, queries: Sequence[VectorQuery]) -> NearestMessages:
        """Whom `search` finds for queries that differ in their vectors, and `moments` of these."""
        ...

    def moments(self, resource_id: str, vectors: FloatRows) -> tuple[FloatRows, FloatRows]:
        """Mean and standard deviation (above 0) of the cosines of all rows with each vector.

        `vectors`: shape (queries, dimensions), unit length. Both of shape (queries,).
        """
        ...

    def vectors_of(self, resource_id: str, seqs: IntColumn, chunks: IntColumn) -> FloatRows:
        """The vector of each (seq, chunk), in any order, shape (n, dimensions); zeros for none."""
        ...

    def partition_rows(self, resource_id: str) -> PartitionRows:
        """What the partition holds now, by (seq, chunk); for Verify."""
        ...

    def resources_loaded(self) -> list[str]:
        """The resources whose partitions are in memory."""
        ...

    def partitions_loaded(self) -> int:
        """How many partitions are in memory."""
        ...

    def close(self) -> None:
        """End its threads. Searches may still come and are answered, more slowly."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of memory that they take."""
        ...


class SnapshotStore(Protocol):
    """Images of partitions in checksummed files, so that a start need not read the record.

    Thread-safe; one writer at a time. Nothing here is true by itself: whoever reads an image
    compares its rows' checksums with the record's and takes what differs from there. What is
    missing, damaged, of another format or not readable is logged, counted and treated as not
    there; no read raises because of it.
    """

    def read(self, resource_id: str) -> PartitionImage | None:
        """The newest sound image of a resource; None where there is none."""
        ...

    def write(self, images: Iterable[PartitionImage]) -> int:
        """Keep these images, which replace older ones of their resources; returns how many.

        All of them become visible at once, after they are on disk and were read back and compared.
        Raises ResourceExhaustedError (DISK_FULL) or UnavailableError; the older images stay then.
        """
        ...

    def forget(self, resource_ids: Sequence[str]) -> None:
        """No image of these resources is given any more, now or after a restart.

        Their bytes are gone from the disk before this returns. Raises as `write`. Images given
        before stay valid; it is dearer while any is in use of which arrays are mapped.
        """
        ...

    def withdraw(self, resource_ids: Sequence[str]) -> None:
        """No image of these resources is given from now on, until one is written or a restart."""
        ...

    def seqs_of(self, resource_id: str) -> IntColumn:
        """Messages of which the disk may hold rows in this resource's name, sorted, unique.

        Also those of replaced images. Read without being verified.
        """
        ...

    def resources(self) -> dict[str, int]:
        """The resources that have an image, and its rows."""
        ...

    def examine(self, resource_id: str | None) -> Iterator[ImageCheck]:
        """Read and verify every image that is on the disk, of one resource or of all; for Verify.

        Also those that were found damaged before. Changes nothing.
        """
        ...

    def take_moved(self) -> list[str]:
        """Resources whose images were copied into another file since this was last asked.

        What is mapped from the old one keeps its bytes on the disk until it is read anew.
        """
        ...

    def rows_of(self, resource_id: str) -> int | None:
        """Rows of a resource's image; 0 also where there is none to give but bytes may be left.

        None: nothing of the resource is on the disk, and there is nothing to forget.
        """
        ...

    def stats(self) -> SnapshotStats:
        """What is on disk."""
        ...

    def close(self) -> None:
        """Let go of all files. Images given before stay valid."""
        ...
