"""Plain values that travel between the parts of the engine.

Times are integers: nanoseconds since 1970-01-01T00:00:00Z. Vectors are C-contiguous float32 rows
of unit length. `seq` is a message's position in the record: positive, growing, never used twice,
kept when the message is replaced. `revision` grows with every change of the record; a vector
belongs to one (seq, revision) and to no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from .errors import CancelledError, DeadlineExceededError, SemanticRecallError
from .nearest import CosineRows as CosineRows
from .nearest import NearestMessages as NearestMessages
from .nearest import VectorAnswer as VectorAnswer
from .nearest import VectorHit as VectorHit
from .nearest import VectorHits as VectorHits
from .nearest import VectorQuery as VectorQuery
from .stored_message import StoredMessage as StoredMessage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatRows = NDArray[np.float32]
    IntColumn = NDArray[np.int64]
    ByteColumn = NDArray[np.uint8]

TIME_NS_MIN = -(2**63)
TIME_NS_MAX = 2**63 - 1


class Role(IntEnum):
    """Who wrote a message. The numbers are on the wire and on disk."""

    USER = 1
    ASSISTANT = 2
    SYSTEM = 3
    TOOL = 4


class Wait(IntEnum):
    """When Index answers."""

    SEARCHABLE = 1
    DURABLE = 2


class Status(IntEnum):
    """What became of one message given to Index. The numbers are on the wire."""

    INDEXED = 1
    REPLACED = 2
    UNCHANGED = 3
    PENDING = 4
    NOT_EMBEDDED = 5
    REJECTED = 6


class EmbedRole(IntEnum):
    """What a text is embedded as."""

    QUERY = 1
    PASSAGE = 2


@dataclass(slots=True)
class CallBudget:
    """How long a call may go on, and whether its caller is still there.

    Attributes:
        deadline: `time.monotonic()` value after which the call is over.
        cancelled: asked between stages; True stops the work.
    """

    deadline: float
    cancelled: Callable[[], bool] = lambda: False

    @classmethod
    def of_seconds(cls, seconds: float) -> CallBudget:
        """A budget that starts now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, not below zero."""
        return max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        """Raise DeadlineExceededError or CancelledError if the call is over."""
        if self.cancelled():
            raise CancelledError("the caller went away")
        if time.monotonic() >= self.deadline:
            raise DeadlineExceededError("the deadline passed before the answer was ready")


@dataclass(frozen=True, slots=True)
class MessageDraft:
    """A message as given to Index, checked by the caller.

    Attributes:
        create_time_ns: None where the writer gave none.
        metadata_json: compact JSON object with sorted keys; "" for none.
        embeddable: role and text give something to embed.
    """

    id: str
    thread_id: str
    role: Role
    author: str = ""
    text: str = ""
    create_time_ns: int | None = None
    metadata_json: str = ""
    payload: bytes = b""
    payload_type: str = ""
    group_id: str = ""
    embeddable: bool = True


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """What `MessageStore.append` did with one draft.

    Attributes:
        status: INDEXED (new), REPLACED or UNCHANGED.
        pending: the row has text to embed and no vectors of the current generation yet.
        replaced_text: the text to embed that the row had before, where it has another one now, or
            none: what was made from it is of no use any more.
    """

    seq: int
    revision: int
    status: Status
    pending: bool
    replaced_text: str | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A row whose text waits to be embedded; None where the text was not read."""

    resource_id: str
    seq: int
    revision: int
    text: str | None


@dataclass(frozen=True, slots=True)
class VectorRecord:
    """Vectors for one row; stored only if the row still has this revision.

    Attributes:
        vectors: shape (chunks, dimensions).
    """

    resource_id: str
    seq: int
    revision: int
    vectors: FloatRows


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Vectors of one resource with the columns that scope and filters need; one entry per chunk.

    Attributes:
        seqs, thread_keys, times_ns: shape (n,). A thread key stands for one thread of one
            resource, is positive and never used twice.
        roles: shape (n,). The `Role` of the message.
        chunks: shape (n,). Position of the chunk in its message, from 0.
        revisions: shape (n,). That of the message which all of this belongs to.
        vectors: shape (n, dimensions), float32, unit length.
        checksums: shape (n,). The record's 64-bit checksum of all the above and the resource: rows
            of equal checksum are equal.
    """

    seqs: IntColumn
    thread_keys: IntColumn
    times_ns: IntColumn
    roles: ByteColumn
    chunks: IntColumn
    revisions: IntColumn
    vectors: FloatRows
    checksums: IntColumn


@dataclass(frozen=True, slots=True)
class RowChecksums:
    """Which vector rows the record holds now for one resource, by (seq, chunk).

    Attributes:
        seqs, chunks, checksums: as in `PartitionRows`, shape (n,).
    """

    seqs: IntColumn
    chunks: IntColumn
    checksums: IntColumn


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One resource's partition as a snapshot keeps it. Derived: the record decides what is true.

    Attributes:
        resource_id: whose it is.
        generation: the embedder's generation that the vectors belong to.
        rows: by (seq, chunk); `rows.vectors` may be mapped from a file and is never written to.
        codes: shape (n, dimensions), uint8: the vectors as the vector index codes them.
        errors: shape (n,), float32: the distance of each row from its coded form.
        scale_clip: the coder's only parameter; codes made with another one are of no use.
    """

    resource_id: str
    generation: str
    rows: PartitionRows
    codes: ByteColumn
    errors: FloatRows
    scale_clip: float


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """One text's vectors.

    Attributes:
        vectors: shape (chunks, dimensions); one row for a query.
        tokens: as embedded, special tokens included, over all chunks.
        truncated: the text was longer than the window and was cut (queries only).
        computed, cached: how many rows came from the model and from the cache.
    """

    vectors: FloatRows
    tokens: int
    truncated: bool
    computed: int
    cached: int


@dataclass(frozen=True, slots=True)
class ForgetCondition:
    """Which messages of a resource: those that meet all that is set; at least one is.

    Attributes:
        thread_id: of this thread; None is all.
        authors: by one of these, compared by equality; empty is all.
        time_from_ns, time_to_ns: half-open interval of create_time; None is open.
        roles: of one of these; empty is all.
    """

    thread_id: str | None = None
    authors: frozenset[str] = frozenset()
    time_from_ns: int | None = None
    time_to_ns: int | None = None
    roles: frozenset[Role] = frozenset()

    @property
    def picks(self) -> bool:
        """Whether single messages must be looked at: no index leads to exactly these."""
        return bool(self.authors or self.roles)


@dataclass(frozen=True, slots=True)
class ForgetTarget:
    """What to forget; exactly one attribute is set, beside `changed_after`.

    Attributes:
        rows: (seq, revision) of messages; one that has changed since is not meant.
        changed_after: with a condition: only messages that changed after this revision.
    """

    message_ids: tuple[str, ...] | None = None
    thread_id: str | None = None
    everything: bool = False
    create_time_before_ns: int | None = None
    condition: ForgetCondition | None = None
    rows: tuple[tuple[int, int], ...] | None = None
    changed_after: int = 0


@dataclass(frozen=True, slots=True)
class ForgetOutcome:
    """What `MessageStore.forget` removed. `texts` lets the cache drop their vectors.

    Attributes:
        texts_left_out: there were more texts than those in `texts`.
        more: there may be more messages to remove; call again.
        revision: of the change; 0 where nothing was removed.
        in_snapshots: those of `seqs` that saved snapshots may hold.
    """

    seqs: tuple[int, ...]
    vectors: int
    threads: int
    texts: tuple[str, ...] = field(repr=False, default=())
    texts_left_out: bool = False
    more: bool = False
    revision: int = 0
    in_snapshots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowsToForget:
    """A page of a search for what a condition names.

    Attributes:
        rows: (seq, revision) of those found.
        revision: the record's, as the page saw it.
        after: where the next page begins; None after the last.
    """

    rows: tuple[tuple[int, int], ...]
    revision: int
    after: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class PurgeState:
    """How far the files have been freed of what was forgotten.

    Attributes:
        forgotten_revision: that of the last change that removed messages.
        erased_revision: what was removed up to there has left the files.
    """

    forgotten_revision: int
    erased_revision: int

    @property
    def pending(self) -> bool:
        """Something that was forgotten may still be in the files."""
        return self.erased_revision < self.forgotten_revision


@dataclass(frozen=True, slots=True)
class ListQuery:
    """One page of history, by (create_time, seq).

    Attributes:
        after: exclusive position (create_time_ns, seq) the page starts behind, in its direction.
    """

    resource_id: str
    thread_id: str | None
    limit: int
    newest_first: bool = False
    after: tuple[int, int] | None = None
    time_from_ns: int | None = None
    time_to_ns: int | None = None
    roles: frozenset[Role] = frozenset()


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """One thread of a resource."""

    thread_id: str
    messages: int
    first_create_time_ns: int
    last_create_time_ns: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class IndexResult:
    """What became of one message of an Index call."""

    status: Status
    error: SemanticRecallError | None = None


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """Results in the order of the drafts. Times in microseconds."""

    results: tuple[IndexResult, ...]
    read_token: str
    embeddings_computed: int
    embeddings_cached: int
    durable_us: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that Verify found not to agree. Never holds message text.

    Attributes:
        repaired: it was mended. Never so where a message is lost.
    """

    kind: str
    resource_id: str
    message_id: str
    detail: str
    repaired: bool = False
